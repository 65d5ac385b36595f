#![forbid(unsafe_code)]
//! Stage 3, reserve: is there room for all of it (T-60 .. T-67)?
//!
//! The last stage that may refuse, and the last that borrows the engine shared. What it lets through cannot run out of cells:
//! each lane's demand is counted in whole granules of the pool, as its sequence will grow,
//!
//! ```text
//!   demand(lane) = round_up(held + taken + granted) - round_up(held)        granule 1: taken + granted, as T-60 says
//!
//!   held      tokens in the sequence now
//!   taken     prefill tokens of this tick (T-49)
//!   granted   min(grant, max_seq_len - committed)
//! ```
//!
//! because a lane of *n* granted tokens feeds at most *n*: its pending one and all new ones but the last.
//!
//! # Not here
//! Evictions and takeovers: there is no prefix cache to take from yet, so what does not fit is `NeedsReplan`. A publishing
//! retire is not counted as room, as it will not be once its state is kept.

use super::plan::{Entry, Party, Standing};
use super::state::State;
use super::validate::Valid;
use crate::record::{LaneRetire, PartialEmit, Status};
use crate::runtime::{Runtime, SeqHandle};

/// A plan that will run: nothing refuses it any more.
#[derive(Debug)]
pub(super) struct Reserved<'s>(Valid<'s>);

impl<'s> Reserved<'s> {
    /// Whom to hand tokens over to as they are picked.
    pub(super) fn partial_emit(&self) -> Option<PartialEmit> {
        self.0.plan.header.partial_emit
    }

    /// The plan, to be run.
    pub(super) fn into_plan(self) -> Valid<'s> {
        self.0
    }
}

/// Checks cells and slots.
///
/// # Errors
/// `NeedsReplan`; nothing changed.
pub(super) fn reserve<'s, R: Runtime>(
    valid: Valid<'s>,
    state: &State<R>,
    leaving: &mut Vec<SeqHandle>,
) -> Result<Reserved<'s>, Status> {
    leaving.clear();
    leaving.extend(valid.plan.retires.iter().filter_map(|retire| leaving_sequence(retire, &valid, state)));
    if !slots_suffice(&valid, state, leaving.len()) || !cells_suffice(&valid, state, leaving) {
        return Err(Status::NeedsReplan);
    }
    Ok(Reserved(valid))
}

/// The sequence that a retire surely frees: that of a live lane which does not publish.
fn leaving_sequence<R: Runtime>(retire: &Entry<LaneRetire>, valid: &Valid<'_>, state: &State<R>) -> Option<SeqHandle> {
    let lane = standing(valid, retire.party)?.lane?;
    let frees = retire.record.publish_to_cache == 0;
    state.lanes.get(lane).filter(|_| frees).map(|lane| lane.sequence())
}

fn slots_suffice<R: Runtime>(valid: &Valid<'_>, state: &State<R>, leaving: usize) -> bool {
    let slots = state.descriptor.max_seqs as usize;
    slots == 0 || valid.plan.admits.len() + state.live_sequences() <= slots + leaving
}

fn cells_suffice<R: Runtime>(valid: &Valid<'_>, state: &State<R>, leaving: &[SeqHandle]) -> bool {
    let total = state.descriptor.cells_total;
    if total == 0 {
        return true;
    }
    let need = demand(valid, state);
    let released = if leaving.is_empty() { 0 } else { state.runtime.cells_released(leaving) };
    let used = state.runtime.mem_counters().cells_used;
    total.saturating_sub(used).saturating_add(released) >= need
}

/// Cells that the sequences may grow by in this tick (T-60, T-65).
fn demand<R: Runtime>(valid: &Valid<'_>, state: &State<R>) -> u64 {
    let granule = u64::from(state.descriptor.cell_granule_tokens.max(1));
    let grows = |held: u64, by: u64| {
        let held_cells = held.next_multiple_of(granule);
        (held + by).next_multiple_of(granule) - held_cells
    };
    let working: u64 = valid
        .plan
        .parties
        .iter()
        .filter_map(|party| Some(grows(party.standing?.fed, growth(party, valid, state)?)))
        .fold(0, u64::saturating_add);
    let publishing = valid.plan.retires.iter().filter(|retire| retire.record.publish_to_cache != 0);
    let last_tokens = publishing.filter_map(|retire| {
        let standing = standing(valid, retire.party)?;
        // The pending input of a publishing retire is fed before its state is kept (U of T-60).
        Some(grows(standing.fed, standing.decode_start.saturating_sub(standing.fed).min(1)))
    });
    last_tokens.fold(working, u64::saturating_add)
}

/// Most tokens that one lane feeds in this tick; none when the plan neither prefills nor decodes it.
fn growth<R: Runtime>(party: &Party, valid: &Valid<'_>, state: &State<R>) -> Option<u64> {
    let standing = party.standing?;
    let taken = party.prefill.and_then(|chunk| valid.chunks.get(chunk as usize)).map_or(0, |chunk| chunk.take);
    let decode = party.decode.and_then(|decode| valid.plan.decodes.get(decode as usize));
    let grant = decode.map_or(0, |decode| u64::from(decode.record.max_new_tokens));
    let granted = grant.min(state.descriptor.max_seq_len.saturating_sub(standing.decode_start));
    Some(u64::from(taken) + granted)
}

fn standing(valid: &Valid<'_>, party: usize) -> Option<Standing> {
    valid.plan.parties.get(party)?.standing
}
