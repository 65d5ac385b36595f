#![forbid(unsafe_code)]
//! State on its way in and out: how it is written, sealed and checked, and the operations that carry it.
//!
//! | file | what |
//! |---|---|
//! | `encoding.rs` | how the numbers of a payload are written, and what that costs in exactness |
//! | `checksum.rs` | the checksum of a payload that streams by |
//! | `envelope.rs` | the header in front of a payload, and the checks that open it |
//! | `sizing.rs` | what a host was told an export would take |
//! | `ops.rs` | operations: where they stand, what they claim, what they gave |
//! | `demoted.rs` | ranges whose memory was given back |
//!
//! # Not here
//! Runtimes, sequences and who owns them: this module knows bytes and numbers only. The executor moves the bytes.

mod checksum;
mod demoted;
mod encoding;
mod envelope;
mod ops;
mod sizing;

pub use checksum::Checksum;
pub use demoted::{Demoted, DemotedRanges};
pub use encoding::{BLOCK, Encoding};
pub use envelope::{EnvelopeError, HEADER_BYTES, Opened, Opener, Seal, read_header, taint_of_export};
pub use ops::{ENDED_KEPT, End, Job, Ops, Work};
pub use sizing::{SizingKey, Sizings};
