//! The engine that the scenarios are about: the executor over the fake runtime, in this process.
//!
//! `tests/remote/scenarios/engine.rs` stands in its place there: the same one in a worker process, behind the link.

use ictus::executor::{Executor, ExecutorOptions};
use ictus::runtime::{FakeOptions, FakeRuntime};

pub(crate) type Under = Executor<FakeRuntime>;

/// Loads of the long runs.
#[allow(dead_code, reason = "not every suite has one")]
pub(crate) const ROUNDS: usize = 24;

/// Whether this engine lacks what a test is about: never here. Where one does, the test is left out, and says so.
#[allow(dead_code, reason = "not every suite has such a test")]
pub(crate) fn lacks(_: &str) -> bool {
    false
}

/// A fresh engine over the default fake, changed.
pub(crate) fn under_test(change: impl FnOnce(&mut FakeOptions)) -> Under {
    under_test_with(ExecutorOptions::default(), change)
}

/// The same, with options of the executor.
pub(crate) fn under_test_with(options: ExecutorOptions, change: impl FnOnce(&mut FakeOptions)) -> Under {
    Executor::with_options(FakeRuntime::with(change), options)
}
