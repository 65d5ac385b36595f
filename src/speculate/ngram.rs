#![forbid(unsafe_code)]
//! Prompt lookup: a draft repeats what followed the last tokens the time before (R-40).
//!
//! [`scan`] is the rule as it is written, linear in the history. [`NgramIndex`] answers the same in constant time: it files every
//! stretch of three and of two tokens under its hash, with the place where it was seen last. A stretch is filed when the
//! token after it arrives, so the last tokens of the history never find themselves.
//!
//! ```text
//!   history   a b c d x a b c          filed: abc 0, bcd 1, cdx 2, dxa 3, xab 4      not yet: abc 5
//!                   ^     \___/ asked: filed at 0, so the draft is history[3..]: d x a ...
//! ```
//!
//! The table holds positions only; the history itself is the caller's, and each hit is compared with it.

/// Longest stretch that is looked for, then the shorter one.
const STRETCHES: [usize; 2] = [3, 2];
/// An empty slot of a table.
const NOWHERE: u32 = u32::MAX;
/// Slots of the first table.
const SLOTS_MIN: usize = 64;

/// Where the draft for `history` lies in it, by looking through all of it.
///
/// `limit` tokens at most; empty when nothing was said before.
pub fn scan(history: &[u32], limit: usize) -> &[u32] {
    let len = history.len();
    for n in STRETCHES.into_iter().filter(|&n| n < len) {
        let last = &history[len - n..];
        if let Some(at) = (0..len - n).rev().find(|&at| &history[at..at + n] == last) {
            return draft(history, at + n, limit);
        }
    }
    &[]
}

fn draft(history: &[u32], start: usize, limit: usize) -> &[u32] {
    let end = start.saturating_add(limit).min(history.len());
    history.get(start..end).unwrap_or_default()
}

/// The stretches of one history that only grows.
///
/// # Invariants
/// - Every stretch that ends before the last indexed token is filed once, with its latest place.
/// - A table is at most half full, so a search ends.
#[derive(Clone, Debug, Default)]
pub struct NgramIndex {
    tables: [Table; 2],
    /// Tokens of the history that were taken in.
    len: usize,
}

impl NgramIndex {
    /// An index of nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes room for a history of `tokens` tokens, so that it grows into it without allocating.
    pub fn reserve(&mut self, tokens: usize) {
        for table in &mut self.tables {
            table.reserve(tokens);
        }
    }

    /// Takes in the tokens of `history` that are new. What was taken in before must still be its beginning.
    pub fn extend(&mut self, history: &[u32]) {
        for (table, n) in self.tables.iter_mut().zip(STRETCHES) {
            // The stretch that ends with the last token waits for the next one.
            for start in self.len.saturating_sub(n)..history.len().saturating_sub(n) {
                table.file(history, start, n);
            }
        }
        self.len = self.len.max(history.len());
    }

    /// The draft for `history`, which was taken in whole: as [`scan`], in constant time.
    pub fn propose<'h>(&self, history: &'h [u32], limit: usize) -> &'h [u32] {
        debug_assert_eq!(self.len, history.len(), "the history was taken in");
        for (table, n) in self.tables.iter().zip(STRETCHES) {
            let Some(last) = history.len().checked_sub(n).filter(|&last| last > 0) else { continue };
            if let Some(at) = table.find(history, last, n) {
                return draft(history, at + n, limit);
            }
        }
        &[]
    }
}

/// Places by stretch: open addressing, a power of two of slots.
#[derive(Clone, Default)]
struct Table {
    slots: Vec<u32>,
    filed: usize,
}

impl core::fmt::Debug for Table {
    /// The slots follow from the history, and are many.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Table").field("filed", &self.filed).finish_non_exhaustive()
    }
}

impl Table {
    fn reserve(&mut self, tokens: usize) {
        let slots = (tokens * 2).next_power_of_two().max(SLOTS_MIN);
        if self.filed == 0 && self.slots.len() < slots {
            self.slots.clear();
            self.slots.resize(slots, NOWHERE);
        }
    }

    /// Files the stretch of `n` tokens at `start`.
    fn file(&mut self, history: &[u32], start: usize, n: usize) {
        // A history past 2^32 tokens is not looked through.
        let Ok(place) = u32::try_from(start) else { return };
        if (self.filed + 1) * 2 > self.slots.len() {
            self.grow(history, n);
        }
        let slot = self.slot(history, start, n);
        if let Some(slot) = self.slots.get_mut(slot) {
            self.filed += usize::from(*slot == NOWHERE);
            *slot = place;
        }
    }

    /// The place where the stretch at `at` was filed.
    fn find(&self, history: &[u32], at: usize, n: usize) -> Option<usize> {
        if self.slots.is_empty() {
            return None;
        }
        let place = *self.slots.get(self.slot(history, at, n))?;
        (place != NOWHERE).then_some(place as usize)
    }

