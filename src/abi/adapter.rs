//! Adapters: loaded once, given to lanes one by one.

use core::ffi::c_char;

use super::bundle::{Inside, ModelHandle, SequenceHandle, StatusCode, status};
use super::guard::{Failure, Outcome, out, text};
use super::{handle, seed};
use crate::record::view::Unbounded;
use crate::record::{Array, MatchResult, Status, TokenRef};

/// The status of an adapter that was refused, with the engine's reason.
fn refused(inside: &Inside, status: Status) -> Failure {
    match inside.engine.adapter_refusal() {
        Some(reason) => Failure::new(status, reason),
        None => status.into(),
    }
}

/// Loads a LoRA adapter: a PEFT directory, its `adapter_model.safetensors`, or a GGUF file (NUL-terminated path).
///
/// `*adapter`: its handle, not 0. The same content gives the same handle again; it is unloaded as often as it was loaded. The file is
/// not needed afterwards.
/// Owner: the host, which gives it back with `ictus_adapter_unload`. Threads: any; one at a time.
/// Codes: `ICTUS_ERR_UNKNOWN_HANDLE` (cannot be read), `ICTUS_REJECT_BAD_STRUCT` (broken, or not for this model),
/// `ICTUS_ERR_OP_UNSUPPORTED` (a variant or a matrix that is not computed, or an engine without adapters), `ICTUS_NEEDS_REPLAN` (no
/// memory). The last error says where. Nothing is kept then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_adapter_load(model: ModelHandle, path: *const c_char, adapter: *mut u64) -> StatusCode {
    status(model, "ictus_adapter_load", |inside| {
        // SAFETY: the caller's pointer, as the module's documentation asks.
        let path = unsafe { text(path) }?;
        // SAFETY: as above.
        let adapter = unsafe { out(adapter) }?;
        let loaded = inside.engine.adapter_load(path).map_err(|status| refused(inside, status))?;
        adapter.set(loaded);
        Ok(())
    })
}

/// Takes back one load of an adapter. After the last one no new lane gets it: it is bound to no tag and is no default. Lanes, sequences and
/// cached state that have it keep it; its memory is free when they are gone.
///
/// Threads: any; one at a time. Codes: `ICTUS_ERR_UNKNOWN_HANDLE`, `ICTUS_ERR_OP_UNSUPPORTED`. Nothing changes then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_adapter_unload(model: ModelHandle, adapter: u64) -> StatusCode {
    status(model, "ictus_adapter_unload", |inside| Ok(inside.engine.adapter_unload(adapter)?))
}

/// Gives the next lane that is admitted under a tag an adapter; 0 takes the word back. A refused plan uses no word up.
///
/// Threads: any; one at a time. Codes: `ICTUS_ERR_UNKNOWN_HANDLE`, `ICTUS_ERR_OP_UNSUPPORTED`. Nothing changes then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_adapter_bind(model: ModelHandle, lane_tag: u64, adapter: u64) -> StatusCode {
    status(model, "ictus_adapter_bind", |inside| Ok(inside.engine.adapter_bind(lane_tag, adapter)?))
}

/// Bytes that adapters take now, beyond the plan of the model: those that are loaded, those that a lane, a sequence or a cached state still carries,
/// and the rows to compute with them, which stay once there was one.
///
/// Threads: any; one at a time. Codes: `ICTUS_ERR_UNKNOWN_HANDLE` (model).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_adapter_bytes(model: ModelHandle, bytes: *mut u64) -> StatusCode {
    status(model, "ictus_adapter_bytes", |inside| {
        // SAFETY: the caller's pointer, as the module's documentation asks.
        let bytes = unsafe { out(bytes) }?;
        bytes.set(inside.engine.adapter_bytes());
        Ok(())
    })
}

