//! What steers sampling: grammars and logit biases.

use core::ffi::{c_char, c_int};

use super::bundle::{Inside, ModelHandle, StatusCode, status, value};
use super::guard::{Outcome, list, text};
use crate::record::Status;

/// Compiles a JSON schema (NUL-terminated) into a grammar; 0 when it does not parse or compile, or grammars are not offered.
///
/// Owner: the host, which frees it. Threads: any; one at a time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_tick_grammar_create(model: ModelHandle, schema: *const c_char) -> u32 {
    let grammar = value(model, "ictus_tick_grammar_create", |inside| {
        // SAFETY: the caller's pointer, as the module's documentation asks.
        let schema = unsafe { text(schema) }?;
        Ok(inside.engine.grammar_create(schema)?)
    });
    grammar.unwrap_or(0)
}

/// Compiles a structural-tag document (NUL-terminated JSON) into a grammar; 0 as with `ictus_tick_grammar_create`.
///
/// Owner: the host, which frees it. Threads: any; one at a time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_tick_grammar_create_structural(model: ModelHandle, document: *const c_char) -> u32 {
    let grammar = value(model, "ictus_tick_grammar_create_structural", |inside| {
        // SAFETY: the caller's pointer, as the module's documentation asks.
        let document = unsafe { text(document) }?;
        Ok(inside.engine.grammar_create_structural(document)?)
    });
    grammar.unwrap_or(0)
}

/// Frees a grammar; one that a lane uses goes when the lane ends.
///
/// Threads: any; one at a time. Codes: `ICTUS_ERR_UNKNOWN_HANDLE`, `ICTUS_ERR_OP_UNSUPPORTED`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_tick_grammar_free(model: ModelHandle, grammar: u32) -> StatusCode {
    status(model, "ictus_tick_grammar_free", |inside| Ok(inside.engine.grammar_free(grammar)?))
}

/// Keeps `n` addends for the logits of `n` tokens; 0 when `n` is not positive or a pointer is NULL. Tokens outside the vocabulary
/// are dropped; one that is listed twice gets both addends.
///
/// Owner: the host, which frees it; an admitted lane has a copy. Threads: any; one at a time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_tick_logit_bias_create(
    model: ModelHandle,
    tokens: *const i32,
    values: *const f32,
    n: c_int,
) -> u32 {
    let bias = |inside: &mut Inside| -> Outcome<u32> {
        let count = u64::try_from(n).ok().filter(|&count| count > 0).ok_or(Status::RejectBounds)?;
        // SAFETY: the caller's pointer, as the module's documentation asks.
        let tokens = unsafe { list(tokens, count) }?;
        // SAFETY: as above.
        let values = unsafe { list(values, count) }?;
        Ok(inside.engine.logit_bias_create(tokens, values)?)
    };
    value(model, "ictus_tick_logit_bias_create", bias).unwrap_or(0)
}

/// Frees a bias; lanes that were admitted with it keep their copy.
///
/// Threads: any; one at a time. Codes: `ICTUS_ERR_UNKNOWN_HANDLE`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_tick_logit_bias_free(model: ModelHandle, bias: u32) -> StatusCode {
    status(model, "ictus_tick_logit_bias_free", |inside| Ok(inside.engine.logit_bias_free(bias)?))
}
