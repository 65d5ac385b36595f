#![forbid(unsafe_code)]
//! The host's side: an engine that is another process.
//!
//! [`RemoteEngine`] starts a worker, speaks to it, and is an [`Engine`](crate::engine::Engine) like any other: drivers and the
//! tests of the tick contract run on it unchanged. The host keeps its own rings; what it stages and what lanes emit is carried between them and those of
//! the link.
//!
//! ```text
//!   engine   impl Engine ------------+
//!   tick     one tick                |        plan     records -> wire          events   wire -> records
//!   recover  lanes begin again       +------- lanes    what the host has seen   handles  names that outlive a worker
//!   connection  workers, in turn     |        ops      state operations
//!   session     one worker           |
//!   link  process  find              |        transfer  how they begin      seeds    matches and leases
//!                                    +------- error    why one is gone
//! ```
//!
//! A worker that dies, is mute, or breaks the protocol is ended, and a fresh one started with the same line. Live lanes go on there with the
//! same bits; bare sequences and running operations are lost, and say so.
//!
//! # Invariants
//! - Whatever a worker sends, the host neither panics nor reads outside of the shared memory, and no call outlasts its timeouts.
//! - A token that the host has seen is never taken back, nor told twice.
//!
//! # Limits
//! One plan carries as many admits as token-in has slots (64), decodes as token-out has (256), rows as the logits ring has (8); more is
//! `RejectBudget`. Adapters are those of `lora_load` only; what has no message (costs of lanes, timelines, grammars of other notations)
//! is `Unsupported` or unknown.

mod connection;
mod engine;
mod error;
mod events;
mod find;
mod handles;
mod lanes;
mod link;
mod ops;
mod options;
mod plan;
mod process;
mod recover;
mod restore;
mod seeds;
mod session;
mod strategy;
mod tick;
mod transfer;

pub use engine::RemoteEngine;
pub use error::{LinkError, WorkerGone};
pub use find::{NoWorker, PROGRAM, VARIABLE, find_worker};
pub use options::RemoteOptions;
pub use process::{WorkerCommand, WorkerProcess};

use std::io;
use std::os::fd::OwnedFd;

/// The host's ends of the two sockets of a worker, and the worker's process.
#[derive(Debug)]
pub struct Peer {
    /// Messages.
    pub frames: OwnedFd,
    /// Descriptors.
    pub descriptors: OwnedFd,
    /// The process, to be watched and ended; none when somebody else does.
    pub process: Option<WorkerProcess>,
}

/// Starts workers, the same each time.
pub trait Launcher {
    /// Starts one.
    ///
    /// # Errors
    /// It cannot be started.
    fn launch(&mut self) -> io::Result<Peer>;
}

impl<F: FnMut() -> io::Result<Peer>> Launcher for F {
    fn launch(&mut self) -> io::Result<Peer> {
        self()
    }
}
