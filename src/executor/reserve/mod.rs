#![forbid(unsafe_code)]
//! Stage 3, reserve: is there room for all of it, and what has to go (T-60 .. T-69)?
//!
//! The last stage that may refuse, and the last that borrows the engine shared: it chooses what leaves the cache and which admits
//! take an entry over, and the next stage carries that out. What it lets through cannot run out of cells.
//!
//! ```text
//!   seeds of the admits ---> preferred takeovers                     takeover.rs
//!   need, slots         ---> fits as it is?                          demand.rs
//!                       ---> else: fits when entries are evicted?    one walk in eviction order, for cells and slots
//!                       ---> else: more takeovers, and once more
//!                       ---> else NeedsReplan; nothing was evicted, and the evidence is kept    pressure.rs
//! ```
//!
//! Units that others of the core have claimed count as used. While there are such others, what a plan needs is claimed as well; one
//! that was overtaken between the count and the claim is counted anew.

mod demand;
mod pressure;
mod takeover;

use self::demand::{Demand, demand};
use self::pressure::Promised;
use super::plan::Entry;
use super::state::State;
use super::validate::Valid;
use crate::capacity::{Blocked, Units};
use crate::prefix::EntryId;
use crate::record::constant::cache_class;
use crate::record::{LaneRetire, PartialEmit, Status};
use crate::runtime::{Runtime, SeqGrowth, SeqHandle};

/// A plan that will run: nothing refuses it any more.
#[derive(Debug)]
pub(super) struct Reserved<'s> {
    /// The plan.
    pub(super) valid: Valid<'s>,
    /// Entries that leave the pool first.
    pub(super) evictions: &'s [EntryId],
    /// One per admit: whether it takes its entry over.
    pub(super) takeovers: &'s [bool],
    /// Cells that are left when everything has grown as far as it may.
    pub(super) spare_cells: u64,
    /// What entries leave for, by [`Domain::code`].
    pub(super) short_of: u32,
    /// What was claimed for the plan; given back at its end.
    pub(super) claimed: Units,
    /// Cells that drafts may take.
    pub(super) draft_cells: u64,
}

impl Reserved<'_> {
    /// Whom to hand tokens over to as they are picked.
    pub(super) fn partial_emit(&self) -> Option<PartialEmit> {
        self.valid.plan.header.partial_emit
    }
}

/// Lists that are filled anew by every plan.
#[derive(Clone, Debug, Default)]
pub(super) struct ReserveBuffers {
    takeovers: Vec<bool>,
    evictions: Vec<EntryId>,
    leaving: Vec<SeqHandle>,
    growths: Vec<SeqGrowth>,
    last_tokens: Vec<SeqGrowth>,
    /// Why the last plan that lacked room did; none when the last one did not.
    pub(super) blocked: Option<Blocked>,
}

/// How often a plan is counted anew that was overtaken by other claims.
const COUNTS_MAX: u32 = 4;

/// Checks cells and slots, and chooses what makes room.
///
/// # Errors
/// `NeedsReplan`; nothing changed.
pub(super) fn reserve<'s, R: Runtime>(
    valid: Valid<'s>,
    state: &State<R>,
    buffers: &'s mut ReserveBuffers,
) -> Result<Reserved<'s>, Status> {
    let ReserveBuffers { takeovers, evictions, leaving, growths, last_tokens, blocked } = buffers;
    *blocked = None;
    leaving.clear();
    leaving.extend(valid.plan.retires.iter().filter_map(|retire| leaving_sequence(retire, &valid, state)));
    let retiring = leaving.len();
    // What departs from the cache gives its cells back before a step can lack them.
    leaving.extend(state.departures.sequences());
    let surely = leaving.len();
    for _ in 0..COUNTS_MAX {
        takeover::prefer(&valid, state, takeovers);
        evictions.clear();
        let promised = Promised::of(state);
        let mut room = Room { state, leaving, surely, retiring, promised };
        let most = demand(&valid, state, takeovers, (growths, last_tokens));
        let mut spare_cells = room.left_without_evictions(&most, Count::AtMost);
        while spare_cells.is_none() {
            let demand = demand(&valid, state, takeovers, (growths, last_tokens));
            spare_cells = room.make(&valid, &demand, evictions);
            if spare_cells.is_none() && !takeover::force(&valid, state, takeovers) {
                *blocked = Some(room.evidence(&demand, evictions));
                return Err(Status::NeedsReplan);
            }
        }
        let spare_cells = spare_cells.ok_or(Status::NeedsReplan)?;
        let demand = demand(&valid, state, takeovers, (growths, last_tokens));
        let short_of = if evictions.is_empty() { 0 } else { room.short_of(&demand) };
        match room.claim(&demand, evictions, spare_cells, valid.plan.decodes.len()) {
            Ok((claimed, draft_cells)) => {
                return Ok(Reserved { valid, evictions, takeovers, spare_cells, short_of, claimed, draft_cells });
            }
            Err(evidence) => *blocked = evidence,
        }
    }
    Err(Status::NeedsReplan)
}

