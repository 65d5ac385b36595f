//! The engine under the driver, in this process. `tests/remote/driving/engine.rs` stands in its place there: one in a worker process.

use ictus::Model;
use ictus::engine::Engine;
use ictus::executor::Executor;
use ictus::runtime::{FakeOptions, FakeRuntime};

pub(crate) type Under = Executor<FakeRuntime>;

/// Adapters that a load may use.
pub(crate) const ADAPTERS: &[&str] = &["fake:one", "fake:two"];
/// Loads of the long run.
pub(crate) const ROUNDS: u64 = 24;
/// How far apart the moments are that are tried.
pub(crate) const STRIDE: usize = 1;

pub(crate) fn under_test(change: impl FnOnce(&mut FakeOptions)) -> Under {
    Executor::new(FakeRuntime::with(change))
}

pub(crate) fn engine_of(model: &Model) -> Box<dyn Engine + Send> {
    model.engine().expect("an engine")
}
