#![forbid(unsafe_code)]
//! The three tables a tokenizer looks into: strings by id, id by string, merge by pair of ids.
//!
//! All are flat and built once. The two hash tables use open addressing with linear probing at a load of at most one half. Their seed
//! is drawn per table, so that a file cannot be made whose tokens all fall into one slot; results do not depend on it.

use std::hash::{BuildHasher, RandomState};

use xxhash_rust::xxh3::xxh3_64_with_seed;

fn seed() -> u64 {
    RandomState::new().hash_one(0u64)
}

/// Strings in one buffer.
#[derive(Debug)]
pub(super) struct Strings {
    bytes: Vec<u8>,
    /// Start of each string, then the end of the last.
    starts: Vec<u32>,
}

impl Strings {
    pub(super) fn with_capacity(count: usize, bytes: usize) -> Self {
        let mut starts = Vec::with_capacity(count + 1);
        starts.push(0);
        Self { bytes: Vec::with_capacity(bytes), starts }
    }

    /// Appends a string. The caller has checked that all strings together stay below 4 GiB.
    pub(super) fn push(&mut self, string: &[u8]) {
        self.bytes.extend_from_slice(string);
        self.starts.push(self.bytes.len() as u32);
    }

    pub(super) fn len(&self) -> usize {
        self.starts.len() - 1
    }

    /// String `id`; empty when there is none.
    pub(super) fn get(&self, id: u32) -> &[u8] {
        let id = id as usize;
        match self.starts.get(id..id + 2) {
            Some(&[start, end]) => &self.bytes[start as usize..end as usize],
            _ => &[],
        }
    }
}

/// Ids by string: each slot holds the upper half of the hash and the id plus one, or 0.
#[derive(Debug)]
pub(super) struct Index {
    slots: Vec<u64>,
    mask: usize,
    seed: u64,
}

impl Index {
    pub(super) fn with_capacity(count: usize) -> Self {
        let slots = (count.max(4) * 2).next_power_of_two();
        Self { slots: vec![0; slots], mask: slots - 1, seed: seed() }
    }

    /// Hash of a string in this table.
    pub(super) fn hash(&self, string: &[u8]) -> u64 {
        xxh3_64_with_seed(string, self.seed)
    }

    /// Adds string `id` of `strings`, or returns the id of its equal that is there already.
    pub(super) fn insert(&mut self, strings: &Strings, id: u32) -> Result<(), u32> {
        let string = strings.get(id);
        let hash = self.hash(string);
        let mut slot = hash as usize & self.mask;
        loop {
            match self.slots[slot] {
                0 => {
                    self.slots[slot] = (hash >> 32) << 32 | (u64::from(id) + 1);
                    return Ok(());
                }
                entry if entry >> 32 == hash >> 32 && strings.get(entry as u32 - 1) == string => {
                    return Err(entry as u32 - 1);
                }
                _ => slot = (slot + 1) & self.mask,
            }
        }
    }

    /// The id of a string.
    pub(super) fn find(&self, strings: &Strings, string: &[u8]) -> Option<u32> {
        let hash = self.hash(string);
        let mut slot = hash as usize & self.mask;
        loop {
            match self.slots[slot] {
                0 => return None,
                entry if entry >> 32 == hash >> 32 && strings.get(entry as u32 - 1) == string => {
                    return Some(entry as u32 - 1);
                }
                _ => slot = (slot + 1) & self.mask,
            }
        }
    }
}

/// What two neighbours become, and how early: lower ranks merge first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Merge {
    pub(super) rank: u32,
    pub(super) id: u32,
}

/// Merges by pair of ids.
#[derive(Debug)]
pub(super) struct Pairs {
    slots: Vec<(u64, Merge)>,
    mask: usize,
    seed: u64,
}

/// No pair: ids stay below `u32::MAX`.
const FREE: u64 = u64::MAX;

impl Pairs {
    pub(super) fn with_capacity(count: usize) -> Self {
        let slots = (count.max(4) * 2).next_power_of_two();
        Self { slots: vec![(FREE, Merge { rank: 0, id: 0 }); slots], mask: slots - 1, seed: seed() }
    }

    fn start(&self, key: u64) -> usize {
        let product = u128::from(key ^ self.seed) * u128::from(0x9e37_79b9_7f4a_7c15_u64);
        (product as u64 ^ (product >> 64) as u64) as usize & self.mask
    }

    /// Adds a merge; the first one of a pair stays.
    pub(super) fn insert(&mut self, left: u32, right: u32, merge: Merge) {
        let key = u64::from(left) << 32 | u64::from(right);
        let mut slot = self.start(key);
        while self.slots[slot].0 != key {
            if self.slots[slot].0 == FREE {
                self.slots[slot] = (key, merge);
            } else {
                slot = (slot + 1) & self.mask;
            }
        }
    }

    pub(super) fn find(&self, left: u32, right: u32) -> Option<Merge> {
        let key = u64::from(left) << 32 | u64::from(right);
        let mut slot = self.start(key);
        loop {
            match self.slots[slot] {
                // First: two symbols that are no tokens make the key of a free slot.
                (FREE, _) => return None,
                (found, merge) if found == key => return Some(merge),
                _ => slot = (slot + 1) & self.mask,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn index_finds_every_string_and_no_other() {
        let mut strings = Strings::with_capacity(0, 0);
        let mut index = Index::with_capacity(1000);
        for i in 0..1000u32 {
            strings.push(format!("s{i}").as_bytes());
            assert_eq!(index.insert(&strings, i), Ok(()));
        }
        strings.push(b"s17");
        assert_eq!(index.insert(&strings, 1000), Err(17));
        for i in 0..1000u32 {
            assert_eq!(index.find(&strings, format!("s{i}").as_bytes()), Some(i));
        }
        assert_eq!(index.find(&strings, b"s1000"), None);
        assert_eq!(index.find(&strings, b""), None);
    }

    #[test]
    fn first_merge_of_a_pair_stays() {
        let mut pairs = Pairs::with_capacity(2);
        pairs.insert(1, 2, Merge { rank: 0, id: 9 });
        pairs.insert(1, 2, Merge { rank: 1, id: 8 });
        pairs.insert(2, 1, Merge { rank: 2, id: 7 });
        assert_eq!(pairs.find(1, 2), Some(Merge { rank: 0, id: 9 }));
        assert_eq!(pairs.find(2, 1), Some(Merge { rank: 2, id: 7 }));
        assert_eq!(pairs.find(1, 1), None);
        assert_eq!(pairs.find(u32::MAX, u32::MAX), None);
    }
}
