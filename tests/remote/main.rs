//! Engines in a process of their own: the contract over the link, workers that die, workers that lie.
//!
//! The worker is this very test program, started again: with `ICTUS_TEST_WORKER` set, [`worker_process`] serves at descriptors 3 and 4
//! instead of testing anything.
#![cfg(all(feature = "worker", target_os = "linux"))]

#[path = "../common/random.rs"]
#[expect(dead_code, reason = "not every test needs every kind of random number")]
mod random;

mod abi;
mod contract;
mod driving;
mod hostile;
mod kills;
mod probe;
mod recovery;
mod scenarios;
mod soak;

use std::os::fd::{FromRawFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use ictus::engine::Engine;
use ictus::worker::client::{RemoteEngine, RemoteOptions, WorkerCommand};
use ictus::worker::server::{ServerOptions, WorkerServer};
use ictus::{Model, ModelOptions};

const VARIABLE: &str = "ICTUS_TEST_WORKER";

/// The model of the real engine.
pub(crate) fn tiny() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("models/ictus-tiny.gguf")
}

/// How the real engine is opened, on either side of the link.
pub(crate) fn tiny_options() -> ModelOptions {
    ModelOptions { threads: 1, ..ModelOptions::default() }
}

/// The line that starts a worker of this kind: `fake`, or `tiny` for the model.
pub(crate) fn command(which: &str) -> WorkerCommand {
    WorkerCommand::new(std::env::current_exe().expect("the path of the test"))
        .without_descriptor_flags()
        .argument("--exact")
        .argument("worker_process")
        .argument("--nocapture")
        .variable(VARIABLE, which)
}

/// Options for a machine on which everybody builds at once.
pub(crate) fn options() -> RemoteOptions {
    RemoteOptions {
        start_timeout: Some(Duration::from_secs(120)),
        tick_timeout: Some(Duration::from_secs(120)),
        request_timeout: Some(Duration::from_secs(120)),
        ..RemoteOptions::default()
    }
}

/// An engine with a worker of this kind.
pub(crate) fn remote(which: &str) -> RemoteEngine {
    RemoteEngine::start(command(which), options()).unwrap_or_else(|gone| panic!("{gone}"))
}

/// Not a test: the worker, when this program is started as one.
#[test]
fn worker_process() {
    let Ok(which) = std::env::var(VARIABLE) else { return };
    let (frames, descriptors) = streams();
    let (engine, options): (Box<dyn Engine>, ServerOptions) = match which.as_str() {
        "fake" => (Box::new(probe::Probe::new(probe::fake(), false)), ServerOptions::new(512, 512)),
        "tiny" => {
            let model = Model::open(tiny(), &tiny_options()).expect("the model");
            let vocab = model.tokenizer().vocab_size();
            (model.engine().expect("an engine"), ServerOptions::new(512, vocab as u32))
        }
        other => panic!("no worker is called {other}"),
    };
    serve(engine, options, frames, descriptors)
}

/// Serves until the host goes, and ends the process.
fn serve(engine: Box<dyn Engine>, options: ServerOptions, frames: OwnedFd, descriptors: OwnedFd) -> ! {
    let code = match WorkerServer::new(engine, options, frames, descriptors).serve() {
        Ok(_) => 0,
        Err(error) => {
            eprintln!("{error}");
            1
        }
    };
    std::process::exit(code);
}

/// The ends of the sockets of a worker, at their places.
fn streams() -> (OwnedFd, OwnedFd) {
    // SAFETY: the host has put the sockets there, and nobody else in this process uses the numbers.
    let frames = unsafe { OwnedFd::from_raw_fd(3) };
    // SAFETY: as above.
    let descriptors = unsafe { OwnedFd::from_raw_fd(4) };
    (frames, descriptors)
}
