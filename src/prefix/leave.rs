#![forbid(unsafe_code)]
//! Which entries leave the pool or the cache, and how.

use super::PrefixCache;
use super::entry::{Entry, EntryId, Place};
use super::ledger::Rank;

/// Ticks that a host-memory shortage lasts (S-60).
const SHORTAGE_TICKS: u64 = 64;

/// How an entry leaves the pool (S-56).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leaving {
    /// It is removed and its sequence freed: a loss of its bytes and tokens.
    Evict,
    /// It is exported first; when that fails it is evicted.
    Export,
}

impl PrefixCache {
    /// The unpinned entries in the pool, in eviction order (S-54).
    pub fn eviction_order(&self) -> impl Iterator<Item = &Entry> {
        self.store.ledger.pool_order.iter().filter_map(|&(_, _, id)| self.store.get(id))
    }

    /// The unpinned exported entries, least worth first: not a shared prefix, then least recent use, then oldest (S-56).
    pub fn exports_by_worth(&self) -> impl Iterator<Item = &Entry> {
        self.store.ledger.export_order.iter().filter_map(|&(_, _, id)| self.store.get(id))
    }

    /// Fills `chosen` with entries to evict, in eviction order, skipping each that would push the sum of bytes over `cap_bytes`,
    /// until `enough` says so of the bytes and entries chosen so far; answers whether it did (S-55, T-68).
    ///
    /// `chosen` is cleared first. `enough` is asked before the first entry and after each choice. Shared prefixes are considered
    /// only if `shared_too`.
    pub fn choose_evictions(
        &self,
        cap_bytes: u64,
        shared_too: bool,
        chosen: &mut Vec<EntryId>,
        mut enough: impl FnMut(u64, &[EntryId]) -> bool,
    ) -> bool {
        chosen.clear();
        let mut bytes: u64 = 0;
        if enough(bytes, chosen) {
            return true;
        }
        for entry in self.eviction_order().take_while(|entry| shared_too || !entry.is_shared_prefix()) {
            let sum = bytes.saturating_add(entry.pool_bytes(self.shape.bytes_per_token));
            if sum > cap_bytes {
                continue;
            }
            bytes = sum;
            chosen.push(entry.id);
            if enough(bytes, chosen) {
                return true;
            }
        }
        false
    }

    /// How an entry of the pool leaves it at tick `now`, as far as the cache knows (S-56): the caller exports only if the runtime
    /// offers a lossless encoding.
    ///
    /// `drops` is cleared, and for [`Leaving::Export`] filled with the exports to drop to make room once the runtime has
    /// exported; until then nothing may be dropped.
    pub fn leaving(&self, id: EntryId, now: u64, drops: &mut Vec<EntryId>) -> Leaving {
        drops.clear();
        let Some(entry) = self.store.get(id).filter(|entry| entry.in_pool()) else { return Leaving::Evict };
        let tokens = entry.tokens.len() as u64;
        let budget = self.shape.exported_tokens_max;
        if tokens > budget || entry.held_tokens != tokens || self.in_shortage(now) || self.is_covered(id) {
            return Leaving::Evict;
        }
        let mut over = (self.exported_tokens() + tokens).saturating_sub(budget);
        let worth = (entry.is_shared_prefix(), entry.last_use);
        let droppable =
            self.store.ledger.export_order.iter().take_while(|&&(shared, used, _): &&Rank| (shared, used) <= worth);
        for &(_, _, export) in droppable {
            if over == 0 {
                break;
            }
            over = over.saturating_sub(self.store.get(export).map_or(0, |export| export.tokens.len() as u64));
            drops.push(export);
        }
        if over > 0 {
            drops.clear();
            return Leaving::Evict;
        }
        Leaving::Export
    }

    /// Marks an entry of the pool as exported and answers the sequence that it gave up, which the caller frees. None, and nothing
    /// changed, when it is not in the pool.
    pub fn export_done(&mut self, id: EntryId, payload: Vec<u8>) -> Option<u64> {
        self.store.leave_pool(id, Place::Exported(payload))
    }

    /// Marks an entry of the pool as exported while its payload of `bytes` bytes is still to be written, and answers the sequence that it
    /// gave up, which the caller frees when [`PrefixCache::export_arrived`]. None, and nothing changed, when it is not in the pool.
    pub fn export_begun(&mut self, id: EntryId, bytes: u64) -> Option<u64> {
        self.store.leave_pool(id, Place::Departing { bytes })
    }

    /// Hands an entry the payload that it was waiting for; false, and nothing changed, when it waits for none.
    pub fn export_arrived(&mut self, id: EntryId, payload: Vec<u8>) -> bool {
        self.store.arrive(id, payload)
    }

    /// The entry that leaves the pool next while the cache holds too many cells: the first in eviction order that is covered or of
    /// which `frees_cell` is true, else the first at all (S-57). None when every entry is pinned.
    pub fn settling_victim(&self, mut frees_cell: impl FnMut(&Entry) -> bool) -> Option<EntryId> {
        let mut first = None;
        for entry in self.eviction_order() {
            first = first.or(Some(entry.id));
            if frees_cell(entry) || self.is_covered(entry.id) {
                return Some(entry.id);
            }
        }
        first
    }

    /// Begins a shortage of host memory at tick count `now`, which lasts through tick `now + 64`; fills `drops` with the exports
    /// that the caller removes: all unpinned ones (S-60).
    pub fn begin_shortage(&mut self, now: u64, drops: &mut Vec<EntryId>) {
        self.shortage_until = Some(now.saturating_add(SHORTAGE_TICKS));
        drops.clear();
        drops.extend(self.store.ledger.export_order.iter().map(|&(_, _, id)| id));
    }

    /// Whether leaving the pool means eviction because of [`PrefixCache::begin_shortage`].
    pub fn in_shortage(&self, now: u64) -> bool {
        self.shortage_until.is_some_and(|until| now <= until)
    }
}
