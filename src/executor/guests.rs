#![forbid(unsafe_code)]
//! Sequences of another facade in the same pool.
//!
//! A guest is a sequence that no lane, no host of this engine and no entry owns: whoever asked for it does. Its owner does not wait for a step to
//! let it go: what the pool has to do is put on a list of chores, and whoever submits next, a tick or a run, does them first.
//!
//! ```text
//!   close --> chores: free, cut, leave behind ----> do_chores ----> settle_guests: measure, settle with the ledger
//!             ledger: counted as free at once                       under the lock of the list, so that nothing is counted twice
//! ```
//!
//! # Invariants
//! - A sequence whose chore is to be freed is counted as free in the ledger, and still in the pool; both are made one under the lock of the list.
//! - Steps of guests and of lanes are the same steps: what a row is does not depend on who asked.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Executor;
use super::cache::Entering;
use super::events::Events;
use super::sequences::Content;
use super::state::State;
use crate::capacity::{Units, Woken};
use crate::engine::EventsView;
use crate::prefix::EntryId;
use crate::record::Status;
use crate::runtime::{Answers, Feed, Runtime, RuntimeError, SeqHandle};

/// What the pool still has to do for an owner of guests.
#[derive(Debug)]
pub(crate) enum Chore {
    /// The sequence is gone.
    Free(SeqHandle),
    /// The sequence has so many tokens now.
    Cut(SeqHandle, u64),
    /// The sequence is gone, and its whole pages may serve others.
    Leave {
        /// The sequence.
        sequence: SeqHandle,
        /// What it holds.
        tokens: Vec<u32>,
        /// How much of that was a prompt.
        prompt_len: usize,
    },
}

/// The list of chores. Its lock comes after those of a submission and of whoever owns guests, and before the ledger's.
#[derive(Clone, Debug, Default)]
pub(crate) struct Chores(Arc<Mutex<Vec<Chore>>>);

impl Chores {
    /// The list, held.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Vec<Chore>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The guests of an engine.
#[derive(Debug, Default)]
pub(super) struct Guests {
    chores: Chores,
    live: BTreeSet<SeqHandle>,
    /// Somebody may ask for one.
    admitted: bool,
}

impl Guests {
    /// The list of chores.
    pub(super) fn chores(&self) -> Chores {
        self.chores.clone()
    }

    /// Whether there may be any.
    pub(super) fn are_admitted(&self) -> bool {
        self.admitted
    }

    /// Their sequences.
    pub(super) fn sequences(&self) -> impl Iterator<Item = SeqHandle> {
        self.live.iter().copied()
    }
}

/// A cached prefix that a guest may start from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Resident {
    /// Tokens, whole blocks.
    pub(crate) tokens: usize,
    /// Tells entries apart; never 0.
    pub(crate) entry: u64,
    id: EntryId,
}

/// The events of a tick, out of the engine.
#[derive(Debug)]
pub(crate) struct TickEvents(Events);

impl TickEvents {
    /// No tick has run.
    pub(crate) fn none() -> Self {
        Self(Events::none())
    }

    /// What a host reads; none before the first tick.
    pub(crate) fn view(&self) -> Option<EventsView<'_>> {
        self.0.view()
    }
}

impl<R: Runtime> State<R> {
    /// Does what the owners of guests left to be done.
    pub(super) fn do_chores(&mut self) {
        let chores = self.guests.chores.clone();
        self.work_off(&mut chores.lock());
    }

    pub(super) fn work_off(&mut self, chores: &mut Vec<Chore>) {
        if self.broken {
            // What a broken runtime holds ends with it; the ledger has been told.
            chores.clear();
            return;
        }
        let mut left_behind = false;
        for chore in chores.drain(..) {
            match chore {
                Chore::Free(sequence) => self.free_guest(sequence),
                // A sequence that cannot be cut there is never asked to be.
                Chore::Cut(sequence, len) => self.cells_moved |= self.runtime.seq_truncate(sequence, len).is_ok(),
                Chore::Leave { sequence, tokens, prompt_len } => {
                    self.leave_behind(sequence, tokens, prompt_len);
                    left_behind = true;
                }
            }
        }
        if left_behind {
            let mut losses = std::mem::take(&mut self.losses);
            self.settle_cache(&mut losses);
            losses.append(&mut self.losses);
            self.losses = losses;
        }
    }

    fn free_guest(&mut self, sequence: SeqHandle) {
        // The ledger has been told, so nothing is noted as freed here.
        self.guests.live.remove(&sequence);
        self.runtime.seq_free(sequence);
        self.cells_moved = true;
    }

    /// The guest's whole pages become an entry of the cache.
    fn leave_behind(&mut self, sequence: SeqHandle, mut tokens: Vec<u32>, prompt_len: usize) {
        let key_len = self.key_len(tokens.len());
        if key_len == 0 {
            return self.free_guest(sequence);
        }
        self.guests.live.remove(&sequence);
        tokens.truncate(key_len);
        let prompt_len = prompt_len.min(key_len);
        self.enter_cache(sequence, tokens, Entering { content: Content::default(), prompt_len, shared: false });
    }

