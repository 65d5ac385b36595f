//! The records of drivers.

use core::ffi::c_char;

use crate::record::SamplingParams;
use crate::record::view::record;

/// What a host may choose when it makes a driver. Zero in a field means its default.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DriverChoices {
    /// The writer's size of this record in bytes; at least 72.
    pub struct_size: u64,
    /// How long the prompts of a tick may take while others decode, in nanoseconds; 0 is 200 ms, `UINT64_MAX` no limit.
    pub tick_target_ns: u64,
    /// Waiting time that is worth one level of priority, in nanoseconds; 0 is one second.
    pub ageing_ns: u64,
    /// Bytes of the prefix cache that no plan may evict.
    pub protected_cache_bytes: u64,
    /// Bit set of `ICTUS_DRIVER_*`.
    pub flags: u32,
    /// Requests that run at once, at most 4096; 0 is 64. A model that takes fewer lowers it.
    pub max_lanes: u32,
    /// Tokens of one tick, at most 2^20; 0 is 512.
    pub tick_tokens: u32,
    /// Requests that may wait; 0 is 1024.
    pub queue_limit: u32,
    /// Room for this many tokens is kept for each running request when another one is started; 0 is 64.
    pub reserve_tokens: u32,
    /// A cached prefix shorter than this is computed again; 0 is 16.
    pub seed_min_tokens: u32,
    /// A request waits for the same prefix of another one when it is this long; 0 is 64, `UINT32_MAX` never waits.
    pub share_min_tokens: u32,
    /// Tokens granted to a lane in a tick, at most 4096; 0 is 1.
    pub decode_tokens: u16,
    /// Tokens of a replayed tail that a lane feeds in a tick, at most 4096; 0 is 8.
    pub replay_tokens: u16,
    /// How far accepted draft tokens may exceed a grant; 0 is 8.
    pub draft_overshoot: u16,
    /// Zero; readers ignore it.
    pub _pad0: [u16; 3],
}
const _: () = assert!(size_of::<DriverChoices>() == 72);
record!(DriverChoices, min_prefix: 72);

/// A request. Zero in a field means its default; one of the two prompts is needed.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DriverRequest {
    /// The writer's size of this record in bytes; at least 200.
    pub struct_size: u64,
    /// The prompt as tokens; NULL when it is a text.
    pub prompt_tokens: *const u32,
    /// Their number.
    pub n_prompt_tokens: u64,
    /// The prompt as UTF-8; NULL when it is tokens.
    pub prompt_text: *const c_char,
    /// Its bytes; it needs no NUL.
    pub prompt_bytes: u64,
    /// Most tokens of the answer; 0 is 256.
    pub max_tokens: u64,
    /// Position of the first draw; nearby positions give overlapping draws.
    pub rng_counter_base: u64,
    /// Ends the request when it has not finished this long after it was submitted, in nanoseconds; 0 is never.
    pub deadline_ns: u64,
    /// Texts that end the answer: NUL-terminated, up to 64 of up to 4096 bytes. Neither they nor what follows is text of the answer.
    pub stop_strings: *const *const c_char,
    /// Their number.
    pub n_stop_strings: u64,
    /// Tokens that end the answer.
    pub stop_tokens: *const u32,
    /// Their number.
    pub n_stop_tokens: u64,
    /// Tokens whose logits are changed.
    pub bias_tokens: *const u32,
    /// What is added to each.
    pub bias_values: *const f32,
    /// Their number.
    pub n_bias: u64,
    /// JSON schema that shapes the answer, NUL-terminated; NULL is none.
    pub grammar_schema: *const c_char,
    /// Structural tag document that shapes the answer, NUL-terminated; NULL is none.
    pub grammar_tags: *const c_char,
    /// Adapter of the model; 0 is none.
    pub adapter: u64,
    /// How tokens are picked: greedily at temperature 0, drawn above it. Its `flags` as in an admit.
    pub params: SamplingParams,
    /// Grammar of the model that shapes the answer; 0 is none. It serves one unfinished request at a time.
    pub grammar_handle: u32,
    /// Speculation strategy by its slot; 0 is none.
    pub strategy_slot: u32,
    /// Higher is served sooner; from -32768 to 32767.
    pub priority: i32,
    /// 0 for no log-probabilities, k + 1 for k alternatives per token, at most 20.
    pub want_logprobs: u32,
    /// How a text prompt is encoded and the answer shown (`ICTUS_TEXT_*`).
    pub text_flags: u32,
    /// Bit set of `ICTUS_REQUEST_*`.
    pub flags: u32,
}
const _: () = assert!(size_of::<DriverRequest>() == 200);
record!(DriverRequest, min_prefix: 200);

/// Something that happened to a request. What the other kinds have is 0.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DriverEvent {
    /// The reader's size of this record in bytes; at least 144.
    pub struct_size: u64,
    /// The request.
    pub request: u64,
    /// `ICTUS_EVENT_*`.
    pub kind: u32,
    /// Why the request is over (`ICTUS_DRIVER_FINISH_*`).
    pub finish: u32,
    /// What the engine said of a request that failed; else 0.
    pub status: i32,
    /// The stop token, the place of the stop string, or the fault code.
    pub detail: u32,
    /// Tokens of this event.
    pub n_tokens: u64,
    /// Bytes of text of this event, without the NUL that follows.
    pub text_bytes: u64,
    /// Log-probabilities of this event.
    pub n_logprobs: u64,
    /// Tokens that came from the prefix cache.
    pub cached_tokens: u64,
    /// From submission to its first admission, in nanoseconds; `UINT64_MAX` when it never ran.
    pub queued_ns: u64,
    /// From submission to its first token; `UINT64_MAX` when there was none.
    pub first_token_ns: u64,
    /// From submission to its end.
    pub total_ns: u64,
    /// Tokens of its prompt.
    pub prompt_tokens: u64,
    /// Tokens of its answer.
    pub answer_tokens: u64,
    /// Prompt tokens that were computed.
    pub prefill_tokens: u64,
    /// Tokens of its answer that were fed again after a preemption.
    pub replayed_tokens: u64,
    /// Draft tokens proposed.
    pub drafted_tokens: u64,
    /// Draft tokens kept.
    pub accepted_tokens: u64,
    /// How often it gave its place up.
    pub preemptions: u32,
    /// Zero; readers ignore it.
    pub _pad0: u32,
}
const _: () = assert!(size_of::<DriverEvent>() == 144);
record!(DriverEvent, min_prefix: 144);
