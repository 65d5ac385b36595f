#![forbid(unsafe_code)]
//! The jobs on lanes: by slot, by tag, and in order of rank.
//!
//! # Invariants
//! `order` lists the occupied slots by rank, best first. A tag holds its slot in its low bits and is never given out again.

use super::job::Live;

/// Slots that a tag can name: [`DriverOptions::MAX_LANES`](super::DriverOptions::MAX_LANES).
const SLOT_BITS: u32 = 12;

/// A place for a job on a lane.
pub(super) type Slot = usize;

/// The jobs on lanes.
#[derive(Debug, Default)]
pub(super) struct Lanes {
    slots: Vec<Option<Box<Live>>>,
    free: Vec<Slot>,
    order: Vec<Slot>,
    serial: u64,
}

impl Lanes {
    pub(super) fn new(count: u32) -> Self {
        let count = count as usize;
        let slots = std::iter::repeat_with(|| None).take(count).collect();
        Self { slots, free: (0..count).rev().collect(), order: Vec::with_capacity(count), serial: 0 }
    }

    /// Jobs on lanes.
    pub(super) fn len(&self) -> usize {
        self.order.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// How many there can be.
    pub(super) fn capacity(&self) -> usize {
        self.slots.len()
    }

    /// Occupied slots, best rank first.
    pub(super) fn order(&self) -> &[Slot] {
        &self.order
    }

    pub(super) fn get(&self, slot: Slot) -> Option<&Live> {
        self.slots.get(slot)?.as_deref()
    }

    pub(super) fn get_mut(&mut self, slot: Slot) -> Option<&mut Live> {
        self.slots.get_mut(slot)?.as_deref_mut()
    }

    /// The jobs, best rank first.
    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = (Slot, &Live)> {
        self.order.iter().filter_map(|&slot| Some((slot, self.get(slot)?)))
    }

    /// The slot of a lane; none when the tag is not one of ours.
    pub(super) fn slot_of(&self, lane_tag: u64) -> Option<Slot> {
        let slot = (lane_tag & ((1 << SLOT_BITS) - 1)) as Slot;
        self.get(slot).filter(|live| live.lane_tag == lane_tag).map(|_| slot)
    }

    /// Puts a job on a lane; `make` is given the tag. Gives nothing when all are taken.
    pub(super) fn insert(&mut self, make: impl FnOnce(u64) -> Live) -> Option<Slot> {
        let slot = self.free.pop()?;
        self.serial += 1;
        let live = make((self.serial << SLOT_BITS) | slot as u64);
        let rank = live.job.rank;
        let place = self.order.partition_point(|&other| self.get(other).is_some_and(|other| other.job.rank < rank));
        self.order.insert(place, slot);
        *self.slots.get_mut(slot)? = Some(Box::new(live));
        Some(slot)
    }

    /// Takes a job off its lane.
    pub(super) fn remove(&mut self, slot: Slot) -> Option<Live> {
        let live = self.slots.get_mut(slot)?.take()?;
        self.order.retain(|&other| other != slot);
        self.free.push(slot);
        Some(*live)
    }
}
