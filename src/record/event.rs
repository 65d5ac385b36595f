//! The events: what the engine answers to one tick.

use super::value::{Array, RingRef, TokenRef};
use super::view::{record, zeroed};

/// What became of one admit.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AdmitResult {
    /// The lane.
    pub lane_tag: u64,
    /// `ADMIT_*`.
    pub status: u32,
    /// A status as `u32` when rejected, else 0.
    pub reject_code: u32,
    /// Certificate in effect; 0 is none.
    pub cert_id: u32,
    /// `EXACTNESS_*` granted.
    pub granted_class: u8,
    /// Zero; readers ignore it.
    pub _pad0: [u8; 3],
}
const _: () = assert!(size_of::<AdmitResult>() == 24);
record!(AdmitResult, min_prefix: 24);

/// Drafts of one lane in one tick.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SpecStats {
    /// Draft tokens proposed.
    pub proposed: u32,
    /// Draft tokens kept.
    pub accepted: u32,
    /// Certificate the drafts ran under; 0 when none was drafted.
    pub cert_id_in_effect: u32,
    /// Zero; readers ignore it.
    pub _pad0: u32,
}
const _: () = assert!(size_of::<SpecStats>() == 16);
zeroed!(SpecStats);

/// What one decode record produced.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct LaneEmit {
    /// The lane.
    pub lane_tag: u64,
    /// The tokens, in the token-out ring.
    pub token_ref: TokenRef,
    /// Number of tokens.
    pub n_tokens: u32,
    /// `FINISH_*`.
    pub finish: u32,
    /// The pending row of a HOST lane; zero for the others.
    pub logits_row: RingRef,
    /// Draft statistics.
    pub spec: SpecStats,
}
const _: () = assert!(size_of::<LaneEmit>() == 72);
record!(LaneEmit, min_prefix: 72);

/// Log-probabilities of one emitted token (T-122).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct LaneLogprob {
    /// The lane.
    pub lane_tag: u64,
    /// Natural logarithm of the probability of the token.
    pub logprob: f32,
    /// Number of alternatives.
    pub n_top: u32,
    /// Their ids, best first.
    pub top_ids: [u32; 20],
    /// Their log-probabilities, descending.
    pub top_logprobs: [f32; 20],
}
const _: () = assert!(size_of::<LaneLogprob>() == 176);
record!(LaneLogprob, min_prefix: 176);

/// The failure of one lane.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct LaneFault {
    /// The lane.
    pub lane_tag: u64,
    /// `FAULT_*`.
    pub code: u32,
    /// Zero; readers ignore it.
    pub _pad0: u32,
    /// 0 unless a code defines it.
    pub detail: u64,
}
const _: () = assert!(size_of::<LaneFault>() == 24);
record!(LaneFault, min_prefix: 24);

/// One thing given up.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ShedEntry {
    /// The lane it belonged to; 0 when it was not the state of a lane.
    pub lane_tag: u64,
    /// `SHED_*`.
    pub kind: u32,
    /// 0.
    pub reason: u32,
    /// Bytes given up.
    pub bytes: u64,
    /// Tokens given up.
    pub tokens: u64,
}
const _: () = assert!(size_of::<ShedEntry>() == 32);
record!(ShedEntry, min_prefix: 32);

/// Everything given up in one tick; the counters equal the entries.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ShedReport {
    /// Number of prefill entries.
    pub prefill_chunks_dropped: u32,
    /// Number of eviction entries.
    pub evictions_performed: u32,
    /// Bytes of the eviction entries.
    pub bytes_evicted: u64,
    /// [`ShedEntry`] records.
    pub entries: Array,
}
const _: () = assert!(size_of::<ShedReport>() == 32);
zeroed!(ShedReport);

/// A state operation that reached a terminal state.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct OpComplete {
    /// The operation.
    pub op: u64,
    /// `OP_*`, a terminal one.
    pub state: u8,
    /// Zero; readers ignore it.
    pub _pad0: [u8; 3],
    /// A status as `u32` when failed, else 0.
    pub error: u32,
    /// Bytes written or read.
    pub bytes_moved: u64,
}
const _: () = assert!(size_of::<OpComplete>() == 24);
record!(OpComplete, min_prefix: 24);

/// Where the time of a tick went; the only nondeterministic part of the events.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TickTimings {
    /// The whole call.
    pub wall_ns: u64,
    /// The prefill phase.
    pub prefill_ns: u64,
    /// The decode phase.
    pub decode_ns: u64,
    /// Device graphs replayed.
    pub graph_hits: u32,
    /// Parts of steps that might have been a device graph and had none.
    pub graph_misses: u32,
}
const _: () = assert!(size_of::<TickTimings>() == 32);
zeroed!(TickTimings);

/// Memory at the end of a tick.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TickMemCounters {
    /// Bytes of model state in the pool.
    pub allocated_bytes: u64,
    /// Bytes of exported cache entries, and of operations' outputs that nobody has taken yet.
    pub host_retained_bytes: u64,
    /// Pages in the pool; 0 is unbounded.
    pub pool_blocks_total: u64,
    /// Pages in use.
    pub pool_blocks_used: u64,
    /// Bytes of unpinned cache entries in the pool.
    pub pool_bytes_evictable: u64,
    /// 0.
    pub tentative_bytes: u64,
}
const _: () = assert!(size_of::<TickMemCounters>() == 48);
zeroed!(TickMemCounters);

/// Everything the engine answers to one tick.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TickEvents {
    /// Size of this record in bytes.
    pub struct_size: u64,
    /// The number of the plan.
    pub plan_seq: u64,
    /// `TICK_*` status.
    pub tick_status: u32,
    /// Zero; readers ignore it.
    pub _pad0: u32,
    /// [`AdmitResult`] records, one per admit in plan order.
    pub admit_results: Array,
    /// [`LaneEmit`] records, one per decode in plan order.
    pub emits: Array,
    /// [`LaneFault`] records.
    pub faults: Array,
    /// What was given up.
    pub shed: ShedReport,
    /// [`OpComplete`] records.
    pub op_completions: Array,
    /// Where the time went.
    pub timings: TickTimings,
    /// Memory at the end of the tick.
    pub mem: TickMemCounters,
    /// [`LaneLogprob`] records in emission order.
    pub logprobs: Array,
}
const _: () = assert!(size_of::<TickEvents>() == 216);
record!(TickEvents, min_prefix: 216);
