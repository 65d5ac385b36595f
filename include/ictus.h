/* ictus: an LLM inference engine that a program links. The host calls ictus_tick with a plan; the engine validates it, runs it,
 * and answers with events.
 *
 * Generated from src/abi and src/record by tests/abi_header.rs; do not edit (ICTUS_BLESS=1 rewrites it).
 *
 * Handles. ictus_model_t is an engine with what belongs to it, ictus_sequence_t model state, ictus_executor_t a core for a host that
 * owns its scheduler. They are numbers that are looked up: NULL, released and foreign ones are ICTUS_ERR_UNKNOWN_HANDLE, always.
 * ictus_capacity_t is either of the first and the last.
 *
 * Threads. A model may be used from any thread, one call at a time: a second thread waits, a callback that calls back into its
 * model gets ICTUS_EBUSY. An executor may be used by any number of threads at once. Models do not know of each other. Functions that may be called while another thread ticks say so.
 *
 * Pointers. Input is borrowed for the call, but for buffers of state operations, which are on loan until the operation ends.
 * Outputs are written on success only, but for the sizes that ICTUS_ERR_BUFFER_TOO_SMALL reports, and for an ictus_refusal_t. A NULL pointer that is needed is
 * ICTUS_REJECT_BAD_STRUCT, a misaligned one ICTUS_REJECT_BAD_ALIGNMENT, a count that no memory has ICTUS_REJECT_BOUNDS.
 * Lists of length 0 may be NULL.
 *
 * Records. A record that begins with struct_size says how large its writer knows it; 0 in a field that an older writer lacks means
 * "as before". Padding is zero.
 *
 * Statuses. 0 is success; a negative status means that nothing changed, unless the function says otherwise. ICTUS_ERR_FATAL means
 * that the model is broken: every call on it answers the same until it is released. A panic inside the library is
 * ICTUS_ERR_FATAL, and never leaves it. Callbacks must return: neither longjmp nor a C++ exception may leave one.
 *
 * Process. The library prints nothing, starts no thread that calls back, reads no environment variable, and keeps no state of the
 * process but the table of handles. (Rust's own panic message goes to stderr, unless the host has set a panic hook.)
 */


#ifndef ICTUS_H
#define ICTUS_H

#include <stdint.h>

/* Version of this header; ictus_version() is the library's. */
#define ICTUS_VERSION "0.1.0"
#define ICTUS_VERSION_MAJOR 0
#define ICTUS_VERSION_MINOR 1
#define ICTUS_VERSION_PATCH 0

/* Hash of all records and constants of this header; ictus_abi_hash() is the library's. */
#define ICTUS_ABI_HASH 0xf4173bbf355e1245ull

/* STATUS */
#define ICTUS_STATUS_OK 0
#define ICTUS_REJECT_BAD_STRIDE (-100)
#define ICTUS_REJECT_BAD_ALIGNMENT (-101)
#define ICTUS_REJECT_BOUNDS (-102)
#define ICTUS_REJECT_BAD_REF_GENERATION (-103)
#define ICTUS_REJECT_UNKNOWN_LANE (-104)
#define ICTUS_REJECT_DUPLICATE_LANE (-105)
#define ICTUS_REJECT_ILLEGAL_COMBINATION (-106)
#define ICTUS_REJECT_BUDGET (-107)
#define ICTUS_REJECT_STALE_SEED (-108)
#define ICTUS_REJECT_HOST_RULES (-110)
#define ICTUS_REJECT_TRANSFER_LOCKED (-111)
#define ICTUS_REJECT_STALE_NONCE (-112)
#define ICTUS_NEEDS_REPLAN (-113)
#define ICTUS_REJECT_BAD_STRUCT (-114)
#define ICTUS_EBUSY (-120)
#define ICTUS_ERR_BUFFER_TOO_SMALL (-121)
#define ICTUS_ERR_STALE_SIZING (-122)
#define ICTUS_ERR_OUT_OF_BOUNDARY (-123)
#define ICTUS_ERR_ENVELOPE_MISMATCH (-124)
#define ICTUS_ERR_CHECKSUM (-125)
#define ICTUS_ERR_IDENTITY_MISMATCH (-126)
#define ICTUS_ERR_OP_UNSUPPORTED (-127)
#define ICTUS_ERR_REGISTRATION_REFUSED (-128)
#define ICTUS_ERR_UNKNOWN_HANDLE (-129)
#define ICTUS_ERR_SEED_UNSERVABLE (-130)
#define ICTUS_ERR_RING_LAYOUT (-131)
#define ICTUS_REJECT_CERT_UNMATCHED (-140)
#define ICTUS_ERR_FATAL (-1)

/* FAULT */
#define ICTUS_FAULT_UNSPECIFIED 0u
#define ICTUS_FAULT_GRAMMAR_OVERFLOW 1u
#define ICTUS_FAULT_REF_SPAN_OOB 2u
#define ICTUS_FAULT_STRATEGY 3u
#define ICTUS_FAULT_OOM_TENTATIVE 4u
#define ICTUS_FAULT_INTERNAL 5u
#define ICTUS_FAULT_MEDIA 6u

/* SAMPLING */
#define ICTUS_SAMPLING_GPU_GREEDY 0u
#define ICTUS_SAMPLING_GPU_GUMBEL 1u
#define ICTUS_SAMPLING_HOST 2u

/* DETERMINISM */
#define ICTUS_DETERMINISM_BEST_EFFORT 0u
#define ICTUS_DETERMINISM_DETERMINISTIC 1u

/* EXACTNESS */
#define ICTUS_EXACTNESS_APPROXIMATE 0u
#define ICTUS_EXACTNESS_DISTRIBUTION_EXACT 1u
#define ICTUS_EXACTNESS_SEED_PATH_INVARIANT 2u

/* TICK_FLAG */
#define ICTUS_TICK_DRAIN 1u
#define ICTUS_TICK_CAPTURE_OK 2u
#define ICTUS_TICK_PARTIAL_EMITS 4u

/* TICK_STATUS */
#define ICTUS_TICK_OK 0u
#define ICTUS_TICK_SHED 1u
#define ICTUS_TICK_LANE_ERRORS 2u
#define ICTUS_TICK_FATAL 3u

/* ADMIT_STATUS */
#define ICTUS_ADMIT_UNSPECIFIED 0u
#define ICTUS_ADMIT_ADMITTED 1u
#define ICTUS_ADMIT_REJECTED 2u

/* FINISH */
#define ICTUS_FINISH_NONE 0u
#define ICTUS_FINISH_EOS 1u
#define ICTUS_FINISH_LENGTH 2u
#define ICTUS_FINISH_GRAMMAR 3u
#define ICTUS_FINISH_CANCELLED 4u
#define ICTUS_FINISH_ERROR 5u

/* OP_STATE */
#define ICTUS_OP_PENDING 0u
#define ICTUS_OP_RUNNING 1u
#define ICTUS_OP_DONE 2u
#define ICTUS_OP_FAILED 3u
#define ICTUS_OP_CANCELLED 4u

/* ENCODING */
#define ICTUS_ENCODING_LOSSLESS 0u
#define ICTUS_ENCODING_Q8 1u
#define ICTUS_ENCODING_Q4 2u

/* SPACE_KIND */
#define ICTUS_SPACE_KIND_UNSPECIFIED 0u
#define ICTUS_SPACE_KIND_PAGED_TOKEN_KV 1u
#define ICTUS_SPACE_KIND_RING_KV 2u
#define ICTUS_SPACE_KIND_RECURRENT_BLOB 3u
#define ICTUS_SPACE_KIND_DEPTH_PAGED_KV 4u
#define ICTUS_SPACE_KIND_ENCODER_CACHE 5u

/* SPACE_FLAG */
#define ICTUS_SPACE_FLAG_OPS_UNAVAILABLE 1u
#define ICTUS_SPACE_FLAG_NO_PREFIX_CACHE 2u

/* ARTIFACT_ROLE */
#define ICTUS_ARTIFACT_UNSPECIFIED 0u
#define ICTUS_ARTIFACT_DRAFT_WEIGHTS 1u
#define ICTUS_ARTIFACT_AUX_HEAD 2u
#define ICTUS_ARTIFACT_PROJECTION 3u
#define ICTUS_ARTIFACT_DRAFT_TOKENIZER 4u

/* TAP_TENSOR */
#define ICTUS_TAP_TENSOR_UNSPECIFIED 0u
#define ICTUS_TAP_TENSOR_HIDDEN 1u
#define ICTUS_TAP_TENSOR_ATTN_OUT 2u
#define ICTUS_TAP_TENSOR_EMBED 3u

/* CERT_MODE */
#define ICTUS_CERT_MODE_GREEDY 1u
#define ICTUS_CERT_MODE_GUMBEL 2u
#define ICTUS_CERT_MODE_HOST 4u

/* CERT_DOMAIN */
#define ICTUS_CERT_DOMAIN_NONE 0u
#define ICTUS_CERT_DOMAIN_GREEDY_ONLY 1u
#define ICTUS_CERT_DOMAIN_PENALTY_FREE 2u
#define ICTUS_CERT_DOMAIN_ANY 3u

/* STRATEGY_CAP */
#define ICTUS_STRATEGY_CAP_UNSPECIFIED 0u
#define ICTUS_STRATEGY_CAP_PROPOSAL_LINEAR 1u
#define ICTUS_STRATEGY_CAP_PROPOSAL_BLOCK 2u
#define ICTUS_STRATEGY_CAP_PROPOSAL_TREE 3u
#define ICTUS_STRATEGY_CAP_MASK_ANCESTOR 4u
#define ICTUS_STRATEGY_CAP_HOST_COMPATIBLE 5u

/* TAINT */
#define ICTUS_TAINT_QUANTIZED_DEMOTION 1u
#define ICTUS_TAINT_DECOMPOSITION 2u

/* TIER */
#define ICTUS_TIER_GPU 0u
#define ICTUS_TIER_HOST 1u
#define ICTUS_TIER_GONE 2u

/* SHED_KIND */
#define ICTUS_SHED_UNSPECIFIED 0u
#define ICTUS_SHED_PREFILL_CHUNK 1u
#define ICTUS_SHED_CACHE_EVICTION 2u

/* FORK_FLAG */
#define ICTUS_FORK_EAGER 1u

/* CHECKSUM_KIND */
#define ICTUS_CHECKSUM_XXH3_64 1u
#define ICTUS_CHECKSUM_FNV1A64 2u

/* SAMPLING_FLAG */
#define ICTUS_SAMPLING_FLAG_IGNORE_EOS 1u

/* RING_KIND */
#define ICTUS_RING_KIND_UNSPECIFIED 0u
#define ICTUS_RING_KIND_TOKENS 1u
#define ICTUS_RING_KIND_LOGITS 2u

/* RING_ROLE */
#define ICTUS_RING_ROLE_UNSPECIFIED 0u
#define ICTUS_RING_ROLE_ENGINE_READS 1u
#define ICTUS_RING_ROLE_ENGINE_WRITES 2u

/* MISC */
#define ICTUS_MAX_TOP_LOGPROBS 20u
#define ICTUS_RING_MAGIC 0x42525452494e4731ull
#define ICTUS_ALL_SPACES 4294967295u
#define ICTUS_STATE_ENVELOPE_MAGIC 0x4554415453545242ull

/* FORK_FLAG */
#define ICTUS_FORK_PRIVATE 65536u

/* ENVELOPE */
#define ICTUS_STATE_ENVELOPE_VERSION 1u
#define ICTUS_STATE_ENVELOPE_BYTES 136u

/* SPACE_ID */
#define ICTUS_SPACE_KV 1u

/* CACHE_CLASS */
#define ICTUS_CACHE_CLASS_RESIDENT 1ull
#define ICTUS_CACHE_CLASS_SHARED 2ull
#define ICTUS_CACHE_CLASS_HOST_EXPORT 4ull

/* RING_ID */
#define ICTUS_RING_ID_TOKENS_IN 1u
#define ICTUS_RING_ID_TOKENS_OUT 2u
#define ICTUS_RING_ID_LOGITS 3u

/* RING_LAYOUT */
#define ICTUS_RING_HEADER_BYTES 64u
#define ICTUS_RING_SLOT_HEADER_BYTES 16u

/* CONTROL */
#define ICTUS_CONTROL_MAGIC 0x31304c5254434653ull
#define ICTUS_CONTROL_BYTES 64u
#define ICTUS_CONTROL_YIELD_OFFSET 8u
#define ICTUS_CONTROL_LATENCY_OFFSET 16u

/* LOG_LEVEL */
#define ICTUS_LOG_OFF 0u
#define ICTUS_LOG_ERROR 1u
#define ICTUS_LOG_WARN 2u
#define ICTUS_LOG_INFO 3u

/* DEVICE */
#define ICTUS_DEVICE_CPU 0u
#define ICTUS_DEVICE_CUDA 1u

/* INSTRUCTION_SET */
#define ICTUS_INSTRUCTION_SET_BEST 0u
#define ICTUS_INSTRUCTION_SET_PORTABLE 1u
#define ICTUS_INSTRUCTION_SET_AVX2 2u
#define ICTUS_INSTRUCTION_SET_AVX512 3u
#define ICTUS_INSTRUCTION_SET_AVX512_VNNI 4u
#define ICTUS_INSTRUCTION_SET_NEON 5u
#define ICTUS_INSTRUCTION_SET_NEON_DOTPROD 6u

/* ARITHMETIC */
#define ICTUS_ARITHMETIC_EXACT 0u
#define ICTUS_ARITHMETIC_FAST 1u

/* KV_TYPE */
#define ICTUS_KV_DEFAULT 0u
#define ICTUS_KV_F16 1u
#define ICTUS_KV_F32 2u

/* TEXT_FLAG */
#define ICTUS_TEXT_ADD_SPECIAL 1u
#define ICTUS_TEXT_PARSE_SPECIAL 2u
#define ICTUS_TEXT_SHOW_SPECIAL 4u

/* CHAT_FLAG */
#define ICTUS_CHAT_GENERATION_PROMPT 1u

/* DRIVER_FLAG */
#define ICTUS_DRIVER_THREAD 1u

/* REQUEST_FLAG */
#define ICTUS_REQUEST_NO_PUBLISH 1u
#define ICTUS_REQUEST_BEST_EFFORT 2u

/* DRIVER_PROGRESS */
#define ICTUS_DRIVER_IDLE 0u
#define ICTUS_DRIVER_WORKED 1u
#define ICTUS_DRIVER_STALLED 2u

/* DRIVER_EVENT */
#define ICTUS_EVENT_NONE 0u
#define ICTUS_EVENT_STARTED 1u
#define ICTUS_EVENT_TOKENS 2u
#define ICTUS_EVENT_FINISHED 3u

/* DRIVER_FINISH */
#define ICTUS_DRIVER_FINISH_NONE 0u
#define ICTUS_DRIVER_FINISH_END_TOKEN 1u
#define ICTUS_DRIVER_FINISH_STOP_TOKEN 2u
#define ICTUS_DRIVER_FINISH_STOP_STRING 3u
#define ICTUS_DRIVER_FINISH_GRAMMAR 4u
#define ICTUS_DRIVER_FINISH_MAX_TOKENS 5u
#define ICTUS_DRIVER_FINISH_CONTEXT_FULL 6u
#define ICTUS_DRIVER_FINISH_CANCELLED 7u
#define ICTUS_DRIVER_FINISH_DEADLINE 8u
#define ICTUS_DRIVER_FINISH_FAULT 9u
#define ICTUS_DRIVER_FINISH_FAILED 10u
#define ICTUS_DRIVER_FINISH_CLOSED 11u

/* CLAIM */
#define ICTUS_CLAIMS_TEMPERATURE 1u
#define ICTUS_CLAIMS_TOP_P 2u
#define ICTUS_CLAIMS_MIN_P 4u
#define ICTUS_CLAIMS_REPETITION_PENALTY 8u
#define ICTUS_CLAIMS_TOP_K 16u
#define ICTUS_CLAIMS_DO_SAMPLE 32u

/* DOMAIN */
#define ICTUS_DOMAIN_UNSPECIFIED 0u
#define ICTUS_DOMAIN_SLOTS 1u
#define ICTUS_DOMAIN_BLOCKS 2u
#define ICTUS_DOMAIN_WORKSPACE 3u
#define ICTUS_DOMAIN_HOST_EXPORT 4u
#define ICTUS_DOMAIN_BUDGET 5u
#define ICTUS_DOMAIN_DEVICE 6u
#define ICTUS_DOMAIN_FLIGHT 7u

/* REMEDY */
#define ICTUS_REMEDY_WAIT 0u
#define ICTUS_REMEDY_GROW 1u
#define ICTUS_REMEDY_RECOMPUTE 2u
#define ICTUS_REMEDY_QUIESCE 3u