    /// The slot of the stretch at `at`: where it is filed, or where it would be.
    fn slot(&self, history: &[u32], at: usize, n: usize) -> usize {
        let wanted = stretch(history, at, n);
        let mask = self.slots.len() - 1;
        let mut slot = hash(wanted) as usize & mask;
        while let Some(&place) = self.slots.get(slot) {
            if place == NOWHERE || stretch(history, place as usize, n) == wanted {
                break;
            }
            slot = (slot + 1) & mask;
        }
        slot
    }

    fn grow(&mut self, history: &[u32], n: usize) {
        let slots = (self.slots.len() * 2).max(SLOTS_MIN);
        let old = std::mem::replace(&mut self.slots, vec![NOWHERE; slots]);
        for place in old.into_iter().filter(|&place| place != NOWHERE) {
            let slot = self.slot(history, place as usize, n);
            if let Some(slot) = self.slots.get_mut(slot) {
                *slot = place;
            }
        }
    }
}

fn stretch(history: &[u32], at: usize, n: usize) -> &[u32] {
    history.get(at..at + n).unwrap_or_default()
}

/// Mixes two or three tokens.
fn hash(stretch: &[u32]) -> u64 {
    let mixed = stretch.iter().fold(0u64, |mixed, &token| {
        let mixed = (mixed ^ u64::from(token)).wrapping_mul(0xD6E8_FEB8_6659_FD93);
        mixed ^ (mixed >> 32)
    });
    mixed ^ (mixed >> 29)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn indexed(history: &[u32], limit: usize) -> Vec<u32> {
        let mut index = NgramIndex::new();
        index.extend(history);
        index.propose(history, limit).to_vec()
    }

    /// RS-7, R-40.
    #[test]
    fn rs_7_drafts_repeat_what_followed_the_last_tokens() {
        let cases: [(&[u32], usize, &[u32]); 5] = [
            (&[1, 2, 3, 4, 9, 9, 2, 3], 3, &[4, 9, 9]),
            (&[5, 6, 7, 8, 5, 6, 7], 4, &[8, 5, 6, 7]),
            (&[1, 2, 3, 4], 4, &[]),
            (&[1, 1, 1], 2, &[1]),
            (&[1, 2, 3, 4, 9, 9, 2, 3], 0, &[]),
        ];
        for (history, limit, expected) in cases {
            assert_eq!(scan(history, limit), expected, "{history:?}");
            assert_eq!(indexed(history, limit), expected, "{history:?}");
        }
        for short in [&[][..], &[7], &[7, 7]] {
            assert_eq!((scan(short, 4), indexed(short, 4).len()), (&[][..], 0));
        }
    }

    /// R-40: the latest of several, and three tokens before two.
    #[test]
    fn latest_and_longest_stretch_wins() {
        let history = [1, 2, 3, 8, 1, 2, 3, 9, 5, 2, 3, 6, 1, 2, 3];
        assert_eq!(indexed(&history, 2), [9, 5]);
        let history = [1, 2, 3, 8, 7, 2, 3, 6, 9, 2, 3];
        assert_eq!(indexed(&history, 1), [6], "no stretch of three, the latest of two");
    }

    proptest! {
        /// R-40 in constant time: after every token, in whatever pieces they arrive.
        #[test]
        fn index_matches_scan(
            tokens in prop::collection::vec(0u32..5, 0..300),
            wide in prop::collection::vec(any::<u32>(), 0..40),
            pieces in prop::collection::vec(1usize..9, 1..20),
            limit in 0usize..8,
            reserved in 0usize..2,
        ) {
            let mut history = tokens.clone();
            history.extend(&wide);
            history.extend(&tokens);
            history.extend(&wide);
            let mut index = NgramIndex::new();
            index.reserve(reserved * 100);
            let mut len = 0;
            for piece in pieces.iter().cycle() {
                len = (len + piece).min(history.len());
                let so_far = &history[..len];
                index.extend(so_far);
                prop_assert_eq!(index.propose(so_far, limit), scan(so_far, limit), "after {} tokens", len);
                if len == history.len() {
                    break;
                }
            }
        }
    }

    #[test]
    fn reserved_index_does_not_grow() {
        let mut index = NgramIndex::new();
        index.reserve(1000);
        let slots = index.tables.each_ref().map(|table| table.slots.len());
        let history: Vec<u32> = (0..1000).map(|i| i * 7919 % 997).collect();
        for len in 1..=history.len() {
            index.extend(&history[..len]);
        }
        assert_eq!(index.tables.each_ref().map(|table| table.slots.len()), slots);
    }
}
