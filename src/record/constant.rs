//! The numeric constants of the records, one module per group.
//!
//! Enum-like values travel in fixed-width integer fields; the type here is the type of the field.

/// Codes of a lane fault.
pub mod fault {
    /// `ICTUS_FAULT_UNSPECIFIED`.
    pub const UNSPECIFIED: u32 = 0;
    /// `ICTUS_FAULT_GRAMMAR_OVERFLOW`.
    pub const GRAMMAR_OVERFLOW: u32 = 1;
    /// `ICTUS_FAULT_REF_SPAN_OOB`.
    pub const REF_SPAN_OOB: u32 = 2;
    /// `ICTUS_FAULT_STRATEGY`.
    pub const STRATEGY: u32 = 3;
    /// `ICTUS_FAULT_OOM_TENTATIVE`.
    pub const OOM_TENTATIVE: u32 = 4;
    /// `ICTUS_FAULT_INTERNAL`.
    pub const INTERNAL: u32 = 5;
    /// `ICTUS_FAULT_MEDIA`.
    pub const MEDIA: u32 = 6;
}

/// Who picks the tokens of a lane, and how.
pub mod sampling {
    /// `ICTUS_SAMPLING_GPU_GREEDY`.
    pub const GPU_GREEDY: u32 = 0;
    /// `ICTUS_SAMPLING_GPU_GUMBEL`.
    pub const GPU_GUMBEL: u32 = 1;
    /// `ICTUS_SAMPLING_HOST`.
    pub const HOST: u32 = 2;
}

/// Determinism classes.
pub mod determinism {
    /// `ICTUS_DETERMINISM_BEST_EFFORT`.
    pub const BEST_EFFORT: u8 = 0;
    /// `ICTUS_DETERMINISM_DETERMINISTIC`.
    pub const DETERMINISTIC: u8 = 1;
}

/// Exactness classes, ordered.
pub mod exactness {
    /// `ICTUS_EXACTNESS_APPROXIMATE`.
    pub const APPROXIMATE: u8 = 0;
    /// `ICTUS_EXACTNESS_DISTRIBUTION_EXACT`.
    pub const DISTRIBUTION_EXACT: u8 = 1;
    /// `ICTUS_EXACTNESS_SEED_PATH_INVARIANT`.
    pub const SEED_PATH_INVARIANT: u8 = 2;
}

/// Bits of `TickPlan::flags`.
pub mod tick_flag {
    /// `ICTUS_TICK_DRAIN`.
    pub const DRAIN: u32 = 1;
    /// `ICTUS_TICK_CAPTURE_OK`.
    pub const CAPTURE_OK: u32 = 2;
    /// `ICTUS_TICK_PARTIAL_EMITS`.
    pub const PARTIAL_EMITS: u32 = 4;
}

/// How a tick went.
pub mod tick_status {
    /// `ICTUS_TICK_OK`.
    pub const OK: u32 = 0;
    /// `ICTUS_TICK_SHED`.
    pub const SHED: u32 = 1;
    /// `ICTUS_TICK_LANE_ERRORS`.
    pub const LANE_ERRORS: u32 = 2;
    /// `ICTUS_TICK_FATAL`.
    pub const FATAL: u32 = 3;
}

/// What became of an admit.
pub mod admit_status {
    /// `ICTUS_ADMIT_UNSPECIFIED`.
    pub const UNSPECIFIED: u32 = 0;
    /// `ICTUS_ADMIT_ADMITTED`.
    pub const ADMITTED: u32 = 1;
    /// `ICTUS_ADMIT_REJECTED`.
    pub const REJECTED: u32 = 2;
}

/// Why a lane stopped.
pub mod finish {
    /// `ICTUS_FINISH_NONE`.
    pub const NONE: u32 = 0;
    /// `ICTUS_FINISH_EOS`.
    pub const EOS: u32 = 1;
    /// `ICTUS_FINISH_LENGTH`.
    pub const LENGTH: u32 = 2;
    /// `ICTUS_FINISH_GRAMMAR`.
    pub const GRAMMAR: u32 = 3;
    /// `ICTUS_FINISH_CANCELLED`.
    pub const CANCELLED: u32 = 4;
    /// `ICTUS_FINISH_ERROR`.
    pub const ERROR: u32 = 5;
}

/// States of a state operation.
pub mod op_state {
    /// `ICTUS_OP_PENDING`.
    pub const PENDING: u8 = 0;
    /// `ICTUS_OP_RUNNING`.
    pub const RUNNING: u8 = 1;
    /// `ICTUS_OP_DONE`.
    pub const DONE: u8 = 2;
    /// `ICTUS_OP_FAILED`.
    pub const FAILED: u8 = 3;
    /// `ICTUS_OP_CANCELLED`.
    pub const CANCELLED: u8 = 4;
}

/// Encodings of exported state.
pub mod encoding {
    /// `ICTUS_ENCODING_LOSSLESS`.
    pub const LOSSLESS: u8 = 0;
    /// `ICTUS_ENCODING_Q8`.
    pub const Q8: u8 = 1;
    /// `ICTUS_ENCODING_Q4`.
    pub const Q4: u8 = 2;
}

