#![forbid(unsafe_code)]
//! The state spaces of a bundle, and what each kind of them allows (S-2, S-92).
//!
//! | kind | encodings | snapshots | trims | demotes from past 0 |
//! |---|---|---|---|---|
//! | `PAGED_TOKEN_KV` | what the runtime offers | anywhere | anywhere | from a page on |
//! | `RING_KV` | what the runtime offers | anywhere | at recorded places | no |
//! | `RECURRENT_BLOB` | lossless | at recorded places | at recorded places | no |
//! | `ENCODER_CACHE`, or flagged `OPS_UNAVAILABLE` | no operations | | | |
//!
//! Recorded places are every `interval_tokens`, the start, and where the sequence ends now. "Anywhere" is what the runtime allows: a
//! head-only one exports nothing or all.

use core::ffi::c_char;
use std::ops::Range;

use super::state::{SPACE_VERSION_TAG, State};
use crate::record::constant::{encoding, space_flag, space_kind};
use crate::record::view::Plain;
use crate::record::{StateSpaceDesc, Status};
use crate::runtime::{Descriptor, Runtime, SeqHandle, SpaceInfo};

/// Values of `snapshot_cadence`.
const CADENCE_INTERVAL: u32 = 2;

/// The records of a runtime's spaces.
pub(super) fn describe(descriptor: &Descriptor) -> Vec<StateSpaceDesc> {
    descriptor.spaces.iter().map(|space| record_of(space, descriptor)).collect()
}

fn record_of(info: &SpaceInfo, descriptor: &Descriptor) -> StateSpaceDesc {
    let mut space = StateSpaceDesc::zeroed();
    space.space_id = info.id;
    space.kind = info.kind;
    space.version_tag = SPACE_VERSION_TAG;
    space.bytes_per_token = descriptor.kv_bytes_per_token.max(1);
    space.page_size_tokens = descriptor.page_size_tokens.max(1);
    space.flags = info.flags;
    if info.interval_tokens > 0 {
        space.snapshot_cadence = CADENCE_INTERVAL;
        space.snapshot_interval_tokens = info.interval_tokens;
    }
    // The last byte stays NUL.
    for (target, byte) in space.name.iter_mut().take(31).zip(info.name.bytes()) {
        *target = byte as c_char;
    }
    space
}

/// A space whose operations are offered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Space {
    pub(super) id: u32,
    pub(super) kind: u32,
    pub(super) version_tag: u64,
    pub(super) page: u64,
    interval: u64,
}

impl Space {
    /// Whether its envelopes name one position rather than a range.
    pub(super) fn is_blob(&self) -> bool {
        self.kind == space_kind::RECURRENT_BLOB
    }

    /// The tokens that a range of this space covers: a blob is named by its end (S-70).
    pub(super) fn tokens(&self, start: u64, end: u64) -> Range<u64> {
        if self.is_blob() && start == end { 0..end } else { start..end }
    }

    /// Whether state of this kind may be written in an encoding that the runtime offers.
    pub(super) fn encodes(&self, code: u8) -> bool {
        code == encoding::LOSSLESS || !self.is_blob()
    }

    /// Whether a range may begin here (S-61, S-67).
    pub(super) fn may_start_at(&self, start: u64) -> bool {
        start == 0 || (self.kind == space_kind::PAGED_TOKEN_KV && start.is_multiple_of(self.page))
    }

    /// Whether a sequence of `len` tokens may be snapshot at `position`.
    pub(super) fn snapshots_at(&self, position: u64, len: u64) -> bool {
        !self.is_blob() || self.is_recorded(position, len)
    }

    /// Whether a sequence of `len` tokens may be cut to `position`.
    pub(super) fn trims_to(&self, position: u64, len: u64) -> bool {
        let recorded = matches!(self.kind, space_kind::RECURRENT_BLOB | space_kind::RING_KV);
        !recorded || self.is_recorded(position, len)
    }

    /// The largest place up to `cap`, itself a place of the runtime, that may be snapshot.
    pub(super) fn boundary_under(&self, cap: u64, len: u64) -> u64 {
        if self.snapshots_at(cap, len) { cap } else { cap - cap % self.interval }
    }

    fn is_recorded(&self, position: u64, len: u64) -> bool {
        self.interval == 0 || position.is_multiple_of(self.interval) || position == len
    }
}

impl<R: Runtime> State<R> {
    /// The space with this id.
    ///
    /// # Errors
    /// `UnknownHandle`.
    fn space_record(&self, id: u32) -> Result<&StateSpaceDesc, Status> {
        self.spaces.iter().find(|space| space.space_id == id).ok_or(Status::UnknownHandle)
    }

    /// The space of an operation on a sequence.
    ///
    /// # Errors
    /// `UnknownHandle` (space, sequence), `Unsupported` when the space has no operations.
    pub(super) fn space_of_op(&self, id: u32, sequence: SeqHandle) -> Result<Space, Status> {
        let record = self.space_record(id)?;
        self.owner_of(sequence).ok_or(Status::UnknownHandle)?;
        if record.flags & space_flag::OPS_UNAVAILABLE != 0 || record.kind == space_kind::ENCODER_CACHE {
            return Err(Status::Unsupported);
        }
        Ok(Space {
            id,
            kind: record.kind,
            version_tag: record.version_tag,
            page: u64::from(record.page_size_tokens.max(1)),
            interval: record.snapshot_interval_tokens.into(),
        })
    }

    /// Whether the cache may seed: every space can give a seed what it needs, or none does (S-92, S-93).
    pub(super) fn spaces_serve_seeds(&self) -> bool {
        let refusing = space_flag::OPS_UNAVAILABLE | space_flag::NO_PREFIX_CACHE;
        self.spaces.iter().all(|space| space.flags & refusing == 0)
    }
}
