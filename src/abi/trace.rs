//! What a lane cost, and what the engine did when.

use core::ffi::c_char;
use std::fs::File;

use super::bundle::{ModelHandle, StatusCode, status};
use super::guard::{Failure, sized_out, text};
use crate::engine::LaneCost;
use crate::record::Status;
use crate::record::view::record;
use crate::timeline::Timeline;

/// Counts of one lane since it was admitted.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct LaneCostRecord {
    /// The reader's size of this record in bytes; at least 88.
    pub struct_size: u64,
    /// Prompt tokens that were fed, but for those of the replayed tail.
    pub prefill_tokens: u64,
    /// Prompt tokens that a seed brought in: nothing was fed for them.
    pub seeded_tokens: u64,
    /// Tokens of the replayed tail that were fed.
    pub replayed_tokens: u64,
    /// Produced tokens that were fed, rejected drafts not counted.
    pub decoded_tokens: u64,
    /// Steps that were asked for the lane's next token or row.
    pub answered_steps: u64,
    /// Tokens that were drafted.
    pub draft_proposed: u64,
    /// Drafted tokens that were kept.
    pub draft_accepted: u64,
    /// Time that drafting took.
    pub draft_ns: u64,
    /// Pages that its sequence holds now, shared ones included.
    pub pages: u64,
    /// Pages that were copied for it because somebody else held them too.
    pub page_copies: u64,
}
const _: () = assert!(size_of::<LaneCostRecord>() == 88);
record!(LaneCostRecord, min_prefix: 88);

/// What a live lane has cost so far. Set `cost->struct_size` before the call.
///
/// Threads: any; one at a time. Codes: `ICTUS_REJECT_BAD_STRUCT`, `ICTUS_REJECT_UNKNOWN_LANE` (no such live lane, or the engine does not
/// count).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_lane_cost(model: ModelHandle, lane_tag: u64, cost: *mut LaneCostRecord) -> StatusCode {
    status(model, "ictus_lane_cost", |inside| {
        // SAFETY: the caller's pointer, as the module's documentation asks.
        let target = unsafe { sized_out(cost) }?;
        let cost: LaneCost = inside.engine.lane_cost(lane_tag).ok_or(Status::RejectUnknownLane)?;
        target.set(LaneCostRecord {
            struct_size: target.bytes(),
            prefill_tokens: cost.prefill_tokens,
            seeded_tokens: cost.seeded_tokens,
            replayed_tokens: cost.replayed_tokens,
            decoded_tokens: cost.decoded_tokens,
            answered_steps: cost.answered_steps,
            draft_proposed: cost.draft_proposed,
            draft_accepted: cost.draft_accepted,
            draft_ns: cost.draft_ns,
            pages: cost.pages,
            page_copies: cost.page_copies,
        });
        Ok(())
    })
}

/// Records what the engine does from here on into a file, as trace events that Chrome's and Perfetto's viewers open.
///
/// `path`: NUL-terminated; the file is made, or emptied. One event a line; a file that was never stopped lacks the end of the array, which
/// the viewers accept. One timeline per model.
/// Threads: any; one at a time. Codes: `ICTUS_REJECT_BAD_STRUCT` (NULL, not UTF-8), `ICTUS_EBUSY` (one is being recorded),
/// `ICTUS_ERR_UNKNOWN_HANDLE` (the file cannot be made), `ICTUS_ERR_OP_UNSUPPORTED`. Nothing is recorded then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_timeline_start(model: ModelHandle, path: *const c_char) -> StatusCode {
    status(model, "ictus_timeline_start", |inside| {
        // SAFETY: the caller's pointer, as the module's documentation asks.
        let path = unsafe { text(path) }?;
        if let Some(running) = inside.engine.timeline_stop() {
            inside.engine.timeline_start(running)?;
            return Err(Failure::new(Status::Busy, "a timeline is being recorded"));
        }
        let file = File::create(path).map_err(|error| Failure::because(Status::UnknownHandle, &error))?;
        Ok(inside.engine.timeline_start(Box::new(Timeline::new(file)))?)
    })
}

/// Ends the timeline and its file.
///
/// Threads: any; one at a time. Codes: `ICTUS_ERR_UNKNOWN_HANDLE` (none is recorded), `ICTUS_REJECT_BOUNDS` (the file could not be written
/// whole: it ends where that was noticed, and the recording has ended).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_timeline_stop(model: ModelHandle) -> StatusCode {
    status(model, "ictus_timeline_stop", |inside| {
        let timeline = inside.engine.timeline_stop().ok_or(Status::UnknownHandle)?;
        timeline.finish().map_err(|error| Failure::because(Status::RejectBounds, &error))
    })
}
