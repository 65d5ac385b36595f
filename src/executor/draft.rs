#![forbid(unsafe_code)]
//! Drafts inside decode rounds: who drafts how much, and what (T-124 .. T-126).
//!
//! ```text
//!   a round is queued --> for each lane that speculates, in feed order:
//!                           how many tokens: depth, grant, context, spare cells (T-125)
//!                           which: its own text, or the drafter's answer for all lanes at once
//!                     --> the step feeds pending token and draft, and asks a row for each (step.rs)
//!                     --> the rows are picked from in order (verify.rs)
//! ```
//!
//! # Invariants
//! - A draft takes only cells that no grant of the tick may still need, so no step runs out of cells because of drafts.
//! - The draft of a lane is in flight only between its round's queue and its evaluation.

use std::time::{Duration, Instant};

use super::decode::WorkLoad;
use super::lane::Lane;
use super::run::{Fatal, Job, Run};
use super::state::State;
use crate::runtime::{Descriptor, ROWS_MAX, Runtime};
use crate::speculate::{Ask, Config, DRAFT_MAX, Depth, NgramIndex, Strategy};

const _: () = assert!(DRAFT_MAX + 1 == ROWS_MAX, "a pending token and the longest draft fill a feed");

/// The drafting of one lane.
#[derive(Clone, Debug)]
pub(super) struct Drafting {
    strategy: Strategy,
    /// The certificate it was admitted under; 0 is none.
    pub(super) cert_id: u32,
    pub(super) depth: Depth,
    index: NgramIndex,
    /// The pending token and the draft behind it, in flight.
    feed: [u32; ROWS_MAX],
    drafted: usize,
    /// Tokens that this round's draft may have.
    limit: usize,
}

impl Drafting {
    /// The drafting of a lane with room for `tokens` tokens.
    pub(super) fn new(strategy: Strategy, config: Config, cert_id: u32, tokens: usize) -> Self {
        let mut index = NgramIndex::new();
        if strategy == Strategy::PromptLookup {
            index.reserve(tokens);
        }
        Self { strategy, cert_id, depth: Depth::new(config), index, feed: [0; ROWS_MAX], drafted: 0, limit: 0 }
    }

    /// Whether a model drafts for it, which keeps state for the lane.
    pub(super) fn asks_drafter(&self) -> bool {
        self.strategy == Strategy::DraftModel
    }

    /// What is fed while a draft is in flight: the pending token and the draft.
    pub(super) fn feed(&self) -> Option<&[u32]> {
        self.feed.get(..=self.drafted).filter(|_| self.drafted > 0)
    }

    /// The draft in flight, which lands.
    pub(super) fn land(&mut self) -> Draft {
        let draft = Draft { feed: self.feed, drafted: self.drafted };
        self.drafted = 0;
        draft
    }

    /// Sends a draft off behind the pending token.
    fn launch(&mut self, pending: u32, draft: &[u32]) {
        let mut feed = [0; ROWS_MAX];
        for (slot, &token) in feed.iter_mut().zip(std::iter::once(&pending).chain(draft)) {
            *slot = token;
        }
        self.feed = feed;
        self.drafted = draft.len().min(self.limit);
    }

    /// Drafts from the lane's own text.
    fn look_up(&mut self, committed: &[u32]) {
        self.index.extend(committed);
        let Some(&pending) = committed.last() else { return };
        let draft = self.index.propose(committed, self.limit);
        self.launch(pending, draft);
    }
}

/// A draft that was fed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Draft {
    feed: [u32; ROWS_MAX],
    drafted: usize,
}

impl Draft {
    /// The drafted tokens, without the pending one before them.
    pub(super) fn tokens(&self) -> &[u32] {
        self.feed.get(1..=self.drafted).unwrap_or_default()
    }
}

/// Cells that drafts may take beside the grants of the tick (T-125).
struct Spare {
    cells: u64,
    granule: u64,
}

