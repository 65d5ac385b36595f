#![forbid(unsafe_code)]
//! One connection: requests go out, replies and unasked messages come in.
//!
//! # Invariants
//! - A reply is matched by its correlation alone, and then has to be of the kind that the request asks for (W-7).
//! - Nothing waits longer than its deadline: neither for a reply nor for room to send, whatever the other side does.
//! - After the first failure nothing is sent or read any more; the owner throws the link away.
//!
//! # Limits
//! One frame of at most 16 MiB is held, and the last one that was sent.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use super::error::LinkError;
use super::process::WorkerProcess;
use crate::worker::codec::Wire;
use crate::worker::frame::{Frame, FrameReader, FrameWriter, VERSION};
use crate::worker::message::{Sender, kind, sender};
use crate::worker::patience::Patience;
use crate::worker::payload::{OpComplete, TickEmit};
use crate::worker::socket::{self, Received, transmit};

/// What a worker says unasked.
pub(super) enum Unasked<'m> {
    /// Tokens of a lane, from inside the tick that runs.
    Emit(&'m TickEmit),
    /// An operation ended.
    Done(&'m OpComplete),
}

/// Somebody to tell what comes unasked, and to ask now and then while waiting.
pub(super) trait Listener {
    /// A message that answers nothing.
    fn hear(&mut self, unasked: Unasked<'_>);

    /// Called while a reply is awaited, each time this long has passed; none is never.
    fn pulse(&mut self) -> Option<Duration> {
        None
    }
}

/// One connection to one worker.
#[derive(Debug)]
pub(super) struct Link {
    frames: OwnedFd,
    descriptors: OwnedFd,
    reader: FrameReader,
    writer: FrameWriter,
    out: Vec<u8>,
    emit: TickEmit,
    version: Option<u16>,
    patience: Patience,
}

/// Whether a frame that came is the awaited one.
enum Heard {
    Reply,
    Other,
}

impl Link {
    pub(super) fn new(frames: OwnedFd, descriptors: OwnedFd) -> Self {
        Self {
            frames,
            descriptors,
            reader: FrameReader::new(),
            writer: FrameWriter::new(VERSION),
            out: Vec::new(),
            emit: TickEmit::default(),
            version: None,
            patience: Patience::default(),
        }
    }

    /// From now on every frame that comes has to have this version (W-22).
    pub(super) fn agree(&mut self, version: u16) {
        self.version = Some(version);
        self.writer.set_version(version);
    }

    /// The socket that descriptors are passed over.
    pub(super) fn descriptors(&self) -> BorrowedFd<'_> {
        self.descriptors.as_fd()
    }

    /// Sends a message; answers its number, by which its reply is known.
    ///
    /// # Errors
    /// `TooLarge` (nothing was sent), `Closed`, `TimedOut`.
    pub(super) fn send<T: Wire>(
        &mut self,
        kind: u16,
        payload: &T,
        deadline: Option<Instant>,
    ) -> Result<u64, LinkError> {
        self.out.clear();
        let seq = self.writer.write_payload(kind, 0, payload, &mut self.out)?;
        match transmit(self.frames.as_fd(), &self.out, deadline) {
            Ok(()) => {
                self.patience.expect();
                Ok(seq)
            }
            Err(error) if error.kind() == io::ErrorKind::TimedOut => Err(LinkError::TimedOut),
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(LinkError::Closed),
            Err(error) => Err(error.into()),
        }
    }

    /// Waits for the reply to the message `seq`, and reads it into `reply`.
    ///
    /// # Errors
    /// The link is over.
    pub(super) fn receive<T: Wire>(
        &mut self,
        (seq, wanted): (u64, u16),
        reply: &mut T,
        listener: &mut dyn Listener,
        process: &mut Option<WorkerProcess>,
        deadline: Option<Instant>,
    ) -> Result<(), LinkError> {
        loop {
            // What is there already is taken first: a worker that died may have answered before.
            while let Some(frame) = self.reader.next()? {
                let heard = hear(frame, (seq, wanted), self.version, reply, &mut self.emit, listener)?;
                if matches!(heard, Heard::Reply) {
                    return Ok(());
                }
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Err(LinkError::TimedOut);
            }
            self.fill(listener, process, deadline)?;
        }
    }

    /// Takes what came unasked, without waiting.
    ///
    /// # Errors
    /// The link is over.
    pub(super) fn listen(&mut self, listener: &mut dyn Listener) -> Result<(), LinkError> {
        // As much as a busy worker can have said; one that floods is heard in pieces.
        for _ in 0..16 {
            if !self.read_some()? {
                break;
            }
        }
        while let Some(frame) = self.reader.next()? {
            let mut none = 0u64;
            let _ = hear(frame, (0, 0), self.version, &mut none, &mut self.emit, listener)?;
        }
        Ok(())
    }

    /// Waits for bytes and takes them.
    fn fill(
        &mut self,
        listener: &mut dyn Listener,
        process: &mut Option<WorkerProcess>,
        deadline: Option<Instant>,
    ) -> Result<(), LinkError> {
        loop {
            if self.read_some()? {
                return Ok(());
            }
            let pulse = listener.pulse().map(|pulse| Instant::now() + pulse);
            let until = match (pulse, deadline) {
                (Some(pulse), Some(deadline)) => Some(pulse.min(deadline)),
                (pulse, deadline) => pulse.or(deadline),
            };
            let spoke = {
                let frames = PollFd::new(&self.frames, PollFlags::IN);
                let errors = process.as_ref().and_then(WorkerProcess::errors);
                let errors = errors.map(|errors| PollFd::from_borrowed_fd(errors, PollFlags::IN));
                let count = 1 + usize::from(errors.is_some());
                let mut waited = [frames.clone(), errors.unwrap_or(frames)];
                self.patience.wait(&mut waited[..count], until)?;
                waited[..count].get(1).is_some_and(|errors| !errors.revents().is_empty())
            };
            if spoke && let Some(process) = process {
                process.listen();
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Err(LinkError::TimedOut);
            }
        }
    }

    /// Reads what is there; answers whether there was something.
    fn read_some(&mut self) -> Result<bool, LinkError> {
        match socket::receive(self.frames.as_fd(), &mut self.reader)? {
            Received::Bytes => Ok(true),
            Received::Nothing => Ok(false),
            Received::End => {
                self.reader.finish()?;
                Err(LinkError::Closed)
            }
            Received::Reset => Err(LinkError::Closed),
        }
    }
}

/// Looks at one frame.
fn hear<T: Wire>(
    frame: Frame<'_>,
    (seq, wanted): (u64, u16),
    version: Option<u16>,
    reply: &mut T,
    emit: &mut TickEmit,
    listener: &mut dyn Listener,
) -> Result<Heard, LinkError> {
    if version.is_some_and(|version| version != frame.version) {
        return Err(LinkError::Version { got: frame.version });
    }
    let mut payload = crate::worker::codec::Reader::new(frame.payload);
    if frame.correlation != 0 {
        if frame.correlation != seq || frame.kind != wanted {
            return Err(LinkError::Unexpected { kind: frame.kind });
        }
        reply.get(&mut payload)?;
        return Ok(Heard::Reply);
    }
    match frame.kind {
        kind::TICK_EMIT => {
            emit.get(&mut payload)?;
            listener.hear(Unasked::Emit(emit));
        }
        kind::STATE_OP_DONE => listener.hear(Unasked::Done(&payload.take()?)),
        kind::TELEMETRY => {}
        // Nobody asked for a transcription; a segment that comes all the same says nothing.
        kind::TRANSCRIBE_SEGMENT => {}
        other if sender(other) == Some(Sender::Either) => {}
        other => return Err(LinkError::Unexpected { kind: other }),
    }
    Ok(Heard::Other)
}
