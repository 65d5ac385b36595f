#![forbid(unsafe_code)]
//! Pending sizings: what a host was told an export would take (S-61 .. S-64).
//!
//! A sizing names a sequence and space as they are at one generation of the content. When the content goes on, it is stale: it is not
//! found any more, and is dropped when its sequence is sized again.

use std::collections::BTreeMap;

/// What a sizing is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SizingKey {
    /// First token.
    pub start: u64,
    /// One past the last token.
    pub end: u64,
    /// `ENCODING_*`.
    pub encoding: u8,
}

#[derive(Clone, Debug)]
struct OfGeneration {
    generation: u64,
    sizes: Vec<(SizingKey, u64)>,
}

/// Pending sizings by sequence and space.
#[derive(Clone, Debug, Default)]
pub struct Sizings(BTreeMap<(u64, u32), OfGeneration>);

impl Sizings {
    /// Keeps the size of an export at this generation; sizings of one generation coexist (S-62), those of others go (S-3).
    pub fn keep(&mut self, sequence: u64, space: u32, generation: u64, key: SizingKey, bytes: u64) {
        let of = self.0.entry((sequence, space)).or_insert_with(|| OfGeneration { generation, sizes: Vec::new() });
        if of.generation != generation {
            *of = OfGeneration { generation, sizes: Vec::new() };
        }
        if !of.sizes.iter().any(|(known, _)| *known == key) {
            of.sizes.push((key, bytes));
        }
    }

    /// The size that was given at this generation, if it was.
    pub fn find(&self, sequence: u64, space: u32, generation: u64, key: SizingKey) -> Option<u64> {
        let of = self.0.get(&(sequence, space)).filter(|of| of.generation == generation)?;
        of.sizes.iter().find(|(known, _)| *known == key).map(|&(_, bytes)| bytes)
    }

    /// Uses a sizing up (S-63).
    pub fn consume(&mut self, sequence: u64, space: u32, key: SizingKey) {
        if let Some(of) = self.0.get_mut(&(sequence, space)) {
            of.sizes.retain(|(known, _)| *known != key);
            if of.sizes.is_empty() {
                self.0.remove(&(sequence, space));
            }
        }
    }

    /// Drops the sizings of sequences that are gone or have gone on.
    pub fn retain(&mut self, mut is_current: impl FnMut(u64, u64) -> bool) {
        self.0.retain(|&(sequence, _), of| is_current(sequence, of.generation));
    }

    /// Sequences and spaces with sizings, stale ones included.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: SizingKey = SizingKey { start: 0, end: 32, encoding: 0 };

    /// S-62, S-63, S-3.
    #[test]
    fn sizings_of_one_generation_coexist_and_are_used_once() {
        let mut sizings = Sizings::default();
        let other = SizingKey { encoding: 1, ..KEY };
        sizings.keep(7, 1, 5, KEY, 100);
        sizings.keep(7, 1, 5, other, 50);
        sizings.keep(7, 1, 5, KEY, 100);
        assert_eq!((sizings.find(7, 1, 5, KEY), sizings.find(7, 1, 5, other)), (Some(100), Some(50)));
        assert_eq!((sizings.find(7, 2, 5, KEY), sizings.find(7, 1, 6, KEY)), (None, None));
        sizings.consume(7, 1, KEY);
        assert_eq!((sizings.find(7, 1, 5, KEY), sizings.find(7, 1, 5, other)), (None, Some(50)));
        sizings.keep(7, 1, 6, KEY, 100);
        assert_eq!(sizings.find(7, 1, 6, other), None, "the content went on");
        sizings.retain(|sequence, generation| sequence != 7 || generation != 6);
        assert!(sizings.is_empty());
    }
}
