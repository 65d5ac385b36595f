#![forbid(unsafe_code)]
//! The live lanes, found by tag in constant time.
//!
//! Lanes lie in slots. A tag is looked up once per tick; from then on the tick names a lane by its slot, and a lane that
//! faulted is simply no longer there.
//!
//! # Invariants
//! - The index holds exactly the tags of the filled slots, and `owners` their sequences.
//! - A slot that was emptied is filled again only by an admit, and all admits of a tick come before its first step. So a
//!   [`LaneId`] taken after them names its lane or nothing until the tick ends.

use std::collections::BTreeMap;

use super::draft::Drafting;
use super::lane::Lane;
use super::tags::TagMap;
use crate::runtime::SeqHandle;

/// The slot of a lane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LaneId(u32);

impl LaneId {
    /// Its number: below [`Lanes::slots`].
    pub(super) fn slot(self) -> usize {
        self.0 as usize
    }
}

/// All live lanes.
#[derive(Clone, Debug, Default)]
pub(super) struct Lanes {
    slots: Vec<Option<Lane>>,
    free: Vec<LaneId>,
    index: TagMap<LaneId>,
    /// The lane of each sequence.
    owners: BTreeMap<SeqHandle, LaneId>,
    /// Sequences of lanes that are gone and that a drafter may keep something for.
    undrafted: Vec<SeqHandle>,
}

impl Lanes {
    /// Number of lanes.
    pub(super) fn len(&self) -> usize {
        self.index.len()
    }

    /// Number of slots, filled or not.
    pub(super) fn slots(&self) -> usize {
        self.slots.len()
    }

    /// The slot of the lane with this tag.
    pub(super) fn find(&self, tag: u64) -> Option<LaneId> {
        self.index.get(&tag).copied()
    }

    /// The lane in a slot.
    pub(super) fn get(&self, id: LaneId) -> Option<&Lane> {
        self.slots.get(id.0 as usize)?.as_ref()
    }

    /// The lane in a slot, to be moved on.
    pub(super) fn get_mut(&mut self, id: LaneId) -> Option<&mut Lane> {
        self.slots.get_mut(id.0 as usize)?.as_mut()
    }

    /// The lane with this tag.
    pub(super) fn by_tag(&self, tag: u64) -> Option<&Lane> {
        self.get(self.find(tag)?)
    }

    /// The lane with this tag, to be changed.
    pub(super) fn by_tag_mut(&mut self, tag: u64) -> Option<&mut Lane> {
        self.get_mut(self.find(tag)?)
    }

    /// The lane that owns this sequence.
    pub(super) fn owner(&self, sequence: SeqHandle) -> Option<LaneId> {
        self.owners.get(&sequence).copied()
    }

    /// Every lane, in no promised order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Lane> {
        self.slots.iter().flatten()
    }

    /// Takes a lane in whose tag is not live (T-24).
    pub(super) fn insert(&mut self, lane: Lane) -> LaneId {
        let id = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            // A slot per live lane: as many as sequences, far below the number that fits.
            LaneId((self.slots.len() - 1) as u32)
        });
        self.index.insert(lane.tag(), id);
        self.owners.insert(lane.sequence(), id);
        if let Some(slot) = self.slots.get_mut(id.0 as usize) {
            *slot = Some(lane);
        }
        id
    }

    /// Sequences of lanes that a model drafted for and that are gone, each told once.
    pub(super) fn drain_undrafted(&mut self) -> impl Iterator<Item = SeqHandle> {
        self.undrafted.drain(..)
    }

    /// Lets a lane go.
    pub(super) fn remove(&mut self, id: LaneId) -> Option<Lane> {
        let lane = self.slots.get_mut(id.0 as usize)?.take()?;
        self.index.remove(&lane.tag());
        self.owners.remove(&lane.sequence());
        if lane.drafting().is_some_and(Drafting::asks_drafter) {
            self.undrafted.push(lane.sequence());
        }
        self.free.push(id);
        Some(lane)
    }
}

#[cfg(test)]
mod tests {
    use super::super::recipe::Recipe;
    use super::*;

    #[test]
    fn slots_are_reused_and_tags_found_again() {
        let mut lanes = Lanes::default();
        let lane = |tag| Lane::new(tag, tag + 100, &[1], 0, Recipe::default());
        let ids: Vec<LaneId> = (0..10).map(|tag| lanes.insert(lane(tag))).collect();
        assert_eq!(lanes.remove(ids[3]).map(|lane| lane.tag()), Some(3));
        assert!(lanes.remove(ids[3]).is_none(), "a slot empties once");
        assert!(lanes.find(3).is_none() && lanes.get(ids[3]).is_none());
        let again = lanes.insert(lane(77));
        assert_eq!(again, ids[3]);
        assert_eq!(lanes.by_tag(77).map(Lane::sequence), Some(177));
        assert_eq!((lanes.len(), lanes.iter().count()), (10, 10));
        assert_eq!(lanes.owner(177), Some(again));
        assert!(lanes.owner(102).is_some() && lanes.owner(103).is_none());
    }
}
