#![forbid(unsafe_code)]
//! The events of a tick as slices.

use crate::record::{AdmitResult, LaneEmit, LaneFault, LaneLogprob, OpComplete, ShedEntry, TickEvents};

/// Borrowed view of the events of one tick; the engine owns the memory until its next tick.
#[derive(Clone, Copy, Debug)]
pub struct EventsView<'e> {
    /// The record as a C host reads it; its arrays point at the slices below.
    pub record: &'e TickEvents,
    /// One per admit, in plan order.
    pub admit_results: &'e [AdmitResult],
    /// One per decode of a lane that did not fault, in plan order.
    pub emits: &'e [LaneEmit],
    /// At most one per lane.
    pub faults: &'e [LaneFault],
    /// What was given up; the counters are in `record.shed`.
    pub shed_entries: &'e [ShedEntry],
    /// Operations that reached a terminal state since the last accepted tick.
    pub op_completions: &'e [OpComplete],
    /// One per emitted token of a lane that asked, in emission order.
    pub logprobs: &'e [LaneLogprob],
}