/// Identity of an adapter, 32 bytes: a digest of what it computes, the same for every file that says the same.
///
/// Threads: any; one at a time. Codes: `ICTUS_ERR_UNKNOWN_HANDLE`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_adapter_digest(model: ModelHandle, adapter: u64, digest: *mut u8) -> StatusCode {
    status(model, "ictus_adapter_digest", |inside| {
        // SAFETY: the caller's pointer, as the module's documentation asks.
        let digest = unsafe { out(digest.cast::<[u8; 32]>()) }?;
        digest.set(inside.engine.adapter_digest(adapter).ok_or(Status::UnknownHandle)?);
        Ok(())
    })
}

/// Says that a bare, empty sequence will hold state of an adapter, so that a restore can bring it in; 0 is the model alone.
///
/// Threads: any; one at a time. Codes: `ICTUS_ERR_UNKNOWN_HANDLE` (sequence, adapter), `ICTUS_EBUSY` (a lane's, leased, or not empty),
/// `ICTUS_ERR_OP_UNSUPPORTED`. Nothing changes then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_tick_sequence_adapt(
    model: ModelHandle,
    sequence: SequenceHandle,
    adapter: u64,
) -> StatusCode {
    status(model, "ictus_tick_sequence_adapt", |inside| {
        let sequence = handle::sequence_of(inside.number, sequence.addr())?;
        Ok(inside.engine.sequence_adapt(sequence, adapter)?)
    })
}

/// As `ictus_space_match`, among the state of one adapter; 0 is the model alone.
///
/// Codes: as there, and `ICTUS_ERR_UNKNOWN_HANDLE` (adapter).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_space_match_adapted(
    model: ModelHandle,
    space_id: u32,
    span: TokenRef,
    media_hashes: Array,
    adapter: u64,
    result: *mut *const MatchResult,
) -> StatusCode {
    status(model, "ictus_space_match_adapted", |inside| {
        // SAFETY: the caller's pointer, as the module's documentation asks.
        let result = unsafe { out(result) }?;
        // SAFETY: the caller promises that the array is readable and constant during the call.
        let memory = unsafe { Unbounded::new() };
        let media: Vec<[u8; 32]> = media_hashes.elements(&memory)?.collect();
        let tokens = seed::span(inside, &span)?;
        result.set(&raw const *inside.engine.space_match_adapted(space_id, &tokens, &media, adapter)?);
        Ok(())
    })
}

/// As `ictus_seed_acquire`, among the state of one adapter; 0 is the model alone. The lane that is admitted with the lease must have the
/// same adapter, else its admit is `ICTUS_REJECT_STALE_SEED`.
///
/// Codes: as there, and `ICTUS_ERR_UNKNOWN_HANDLE` (adapter).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_seed_acquire_adapted(
    model: ModelHandle,
    span: TokenRef,
    prefix_len: u64,
    determinism_class: u8,
    adapter: u64,
    lease: *mut u64,
) -> StatusCode {
    status(model, "ictus_seed_acquire_adapted", |inside| {
        // SAFETY: the caller's pointer, as the module's documentation asks.
        let lease = unsafe { out(lease) }?;
        let tokens = seed::span(inside, &span)?;
        lease.set(inside.engine.seed_acquire_adapted(&tokens, prefix_len, determinism_class, adapter)?);
        Ok(())
    })
}

/// Loads an adapter, as `ictus_adapter_load`, and makes it the default in place of the one before: lanes admitted later have it, unless
/// their tag is bound to another.
///
/// Threads: any; one at a time. Codes: as there. The default before stays then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_lora_load(model: ModelHandle, path: *const c_char) -> StatusCode {
    status(model, "ictus_lora_load", |inside| {
        // SAFETY: the caller's pointer, as the module's documentation asks.
        let path = unsafe { text(path) }?;
        let loaded: Outcome<()> = inside.engine.lora_load(path).map_err(|status| refused(inside, status));
        loaded
    })
}

/// Ends the default adapter and unloads it; lanes that have it keep it.
///
/// Threads: any; one at a time. Codes: `ICTUS_ERR_UNKNOWN_HANDLE` (there is none), `ICTUS_ERR_OP_UNSUPPORTED`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_lora_unload(model: ModelHandle) -> StatusCode {
    status(model, "ictus_lora_unload", |inside| Ok(inside.engine.lora_unload()?))
}
