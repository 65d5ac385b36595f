//! The plan: what the host asks of one tick.

use core::ffi::c_void;

use super::value::{Array, SamplingParams, TokenRef};
use super::view::record;

/// Receives the tokens of a lane as they are picked.
///
/// `tokens` points at `n_tokens` ids and is valid for the call only. The callee must not call the engine.
///
/// # Safety
/// Whoever puts a callback into a plan promises that, while that plan runs, it may be called on the ticking thread with the
/// `user` of the plan, any tag, and a span of readable ids; and that it does not unwind.
pub type PartialEmitFn = unsafe extern "C" fn(user: *mut c_void, lane_tag: u64, tokens: *const u32, n_tokens: u32);

/// What the engine may give up to make room.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ShedPolicy {
    /// `u64` lane tags; decoded, not acted on.
    pub victim_lanes: Array,
    /// Bit set of `CACHE_CLASS_*` that may be evicted.
    pub evictable_cache_classes: u64,
    /// Cache bytes that stay, whatever is asked.
    pub protected_quota_bytes: u64,
    /// Most cache bytes this plan may evict.
    pub max_evict_bytes: u64,
}
const _: () = assert!(size_of::<ShedPolicy>() == 40);
record!(ShedPolicy, min_prefix: 40);

/// Starts a lane.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct LaneAdmit {
    /// The host's name for the lane; opaque, 0 is an ordinary tag.
    pub lane_tag: u64,
    /// The prompt, in the token-in ring.
    pub prompt: TokenRef,
    /// Seed lease to start from; 0 is a cold start.
    pub seed_handle: u64,
    /// Sampling mode (`SAMPLING_*`).
    pub sampling: u32,
    /// Logit bias to add; 0 is none.
    pub logit_bias_handle: u32,
    /// Sampling parameters.
    pub params: SamplingParams,
    /// Position of the first draw (T-119).
    pub rng_counter_base: u64,
    /// Grammar that masks the tokens; 0 is none.
    pub grammar_handle: u32,
    /// Speculation strategy; 0 is none.
    pub strategy_slot: u32,
    /// `DETERMINISM_*`.
    pub determinism_class: u8,
    /// Least `EXACTNESS_*` accepted from a strategy.
    pub minimum_exactness: u8,
    /// Nonzero: run without a certificate rather than be rejected.
    pub allow_approximate: u8,
    /// 0 for none, k + 1 for k alternatives per token (T-122).
    pub want_logprobs: u8,
    /// Certificate the strategy must hold; 0 is any.
    pub required_cert_id: u32,
    /// Hash of the sampler of a HOST lane; zero is unnamed.
    pub host_sampler_identity: [u8; 32],
    /// Trailing prompt tokens the grammar has to consume first (T-32).
    pub grammar_replay: u32,
    /// Trailing prompt tokens to feed one by one as they were generated (T-97).
    pub decode_replay: u32,
}
const _: () = assert!(size_of::<LaneAdmit>() == 144);
record!(LaneAdmit, min_prefix: 136);

/// The token the host sampled for a HOST lane.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct LaneCommit {
    /// The lane.
    pub lane_tag: u64,
    /// The token.
    pub token_id: u32,
    /// Zero; readers ignore it.
    pub _pad0: u32,
    /// Generation of the logits row it was drawn from.
    pub logits_nonce: u64,
}
const _: () = assert!(size_of::<LaneCommit>() == 24);
record!(LaneCommit, min_prefix: 24);

/// Runs a chunk of a prompt.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct LanePrefill {
    /// The lane.
    pub lane_tag: u64,
    /// First prompt token; must be where the lane stands.
    pub token_offset: u32,
    /// Number of prompt tokens.
    pub token_count: u32,
}
const _: () = assert!(size_of::<LanePrefill>() == 16);
record!(LanePrefill, min_prefix: 16);

/// Grants a lane new tokens.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct LaneDecode {
    /// The lane.
    pub lane_tag: u64,
    /// Tokens granted in this tick.
    pub max_new_tokens: u16,
    /// How far accepted draft tokens may exceed the grant.
    pub overshoot: u16,
    /// Zero; readers ignore it.
    pub _pad1: u32,
}
const _: () = assert!(size_of::<LaneDecode>() == 16);
record!(LaneDecode, min_prefix: 16);

/// Ends a lane.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct LaneRetire {
    /// The lane.
    pub lane_tag: u64,
    /// Nonzero: keep its state in the prefix cache.
    pub publish_to_cache: u8,
    /// Zero; readers ignore it.
    pub _pad0: [u8; 7],
}
const _: () = assert!(size_of::<LaneRetire>() == 16);
record!(LaneRetire, min_prefix: 16);

/// Everything the host asks of one tick.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TickPlan {
    /// The writer's size of this record in bytes; at least 152.
    pub struct_size: u64,
    /// Must exceed the last accepted one (T-18).
    pub plan_seq: u64,
    /// Bit set of `TICK_*` flags; unknown bits are ignored.
    pub flags: u32,
    /// Zero; readers ignore it.
    pub _pad0: u32,
    /// Most prompt tokens to run in this tick.
    pub prefill_token_budget: u32,
    /// Most decode records this plan may carry.
    pub max_decode_lanes: u32,
    /// [`LaneAdmit`] records.
    pub admits: Array,
    /// [`LaneCommit`] records.
    pub commits: Array,
    /// [`LanePrefill`] records.
    pub prefills: Array,
    /// [`LaneDecode`] records.
    pub decodes: Array,
    /// [`LaneRetire`] records.
    pub retires: Array,
    /// What may be given up.
    pub shed_policy: ShedPolicy,
    /// Called with every token as it is picked, on the ticking thread; may be null.
    // Written out, not by its alias: the generator of the C header sees through an option only then.
    pub on_partial_emit:
        Option<unsafe extern "C" fn(user: *mut c_void, lane_tag: u64, tokens: *const u32, n_tokens: u32)>,
    /// Passed to `on_partial_emit` unchanged.
    pub partial_emit_user: *mut c_void,
}
const _: () = assert!(size_of::<TickPlan>() == 168);
record!(TickPlan, min_prefix: 152);
