#![forbid(unsafe_code)]
//! The records of the extension functions, as a table like that of [`record::layout`](crate::record::layout).
//!
//! They are not part of the ABI hash: they begin with their size and grow at their end.

use super::RingShape;
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
}
