//! The tick, and what describes and ends a model.

use core::ffi::c_char;

use super::bundle::{self, Inside, ModelHandle, StatusCode, status, value, without_model};
use super::guard::{Failure, Outcome, buffer, hand_over_text, out, versioned};
use super::ops::deliver;
use crate::open::Model;
use crate::record::view::Unbounded;
use crate::record::{LaneRetire, Status, TickEvents, TickPlan};

/// Runs one plan: the whole of it, or nothing.
///
/// Owner: `*events` is the model's; it and everything it points at stay as they are until the next `ictus_tick` on this model or
/// its release, whatever else is called in between. Copy what you keep.
/// Threads: any; one at a time. The plan's partial-emit callback runs on this thread, from inside this call.
/// Codes: any `ICTUS_REJECT_*` and `ICTUS_NEEDS_REPLAN`: the plan was refused, nothing changed, its `plan_seq` may be used again, and
/// the events of the tick before stay. `ICTUS_EBUSY`: a driver ticks this model. `ICTUS_ERR_FATAL`: the model is broken, and only its release works.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_tick(
    model: ModelHandle,
    plan: *const TickPlan,
    events: *mut *const TickEvents,
) -> StatusCode {
    status(model, "ictus_tick", |inside| {
        // SAFETY: the caller's pointer, as the module's documentation asks.
        let plan = unsafe { versioned(plan) }?;
        // SAFETY: as above.
        let events = unsafe { out(events) }?;
        // SAFETY: the caller promises that the arrays of the plan are readable and constant during the call.
        let memory = unsafe { Unbounded::new() };
        if inside.driven {
            return Err(Failure::new(Status::Busy, "a driver ticks this model"));
        }
        let record = &raw const *inside.engine.tick(&plan, &memory, &mut inside.rings)?.record;
        deliver(inside)?;
        forget_ended_lanes(inside, &plan, &memory)?;
        events.set(record);
        Ok(())
    })
}

/// Drops the sequence handles of lanes that this tick ended.
fn forget_ended_lanes(inside: &mut Inside, plan: &TickPlan, memory: &Unbounded<'_>) -> Outcome<()> {
    if !inside.sequences.knows_lanes() {
        return Ok(());
    }
    for retire in plan.retires.elements::<LaneRetire>(memory)? {
        inside.sequences.forget_lane(retire.lane_tag);
    }
    for fault in inside.engine.last_events().map_or(&[][..], |events| events.faults) {
        inside.sequences.forget_lane(fault.lane_tag);
    }
    Ok(())
}

/// What the model and its runtime can do, as NUL-terminated JSON; NULL when the engine does not say.
///
/// Owner: the model, until its release; the same text on every call. Threads: any; one at a time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_capability_descriptor(model: ModelHandle) -> *const c_char {
    let text = value(model, "ictus_capability_descriptor", |inside| {
        Ok(inside.descriptor().map_or(core::ptr::null(), |text| text.as_ptr()))
    });
    text.unwrap_or(core::ptr::null())
}

/// What engines of this library can do whatever model they run, as JSON: the part of the capability descriptor that no model decides.
///
/// `*bytes`: the length without the NUL that follows, also when it does not fit into `capacity`.
/// Threads: any. Codes: `ICTUS_ERR_BUFFER_TOO_SMALL`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_capability_without_model(
    text: *mut c_char,
    capacity: u64,
    bytes: *mut u64,
) -> StatusCode {
    without_model(|| {
        // SAFETY: the caller's pointer, as the module's documentation asks.
        let text = unsafe { buffer(text.cast::<u8>(), capacity) }?;
        // SAFETY: as above.
        let bytes = unsafe { out(bytes) }?;
        Ok(hand_over_text(Model::capability_without_model().as_bytes(), &text, bytes)?)
    })
}

/// Releases a model: its lanes, sequences, pages, threads, and everything it handed out. It waits for a call on another thread to
/// return. Attached rings and control words are the host's again.
///
/// Codes: `ICTUS_ERR_UNKNOWN_HANDLE`: NULL, or released before; `ICTUS_EBUSY`: called from a callback of this model, which goes on
/// living.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_model_free(model: ModelHandle) -> StatusCode {
    bundle::release(model)
}
