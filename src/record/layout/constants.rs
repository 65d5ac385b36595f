#![forbid(unsafe_code)]
//! Every constant, in the order of the layout table.

use super::super::Status;
use super::super::constant::{
    admit_status, artifact_role, cache_class, cert_domain, cert_mode, checksum_kind, control, determinism, encoding,
    envelope, exactness, fault, finish, fork_flag, misc, op_state, ring_id, ring_kind, ring_layout, ring_role,
    sampling, sampling_flag, shed_kind, space_flag, space_id, space_kind, strategy_cap, taint, tap_tensor, tick_flag,
    tick_status, tier,
};
use super::{Constant, ConstantGroup};

macro_rules! groups {
    ($($group:literal { $($name:literal = $value:path,)* })*) => {
        /// Every constant, in the order of the layout table.
        pub const GROUPS: &[ConstantGroup] = &[$(
            ConstantGroup {
                name: $group,
                constants: &[$(Constant { name: $name, value: $value as i64 },)*],
            },
        )*];
    };
}

groups! {
    "STATUS" {
        "ICTUS_STATUS_OK" = Status::Ok,
        "ICTUS_REJECT_BAD_STRIDE" = Status::RejectBadStride,
        "ICTUS_REJECT_BAD_ALIGNMENT" = Status::RejectBadAlignment,
        "ICTUS_REJECT_BOUNDS" = Status::RejectBounds,
        "ICTUS_REJECT_BAD_REF_GENERATION" = Status::RejectBadRefGeneration,
        "ICTUS_REJECT_UNKNOWN_LANE" = Status::RejectUnknownLane,
        "ICTUS_REJECT_DUPLICATE_LANE" = Status::RejectDuplicateLane,
        "ICTUS_REJECT_ILLEGAL_COMBINATION" = Status::RejectIllegalCombination,
        "ICTUS_REJECT_BUDGET" = Status::RejectBudget,
        "ICTUS_REJECT_STALE_SEED" = Status::RejectStaleSeed,
        "ICTUS_REJECT_HOST_RULES" = Status::RejectHostRules,
        "ICTUS_REJECT_TRANSFER_LOCKED" = Status::RejectTransferLocked,
        "ICTUS_REJECT_STALE_NONCE" = Status::RejectStaleNonce,
        "ICTUS_NEEDS_REPLAN" = Status::NeedsReplan,
        "ICTUS_REJECT_BAD_STRUCT" = Status::RejectBadStruct,
        "ICTUS_EBUSY" = Status::Busy,
        "ICTUS_ERR_BUFFER_TOO_SMALL" = Status::BufferTooSmall,
        "ICTUS_ERR_STALE_SIZING" = Status::StaleSizing,
        "ICTUS_ERR_OUT_OF_BOUNDARY" = Status::OutOfBoundary,
        "ICTUS_ERR_ENVELOPE_MISMATCH" = Status::EnvelopeMismatch,
        "ICTUS_ERR_CHECKSUM" = Status::Checksum,
        "ICTUS_ERR_IDENTITY_MISMATCH" = Status::IdentityMismatch,
        "ICTUS_ERR_OP_UNSUPPORTED" = Status::Unsupported,
        "ICTUS_ERR_REGISTRATION_REFUSED" = Status::RegistrationRefused,
        "ICTUS_ERR_UNKNOWN_HANDLE" = Status::UnknownHandle,
        "ICTUS_ERR_SEED_UNSERVABLE" = Status::SeedUnservable,
        "ICTUS_ERR_RING_LAYOUT" = Status::RingLayout,
        "ICTUS_REJECT_CERT_UNMATCHED" = Status::RejectCertUnmatched,
        "ICTUS_ERR_FATAL" = Status::Fatal,
    }
    "FAULT" {
        "ICTUS_FAULT_UNSPECIFIED" = fault::UNSPECIFIED,
        "ICTUS_FAULT_GRAMMAR_OVERFLOW" = fault::GRAMMAR_OVERFLOW,
        "ICTUS_FAULT_REF_SPAN_OOB" = fault::REF_SPAN_OOB,
        "ICTUS_FAULT_STRATEGY" = fault::STRATEGY,
        "ICTUS_FAULT_OOM_TENTATIVE" = fault::OOM_TENTATIVE,
        "ICTUS_FAULT_INTERNAL" = fault::INTERNAL,
        "ICTUS_FAULT_MEDIA" = fault::MEDIA,
    }
    "SAMPLING" {
        "ICTUS_SAMPLING_GPU_GREEDY" = sampling::GPU_GREEDY,
        "ICTUS_SAMPLING_GPU_GUMBEL" = sampling::GPU_GUMBEL,
        "ICTUS_SAMPLING_HOST" = sampling::HOST,
    }
    "DETERMINISM" {
        "ICTUS_DETERMINISM_BEST_EFFORT" = determinism::BEST_EFFORT,
        "ICTUS_DETERMINISM_DETERMINISTIC" = determinism::DETERMINISTIC,
    }
    "EXACTNESS" {
        "ICTUS_EXACTNESS_APPROXIMATE" = exactness::APPROXIMATE,
        "ICTUS_EXACTNESS_DISTRIBUTION_EXACT" = exactness::DISTRIBUTION_EXACT,
        "ICTUS_EXACTNESS_SEED_PATH_INVARIANT" = exactness::SEED_PATH_INVARIANT,
    }
    "TICK_FLAG" {
        "ICTUS_TICK_DRAIN" = tick_flag::DRAIN,
        "ICTUS_TICK_CAPTURE_OK" = tick_flag::CAPTURE_OK,
        "ICTUS_TICK_PARTIAL_EMITS" = tick_flag::PARTIAL_EMITS,
    }
    "TICK_STATUS" {
        "ICTUS_TICK_OK" = tick_status::OK,
        "ICTUS_TICK_SHED" = tick_status::SHED,
        "ICTUS_TICK_LANE_ERRORS" = tick_status::LANE_ERRORS,
        "ICTUS_TICK_FATAL" = tick_status::FATAL,
    }
    "ADMIT_STATUS" {
        "ICTUS_ADMIT_UNSPECIFIED" = admit_status::UNSPECIFIED,
        "ICTUS_ADMIT_ADMITTED" = admit_status::ADMITTED,
        "ICTUS_ADMIT_REJECTED" = admit_status::REJECTED,
    }
    "FINISH" {
        "ICTUS_FINISH_NONE" = finish::NONE,
        "ICTUS_FINISH_EOS" = finish::EOS,
        "ICTUS_FINISH_LENGTH" = finish::LENGTH,
        "ICTUS_FINISH_GRAMMAR" = finish::GRAMMAR,
        "ICTUS_FINISH_CANCELLED" = finish::CANCELLED,
        "ICTUS_FINISH_ERROR" = finish::ERROR,
    }
    "OP_STATE" {
        "ICTUS_OP_PENDING" = op_state::PENDING,
        "ICTUS_OP_RUNNING" = op_state::RUNNING,
        "ICTUS_OP_DONE" = op_state::DONE,
        "ICTUS_OP_FAILED" = op_state::FAILED,
        "ICTUS_OP_CANCELLED" = op_state::CANCELLED,
    }
    "ENCODING" {
        "ICTUS_ENCODING_LOSSLESS" = encoding::LOSSLESS,
        "ICTUS_ENCODING_Q8" = encoding::Q8,
        "ICTUS_ENCODING_Q4" = encoding::Q4,
    }
    "SPACE_KIND" {
        "ICTUS_SPACE_KIND_UNSPECIFIED" = space_kind::UNSPECIFIED,
        "ICTUS_SPACE_KIND_PAGED_TOKEN_KV" = space_kind::PAGED_TOKEN_KV,
        "ICTUS_SPACE_KIND_RING_KV" = space_kind::RING_KV,
        "ICTUS_SPACE_KIND_RECURRENT_BLOB" = space_kind::RECURRENT_BLOB,
        "ICTUS_SPACE_KIND_DEPTH_PAGED_KV" = space_kind::DEPTH_PAGED_KV,
        "ICTUS_SPACE_KIND_ENCODER_CACHE" = space_kind::ENCODER_CACHE,
    }
    "SPACE_FLAG" {
        "ICTUS_SPACE_FLAG_OPS_UNAVAILABLE" = space_flag::OPS_UNAVAILABLE,
        "ICTUS_SPACE_FLAG_NO_PREFIX_CACHE" = space_flag::NO_PREFIX_CACHE,
    }
    "ARTIFACT_ROLE" {
        "ICTUS_ARTIFACT_UNSPECIFIED" = artifact_role::UNSPECIFIED,
        "ICTUS_ARTIFACT_DRAFT_WEIGHTS" = artifact_role::DRAFT_WEIGHTS,
        "ICTUS_ARTIFACT_AUX_HEAD" = artifact_role::AUX_HEAD,
        "ICTUS_ARTIFACT_PROJECTION" = artifact_role::PROJECTION,
        "ICTUS_ARTIFACT_DRAFT_TOKENIZER" = artifact_role::DRAFT_TOKENIZER,
    }
    "TAP_TENSOR" {
        "ICTUS_TAP_TENSOR_UNSPECIFIED" = tap_tensor::UNSPECIFIED,
        "ICTUS_TAP_TENSOR_HIDDEN" = tap_tensor::HIDDEN,
        "ICTUS_TAP_TENSOR_ATTN_OUT" = tap_tensor::ATTN_OUT,
        "ICTUS_TAP_TENSOR_EMBED" = tap_tensor::EMBED,
    }
    "CERT_MODE" {
        "ICTUS_CERT_MODE_GREEDY" = cert_mode::GREEDY,
        "ICTUS_CERT_MODE_GUMBEL" = cert_mode::GUMBEL,
        "ICTUS_CERT_MODE_HOST" = cert_mode::HOST,
    }
    "CERT_DOMAIN" {
        "ICTUS_CERT_DOMAIN_NONE" = cert_domain::NONE,
        "ICTUS_CERT_DOMAIN_GREEDY_ONLY" = cert_domain::GREEDY_ONLY,
        "ICTUS_CERT_DOMAIN_PENALTY_FREE" = cert_domain::PENALTY_FREE,
        "ICTUS_CERT_DOMAIN_ANY" = cert_domain::ANY,
    }
    "STRATEGY_CAP" {
        "ICTUS_STRATEGY_CAP_UNSPECIFIED" = strategy_cap::UNSPECIFIED,
        "ICTUS_STRATEGY_CAP_PROPOSAL_LINEAR" = strategy_cap::PROPOSAL_LINEAR,
        "ICTUS_STRATEGY_CAP_PROPOSAL_BLOCK" = strategy_cap::PROPOSAL_BLOCK,
        "ICTUS_STRATEGY_CAP_PROPOSAL_TREE" = strategy_cap::PROPOSAL_TREE,
        "ICTUS_STRATEGY_CAP_MASK_ANCESTOR" = strategy_cap::MASK_ANCESTOR,
        "ICTUS_STRATEGY_CAP_HOST_COMPATIBLE" = strategy_cap::HOST_COMPATIBLE,
    }
    "TAINT" {
        "ICTUS_TAINT_QUANTIZED_DEMOTION" = taint::QUANTIZED_DEMOTION,
        "ICTUS_TAINT_DECOMPOSITION" = taint::DECOMPOSITION,
    }
    "TIER" {
        "ICTUS_TIER_GPU" = tier::GPU,
        "ICTUS_TIER_HOST" = tier::HOST,
        "ICTUS_TIER_GONE" = tier::GONE,
    }
    "SHED_KIND" {
        "ICTUS_SHED_UNSPECIFIED" = shed_kind::UNSPECIFIED,
        "ICTUS_SHED_PREFILL_CHUNK" = shed_kind::PREFILL_CHUNK,
        "ICTUS_SHED_CACHE_EVICTION" = shed_kind::CACHE_EVICTION,
    }
    "FORK_FLAG" {
        "ICTUS_FORK_EAGER" = fork_flag::EAGER,
    }
    "CHECKSUM_KIND" {
        "ICTUS_CHECKSUM_XXH3_64" = checksum_kind::XXH3_64,
        "ICTUS_CHECKSUM_FNV1A64" = checksum_kind::FNV1A64,
    }
    "SAMPLING_FLAG" {
        "ICTUS_SAMPLING_FLAG_IGNORE_EOS" = sampling_flag::IGNORE_EOS,
    }
    "RING_KIND" {
        "ICTUS_RING_KIND_UNSPECIFIED" = ring_kind::UNSPECIFIED,
        "ICTUS_RING_KIND_TOKENS" = ring_kind::TOKENS,
        "ICTUS_RING_KIND_LOGITS" = ring_kind::LOGITS,
    }
    "RING_ROLE" {
        "ICTUS_RING_ROLE_UNSPECIFIED" = ring_role::UNSPECIFIED,
        "ICTUS_RING_ROLE_ENGINE_READS" = ring_role::ENGINE_READS,
        "ICTUS_RING_ROLE_ENGINE_WRITES" = ring_role::ENGINE_WRITES,
    }
    "MISC" {
        "ICTUS_MAX_TOP_LOGPROBS" = misc::MAX_TOP_LOGPROBS,
        "ICTUS_RING_MAGIC" = misc::RING_MAGIC,
        "ICTUS_ALL_SPACES" = misc::ALL_SPACES,
        "ICTUS_STATE_ENVELOPE_MAGIC" = misc::STATE_ENVELOPE_MAGIC,
    }
    "FORK_FLAG" {
        "ICTUS_FORK_PRIVATE" = fork_flag::PRIVATE,
    }
    "ENVELOPE" {
        "ICTUS_STATE_ENVELOPE_VERSION" = envelope::VERSION,
        "ICTUS_STATE_ENVELOPE_BYTES" = envelope::BYTES,
    }
    "SPACE_ID" {
        "ICTUS_SPACE_KV" = space_id::KV,
    }
    "CACHE_CLASS" {
        "ICTUS_CACHE_CLASS_RESIDENT" = cache_class::RESIDENT,
        "ICTUS_CACHE_CLASS_SHARED" = cache_class::SHARED,
        "ICTUS_CACHE_CLASS_HOST_EXPORT" = cache_class::HOST_EXPORT,
    }
    "RING_ID" {
        "ICTUS_RING_ID_TOKENS_IN" = ring_id::TOKENS_IN,
        "ICTUS_RING_ID_TOKENS_OUT" = ring_id::TOKENS_OUT,
        "ICTUS_RING_ID_LOGITS" = ring_id::LOGITS,
    }
    "RING_LAYOUT" {
        "ICTUS_RING_HEADER_BYTES" = ring_layout::HEADER_BYTES,
        "ICTUS_RING_SLOT_HEADER_BYTES" = ring_layout::SLOT_HEADER_BYTES,
    }
    "CONTROL" {
        "ICTUS_CONTROL_MAGIC" = control::MAGIC,
        "ICTUS_CONTROL_BYTES" = control::BYTES,
        "ICTUS_CONTROL_YIELD_OFFSET" = control::YIELD_OFFSET,
        "ICTUS_CONTROL_LATENCY_OFFSET" = control::LATENCY_OFFSET,
    }
}