    /// Has the pool hold so many free cells, as far as entries can leave; how many left.
    fn make_room(&mut self, cells: u64) -> u64 {
        if !self.departures.is_empty() {
            self.have_room_for(cells);
        }
        let mut evicted = 0;
        let mut losses = std::mem::take(&mut self.losses);
        while self.cells_free() < cells {
            let Some(victim) = self.cache.eviction_order().next().map(|entry| entry.id) else { break };
            self.leave_pool(victim, &mut losses);
            if !self.departures.is_empty() {
                self.have_room_for(cells);
            }
            evicted += 1;
        }
        losses.append(&mut self.losses);
        self.losses = losses;
        evicted
    }

    fn cells_free(&self) -> u64 {
        let counters = self.runtime.mem_counters();
        match counters.cells_total {
            0 => u64::MAX,
            total => total.saturating_sub(counters.cells_used),
        }
    }
}

/// What an owner of guests does with them, one submission at a time.
impl<R: Runtime> Executor<R> {
    /// Admits guests; the list of chores.
    pub(crate) fn admit_guests(&mut self) -> Chores {
        self.state.guests.admitted = true;
        self.state.guests.chores.clone()
    }

    /// Does the chores; the first thing that a submission does.
    pub(crate) fn do_chores(&mut self) {
        self.state.do_chores();
    }

    /// Does the chores, measures the pool and settles with the ledger; the last thing that a submission does. `back`: claims that became pages
    /// or were not needed; `freed`: domains that move in any case. Who is to be woken is so when the answer is dropped, and no lock is held.
    pub(crate) fn settle_guests(&mut self, back: &Units, freed: u8) -> Woken {
        self.state.restate(back, freed);
        std::mem::take(&mut self.state.woken)
    }

    /// The longest cached prefix of whole blocks that leaves at least a token to be computed.
    pub(crate) fn find_resident(&self, context: &[u32], block: u64) -> Option<Resident> {
        let span = context.get(..context.len().checked_sub(1)?)?;
        let block = usize::try_from(block).ok()?;
        let mut found = Vec::new();
        self.state.cache.matches(&self.state.scope(0), span, &mut found);
        let best = found.into_iter().find(|candidate| candidate.in_pool && candidate.taint == 0)?;
        let tokens = best.len / block * block;
        (tokens > 0).then_some(Resident { tokens, entry: best.entry.as_u64(), id: best.entry })
    }

    /// A guest that shares the pages of a prefix.
    pub(crate) fn start_guest(&mut self, resident: &Resident) -> Result<SeqHandle, Status> {
        let source = self.state.cache.get(resident.id).filter(|entry| entry.in_pool()).map(|entry| entry.sequence);
        let source = source.ok_or(Status::SeedUnservable)?;
        let guest = self.make_guest(Some(source))?;
        if let Err(error) = self.state.runtime.seq_copy(source, guest, resident.tokens as u64) {
            self.free_guest(guest);
            return Err(error.into());
        }
        self.state.cache.seeded(resident.id, resident.tokens, self.state.tick_count);
        self.state.cells_moved = true;
        Ok(guest)
    }

    /// An empty guest.
    pub(crate) fn make_guest(&mut self, spared: Option<SeqHandle>) -> Result<SeqHandle, Status> {
        let guest = self.state.make_sequence(spared)?;
        self.state.guests.live.insert(guest);
        Ok(guest)
    }

    /// Frees a guest.
    pub(crate) fn free_guest(&mut self, guest: SeqHandle) {
        self.state.free_guest(guest);
    }

    /// Cuts a guest; whether that could be.
    pub(crate) fn cut_guest(&mut self, guest: SeqHandle, len: u64) -> bool {
        self.state.runtime.seq_truncate(guest, len).is_ok()
    }

    /// Tokens that a guest holds.
    pub(crate) fn guest_len(&self, guest: SeqHandle) -> u64 {
        self.state.runtime.seq_len(guest)
    }

    /// Makes room for so many blocks of the pool; how many entries of the cache left for it.
    pub(crate) fn make_room(&mut self, blocks: u64) -> u64 {
        let granule = u64::from(self.state.descriptor.cell_granule_tokens.max(1));
        self.state.make_room(blocks.saturating_mul(granule))
    }

    /// One step of guests. A runtime that is broken breaks the engine.
    pub(crate) fn step_guests(&mut self, feeds: &[Feed<'_>], answers: &mut Answers) -> Result<(), RuntimeError> {
        if self.state.broken {
            return Err(RuntimeError::Fatal);
        }
        let outcome = self.state.runtime.step(feeds, answers);
        self.state.broken = outcome == Err(RuntimeError::Fatal);
        outcome
    }

    /// What the runtime was doing was left half done: nothing runs any more.
    pub(crate) fn break_down(&mut self) {
        self.state.broken = true;
    }

    /// Exchanges the events of the last tick.
    pub(crate) fn swap_events(&mut self, events: &mut TickEvents) {
        std::mem::swap(&mut self.events, &mut events.0);
    }
}
