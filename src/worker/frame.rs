#![forbid(unsafe_code)]
//! Frames: length, number, counters, class, payload (W-1 .. W-8).
//!
//! ```text
//!  0  len u32        bytes after this field: 21 + payload
//!  4  version u16 | kind u16
//!  8  seq u64        the sender's own counter, from 1
//! 16  correlation u64  in a reply the seq of the request, else 0
//! 24  class u8       0 required, 1 droppable: follows from the kind
//! 25  payload
//! ```
//!
//! # Invariants
//! - A frame comes out of a reader whole, checked in the order of W-4, or not at all.
//! - A length beyond the bound is refused from its four bytes, before anything more is buffered (W-1).
//!
//! # Limits
//! A reader holds one frame of at most 16 MiB, and what came with it in one read.

use super::codec::Wire;
use super::message::{self, Message};

/// The version that this build speaks.
pub const VERSION: u16 = 8;
/// Most bytes of a frame after its length field.
pub const MAX_FRAME_BYTES: u32 = 1 << 24;
/// Bytes before the payload.
pub const HEADER_BYTES: usize = 25;

const LENGTH_BYTES: usize = 4;
/// Bytes of the header that the length counts.
const COUNTED_HEADER_BYTES: u32 = (HEADER_BYTES - LENGTH_BYTES) as u32;
/// Kinds from here on are droppable (W-2).
const DROPPABLE_BIT: u16 = 0x8000;

/// A frame that came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'b> {
    /// The version it is written in; whether that is right is for the link to say.
    pub version: u16,
    /// The number of its message, one that is known.
    pub kind: u16,
    /// The sender's counter.
    pub seq: u64,
    /// What it answers, or 0.
    pub correlation: u64,
    /// Its payload.
    pub payload: &'b [u8],
}

/// Why bytes are no frame. Any of these ends the link (W-4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// The length is less than a header has.
    #[error("bad length: a frame says it has {len} bytes")]
    BadLength {
        /// What it says.
        len: u32,
    },
    /// The length is beyond the bound; or a payload to be sent is.
    #[error("too large: a frame of {len} bytes")]
    TooLarge {
        /// What it says, or would have to say.
        len: u64,
    },
    /// The class is none, or not that of the kind.
    #[error("class mismatch: class {class} for type {kind:#06x}")]
    ClassMismatch {
        /// The number of the message.
        kind: u16,
        /// The class byte.
        class: u8,
    },
    /// A required message that is not known.
    #[error("unknown type {kind:#06x}")]
    UnknownType {
        /// Its number.
        kind: u16,
    },
    /// The stream ended inside a frame.
    #[error("truncated: the stream ended {left} bytes into a frame")]
    Truncated {
        /// Bytes of the frame that came.
        left: usize,
    },
}

/// Takes bytes in whatever pieces they come and gives frames (W-5).
#[derive(Debug, Default)]
pub struct FrameReader {
    /// All of it is initialised; what came and was not given out is `[start, end)`.
    buffer: Vec<u8>,
    start: usize,
    end: usize,
}

impl FrameReader {
    /// Nothing read yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Room for at least `least` more bytes, to be read into; [`FrameReader::filled`] then says how many came.
    pub fn room(&mut self, least: usize) -> &mut [u8] {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
        if self.buffer.len() - self.end < least {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
            if self.buffer.len() - self.end < least {
                self.buffer.resize(self.end + least, 0);
            }
        }
        &mut self.buffer[self.end..]
    }

    /// The first `count` bytes of the room were read into.
    ///
    /// # Panics
    /// If the room was smaller.
    pub fn filled(&mut self, count: usize) {
        assert!(count <= self.buffer.len() - self.end, "no more comes in than there was room for");
        self.end += count;
    }

