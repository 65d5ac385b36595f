//! State spaces, operations on them, and prefix matches.

use core::ffi::c_char;

use super::value::{Array, TokenRange};
use super::view::record;

/// One kind of model state.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct StateSpaceDesc {
    /// Its id.
    pub space_id: u32,
    /// `SPACE_KIND_*`.
    pub kind: u32,
    /// Changes when the bytes of the state change meaning.
    pub version_tag: u64,
    /// Bytes per token of a paged space.
    pub bytes_per_token: u64,
    /// Bytes of a blob space.
    pub blob_bytes: u64,
    /// Tokens per page.
    pub page_size_tokens: u32,
    /// 0 unspecified, 1 reference count, 2 copy.
    pub fork_cost_class: u32,
    /// Bytes copied by a fork.
    pub fork_cost_bytes: u64,
    /// 0 none, 1 tool boundary, 2 interval.
    pub snapshot_cadence: u32,
    /// Interval of cadence 2.
    pub snapshot_interval_tokens: u32,
    /// 0.
    pub placement: u32,
    /// Bit set of `SPACE_FLAG_*`.
    pub flags: u32,
    /// NUL-padded name, at most 31 characters.
    pub name: [c_char; 32],
}
const _: () = assert!(size_of::<StateSpaceDesc>() == 96);
record!(StateSpaceDesc, min_prefix: 96);

/// Where a state operation stands.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct OpStatus {
    /// Size of this record in bytes.
    pub struct_size: u64,
    /// `OP_*`.
    pub state: u8,
    /// Zero; readers ignore it.
    pub _pad0: [u8; 3],
    /// A status as `u32` when failed, else 0.
    pub error: u32,
    /// Bytes moved so far; never falls.
    pub bytes_moved: u64,
}
const _: () = assert!(size_of::<OpStatus>() == 24);
record!(OpStatus, min_prefix: 24);

/// A cached prefix a lane could start from.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct MatchCandidate {
    /// Its length in tokens.
    pub prefix_len: u64,
    /// What it was computed from.
    pub provenance_digest: [u8; 32],
    /// Bit set of `TAINT_*`.
    pub taint_bits: u32,
    /// `TIER_*`.
    pub resident_tier: u8,
    /// Zero; readers ignore it.
    pub _pad0: [u8; 3],
}
const _: () = assert!(size_of::<MatchCandidate>() == 48);
record!(MatchCandidate, min_prefix: 48);

/// Candidates of one space.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SpaceMatch {
    /// The space.
    pub space_id: u32,
    /// Zero; readers ignore it.
    pub _pad0: u32,
    /// [`MatchCandidate`] records, longest first.
    pub candidates: Array,
}
const _: () = assert!(size_of::<SpaceMatch>() == 24);
record!(SpaceMatch, min_prefix: 24);

/// Answer to a prefix match.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct MatchResult {
    /// Size of this record in bytes.
    pub struct_size: u64,
    /// [`SpaceMatch`] records.
    pub spaces: Array,
}
const _: () = assert!(size_of::<MatchResult>() == 24);
record!(MatchResult, min_prefix: 24);

/// Header of every exported state.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct StateEnvelope {
    /// `STATE_ENVELOPE_MAGIC`.
    pub magic: u64,
    /// 1.
    pub envelope_version: u32,
    /// `SPACE_KIND_*`.
    pub space_kind: u32,
    /// Runtime, version and weights it belongs to.
    pub compat_identity: [u8; 32],
    /// Version of the space.
    pub version_tag: u64,
    /// What it was computed from.
    pub provenance_digest: [u8; 32],
    /// Bit set of `TAINT_*`.
    pub taint_bits: u32,
    /// Zero; readers ignore it.
    pub _pad0: u32,
    /// Tokens it covers.
    pub range: TokenRange,
    /// `ENCODING_*`.
    pub encoding: u8,
    /// Zero; readers ignore it.
    pub _pad1: [u8; 3],
    /// `CHECKSUM_*`; 0 is never valid.
    pub checksum_kind: u32,
    /// Bytes after this header.
    pub payload_len: u64,
    /// Checksum of the payload.
    pub content_checksum: u64,
}
const _: () = assert!(size_of::<StateEnvelope>() == 136);
record!(StateEnvelope, min_prefix: 136);

/// Names one cache entry.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CacheKey {
    /// Runtime, version and weights.
    pub compat_key: [u8; 32],
    /// Tokens and context.
    pub provenance_digest: [u8; 32],
}
const _: () = assert!(size_of::<CacheKey>() == 64);
record!(CacheKey, min_prefix: 64);
