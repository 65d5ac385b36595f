#![forbid(unsafe_code)]
//! What the entries sum to, and in which order they leave.
//!
//! # Invariants
//! An entry is in exactly one of the two orders when it is unpinned, and in none when it is pinned.

use std::collections::BTreeSet;

use super::entry::{Entry, EntryId};

/// Position in an order of leaving: shared prefixes last, then least recent use first, then oldest first (S-54).
pub(super) type Rank = (bool, u64, EntryId);

/// Sums and orders, kept entry by entry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Ledger {
    pub(super) resident_bytes: u64,
    pub(super) evictable_bytes: u64,
    pub(super) host_bytes: u64,
    pub(super) exported_tokens: u64,
    pub(super) pins: u64,
    /// Unpinned entries in the pool.
    pub(super) pool_order: BTreeSet<Rank>,
    /// Unpinned exported entries.
    pub(super) export_order: BTreeSet<Rank>,
}

fn rank(entry: &Entry) -> Rank {
    (entry.is_shared_prefix(), entry.last_use, entry.id)
}

impl Ledger {
    /// Takes an entry in as it stands.
    pub(super) fn count(&mut self, entry: &Entry, bytes_per_token: u64) {
        let bytes = entry.pool_bytes(bytes_per_token);
        self.resident_bytes += bytes;
        self.pins += u64::from(entry.pins);
        if !entry.in_pool() {
            self.host_bytes += entry.host_bytes();
            self.exported_tokens += entry.tokens.len() as u64;
        }
        if entry.pins == 0 {
            self.evictable_bytes += bytes;
            let order = if entry.in_pool() { &mut self.pool_order } else { &mut self.export_order };
            order.insert(rank(entry));
        }
    }

    /// Takes an entry out as it was counted.
    pub(super) fn discount(&mut self, entry: &Entry, bytes_per_token: u64) {
        let bytes = entry.pool_bytes(bytes_per_token);
        self.resident_bytes -= bytes;
        self.pins -= u64::from(entry.pins);
        if !entry.in_pool() {
            self.host_bytes -= entry.host_bytes();
            self.exported_tokens -= entry.tokens.len() as u64;
        }
        if entry.pins == 0 {
            self.evictable_bytes -= bytes;
            let order = if entry.in_pool() { &mut self.pool_order } else { &mut self.export_order };
            order.remove(&rank(entry));
        }
    }
}