/// Kinds of state space.
pub mod space_kind {
    /// `ICTUS_SPACE_KIND_UNSPECIFIED`.
    pub const UNSPECIFIED: u32 = 0;
    /// `ICTUS_SPACE_KIND_PAGED_TOKEN_KV`.
    pub const PAGED_TOKEN_KV: u32 = 1;
    /// `ICTUS_SPACE_KIND_RING_KV`.
    pub const RING_KV: u32 = 2;
    /// `ICTUS_SPACE_KIND_RECURRENT_BLOB`.
    pub const RECURRENT_BLOB: u32 = 3;
    /// `ICTUS_SPACE_KIND_DEPTH_PAGED_KV`.
    pub const DEPTH_PAGED_KV: u32 = 4;
    /// `ICTUS_SPACE_KIND_ENCODER_CACHE`.
    pub const ENCODER_CACHE: u32 = 5;
}

/// Bits of `StateSpaceDesc::flags`.
pub mod space_flag {
    /// `ICTUS_SPACE_FLAG_OPS_UNAVAILABLE`.
    pub const OPS_UNAVAILABLE: u32 = 1;
    /// `ICTUS_SPACE_FLAG_NO_PREFIX_CACHE`.
    pub const NO_PREFIX_CACHE: u32 = 2;
}

/// Roles of a strategy artifact.
pub mod artifact_role {
    /// `ICTUS_ARTIFACT_UNSPECIFIED`.
    pub const UNSPECIFIED: u32 = 0;
    /// `ICTUS_ARTIFACT_DRAFT_WEIGHTS`.
    pub const DRAFT_WEIGHTS: u32 = 1;
    /// `ICTUS_ARTIFACT_AUX_HEAD`.
    pub const AUX_HEAD: u32 = 2;
    /// `ICTUS_ARTIFACT_PROJECTION`.
    pub const PROJECTION: u32 = 3;
    /// `ICTUS_ARTIFACT_DRAFT_TOKENIZER`.
    pub const DRAFT_TOKENIZER: u32 = 4;
}

/// Tensors a tap can name.
pub mod tap_tensor {
    /// `ICTUS_TAP_TENSOR_UNSPECIFIED`.
    pub const UNSPECIFIED: u32 = 0;
    /// `ICTUS_TAP_TENSOR_HIDDEN`.
    pub const HIDDEN: u32 = 1;
    /// `ICTUS_TAP_TENSOR_ATTN_OUT`.
    pub const ATTN_OUT: u32 = 2;
    /// `ICTUS_TAP_TENSOR_EMBED`.
    pub const EMBED: u32 = 3;
}

/// Bits of `ExactnessCert::sampling_modes`.
pub mod cert_mode {
    /// `ICTUS_CERT_MODE_GREEDY`.
    pub const GREEDY: u8 = 1;
    /// `ICTUS_CERT_MODE_GUMBEL`.
    pub const GUMBEL: u8 = 2;
    /// `ICTUS_CERT_MODE_HOST`.
    pub const HOST: u8 = 4;
}

/// Parameter domains of a certificate.
pub mod cert_domain {
    /// `ICTUS_CERT_DOMAIN_NONE`.
    pub const NONE: u32 = 0;
    /// `ICTUS_CERT_DOMAIN_GREEDY_ONLY`.
    pub const GREEDY_ONLY: u32 = 1;
    /// `ICTUS_CERT_DOMAIN_PENALTY_FREE`.
    pub const PENALTY_FREE: u32 = 2;
    /// `ICTUS_CERT_DOMAIN_ANY`.
    pub const ANY: u32 = 3;
}

/// Capabilities a strategy can require.
pub mod strategy_cap {
    /// `ICTUS_STRATEGY_CAP_UNSPECIFIED`.
    pub const UNSPECIFIED: u32 = 0;
    /// `ICTUS_STRATEGY_CAP_PROPOSAL_LINEAR`.
    pub const PROPOSAL_LINEAR: u32 = 1;
    /// `ICTUS_STRATEGY_CAP_PROPOSAL_BLOCK`.
    pub const PROPOSAL_BLOCK: u32 = 2;
    /// `ICTUS_STRATEGY_CAP_PROPOSAL_TREE`.
    pub const PROPOSAL_TREE: u32 = 3;
    /// `ICTUS_STRATEGY_CAP_MASK_ANCESTOR`.
    pub const MASK_ANCESTOR: u32 = 4;
    /// `ICTUS_STRATEGY_CAP_HOST_COMPATIBLE`.
    pub const HOST_COMPATIBLE: u32 = 5;
}

/// Bits of a taint set; they stick.
pub mod taint {
    /// `ICTUS_TAINT_QUANTIZED_DEMOTION`.
    pub const QUANTIZED_DEMOTION: u32 = 1;
    /// `ICTUS_TAINT_DECOMPOSITION`.
    pub const DECOMPOSITION: u32 = 2;
}

