//! State spaces: what there is, and moving state in and out.

use super::bundle::{ModelHandle, OpId, SequenceHandle, StatusCode, sequence_status, status};
use super::guard::out;
use super::ops::{destination, source, submitted};
use crate::record::{Array, Buf, TokenRange};

/// The kinds of state that the model keeps, as an array of `ictus_state_space_desc_t`. It is the same on every call.
///
/// Owner: the model, until the next call on it. Threads: any; one at a time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_state_spaces(model: ModelHandle, spaces: *mut Array) -> StatusCode {
    status(model, "ictus_state_spaces", |inside| {
        // SAFETY: the caller's pointer, as the module's documentation asks.
        let spaces = unsafe { out(spaces) }?;
        spaces.set(Array::over(inside.engine.state_spaces()));
        Ok(())
    })
}

/// How many bytes an export of `range` takes, its envelope included, and the generation that names this answer when the export is
/// made. The answer is stale once the sequence changes.
///
/// `encoding`: `ICTUS_ENCODING_*`. Threads: any; one at a time per model.
/// Codes: `ICTUS_ERR_UNKNOWN_HANDLE` (sequence, space), `ICTUS_ERR_OP_UNSUPPORTED` (encoding), `ICTUS_REJECT_BOUNDS` (range),
/// `ICTUS_ERR_OUT_OF_BOUNDARY`. Nothing changes then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_space_export_size(
    sequence: SequenceHandle,
    space_id: u32,
    range: TokenRange,
    encoding: u8,
    bytes: *mut u64,
    sizing_gen: *mut u64,
) -> StatusCode {
    sequence_status(sequence, "ictus_space_export_size", |inside, sequence| {
        // SAFETY: the caller's pointer, as the module's documentation asks.
        let bytes = unsafe { out(bytes) }?;
        // SAFETY: as above.
        let sizing_gen = unsafe { out(sizing_gen) }?;
        let size = inside.engine.space_export_size(sequence, space_id, range, encoding)?;
        bytes.set(size.bytes);
        sizing_gen.set(size.sizing_gen);
        Ok(())
    })
}

/// Exports a sequence up to `boundary` tokens into `dst`: an envelope and a payload, sealed by a checksum.
///
/// Owner: `dst` is the host's and on loan until the operation ends. Threads: any; one at a time per model.
/// Codes: `ICTUS_ERR_UNKNOWN_HANDLE`, `ICTUS_REJECT_BOUNDS`, `ICTUS_ERR_OUT_OF_BOUNDARY`, `ICTUS_ERR_STALE_SIZING`,
/// `ICTUS_ERR_BUFFER_TOO_SMALL`: nothing was written and there is no operation.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_space_snapshot(
    sequence: SequenceHandle,
    space_id: u32,
    boundary: u64,
    dst: Buf,
    sizing_gen: u64,
    op: *mut OpId,
) -> StatusCode {
    sequence_status(sequence, "ictus_space_snapshot", |inside, sequence| {
        // SAFETY: the caller lends `dst` until the operation ends.
        let dst = unsafe { destination(dst) }?;
        // SAFETY: the caller's pointer, as the module's documentation asks.
        let op = unsafe { out(op) }?;
        let submitted_op = inside.engine.space_snapshot(sequence, space_id, boundary, dst.len, sizing_gen)?;
        submitted(inside, submitted_op, dst)?;
        op.set(submitted_op);
        Ok(())
    })
}

/// Fills a bare sequence from the sealed bytes of an export.
///
/// Owner: `src` is the host's and on loan until the operation ends. Threads: any; one at a time per model.
/// Codes: `ICTUS_ERR_UNKNOWN_HANDLE`, `ICTUS_EBUSY`, `ICTUS_ERR_ENVELOPE_MISMATCH`, `ICTUS_ERR_IDENTITY_MISMATCH`,
/// `ICTUS_ERR_CHECKSUM`: there is no operation and the sequence is as before. Later failures end the operation in
/// `ICTUS_OP_FAILED`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_space_restore(
    sequence: SequenceHandle,
    space_id: u32,
    src: Buf,
    op: *mut OpId,
) -> StatusCode {
    sequence_status(sequence, "ictus_space_restore", |inside, sequence| {
        // SAFETY: the caller lends `src` until the operation ends.
        let sealed = unsafe { source(src) }?;
        // SAFETY: the caller's pointer, as the module's documentation asks.
        let op = unsafe { out(op) }?;
        op.set(inside.engine.space_restore(sequence, space_id, sealed)?);
        Ok(())
    })
}

