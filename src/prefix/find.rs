#![forbid(unsafe_code)]
//! Which entries serve a span.

use std::cmp::Reverse;

use smallvec::SmallVec;

use super::PrefixCache;
use super::entry::{EntryId, Scope};
use super::store::Store;
use super::summary::older;
use super::tree::{NodeIndex, Spot};

/// A prefix of a span that an entry can serve (S-46).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Tokens of the span.
    pub len: usize,
    /// The entry.
    pub entry: EntryId,
    /// Whether it lies in the pool; otherwise it is exported.
    pub in_pool: bool,
    /// `TAINT_*` bits of the entry.
    pub taint: u64,
    /// Content digest of the first `len` tokens of the span (S-81).
    pub digest: [u8; 32],
}

/// The oldest entry of each tier that serves something.
#[derive(Clone, Copy, Debug, Default)]
struct Serving {
    pool: Option<EntryId>,
    export: Option<EntryId>,
}

impl Serving {
    /// One in the pool beats an exported one (S-41, S-46).
    fn best(&self) -> Option<(EntryId, bool)> {
        self.pool.map(|id| (id, true)).or(self.export.map(|id| (id, false)))
    }

    /// Takes part in what entries of one part of a tree serve: all of the pool, and exports of at most `export_tokens`.
    fn add_part(&mut self, part: NodeIndex, export_tokens: usize, store: &Store) {
        self.pool = older(self.pool, store.forest.summary(part).pool_oldest);
        if self.pool.is_none() {
            self.export = oldest_export(part, export_tokens, self.export, store);
        }
    }

    /// Takes part in what the entries of one leaf serve.
    fn add_leaf(&mut self, leaf: NodeIndex, store: &Store) {
        let summary = store.forest.summary(leaf);
        self.pool = older(self.pool, summary.pool_oldest);
        self.export = older(self.export, summary.export_oldest);
    }
}

/// The oldest export of at most `tokens` tokens below `part`, or `best` when none is older.
fn oldest_export(part: NodeIndex, tokens: usize, mut best: Option<EntryId>, store: &Store) -> Option<EntryId> {
    let mut open: SmallVec<[NodeIndex; 64]> = SmallVec::new();
    open.push(part);
    while let Some(node) = open.pop() {
        let summary = store.forest.summary(node);
        let Some(oldest) = summary.export_oldest.filter(|oldest| best.is_none_or(|best| *oldest < best)) else {
            continue;
        };
        if summary.export_shortest > tokens {
            continue;
        }
        let Some([zero, one]) = store.forest.sides(node) else {
            // All entries of a leaf are equally long.
            best = Some(oldest);
            continue;
        };
        // The older side first: it closes the other one more often.
        let age = |side| store.forest.summary(side).export_oldest.unwrap_or(EntryId { serial: u64::MAX, slot: 0 });
        open.extend(if age(zero) <= age(one) { [one, zero] } else { [zero, one] });
    }
    best
}

/// Longest export of which a seed of `len` tokens is a real part (S-51).
fn export_limit(len: usize) -> usize {
    len.saturating_mul(8)
}

impl PrefixCache {
    /// Fills `found` with the prefixes of `span` that entries of `scope` serve, longest first, one per length (S-46, S-51).
    ///
    /// `found` is cleared first. Of several entries for a length, one in the pool beats an exported one, then the oldest.
    pub fn matches(&self, scope: &Scope, span: &[u32], found: &mut Vec<Candidate>) {
        found.clear();
        let mut trees = 0;
        for (taint, root) in self.store.forest.trees(scope) {
            let spot = self.store.forest.locate(root, span, &self.store.slab);
            match self.shape.cuttable {
                true => self.match_parts(&spot, taint, found),
                false => self.match_whole(&spot, span.len(), taint, found),
            }
            trees += 1;
        }
        if trees > 1 {
            found.sort_unstable_by_key(|candidate| (Reverse(candidate.len), !candidate.in_pool, candidate.entry));
            found.dedup_by_key(|candidate| candidate.len);
        }
    }

    /// Whole pages that entries share with the span, of one tree.
    fn match_parts(&self, spot: &Spot, taint: u64, found: &mut Vec<Candidate>) {
        let page = self.shape.page_size_tokens;
        let mut serving = Serving::default();
        let mut len = 0;
        for (part, common) in self.store.forest.climb(spot) {
            let pages = common / page * page;
            if pages != len {
                self.push_candidate(len, serving, taint, found);
                serving = Serving::default();
                len = pages;
            }
            if len == 0 {
                return;
            }
            serving.add_part(part, export_limit(len), &self.store);
        }
        self.push_candidate(len, serving, taint, found);
    }

    /// Whole entries that the span goes on after, of one tree.
    fn match_whole(&self, spot: &Spot, span_len: usize, taint: u64, found: &mut Vec<Candidate>) {
        for (part, common) in self.store.forest.climb(spot) {
            let key_len = self.store.forest.summary(part).shortest;
            let whole = self.store.forest.sides(part).is_none() && key_len == common && common < span_len;
            if whole && common.is_multiple_of(self.shape.page_size_tokens) {
                let mut serving = Serving::default();
                serving.add_leaf(part, &self.store);
                self.push_candidate(common, serving, taint, found);
            }
        }
    }

    fn push_candidate(&self, len: usize, serving: Serving, taint: u64, found: &mut Vec<Candidate>) {
        if let Some((entry, in_pool)) = serving.best().filter(|_| len > 0) {
            found.push(Candidate { len, entry, in_pool, taint, digest: self.store.prefix_digest(entry, len) });
        }
    }

    /// The entry that a seed of the first `len` tokens of `span` would be served from (S-40, S-41, S-51); only an untainted one
    /// when `untainted` is set (S-94).
    pub fn find_seed(&self, scope: &Scope, span: &[u32], len: usize, untainted: bool) -> Option<EntryId> {
        let prefix = span.get(..len)?;
        let cuttable = self.shape.cuttable;
        if len == 0 || !len.is_multiple_of(self.shape.page_size_tokens) || (!cuttable && len == span.len()) {
            return None;
        }
        let any_longer = cuttable && len as u64 >= self.shape.seed_min_tokens;
        let mut serving = Serving::default();
        for (_, root) in self.store.forest.trees(scope).take_while(|&(taint, _)| !untainted || taint == 0) {
            let spot = self.store.forest.locate(root, prefix, &self.store.slab);
            if any_longer && let Some(part) = self.store.forest.beginning_with(&spot, len) {
                serving.add_part(part, export_limit(len), &self.store);
            } else if let Some(leaf) = spot.exact() {
                serving.add_leaf(leaf, &self.store);
            }
        }
        serving.best().map(|(id, _)| id)
    }

    /// Fills `found` with the entries whose key is exactly `tokens`, oldest first, pinned ones included (S-59, T-90).
    pub fn exact(&self, scope: &Scope, tokens: &[u32], found: &mut Vec<EntryId>) {
        found.clear();
        for (_, root) in self.store.forest.trees(scope) {
            if let Some(leaf) = self.store.forest.locate(root, tokens, &self.store.slab).exact() {
                found.extend(self.store.forest.entries(leaf).iter().map(|&slot| self.store.slab.entry(slot).id));
            }
        }
        found.sort_unstable();
    }

    /// Fills `found` with the entries of every scope whose key has this content digest, oldest first, pinned ones included (S-58).
    pub fn of_digest(&self, digest: &[u8; 32], found: &mut Vec<EntryId>) {
        found.clear();
        found.extend(self.store.of_digest(digest));
    }
}
