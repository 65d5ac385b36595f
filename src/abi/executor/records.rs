//! The records of executors.

use core::ffi::c_char;

use crate::abi::account::AccountNumber;
use crate::abi::capacity::{BlockedRecord, TicketRecord};
use crate::record::view::{record, zeroed};

/// What a host may choose when it makes an executor. Zero in a field means its default.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ExecutorChoices {
    /// The writer's size of this record in bytes; at least 88.
    pub struct_size: u64,
    /// Bytes of workspace that every batch is charged.
    pub workspace_bytes: u64,
    /// Bytes of workspace that a batch is charged per token.
    pub workspace_token_bytes: u64,
    /// Bytes of workspace that are installed at first; 0 is without bound.
    pub arena_bytes: u64,
    /// Bytes of workspace that can be installed; 0 is `arena_bytes`.
    pub arena_max_bytes: u64,
    /// Tokens of one batch of several items; 0 is one longest sequence and an item of each other.
    pub max_batch_tokens: u64,
    /// Device bytes that this executor may claim; 0 is without bound.
    pub budget_bytes: u64,
    /// Device bytes that all executors of the account may claim together, as this one declares; 0 declares nothing.
    pub ceiling_bytes: u64,
    /// The account that its device bytes are counted in; NULL is one of its own.
    pub account: AccountNumber,
    /// Items of one batch; 0 is the model's number of lanes.
    pub max_items: u32,
    /// Bit set of `ICTUS_EXECUTOR_*`.
    pub flags: u32,
    /// Bytes of host memory for state that leaves; 0 is without bound.
    pub host_export_bytes: u64,
}
const _: () = assert!(size_of::<ExecutorChoices>() == 88);
record!(ExecutorChoices, min_prefix: 88);

/// What an executor is; it never changes. A bound of `UINT64_MAX` is none.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ExecutorInfo {
    /// The reader's size of this record in bytes; at least 176.
    pub struct_size: u64,
    /// Sequences that can exist at once.
    pub max_sequences: u64,
    /// Tokens of one sequence.
    pub max_tokens: u64,
    /// Items of one batch.
    pub max_items: u64,
    /// Tokens of one batch of several items; a single item is never too wide.
    pub max_batch_tokens: u64,
    /// Tokens per block.
    pub block_tokens: u64,
    /// Blocks of the pool.
    pub blocks: u64,
    /// Bytes that are there whatever is admitted: weights and tables.
    pub static_bytes: u64,
    /// Bytes of state per token.
    pub token_bytes: u64,
    /// Bytes of state per sequence that do not depend on its length.
    pub sequence_bytes: u64,
    /// Bytes of workspace that every batch takes.
    pub workspace_bytes: u64,
    /// Bytes of workspace that a batch takes per token.
    pub workspace_token_bytes: u64,
    /// Length of a row; ids are below it.
    pub vocab: u32,
    /// Width of a key or value element in bits; 0 is unknown.
    pub kv_bits: u32,
    /// What is offered: bit `ICTUS_FEATURE_*` of each.
    pub features: u32,
    /// Zero.
    pub _pad0: u32,
    /// NUL-padded name of the device, at most 31 characters.
    pub device: [c_char; 32],
    /// NUL-padded name of the architecture, at most 31 characters.
    pub architecture: [c_char; 32],
}
const _: () = assert!(size_of::<ExecutorInfo>() == 176);
record!(ExecutorInfo, min_prefix: 176);

/// Names one incarnation of a sequence of an executor. It is data: one that is closed or of another executor is noticed and refused.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExecutorSeq {
    /// Part of the number of its coordinator; never 0.
    pub core: u32,
    /// Its slot, which is used again.
    pub slot: u32,
    /// Never used again.
    pub generation: u64,
}
const _: () = assert!(size_of::<ExecutorSeq>() == 16);
zeroed!(ExecutorSeq);

