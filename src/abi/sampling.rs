//! What steers sampling: grammars and logit biases.

use core::ffi::{c_char, c_int};

use super::bundle::{Inside, ModelHandle, StatusCode, status, value};
use super::guard::{Failure, Outcome, list, text};
use crate::engine::Engine;
use crate::record::Status;

/// Compiles a JSON schema (NUL-terminated) into a grammar; 0 when it does not parse or compile, fits no text, exceeds the limits, or
/// grammars are not offered. The last error says why.
///
/// Owner: the host, which frees it. Threads: any; one at a time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_tick_grammar_create(model: ModelHandle, schema: *const c_char) -> u32 {
    // SAFETY: the caller's pointer, as the module's documentation asks.
    unsafe { create(model, "ictus_tick_grammar_create", schema, |engine, text| engine.grammar_create(text)) }
}

/// Compiles a structural-tag document (NUL-terminated JSON) into a grammar; 0 as with `ictus_tick_grammar_create`.
///
/// Owner: the host, which frees it. Threads: any; one at a time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_tick_grammar_create_structural(model: ModelHandle, document: *const c_char) -> u32 {
    let call = "ictus_tick_grammar_create_structural";
    // SAFETY: the caller's pointer, as the module's documentation asks.
    unsafe { create(model, call, document, |engine, text| engine.grammar_create_structural(text)) }
}

/// Compiles a regular expression (NUL-terminated) that the whole text has to match; 0 as with `ictus_tick_grammar_create`.
///
/// Owner: the host, which frees it. Threads: any; one at a time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_grammar_create_regex(model: ModelHandle, pattern: *const c_char) -> u32 {
    // SAFETY: the caller's pointer, as the module's documentation asks.
    unsafe { create(model, "ictus_grammar_create_regex", pattern, |engine, text| engine.grammar_create_regex(text)) }
}

/// Compiles a grammar in Lark notation (NUL-terminated); 0 as with `ictus_tick_grammar_create`.
///
/// Owner: the host, which frees it. Threads: any; one at a time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_grammar_create_lark(model: ModelHandle, grammar: *const c_char) -> u32 {
    // SAFETY: the caller's pointer, as the module's documentation asks.
    unsafe { create(model, "ictus_grammar_create_lark", grammar, |engine, text| engine.grammar_create_lark(text)) }
}

/// Compiles a document and, when the engine refuses it, keeps the reason in words.
///
/// # Safety
/// `document`, when not NULL, is a NUL-terminated text that nobody changes during the call.
unsafe fn create(
    model: ModelHandle,
    call: &str,
    document: *const c_char,
    compile: fn(&mut dyn Engine, &str) -> Result<u32, Status>,
) -> u32 {
    let grammar = value(model, call, |inside| {
        // SAFETY: promised by the caller.
        let document = unsafe { text(document) }?;
        let engine = &mut *inside.engine;
        compile(engine, document).map_err(|status| match engine.grammar_refusal() {
            // An engine that is out of use refused nothing just now.
            Some(reason) if status != Status::Fatal => Failure::new(status, reason),
            _ => status.into(),
        })
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
