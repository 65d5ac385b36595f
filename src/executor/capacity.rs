#![forbid(unsafe_code)]
//! The executor's end of the [`capacity`](crate::capacity) coordinator: what the pool holds is told at the end of every tick and of every
//! call that can move it, so that who waits for room is woken by the call that made it.
//!
//! ```text
//!   Slots        sequences of lanes, of the host, of entries in the pool         max_seqs
//!   Blocks       granules of the pool, those of departing entries aside          cells_total / cell_granule_tokens
//!   HostExport   bytes of entries out of the pool, and of finished operations    without bound
//!   Workspace, Flight                                                            move at the end of every tick
//! ```
//!
//! # Invariants
//! - A tick takes the lock once while nobody else claims from the same ledger: nothing then has to be claimed for it. Otherwise its whole
//!   demand is claimed when it is accepted and returned at its end, and once more it is told what the pool holds.
//! - Cached pages are counted as evictable when all that could be pinned is off: never more than there are.

use super::guests::Chores;
use super::state::State;
use crate::capacity::{Domain, Limits, Receipt, Settlement, Units};
use crate::runtime::{Descriptor, Runtime};

/// What a runtime has, as a coordinator counts it. Bytes that never change are those of the caller: a runtime does not know its weights.
pub(super) fn limits(descriptor: &Descriptor) -> Limits {
    let bound = |count: u64| if count == 0 { u64::MAX } else { count };
    let granule = u64::from(descriptor.cell_granule_tokens.max(1));
    let mut limits =
        Limits { block_bytes: granule.saturating_mul(descriptor.kv_bytes_per_token.max(1)), ..Limits::default() };
    for (domain, count) in
        [(Domain::Slots, bound(descriptor.max_seqs.into())), (Domain::Blocks, bound(descriptor.cells_total / granule))]
    {
        (limits.total[domain.index()], limits.max[domain.index()]) = (count, count);
    }
    limits
}

impl<R: Runtime> State<R> {
    /// Tells the coordinator what is held now, and that these domains had something given back in between; `back` are claims that end. None
    /// where the books are poisoned, or have counted to their end: then everybody has been told, and ticks go on without them.
    ///
    /// Whoever is woken by it is in `woken`.
    pub(super) fn restate(&mut self, back: &Units, freed: u8) -> Option<Receipt> {
        // What guests gave back is counted as free already: until it is in the pool nobody measures.
        let chores = self.guests.are_admitted().then(|| self.guests.chores());
        let mut list = chores.as_ref().map(Chores::lock);
        if let Some(list) = &mut list {
            self.work_off(list);
        }
        if self.broken {
            // What a broken runtime says of its pool is worth nothing, and part of it is in quarantine.
            let settlement = Settlement { back: *back, freed, ..Settlement::default() };
            return self.ledger.settle_quietly(&settlement, &mut self.woken).ok();
        }
        let mut measured = [None; crate::capacity::DOMAINS];
        measured[Domain::Slots.index()] = Some(self.slots_used());
        measured[Domain::Blocks.index()] = Some(self.blocks_used());
        measured[Domain::HostExport.index()] =
            Some(self.cache.host_bytes().saturating_add(self.transfers.ops.retained_bytes()));
        let freed = freed | std::mem::take(&mut self.freed);
        let settlement = Settlement { measured, back: *back, freed, evictable: Some(self.blocks_evictable()) };
        self.ledger.settle_quietly(&settlement, &mut self.woken).ok()
    }

    /// Wakes those whom the last calls made ready, unless the core's owner does when it holds no lock any more.
    pub(super) fn wake(&mut self) {
        if !self.wakes_later {
            std::mem::take(&mut self.woken).wake();
        }
    }

    /// Sequences that exist. Where others admit beside the ticks, those of entries that nobody leases count as free: they leave for whoever
    /// needs their slot.
    fn slots_used(&self) -> u64 {
        let leaving = match self.guests.are_admitted() {
            true => (self.cache.pool_len() as u64).saturating_sub(self.cache.pins()),
            false => 0,
        };
        (self.live_sequences() as u64).saturating_sub(leaving)
    }

    /// Granules of the pool that are in use, without those that departing entries give back.
    fn blocks_used(&self) -> u64 {
        let used = self.runtime.mem_counters().cells_used;
        used.saturating_sub(self.cells_departing()) / self.granule()
    }

    /// Cells that departing entries alone hold.
    pub(super) fn cells_departing(&self) -> u64 {
        if self.departures.is_empty() {
            return 0;
        }
        let departing: Vec<_> = self.departures.sequences().collect();
        self.runtime.cells_released(&departing)
    }

    /// Granules that only entries hold which may be evicted; at least so many come free when all of them go.
    fn blocks_evictable(&self) -> u64 {
        let granule = self.granule();
        let tokens = |bytes: u64| bytes / self.cache.shape().bytes_per_token.max(1);
        if self.cache.pool_len() == 0 {
            return 0;
        }
        let (resident, evictable) = (self.cache.resident_bytes(), self.cache.evictable_bytes());
        if let Some(resting) = self.runtime.cells_resting() {
            let pinned = tokens(resident.saturating_sub(evictable));
            // Each pinned entry may hold the rest of a granule beside its tokens.
            let rest = if pinned == 0 { 0 } else { (granule - 1).saturating_mul(self.cache.pool_len() as u64) };
            return resting.saturating_sub(self.cells_departing()).saturating_sub(pinned + rest) / granule;
        }
        let unpinned = self.cache.entries().into_iter().filter(|entry| entry.in_pool() && entry.pins == 0);
        let mut gone: Vec<_> = unpinned.map(|entry| entry.sequence).collect();
        gone.extend(self.departures.sequences());
        self.runtime.cells_released(&gone).saturating_sub(self.cells_departing()) / granule
    }

    pub(super) fn granule(&self) -> u64 {
        u64::from(self.descriptor.cell_granule_tokens.max(1))
    }
}
