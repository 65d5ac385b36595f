#![forbid(unsafe_code)]
//! The prefix cache as a data structure: which entries exist, which of them serves a span, which of them leaves next.
//!
//! It keeps entries and leases and decides; it never touches device state. The executor asks, and carries out what was decided:
//!
//! ```text
//! retire publishing   insert                          room needed      eviction_order / choose_evictions
//! host asks           matches, acquire                entry leaves     leaving -> Evict: remove, free its sequence
//! admit with a lease  lease, release, seeded                                   -> Export: export_done, or export_begun
//!                                                                                 and, its bytes written, export_arrived
//! tick begins         pop_expired                     after retires    settling_victim, next_covered_export
//! ```
//!
//! # Invariants
//! - Entries of different [`Scope`]s never serve, cover or replace each other.
//! - A pinned entry is in no eviction order, and no decision names it; only [`PrefixCache::remove`] is told so by its caller.
//! - Answers are those of the rules read over a plain list of entries, ties included, whatever the index does.
//! - An operation that answers none or an error changed nothing.
//!
//! [`PrefixCache::audit`] walks everything and checks this.
//!
//! # Limits
//! 2^24 entries at a time; tokens of exports by [`CacheShape::exported_tokens_max`].
//!
//! # Not here
//! Sequences, pages, exports and imports (executor and runtime); how many cells the cache may hold (the caller asks and counts).

mod cover;
mod entry;
mod find;
mod lease;
mod leave;
mod ledger;
mod slab;
mod store;
mod summary;
#[cfg(test)]
mod tests;
mod trail;
mod tree;

pub use entry::{Entry, EntryId, NewEntry, Place, Scope};
pub use find::Candidate;
pub use lease::{Lease, LeaseSource, Unservable};
pub use leave::Leaving;

use std::collections::BTreeSet;

use lease::Leases;
use store::Store;

/// What the rules depend on; fixed when the cache is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheShape {
    /// Tokens per page; 0 counts as 1.
    pub page_size_tokens: usize,
    /// State can be cut at any length; otherwise only at its head (head-only).
    pub cuttable: bool,
    /// Bytes of state per token; 0 counts as 1 (S-48).
    pub bytes_per_token: u64,
    /// Shortest partial seed worth taking (S-40), and shortest entry that can be covered (S-53).
    pub seed_min_tokens: u64,
    /// Tokens that exported entries may hold together; 0 is none (S-56).
    pub exported_tokens_max: u64,
    /// Accepted ticks that a lease lives (S-43).
    pub lease_ticks: u64,
}

/// The prefix cache: entries, leases, and what the rules say of them.
#[derive(Debug)]
pub struct PrefixCache {
    shape: CacheShape,
    store: Store,
    leases: Leases,
    /// Some entry was inserted or used since the last settling (S-57).
    changed: bool,
    /// Exports that the settling under way has still to look at, in insertion order.
    sweep: BTreeSet<EntryId>,
    /// Entries that the settling under way found inserted or used; kept for its room.
    touched: Vec<EntryId>,
    /// Last tick of a host-memory shortage (S-60).
    shortage_until: Option<u64>,
}

/// Whether a seed of `seed` tokens is a real part of an entry of `entry` tokens: at least an eighth (S-51).
pub fn is_real_part(seed: usize, entry: usize) -> bool {
    seed.saturating_mul(8) >= entry
}

impl PrefixCache {
    /// An empty cache.
    pub fn new(shape: CacheShape) -> Self {
        let shape = CacheShape {
            page_size_tokens: shape.page_size_tokens.max(1),
            bytes_per_token: shape.bytes_per_token.max(1),
            ..shape
        };
        Self {
            shape,
            store: Store::new(shape.bytes_per_token),
            leases: Leases::default(),
            changed: false,
            sweep: BTreeSet::new(),
            touched: Vec::new(),
            shortage_until: None,
        }
    }

    /// What the rules depend on, with zeros replaced by what they stand for.
    pub fn shape(&self) -> &CacheShape {
        &self.shape
    }

    /// Entries, exported ones included.
    pub fn len(&self) -> usize {
        self.store.slab.len()
    }

    /// Entries in the pool: each owns a sequence.
    pub fn pool_len(&self) -> usize {
        self.store.pool_len()
    }

    /// Whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// An entry.
    pub fn get(&self, id: EntryId) -> Option<&Entry> {
        self.store.get(id)
    }

    /// The entry in the pool that owns a sequence; exported entries own none (S-1, S-2).
    pub fn of_sequence(&self, sequence: u64) -> Option<&Entry> {
        self.store.get(self.store.of_sequence(sequence)?)
    }

    /// All entries in insertion order, for inspection.
    pub fn entries(&self) -> Vec<&Entry> {
        let mut entries: Vec<&Entry> = self.store.slab.iter().map(|stored| &stored.entry).collect();
        entries.sort_unstable_by_key(|entry| entry.id);
        entries
    }

    /// Bytes of the entries in the pool (S-48).
    pub fn resident_bytes(&self) -> u64 {
        self.store.ledger.resident_bytes
    }

    /// Bytes of the unpinned entries in the pool (T-145).
    pub fn evictable_bytes(&self) -> u64 {
        self.store.ledger.evictable_bytes
    }

    /// Payload bytes of the exported entries (S-48).
    pub fn host_bytes(&self) -> u64 {
        self.store.ledger.host_bytes
    }

    /// Tokens of the exported entries (S-56).
    pub fn exported_tokens(&self) -> u64 {
        self.store.ledger.exported_tokens
    }

    /// Pins that leases hold on entries.
    pub fn pins(&self) -> u64 {
        self.store.ledger.pins
    }

    /// Adds an entry in the pool, used now (S-47, S-49); entries with the same key may exist already.
    pub fn insert(&mut self, new: NewEntry) -> EntryId {
        self.changed = true;
        self.store.insert(new)
    }

    /// Takes an entry out, pinned or not; leases on it find nothing any more. What owned a sequence or a payload is in the answer.
    pub fn remove(&mut self, id: EntryId) -> Option<Entry> {
        self.store.remove(id)
    }

    /// Counts a seed of `keep` tokens from an entry; one that is a real part is a use at tick `now` (T-80, S-51).
    pub fn seeded(&mut self, id: EntryId, keep: usize, now: u64) {
        self.changed |= self.store.seeded(id, keep, now);
    }

    /// Whether entries were inserted or used since the last settling: whether [`PrefixCache::next_covered_export`] can
    /// answer (S-57).
    pub fn changed(&self) -> bool {
        self.changed
    }

    /// Walks everything and checks the invariants.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub fn audit(&self) -> Result<(), String> {
        self.store.audit()?;
        self.leases.audit(&self.store)
    }
}
