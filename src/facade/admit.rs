#![forbid(unsafe_code)]
//! Admission (X-13 .. X-20), and the questions that change nothing.

use super::core::Shared;
use super::table::{Phase, Slot, blocks};
use super::work::{Admission, Fit};
use super::{Seq, Units};
use crate::capacity::{Bad, Demand, Domain, NOTHING, Refusal};
use crate::executor::Resident;
use crate::runtime::Runtime;

impl<R: Runtime> Shared<R> {
    pub(super) fn admit_one(&self, admission: &Admission<'_>) -> Result<Seq, Refusal> {
        let context_len = self.check_admission(admission)?;
        let seq = match self.admit_resident(admission, context_len)? {
            Some(seq) => seq,
            None => self.admit_empty(admission, context_len)?,
        };
        if admission.counted {
            self.counters.admissions.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
        Ok(seq)
    }

    /// The length of the context.
    fn check_admission(&self, admission: &Admission<'_>) -> Result<usize, Refusal> {
        let Admission { prompt, replayed, ceiling, counted, .. } = *admission;
        let bounds = Refusal::bad(Bad::Bounds);
        let context_len = prompt.len().checked_add(replayed.len()).ok_or(bounds)?;
        let foreign = prompt.iter().chain(replayed).any(|&id| id >= self.traits.vocab);
        let replays_nothing = counted || replayed.is_empty();
        let fits = ceiling >= context_len && ceiling as u64 <= self.info.max_tokens;
        if prompt.is_empty() || foreign || !replays_nothing || !fits { Err(bounds) } else { Ok(context_len) }
    }

    /// Claims for a sequence that starts with `resident` whole blocks of a cached prefix.
    fn demand(&self, admission: &Admission<'_>, context_len: usize, resident: u64) -> Demand {
        let block = self.traits.block;
        let len = match admission.fit {
            Fit::Now => 0,
            Fit::Input => context_len,
            Fit::Ceiling => admission.ceiling,
        };
        let (mut claim, mut fit) = (NOTHING, NOTHING);
        claim[Domain::Slots.index()] = 1;
        // The blocks of the prefix may be among those that count as free because they can be evicted.
        claim[Domain::Blocks.index()] = 1 + resident;
        fit[Domain::Blocks.index()] = blocks(len, block);
        Demand::fitting(claim, fit)
    }

    fn admit_empty(&self, admission: &Admission<'_>, context_len: usize) -> Result<Seq, Refusal> {
        let slot = self.slot(admission, context_len);
        let demand = self.demand(admission, context_len, 0);
        let mut table = self.table();
        self.check_open(&table)?;
        self.ledger.claim(&demand, admission.pressure)?;
        table.insert(slot).or_else(|why| {
            self.ledger.release(&demand.claim)?;
            Err(Refusal::bad(why))
        })
    }

    fn slot(&self, admission: &Admission<'_>, context_len: usize) -> Slot {
        // Room for all that it may ever hold, so that no run allocates for it.
        let mut tokens = Vec::with_capacity(admission.ceiling);
        tokens.extend_from_slice(admission.prompt);
        tokens.extend_from_slice(admission.replayed);
        Slot {
            tokens,
            prompt_len: admission.prompt.len(),
            context_len,
            ceiling: admission.ceiling,
            held: 1,
            phase: Phase::Idle,
            recomputes: admission.pressure == crate::capacity::Remedy::Recompute,
            counted: admission.counted,
            ..Slot::default()
        }
    }

    /// Admits a sequence that starts from a resident prefix; none when there is none, when the pool has no room for keeping it
    /// beside what is needed, or when a step is under way: nobody waits for one to be admitted.
    fn admit_resident(&self, admission: &Admission<'_>, context_len: usize) -> Result<Option<Seq>, Refusal> {
        if !admission.reuse || !self.traits.reuses {
            return Ok(None);
        }
        let Some(mut turn) = self.submission.try_enter() else { return Ok(None) };
        turn.executor.do_chores();
        let mut slot = self.slot(admission, context_len);
        let Some(resident) = turn.executor.find_resident(&slot.tokens, self.traits.block) else { return Ok(None) };
        let Resident { tokens, entry, .. } = resident;
        let shared = blocks(tokens, self.traits.block);
        let demand = self.demand(admission, context_len, shared);
        let mut table = self.table();
        self.check_open(&table)?;
        match self.ledger.claim(&demand, admission.pressure) {
            Ok(_) => {}
            Err(Refusal::Blocked(_) | Refusal::Never(_)) => return Ok(None),
            Err(refusal) => return Err(refusal),
        }
        let mut back = NOTHING;
        back[Domain::Blocks.index()] = shared;
        let started = turn.executor.start_guest(&resident);
        let outcome = match started {
            Ok(handle) => {
                slot.handle = handle;
                slot.frontier = tokens;
                slot.shared = shared;
                slot.origin = entry;
                table.insert(slot).map(Some).map_err(|why| {
                    turn.executor.free_guest(handle);
                    Refusal::bad(why)
                })
            }
            Err(_) => Ok(None),
        };
        if !matches!(outcome, Ok(Some(_))) {
            back = demand.claim;
        }
        let woken = turn.executor.settle_guests(&back, 0);
        drop(table);
        drop(turn);
        drop(woken);
        outcome
    }

    pub(super) fn frontier_of(&self, seq: Seq) -> Result<usize, Refusal> {
        let table = self.table();
        let at = table.find(seq).map_err(Refusal::bad)?;
        Ok(table.slots.get(at).map_or(0, |slot| slot.frontier))
    }

    pub(super) fn held_by(&self, seq: Seq) -> Result<Units, Refusal> {
        let table = self.table();
        let at = table.find(seq).map_err(Refusal::bad)?;
        let mut units = NOTHING;
        if let Some(slot) = table.slots.get(at) {
            units[Domain::Slots.index()] = 1;
            units[Domain::Blocks.index()] = slot.held;
            units[Domain::Flight.index()] = u64::from(slot.phase == Phase::InFlight);
        }
        Ok(units)
    }

    pub(super) fn freed_by(&self, seqs: &[Seq]) -> Result<Units, Refusal> {
        let mut table = self.table();
        let call = table.begin_call();
        let mut units = NOTHING;
        // Checked before any is looked at, so that a list with a stale name answers that.
        for (index, &seq) in seqs.iter().enumerate() {
            table.find(seq).map_err(|why| Refusal::bad_at(why, index as u32))?;
        }
        let mut origins: smallvec::SmallVec<[u64; 8]> = smallvec::SmallVec::new();
        for &seq in seqs {
            let at = table.find(seq).map_err(Refusal::bad)?;
            if !table.name(at, call) {
                continue;
            }
            let Some(slot) = table.slots.get(at).filter(|slot| slot.phase == Phase::Idle) else { continue };
            units[Domain::Slots.index()] += 1;
            units[Domain::Blocks.index()] += slot.held;
            if slot.origin != 0 && !origins.contains(&slot.origin) {
                origins.push(slot.origin);
            }
        }
        // Sequences share a head of their origin: what is longer than any that stays is freed with the set.
        for origin in origins {
            let sharing = table.slots.iter().filter(|slot| slot.generation != 0 && slot.origin == origin);
            let leaves = |slot: &&Slot| slot.named_in == call && slot.phase == Phase::Idle && !slot.ended;
            let most = |leaving: bool| {
                let those = sharing.clone().filter(|slot| leaves(slot) == leaving);
                those.map(|slot| slot.shared).max().unwrap_or(0)
            };
            units[Domain::Blocks.index()] += most(true).saturating_sub(most(false));
        }
        Ok(units)
    }
}
