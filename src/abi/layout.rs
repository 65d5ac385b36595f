#![forbid(unsafe_code)]
//! The records of the extension functions, as a table like that of [`record::layout`](crate::record::layout).
//!
//! They are not part of the ABI hash: they begin with their size and grow at their end.

use super::{ChatMessage, ModelInfo, ModelPlan, OpenOptions, RingShape};
use crate::record::layout::table::records;

records! {
    /// Every record of the extensions.
    EXTENSION_RECORDS
    record RingShape "RingShape" "ictus_ring_shape_t" {
        struct_size: "uint64_t",
        token_slots: "uint32_t",
        prompt_tokens: "uint32_t",
        emit_tokens: "uint32_t",
        logits_slots: "uint32_t",
        row_logits: "uint32_t",
        _pad0: "uint32_t",
    }
    record OpenOptions "OpenOptions" "ictus_model_options_t" {
        struct_size: "uint64_t",
        device: "uint32_t",
        threads: "uint32_t",
        kv_type: "uint32_t",
        page_size_tokens: "uint32_t",
        context_tokens: "uint32_t",
        max_lanes: "uint32_t",
        pool_tokens: "uint64_t",
        prefill_step_tokens: "uint32_t",
        log_level: "uint32_t",
        on_progress: "uint32_t (*)(void *user, uint64_t done_bytes, uint64_t total_bytes)",
        progress_user: "void *",
        on_log: "void (*)(void *user, uint32_t level, const char *text)",
        log_user: "void *",
    }
    record ModelPlan "ModelPlan" "ictus_model_plan_t" {
        struct_size: "uint64_t",
        weights_mapped_bytes: "uint64_t",
        kv_pool_bytes: "uint64_t",
        activation_bytes: "uint64_t",
        table_bytes: "uint64_t",
        total_bytes: "uint64_t",
    }
    record ModelInfo "ModelInfo" "ictus_model_info_t" {
        struct_size: "uint64_t",
        vocab_size: "uint32_t",
        context_tokens: "uint32_t",
        layers: "uint32_t",
        hidden: "uint32_t",
        bos_token: "uint32_t",
        eos_token: "uint32_t",
        eot_token: "uint32_t",
        adds_bos: "uint8_t",
        adds_eos: "uint8_t",
        has_chat_template: "uint8_t",
        _pad0: "uint8_t",
    }
    value ChatMessage "ChatMessage" "ictus_chat_message_t" {
        role: "const char *",
        content: "const char *",
    }
}