    /// Takes bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.room(bytes.len())[..bytes.len()].copy_from_slice(bytes);
        self.filled(bytes.len());
    }

    /// The next whole frame; none when more bytes are needed. Droppable kinds that are not known are skipped (W-3).
    ///
    /// # Errors
    /// What is wrong with the bytes (W-4). A frame that fails after its length has been taken; one that fails by its length stays, and
    /// fails again.
    #[expect(clippy::should_implement_trait, reason = "an iterator cannot lend its items")]
    pub fn next(&mut self) -> Result<Option<Frame<'_>>, FrameError> {
        loop {
            let Some(len) = self.next_len()? else { return Ok(None) };
            let whole = LENGTH_BYTES + len as usize;
            if self.end - self.start < whole {
                return Ok(None);
            }
            let at = self.start;
            self.start += whole;
            let header = Header::read(&self.buffer[at..at + HEADER_BYTES]);
            if header.class != class_of(header.kind) {
                return Err(FrameError::ClassMismatch { kind: header.kind, class: header.class });
            }
            if message::sender(header.kind).is_none() {
                if header.class == 0 {
                    return Err(FrameError::UnknownType { kind: header.kind });
                }
                continue;
            }
            let Header { version, kind, seq, correlation, .. } = header;
            let payload = &self.buffer[at + HEADER_BYTES..at + whole];
            return Ok(Some(Frame { version, kind, seq, correlation, payload }));
        }
    }

    /// The stream ended here.
    ///
    /// # Errors
    /// `Truncated` when that was inside a frame (W-6).
    pub fn finish(&self) -> Result<(), FrameError> {
        match self.end - self.start {
            0 => Ok(()),
            left => Err(FrameError::Truncated { left }),
        }
    }

    /// The length of the frame at the front, checked; none when its four bytes are not there yet.
    fn next_len(&self) -> Result<Option<u32>, FrameError> {
        let Some(bytes) = self.buffer[self.start..self.end].first_chunk() else { return Ok(None) };
        match u32::from_le_bytes(*bytes) {
            len if len < COUNTED_HEADER_BYTES => Err(FrameError::BadLength { len }),
            len if len > MAX_FRAME_BYTES => Err(FrameError::TooLarge { len: len.into() }),
            len => Ok(Some(len)),
        }
    }
}

/// The fields before the payload, less the length.
struct Header {
    version: u16,
    kind: u16,
    seq: u64,
    correlation: u64,
    class: u8,
}

impl Header {
    /// Reads them from a whole header.
    fn read(bytes: &[u8]) -> Self {
        let number = |at: usize, width: usize| {
            bytes[at..at + width].iter().rev().fold(0u64, |number, &byte| number << 8 | u64::from(byte))
        };
        Self {
            version: number(4, 2) as u16,
            kind: number(6, 2) as u16,
            seq: number(8, 8),
            correlation: number(16, 8),
            class: bytes[24],
        }
    }
}

/// 1 for droppable kinds, 0 for the others (W-2).
fn class_of(kind: u16) -> u8 {
    u8::from(kind & DROPPABLE_BIT != 0)
}

/// Writes the frames of one sender, and counts them.
#[derive(Clone, Debug)]
pub struct FrameWriter {
    version: u16,
    next_seq: u64,
}

impl FrameWriter {
    /// A sender that has sent nothing and writes this version.
    pub fn new(version: u16) -> Self {
        Self { version, next_seq: 1 }
    }

    /// Writes this version from now on.
    pub fn set_version(&mut self, version: u16) {
        self.version = version;
    }

    /// Appends a frame to `out` and answers its `seq`.
    ///
    /// # Errors
    /// `TooLarge`; nothing was appended and no number used.
    pub fn write(&mut self, correlation: u64, message: &Message, out: &mut Vec<u8>) -> Result<u64, FrameError> {
        self.write_with(message.kind(), correlation, out, |out| message.encode(out))
    }

    /// As [`FrameWriter::write`], for a payload that is written where it will be sent from.
    ///
    /// # Errors
    /// As there.
    pub fn write_payload<T: Wire>(
        &mut self,
        kind: u16,
        correlation: u64,
        payload: &T,
        out: &mut Vec<u8>,
    ) -> Result<u64, FrameError> {
        self.write_with(kind, correlation, out, |out| payload.put(out))
    }

    fn write_with(
        &mut self,
        kind: u16,
        correlation: u64,
        out: &mut Vec<u8>,
        payload: impl FnOnce(&mut Vec<u8>),
    ) -> Result<u64, FrameError> {
        let (start, seq) = (out.len(), self.next_seq);
        out.extend_from_slice(&[0; LENGTH_BYTES]);
        out.extend_from_slice(&self.version.to_le_bytes());
        out.extend_from_slice(&kind.to_le_bytes());
        out.extend_from_slice(&seq.to_le_bytes());
        out.extend_from_slice(&correlation.to_le_bytes());
        out.push(class_of(kind));
        payload(out);
        let len = (out.len() - start - LENGTH_BYTES) as u64;
        if len > u64::from(MAX_FRAME_BYTES) {
            out.truncate(start);
            return Err(FrameError::TooLarge { len });
        }
        out[start..start + LENGTH_BYTES].copy_from_slice(&(len as u32).to_le_bytes());
        self.next_seq += 1;
        Ok(seq)
    }
}
