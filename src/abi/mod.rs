#![allow(
    clippy::missing_safety_doc,
    reason = "one contract for all functions stands below; a copy in each would say nothing more"
)]
//! The C boundary: check, convert, call the engine, convert back. There is no logic here.
//!
//! `include/ictus.h` is generated from this module and from [`record`](crate::record); the documentation of a function here is its
//! documentation there.
//!
//! # Safety
//! Every function with pointers is unsafe for the same reasons, which its caller promises:
//! - A pointer that is not NULL is valid for the type and count that the function names, for the length of the call, and longer
//!   where the function says so. NULL and misaligned pointers are noticed and refused.
//! - Nobody writes to what a function reads, nor touches what it writes, while it runs.
//! - Memory that an array of a record names is readable as the array says (A-10 .. A-13 are checked before it is read).
//!
//! Handles carry no promise: they are numbers, looked up and never followed ([`handle`]).
//!
//! # Invariants
//! - No panic leaves a function: it becomes `Fatal`, and so does every later call on that model but its release ([`guard`]).
//! - One thread is inside a model at a time. Another one waits; the same one, from a callback, is refused with `Busy`.
//! - Outputs are written on success only, but for the sizes that `BufferTooSmall` reports.

mod account;
mod adapter;
pub mod bundle;
mod cache;
mod capacity;
pub mod constant;
mod driver;
mod executor;
mod guard;
mod handle;
pub mod layout;
mod log;
mod media;
mod model;
mod ops;
mod ring;
mod sampling;
mod seed;
mod sequence;
mod space;
mod status;
mod strategy;
mod text;
mod tick;
mod trace;
mod version;
mod whole;

pub use account::{AccountNumber, OpaqueAccount, ictus_account_create, ictus_account_free, ictus_account_level};
pub use adapter::{
    ictus_adapter_bind, ictus_adapter_bytes, ictus_adapter_digest, ictus_adapter_load, ictus_adapter_unload,
    ictus_lora_load, ictus_lora_unload, ictus_seed_acquire_adapted, ictus_space_match_adapted,
    ictus_tick_sequence_adapt,
};
pub use bundle::{ModelHandle, OpId, SequenceHandle, StatusCode, adopt_engine};
pub use cache::{ictus_cache_evict, ictus_cache_evict_entries, ictus_unpublish};
pub use capacity::{
    BlockedRecord, CapacityHandle, MemoryRecord, OpaqueWait, ShortfallRecord, TicketRecord, WaitNumber,
    ictus_capacity_changed, ictus_capacity_memory, ictus_capacity_now, ictus_capacity_wait, ictus_capacity_wait_begin,
    ictus_capacity_wait_end, ictus_last_blocked, ictus_ticket_union,
};
pub use driver::{
    DriverChoices, DriverEvent, DriverNumber, DriverRequest, OpaqueDriver, ictus_driver_cancel, ictus_driver_create,
    ictus_driver_destroy, ictus_driver_next_event, ictus_driver_step, ictus_driver_submit,
};
pub use executor::{
    AdmissionRecord, ExecutorChoices, ExecutorInfo, ExecutorNumber, ExecutorSeq, ExecutorStats, LatencyRecord,
    LogitsRecord, OpaqueExecutor, ReceiptRecord, RefusalRecord, RowRecord, WorkRecord, adopt_core,
    ictus_blocked_narrower, ictus_executor_absent, ictus_executor_admit, ictus_executor_close, ictus_executor_create,
    ictus_executor_destroy, ictus_executor_estimate, ictus_executor_frees, ictus_executor_frontier,
    ictus_executor_grow, ictus_executor_held, ictus_executor_info, ictus_executor_last_error, ictus_executor_open,
    ictus_executor_prepare, ictus_executor_reserve, ictus_executor_run, ictus_executor_shutdown, ictus_executor_stats,
    ictus_executor_tick_host, ictus_executor_truncate,
};
pub use handle::OpaqueSequence;
pub use log::{LogFn, ictus_model_last_error, ictus_model_log};
pub use media::{ictus_media_bind, ictus_media_encode, ictus_media_probe, ictus_media_release};
pub use model::{
    ClaimedSampling, ModelInfo, ModelPlan, OpenOptions, ictus_model_info, ictus_model_open, ictus_model_plan,
    ictus_model_sampling_defaults,
};
pub use ops::{ictus_op_cancel, ictus_op_poll, ictus_pump};
pub use ring::{
    RingShape, ictus_control_attach, ictus_model_read_logits, ictus_model_read_tokens, ictus_model_rings_create,
    ictus_model_set_latency, ictus_model_set_yield, ictus_model_stage_prompt, ictus_rings_attach,
};
pub use sampling::{
    ictus_grammar_create_lark, ictus_grammar_create_regex, ictus_tick_grammar_create,
    ictus_tick_grammar_create_structural, ictus_tick_grammar_free, ictus_tick_logit_bias_create,
    ictus_tick_logit_bias_free,
};
pub use seed::{ictus_seed_acquire, ictus_seed_adopt, ictus_seed_lease_ticks, ictus_seed_release, ictus_space_match};
pub use sequence::{
    ictus_seq_fork, ictus_tick_lane_sequence, ictus_tick_sequence_create, ictus_tick_sequence_free,
    ictus_tick_sequence_publish,
};
pub use space::{
    ictus_space_demote, ictus_space_export_size, ictus_space_promote, ictus_space_restore, ictus_space_snapshot,
    ictus_space_snapshot_boundary, ictus_space_trim, ictus_state_spaces,
};
pub use status::{
    ictus_explain, ictus_explain_admit, ictus_explain_fault, ictus_explain_finish, ictus_explain_shed,
    ictus_status_text,
};
pub use strategy::ictus_strategy_register;
pub use text::{
    ChatMessage, ictus_model_chat_text, ictus_model_chat_tokens, ictus_model_detokenize, ictus_model_is_end,
    ictus_model_tokenize, ictus_text_begin, ictus_text_end, ictus_text_push,
};
pub use tick::{ictus_capability_descriptor, ictus_capability_without_model, ictus_model_free, ictus_tick};
pub use trace::{LaneCostRecord, ictus_lane_cost, ictus_timeline_start, ictus_timeline_stop};
pub use version::{ictus_abi_hash, ictus_version};
pub use whole::{ictus_embed, ictus_forward_stage, ictus_layers};