impl Spare {
    /// Free cells without those that the active jobs may still need.
    ///
    /// The open page of each is counted again: it may be shared, and then its next token takes a page for the copy.
    fn of<R: Runtime>(active: &[usize], jobs: &[Job], state: &State<R>) -> Self {
        let granule = u64::from(state.descriptor.cell_granule_tokens.max(1));
        if state.descriptor.cells_total == 0 {
            return Self { cells: u64::MAX, granule };
        }
        let counters = state.runtime.mem_counters();
        let free = counters.cells_total.saturating_sub(counters.cells_used);
        let mut spare = Self { cells: free, granule };
        for job in active.iter().filter_map(|&number| jobs.get(number)) {
            let Some(lane) = state.lanes.get(job.lane) else { continue };
            let held = lane.fed_len() as u64;
            let open = if held.is_multiple_of(granule) { 0 } else { granule };
            let granted = u64::from(job.grant_left).min(state.descriptor.max_seq_len.saturating_sub(held));
            spare.cells = spare.cells.saturating_sub(spare.growth(held, granted).saturating_add(open));
        }
        // Beyond this, free cells are promised to others.
        spare.cells = spare.cells.min(state.draft_cells);
        spare
    }

    /// Cells of `tokens` more tokens in a sequence of `held`.
    fn growth(&self, held: u64, tokens: u64) -> u64 {
        held.saturating_add(tokens).next_multiple_of(self.granule) - held.next_multiple_of(self.granule)
    }

    /// The most tokens up to `wanted` that fit behind `held`, and takes their cells.
    fn hand_out(&mut self, held: u64, wanted: usize) -> usize {
        let fitting = (0..=wanted).rev().find(|&tokens| self.growth(held, tokens as u64) <= self.cells).unwrap_or(0);
        self.cells = self.cells.saturating_sub(self.growth(held, fitting as u64));
        fitting
    }
}

/// Whether a tick with this load drafts (T-124).
pub(super) fn drafts<R: Runtime>(load: WorkLoad, state: &State<R>) -> bool {
    batches(load, &state.descriptor) && state.speculation.gate().is_open(load.lanes)
}

/// Whether some lane speculates, and the runtime verifies as many lanes at once as decode (T-124).
pub(super) fn batches(load: WorkLoad, descriptor: &Descriptor) -> bool {
    load.speculates && (descriptor.verify_batches || load.lanes <= 1)
}