/* LACK */
#define ICTUS_LACK_FIT 0u
#define ICTUS_LACK_NOW 1u
#define ICTUS_LACK_GROWTH 2u
#define ICTUS_LACK_NEVER 3u

/* EXECUTOR_FLAG */
#define ICTUS_EXECUTOR_UNMIXED 1u

/* ADMISSION_FLAG */
#define ICTUS_ADMISSION_REUSE 1u
#define ICTUS_ADMISSION_UNCOUNTED 2u

/* FIT */
#define ICTUS_FIT_NOW 0u
#define ICTUS_FIT_INPUT 1u
#define ICTUS_FIT_CEILING 2u

/* WORK */
#define ICTUS_WORK_PREFILL 0u
#define ICTUS_WORK_DECODE 1u
#define ICTUS_WORK_VERIFY 2u

/* LOGITS */
#define ICTUS_LOGITS_GREEDY 0u
#define ICTUS_LOGITS_FULL 1u

/* OUT */
#define ICTUS_OUT_SILENT 0u
#define ICTUS_OUT_LOGITS 1u
#define ICTUS_OUT_TOKENS 2u
#define ICTUS_OUT_NO_FINITE 3u
#define ICTUS_OUT_FAULT 4u

/* REFUSAL */
#define ICTUS_REFUSAL_NONE 0u
#define ICTUS_REFUSAL_BLOCKED 1u
#define ICTUS_REFUSAL_NEVER 2u
#define ICTUS_REFUSAL_UNSUPPORTED 3u
#define ICTUS_REFUSAL_BAD 4u

/* BAD */
#define ICTUS_BAD_BOUNDS 0u
#define ICTUS_BAD_FRONTIER 1u
#define ICTUS_BAD_DUPLICATE 2u
#define ICTUS_BAD_STALE 3u
#define ICTUS_BAD_FOREIGN 4u
#define ICTUS_BAD_BUSY 5u
#define ICTUS_BAD_FAULTED 6u
#define ICTUS_BAD_POLICY 7u
#define ICTUS_BAD_CLOSED 8u
#define ICTUS_BAD_REGRESSED 9u
#define ICTUS_BAD_EXHAUSTED 10u
#define ICTUS_BAD_POISONED 11u

/* FEATURE */
#define ICTUS_FEATURE_MIXED 0u
#define ICTUS_FEATURE_VERIFY 1u
#define ICTUS_FEATURE_TRUNCATE 2u
#define ICTUS_FEATURE_GREEDY_DEVICE 3u
#define ICTUS_FEATURE_GROW 4u
#define ICTUS_FEATURE_EXPORT 5u
#define ICTUS_FEATURE_REUSE 6u
#define ICTUS_FEATURE_ITEMS 7u
#define ICTUS_FEATURE_TOKENS 8u

/* END */
#define ICTUS_END_COMPLETED 0u
#define ICTUS_END_CANCELLED 1u
#define ICTUS_END_FAILED 2u
#define ICTUS_END_RECOMPUTE 3u

/* EXECUTOR_FAULT */
#define ICTUS_EXECUTOR_FAULT_CONTRACT 0u
#define ICTUS_EXECUTOR_FAULT_CANCELLED 1u
#define ICTUS_EXECUTOR_FAULT_DEVICE 2u
#define ICTUS_EXECUTOR_FAULT_MEMORY 3u

/* SEQUENCE_STATE */
#define ICTUS_SEQUENCE_INTACT 0u
#define ICTUS_SEQUENCE_LOST 1u
#define ICTUS_SEQUENCE_HELD 2u

/* EXECUTOR_STATE */
#define ICTUS_EXECUTOR_STATE_LOADING 0u
#define ICTUS_EXECUTOR_STATE_READY 1u
#define ICTUS_EXECUTOR_STATE_BUSY 2u
#define ICTUS_EXECUTOR_STATE_FAULTED 3u
#define ICTUS_EXECUTOR_STATE_CLOSING 4u

/* TOKEN */
#define ICTUS_NO_TOKEN 4294967295u
#define ICTUS_NO_RESTARTS 4294967295u


// What an `ictus_account_t` points to: nothing that C could look at.
typedef struct ictus_account ictus_account;

// What an `ictus_driver_t` points to: nothing that C could look at.
typedef struct ictus_driver ictus_driver;

// What an `ictus_executor_t` points to: nothing that C could look at.
typedef struct ictus_executor ictus_executor;

// What an `ictus_sequence_t` points to: nothing that C could look at.
typedef struct ictus_sequence ictus_sequence;

// What an `ictus_wait_t` points to: nothing that C could look at.
typedef struct ictus_wait ictus_wait;

// 0 or one of `ICTUS_REJECT_*`, `ICTUS_ERR_*`, `ICTUS_NEEDS_REPLAN`, `ICTUS_EBUSY`.
typedef int32_t ictus_status;

// Handle of a device account. NULL is none.
typedef ictus_account *ictus_account_t;

// Handle of a model: an opened model file with an engine of its own, or an engine that a Rust host brought. NULL is none.
typedef void *ictus_model_t;

// Handle of a sequence. NULL is none.
typedef ictus_sequence *ictus_sequence_t;

// Reference to one token-ring slot.
typedef struct {
    // Ring the slot belongs to (`RING_ID_*`).
    uint32_t ring_id;
    // Slot number.
    uint32_t index;
    // Number of ids the payload must hold.
    uint32_t count;
    // Zero; readers ignore it.
    uint32_t _pad0;
    // Generation the slot must carry; 0 never matches.
    uint64_t generation;
} ictus_token_ref_t;

// A `(pointer, count, stride)` view of a list of records (A-10 .. A-15).
typedef struct {
    // First element; NULL only when `count` is 0; 8-byte aligned.
    const void *data;
    // Number of elements.
    uint32_t count;
    // The writer's record size in bytes: the stride, not the reader's size.
    uint32_t elem_size;
} ictus_array_t;

// Answer to a prefix match.
typedef struct {
    // Size of this record in bytes.
    uint64_t struct_size;
    // ictus_space_match_t records.
    ictus_array_t spaces;
} ictus_match_result_t;

// What the engine may give up to make room.
typedef struct {
    // `u64` lane tags; decoded, not acted on.
    ictus_array_t victim_lanes;
    // Bit set of `CACHE_CLASS_*` that may be evicted.
    uint64_t evictable_cache_classes;
    // Cache bytes that stay, whatever is asked.
    uint64_t protected_quota_bytes;
    // Most cache bytes this plan may evict.
    uint64_t max_evict_bytes;
} ictus_shed_policy_t;

// Handle of what has a coordinator: a model, or an executor. NULL is none.
typedef void *ictus_capacity_t;

// What was seen of the epochs of a model. Data without authority: it can be copied, kept and compared.
typedef struct {
    // The coordinator that it is of; never 0.
    uint64_t core;
    // The epoch that was seen of each domain, from `ICTUS_DOMAIN_SLOTS` on.
    uint64_t seen[7];
    // Operations that had freed something; for audits only.
    uint64_t released;
    // Publications of growth until then.
    uint64_t resized;
    // The domains that it watches: bit `ICTUS_DOMAIN_* - 1` of each.
    uint32_t watch;
    // Zero.
    uint32_t _pad0;
} ictus_ticket_t;

// The level of memory at one moment: bytes, but for the three that count pages.
typedef struct {
    // The reader's size of this record in bytes; at least 112.
    uint64_t struct_size;
    // Bytes that the device has.
    uint64_t capacity;
    // Bytes that may be claimed.
    uint64_t usable;
    // Bytes that all cores of the device account have claimed.
    uint64_t device_claimed;
    // Bytes that this core has claimed.
    uint64_t own_claimed;
    // Bytes that never change.
    uint64_t static_bytes;
    // Bytes of the pool and of arenas.
    uint64_t resident;
    // Bytes of those that nobody uses.
    uint64_t resident_free;
    // Bytes that an attempt to grow has claimed and not published.
    uint64_t growing;
    // Bytes that are never handed out again.
    uint64_t quarantined;
    // Bytes of a page.
    uint64_t block_size;
    // Pages that are installed.
    uint64_t blocks_total;
    // Pages on the free list.
    uint64_t blocks_free;
    // Pages that only cached state holds which may be evicted.
    uint64_t blocks_evictable;
} ictus_memory_t;

// One domain that is short.
typedef struct {
    // Units that have to be free.
    uint64_t need;
    // Units that are free.
    uint64_t free;
    // Units that are installed.
    uint64_t total;
    // Units that can be installed; `UINT64_MAX` is without bound.
    uint64_t max;
    // `ICTUS_DOMAIN_*`.
    uint32_t domain;
    // `ICTUS_LACK_*`.
    uint32_t lack;
} ictus_shortfall_t;

// Why something does not fit now.
typedef struct {
    // The reader's size of this record in bytes; at least 400.
    uint64_t struct_size;
    // Watches exactly the domains that are short; nothing where waiting never helps.
    ictus_ticket_t ticket;
    // The domains that are short; the first `n_short` count.
    ictus_shortfall_t short_of[7];
    // Proof of growth: the ticket's `resized` of the last publication that helped; else 0.
    uint64_t grew;
    // Items of a batch that would have fitted together, from the first one.
    uint32_t fits;
    // `ICTUS_REMEDY_*`.
    uint32_t remedy;
    // How many domains are short.
    uint32_t n_short;
    // Zero.
    uint32_t _pad0;
} ictus_blocked_t;

// Handle of a wait. NULL is none.
typedef ictus_wait *ictus_wait_t;

// What a host may choose when it makes a driver. Zero in a field means its default.
typedef struct {
    // The writer's size of this record in bytes; at least 72.
    uint64_t struct_size;
    // How long the prompts of a tick may take while others decode, in nanoseconds; 0 is 200 ms, `UINT64_MAX` no limit.
    uint64_t tick_target_ns;
    // Waiting time that is worth one level of priority, in nanoseconds; 0 is one second.
    uint64_t ageing_ns;
    // Bytes of the prefix cache that no plan may evict.
    uint64_t protected_cache_bytes;
    // Bit set of `ICTUS_DRIVER_*`.
    uint32_t flags;
    // Requests that run at once, at most 4096; 0 is 64. A model that takes fewer lowers it.
    uint32_t max_lanes;
    // Tokens of one tick, at most 2^20; 0 is 512.
    uint32_t tick_tokens;
    // Requests that may wait; 0 is 1024.
    uint32_t queue_limit;
    // Room for this many tokens is kept for each running request when another one is started; 0 is 64.
    uint32_t reserve_tokens;
    // A cached prefix shorter than this is computed again; 0 is 16.
    uint32_t seed_min_tokens;
    // A request waits for the same prefix of another one when it is this long; 0 is 64, `UINT32_MAX` never waits.
    uint32_t share_min_tokens;
    // Tokens granted to a lane in a tick, at most 4096; 0 is 1.
    uint16_t decode_tokens;
    // Tokens of a replayed tail that a lane feeds in a tick, at most 4096; 0 is 8.
    uint16_t replay_tokens;
    // How far accepted draft tokens may exceed a grant; 0 is 8.
    uint16_t draft_overshoot;
    // Zero; readers ignore it.
    uint16_t _pad0[3];
} ictus_driver_options_t;

// Handle of a driver. NULL is none.
typedef ictus_driver *ictus_driver_t;

// How a lane picks its tokens (T-112 .. T-118).
typedef struct {
    // At most 0 means greedy.
    float temperature;
    // Nucleus mass; 1.0 is off, 0.0 keeps only the top token.
    float top_p;
    // Smallest kept probability relative to the best; 0 is off.
    float min_p;
    // Number of candidates kept; 0 is off.
    uint32_t top_k;
    // Subtracted per occurrence in the penalty window; 0 is off.
    float freq_penalty;
    // Subtracted once for a token in the penalty window; 0 is off.
    float presence_penalty;
    // Divides positive and multiplies other logits of seen tokens; 0 means 1.0, off.
    float repeat_penalty;
    // Bit set of `SAMPLING_FLAG_*`.
    uint32_t flags;
} ictus_sampling_params_t;

// A request. Zero in a field means its default; one of the two prompts is needed.
typedef struct {
    // The writer's size of this record in bytes; at least 200.
    uint64_t struct_size;
    // The prompt as tokens; NULL when it is a text.
    const uint32_t *prompt_tokens;
    // Their number.
    uint64_t n_prompt_tokens;
    // The prompt as UTF-8; NULL when it is tokens.
    const char *prompt_text;
    // Its bytes; it needs no NUL.
    uint64_t prompt_bytes;
    // Most tokens of the answer; 0 is 256.
    uint64_t max_tokens;
    // Position of the first draw; nearby positions give overlapping draws.
    uint64_t rng_counter_base;
    // Ends the request when it has not finished this long after it was submitted, in nanoseconds; 0 is never.
    uint64_t deadline_ns;
    // Texts that end the answer: NUL-terminated, up to 64 of up to 4096 bytes. Neither they nor what follows is text of the answer.
    const char *const *stop_strings;
    // Their number.
    uint64_t n_stop_strings;
    // Tokens that end the answer.
    const uint32_t *stop_tokens;
    // Their number.
    uint64_t n_stop_tokens;
    // Tokens whose logits are changed.
    const uint32_t *bias_tokens;
    // What is added to each.
    const float *bias_values;
    // Their number.
    uint64_t n_bias;
    // JSON schema that shapes the answer, NUL-terminated; NULL is none.
    const char *grammar_schema;
    // Structural tag document that shapes the answer, NUL-terminated; NULL is none.
    const char *grammar_tags;
    // Adapter of the model; 0 is none.
    uint64_t adapter;
    // How tokens are picked: greedily at temperature 0, drawn above it. Its `flags` as in an admit.
    ictus_sampling_params_t params;
    // Grammar of the model that shapes the answer; 0 is none. It serves one unfinished request at a time.
    uint32_t grammar_handle;
    // Speculation strategy by its slot; 0 is none.
    uint32_t strategy_slot;
    // Higher is served sooner; from -32768 to 32767.
    int32_t priority;
    // 0 for no log-probabilities, k + 1 for k alternatives per token, at most 20.
    uint32_t want_logprobs;
    // How a text prompt is encoded and the answer shown (`ICTUS_TEXT_*`).
    uint32_t text_flags;
    // Bit set of `ICTUS_REQUEST_*`.
    uint32_t flags;
} ictus_request_t;

// Something that happened to a request. What the other kinds have is 0.
typedef struct {
    // The reader's size of this record in bytes; at least 144.
    uint64_t struct_size;
    // The request.
    uint64_t request;
    // `ICTUS_EVENT_*`.
    uint32_t kind;
    // Why the request is over (`ICTUS_DRIVER_FINISH_*`).
    uint32_t finish;
    // What the engine said of a request that failed; else 0.
    int32_t status;
    // The stop token, the place of the stop string, or the fault code.
    uint32_t detail;
    // Tokens of this event.
    uint64_t n_tokens;
    // Bytes of text of this event, without the NUL that follows.
    uint64_t text_bytes;
    // Log-probabilities of this event.
    uint64_t n_logprobs;
    // Tokens that came from the prefix cache.
    uint64_t cached_tokens;
    // From submission to its first admission, in nanoseconds; `UINT64_MAX` when it never ran.
    uint64_t queued_ns;
    // From submission to its first token; `UINT64_MAX` when there was none.
    uint64_t first_token_ns;
    // From submission to its end.
    uint64_t total_ns;
    // Tokens of its prompt.
    uint64_t prompt_tokens;
    // Tokens of its answer.
    uint64_t answer_tokens;
    // Prompt tokens that were computed.
    uint64_t prefill_tokens;
    // Tokens of its answer that were fed again after a preemption.
    uint64_t replayed_tokens;
    // Draft tokens proposed.
    uint64_t drafted_tokens;
    // Draft tokens kept.
    uint64_t accepted_tokens;
    // How often it gave its place up.
    uint32_t preemptions;
    // Zero; readers ignore it.
    uint32_t _pad0;
} ictus_driver_event_t;

// Log-probabilities of one emitted token (T-122).
typedef struct {
    // The lane.
    uint64_t lane_tag;
    // Natural logarithm of the probability of the token.
    float logprob;
    // Number of alternatives.
    uint32_t n_top;
    // Their ids, best first.
    uint32_t top_ids[20];
    // Their log-probabilities, descending.
    float top_logprobs[20];
} ictus_lane_logprob_t;

// Handle of an executor. NULL is none.
typedef ictus_executor *ictus_executor_t;

