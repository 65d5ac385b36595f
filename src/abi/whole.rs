//! Whole texts outside lanes: embeddings, and stages of a model that is split by layers.

use super::bundle::{ModelHandle, StatusCode, status};
use super::constant::NO_TOKEN;
use super::guard::{buffer, hand_over, list, out};
use crate::engine::StageOutput;

/// Embeds a text: the pooled last hidden states, as many numbers as the model's hidden width.
///
/// How they are pooled says the capability descriptor (`workload.embedding`): as the model names it, else the last token's. The vector has
/// length 1 only where the model says so. Computed with the default adapter, if there is one; no lane sees anything of it.
/// `*count`: the numbers, also when they do not fit into `capacity`.
/// Threads: any; one at a time. Codes: `ICTUS_REJECT_BOUNDS` (no tokens, foreign ones, more than the context), `ICTUS_ERR_BUFFER_TOO_SMALL`,
/// `ICTUS_NEEDS_REPLAN` (no room in the pool), `ICTUS_ERR_OP_UNSUPPORTED`. Nothing changes then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_embed(
    model: ModelHandle,
    tokens: *const u32,
    n_tokens: u64,
    vector: *mut f32,
    capacity: u64,
    count: *mut u64,
) -> StatusCode {
    status(model, "ictus_embed", |inside| {
        // SAFETY: the caller's pointer, as the module's documentation asks.
        let tokens = unsafe { list(tokens, n_tokens) }?;
        // SAFETY: as above.
        let vector = unsafe { buffer(vector, capacity) }?;
        // SAFETY: as above.
        let count = unsafe { out(count) }?;
        Ok(hand_over(&inside.engine.embed(tokens)?, &vector, count)?)
    })
}

/// Number of layers that the model can be split by; 0 when it cannot.
///
/// Threads: any; one at a time. Codes: none of its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_layers(model: ModelHandle, layers: *mut u32) -> StatusCode {
    status(model, "ictus_layers", |inside| {
        // SAFETY: the caller's pointer, as the module's documentation asks.
        let layers = unsafe { out(layers) }?;
        layers.set(inside.engine.n_layers());
        Ok(())
    })
}

/// Runs the layers from `first` on and before `end` over all of a token list.
///
/// `incoming`: the bytes that the stage before gave for the same tokens; NULL with 0 for the first stage. The last stage writes the
/// greedy token to `*token`, and 0 to `*bytes`. Any other writes `ICTUS_NO_TOKEN` there, and its bytes to `leaving`; they are opaque. `*bytes`
/// is also written when they do not fit into `capacity`.
/// Threads: any; one at a time. Codes: `ICTUS_REJECT_BOUNDS` (layers, tokens), `ICTUS_REJECT_BAD_STRUCT` (not the bytes of the stage before),
/// `ICTUS_ERR_BUFFER_TOO_SMALL`, `ICTUS_NEEDS_REPLAN` (no room in the pool), `ICTUS_ERR_OP_UNSUPPORTED`. Nothing changes then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_forward_stage(
    model: ModelHandle,
    tokens: *const u32,
    n_tokens: u64,
    first: u32,
    end: u32,
    incoming: *const u8,
    incoming_bytes: u64,
    leaving: *mut u8,
    capacity: u64,
    bytes: *mut u64,
    token: *mut u32,
) -> StatusCode {
    status(model, "ictus_forward_stage", |inside| {
        // SAFETY: the caller's pointer, as the module's documentation asks.
        let tokens = unsafe { list(tokens, n_tokens) }?;
        // SAFETY: as above.
        let incoming = unsafe { list(incoming, incoming_bytes) }?;
        // SAFETY: as above.
        let leaving = unsafe { buffer(leaving, capacity) }?;
        // SAFETY: as above.
        let bytes = unsafe { out(bytes) }?;
        // SAFETY: as above.
        let token = unsafe { out(token) }?;
        let incoming = (!incoming.is_empty()).then_some(incoming);
        match inside.engine.forward_stage(tokens, first, end, incoming)? {
            StageOutput::Token(picked) => {
                bytes.set(0);
                token.set(picked);
            }
            StageOutput::Hidden(hidden) => {
                hand_over(&hidden, &leaving, bytes)?;
                token.set(NO_TOKEN);
            }
        }
        Ok(())
    })
}
