#![forbid(unsafe_code)]
//! The entries, and everything they are found by, kept in step: every change of an entry goes through here.
//!
//! # Invariants
//! Index, ledger and the maps by sequence and by digest say what the entries say.

use std::collections::{BTreeMap, BTreeSet};

use super::entry::{Entry, EntryId, NewEntry, Place};
use super::is_real_part;
use super::ledger::Ledger;
use super::slab::{Slab, Stored};
use super::trail::Trail;
use super::tree::Forest;

#[derive(Debug)]
pub(super) struct Store {
    bytes_per_token: u64,
    pub(super) slab: Slab,
    pub(super) forest: Forest,
    pub(super) ledger: Ledger,
    /// Sequences of the entries in the pool.
    sequences: BTreeMap<u64, EntryId>,
    /// Entries by content digest of the key.
    digests: BTreeSet<([u8; 32], EntryId)>,
    /// Entries inserted or used since the last settling: they may cover exports now.
    touched: Vec<EntryId>,
    /// Exports that the last settling did not see, or could not drop: exported or unpinned since.
    unseen: Vec<EntryId>,
}

impl Store {
    pub(super) fn new(bytes_per_token: u64) -> Self {
        Self {
            bytes_per_token,
            slab: Slab::default(),
            forest: Forest::default(),
            ledger: Ledger::default(),
            sequences: BTreeMap::new(),
            digests: BTreeSet::new(),
            touched: Vec::new(),
            unseen: Vec::new(),
        }
    }

    pub(super) fn pool_len(&self) -> usize {
        self.sequences.len()
    }

    pub(super) fn get(&self, id: EntryId) -> Option<&Entry> {
        self.slab.get(id).map(|stored| &stored.entry)
    }

    pub(super) fn of_sequence(&self, sequence: u64) -> Option<EntryId> {
        self.sequences.get(&sequence).copied()
    }

    pub(super) fn of_digest(&self, digest: &[u8; 32]) -> impl Iterator<Item = EntryId> {
        let least = EntryId { serial: 0, slot: 0 };
        let from = (*digest, least);
        self.digests.range(from..).take_while(move |(other, _)| *other == from.0).map(|&(_, id)| id)
    }

    /// Content digest of the first `len` tokens of an entry's key.
    pub(super) fn prefix_digest(&self, id: EntryId, len: usize) -> [u8; 32] {
        self.slab.get(id).map_or([0; 32], |stored| stored.trail.digest(&stored.entry.tokens, len))
    }

    pub(super) fn insert(&mut self, new: NewEntry) -> EntryId {
        let id = self.slab.next_id();
        let root = self.forest.tree(&new.scope, new.taint);
        let spot = root.map(|root| self.forest.locate(root, &new.tokens, &self.slab));
        let like =
            spot.and_then(|spot| self.slab.get(self.forest.member(&spot, &self.slab)?).map(|l| (l, spot.common)));
        let trail = Trail::of(&new.tokens, like.map(|(like, common)| (&like.trail, common)));
        let entry = Entry {
            id,
            scope: new.scope,
            sequence: new.sequence,
            prompt_len: new.prompt_len,
            held_tokens: new.held_tokens,
            pins: 0,
            last_use: new.now,
            seeded: 0,
            shared: new.shared,
            taint: new.taint,
            generation: new.generation,
            adapter: new.adapter,
            place: Place::Pool,
            digest: trail.digest(&new.tokens, new.tokens.len()),
            tokens: new.tokens.into(),
        };
        self.sequences.insert(entry.sequence, id);
        self.digests.insert((entry.digest, id));
        self.ledger.count(&entry, self.bytes_per_token);
        self.slab.add(Stored { entry, trail, leaf: 0, touched: false, unseen: false });
        self.touch(id);
        let leaf = self.forest.insert(spot, id.slot, &self.slab);
        if let Some(stored) = self.slab.get_mut(id) {
            stored.leaf = leaf;
        }
        id
    }

    pub(super) fn remove(&mut self, id: EntryId) -> Option<Entry> {
        let leaf = self.slab.get(id)?.leaf;
        self.forest.remove(leaf, id.slot, &self.slab);
        let Stored { entry, .. } = self.slab.remove(id)?;
        self.ledger.discount(&entry, self.bytes_per_token);
        self.digests.remove(&(entry.digest, id));
        if entry.in_pool() {
            self.sequences.remove(&entry.sequence);
        }
        Some(entry)
    }

