//! State operations: where they stand, and their bytes on the way to the host.
//!
//! An export is submitted with a destination that is on loan until the operation ends. The engine hands the sealed bytes over
//! when it is done; they are copied before anybody is told `DONE`.

use core::ptr::NonNull;
use std::collections::BTreeMap;

use super::bundle::{Inside, ModelHandle, OpId, StatusCode, status};
use super::guard::{Failure, Outcome, buffer, out};
use crate::engine::OpHandle;
use crate::record::constant::op_state;
use crate::record::{Buf, OpStatus, Status};

/// Where an export goes; the host lent it.
#[derive(Debug)]
struct Loan {
    target: NonNull<u8>,
    capacity: u64,
}

// SAFETY:
// - The host lent the memory until the operation ends, to whichever thread calls in; the loan owns nothing.
unsafe impl Send for Loan {}

/// Exports that have not ended, by operation.
#[derive(Debug, Default)]
pub(super) struct Exports(BTreeMap<OpHandle, Loan>);

/// Checks the destination of an export.
///
/// # Safety
/// `dst.ptr`, when not NULL, is valid for writes of `dst.len` bytes until the operation ends that it is submitted with.
pub(super) unsafe fn destination(dst: Buf) -> Result<Buf, Status> {
    // SAFETY: nothing is written through the result, which only proves the checks.
    unsafe { buffer(dst.ptr.cast::<u8>(), dst.len) }?;
    Ok(dst)
}

/// Checks the source of an import.
///
/// # Safety
/// `src.ptr`, when not NULL, is valid for reads of `src.len` bytes until the call returns, or until the operation ends.
pub(super) unsafe fn source<'a>(src: Buf) -> Result<&'a [u8], Status> {
    // SAFETY: the promise of this function.
    unsafe { super::guard::list(src.ptr.cast::<u8>().cast_const(), src.len) }
}

/// Remembers the destination of a submitted export, and fills it when the operation has ended already.
pub(super) fn submitted(inside: &mut Inside, op: OpHandle, dst: Buf) -> Outcome<()> {
    let target = NonNull::new(dst.ptr.cast::<u8>()).unwrap_or(NonNull::dangling());
    inside.exports.0.insert(op, Loan { target, capacity: dst.len });
    deliver(inside)
}

/// Copies the bytes of every export that is done.
pub(super) fn deliver(inside: &mut Inside) -> Outcome<()> {
    let waiting: Vec<OpHandle> = inside.exports.0.keys().copied().collect();
    for op in waiting {
        let state = inside.engine.op_poll(op).map_or(op_state::FAILED, |status| status.state);
        if state == op_state::PENDING || state == op_state::RUNNING {
            continue;
        }
        let Some(loan) = inside.exports.0.remove(&op) else { continue };
        if state != op_state::DONE {
            continue;
        }
        let bytes = inside.engine.take_op_output(op).unwrap_or_default();
        // SAFETY: lent until the operation ends (promised in `destination`), which the host learns only after this.
        let target = unsafe { buffer(loan.target.as_ptr(), loan.capacity) }?;
        // The engine refuses to start an export that does not fit, so one that does not fit now is the engine's mistake.
        target.fill(&bytes).map_err(|_| Failure::new(Status::Fatal, "an export is longer than its sizing"))?;
    }
    Ok(())
}

/// Where an operation stands; asking moves the operations that have not ended on by a slice, as `ictus_pump` does. When `ICTUS_OP_DONE` is
/// reported the bytes of an export lie in its destination.
///
/// `*op_status` is filled whole, `struct_size` included. Threads: any; one at a time.
/// Codes: `ICTUS_ERR_UNKNOWN_HANDLE`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_op_poll(model: ModelHandle, op: OpId, op_status: *mut OpStatus) -> StatusCode {
    status(model, "ictus_op_poll", |inside| {
        // SAFETY: the caller's pointer, as the module's documentation asks.
        let op_status = unsafe { out(op_status) }?;
        inside.engine.pump();
        deliver(inside)?;
        op_status.set(inside.engine.op_poll(op)?);
        Ok(())
    })
}

/// Moves operations that have not ended, and entries of the cache that go to host memory, on by a slice (`op_slice_bytes` of the options). Every
/// tick does so too; this is for a host that has nothing to tick.
///
/// Threads: any; one at a time. Codes: `ICTUS_ERR_UNKNOWN_HANDLE`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_pump(model: ModelHandle) -> StatusCode {
    status(model, "ictus_pump", |inside| {
        inside.engine.pump();
        deliver(inside)
    })
}

/// Asks an operation to stop. It is a request: poll, or read the events of the next tick, to learn how it ended.
///
/// Threads: any; one at a time. Codes: `ICTUS_ERR_UNKNOWN_HANDLE`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_op_cancel(model: ModelHandle, op: OpId) -> StatusCode {
    status(model, "ictus_op_cancel", |inside| {
        inside.engine.op_cancel(op)?;
        deliver(inside)
    })
}