// What an executor is; it never changes. A bound of `UINT64_MAX` is none.
typedef struct {
    // The reader's size of this record in bytes; at least 176.
    uint64_t struct_size;
    // Sequences that can exist at once.
    uint64_t max_sequences;
    // Tokens of one sequence.
    uint64_t max_tokens;
    // Items of one batch.
    uint64_t max_items;
    // Tokens of one batch of several items; a single item is never too wide.
    uint64_t max_batch_tokens;
    // Tokens per block.
    uint64_t block_tokens;
    // Blocks of the pool.
    uint64_t blocks;
    // Bytes that are there whatever is admitted: weights and tables.
    uint64_t static_bytes;
    // Bytes of state per token.
    uint64_t token_bytes;
    // Bytes of state per sequence that do not depend on its length.
    uint64_t sequence_bytes;
    // Bytes of workspace that every batch takes.
    uint64_t workspace_bytes;
    // Bytes of workspace that a batch takes per token.
    uint64_t workspace_token_bytes;
    // Length of a row; ids are below it.
    uint32_t vocab;
    // Width of a key or value element in bits; 0 is unknown.
    uint32_t kv_bits;
    // What is offered: bit `ICTUS_FEATURE_*` of each.
    uint32_t features;
    // Zero.
    uint32_t _pad0;
    // NUL-padded name of the device, at most 31 characters.
    char device[32];
    // NUL-padded name of the architecture, at most 31 characters.
    char architecture[32];
} ictus_executor_info_t;

// How long something took.
typedef struct {
    // Samples of `2^i` to `2^(i + 1)` nanoseconds, shorter ones in the first, longer ones in the last.
    uint64_t counts[48];
    // Sum of all samples in nanoseconds.
    uint64_t total_ns;
} ictus_latency_t;

// What has happened in an executor so far.
typedef struct {
    // The reader's size of this record in bytes; at least 992.
    uint64_t struct_size;
    // What it is doing (`ICTUS_EXECUTOR_STATE_*`).
    uint32_t state;
    // Zero.
    uint32_t _pad0;
    // Counted sequences admitted.
    uint64_t admissions;
    // Calls that were blocked.
    uint64_t blocked;
    // Calls whose demand can never be met.
    uint64_t never;
    // Calls for what is not offered.
    uint64_t unsupported;
    // Calls that were wrong.
    uint64_t bad;
    // Batches that were submitted.
    uint64_t runs;
    // Rows answered, by `ICTUS_WORK_*`.
    uint64_t rows[3];
    // Tokens of chunks that ran.
    uint64_t prefill_tokens;
    // Tokens of decodes and verifications that ran.
    uint64_t decode_tokens;
    // Chunks that were cut short.
    uint64_t narrowings;
    // Growths that were published.
    uint64_t growths;
    // Entries of the cache that left the pool to make room for a batch.
    uint64_t evictions;
    // Items that failed, by `ICTUS_EXECUTOR_FAULT_*`.
    uint64_t faults[4];
    // Rows that held a value that is not finite.
    uint64_t non_finite_rows;
    // Sequences that completed.
    uint64_t completed;
    // Prompt tokens of completed sequences.
    uint64_t prompt_tokens;
    // Output tokens of completed sequences, as their host counted them.
    uint64_t output_tokens;
    // Waits that are parked now.
    uint64_t waiters;
    // Units whose owner was in doubt.
    uint64_t accounting_faults;
    // How long batches took that held a chunk, per row of a chunk.
    ictus_latency_t prefill;
    // How long batches took that held a decode, per row of a decode.
    ictus_latency_t decode;
} ictus_executor_stats_t;

// Why an executor refused a call, which changed nothing.
typedef struct {
    // The reader's size of this record in bytes; at least 424.
    uint64_t struct_size;
    // `ICTUS_REFUSAL_*`; `ICTUS_REFUSAL_NONE` when the call was done, or was refused before it came to the executor.
    uint32_t kind;
    // Of a call that was wrong: how (`ICTUS_BAD_*`).
    uint32_t why;
    // Of a call that was wrong: which item of it, counted from 0.
    uint32_t at;
    // Of a mode that is not offered: which (`ICTUS_FEATURE_*`).
    uint32_t feature;
    // What is short, for the time being or for ever. Its `struct_size` is 0 where nothing is.
    ictus_blocked_t blocked;
} ictus_refusal_t;

// A sequence to be admitted. Its context is the prompt and what is replayed behind it; both are copied.
typedef struct {
    // The writer's size of this record in bytes; at least 72.
    uint64_t struct_size;
    // The prompt as the product counts it; at least one token.
    const uint32_t *prompt;
    // Their number.
    uint64_t n_prompt;
    // Outputs that are computed again after a preemption.
    const uint32_t *replayed;
    // Their number.
    uint64_t n_replayed;
    // Longest total length that the sequence may reach, in tokens.
    uint64_t ceiling;
    // For logs only.
    uint64_t tag;
    // What must be free now, beside what is taken (`ICTUS_FIT_*`).
    uint32_t fit;
    // What a shortage is answered with: `ICTUS_REMEDY_WAIT`, or `ICTUS_REMEDY_RECOMPUTE` for a host that looks for a victim.
    uint32_t pressure;
    // Bit set of `ICTUS_ADMISSION_*`.
    uint32_t flags;
    // Zero; readers ignore it.
    uint32_t _pad0;
} ictus_admission_t;

// Names one incarnation of a sequence of an executor. It is data: one that is closed or of another executor is noticed and refused.
typedef struct {
    // Part of the number of its coordinator; never 0.
    uint32_t core;
    // Its slot, which is used again.
    uint32_t slot;
    // Never used again.
    uint64_t generation;
} ictus_executor_seq_t;

// What a call gave back, and what it took or installed. Amounts are by domain, from `ICTUS_DOMAIN_SLOTS` on.
typedef struct {
    // The reader's size of this record in bytes; at least 216.
    uint64_t struct_size;
    // Units that are free now and were not before.
    uint64_t freed[7];
    // Units that were claimed, or installed.
    uint64_t gained[7];
    // The epochs afterwards; watches the domains that were moved.
    ictus_ticket_t at;
    // Nonzero: a sequence that was closed had begun to decode.
    uint32_t decoding;
    // Nonzero: something is still held, and comes free later.
    uint32_t pending;
} ictus_receipt_t;

// What came of one item.
typedef struct {
    // The sequence.
    ictus_executor_seq_t seq;
    // First token that was committed.
    uint64_t ran_start;
    // Behind the last one; equal to the first when the item failed.
    uint64_t ran_end;
    // Where its tokens or its values begin in the buffer of the call.
    uint64_t first;
    // How many tokens, or rows of logits.
    uint64_t count;
    // `ICTUS_OUT_*`.
    uint32_t kind;
    // Failed claims of a chunk that was narrowed; at least 1 exactly when less ran than was planned.
    uint32_t probes;
    // Of an item that failed: what went wrong (`ICTUS_EXECUTOR_FAULT_*`).
    uint32_t fault;
    // Of an item that failed: what is known of its sequence (`ICTUS_SEQUENCE_*`).
    uint32_t state;
    // Of an item that failed: the runtime's code, where it gave one.
    uint32_t detail;
    // Zero.
    uint32_t _pad0;
} ictus_row_t;

// What a host may choose when it opens a model. Zero in a field means its default.
typedef struct {
    // The writer's size of this record in bytes; at least 80.
    uint64_t struct_size;
    // Where the model runs (`ICTUS_DEVICE_*`).
    uint32_t device;
    // Threads that compute, the caller's among them; at most 256. 0 is one per processor.
    uint32_t threads;
    // Element type of cached keys and values (`ICTUS_KV_*`). 0 is single precision, which rounds nothing, for exact arithmetic
    // and half precision for fast.
    uint32_t kv_type;
    // Tokens per page: a power of two up to 1024; 0 is 16.
    uint32_t page_size_tokens;
    // Longest sequence, at most what the model was trained for; 0 is that, or 8192 when it is more.
    uint32_t context_tokens;
    // Lanes of one decode step, at most 4096; 0 is 64.
    uint32_t max_lanes;
    // Tokens in the page pool, rounded up to whole pages, at most 2^31; 0 is four longest sequences.
    uint64_t pool_tokens;
    // Prompt tokens of one step, at most 2^20; 0 is 512.
    uint32_t prefill_step_tokens;
    // How much is said through `on_log` (`ICTUS_LOG_*`).
    uint32_t log_level;
    // Told how far opening has come, on the opening thread; may be NULL. `total_bytes` is 0 while it is not known. Another answer
    // than 0 breaks off.
    uint32_t (*on_progress)(void *user, uint64_t done_bytes, uint64_t total_bytes);
    // Passed to `on_progress` unchanged.
    void *progress_user;
    // Told what the model has to say, while it opens and afterwards, as with `ictus_model_log`; may be NULL.
    void (*on_log)(void *user, uint32_t level, const char *text);
    // Passed to `on_log` unchanged.
    void *log_user;
    // Bytes that the model may take, weights and all; 0 is no bound. Where `context_tokens` or `pool_tokens` is 0 it follows from the
    // budget; a plan that exceeds the budget all the same is refused.
    uint64_t memory_budget_bytes;
    // Tokens of the pool that cached state may hold when nobody else does; 0 is half of the pool, the pool or more no bound.
    uint64_t cache_tokens;
    // Tokens of cached state that may be kept in host memory when they leave the pool; 0 is none. Each takes there what it took in
    // the pool, which the plan of the model does not count.
    uint64_t cache_export_tokens;
    // Threads of the host that compute in place of the engine's own; NULL is the engine's own. Calls `call(job, index)` once for each
    // index below `calls`, on whichever of its threads, the calling one among them or not, and returns when all these calls have. It is
    // called several times per layer, on the thread that ticks; `calls` is at most `threads`. Leaving a call out, making one twice or
    // after the return makes the tick fatal, never wrong; `job` dies with the model.
    void (*on_parallel)(void *user, uint32_t calls, void (*call)(void *job, uint32_t index), void *job);
    // Passed to `on_parallel` unchanged.
    void *parallel_user;
    // Bytes of state that a tick or `ictus_pump` moves for operations and for entries of the cache that go to host memory, before it goes
    // on; 0 is 4 MiB.
    uint64_t op_slice_bytes;
    // 1 seals exported state with XXH3-64 instead of FNV-1a-64: many times as fast, and read only by engines that take both.
    uint32_t op_fast_checksum;
    // Levels of a grammar's JSON document, at most 64; 0 is that.
    uint32_t grammar_depth;
    // Bytes of a grammar's document; 0 is 1 MiB.
    uint64_t grammar_document_bytes;
    // Work of compiling a grammar, in units that are the same on every machine, about 50 000 a millisecond; 0 is 1 000 000.
    uint64_t grammar_compile_fuel;
    // Work of the lexer for one mask, about 14 000 units a millisecond; 0 is 200 000. A lane that would exceed it faults.
    uint64_t grammar_mask_fuel;
    // Items of the parser for one mask, about 20 000 a millisecond; 0 is 50 000. A lane that would exceed them faults.
    uint32_t grammar_mask_items;
    // States that the lexer of a lane may keep, one or two kilobytes each; 0 is 32 768. A lane that would exceed them faults.
    uint32_t grammar_lexer_states;
    // How products with weights of fewer than 32 bits are computed (`ICTUS_ARITHMETIC_*`). 0 is exact.
    uint32_t arithmetic;
    // Which CUDA device, as the driver counts them from 0.
    uint32_t device_index;
    // NULL is an engine in this process. Else the engine is in a process of its own (Linux), which may crash and is replaced; lanes go on
    // to the same bits. The path of the worker program; an empty text looks for it: what the variable `ICTUS_WORKER` names, or
    // `ictus-worker` beside the library (in its folder, in `../bin`, in the folder above) or beside the program.
    const char *worker;
    // Milliseconds that one tick may take in a worker before that is replaced; 0 is 10 minutes.
    uint32_t worker_timeout_ms;
    // Fresh workers that one call may use up when one dies: the call then answers `ICTUS_ERR_FATAL`, and a later one tries again. 0 is
    // 3; `ICTUS_NO_RESTARTS` never replaces one.
    uint32_t worker_restarts;
    // Several CUDA devices that compute together, as bits: bit 0 is device 0. 0 is `device_index` alone. Results are those of one
    // device; a model has at most as many devices as key and value heads.
    uint64_t device_mask;
    // Instructions of the processor to compute with (`ICTUS_INSTRUCTION_SET_*`); 0 is the best that it has. All but the portable one give
    // the same bits. One that the processor lacks answers `ICTUS_ERR_OP_UNSUPPORTED`; a CUDA device takes none.
    uint32_t instruction_set;
    // Zero; readers ignore it.
    uint32_t _pad0;
} ictus_model_options_t;

// What a host may choose when it makes an executor. Zero in a field means its default.
typedef struct {
    // The writer's size of this record in bytes; at least 88.
    uint64_t struct_size;
    // Bytes of workspace that every batch is charged.
    uint64_t workspace_bytes;
    // Bytes of workspace that a batch is charged per token.
    uint64_t workspace_token_bytes;
    // Bytes of workspace that are installed at first; 0 is without bound.
    uint64_t arena_bytes;
    // Bytes of workspace that can be installed; 0 is `arena_bytes`.
    uint64_t arena_max_bytes;
    // Tokens of one batch of several items; 0 is one longest sequence and an item of each other.
    uint64_t max_batch_tokens;
    // Device bytes that this executor may claim; 0 is without bound.
    uint64_t budget_bytes;
    // Device bytes that all executors of the account may claim together, as this one declares; 0 declares nothing.
    uint64_t ceiling_bytes;
    // The account that its device bytes are counted in; NULL is one of its own.
    ictus_account_t account;
    // Items of one batch; 0 is the model's number of lanes.
    uint32_t max_items;
    // Bit set of `ICTUS_EXECUTOR_*`.
    uint32_t flags;
    // Bytes of host memory for state that leaves; 0 is without bound.
    uint64_t host_export_bytes;
} ictus_executor_options_t;

// Told one line: its level (`ICTUS_LOG_*`) and its text, which is valid for this call only.
//
// It runs on the thread that made the call on the model, and must not call back into that model.
typedef void (*ictus_log_fn)(void *user, uint32_t level, const char *text);

// What an encoded image or sound becomes in a prompt.
typedef struct {
    // Number of placeholder tokens.
    uint32_t n_tokens;
    // The placeholder.
    uint32_t image_token_id;
    // Token before them; 0 is none.
    uint32_t boi_token_id;
    // Token after them; 0 is none.
    uint32_t eoi_token_id;
    // Fingerprint of the preprocessing.
    uint64_t preprocess_fp;
} ictus_media_info_t;

// The bytes that a model takes.
typedef struct {
    // The reader's size of this record in bytes; at least 48.
    uint64_t struct_size;
    // Weights as they are held, once for all engines of the model that live at the same time.
    uint64_t weights_bytes;
    // Keys and values of all pages.
    uint64_t kv_pool_bytes;
    // Activations.
    uint64_t activation_bytes;
    // Free list, reference counts, and the row that tokens are picked from.
    uint64_t table_bytes;
    // All of these.
    uint64_t total_bytes;
} ictus_model_plan_t;

// What a model is.
typedef struct {
    // The reader's size of this record in bytes; at least 40.
    uint64_t struct_size;
    // Number of tokens; ids are below it.
    uint32_t vocab_size;
    // Longest sequence in tokens.
    uint32_t context_tokens;
    // Layers.
    uint32_t layers;
    // Width of a hidden state.
    uint32_t hidden;
    // Token that begins a text; `ICTUS_NO_TOKEN` when there is none.
    uint32_t bos_token;
    // Token that ends a text; `ICTUS_NO_TOKEN` when there is none.
    uint32_t eos_token;
    // Token that ends a turn; `ICTUS_NO_TOKEN` when there is none.
    uint32_t eot_token;
    // Nonzero: the model wants `bos_token` before a text.
    uint8_t adds_bos;
    // Nonzero: the model wants `eos_token` behind a text.
    uint8_t adds_eos;
    // Nonzero: the model has a chat template, and it compiles.
    uint8_t has_chat_template;
    // Zero; readers ignore it.
    uint8_t _pad0;
} ictus_model_info_t;

// What a model recommends for sampling. It is never applied unasked.
typedef struct {
    // The reader's size of this record in bytes; at least 40.
    uint64_t struct_size;
    // Which of the fields the model claims (`ICTUS_CLAIMS_*`); the others are 0.
    uint32_t claimed;
    // Temperature.
    float temperature;
    // Nucleus mass.
    float top_p;
    // Relative probability floor.
    float min_p;
    // Repetition penalty.
    float repetition_penalty;
    // Number of candidates.
    uint32_t top_k;
    // Nonzero: to sample at all.
    uint8_t do_sample;
    // Zero; readers ignore it.
    uint8_t _pad0[7];
} ictus_claimed_sampling_t;

// Handle of a state operation; never reused, 0 is none.
typedef uint64_t ictus_op_t;

// Where a state operation stands.
typedef struct {
    // Size of this record in bytes.
    uint64_t struct_size;
    // `OP_*`.
    uint8_t state;
    // Zero; readers ignore it.
    uint8_t _pad0[3];
    // A status as `u32` when failed, else 0.
    uint32_t error;
    // Bytes moved so far; never falls.
    uint64_t bytes_moved;
} ictus_op_status_t;

