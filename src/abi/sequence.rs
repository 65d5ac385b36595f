//! Sequences: model state that lanes own, and bare ones that the host owns.

use super::bundle::{ModelHandle, SequenceHandle, StatusCode, sequence_handle, sequence_status, status, value};
use super::guard::{list, out};
use super::handle;
use crate::record::Status;

/// A bare child that starts where the parent stands. The pages of the parent are shared until one of the two writes.
///
/// `flags`: `ICTUS_FORK_*`.
/// Owner: the child is the host's. Threads: any; one at a time per model.
/// Codes: `ICTUS_ERR_UNKNOWN_HANDLE`, `ICTUS_EBUSY`, `ICTUS_NEEDS_REPLAN` (no room), `ICTUS_ERR_OUT_OF_BOUNDARY`. Nothing changes then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_seq_fork(parent: SequenceHandle, child: *mut SequenceHandle, flags: u32) -> StatusCode {
    sequence_status(parent, "ictus_seq_fork", |inside, parent| {
        // SAFETY: the caller's pointer, as the module's documentation asks.
        let child = unsafe { out(child) }?;
        let forked = inside.engine.seq_fork(parent, flags)?;
        child.set(sequence_handle(inside.sequences.number(inside.number, forked)));
        Ok(())
    })
}

/// The sequence of a live lane; NULL when there is no such lane. The same handle each time while the lane lives.
///
/// Owner: the lane; the handle is stale once the lane has ended. Threads: any; one at a time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_tick_lane_sequence(model: ModelHandle, lane_tag: u64) -> SequenceHandle {
    let number = value(model, "ictus_tick_lane_sequence", |inside| {
        let sequence = inside.engine.lane_sequence(lane_tag).ok_or(Status::RejectUnknownLane)?;
        Ok(inside.sequences.number_of_lane(inside.number, lane_tag, sequence))
    });
    number.map_or(core::ptr::null_mut(), sequence_handle)
}

/// A bare, empty sequence; NULL when there is no room, or the engine does not offer it.
///
/// Owner: the host, until it frees or publishes it, or an admit takes it by its lease. Threads: any; one at a time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_tick_sequence_create(model: ModelHandle) -> SequenceHandle {
    let number = value(model, "ictus_tick_sequence_create", |inside| {
        let sequence = inside.engine.create_sequence()?;
        Ok(inside.sequences.number(inside.number, sequence))
    });
    number.map_or(core::ptr::null_mut(), sequence_handle)
}

/// Frees a bare sequence; its handle is stale afterwards.
///
/// Threads: any; one at a time. Codes: `ICTUS_ERR_UNKNOWN_HANDLE` (not a bare sequence of this model), `ICTUS_EBUSY` (leased). It lives
/// on then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_tick_sequence_free(model: ModelHandle, sequence: SequenceHandle) -> StatusCode {
    status(model, "ictus_tick_sequence_free", |inside| {
        let sequence = handle::sequence_of(inside.number, sequence.addr())?;
        inside.engine.free_sequence(sequence)?;
        inside.sequences.forget(sequence);
        Ok(())
    })
}

/// Moves a bare sequence into the prefix cache, under the `n_tokens` tokens that it holds. The handle is stale afterwards.
///
/// Threads: any; one at a time. Codes: `ICTUS_ERR_UNKNOWN_HANDLE` (not a bare sequence of this model), `ICTUS_EBUSY` (leased),
/// `ICTUS_ERR_OUT_OF_BOUNDARY` (the tokens do not fit), `ICTUS_ERR_OP_UNSUPPORTED`. The sequence stays the host's then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_tick_sequence_publish(
    model: ModelHandle,
    sequence: SequenceHandle,
    tokens: *const u32,
    n_tokens: u32,
) -> StatusCode {
    status(model, "ictus_tick_sequence_publish", |inside| {
        let sequence = handle::sequence_of(inside.number, sequence.addr())?;
        // SAFETY: the caller's pointer, as the module's documentation asks.
        let tokens = unsafe { list(tokens, n_tokens.into()) }?;
        inside.engine.publish_sequence(sequence, tokens)?;
        inside.sequences.forget(sequence);
        Ok(())
    })
}
