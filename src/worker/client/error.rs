#![forbid(unsafe_code)]
//! Why a worker is gone.

use std::io;
use std::process::ExitStatus;

use super::process::describe;
use crate::worker::codec::PayloadError;
use crate::worker::frame::FrameError;

/// Why a link is over.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LinkError {
    /// The worker closed its end: most often it died.
    #[error("the worker closed the link")]
    Closed,
    /// No answer in time.
    #[error("the worker did not answer in time")]
    TimedOut,
    /// Bytes that are no frame.
    #[error("a frame of the worker is broken")]
    Frame(#[from] FrameError),
    /// A payload that is none.
    #[error("a payload of the worker is broken")]
    Payload(#[from] PayloadError),
    /// A frame of another version than agreed (W-22).
    #[error("a frame of version {got}")]
    Version {
        /// The version.
        got: u16,
    },
    /// A message that does not belong here.
    #[error("message {kind:#06x} was not asked for")]
    Unexpected {
        /// Its number.
        kind: u16,
    },
    /// The worker announces what no host can obey, or says of a tick what cannot be.
    #[error("the worker breaks the protocol: {0}")]
    Protocol(&'static str),
    /// Its engine is broken (`Fatal`), so it has to be another one.
    #[error("the engine of the worker is broken")]
    EngineFatal,
    /// It speaks of other capabilities than the one before (W-95).
    #[error("the fresh worker has other capabilities")]
    Changed,
    /// A call failed.
    #[error("a call failed")]
    Io(#[from] io::Error),
}

/// A worker that is gone, and what is known of its end.
#[derive(Debug)]
pub struct WorkerGone {
    /// How the link ended.
    pub cause: LinkError,
    /// How the process ended; none when it was not started here.
    pub status: Option<ExitStatus>,
    /// The last that it wrote to its standard error, at most 8 KiB.
    pub stderr_tail: String,
}

impl core::fmt::Display for WorkerGone {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "the worker is gone: {}", self.cause)?;
        if let Some(status) = self.status {
            write!(f, " ({})", describe(status))?;
        }
        let last = self.stderr_tail.trim_end();
        if !last.is_empty() {
            write!(f, ": {}", last.lines().next_back().unwrap_or_default())?;
        }
        Ok(())
    }
}

impl core::error::Error for WorkerGone {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        Some(&self.cause)
    }
}