// A shared-memory ring to attach (E-40 .. E-44).
typedef struct {
    // The writer's size of this record in bytes.
    uint64_t struct_size;
    // `RING_ID_*`.
    uint32_t ring_id;
    // `RING_KIND_*`.
    uint32_t kind;
    // `RING_ROLE_*`, from the engine's side.
    uint32_t role;
    // Number of slots.
    uint32_t slots;
    // Bytes of one slot with its header.
    uint32_t slot_bytes;
    // Zero; readers ignore it.
    uint32_t _pad0;
    // First byte of the segment; 8-byte aligned.
    void *base;
    // Length of the segment in bytes.
    uint64_t len;
} ictus_ring_desc_t;

// How large the rings are that a model keeps. Zero in a field means its default.
typedef struct {
    // The writer's size of this record in bytes; at least 32.
    uint64_t struct_size;
    // Slots of each token ring; 0 is 64. A slot is written anew after so many prompts or emits.
    uint32_t token_slots;
    // Most tokens of a prompt; 0 is 8192.
    uint32_t prompt_tokens;
    // Most tokens of an emit, at least the largest grant; 0 is 1024.
    uint32_t emit_tokens;
    // Slots of the logits ring, which HOST lanes need: one for each lane whose row is pending. 0 is none.
    uint32_t logits_slots;
    // Logits of a row: the size of the vocabulary. Needed with `logits_slots`.
    uint32_t row_logits;
    // Zero; readers ignore it.
    uint32_t _pad0;
} ictus_ring_shape_t;

// Reference to one logits row; its generation is the nonce of the row.
typedef struct {
    // Ring the slot belongs to.
    uint32_t ring_id;
    // Slot number.
    uint32_t index;
    // Generation the slot must carry; also the nonce a commit names.
    uint64_t generation;
} ictus_ring_ref_t;

// Half-open range `[start, end)` in tokens; blob kinds use `start == end == boundary`.
typedef struct {
    // First token.
    uint64_t start;
    // One past the last token.
    uint64_t end;
} ictus_token_range_t;

// Caller-owned host memory.
typedef struct {
    // First byte.
    void *ptr;
    // Length in bytes.
    uint64_t len;
} ictus_buf_t;

// A speculation strategy to register (R-50 .. R-57).
typedef struct {
    // The writer's size of this record in bytes.
    uint64_t struct_size;
    // NUL-terminated id.
    const char *strategy_id;
    // NUL-terminated version.
    const char *impl_version;
    // Hash of the implementation.
    uint8_t impl_hash[32];
    // Hash of the configuration.
    uint8_t config_hash[32];
    // ictus_artifact_t records.
    ictus_array_t artifacts;
    // ictus_tap_spec_t records.
    ictus_array_t taps;
    // ictus_capability_req_t records.
    ictus_array_t capabilities;
    // `u64` pointers to NUL-terminated architecture names.
    ictus_array_t target_archs;
    // Bit set of kernel capabilities.
    uint32_t kernel_caps_required;
    // Zero; readers ignore it.
    uint32_t _pad0;
    // Estimated state in bytes.
    uint64_t est_state_bytes;
    // `EXACTNESS_*` claimed; recorded, never trusted.
    uint8_t claimed_exactness;
    // Zero; readers ignore it.
    uint8_t _pad1[3];
    // Version of the draw contract.
    uint32_t rng_contract_version;
} ictus_strategy_registration_t;

// What a registration was given.
typedef struct {
    // Size of this record in bytes.
    uint64_t struct_size;
    // Slot to name in admits, not 0.
    uint32_t strategy_slot;
    // Zero; readers ignore it.
    uint32_t _pad0;
    // ictus_exactness_cert_t records.
    ictus_array_t certificates;
    // ictus_state_space_desc_t records.
    ictus_array_t state_spaces;
    // Bytes reserved for it.
    uint64_t reserved_bytes;
} ictus_strategy_grant_t;

// One message of a chat.
typedef struct {
    // Who speaks: `system`, `user`, `assistant`, or what else the template knows; NUL-terminated.
    const char *role;
    // What they say; NUL-terminated.
    const char *content;
} ictus_chat_message_t;

// Everything the host asks of one tick.
typedef struct {
    // The writer's size of this record in bytes; at least 152.
    uint64_t struct_size;
    // Must exceed the last accepted one (T-18).
    uint64_t plan_seq;
    // Bit set of `TICK_*` flags; unknown bits are ignored.
    uint32_t flags;
    // Zero; readers ignore it.
    uint32_t _pad0;
    // Most prompt tokens to run in this tick.
    uint32_t prefill_token_budget;
    // Most decode records this plan may carry.
    uint32_t max_decode_lanes;
    // ictus_lane_admit_t records.
    ictus_array_t admits;
    // ictus_lane_commit_t records.
    ictus_array_t commits;
    // ictus_lane_prefill_t records.
    ictus_array_t prefills;
    // ictus_lane_decode_t records.
    ictus_array_t decodes;
    // ictus_lane_retire_t records.
    ictus_array_t retires;
    // What may be given up.
    ictus_shed_policy_t shed_policy;
    // Called with every token as it is picked, on the ticking thread (A-37); may be null.
    void (*on_partial_emit)(void *user, uint64_t lane_tag, const uint32_t *tokens, uint32_t n_tokens);
    // Passed to `on_partial_emit` unchanged.
    void *partial_emit_user;
} ictus_tick_plan_t;

// Everything given up in one tick; the counters equal the entries.
typedef struct {
    // Number of prefill entries.
    uint32_t prefill_chunks_dropped;
    // Number of eviction entries.
    uint32_t evictions_performed;
    // Bytes of the eviction entries.
    uint64_t bytes_evicted;
    // ictus_shed_entry_t records.
    ictus_array_t entries;
} ictus_shed_report_t;

// Where the time of a tick went; the only nondeterministic part of the events.
typedef struct {
    // The whole call.
    uint64_t wall_ns;
    // The prefill phase.
    uint64_t prefill_ns;
    // The decode phase.
    uint64_t decode_ns;
    // Device graphs replayed.
    uint32_t graph_hits;
    // Parts of steps that might have been a device graph and had none.
    uint32_t graph_misses;
} ictus_tick_timings_t;

// Memory at the end of a tick.
typedef struct {
    // Bytes of model state in the pool.
    uint64_t allocated_bytes;
    // Bytes of exported cache entries, and of operations' outputs that nobody has taken yet.
    uint64_t host_retained_bytes;
    // Pages in the pool; 0 is unbounded.
    uint64_t pool_blocks_total;
    // Pages in use.
    uint64_t pool_blocks_used;
    // Bytes of unpinned cache entries in the pool.
    uint64_t pool_bytes_evictable;
    // 0.
    uint64_t tentative_bytes;
} ictus_mem_counters_t;

// Everything the engine answers to one tick.
typedef struct {
    // Size of this record in bytes.
    uint64_t struct_size;
    // The number of the plan.
    uint64_t plan_seq;
    // `TICK_*` status.
    uint32_t tick_status;
    // Zero; readers ignore it.
    uint32_t _pad0;
    // ictus_admit_result_t records, one per admit in plan order.
    ictus_array_t admit_results;
    // ictus_lane_emit_t records, one per decode in plan order.
    ictus_array_t emits;
    // ictus_lane_fault_t records.
    ictus_array_t faults;
    // What was given up.
    ictus_shed_report_t shed;
    // ictus_op_complete_t records.
    ictus_array_t op_completions;
    // Where the time went.
    ictus_tick_timings_t timings;
    // Memory at the end of the tick.
    ictus_mem_counters_t mem;
    // ictus_lane_logprob_t records in emission order.
    ictus_array_t logprobs;
} ictus_tick_events_t;

// Counts of one lane since it was admitted.
typedef struct {
    // The reader's size of this record in bytes; at least 88.
    uint64_t struct_size;
    // Prompt tokens that were fed, but for those of the replayed tail.
    uint64_t prefill_tokens;
    // Prompt tokens that a seed brought in: nothing was fed for them.
    uint64_t seeded_tokens;
    // Tokens of the replayed tail that were fed.
    uint64_t replayed_tokens;
    // Produced tokens that were fed, rejected drafts not counted.
    uint64_t decoded_tokens;
    // Steps that were asked for the lane's next token or row.
    uint64_t answered_steps;
    // Tokens that were drafted.
    uint64_t draft_proposed;
    // Drafted tokens that were kept.
    uint64_t draft_accepted;
    // Time that drafting took.
    uint64_t draft_ns;
    // Pages that its sequence holds now, shared ones included.
    uint64_t pages;
    // Pages that were copied for it because somebody else held them too.
    uint64_t page_copies;
} ictus_lane_cost_t;

// Starts a lane.
typedef struct {
    // The host's name for the lane; opaque, 0 is an ordinary tag.
    uint64_t lane_tag;
    // The prompt, in the token-in ring.
    ictus_token_ref_t prompt;
    // Seed lease to start from; 0 is a cold start.
    uint64_t seed_handle;
    // Sampling mode (`SAMPLING_*`).
    uint32_t sampling;
    // Logit bias to add; 0 is none.
    uint32_t logit_bias_handle;
    // Sampling parameters.
    ictus_sampling_params_t params;
    // Position of the first draw (T-119).
    uint64_t rng_counter_base;
    // Grammar that masks the tokens; 0 is none.
    uint32_t grammar_handle;
    // Speculation strategy; 0 is none.
    uint32_t strategy_slot;
    // `DETERMINISM_*`.
    uint8_t determinism_class;
    // Least `EXACTNESS_*` accepted from a strategy.
    uint8_t minimum_exactness;
    // Nonzero: run without a certificate rather than be rejected.
    uint8_t allow_approximate;
    // 0 for none, k + 1 for k alternatives per token (T-122).
    uint8_t want_logprobs;
    // Certificate the strategy must hold; 0 is any.
    uint32_t required_cert_id;
    // Hash of the sampler of a HOST lane; zero is unnamed.
    uint8_t host_sampler_identity[32];
    // Trailing prompt tokens the grammar has to consume first (T-32).
    uint32_t grammar_replay;
    // Trailing prompt tokens to feed one by one as they were generated (T-97).
    uint32_t decode_replay;
} ictus_lane_admit_t;

// The token the host sampled for a HOST lane.
typedef struct {
    // The lane.
    uint64_t lane_tag;
    // The token.
    uint32_t token_id;
    // Zero; readers ignore it.
    uint32_t _pad0;
    // Generation of the logits row it was drawn from.
    uint64_t logits_nonce;
} ictus_lane_commit_t;

// Runs a chunk of a prompt.
typedef struct {
    // The lane.
    uint64_t lane_tag;
    // First prompt token; must be where the lane stands.
    uint32_t token_offset;
    // Number of prompt tokens.
    uint32_t token_count;
} ictus_lane_prefill_t;

// Grants a lane new tokens.
typedef struct {
    // The lane.
    uint64_t lane_tag;
    // Tokens granted in this tick.
    uint16_t max_new_tokens;
    // How far accepted draft tokens may exceed the grant.
    uint16_t overshoot;
    // Zero; readers ignore it.
    uint32_t _pad1;
} ictus_lane_decode_t;

// Ends a lane.
typedef struct {
    // The lane.
    uint64_t lane_tag;
    // Nonzero: keep its state in the prefix cache.
    uint8_t publish_to_cache;
    // Zero; readers ignore it.
    uint8_t _pad0[7];
} ictus_lane_retire_t;

// What became of one admit.
typedef struct {
    // The lane.
    uint64_t lane_tag;
    // `ADMIT_*`.
    uint32_t status;
    // A status as `u32` when rejected, else 0.
    uint32_t reject_code;
    // Certificate in effect; 0 is none.
    uint32_t cert_id;
    // `EXACTNESS_*` granted.
    uint8_t granted_class;
    // Zero; readers ignore it.
    uint8_t _pad0[3];
} ictus_admit_result_t;

// Drafts of one lane in one tick.
typedef struct {
    // Draft tokens proposed.
    uint32_t proposed;
    // Draft tokens kept.
    uint32_t accepted;
    // Certificate the drafts ran under; 0 when none was drafted.
    uint32_t cert_id_in_effect;
    // Zero; readers ignore it.
    uint32_t _pad0;
} ictus_spec_stats_t;

// What one decode record produced.
typedef struct {
    // The lane.
    uint64_t lane_tag;
    // The tokens, in the token-out ring.
    ictus_token_ref_t token_ref;
    // Number of tokens.
    uint32_t n_tokens;
    // `FINISH_*`.
    uint32_t finish;
    // The pending row of a HOST lane; zero for the others.
    ictus_ring_ref_t logits_row;
    // Draft statistics.
    ictus_spec_stats_t spec;
} ictus_lane_emit_t;

// The failure of one lane.
typedef struct {
    // The lane.
    uint64_t lane_tag;
    // `FAULT_*`.
    uint32_t code;
    // Zero; readers ignore it.
    uint32_t _pad0;
    // 0 unless a code defines it.
    uint64_t detail;
} ictus_lane_fault_t;

// One thing given up.
typedef struct {
    // The lane it belonged to; 0 when it was not the state of a lane.
    uint64_t lane_tag;
    // `SHED_*`.
    uint32_t kind;
    // 0.
    uint32_t reason;
    // Bytes given up.
    uint64_t bytes;
    // Tokens given up.
    uint64_t tokens;
} ictus_shed_entry_t;

// A state operation that reached a terminal state.
typedef struct {
    // The operation.
    uint64_t op;
    // `OP_*`, a terminal one.
    uint8_t state;
    // Zero; readers ignore it.
    uint8_t _pad0[3];
    // A status as `u32` when failed, else 0.
    uint32_t error;
    // Bytes written or read.
    uint64_t bytes_moved;
} ictus_op_complete_t;

// One kind of model state.
typedef struct {
    // Its id.
    uint32_t space_id;
    // `SPACE_KIND_*`.
    uint32_t kind;
    // Changes when the bytes of the state change meaning.
    uint64_t version_tag;
    // Bytes per token of a paged space.
    uint64_t bytes_per_token;
    // Bytes of a blob space.
    uint64_t blob_bytes;
    // Tokens per page.
    uint32_t page_size_tokens;
    // 0 unspecified, 1 reference count, 2 copy.
    uint32_t fork_cost_class;
    // Bytes copied by a fork.
    uint64_t fork_cost_bytes;
    // 0 none, 1 tool boundary, 2 interval.
    uint32_t snapshot_cadence;
    // Interval of cadence 2.
    uint32_t snapshot_interval_tokens;
    // 0.
    uint32_t placement;
    // Bit set of `SPACE_FLAG_*`.
    uint32_t flags;
    // NUL-padded name, at most 31 characters.
    char name[32];
} ictus_state_space_desc_t;

// A file a strategy brings.
typedef struct {
    // `ARTIFACT_*`.
    uint32_t role;
    // Zero; readers ignore it.
    uint32_t _pad0;
    // Hash of its bytes.
    uint8_t content_hash[32];
    // Its size in bytes.
    uint64_t byte_size;
    // NUL-terminated path.
    const char *load_path;
} ictus_artifact_t;

// A hidden state a strategy wants to read.
typedef struct {
    // Layer index.
    uint32_t layer;
    // `TAP_TENSOR_*`.
    uint32_t tensor;
    // Element type.
    uint32_t dtype;
    // Layout.
    uint32_t layout;
} ictus_tap_spec_t;

// A capability a strategy needs.
typedef struct {
    // `STRATEGY_CAP_*`.
    uint32_t kind_id;
    // Zero; readers ignore it.
    uint32_t _pad0;
    // Array defined by the kind.
    ictus_array_t params;
} ictus_capability_req_t;

// What a strategy is certified for.
typedef struct {
    // Its id, not 0.
    uint32_t cert_id;
    // `EXACTNESS_*`.
    uint8_t exactness;
    // Bit set of `CERT_MODE_*`.
    uint8_t sampling_modes;
    // Nonzero: lanes with a grammar.
    uint8_t grammar_allowed;
    // Nonzero: lanes with a bias.
    uint8_t logit_bias_allowed;
    // `CERT_DOMAIN_*`.
    uint32_t param_domain;
    // Class of the verification step.
    uint32_t verification_shape_class;
    // 32-byte hashes; empty is never for HOST lanes.
    ictus_array_t admissible_host_identities;
} ictus_exactness_cert_t;

// A cached prefix a lane could start from.
typedef struct {
    // Its length in tokens.
    uint64_t prefix_len;
    // What it was computed from.
    uint8_t provenance_digest[32];
    // Bit set of `TAINT_*`.
    uint32_t taint_bits;
    // `TIER_*`.
    uint8_t resident_tier;
    // Zero; readers ignore it.
    uint8_t _pad0[3];
} ictus_match_candidate_t;