/// The sequence that a retire surely frees: that of a live lane which does not publish.
fn leaving_sequence<R: Runtime>(retire: &Entry<LaneRetire>, valid: &Valid<'_>, state: &State<R>) -> Option<SeqHandle> {
    let lane = valid.plan.parties.get(retire.party)?.standing?.lane?;
    let frees = retire.record.publish_to_cache == 0;
    state.lanes.get(lane).filter(|_| frees).map(|lane| lane.sequence())
}

/// How cells are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Count {
    /// At least as many as it takes, without asking the runtime.
    AtMost,
    /// As the runtime counts them.
    Exact,
}

/// What the pool has to give.
struct Room<'r, R> {
    state: &'r State<R>,
    /// Sequences that go: those of the retiring lanes and of departing entries, then those of entries under consideration.
    leaving: &'r mut Vec<SeqHandle>,
    /// How many of them go in any case.
    surely: usize,
    /// How many of those are of retiring lanes, whose slots come free.
    retiring: usize,
    /// What others of the core have claimed.
    promised: Promised,
}

impl<R: Runtime> Room<'_, R> {
    /// Chooses evictions until the demand is met (T-66 .. T-68); gives the cells that are then left, or none when it cannot be met.
    fn make(&mut self, valid: &Valid<'_>, demand: &Demand<'_>, evictions: &mut Vec<EntryId>) -> Option<u64> {
        evictions.clear();
        if let Some(spare) = self.left_without_evictions(demand, Count::Exact) {
            return Some(spare);
        }
        let short = self.slots_short(demand.sequences);
        let policy = &valid.plan.header.eviction;
        if policy.classes & cache_class::RESIDENT == 0 {
            return None;
        }
        let cache = &self.state.cache;
        let cap = policy.max_bytes.min(cache.resident_bytes().saturating_sub(policy.quota_bytes));
        // The walk asks after 1, 2, 4 ... choices whether it is enough, then the least number is searched: each question counts
        // the cells of all choices.
        let mut ask_at = short.max(1);
        let enough = |_, chosen: &[EntryId]| {
            if chosen.len() < ask_at {
                return false;
            }
            ask_at = chosen.len().saturating_mul(2);
            self.cells_left(chosen, demand, Count::Exact).is_some()
        };
        let found = cache.choose_evictions(cap, true, evictions, enough);
        if !found && (evictions.len() < short || self.cells_left(evictions, demand, Count::Exact).is_none()) {
            return None;
        }
        let (mut low, mut high) = (short.max(1), evictions.len());
        while low < high {
            let middle = low + (high - low) / 2;
            let fits =
                evictions.get(..middle).is_some_and(|some| self.cells_left(some, demand, Count::Exact).is_some());
            if fits { high = middle } else { low = middle + 1 }
        }
        evictions.truncate(high);
        self.cells_left(evictions, demand, Count::Exact)
    }

    /// Cells that are left when nothing is evicted; none when slots or cells are short.
    fn left_without_evictions(&mut self, demand: &Demand<'_>, count: Count) -> Option<u64> {
        let short = self.slots_short(demand.sequences);
        if short == 0 { self.cells_left(&[], demand, count) } else { None }
    }

    /// Slots that are missing (T-67).
    fn slots_short(&self, sequences: usize) -> usize {
        let slots = self.state.descriptor.max_seqs as usize;
        if slots == 0 {
            return 0;
        }
        let live = self.state.live_sequences().saturating_add(self.promised.slots);
        (sequences + live).saturating_sub(slots + self.retiring)
    }

    /// Cells that are left over when these entries go too; none when there are too few (T-66).
    fn cells_left(&mut self, evictions: &[EntryId], demand: &Demand<'_>, count: Count) -> Option<u64> {
        let state = self.state;
        let total = state.descriptor.cells_total;
        if total == 0 {
            return Some(u64::MAX);
        }
        let released = self.cells_released(evictions);
        // More may be promised than is free now: what rests counts as room there, and pays for that before it pays for this plan.
        let free = total.saturating_add(released).saturating_sub(self.cells_used());
        let leaving = (count == Count::Exact).then_some(&self.leaving[..]);
        free.checked_sub(demand.cells(leaving, state))
    }

    /// Cells that the retiring, the departing and these entries give back; notes them all as leaving.
    fn cells_released(&mut self, evictions: &[EntryId]) -> u64 {
        let state = self.state;
        self.leaving.truncate(self.surely);
        let sequences = evictions.iter().filter_map(|&entry| state.cache.get(entry)).map(|entry| entry.sequence);
        self.leaving.extend(sequences);
        if self.leaving.is_empty() { 0 } else { state.runtime.cells_released(self.leaving) }
    }

    /// Cells in use, those that others have claimed included.
    fn cells_used(&self) -> u64 {
        self.state.runtime.mem_counters().cells_used.saturating_add(self.promised.cells)
    }
}