/// The largest position up to `cap` at which the sequence may be snapshot.
///
/// Threads: any; one at a time per model. Codes: `ICTUS_ERR_UNKNOWN_HANDLE`, `ICTUS_ERR_OP_UNSUPPORTED`. Nothing changes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_space_snapshot_boundary(
    sequence: SequenceHandle,
    space_id: u32,
    cap: u64,
    boundary: *mut u64,
) -> StatusCode {
    sequence_status(sequence, "ictus_space_snapshot_boundary", |inside, sequence| {
        // SAFETY: the caller's pointer, as the module's documentation asks.
        let boundary = unsafe { out(boundary) }?;
        boundary.set(inside.engine.space_snapshot_boundary(sequence, space_id, cap)?);
        Ok(())
    })
}

/// Cuts a bare sequence down to `len` tokens.
///
/// Threads: any; one at a time per model. Codes: `ICTUS_ERR_UNKNOWN_HANDLE`, `ICTUS_EBUSY` (a lane's, cached, or leased),
/// `ICTUS_REJECT_BOUNDS` (longer than it is), `ICTUS_ERR_OUT_OF_BOUNDARY`. The sequence is as before then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_space_trim(sequence: SequenceHandle, space_id: u32, len: u64) -> StatusCode {
    sequence_status(sequence, "ictus_space_trim", |inside, sequence| {
        Ok(inside.engine.space_trim(sequence, space_id, len)?)
    })
}

/// Moves a range of a sequence out of the pool into `dst`, encoded. Its memory is free once the operation is done; the sequence keeps
/// its length, and until the range is promoted it is neither fed nor copied (`ICTUS_REJECT_TRANSFER_LOCKED`, `ICTUS_EBUSY`).
///
/// `range` is whole pages, or ends with the sequence. A lossy `encoding` taints the exported bytes, and the sequence when they come back.
/// Owner, threads, codes: as `ictus_space_snapshot`, and `ICTUS_ERR_OP_UNSUPPORTED` (encoding, a start inside a page),
/// `ICTUS_REJECT_BOUNDS` (part of it is demoted already), `ICTUS_EBUSY` (leased, cached, or an operation runs on it).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_space_demote(
    sequence: SequenceHandle,
    space_id: u32,
    range: TokenRange,
    encoding: u8,
    dst: Buf,
    sizing_gen: u64,
    op: *mut OpId,
) -> StatusCode {
    sequence_status(sequence, "ictus_space_demote", |inside, sequence| {
        // SAFETY: the caller lends `dst` until the operation ends.
        let dst = unsafe { destination(dst) }?;
        // SAFETY: the caller's pointer, as the module's documentation asks.
        let op = unsafe { out(op) }?;
        let submitted_op = inside.engine.space_demote(sequence, space_id, range, encoding, dst.len, sizing_gen)?;
        submitted(inside, submitted_op, dst)?;
        op.set(submitted_op);
        Ok(())
    })
}

/// Brings a demoted range back from `src`: exactly the range that was demoted, from the bytes that it was demoted to.
///
/// Owner: `src` is the host's and on loan until the operation ends. Threads: any; one at a time per model.
/// Codes: as `ictus_space_restore`, and `ICTUS_REJECT_BOUNDS` (no such range of this sequence is demoted), `ICTUS_EBUSY` (an operation
/// runs on it). When the operation fails the range is demoted still.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_space_promote(
    sequence: SequenceHandle,
    space_id: u32,
    range: TokenRange,
    src: Buf,
    op: *mut OpId,
) -> StatusCode {
    sequence_status(sequence, "ictus_space_promote", |inside, sequence| {
        // SAFETY: the caller lends `src` until the operation ends.
        let sealed = unsafe { source(src) }?;
        // SAFETY: the caller's pointer, as the module's documentation asks.
        let op = unsafe { out(op) }?;
        op.set(inside.engine.space_promote(sequence, space_id, range, sealed)?);
        Ok(())
    })
}