/// A sequence to be admitted. Its context is the prompt and what is replayed behind it; both are copied.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AdmissionRecord {
    /// The writer's size of this record in bytes; at least 72.
    pub struct_size: u64,
    /// The prompt as the product counts it; at least one token.
    pub prompt: *const u32,
    /// Their number.
    pub n_prompt: u64,
    /// Outputs that are computed again after a preemption.
    pub replayed: *const u32,
    /// Their number.
    pub n_replayed: u64,
    /// Longest total length that the sequence may reach, in tokens.
    pub ceiling: u64,
    /// For logs only.
    pub tag: u64,
    /// What must be free now, beside what is taken (`ICTUS_FIT_*`).
    pub fit: u32,
    /// What a shortage is answered with: `ICTUS_REMEDY_WAIT`, or `ICTUS_REMEDY_RECOMPUTE` for a host that looks for a victim.
    pub pressure: u32,
    /// Bit set of `ICTUS_ADMISSION_*`.
    pub flags: u32,
    /// Zero; readers ignore it.
    pub _pad0: u32,
}
const _: () = assert!(size_of::<AdmissionRecord>() == 72);
record!(AdmissionRecord, min_prefix: 72);

/// What is wanted of a row. All zero: the plain greedy token.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct LogitsRecord {
    /// The writer's size of this record in bytes; at least 48.
    pub struct_size: u64,
    /// A byte per id: not 0 allows it; ids at or past the end are forbidden. NULL allows all. Greedy only.
    pub mask: *const u8,
    /// Its bytes.
    pub n_mask: u64,
    /// Ids that are penalised; one that is named twice counts once. Greedy only.
    pub penalised: *const u32,
    /// Their number.
    pub n_penalised: u64,
    /// Divides values above 0 and multiplies the others; finite and above 0. 0 means 1, which changes nothing.
    pub penalty: f32,
    /// `ICTUS_LOGITS_*`.
    pub kind: u32,
}
const _: () = assert!(size_of::<LogitsRecord>() == 48);
record!(LogitsRecord, min_prefix: 48);

/// One item of a batch.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct WorkRecord {
    /// The sequence.
    pub seq: ExecutorSeq,
    /// Its frontier: where the chunk, the token or the tokens start.
    pub start: u64,
    /// Tokens: of the chunk; 1 of a decode; of a verification.
    pub count: u64,
    /// Tokens of the context; prefill only.
    pub total: u64,
    /// The tokens that are decoded or verified; a prefill has its context.
    pub tokens: *const u32,
    /// What is wanted of its rows; NULL is the plain greedy token. A prefill that does not end its context yields none.
    pub logits: *const LogitsRecord,
    /// `ICTUS_WORK_*`.
    pub kind: u32,
    /// Nonzero: all of a chunk or none; it is not narrowed.
    pub whole: u32,
}
const _: () = assert!(size_of::<WorkRecord>() == 64);
record!(WorkRecord, min_prefix: 64);

/// What came of one item.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RowRecord {
    /// The sequence.
    pub seq: ExecutorSeq,
    /// First token that was committed.
    pub ran_start: u64,
    /// Behind the last one; equal to the first when the item failed.
    pub ran_end: u64,
    /// Where its tokens or its values begin in the buffer of the call.
    pub first: u64,
    /// How many tokens, or rows of logits.
    pub count: u64,
    /// `ICTUS_OUT_*`.
    pub kind: u32,
    /// Failed claims of a chunk that was narrowed; at least 1 exactly when less ran than was planned.
    pub probes: u32,
    /// Of an item that failed: what went wrong (`ICTUS_EXECUTOR_FAULT_*`).
    pub fault: u32,
    /// Of an item that failed: what is known of its sequence (`ICTUS_SEQUENCE_*`).
    pub state: u32,
    /// Of an item that failed: the runtime's code, where it gave one.
    pub detail: u32,
    /// Zero.
    pub _pad0: u32,
}
const _: () = assert!(size_of::<RowRecord>() == 72);
zeroed!(RowRecord);

