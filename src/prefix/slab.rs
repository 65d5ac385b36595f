#![forbid(unsafe_code)]
//! The entries by number, and by id without a search.
//!
//! # Invariants
//! An id is live exactly when its slot holds it. Slots of removed entries hold an empty entry, whose id is no one's, until they are
//! used again.

use std::sync::Arc;

use super::entry::{Entry, EntryId, Place, Scope};
use super::trail::Trail;
use super::tree::NodeIndex;

/// Number of an entry among those that exist.
pub(super) type Slot = u32;

/// An entry, and what the cache knows beside it.
#[derive(Debug)]
pub(super) struct Stored {
    pub(super) entry: Entry,
    /// Content digests of its prefixes.
    pub(super) trail: Trail,
    /// Its leaf in the index.
    pub(super) leaf: NodeIndex,
    /// It was inserted or used since the last settling, and is on the list of those.
    pub(super) touched: bool,
    /// It was exported or unpinned since the last settling, and is on the list of those.
    pub(super) unseen: bool,
}

/// The id of no entry: serials begin with 1.
const NO_ID: EntryId = EntryId { serial: 0, slot: 0 };

#[derive(Debug, Default)]
pub(super) struct Slab {
    slots: Vec<Stored>,
    vacant: Vec<Slot>,
    serial: u64,
}

impl Slab {
    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.vacant.len()
    }

    /// The id of the entry that is added next.
    pub(super) fn next_id(&mut self) -> EntryId {
        self.serial += 1;
        let slot = self.vacant.last().copied().unwrap_or(self.slots.len() as Slot);
        EntryId { serial: self.serial, slot }
    }

    /// Adds an entry under the id that [`Slab::next_id`] just gave it.
    pub(super) fn add(&mut self, stored: Stored) {
        match self.vacant.pop() {
            Some(slot) => self.slots[slot as usize] = stored,
            None => self.slots.push(stored),
        }
    }

    pub(super) fn remove(&mut self, id: EntryId) -> Option<Stored> {
        let stored = std::mem::replace(self.get_mut(id)?, nothing());
        self.vacant.push(id.slot);
        Some(stored)
    }

    pub(super) fn get(&self, id: EntryId) -> Option<&Stored> {
        self.slots.get(id.slot as usize).filter(|stored| stored.entry.id == id && id != NO_ID)
    }

    pub(super) fn get_mut(&mut self, id: EntryId) -> Option<&mut Stored> {
        self.slots.get_mut(id.slot as usize).filter(|stored| stored.entry.id == id && id != NO_ID)
    }

    /// The entry of a slot that the index names.
    pub(super) fn entry(&self, slot: Slot) -> &Entry {
        &self.slots[slot as usize].entry
    }

    /// All entries, in no order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Stored> {
        self.slots.iter().filter(|stored| stored.entry.id != NO_ID)
    }
}

/// What a vacant slot holds.
fn nothing() -> Stored {
    let entry = Entry {
        id: NO_ID,
        scope: Scope::default(),
        sequence: 0,
        tokens: Arc::default(),
        prompt_len: 0,
        held_tokens: 0,
        pins: 0,
        last_use: 0,
        seeded: 0,
        shared: false,
        taint: 0,
        generation: 0,
        adapter: 0,
        place: Place::Pool,
        digest: [0; 32],
    };
    Stored { entry, trail: Trail::default(), leaf: 0, touched: false, unseen: false }
}