// Candidates of one space.
typedef struct {
    // The space.
    uint32_t space_id;
    // Zero; readers ignore it.
    uint32_t _pad0;
    // ictus_match_candidate_t records, longest first.
    ictus_array_t candidates;
} ictus_space_match_t;

// Header of every exported state.
typedef struct {
    // `STATE_ENVELOPE_MAGIC`.
    uint64_t magic;
    // 1.
    uint32_t envelope_version;
    // `SPACE_KIND_*`.
    uint32_t space_kind;
    // Runtime, version and weights it belongs to.
    uint8_t compat_identity[32];
    // Version of the space.
    uint64_t version_tag;
    // What it was computed from.
    uint8_t provenance_digest[32];
    // Bit set of `TAINT_*`.
    uint32_t taint_bits;
    // Zero; readers ignore it.
    uint32_t _pad0;
    // Tokens it covers.
    ictus_token_range_t range;
    // `ENCODING_*`.
    uint8_t encoding;
    // Zero; readers ignore it.
    uint8_t _pad1[3];
    // `CHECKSUM_*`; 0 is never valid.
    uint32_t checksum_kind;
    // Bytes after this header.
    uint64_t payload_len;
    // Checksum of the payload.
    uint64_t content_checksum;
} ictus_state_envelope_t;

// Names one cache entry.
typedef struct {
    // Runtime, version and weights.
    uint8_t compat_key[32];
    // Tokens and context.
    uint8_t provenance_digest[32];
} ictus_cache_key_t;

// Receives the tokens of a lane as they are picked (A-37).
//
// `tokens` points at `n_tokens` ids and is valid for the call only. The callee must not call the engine.
//
// # Safety
// Whoever puts a callback into a plan promises that, while that plan runs, it may be called on the ticking thread with the
// `user` of the plan, any tag, and a span of readable ids; and that it does not unwind.
typedef void (*ictus_partial_emit_fn)(void *user, uint64_t lane_tag, const uint32_t *tokens, uint32_t n_tokens);

// What is wanted of a row. All zero: the plain greedy token.
typedef struct {
    // The writer's size of this record in bytes; at least 48.
    uint64_t struct_size;
    // A byte per id: not 0 allows it; ids at or past the end are forbidden. NULL allows all. Greedy only.
    const uint8_t *mask;
    // Its bytes.
    uint64_t n_mask;
    // Ids that are penalised; one that is named twice counts once. Greedy only.
    const uint32_t *penalised;
    // Their number.
    uint64_t n_penalised;
    // Divides values above 0 and multiplies the others; finite and above 0. 0 means 1, which changes nothing.
    float penalty;
    // `ICTUS_LOGITS_*`.
    uint32_t kind;
} ictus_logits_t;

// One item of a batch.
typedef struct {
    // The sequence.
    ictus_executor_seq_t seq;
    // Its frontier: where the chunk, the token or the tokens start.
    uint64_t start;
    // Tokens: of the chunk; 1 of a decode; of a verification.
    uint64_t count;
    // Tokens of the context; prefill only.
    uint64_t total;
    // The tokens that are decoded or verified; a prefill has its context.
    const uint32_t *tokens;
    // What is wanted of its rows; NULL is the plain greedy token. A prefill that does not end its context yields none.
    const ictus_logits_t *logits;
    // `ICTUS_WORK_*`.
    uint32_t kind;
    // Nonzero: all of a chunk or none; it is not narrowed.
    uint32_t whole;
} ictus_work_t;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Makes an account of a device with so many bytes, for executors that are made with it in their options.
//
// Owner: `*account` is the host's, which releases it with `ictus_account_free`, before or after the executors that count in it.
// Threads: any. Codes: `ICTUS_REJECT_BAD_STRUCT`.
ictus_status ictus_account_create(uint64_t capacity_bytes,
                                  ictus_account_t *account);

// Bytes that all executors of the account have claimed, and that they may claim together: the smallest ceiling of a live one.
//
// Threads: any. Codes: `ICTUS_ERR_UNKNOWN_HANDLE`, `ICTUS_REJECT_BAD_STRUCT`.
ictus_status ictus_account_level(ictus_account_t account,
                                 uint64_t *claimed_bytes,
                                 uint64_t *usable_bytes);

// Releases an account. Executors that count in it go on to do so.
//
// Threads: any. Codes: `ICTUS_ERR_UNKNOWN_HANDLE` (NULL, or released before).
ictus_status ictus_account_free(ictus_account_t account);

// Loads a LoRA adapter: a PEFT directory, its `adapter_model.safetensors`, or a GGUF file (NUL-terminated path).
//
// `*adapter`: its handle, not 0. The same content gives the same handle again; it is unloaded as often as it was loaded. The file is
// not needed afterwards.
// Owner: the host, which gives it back with `ictus_adapter_unload`. Threads: any; one at a time.
// Codes: `ICTUS_ERR_UNKNOWN_HANDLE` (cannot be read), `ICTUS_REJECT_BAD_STRUCT` (broken, or not for this model),
// `ICTUS_ERR_OP_UNSUPPORTED` (a variant or a matrix that is not computed, or an engine without adapters), `ICTUS_NEEDS_REPLAN` (no
// memory). The last error says where. Nothing is kept then.
ictus_status ictus_adapter_load(ictus_model_t model,
                                const char *path,
                                uint64_t *adapter);

// Takes back one load of an adapter. After the last one no new lane gets it: it is bound to no tag and is no default. Lanes, sequences and
// cached state that have it keep it; its memory is free when they are gone.
//
// Threads: any; one at a time. Codes: `ICTUS_ERR_UNKNOWN_HANDLE`, `ICTUS_ERR_OP_UNSUPPORTED`. Nothing changes then.
ictus_status ictus_adapter_unload(ictus_model_t model,
                                  uint64_t adapter);

// Gives the next lane that is admitted under a tag an adapter; 0 takes the word back. A refused plan uses no word up.
//
// Threads: any; one at a time. Codes: `ICTUS_ERR_UNKNOWN_HANDLE`, `ICTUS_ERR_OP_UNSUPPORTED`. Nothing changes then.
ictus_status ictus_adapter_bind(ictus_model_t model, uint64_t lane_tag, uint64_t adapter);

// Bytes that adapters take now, beyond the plan of the model: those that are loaded, those that a lane, a sequence or a cached state still carries,
// and the rows to compute with them, which stay once there was one.
//
// Threads: any; one at a time. Codes: `ICTUS_ERR_UNKNOWN_HANDLE` (model).
ictus_status ictus_adapter_bytes(ictus_model_t model,
                                 uint64_t *bytes);

// Identity of an adapter, 32 bytes: a digest of what it computes, the same for every file that says the same.
//
// Threads: any; one at a time. Codes: `ICTUS_ERR_UNKNOWN_HANDLE`.
ictus_status ictus_adapter_digest(ictus_model_t model, uint64_t adapter, uint8_t *digest);

// Says that a bare, empty sequence will hold state of an adapter, so that a restore can bring it in; 0 is the model alone.
//
// Threads: any; one at a time. Codes: `ICTUS_ERR_UNKNOWN_HANDLE` (sequence, adapter), `ICTUS_EBUSY` (a lane's, leased, or not empty),
// `ICTUS_ERR_OP_UNSUPPORTED`. Nothing changes then.
ictus_status ictus_tick_sequence_adapt(ictus_model_t model,
                                       ictus_sequence_t sequence,
                                       uint64_t adapter);

// As `ictus_space_match`, among the state of one adapter; 0 is the model alone.
//
// Codes: as there, and `ICTUS_ERR_UNKNOWN_HANDLE` (adapter).
ictus_status ictus_space_match_adapted(ictus_model_t model,
                                       uint32_t space_id,
                                       ictus_token_ref_t span,
                                       ictus_array_t media_hashes,
                                       uint64_t adapter,
                                       const ictus_match_result_t **result);

// As `ictus_seed_acquire`, among the state of one adapter; 0 is the model alone. The lane that is admitted with the lease must have the
// same adapter, else its admit is `ICTUS_REJECT_STALE_SEED`.
//
// Codes: as there, and `ICTUS_ERR_UNKNOWN_HANDLE` (adapter).
ictus_status ictus_seed_acquire_adapted(ictus_model_t model,
                                        ictus_token_ref_t span,
                                        uint64_t prefix_len,
                                        uint8_t determinism_class,
                                        uint64_t adapter,
                                        uint64_t *lease);

// Loads an adapter, as `ictus_adapter_load`, and makes it the default in place of the one before: lanes admitted later have it, unless
// their tag is bound to another.
//
// Threads: any; one at a time. Codes: as there. The default before stays then.
ictus_status ictus_lora_load(ictus_model_t model,
                             const char *path);

// Ends the default adapter and unloads it; lanes that have it keep it.
//
// Threads: any; one at a time. Codes: `ICTUS_ERR_UNKNOWN_HANDLE` (there is none), `ICTUS_ERR_OP_UNSUPPORTED`.
ictus_status ictus_lora_unload(ictus_model_t model);

// Evicts cached state until `target_bytes` of the pool are free of it, within the policy's classes, quota and cap.
//
// `*freed_bytes`: what was freed, possibly less. Victim lanes are checked and not acted on.
// Threads: any; one at a time. Codes: the statuses of arrays (victim lanes). Nothing is evicted then.
ictus_status ictus_cache_evict(ictus_model_t model,
                               const ictus_shed_policy_t *policy,
                               uint64_t target_bytes,
                               uint64_t *freed_bytes);

// Drops named cache entries; `keys` is an array of `ictus_cache_key_t`. A key that names no entry is fine.
//
// Threads: any; one at a time. Codes: `ICTUS_ERR_IDENTITY_MISMATCH` (a key of another model), the statuses of arrays,
// `ICTUS_ERR_OP_UNSUPPORTED`. Nothing is dropped then.
ictus_status ictus_cache_evict_entries(ictus_model_t model, ictus_array_t keys);

// Drops the cache entries with exactly these tokens; that there are none is fine.
//
// Threads: any; one at a time. Codes: `ICTUS_ERR_OP_UNSUPPORTED`. Nothing is dropped then.
ictus_status ictus_unpublish(ictus_model_t model, const uint32_t *tokens, uint32_t n_tokens);

// The epochs of a model or an executor now; the ticket watches every domain.
//
// Threads: any, also while another one ticks or runs. Codes: `ICTUS_REJECT_BAD_STRUCT`, `ICTUS_ERR_OP_UNSUPPORTED` (the engine counts elsewhere).
ictus_status ictus_capacity_now(ictus_capacity_t of,
                                ictus_ticket_t *ticket);

// The level of memory, from one moment. Set `memory->struct_size` before the call.
//
// Threads: any, also while another one ticks or runs. Codes: `ICTUS_REJECT_BAD_STRUCT`, `ICTUS_ERR_OP_UNSUPPORTED`.
ictus_status ictus_capacity_memory(ictus_capacity_t of, ictus_memory_t *memory);

// Why the last plan that was refused with `ICTUS_NEEDS_REPLAN` lacked room. Set `blocked->struct_size` before the call.
//
// Threads: any; one at a time. Codes: `ICTUS_REJECT_BAD_STRUCT`, `ICTUS_ERR_UNKNOWN_HANDLE` (no plan lacked room, or one has found it
// since).
ictus_status ictus_last_blocked(ictus_model_t model,
                                ictus_blocked_t *blocked);

// Whether a domain that the ticket watches has moved since: `*changed` is 1 or 0.
//
// Threads: any, also while another one ticks or runs. Codes: `ICTUS_REJECT_BAD_STRUCT`, `ICTUS_REJECT_BOUNDS` (no ticket),
// `ICTUS_ERR_IDENTITY_MISMATCH` (of another one), `ICTUS_ERR_FATAL` (an epoch is lower than what was seen), `ICTUS_ERR_OP_UNSUPPORTED`.
ictus_status ictus_capacity_changed(ictus_capacity_t of,
                                    const ictus_ticket_t *ticket,
                                    uint32_t *changed);

// A ticket that watches what either watches; of each domain the older observation counts.
//
// Threads: any. Codes: `ICTUS_REJECT_BAD_STRUCT`, `ICTUS_REJECT_BOUNDS` (no ticket), `ICTUS_ERR_IDENTITY_MISMATCH` (of two coordinators).
ictus_status ictus_ticket_union(const ictus_ticket_t *a,
                                const ictus_ticket_t *b,
                                ictus_ticket_t *both);

// Waits until a domain that the ticket watches has moved, or for `timeout_ns`; `UINT64_MAX` waits without limit.
//
// `*woken` is 1 when there is news, and `*fresh` the ticket to go on with; 0 when the time is over, and `*fresh` is not written. News grant
// nothing: ask again. It holds no lock: another thread ticks meanwhile.
// Threads: any. Codes: `ICTUS_REJECT_BAD_STRUCT`, `ICTUS_REJECT_BOUNDS` (no ticket), `ICTUS_REJECT_ILLEGAL_COMBINATION` (it watches nothing),
// `ICTUS_ERR_IDENTITY_MISMATCH` (of another one), `ICTUS_ERR_UNKNOWN_HANDLE` (it was released or shut down, or broke),
// `ICTUS_ERR_FATAL` (an epoch is lower than what was seen), `ICTUS_ERR_OP_UNSUPPORTED`.
ictus_status ictus_capacity_wait(ictus_capacity_t of,
                                 const ictus_ticket_t *ticket,
                                 uint64_t timeout_ns,
                                 ictus_ticket_t *fresh,
                                 uint32_t *woken);

// Begins to wait, and gives a descriptor that `poll` and its kin report as readable or hung up when there is news.
//
// Owner: `*wait` is the host's, which ends it with `ictus_capacity_wait_end`; the descriptor stays the library's, is valid until then, and is
// only polled. A process that is forked without `exec` delays the news until it ends.
// Threads: any, also while another one ticks or runs. Codes: those of `ictus_capacity_wait`; `ICTUS_NEEDS_REPLAN` (no descriptor is left).
// There is no wait then.
ictus_status ictus_capacity_wait_begin(ictus_capacity_t of,
                                       const ictus_ticket_t *ticket,
                                       ictus_wait_t *wait,
                                       int32_t *descriptor);

// Ends a wait, whether or not there is news: `*woken` is 1 when there is, and `*fresh` the ticket to go on with; else 0, and `*fresh` is not
// written. `fresh` and `woken` may be NULL, both, for a wait that is given up.
//
// Threads: any. Codes: `ICTUS_ERR_UNKNOWN_HANDLE` (no such wait: nothing ended; or the model was released or broke: it has ended),
// `ICTUS_REJECT_BAD_STRUCT` (one of the two is NULL: nothing ended), `ICTUS_ERR_FATAL` (it has ended).
ictus_status ictus_capacity_wait_end(ictus_wait_t wait,
                                     ictus_ticket_t *fresh,
                                     uint32_t *woken);

// Makes a driver of a model: from now on it alone ticks the model, and `ictus_tick` on it answers `ICTUS_EBUSY`.
//
// `options` may be NULL: all defaults. With `ICTUS_DRIVER_THREAD` it has a thread of its own, which sleeps while there is nothing to do;
// without, it works only inside `ictus_driver_step`. Other calls on the model go on to work, between its ticks.
// Owner: `*driver` is the host's, which releases it with `ictus_driver_destroy`, before or after the model. Threads: any.
// Codes: `ICTUS_ERR_UNKNOWN_HANDLE` (model), `ICTUS_REJECT_BOUNDS` (an option), `ICTUS_EBUSY` (the model has a driver),
// `ICTUS_NEEDS_REPLAN` (no thread could be started). No driver is made then.
ictus_status ictus_driver_create(ictus_model_t model,
                                 const ictus_driver_options_t *options,
                                 ictus_driver_t *driver);

// Releases a driver: its requests end, what they hold in the model is given back, its thread ends. Events that were not read are lost.
//
// It waits for a running tick. Codes: `ICTUS_ERR_UNKNOWN_HANDLE` (NULL, or released before), `ICTUS_EBUSY` (called from a callback of
// its model, or while another call is at work on it; it lives on).
ictus_status ictus_driver_destroy(ictus_driver_t driver);

// Hands a request to a driver. What it says comes through `ictus_driver_next_event`.
//
// Owner: `*request` is a number, from 1 and never reused; it needs no release. All memory of `source` is read during the call only.
// Threads: any; with a thread, also while others submit.
// Codes: `ICTUS_EBUSY` (the queue is full, or another call is at work on a driver without a thread), `ICTUS_REJECT_BAD_STRUCT` (none or
// both of the prompts, both grammars, a text that is not UTF-8), `ICTUS_REJECT_BOUNDS` (a number, a flag, a token, or a NaN),
// `ICTUS_REJECT_BUDGET` (the prompt is longer than the context), `ICTUS_REJECT_ILLEGAL_COMBINATION` (an empty prompt),
// `ICTUS_ERR_OP_UNSUPPORTED` (a text, and the model has no tokenizer), `ICTUS_ERR_FATAL` (the model is broken or released). Nothing is
// kept then. What only the engine can judge (a grammar, an adapter) ends the request with an event.
ictus_status ictus_driver_submit(ictus_driver_t driver,
                                 const ictus_request_t *source,
                                 uint64_t *request);

