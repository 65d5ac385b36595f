//! The engine that the scenarios are about, in a worker process: it stands in the place of `tests/tick_scenarios/engine.rs`.
//!
//! What a scenario chooses of its engine is code, which cannot be sent. So the worker is this test program, running *the same test*: it
//! keeps its engines to itself until it comes to the one that the host is at, and serves that one instead of going on.

use std::cell::Cell;

use ictus::executor::{Executor, ExecutorOptions};
use ictus::runtime::{FakeOptions, FakeRuntime};
use ictus::worker::client::{RemoteEngine, RemoteOptions, WorkerCommand};
use ictus::worker::server::ServerOptions;

use crate::probe::{Inspected, Probe};

pub(crate) type Under = Inspected;

/// Loads of the long runs: a worker runs those before its own again.
pub(crate) const ROUNDS: usize = 3;

/// Which engine of its test a worker is to serve, counted from 1.
const SERVED: &str = "ICTUS_TEST_SERVED";

thread_local! {
    /// Engines that this test has made.
    static MADE: Cell<u64> = const { Cell::new(0) };
}

/// Whether this engine lacks what a test is about: all that is asked for, since the tests that ask are those of the table in `mod.rs`.
pub(crate) fn lacks(what: &str) -> bool {
    let thread = std::thread::current();
    println!("skipped: {}: the link has no {what}", thread.name().unwrap_or_default());
    true
}

/// A fresh engine over the default fake, changed.
pub(crate) fn under_test(change: impl FnOnce(&mut FakeOptions)) -> Under {
    under_test_with(ExecutorOptions::default(), change)
}

/// The same, with options of the executor.
pub(crate) fn under_test_with(options: ExecutorOptions, change: impl FnOnce(&mut FakeOptions)) -> Under {
    let nth = MADE.get() + 1;
    MADE.set(nth);
    let usual = ExecutorOptions::default();
    // Where slices are chosen, a test looks at what lies between two of them.
    let held = (options.op_slice_bytes, options.cache_slice_bytes) != (usual.op_slice_bytes, usual.cache_slice_bytes);
    let make = || Executor::with_options(FakeRuntime::with(change), options);
    match std::env::var(SERVED).map(|served| served.parse::<u64>()) {
        Err(_) => Inspected::new(behind_a_link(nth), held),
        Ok(Ok(served)) if nth == served => {
            let engine = make();
            let descriptor = engine.descriptor();
            // The ring of prompts is as wide as the context, which some engines have without end.
            let context = descriptor.max_seq_len.min(1 << 16) as u32;
            let served = ServerOptions::new(context, descriptor.vocab_size);
            let (frames, descriptors) = crate::streams();
            crate::serve(Box::new(Probe::new(engine, held)), served, frames, descriptors)
        }
        Ok(_) => Inspected::new(Probe::new(make(), held), held),
    }
}

fn behind_a_link(nth: u64) -> RemoteEngine {
    let thread = std::thread::current();
    let test = thread.name().filter(|&name| name != "main");
    let test = test.expect("the thread of a test has its name: run with two test threads or more");
    let command = WorkerCommand::new(std::env::current_exe().expect("the path of the test"))
        .without_descriptor_flags()
        .argument("--exact")
        .argument(test)
        .argument("--nocapture")
        .variable("ICTUS_RNG", crate::driving::key(test).to_string())
        .variable(SERVED, nth.to_string());
    // The first end is the last: no recovery hides what happens.
    let options = RemoteOptions { restarts: 0, ..crate::options() };
    RemoteEngine::start(command, options).unwrap_or_else(|gone| panic!("{gone}"))
}
