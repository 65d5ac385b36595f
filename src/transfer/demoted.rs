#![forbid(unsafe_code)]
//! Ranges of sequences that were demoted and not promoted again (S-91).
//!
//! # Invariants
//! Ranges of one sequence do not overlap.

use std::collections::BTreeMap;

/// A demoted range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demoted {
    /// First token.
    pub start: u64,
    /// One past the last token.
    pub end: u64,
    /// Digest of the tokens it was computed from, as its envelope has it.
    pub provenance: [u8; 32],
}

/// Demoted ranges by sequence.
#[derive(Clone, Debug, Default)]
pub struct DemotedRanges(BTreeMap<u64, Vec<Demoted>>);

impl DemotedRanges {
    /// Whether no sequence has any.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Sequences and their ranges.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &[Demoted])> {
        self.0.iter().map(|(&sequence, ranges)| (sequence, ranges.as_slice()))
    }

    /// The ranges of a sequence, in no order.
    pub fn of(&self, sequence: u64) -> &[Demoted] {
        self.0.get(&sequence).map_or(&[], Vec::as_slice)
    }

    /// Whether a demoted range of the sequence shares a token with `start .. end`.
    pub fn overlap(&self, sequence: u64, start: u64, end: u64) -> bool {
        self.of(sequence).iter().any(|range| range.start < end && start < range.end)
    }

    /// Whether a cut to `len` tokens would leave a part of a demoted range.
    pub fn are_cut_by(&self, sequence: u64, len: u64) -> bool {
        self.of(sequence).iter().any(|range| range.start < len && len < range.end)
    }

    /// The first demoted token; none when the sequence is whole.
    pub fn first(&self, sequence: u64) -> Option<u64> {
        self.of(sequence).iter().map(|range| range.start).min()
    }

    /// Notes a range that overlaps none.
    pub fn add(&mut self, sequence: u64, range: Demoted) {
        debug_assert!(!self.overlap(sequence, range.start, range.end), "demoted ranges do not overlap");
        self.0.entry(sequence).or_default().push(range);
    }

    /// Forgets the range that came back.
    pub fn remove(&mut self, sequence: u64, start: u64, end: u64) {
        self.keep(sequence, |range| (range.start, range.end) != (start, end));
    }

    /// Forgets the ranges past `len`.
    pub fn cut(&mut self, sequence: u64, len: u64) {
        self.keep(sequence, |range| range.end <= len);
    }

    /// Forgets the sequences that are gone.
    pub fn retain(&mut self, mut exists: impl FnMut(u64) -> bool) {
        self.0.retain(|&sequence, _| exists(sequence));
    }

    fn keep(&mut self, sequence: u64, keep: impl FnMut(&Demoted) -> bool) {
        if let Some(ranges) = self.0.get_mut(&sequence) {
            ranges.retain(keep);
            if ranges.is_empty() {
                self.0.remove(&sequence);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, end: u64) -> Demoted {
        Demoted { start, end, provenance: [0; 32] }
    }

    /// S-91.
    #[test]
    fn ranges_overlap_where_they_share_a_token() {
        let mut demoted = DemotedRanges::default();
        demoted.add(7, range(16, 32));
        demoted.add(7, range(48, 64));
        let overlaps = [(0, 16), (32, 48), (0, 17), (31, 33), (50, 51)].map(|(s, e)| demoted.overlap(7, s, e));
        assert_eq!(overlaps, [false, false, true, true, true]);
        assert!(!demoted.overlap(8, 0, 99));
        assert_eq!([16, 17, 31, 32, 64].map(|len| demoted.are_cut_by(7, len)), [false, true, true, false, false]);
        assert_eq!((demoted.first(7), demoted.first(8)), (Some(16), None));
        demoted.cut(7, 48);
        assert_eq!(demoted.of(7), [range(16, 32)]);
        demoted.remove(7, 16, 32);
        assert!(demoted.is_empty());
    }
}