// Ends a request; its last event says so. Tokens that are on their way still come.
//
// Threads: as `ictus_driver_submit`. Codes: `ICTUS_ERR_UNKNOWN_HANDLE` (the driver, or no such request any more), `ICTUS_EBUSY`.
ictus_status ictus_driver_cancel(ictus_driver_t driver,
                                 uint64_t request);

// Makes one plan and ticks, on this thread. `*progress` is one of `ICTUS_DRIVER_IDLE`, `ICTUS_DRIVER_WORKED`, `ICTUS_DRIVER_STALLED`.
//
// Threads: any; one call at a time on a driver. Codes: `ICTUS_ERR_OP_UNSUPPORTED` (the driver has a thread), `ICTUS_EBUSY`. A broken
// model ends all requests with `ICTUS_DRIVER_FINISH_FAILED`.
ictus_status ictus_driver_step(ictus_driver_t driver,
                               uint32_t *progress);

// The next event of a request, or of any when `request` is 0. Set `event->struct_size` before the call.
//
// A driver with a thread is waited for, `timeout_ns` at most (`UINT64_MAX`: without end); one without is not. When there is no event,
// `event->kind` is `ICTUS_EVENT_NONE`. Tokens, text and log-probabilities go to the buffers, which may be NULL with a capacity of 0; a
// NUL follows the text and needs room. When one of them is too small the event stays, and `event` tells the sizes.
// Threads: any; a request is read by one at a time. Codes: `ICTUS_ERR_UNKNOWN_HANDLE` (the driver; no such request, or its last event was
// read; with 0: there is no request), `ICTUS_ERR_BUFFER_TOO_SMALL`, `ICTUS_EBUSY`
// (called from a callback of the model).
ictus_status ictus_driver_next_event(ictus_driver_t driver,
                                     uint64_t request,
                                     uint64_t timeout_ns,
                                     ictus_driver_event_t *event,
                                     uint32_t *tokens,
                                     uint64_t token_capacity,
                                     char *text,
                                     uint64_t text_capacity,
                                     ictus_lane_logprob_t *logprobs,
                                     uint64_t logprob_capacity);

// What the executor is. Set `info->struct_size` before the call.
//
// Threads: any. Codes: `ICTUS_ERR_UNKNOWN_HANDLE`, `ICTUS_REJECT_BAD_STRUCT`.
ictus_status ictus_executor_info(ictus_executor_t executor, ictus_executor_info_t *info);

// Why a feature (`ICTUS_FEATURE_*`) is not offered; empty for one that is.
//
// `*bytes`: the length without the NUL that follows, also when it does not fit into `capacity`.
// Threads: any. Codes: `ICTUS_ERR_UNKNOWN_HANDLE`, `ICTUS_REJECT_BOUNDS` (no feature), `ICTUS_ERR_BUFFER_TOO_SMALL`.
ictus_status ictus_executor_absent(ictus_executor_t executor,
                                   uint32_t feature,
                                   char *text,
                                   uint64_t capacity,
                                   uint64_t *bytes);

// Bytes for so many sequences of so many tokens each, run in batches of `batch_tokens`.
//
// Threads: any. Codes: `ICTUS_ERR_UNKNOWN_HANDLE`, `ICTUS_REJECT_BAD_STRUCT`, `ICTUS_REJECT_BOUNDS` (they do not fit 64 bits).
ictus_status ictus_executor_estimate(ictus_executor_t executor,
                                     uint64_t sequences,
                                     uint64_t tokens_each,
                                     uint64_t batch_tokens,
                                     uint64_t *bytes);

// What has happened so far. Set `stats->struct_size` before the call.
//
// Threads: any. Codes: `ICTUS_ERR_UNKNOWN_HANDLE`, `ICTUS_REJECT_BAD_STRUCT`.
ictus_status ictus_executor_stats(ictus_executor_t executor, ictus_executor_stats_t *stats);

// Copies the text of the last failed call on the executor, empty when there was none.
//
// `*bytes`: the length without the NUL that follows, also when it does not fit into `capacity`.
// Threads: any. Codes: `ICTUS_ERR_UNKNOWN_HANDLE`, `ICTUS_ERR_BUFFER_TOO_SMALL`.
ictus_status ictus_executor_last_error(ictus_executor_t executor, char *text, uint64_t capacity, uint64_t *bytes);

// Does cold work before the first request, and leaves everything as it was; once.
//
// It waits for steps under way. `refusal` may be NULL; else set its `struct_size`.
// Threads: any. Codes: as `ictus_executor_run`.
ictus_status ictus_executor_prepare(ictus_executor_t executor, ictus_refusal_t *refusal);

// Admits a sequence: one slot, and the block of its first token. It waits for nobody.
//
// `refusal` may be NULL; else set its `struct_size`: it is written by every call that found the executor, with `ICTUS_REFUSAL_NONE` where
// the executor refused nothing. Owner: `*seq` is data; the sequence lives until it is closed.
// Threads: any. Codes: `ICTUS_NEEDS_REPLAN` (blocked: the refusal says what is short, and its ticket what to wait for),
// `ICTUS_REJECT_BUDGET` (never), `ICTUS_REJECT_BOUNDS` (a token, a length, a number), `ICTUS_REJECT_ILLEGAL_COMBINATION` (a pressure other than to
// wait or to recompute), `ICTUS_ERR_UNKNOWN_HANDLE` (no such executor, or shut down), `ICTUS_REJECT_BAD_STRUCT`, `ICTUS_ERR_FATAL` (broken).
// Nothing is kept then.
ictus_status ictus_executor_admit(ictus_executor_t executor,
                                  const ictus_admission_t *source,
                                  ictus_executor_seq_t *seq,
                                  ictus_refusal_t *refusal);

// Makes one bounded attempt to install what a refusal with `ICTUS_REMEDY_GROW` lacked; a receipt that gained nothing says that somebody
// else has grown it.
//
// It trusts no number of `blocked`, and may wait for steps under way. `receipt` and `refusal` may be NULL; else set their `struct_size`.
// Threads: any. Codes: `ICTUS_NEEDS_REPLAN` (nothing could be installed), `ICTUS_REJECT_BUDGET` (never),
// `ICTUS_REJECT_ILLEGAL_COMBINATION` (another remedy), `ICTUS_ERR_IDENTITY_MISMATCH` (of another executor), `ICTUS_REJECT_BOUNDS` (no evidence).
ictus_status ictus_executor_grow(ictus_executor_t executor,
                                 const ictus_blocked_t *blocked,
                                 ictus_receipt_t *receipt,
                                 ictus_refusal_t *refusal);

// Tokens of a sequence that are committed.
//
// Threads: any. Codes: `ICTUS_ERR_UNKNOWN_HANDLE` (the executor, or a sequence that is closed), `ICTUS_ERR_IDENTITY_MISMATCH` (of another executor),
// `ICTUS_REJECT_BAD_STRUCT`.
ictus_status ictus_executor_frontier(ictus_executor_t executor,
                                     ictus_executor_seq_t seq,
                                     uint64_t *tokens);

// Cuts a sequence to `tokens`, and gives back what it does not need for them; at its frontier, what was reserved.
//
// `receipt` and `refusal` may be NULL; else set their `struct_size`.
// Threads: any. Codes: those of `ictus_executor_frontier`; `ICTUS_REJECT_BOUNDS` (past the frontier), `ICTUS_EBUSY` (a run has it),
// `ICTUS_REJECT_ILLEGAL_COMBINATION` (it has faulted), `ICTUS_ERR_OP_UNSUPPORTED` (the state of this model cannot be cut).
ictus_status ictus_executor_truncate(ictus_executor_t executor,
                                     ictus_executor_seq_t seq,
                                     uint64_t tokens,
                                     ictus_receipt_t *receipt,
                                     ictus_refusal_t *refusal);

// What a sequence holds now, into 7 amounts by domain, from `ICTUS_DOMAIN_SLOTS` on: its slot, its own blocks, its run.
//
// Threads: any. Codes: as `ictus_executor_frontier`.
ictus_status ictus_executor_held(ictus_executor_t executor, ictus_executor_seq_t seq, uint64_t *units);

// What closing all of these sequences together would free, into 7 amounts by domain, from `ICTUS_DOMAIN_SLOTS` on.
//
// What sequences share counts only where the last of them is named too; one that a run has, or that has faulted, counts nothing.
// Threads: any. Codes: as `ictus_executor_frontier`.
ictus_status ictus_executor_frees(ictus_executor_t executor,
                                  const ictus_executor_seq_t *seqs,
                                  uint64_t n_seqs,
                                  uint64_t *units);

// Ends a sequence, exactly once. `end`: `ICTUS_END_*`; `prompt` and `output` are the tokens of an answer that is complete, else not looked at.
//
// A sequence that a run has may be cancelled or failed: `receipt->pending` is nonzero then, nothing is freed yet, and its ticket can be waited on.
// `receipt` and `refusal` may be NULL; else set their `struct_size`.
// Threads: any. Codes: those of `ictus_executor_frontier`; `ICTUS_EBUSY` (a run has it), `ICTUS_REJECT_ILLEGAL_COMBINATION` (it has faulted),
// `ICTUS_ERR_OUT_OF_BOUNDARY` (its prompt is not done), `ICTUS_REJECT_BOUNDS` (no end, or a usage that cannot be). It stays open then.
ictus_status ictus_executor_close(ictus_executor_t executor,
                                  ictus_executor_seq_t seq,
                                  uint32_t end,
                                  uint64_t prompt,
                                  uint64_t output,
                                  ictus_receipt_t *receipt,
                                  ictus_refusal_t *refusal);

// Ends everything, once: waits resolve, idle sequences are closed as cancelled, running ones are waited for. A second call says the same.
//
// `receipt` and `refusal` may be NULL; else set their `struct_size`.
// Threads: any. Codes: `ICTUS_ERR_UNKNOWN_HANDLE`, `ICTUS_EBUSY` (called from inside one of its own steps), `ICTUS_ERR_FATAL`.
ictus_status ictus_executor_shutdown(ictus_executor_t executor,
                                     ictus_receipt_t *receipt,
                                     ictus_refusal_t *refusal);

// A narrower width to try instead of `tokens`; 0 for a width of one. A pure function of the evidence.
//
// Threads: any. Codes: `ICTUS_REJECT_BAD_STRUCT`, `ICTUS_REJECT_BOUNDS` (no evidence).
ictus_status ictus_blocked_narrower(const ictus_blocked_t *blocked, uint64_t tokens, uint64_t *narrower);

// Claims the blocks that a batch will need, and runs none of it. `fit`: what has to be free besides (`ICTUS_FIT_*`).
//
// `work`: an array of `ictus_work_t`. `receipt` and `refusal` may be NULL; else set their `struct_size`.
// Threads: any. Codes: as `ictus_executor_run`.
ictus_status ictus_executor_reserve(ictus_executor_t executor,
                                    ictus_array_t work,
                                    uint32_t fit,
                                    ictus_receipt_t *receipt,
                                    ictus_refusal_t *refusal);

// Runs a batch in one pass. `rows` gets one row per item, in their order.
//
// `work`: an array of `ictus_work_t`. Tokens go to `tokens`, values of logits to `logits`, each row's behind those of the row before; a row says
// where. Room is needed for a row per item, and per row that an item may yield (1 of a decode or of a chunk that ends its context, one
// per token of a verification) for a token where one is selected, or for `vocab` values where all are wanted.
// `refusal` may be NULL; else set its `struct_size`. It waits for steps under way.
// Threads: any; runs of different sequences may be under way at once. After `ICTUS_STATUS_OK` trouble is a row's own: `ICTUS_OUT_FAULT`.
// Codes: those of `ictus_executor_admit`; `ICTUS_ERR_BUFFER_TOO_SMALL`, `ICTUS_ERR_OUT_OF_BOUNDARY` (an item does not start at the frontier of its
// sequence), `ICTUS_REJECT_DUPLICATE_LANE`, `ICTUS_ERR_IDENTITY_MISMATCH` (a sequence of another executor), `ICTUS_ERR_OP_UNSUPPORTED` (the mixture, or
// so many), `ICTUS_EBUSY` (called from inside one of its own steps), the statuses of arrays. Nothing ran then, and every sequence is where
// it was.
ictus_status ictus_executor_run(ictus_executor_t executor,
                                ictus_array_t work,
                                ictus_row_t *rows,
                                uint64_t row_capacity,
                                uint32_t *tokens,
                                uint64_t token_capacity,
                                float *logits,
                                uint64_t logit_capacity,
                                ictus_refusal_t *refusal);

// Opens a model and makes an executor of it, and no engine beside.
//
// `path`, `model_options`, `error_text` and `error_capacity` are those of `ictus_model_open`; `options` may be NULL: all defaults.
// Owner: `*executor` is the host's, which releases it with `ictus_executor_destroy`. Threads: any; callbacks of the model's options run on this one.
// Codes: those of `ictus_model_open`; `ICTUS_REJECT_BUDGET` (what is installed exceeds the budget, or what the account has left),
// `ICTUS_ERR_UNKNOWN_HANDLE` (the account).
ictus_status ictus_executor_open(const char *path,
                                 const ictus_model_options_t *model_options,
                                 const ictus_executor_options_t *options,
                                 char *error_text,
                                 uint64_t error_capacity,
                                 ictus_executor_t *executor);

// Makes an executor over the weights of a model that is open: its own pool and threads, beside those of the model.
//
// `options` may be NULL: all defaults. Owner: `*executor` is the host's, which releases it with `ictus_executor_destroy`, before or after the model.
// Threads: any. Codes: `ICTUS_ERR_UNKNOWN_HANDLE` (the model, the account), `ICTUS_REJECT_BAD_STRUCT`, `ICTUS_REJECT_BOUNDS` (an option),
// `ICTUS_ERR_OP_UNSUPPORTED` (an engine without a model file), `ICTUS_NEEDS_REPLAN` (memory could not be had), `ICTUS_REJECT_BUDGET`.
// The model's last error says why.
ictus_status ictus_executor_create(ictus_model_t model,
                                   const ictus_executor_options_t *options,
                                   ictus_executor_t *executor);

// The tick engine on the same core, as a model: the same pool, cache and coordinator, and all functions that take a model.
//
// Owner: `*model` is the host's, which releases it with `ictus_model_free`; then it can be had again. One that outlives the executor finds no
// room any more. Threads: any; ticks and runs take turns.
// Codes: `ICTUS_ERR_UNKNOWN_HANDLE`, `ICTUS_REJECT_BAD_STRUCT`, `ICTUS_EBUSY` (it has been handed out).
ictus_status ictus_executor_tick_host(ictus_executor_t executor,
                                      ictus_model_t *model);

// Releases an executor: it is shut down, and its pool and threads go when no call and no tick host has it any more.
//
// It waits for runs under way. Codes: `ICTUS_ERR_UNKNOWN_HANDLE` (NULL, or released before), `ICTUS_EBUSY` (called from inside one of its own
// steps; it lives on).
ictus_status ictus_executor_destroy(ictus_executor_t executor);

// Sends what the model has to say to a callback, up to a level (`ICTUS_LOG_*`); a NULL callback silences it, as it is at first.
//
// The callback and `user` are kept until they are replaced or the model is released, and must work on every thread that calls
// into the model. What is logged changes no result.
// Codes: `ICTUS_REJECT_BOUNDS` (level). On failure the old callback stays.
ictus_status ictus_model_log(ictus_model_t model,
                             uint32_t level,
                             ictus_log_fn callback,
                             void *user);

// Copies the text of the last failed call on the model, empty when there was none.
//
// `text_bytes` is the length without the closing NUL, written also when the buffer is too small. Any thread may ask, also while
// another one ticks. Calls that found no model leave no text.
// Codes: `ICTUS_ERR_BUFFER_TOO_SMALL` (nothing is written to `text`).
ictus_status ictus_model_last_error(ictus_model_t model,
                                    char *text,
                                    uint64_t capacity,
                                    uint64_t *text_bytes);

// What a media file (NUL-terminated path) would become in a prompt; nothing is kept.
//
// Threads: any; one at a time. Codes: `ICTUS_ERR_OP_UNSUPPORTED`.
ictus_status ictus_media_probe(ictus_model_t model, const char *path, ictus_media_info_t *info);

// Encodes a media file (NUL-terminated path).
//
// Owner: the features are the model's until they are released. Threads: any; one at a time.
// Codes: `ICTUS_ERR_OP_UNSUPPORTED`. Nothing is kept then.
ictus_status ictus_media_encode(ictus_model_t model, const char *path, uint64_t *media, ictus_media_info_t *info);

