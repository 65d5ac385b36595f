//! The engine under the driver, in a worker process: it stands in the place of `tests/driver/engine.rs`.

use ictus::engine::Engine;
use ictus::{Model, WorkerOptions};

pub(crate) use crate::scenarios::engine::{Under, under_test};

/// Adapters that a load may use: the link has no message for those of lanes.
pub(crate) const ADAPTERS: &[&str] = &[];
/// Loads of the long run: a worker runs those before its own again.
pub(crate) const ROUNDS: u64 = 4;
/// How far apart the moments are that are tried.
pub(crate) const STRIDE: usize = 7;

pub(crate) fn engine_of(model: &Model) -> Box<dyn Engine + Send> {
    let program = option_env!("CARGO_BIN_EXE_ictus-worker").map(Into::into);
    model.engine_in_worker(&WorkerOptions { program, restarts: 0, ..WorkerOptions::default() }).expect("a worker")
}