impl<R: Runtime> Run<'_, R> {
    /// Lets the lanes of the queued round draft.
    ///
    /// # Errors
    /// A queued portion names no lane.
    pub(super) fn draft_round(&mut self, active: &[usize], jobs: &[Job]) -> Result<(), Fatal> {
        let started = Instant::now();
        let mut spare = Spare::of(active, jobs, self.state);
        let mut asked = false;
        for portion in &self.steps.portions {
            let Some(job) = portion.job.and_then(|job| jobs.get(job)) else { continue };
            let lane = self.state.lanes.get_mut(portion.lane).ok_or(Fatal)?;
            let room = room(job, lane.committed_len(), self.state.descriptor.max_seq_len);
            let held = lane.committed_len() as u64;
            let Some((drafting, committed)) = lane.drafting_mut() else { continue };
            let wanted = drafting.depth.next_round().min(room);
            drafting.limit = spare.hand_out(held, wanted);
            if drafting.limit > 0 && drafting.asks_drafter() {
                asked = true;
            } else if drafting.limit > 0 {
                drafting.look_up(committed);
            }
        }
        if asked {
            self.ask_drafter()?;
        }
        self.share_cost(started.elapsed())
    }

    /// Divides the time of a round's drafting among the lanes that drafted.
    fn share_cost(&mut self, took: Duration) -> Result<(), Fatal> {
        let drafted = |lane: &Lane| lane.drafting().is_some_and(|drafting| drafting.limit > 0);
        let lanes = &mut self.state.lanes;
        let sharing = self.steps.portions.iter().filter(|portion| lanes.get(portion.lane).is_some_and(drafted)).count();
        let share = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX) / (sharing as u64).max(1);
        for portion in &self.steps.portions {
            let lane = lanes.get_mut(portion.lane).ok_or(Fatal)?;
            if drafted(lane) {
                lane.cost_mut().draft_ns += share;
            }
        }
        Ok(())
    }

    /// Asks the drafter for all lanes of the round at once.
    fn ask_drafter(&mut self) -> Result<(), Fatal> {
        let State { lanes, speculation, descriptor, .. } = &mut *self.state;
        let vocab_size = descriptor.vocab_size;
        let mut asks: Vec<Ask<'_>> = std::mem::take(&mut self.steps.asks);
        for portion in &self.steps.portions {
            let lane = lanes.get(portion.lane).ok_or(Fatal)?;
            let asking = lane.drafting().filter(|drafting| drafting.limit > 0 && drafting.asks_drafter());
            if let Some(drafting) = asking {
                asks.push(Ask::new(lane.sequence(), lane.committed(), drafting.limit));
            }
        }
        speculation.propose(&mut asks);
        let answers = &mut self.steps.drafts;
        answers.clear();
        answers.extend(asks.iter().map(|ask| (ask.draft, ask.drafted)));
        self.steps.asks = recycle(asks);
        let mut answers = self.steps.drafts.iter();
        for portion in &self.steps.portions {
            let lane = lanes.get_mut(portion.lane).ok_or(Fatal)?;
            let Some((drafting, committed)) = lane.drafting_mut() else { continue };
            if drafting.limit > 0
                && drafting.asks_drafter()
                && let (Some((draft, drafted)), Some(&pending)) = (answers.next(), committed.last())
            {
                // A token that the target does not know ends the draft.
                let known = draft.iter().take(*drafted).take_while(|&&token| token < vocab_size).count();
                drafting.launch(pending, draft.get(..known).unwrap_or_default());
            }
        }
        Ok(())
    }
}

/// Most tokens that a draft may have for grant and context (T-125).
fn room(job: &Job, committed: usize, max_seq_len: u64) -> usize {
    let budget = (job.grant_left + job.overshoot_left).saturating_sub(1) as usize;
    let context = max_seq_len.saturating_sub(committed as u64 + 1);
    budget.min(usize::try_from(context).unwrap_or(usize::MAX))
}

/// The memory of a list whose borrows have ended, for the next round.
fn recycle(mut asks: Vec<Ask<'_>>) -> Vec<Ask<'static>> {
    asks.clear();
    asks.into_iter().map_while(|_| None).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// T-125: whole granules, the lanes one after another.
    #[test]
    fn spare_cells_are_handed_out_in_granules() {
        let mut paged = Spare { cells: 16, granule: 8 };
        assert_eq!(paged.hand_out(13, 7), 7, "13 + 7 tokens take one more page");
        assert_eq!(paged.hand_out(6, 7), 7);
        assert_eq!(paged.hand_out(6, 7), 2, "the open page still has room for two");
        let mut cells = Spare { cells: 5, granule: 1 };
        assert_eq!([3, 3, 3].map(|wanted| cells.hand_out(10, wanted)), [3, 2, 0]);
    }

    /// T-125.
    #[test]
    fn room_is_bounded_by_grant_and_context() {
        let job = |grant_left, overshoot_left| Job { grant_left, overshoot_left, ..Job::default() };
        assert_eq!(room(&job(1, 0), 10, 100), 0);
        assert_eq!(room(&job(1, 4), 10, 100), 4);
        assert_eq!(room(&job(5, 0), 10, 100), 4);
        assert_eq!(room(&job(50, 0), 97, 100), 2);
        assert_eq!(room(&job(50, 0), 100, 100), 0);
    }
}