// Frees encoded media.
//
// Threads: any; one at a time. Codes: `ICTUS_ERR_UNKNOWN_HANDLE`, `ICTUS_ERR_OP_UNSUPPORTED`.
ictus_status ictus_media_release(ictus_model_t model, uint64_t media);

// Puts encoded media at a place in a lane's prompt. They are consumed in the order of their places, and dropped with the lane.
//
// Threads: any; one at a time. Codes: `ICTUS_ERR_UNKNOWN_HANDLE`, `ICTUS_ERR_OP_UNSUPPORTED`. Nothing changes then.
ictus_status ictus_media_bind(ictus_model_t model,
                              uint64_t lane_tag,
                              uint64_t media,
                              uint32_t prompt_offset);

// Opens a model and makes an engine of it. The file is mapped: keep it as it is while the model lives.
//
// `path`: a GGUF file or a Hugging Face directory, NUL-terminated. `options` may be NULL: all defaults. `error_text`: where the reason of a
// failure goes, NUL-terminated and cut to `error_capacity` bytes; NULL with 0 when it is not wanted.
// Owner: `*model` is the host's, which releases it with `ictus_model_free`. Threads: any; callbacks of the options run on this one.
// Codes: `ICTUS_ERR_UNKNOWN_HANDLE` (the file cannot be read, or there is no worker program), `ICTUS_REJECT_BAD_STRUCT` (it is not a model, or options too short),
// `ICTUS_REJECT_BOUNDS` (an option), `ICTUS_ERR_OP_UNSUPPORTED` (device, model without a vocabulary, an option that a worker cannot
// have, workers in a build without them), `ICTUS_ERR_FATAL` (a worker did not get as far as serving), `ICTUS_NEEDS_REPLAN` (memory
// could not be had, or the weights do not fit the model), `ICTUS_REJECT_BUDGET` (more than the budget, or sizes beyond 64 bits), `ICTUS_EBUSY` (the progress
// callback broke off). Nothing is kept then.
ictus_status ictus_model_open(const char *path,
                              const ictus_model_options_t *options,
                              char *error_text,
                              uint64_t error_capacity,
                              ictus_model_t *model);

// What a model would take with these options, in bytes, from its description alone: no weight is read, nothing is allocated.
//
// Set `plan->struct_size` before the call. The rest as `ictus_model_open`; no callback is called.
ictus_status ictus_model_plan(const char *path,
                              const ictus_model_options_t *options,
                              char *error_text,
                              uint64_t error_capacity,
                              ictus_model_plan_t *plan);

// What the model is. Set `info->struct_size` before the call.
//
// Threads: any; one at a time. Codes: `ICTUS_REJECT_BAD_STRUCT`, `ICTUS_ERR_OP_UNSUPPORTED` (an engine without a model file).
ictus_status ictus_model_info(ictus_model_t model,
                              ictus_model_info_t *info);

// What the model recommends for sampling. Set `defaults->struct_size` before the call.
//
// Threads: any; one at a time. Codes: `ICTUS_REJECT_BAD_STRUCT`, `ICTUS_ERR_OP_UNSUPPORTED` (an engine without a model file).
ictus_status ictus_model_sampling_defaults(ictus_model_t model,
                                           ictus_claimed_sampling_t *defaults);

// Where an operation stands; asking moves the operations that have not ended on by a slice, as `ictus_pump` does. When `ICTUS_OP_DONE` is
// reported the bytes of an export lie in its destination.
//
// `*op_status` is filled whole, `struct_size` included. Threads: any; one at a time.
// Codes: `ICTUS_ERR_UNKNOWN_HANDLE`.
ictus_status ictus_op_poll(ictus_model_t model,
                           ictus_op_t op,
                           ictus_op_status_t *op_status);

// Moves operations that have not ended, and entries of the cache that go to host memory, on by a slice (`op_slice_bytes` of the options). Every
// tick does so too; this is for a host that has nothing to tick.
//
// Threads: any; one at a time. Codes: `ICTUS_ERR_UNKNOWN_HANDLE`.
ictus_status ictus_pump(ictus_model_t model);

// Asks an operation to stop. It is a request: poll, or read the events of the next tick, to learn how it ended.
//
// Threads: any; one at a time. Codes: `ICTUS_ERR_UNKNOWN_HANDLE`.
ictus_status ictus_op_cancel(ictus_model_t model, ictus_op_t op);

// Attaches shared rings: each descriptor is checked against its ring's header, and nothing is attached unless all fit. A ring
// with the id of an attached one replaces it; the others stay.
//
// `descs`: `count` records, one after the other, all of the same `struct_size`.
// Owner: the mappings are the host's; the model uses them until it is released or they are replaced, and never unmaps them.
// Threads: any; one at a time.
// Codes: `ICTUS_ERR_RING_LAYOUT` (a ring is not as described), `ICTUS_REJECT_BAD_STRUCT`, `ICTUS_REJECT_BAD_ALIGNMENT`,
// `ICTUS_REJECT_BOUNDS` (descriptors). Nothing is attached then.
ictus_status ictus_rings_attach(ictus_model_t model,
                                const ictus_ring_desc_t *descs,
                                uint32_t count);

// Attaches the two control words by which any thread or process hurries a tick: a yield word and a latency word, in a segment of
// at least 64 bytes that begins with `ICTUS_CONTROL_MAGIC`.
//
// Owner: the segment is the host's; the model reads it until it is released or another is attached. Threads: any; one at a time.
// Codes: `ICTUS_ERR_RING_LAYOUT`. The segment before stays then.
ictus_status ictus_control_attach(ictus_model_t model,
                                  void *base,
                                  uint64_t len);

// Makes rings and control words in memory of the model and attaches them, for a host that has none. `shape` may be NULL: all
// defaults.
//
// Owner: the model, until its release. May be called again; references into the rings before are stale then.
// Threads: any; one at a time.
// Codes: `ICTUS_REJECT_BAD_STRUCT` (`shape` too short), `ICTUS_REJECT_BOUNDS` (a ring of more than 2^30 bytes),
// `ICTUS_ERR_RING_LAYOUT` (logits slots without logits). Nothing is attached then.
ictus_status ictus_model_rings_create(ictus_model_t model,
                                      const ictus_ring_shape_t *shape);

// Writes a prompt into the token-in ring that the model keeps, for an admit or a span to name.
//
// `*reference` is good until the slot is written anew. Threads: any; one at a time.
// Codes: `ICTUS_ERR_OP_UNSUPPORTED` (no such ring, or the host attached its own), `ICTUS_REJECT_BOUNDS` (longer than a slot),
// `ICTUS_REJECT_BAD_STRUCT`. Nothing is written then.
ictus_status ictus_model_stage_prompt(ictus_model_t model,
                                      const uint32_t *tokens,
                                      uint64_t n_tokens,
                                      ictus_token_ref_t *reference);

// Copies the tokens of a reference from an attached token ring: those of an emit, or a staged prompt.
//
// `*n_tokens` is their number, written also when the buffer is too small. Threads: any; one at a time.
// Codes: `ICTUS_REJECT_BAD_REF_GENERATION` (the slot was written anew), `ICTUS_REJECT_BOUNDS` (no such ring or slot),
// `ICTUS_ERR_BUFFER_TOO_SMALL`. `tokens` is as before then.
ictus_status ictus_model_read_tokens(ictus_model_t model,
                                     const ictus_token_ref_t *reference,
                                     uint32_t *tokens,
                                     uint64_t capacity,
                                     uint64_t *n_tokens);

// Copies a row from the attached logits ring: the pending one of a HOST lane.
//
// `*n_logits` is its length, written also when the buffer is too small. Threads: any; one at a time.
// Codes: as `ictus_model_read_tokens`.
ictus_status ictus_model_read_logits(ictus_model_t model,
                                     const ictus_ring_ref_t *reference,
                                     float *logits,
                                     uint64_t capacity,
                                     uint64_t *n_logits);

// Raises (nonzero) or clears the yield word of the rings that the model keeps: while it is raised a tick ends at the nearest
// boundary between steps.
//
// Threads: any, at any time, also while another one ticks. Codes: `ICTUS_ERR_OP_UNSUPPORTED` (the model keeps no rings).
ictus_status ictus_model_set_yield(ictus_model_t model,
                                   uint32_t on);

// Raises (nonzero) or clears the latency word of the rings that the model keeps: while it is raised prefill steps are short.
//
// Threads: any, at any time, also while another one ticks. Codes: `ICTUS_ERR_OP_UNSUPPORTED` (the model keeps no rings).
ictus_status ictus_model_set_latency(ictus_model_t model,
                                     uint32_t on);

// Compiles a JSON schema (NUL-terminated) into a grammar; 0 when it does not parse or compile, fits no text, exceeds the limits, or
// grammars are not offered. The last error says why.
//
// Owner: the host, which frees it. Threads: any; one at a time.
uint32_t ictus_tick_grammar_create(ictus_model_t model,
                                   const char *schema);

// Compiles a structural-tag document (NUL-terminated JSON) into a grammar; 0 as with `ictus_tick_grammar_create`.
//
// Owner: the host, which frees it. Threads: any; one at a time.
uint32_t ictus_tick_grammar_create_structural(ictus_model_t model, const char *document);

// Compiles a regular expression (NUL-terminated) that the whole text has to match; 0 as with `ictus_tick_grammar_create`.
//
// Owner: the host, which frees it. Threads: any; one at a time.
uint32_t ictus_grammar_create_regex(ictus_model_t model,
                                    const char *pattern);

// Compiles a grammar in Lark notation (NUL-terminated); 0 as with `ictus_tick_grammar_create`.
//
// Owner: the host, which frees it. Threads: any; one at a time.
uint32_t ictus_grammar_create_lark(ictus_model_t model, const char *grammar);

// Frees a grammar; one that a lane uses goes when the lane ends.
//
// Threads: any; one at a time. Codes: `ICTUS_ERR_UNKNOWN_HANDLE`, `ICTUS_ERR_OP_UNSUPPORTED`.
ictus_status ictus_tick_grammar_free(ictus_model_t model, uint32_t grammar);

// Keeps `n` addends for the logits of `n` tokens; 0 when `n` is not positive or a pointer is NULL. Tokens outside the vocabulary
// are dropped; one that is listed twice gets both addends.
//
// Owner: the host, which frees it; an admitted lane has a copy. Threads: any; one at a time.
uint32_t ictus_tick_logit_bias_create(ictus_model_t model,
                                      const int32_t *tokens,
                                      const float *values,
                                      int n);

// Frees a bias; lanes that were admitted with it keep their copy.
//
// Threads: any; one at a time. Codes: `ICTUS_ERR_UNKNOWN_HANDLE`.
ictus_status ictus_tick_logit_bias_free(ictus_model_t model, uint32_t bias);

// Which prefixes of a span are cached, in one space or in all (`ICTUS_ALL_SPACES`). Nothing is pinned by asking.
//
// `media_hashes`: an array of 32-byte hashes of the media in the span, empty when there are none.
// Owner: `*result` is the model's, until the next call on it. Threads: any; one at a time.
// Codes: `ICTUS_ERR_UNKNOWN_HANDLE` (space), `ICTUS_REJECT_BAD_REF_GENERATION`, `ICTUS_REJECT_BOUNDS` (span), the statuses of
// arrays, `ICTUS_ERR_OP_UNSUPPORTED`. Nothing changes.
ictus_status ictus_space_match(ictus_model_t model,
                               uint32_t space_id,
                               ictus_token_ref_t span,
                               ictus_array_t media_hashes,
                               const ictus_match_result_t **result);

// Leases the cached prefix of `prefix_len` tokens of a span, for an admit to start from. The lease is not 0.
//
// Owner: the host, which gives the lease back with `ictus_seed_release`; an admit that uses it consumes it; after
// `ictus_seed_lease_ticks` it expires by itself. Threads: any; one at a time.
// Codes: `ICTUS_ERR_SEED_UNSERVABLE`, `ICTUS_REJECT_BAD_REF_GENERATION`, `ICTUS_REJECT_BOUNDS` (span). Nothing changes then.
ictus_status ictus_seed_acquire(ictus_model_t model,
                                ictus_token_ref_t span,
                                uint64_t prefix_len,
                                uint8_t determinism_class,
                                uint64_t *lease);

// Gives a lease back; the state behind it may be evicted again, and an adopted sequence is bare again.
//
// Threads: any; one at a time. Codes: `ICTUS_ERR_UNKNOWN_HANDLE`: no such lease, or it was consumed or expired.
ictus_status ictus_seed_release(ictus_model_t model, uint64_t lease);

// How many accepted ticks a lease lives.
//
// Threads: any; one at a time. Codes: `ICTUS_ERR_OP_UNSUPPORTED`: the engine declares no time.
ictus_status ictus_seed_lease_ticks(ictus_model_t model, uint64_t *ticks);

// Leases a bare sequence as it stands; `span` names the tokens that it holds, all of them.
//
// Owner: the lease is the host's, as with `ictus_seed_acquire`; so is the sequence until an admit takes it. While it is leased it
// can be neither freed, trimmed, published, restored nor adopted again. Threads: any; one at a time.
// Codes: `ICTUS_ERR_UNKNOWN_HANDLE` (not a bare sequence of this model), `ICTUS_EBUSY` (leased already), `ICTUS_ERR_OUT_OF_BOUNDARY`
// (not the number of tokens it holds), `ICTUS_REJECT_BAD_REF_GENERATION`, `ICTUS_REJECT_BOUNDS` (span). Nothing changes then.
ictus_status ictus_seed_adopt(ictus_model_t model,
                              ictus_sequence_t sequence,
                              ictus_token_ref_t span,
                              uint64_t *lease);

// A bare child that starts where the parent stands. The pages of the parent are shared until one of the two writes.
//
// `flags`: `ICTUS_FORK_*`.
// Owner: the child is the host's. Threads: any; one at a time per model.
// Codes: `ICTUS_ERR_UNKNOWN_HANDLE`, `ICTUS_EBUSY`, `ICTUS_NEEDS_REPLAN` (no room), `ICTUS_ERR_OUT_OF_BOUNDARY`. Nothing changes then.
ictus_status ictus_seq_fork(ictus_sequence_t parent,
                            ictus_sequence_t *child,
                            uint32_t flags);

// The sequence of a live lane; NULL when there is no such lane. The same handle each time while the lane lives.
//
// Owner: the lane; the handle is stale once the lane has ended. Threads: any; one at a time.
ictus_sequence_t ictus_tick_lane_sequence(ictus_model_t model, uint64_t lane_tag);

// A bare, empty sequence; NULL when there is no room, or the engine does not offer it.
//
// Owner: the host, until it frees or publishes it, or an admit takes it by its lease. Threads: any; one at a time.
ictus_sequence_t ictus_tick_sequence_create(ictus_model_t model);

// Frees a bare sequence; its handle is stale afterwards.
//
// Threads: any; one at a time. Codes: `ICTUS_ERR_UNKNOWN_HANDLE` (not a bare sequence of this model), `ICTUS_EBUSY` (leased). It lives
// on then.
ictus_status ictus_tick_sequence_free(ictus_model_t model,
                                      ictus_sequence_t sequence);

// Moves a bare sequence into the prefix cache, under the `n_tokens` tokens that it holds. The handle is stale afterwards.
//
// Threads: any; one at a time. Codes: `ICTUS_ERR_UNKNOWN_HANDLE` (not a bare sequence of this model), `ICTUS_EBUSY` (leased),
// `ICTUS_ERR_OUT_OF_BOUNDARY` (the tokens do not fit), `ICTUS_ERR_OP_UNSUPPORTED`. The sequence stays the host's then.
ictus_status ictus_tick_sequence_publish(ictus_model_t model,
                                         ictus_sequence_t sequence,
                                         const uint32_t *tokens,
                                         uint32_t n_tokens);

// The kinds of state that the model keeps, as an array of `ictus_state_space_desc_t`. It is the same on every call.
//
// Owner: the model, until the next call on it. Threads: any; one at a time.
ictus_status ictus_state_spaces(ictus_model_t model, ictus_array_t *spaces);

// How many bytes an export of `range` takes, its envelope included, and the generation that names this answer when the export is
// made. The answer is stale once the sequence changes.
//
// `encoding`: `ICTUS_ENCODING_*`. Threads: any; one at a time per model.
// Codes: `ICTUS_ERR_UNKNOWN_HANDLE` (sequence, space), `ICTUS_ERR_OP_UNSUPPORTED` (encoding), `ICTUS_REJECT_BOUNDS` (range),
// `ICTUS_ERR_OUT_OF_BOUNDARY`. Nothing changes then.
ictus_status ictus_space_export_size(ictus_sequence_t sequence,
                                     uint32_t space_id,
                                     ictus_token_range_t range,
                                     uint8_t encoding,
                                     uint64_t *bytes,
                                     uint64_t *sizing_gen);

