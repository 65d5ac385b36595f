#![forbid(unsafe_code)]
//! Entries that another one serves so well that keeping them is no use (S-53), and the sweep over covered exports (S-57).
//!
//! An entry can only become covered when another one is inserted or used. So the sweep does not ask all exports: it asks
//! those that the entries inserted or used since the last one may cover, and those that the last one could not drop.

use std::collections::BTreeSet;

use smallvec::SmallVec;

use super::entry::{Entry, EntryId};
use super::slab::Stored;
use super::tree::{NodeIndex, Spot};
use super::{PrefixCache, is_real_part};

/// Whether what an entry of `tokens` tokens has beyond the `common` ones is little enough to compute again (S-53).
fn little_is_lost(tokens: usize, common: usize) -> bool {
    (tokens - common).saturating_mul(8) <= tokens
}

/// Longest entry of which little is lost when only `common` of its tokens are kept: 8 (n - c) <= n.
fn longest_to_lose_little(common: usize) -> usize {
    common.saturating_mul(8) / 7
}

/// What [`PrefixCache::is_covered`] compares with (S-53).
fn recency(entry: &Entry) -> (u64, u64) {
    (entry.last_use, entry.sequence)
}

impl PrefixCache {
    /// Whether another entry serves this one so well that keeping it is no use (S-53). Always false on a head-only runtime.
    pub fn is_covered(&self, id: EntryId) -> bool {
        let Some(stored) = self.store.slab.get(id) else { return false };
        let entry = &stored.entry;
        if !self.shape.cuttable || (entry.tokens.len() as u64) < self.shape.seed_min_tokens {
            return false;
        }
        self.store.forest.trees(&entry.scope).any(|(taint, root)| {
            // Only a taint that adds nothing to the entry's own.
            taint & !entry.taint == 0 && self.covers(&self.spot_of(stored, taint, root), entry)
        })
    }

    /// Where the key of an entry stands in the tree of some taint.
    fn spot_of(&self, stored: &Stored, taint: u64, root: NodeIndex) -> Spot {
        let Stored { entry, leaf, .. } = stored;
        match taint == entry.taint {
            true => self.store.forest.own_spot(*leaf, &entry.tokens),
            false => self.store.forest.locate(root, &entry.tokens, &self.store.slab),
        }
    }

    /// Whether an entry of one tree covers `entry`, whose key stands at `spot`.
    fn covers(&self, spot: &Spot, entry: &Entry) -> bool {
        let n = entry.tokens.len();
        for (part, common) in self.store.forest.climb(spot) {
            let covered = if spot.exact() == Some(part) {
                let same_key = self.store.forest.entries(part).iter().map(|&slot| self.store.slab.entry(slot));
                same_key.into_iter().any(|other| recency(other) > recency(entry))
            } else if common == n {
                // Entries that go on after this one.
                is_real_part(n, self.store.forest.summary(part).shortest)
            } else if little_is_lost(n, common) {
                self.has_later(part, entry, common)
            } else {
                return false;
            };
            if covered {
                return true;
            }
        }
        false
    }

    /// Whether below `part` is an entry used later than `entry`, of which `common` tokens are a real part.
    fn has_later(&self, part: NodeIndex, entry: &Entry, common: usize) -> bool {
        let mut open: SmallVec<[NodeIndex; 64]> = SmallVec::new();
        open.push(part);
        while let Some(node) = open.pop() {
            let summary = self.store.forest.summary(node);
            if summary.latest <= recency(entry) || !is_real_part(common, summary.shortest) {
                continue;
            }
            match self.store.forest.sides(node) {
                // All entries of a leaf are equally long.
                None => return true,
                Some(sides) => open.extend(sides),
            }
        }
        false
    }

    /// The next unpinned exported entry that is covered, in insertion order, provided some entry was inserted or used after the
    /// previous settling (S-57). The caller removes it and asks again; none ends the settling.
    ///
    /// Each is asked as the cache stands then: an export that only a dropped one covered stays.
    pub fn next_covered_export(&mut self) -> Option<EntryId> {
        if !self.changed {
            return None;
        }
        self.list_sweep();
        while let Some(id) = self.sweep.pop_first() {
            let droppable = self.store.get(id).is_some_and(|entry| !entry.in_pool() && entry.pins == 0);
            if droppable && self.is_covered(id) {
                return Some(id);
            }
        }
        self.changed = false;
        None
    }

    /// Lists the exports that can have become covered.
    fn list_sweep(&mut self) {
        self.touched.clear();
        self.store.take_lists(&mut self.touched, &mut self.sweep);
        if !self.shape.cuttable {
            return self.sweep.clear();
        }
        let mut sweep = std::mem::take(&mut self.sweep);
        for stored in self.touched.iter().filter_map(|&id| self.store.slab.get(id)) {
            let entry = &stored.entry;
            // In trees whose taint includes the entry's.
            for (taint, root) in self.store.forest.trees(&entry.scope).filter(|(taint, _)| entry.taint & !taint == 0) {
                let parts = self.store.forest.climb(&self.spot_of(stored, taint, root));
                for (part, common) in parts.take_while(|&(_, common)| is_real_part(common, entry.tokens.len())) {
                    self.list_exports(part, longest_to_lose_little(common), &mut sweep);
                }
            }
        }
        self.sweep = sweep;
    }

    /// Lists the exports of at most `tokens` tokens below `part`.
    fn list_exports(&self, part: NodeIndex, tokens: usize, found: &mut BTreeSet<EntryId>) {
        let mut open: SmallVec<[NodeIndex; 64]> = SmallVec::new();
        open.push(part);
        while let Some(node) = open.pop() {
            if self.store.forest.summary(node).export_shortest > tokens {
                continue;
            }
            match self.store.forest.sides(node) {
                None => {
                    found.extend(self.store.forest.entries(node).iter().map(|&slot| self.store.slab.entry(slot).id))
                }
                Some(sides) => open.extend(sides),
            }
        }
    }
}