/// Where cached state lives.
pub mod tier {
    /// `ICTUS_TIER_GPU`.
    pub const GPU: u8 = 0;
    /// `ICTUS_TIER_HOST`.
    pub const HOST: u8 = 1;
    /// `ICTUS_TIER_GONE`.
    pub const GONE: u8 = 2;
}

/// Kinds of shed entries.
pub mod shed_kind {
    /// `ICTUS_SHED_UNSPECIFIED`.
    pub const UNSPECIFIED: u32 = 0;
    /// `ICTUS_SHED_PREFILL_CHUNK`.
    pub const PREFILL_CHUNK: u32 = 1;
    /// `ICTUS_SHED_CACHE_EVICTION`.
    pub const CACHE_EVICTION: u32 = 2;
}

/// Bits of the fork flags.
pub mod fork_flag {
    /// `ICTUS_FORK_EAGER`.
    pub const EAGER: u32 = 1;
    /// `ICTUS_FORK_PRIVATE`.
    pub const PRIVATE: u32 = 65536;
}

/// Checksums of an envelope.
pub mod checksum_kind {
    /// `ICTUS_CHECKSUM_XXH3_64`.
    pub const XXH3_64: u32 = 1;
    /// `ICTUS_CHECKSUM_FNV1A64`.
    pub const FNV1A64: u32 = 2;
}

/// Bits of `SamplingParams::flags`.
pub mod sampling_flag {
    /// `ICTUS_SAMPLING_FLAG_IGNORE_EOS`.
    pub const IGNORE_EOS: u32 = 1;
}

/// What a ring carries.
pub mod ring_kind {
    /// `ICTUS_RING_KIND_UNSPECIFIED`.
    pub const UNSPECIFIED: u32 = 0;
    /// `ICTUS_RING_KIND_TOKENS`.
    pub const TOKENS: u32 = 1;
    /// `ICTUS_RING_KIND_LOGITS`.
    pub const LOGITS: u32 = 2;
}

/// Which side writes, from the engine's view.
pub mod ring_role {
    /// `ICTUS_RING_ROLE_UNSPECIFIED`.
    pub const UNSPECIFIED: u32 = 0;
    /// `ICTUS_RING_ROLE_ENGINE_READS`.
    pub const ENGINE_READS: u32 = 1;
    /// `ICTUS_RING_ROLE_ENGINE_WRITES`.
    pub const ENGINE_WRITES: u32 = 2;
}

/// Single constants.
pub mod misc {
    /// `ICTUS_MAX_TOP_LOGPROBS`.
    pub const MAX_TOP_LOGPROBS: usize = 20;
    /// `ICTUS_RING_MAGIC`.
    pub const RING_MAGIC: u64 = 0x42525452494E4731;
    /// `ICTUS_ALL_SPACES`.
    pub const ALL_SPACES: u32 = 4294967295;
    /// `ICTUS_STATE_ENVELOPE_MAGIC`.
    pub const STATE_ENVELOPE_MAGIC: u64 = 0x4554415453545242;
}

/// Layout of a state envelope.
pub mod envelope {
    /// `ICTUS_STATE_ENVELOPE_VERSION`.
    pub const VERSION: u32 = 1;
    /// `ICTUS_STATE_ENVELOPE_BYTES`.
    pub const BYTES: usize = 136;
}

/// Ids of state spaces.
pub mod space_id {
    /// `ICTUS_SPACE_KV`.
    pub const KV: u32 = 1;
}

/// Bits of `ShedPolicy::evictable_cache_classes`.
pub mod cache_class {
    /// `ICTUS_CACHE_CLASS_RESIDENT`.
    pub const RESIDENT: u64 = 1;
    /// `ICTUS_CACHE_CLASS_SHARED`.
    pub const SHARED: u64 = 2;
    /// `ICTUS_CACHE_CLASS_HOST_EXPORT`.
    pub const HOST_EXPORT: u64 = 4;
}

/// The three rings.
pub mod ring_id {
    /// `ICTUS_RING_ID_TOKENS_IN`.
    pub const TOKENS_IN: u32 = 1;
    /// `ICTUS_RING_ID_TOKENS_OUT`.
    pub const TOKENS_OUT: u32 = 2;
    /// `ICTUS_RING_ID_LOGITS`.
    pub const LOGITS: u32 = 3;
}

/// Layout of a shared ring.
pub mod ring_layout {
    /// `ICTUS_RING_HEADER_BYTES`.
    pub const HEADER_BYTES: usize = 64;
    /// `ICTUS_RING_SLOT_HEADER_BYTES`.
    pub const SLOT_HEADER_BYTES: usize = 16;
}

/// Layout of the control words.
pub mod control {
    /// `ICTUS_CONTROL_MAGIC`.
    pub const MAGIC: u64 = 0x31304C5254434653;
    /// `ICTUS_CONTROL_BYTES`.
    pub const BYTES: usize = 64;
    /// `ICTUS_CONTROL_YIELD_OFFSET`.
    pub const YIELD_OFFSET: usize = 8;
    /// `ICTUS_CONTROL_LATENCY_OFFSET`.
    pub const LATENCY_OFFSET: usize = 16;
}