// Exports a sequence up to `boundary` tokens into `dst`: an envelope and a payload, sealed by a checksum.
//
// Owner: `dst` is the host's and on loan until the operation ends. Threads: any; one at a time per model.
// Codes: `ICTUS_ERR_UNKNOWN_HANDLE`, `ICTUS_REJECT_BOUNDS`, `ICTUS_ERR_OUT_OF_BOUNDARY`, `ICTUS_ERR_STALE_SIZING`,
// `ICTUS_ERR_BUFFER_TOO_SMALL`: nothing was written and there is no operation.
ictus_status ictus_space_snapshot(ictus_sequence_t sequence,
                                  uint32_t space_id,
                                  uint64_t boundary,
                                  ictus_buf_t dst,
                                  uint64_t sizing_gen,
                                  ictus_op_t *op);

// Fills a bare sequence from the sealed bytes of an export.
//
// Owner: `src` is the host's and on loan until the operation ends. Threads: any; one at a time per model.
// Codes: `ICTUS_ERR_UNKNOWN_HANDLE`, `ICTUS_EBUSY`, `ICTUS_ERR_ENVELOPE_MISMATCH`, `ICTUS_ERR_IDENTITY_MISMATCH`,
// `ICTUS_ERR_CHECKSUM`: there is no operation and the sequence is as before. Later failures end the operation in
// `ICTUS_OP_FAILED`.
ictus_status ictus_space_restore(ictus_sequence_t sequence, uint32_t space_id, ictus_buf_t src, ictus_op_t *op);

// The largest position up to `cap` at which the sequence may be snapshot.
//
// Threads: any; one at a time per model. Codes: `ICTUS_ERR_UNKNOWN_HANDLE`, `ICTUS_ERR_OP_UNSUPPORTED`. Nothing changes.
ictus_status ictus_space_snapshot_boundary(ictus_sequence_t sequence,
                                           uint32_t space_id,
                                           uint64_t cap,
                                           uint64_t *boundary);

// Cuts a bare sequence down to `len` tokens.
//
// Threads: any; one at a time per model. Codes: `ICTUS_ERR_UNKNOWN_HANDLE`, `ICTUS_EBUSY` (a lane's, cached, or leased),
// `ICTUS_REJECT_BOUNDS` (longer than it is), `ICTUS_ERR_OUT_OF_BOUNDARY`. The sequence is as before then.
ictus_status ictus_space_trim(ictus_sequence_t sequence,
                              uint32_t space_id,
                              uint64_t len);

// Moves a range of a sequence out of the pool into `dst`, encoded. Its memory is free once the operation is done; the sequence keeps
// its length, and until the range is promoted it is neither fed nor copied (`ICTUS_REJECT_TRANSFER_LOCKED`, `ICTUS_EBUSY`).
//
// `range` is whole pages, or ends with the sequence. A lossy `encoding` taints the exported bytes, and the sequence when they come back.
// Owner, threads, codes: as `ictus_space_snapshot`, and `ICTUS_ERR_OP_UNSUPPORTED` (encoding, a start inside a page),
// `ICTUS_REJECT_BOUNDS` (part of it is demoted already), `ICTUS_EBUSY` (leased, cached, or an operation runs on it).
ictus_status ictus_space_demote(ictus_sequence_t sequence,
                                uint32_t space_id,
                                ictus_token_range_t range,
                                uint8_t encoding,
                                ictus_buf_t dst,
                                uint64_t sizing_gen,
                                ictus_op_t *op);

// Brings a demoted range back from `src`: exactly the range that was demoted, from the bytes that it was demoted to.
//
// Owner: `src` is the host's and on loan until the operation ends. Threads: any; one at a time per model.
// Codes: as `ictus_space_restore`, and `ICTUS_REJECT_BOUNDS` (no such range of this sequence is demoted), `ICTUS_EBUSY` (an operation
// runs on it). When the operation fails the range is demoted still.
ictus_status ictus_space_promote(ictus_sequence_t sequence,
                                 uint32_t space_id,
                                 ictus_token_range_t range,
                                 ictus_buf_t src,
                                 ictus_op_t *op);

// What a status means, in a few English words; for a number that is no status, that it is none. Never NULL.
//
// Owner: the library, for ever. Threads: any.
const char *ictus_status_text(int32_t status);

// A sentence or two on a status: what it means, and what a host does about it. Never NULL.
//
// Owner: the library, for ever. Threads: any.
const char *ictus_explain(int32_t status);

// As `ictus_explain`, for the code of a lane fault (`ICTUS_FAULT_*`).
const char *ictus_explain_fault(uint32_t code);

// As `ictus_explain`, for the reason that a lane stopped (`ICTUS_FINISH_*`).
const char *ictus_explain_finish(uint32_t finish);

// As `ictus_explain`, for the kind of a shed entry (`ICTUS_SHED_*`).
const char *ictus_explain_shed(uint32_t kind);

// As `ictus_explain`, for what became of an admit (`ICTUS_ADMIT_*`).
const char *ictus_explain_admit(uint32_t status);

// Registers a speculation strategy: `prompt-lookup`, or `draft-model` with the file of a smaller model as its draft weights. Admits
// then name `grant->strategy_slot`. Registering a strategy again keeps its slot and replaces its configuration for lanes admitted later.
//
// Owner: `*grant` is the model's, until the next registration. Threads: any; one at a time.
// Codes: `ICTUS_ERR_REGISTRATION_REFUSED`, the statuses of arrays. What was registered before stays then, and the last error says why.
ictus_status ictus_strategy_register(ictus_model_t model,
                                     const ictus_strategy_registration_t *registration,
                                     const ictus_strategy_grant_t **grant);

// The tokens of a text.
//
// `text`: `text_bytes` bytes of UTF-8, which need no NUL. `flags`: `ICTUS_TEXT_ADD_SPECIAL`, `ICTUS_TEXT_PARSE_SPECIAL`.
// `*n_tokens` is their number, written also when the buffer is too small: a first call with capacity 0 measures.
// Threads: any; one at a time.
// Codes: `ICTUS_ERR_BUFFER_TOO_SMALL` (`tokens` is as before), `ICTUS_REJECT_BAD_STRUCT` (not UTF-8), `ICTUS_REJECT_BOUNDS` (flags, or
// a text too long), `ICTUS_ERR_OP_UNSUPPORTED` (an engine without a model file).
ictus_status ictus_model_tokenize(ictus_model_t model,
                                  const char *text,
                                  uint64_t text_bytes,
                                  uint32_t flags,
                                  uint32_t *tokens,
                                  uint64_t capacity,
                                  uint64_t *n_tokens);

// The text of tokens, from the start of a text. A token may end inside a character, so the bytes need not be UTF-8; `ictus_text_push`
// never cuts one.
//
// `flags`: `ICTUS_TEXT_SHOW_SPECIAL`. A NUL follows the text and needs room; `*text_bytes` does not count it, and is written also when
// the buffer is too small. Threads: any; one at a time.
// Codes: `ICTUS_ERR_BUFFER_TOO_SMALL` (`text` is as before), `ICTUS_REJECT_BOUNDS` (flags, or a token outside the vocabulary),
// `ICTUS_ERR_OP_UNSUPPORTED` (an engine without a model file).
ictus_status ictus_model_detokenize(ictus_model_t model,
                                    const uint32_t *tokens,
                                    uint64_t n_tokens,
                                    uint32_t flags,
                                    char *text,
                                    uint64_t capacity,
                                    uint64_t *text_bytes);

// Whether a token ends a text: `*is_end` is 1 or 0. A token outside the vocabulary does not.
//
// Threads: any; one at a time. Codes: `ICTUS_ERR_OP_UNSUPPORTED` (an engine without a model file).
ictus_status ictus_model_is_end(ictus_model_t model, uint32_t token, uint32_t *is_end);

// Begins a text that grows token by token, as the continuation of a prompt. It keeps the bytes of a character that is not complete.
//
// `flags`: `ICTUS_TEXT_SHOW_SPECIAL`.
// Owner: `*text` is the host's, until `ictus_text_end`; the model's release ends it too. It is not 0, and no number comes twice.
// Threads: any; one at a time. Codes: `ICTUS_REJECT_BOUNDS` (flags), `ICTUS_ERR_OP_UNSUPPORTED` (an engine without a model file).
ictus_status ictus_text_begin(ictus_model_t model,
                              uint32_t flags,
                              uint64_t *text);

// Appends a token and gives the text that is certain now and was not before, in whole characters; often none.
//
// A NUL follows the text and needs room; `*piece_bytes` does not count it, and is written also when the buffer is too small.
// Threads: any; one at a time.
// Codes: `ICTUS_ERR_BUFFER_TOO_SMALL`, `ICTUS_REJECT_BOUNDS` (a token outside the vocabulary), `ICTUS_ERR_UNKNOWN_HANDLE` (no such text).
// The text is as before then, and the token may be pushed again.
ictus_status ictus_text_push(ictus_model_t model,
                             uint64_t text,
                             uint32_t token,
                             char *piece,
                             uint64_t capacity,
                             uint64_t *piece_bytes);

// Ends a text and gives what is left of it: U+FFFD when it ended inside a character, else nothing.
//
// The buffer as with `ictus_text_push`; four bytes are enough. Threads: any; one at a time.
// Codes: `ICTUS_ERR_BUFFER_TOO_SMALL` (it goes on), `ICTUS_ERR_UNKNOWN_HANDLE` (no such text).
ictus_status ictus_text_end(ictus_model_t model, uint64_t text, char *piece, uint64_t capacity, uint64_t *piece_bytes);

// The prompt of a chat as text, by the model's template.
//
// `flags`: `ICTUS_CHAT_GENERATION_PROMPT`. `now_unix_s`: the time for templates that write a date, in seconds since 1970; negative when
// they shall not. The buffer as with `ictus_model_detokenize`. Threads: any; one at a time.
// Codes: `ICTUS_ERR_BUFFER_TOO_SMALL` (`prompt` is as before), `ICTUS_REJECT_BAD_STRUCT` (the template refuses these messages, or a
// text is not UTF-8), `ICTUS_REJECT_BOUNDS` (flags), `ICTUS_ERR_OP_UNSUPPORTED` (no template).
ictus_status ictus_model_chat_text(ictus_model_t model,
                                   const ictus_chat_message_t *messages,
                                   uint64_t n_messages,
                                   uint32_t flags,
                                   int64_t now_unix_s,
                                   char *prompt,
                                   uint64_t capacity,
                                   uint64_t *prompt_bytes);

// The prompt of a chat as tokens, with the token that begins a text exactly once where the model wants it.
//
// The buffer as with `ictus_model_tokenize`; the rest as `ictus_model_chat_text`.
ictus_status ictus_model_chat_tokens(ictus_model_t model,
                                     const ictus_chat_message_t *messages,
                                     uint64_t n_messages,
                                     uint32_t flags,
                                     int64_t now_unix_s,
                                     uint32_t *tokens,
                                     uint64_t capacity,
                                     uint64_t *n_tokens);

// Runs one plan: the whole of it, or nothing.
//
// Owner: `*events` is the model's; it and everything it points at stay as they are until the next `ictus_tick` on this model or
// its release, whatever else is called in between. Copy what you keep.
// Threads: any; one at a time. The plan's partial-emit callback runs on this thread, from inside this call.
// Codes: any `ICTUS_REJECT_*` and `ICTUS_NEEDS_REPLAN`: the plan was refused, nothing changed, its `plan_seq` may be used again, and
// the events of the tick before stay. `ICTUS_EBUSY`: a driver ticks this model. `ICTUS_ERR_FATAL`: the model is broken, and only its release works.
ictus_status ictus_tick(ictus_model_t model,
                        const ictus_tick_plan_t *plan,
                        const ictus_tick_events_t **events);

// What the model and its runtime can do, as NUL-terminated JSON; NULL when the engine does not say.
//
// Owner: the model, until its release; the same text on every call. Threads: any; one at a time.
const char *ictus_capability_descriptor(ictus_model_t model);

// What engines of this library can do whatever model they run, as JSON: the part of the capability descriptor that no model decides.
//
// `*bytes`: the length without the NUL that follows, also when it does not fit into `capacity`.
// Threads: any. Codes: `ICTUS_ERR_BUFFER_TOO_SMALL`.
ictus_status ictus_capability_without_model(char *text,
                                            uint64_t capacity,
                                            uint64_t *bytes);

// Releases a model: its lanes, sequences, pages, threads, and everything it handed out. It waits for a call on another thread to
// return. Attached rings and control words are the host's again.
//
// Codes: `ICTUS_ERR_UNKNOWN_HANDLE`: NULL, or released before; `ICTUS_EBUSY`: called from a callback of this model, which goes on
// living.
ictus_status ictus_model_free(ictus_model_t model);

// What a live lane has cost so far. Set `cost->struct_size` before the call.
//
// Threads: any; one at a time. Codes: `ICTUS_REJECT_BAD_STRUCT`, `ICTUS_REJECT_UNKNOWN_LANE` (no such live lane, or the engine does not
// count).
ictus_status ictus_lane_cost(ictus_model_t model,
                             uint64_t lane_tag,
                             ictus_lane_cost_t *cost);

// Records what the engine does from here on into a file, as trace events that Chrome's and Perfetto's viewers open.
//
// `path`: NUL-terminated; the file is made, or emptied. One event a line; a file that was never stopped lacks the end of the array, which
// the viewers accept. One timeline per model.
// Threads: any; one at a time. Codes: `ICTUS_REJECT_BAD_STRUCT` (NULL, not UTF-8), `ICTUS_EBUSY` (one is being recorded),
// `ICTUS_ERR_UNKNOWN_HANDLE` (the file cannot be made), `ICTUS_ERR_OP_UNSUPPORTED`. Nothing is recorded then.
ictus_status ictus_timeline_start(ictus_model_t model,
                                  const char *path);

// Ends the timeline and its file.
//
// Threads: any; one at a time. Codes: `ICTUS_ERR_UNKNOWN_HANDLE` (none is recorded), `ICTUS_REJECT_BOUNDS` (the file could not be written
// whole: it ends where that was noticed, and the recording has ended).
ictus_status ictus_timeline_stop(ictus_model_t model);

// The version of the library as text, for example `0.1.0`; `ICTUS_VERSION` is that of the header. Never NULL.
//
// Owner: the library, for ever. Threads: any.
const char *ictus_version(void);

// Hash of the layouts of all records and the values of all constants of tick schema draft 7 in the library; `ICTUS_ABI_HASH` is
// that of the header. When the two are equal, library and host agree on every byte.
//
// It is XXH3-64 of the file `tests/abi-layout.tsv` of the source. Threads: any.
uint64_t ictus_abi_hash(void);

// Embeds a text: the pooled last hidden states, as many numbers as the model's hidden width.
//
// How they are pooled says the capability descriptor (`workload.embedding`): as the model names it, else the last token's. The vector has
// length 1 only where the model says so. Computed with the default adapter, if there is one; no lane sees anything of it.
// `*count`: the numbers, also when they do not fit into `capacity`.
// Threads: any; one at a time. Codes: `ICTUS_REJECT_BOUNDS` (no tokens, foreign ones, more than the context), `ICTUS_ERR_BUFFER_TOO_SMALL`,
// `ICTUS_NEEDS_REPLAN` (no room in the pool), `ICTUS_ERR_OP_UNSUPPORTED`. Nothing changes then.
ictus_status ictus_embed(ictus_model_t model,
                         const uint32_t *tokens,
                         uint64_t n_tokens,
                         float *vector,
                         uint64_t capacity,
                         uint64_t *count);

// Number of layers that the model can be split by; 0 when it cannot.
//
// Threads: any; one at a time. Codes: none of its own.
ictus_status ictus_layers(ictus_model_t model, uint32_t *layers);

// Runs the layers from `first` on and before `end` over all of a token list.
//
// `incoming`: the bytes that the stage before gave for the same tokens; NULL with 0 for the first stage. The last stage writes the
// greedy token to `*token`, and 0 to `*bytes`. Any other writes `ICTUS_NO_TOKEN` there, and its bytes to `leaving`; they are opaque. `*bytes`
// is also written when they do not fit into `capacity`.
// Threads: any; one at a time. Codes: `ICTUS_REJECT_BOUNDS` (layers, tokens), `ICTUS_REJECT_BAD_STRUCT` (not the bytes of the stage before),
// `ICTUS_ERR_BUFFER_TOO_SMALL`, `ICTUS_NEEDS_REPLAN` (no room in the pool), `ICTUS_ERR_OP_UNSUPPORTED`. Nothing changes then.
ictus_status ictus_forward_stage(ictus_model_t model,
                                 const uint32_t *tokens,
                                 uint64_t n_tokens,
                                 uint32_t first,
                                 uint32_t end,
                                 const uint8_t *incoming,
                                 uint64_t incoming_bytes,
                                 uint8_t *leaving,
                                 uint64_t capacity,
                                 uint64_t *bytes,
                                 uint32_t *token);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* ICTUS_H */
