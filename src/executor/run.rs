#![forbid(unsafe_code)]
//! What the running stages share: the engine, the rings, and the buffers of one tick.
//!
//! A plan becomes a [`Run`] when it is accepted. From then on a tick ends with events, or the engine is broken.

use super::ahead::Ahead;
use super::events::Events;
use super::lanes::LaneId;
use super::state::State;
use crate::capacity::Domain;
use crate::record::constant::fault;
use crate::record::{LaneFault, PartialEmit, Status};
use crate::ring::Rings;
use crate::runtime::{Answers, Feed, Runtime};
use crate::sample::Scratch;
use crate::speculate::{Ask, DRAFT_MAX};
use crate::timeline::Timeline;

/// The runtime or the engine is broken: the tick ends without events (T-136).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fatal;

impl From<Fatal> for Status {
    fn from(Fatal: Fatal) -> Self {
        Status::Fatal
    }
}

/// One accepted tick at work.
pub(super) struct Run<'t, R> {
    pub(super) state: &'t mut State<R>,
    pub(super) rings: &'t mut dyn Rings,
    pub(super) events: &'t mut Events,
    pub(super) steps: &'t mut StepBuffers,
    pub(super) partial_emit: Option<PartialEmit>,
    /// Where the tick is recorded, if it is.
    pub(super) timeline: Option<&'t mut Timeline>,
}

/// A decode record at work.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Job {
    pub(super) tag: u64,
    /// The lane; nothing lies there once it has faulted.
    pub(super) lane: LaneId,
    /// Tokens that may still be spent.
    pub(super) grant_left: u32,
    /// Tokens by which accepted drafts may exceed the grant (T-129).
    pub(super) overshoot_left: u32,
    /// Drafted tokens that were verified, and how many of them were right (T-130).
    pub(super) proposed: u32,
    pub(super) accepted: u32,
    /// Where the tokens of this tick begin in what the lane knows.
    pub(super) emit_from: usize,
    /// `FINISH_*`.
    pub(super) finish: u32,
    /// The answer that waits to be evaluated.
    pub(super) held: Option<Held>,
    /// Whether the job still wants tokens in this tick.
    pub(super) active: bool,
    /// Which feed of the step that was begun last is its lane's.
    pub(super) row: usize,
}

/// An answer kept for the next evaluation: of which step, and for which feed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    pub(super) bank: usize,
    pub(super) feed: usize,
}

/// Buffers of the steps of a tick.
///
/// A step whose answers are still to be evaluated keeps its bank; the next step answers into another one. All banks are free
/// again after an evaluation.
#[derive(Debug, Default)]
pub(super) struct StepBuffers {
    pub(super) banks: Vec<Answers>,
    pub(super) banks_kept: usize,
    pub(super) feeds: Vec<Feed<'static>>,
    /// What the lanes take from the step that is being put together.
    pub(super) portions: Vec<Portion>,
    /// All jobs by ascending tag. Kept from tick to tick, as a host mostly sends the same lanes in the same order.
    pub(super) by_tag: Vec<usize>,
    /// Jobs that still want tokens.
    pub(super) active: Vec<usize>,
    pub(super) scratch: Scratch,
    /// Questions to the drafter, and its answers.
    pub(super) asks: Vec<Ask<'static>>,
    pub(super) drafts: Vec<([u32; DRAFT_MAX], usize)>,
    /// Whether a draft was verified in this tick.
    pub(super) drafted: bool,
    /// Steps that were begun ahead.
    pub(super) ahead: Ahead,
    /// Which feeds of the begun step that is being ended nobody wants any more; empty for every other step.
    pub(super) vain: Vec<bool>,
    /// Lanes whose grammar failed in this round's evaluation (T-134).
    pub(super) struck: Vec<LaneId>,
}

/// What one lane takes from one step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Portion {
    pub(super) lane: LaneId,
    /// The job that gets the answer.
    pub(super) job: Option<usize>,
    /// Tokens that the sequence holds afterwards; no more than now means that the lane is not fed.
    pub(super) fed: usize,
    /// Tokens that the lane has committed afterwards: `fed`, or one more that is held back as pending input.
    pub(super) committed: usize,
    /// Whether the lane wants a token or a row.
    pub(super) asks: bool,
}

impl<R: Runtime> Run<'_, R> {
    /// Ends a lane with a fault (T-133).
    ///
    /// The lane and its sequence are gone, its tag is marked, and one record says so. A lane that is gone already stays so.
    pub(super) fn fault(&mut self, lane: LaneId, code: u32) {
        let Some(lane) = self.state.lanes.remove(lane) else { return };
        self.state.take_back(&lane);
        self.state.free_sequence(lane.sequence());
        self.state.faulted.insert(lane.tag());
        // What was short is told; a step that was reserved lacks nothing but pages.
        let detail = if code == fault::OOM_TENTATIVE { u64::from(Domain::Blocks.code()) } else { 0 };
        self.events.faults.push(LaneFault { lane_tag: lane.tag(), code, _pad0: 0, detail });
    }
}
