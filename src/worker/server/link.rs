#![forbid(unsafe_code)]
//! The stream of frames: waiting, reading, replying.
//!
//! # Invariants
//! A frame is written with one call, and whole: the stream blocks until the host has room for it.

use core::cell::Cell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use super::ServeError;
use crate::worker::codec::Wire;
use crate::worker::frame::{FrameReader, FrameWriter, VERSION};
use crate::worker::message::Message;
use crate::worker::patience::Patience;
use crate::worker::socket::{Received, poll_until, receive, transmit};

/// Bytes that the buffer of replies may keep between them.
const KEPT_BYTES: usize = 1 << 20;
/// How often a running tick looks whether the host is still there.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// The worker's end of the stream of frames.
#[derive(Debug)]
pub(super) struct Link {
    frames: Arc<OwnedFd>,
    writer: FrameWriter,
    /// The frame being written.
    out: Vec<u8>,
    patience: Patience,
}

impl Link {
    pub(super) fn new(frames: OwnedFd) -> Self {
        Self {
            frames: Arc::new(frames),
            writer: FrameWriter::new(VERSION),
            out: Vec::new(),
            patience: Patience::default(),
        }
    }

    fn frames(&self) -> BorrowedFd<'_> {
        self.frames.as_fd()
    }

    /// What looks whether the host has gone, while something else writes to the link.
    pub(super) fn hang_up(&self) -> HangUp {
        HangUp { frames: Arc::clone(&self.frames), last: Instant::now().into(), gone: false.into() }
    }

    /// Waits until bytes have come or the host has gone, at most `limit`; answers whether that is so.
    pub(super) fn wait(&mut self, limit: Option<Duration>) -> io::Result<bool> {
        let mut waited = [PollFd::from_borrowed_fd(self.frames.as_fd(), PollFlags::IN)];
        self.patience.wait(&mut waited, limit.map(|limit| Instant::now() + limit))
    }

    /// Whether the host has closed the stream.
    pub(super) fn has_gone(&self) -> bool {
        let mut looked = [PollFd::from_borrowed_fd(self.frames(), PollFlags::RDHUP)];
        poll_until(&mut looked, Some(Instant::now())).unwrap_or(true)
    }

    /// Reads what has come; answers false at the end of the stream.
    pub(super) fn read(&self, reader: &mut FrameReader) -> io::Result<bool> {
        Ok(matches!(receive(self.frames(), reader)?, Received::Bytes | Received::Nothing))
    }

    /// Sends a message that answers the request with this `seq`, or 0 for one that nobody asked for.
    pub(super) fn reply(&mut self, correlation: u64, message: &Message) -> Result<(), ServeError> {
        self.out.clear();
        self.writer.write(correlation, message, &mut self.out)?;
        self.flush()
    }

    /// As [`Link::reply`], for a payload at hand.
    pub(super) fn reply_payload<T: Wire>(
        &mut self,
        kind: u16,
        correlation: u64,
        payload: &T,
    ) -> Result<(), ServeError> {
        self.out.clear();
        self.writer.write_payload(kind, correlation, payload, &mut self.out)?;
        self.flush()
    }

    fn flush(&mut self) -> Result<(), ServeError> {
        transmit(self.frames.as_fd(), &self.out, None)?;
        self.patience.expect();
        if self.out.capacity() > KEPT_BYTES {
            self.out = Vec::new();
        }
        Ok(())
    }
}

/// Looks now and then whether the host has closed the stream, from inside a tick.
#[derive(Debug)]
pub(super) struct HangUp {
    frames: Arc<OwnedFd>,
    last: Cell<Instant>,
    gone: Cell<bool>,
}

impl HangUp {
    /// Whether the host has gone, as far as it was looked.
    pub(super) fn seen(&self) -> bool {
        let now = Instant::now();
        if !self.gone.get() && now.duration_since(self.last.get()) >= LOOK_EVERY {
            self.last.set(now);
            let mut looked = [PollFd::from_borrowed_fd(self.frames.as_fd(), PollFlags::RDHUP)];
            let came = poll_until(&mut looked, Some(now)).unwrap_or(false);
            self.gone.set(came && looked[0].revents().intersects(PollFlags::RDHUP | PollFlags::HUP));
        }
        self.gone.get()
    }
}