/// Why an executor refused a call, which changed nothing.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RefusalRecord {
    /// The reader's size of this record in bytes; at least 424.
    pub struct_size: u64,
    /// `ICTUS_REFUSAL_*`; `ICTUS_REFUSAL_NONE` when the call was done, or was refused before it came to the executor.
    pub kind: u32,
    /// Of a call that was wrong: how (`ICTUS_BAD_*`).
    pub why: u32,
    /// Of a call that was wrong: which item of it, counted from 0.
    pub at: u32,
    /// Of a mode that is not offered: which (`ICTUS_FEATURE_*`).
    pub feature: u32,
    /// What is short, for the time being or for ever. Its `struct_size` is 0 where nothing is.
    pub blocked: BlockedRecord,
}
const _: () = assert!(size_of::<RefusalRecord>() == 424);
record!(RefusalRecord, min_prefix: 424);

/// What a call gave back, and what it took or installed. Amounts are by domain, from `ICTUS_DOMAIN_SLOTS` on.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ReceiptRecord {
    /// The reader's size of this record in bytes; at least 216.
    pub struct_size: u64,
    /// Units that are free now and were not before.
    pub freed: [u64; 7],
    /// Units that were claimed, or installed.
    pub gained: [u64; 7],
    /// The epochs afterwards; watches the domains that were moved.
    pub at: TicketRecord,
    /// Nonzero: a sequence that was closed had begun to decode.
    pub decoding: u32,
    /// Nonzero: something is still held, and comes free later.
    pub pending: u32,
}
const _: () = assert!(size_of::<ReceiptRecord>() == 216);
record!(ReceiptRecord, min_prefix: 216);

/// How long something took.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct LatencyRecord {
    /// Samples of `2^i` to `2^(i + 1)` nanoseconds, shorter ones in the first, longer ones in the last.
    pub counts: [u64; 48],
    /// Sum of all samples in nanoseconds.
    pub total_ns: u64,
}
const _: () = assert!(size_of::<LatencyRecord>() == 392);
zeroed!(LatencyRecord);

/// What has happened in an executor so far.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ExecutorStats {
    /// The reader's size of this record in bytes; at least 992.
    pub struct_size: u64,
    /// What it is doing (`ICTUS_EXECUTOR_STATE_*`).
    pub state: u32,
    /// Zero.
    pub _pad0: u32,
    /// Counted sequences admitted.
    pub admissions: u64,
    /// Calls that were blocked.
    pub blocked: u64,
    /// Calls whose demand can never be met.
    pub never: u64,
    /// Calls for what is not offered.
    pub unsupported: u64,
    /// Calls that were wrong.
    pub bad: u64,
    /// Batches that were submitted.
    pub runs: u64,
    /// Rows answered, by `ICTUS_WORK_*`.
    pub rows: [u64; 3],
    /// Tokens of chunks that ran.
    pub prefill_tokens: u64,
    /// Tokens of decodes and verifications that ran.
    pub decode_tokens: u64,
    /// Chunks that were cut short.
    pub narrowings: u64,
    /// Growths that were published.
    pub growths: u64,
    /// Entries of the cache that left the pool to make room for a batch.
    pub evictions: u64,
    /// Items that failed, by `ICTUS_EXECUTOR_FAULT_*`.
    pub faults: [u64; 4],
    /// Rows that held a value that is not finite.
    pub non_finite_rows: u64,
    /// Sequences that completed.
    pub completed: u64,
    /// Prompt tokens of completed sequences.
    pub prompt_tokens: u64,
    /// Output tokens of completed sequences, as their host counted them.
    pub output_tokens: u64,
    /// Waits that are parked now.
    pub waiters: u64,
    /// Units whose owner was in doubt.
    pub accounting_faults: u64,
    /// How long batches took that held a chunk, per row of a chunk.
    pub prefill: LatencyRecord,
    /// How long batches took that held a decode, per row of a decode.
    pub decode: LatencyRecord,
}
const _: () = assert!(size_of::<ExecutorStats>() == 992);
record!(ExecutorStats, min_prefix: 992);