    /// Changes an entry with `change`, and keeps what it is found by in step. Key, scope and taint stay.
    fn update<T>(&mut self, id: EntryId, change: impl FnOnce(&mut Entry) -> T) -> Option<T> {
        let Stored { entry, leaf, .. } = self.slab.get_mut(id)?;
        self.ledger.discount(entry, self.bytes_per_token);
        let answer = change(entry);
        self.ledger.count(entry, self.bytes_per_token);
        let leaf = *leaf;
        self.forest.refresh(leaf, &self.slab);
        Some(answer)
    }

    pub(super) fn pin(&mut self, id: EntryId) {
        self.update(id, |entry| entry.pins += 1);
    }

    pub(super) fn unpin(&mut self, id: EntryId) {
        let unpin = |entry: &mut Entry| {
            entry.pins = entry.pins.saturating_sub(1);
            entry.pins == 0 && !entry.in_pool()
        };
        if self.update(id, unpin) == Some(true) {
            self.miss(id);
        }
    }

    /// Whether the seed was a use.
    pub(super) fn seeded(&mut self, id: EntryId, keep: usize, now: u64) -> bool {
        let seed = |entry: &mut Entry| {
            entry.seeded += 1;
            let used = is_real_part(keep, entry.tokens.len());
            if used {
                entry.last_use = now;
            }
            used
        };
        let used = self.update(id, seed).unwrap_or(false);
        if used {
            self.touch(id);
        }
        used
    }

    /// The sequence that the entry gave up.
    pub(super) fn leave_pool(&mut self, id: EntryId, place: Place) -> Option<u64> {
        if !self.get(id)?.in_pool() {
            return None;
        }
        let sequence = self.update(id, |entry| {
            entry.place = place;
            entry.held_tokens = entry.tokens.len() as u64;
            entry.sequence
        })?;
        self.sequences.remove(&sequence);
        self.miss(id);
        Some(sequence)
    }

    /// Whether it was departing.
    pub(super) fn arrive(&mut self, id: EntryId, payload: Vec<u8>) -> bool {
        let departs = self.get(id).is_some_and(|entry| matches!(entry.place, Place::Departing { .. }));
        departs && self.update(id, |entry| entry.place = Place::Exported(payload)).is_some()
    }

    /// The entry covers others from now on, as far as the last settling knows.
    fn touch(&mut self, id: EntryId) {
        if let Some(stored) = self.slab.get_mut(id)
            && !std::mem::replace(&mut stored.touched, true)
        {
            self.touched.push(id);
        }
    }

    /// The export may be dropped from now on, as far as the last settling knows.
    fn miss(&mut self, id: EntryId) {
        if let Some(stored) = self.slab.get_mut(id)
            && !std::mem::replace(&mut stored.unseen, true)
        {
            self.unseen.push(id);
        }
    }

    /// Empties the lists of the next settling into `touched` and `unseen`; entries that are gone are left out.
    pub(super) fn take_lists(&mut self, touched: &mut Vec<EntryId>, unseen: &mut BTreeSet<EntryId>) {
        let Self { slab, .. } = self;
        touched.extend(
            self.touched.drain(..).filter(|&id| slab.get_mut(id).is_some_and(|s| std::mem::take(&mut s.touched))),
        );
        unseen.extend(
            self.unseen.drain(..).filter(|&id| slab.get_mut(id).is_some_and(|s| std::mem::take(&mut s.unseen))),
        );
    }

    pub(super) fn audit(&self) -> Result<(), String> {
        let mut ledger = Ledger::default();
        for stored in self.slab.iter() {
            ledger.count(&stored.entry, self.bytes_per_token);
        }
        if ledger != self.ledger {
            return Err("sums and orders differ from the entries".to_owned());
        }
        if self.forest.audit(&self.slab)? != self.slab.len() || self.digests.len() != self.slab.len() {
            return Err("an entry is not in the index, or has no digest".to_owned());
        }
        let pool: Vec<&Entry> = self.slab.iter().map(|stored| &stored.entry).filter(|entry| entry.in_pool()).collect();
        let found = |entry: &&Entry| self.of_sequence(entry.sequence) == Some(entry.id);
        if pool.len() != self.sequences.len() || !pool.iter().all(found) {
            return Err("sequences differ from the entries in the pool".to_owned());
        }
        Ok(())
    }
}
