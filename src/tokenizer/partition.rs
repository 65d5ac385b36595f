#![forbid(unsafe_code)]
//! Cuts a text at the special tokens that are written out in it.
//!
//! The rule: of all special tokens the longest one that occurs is cut out first, wherever it occurs, from left to right; then the next
//! longest in what is left; lower ids first among equal lengths. Asking for each of thousands of tokens over the whole text would cost
//! text times tokens, so the text is walked once for places where any token starts. Occurrences that overlap each other form a cluster;
//! only inside a cluster does the order matter, and most clusters are one token.
//!
//! # Limits
//! A cluster costs its length times the number of different tokens in it.

use std::ops::Range;

/// A piece of the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fragment {
    /// Plain text.
    Text(Range<usize>),
    /// A special token.
    Token(u32),
}

#[derive(Debug)]
struct Special {
    text: Box<[u8]>,
    id: u32,
    /// Place in the order in which tokens are cut out.
    rank: u32,
}

/// A set of special tokens to look for.
#[derive(Debug, Default)]
pub(super) struct Specials {
    /// In the order of their texts.
    sorted: Vec<Special>,
    /// Index into `sorted` by rank.
    by_rank: Vec<u32>,
    /// First and past-the-last index into `sorted`, by first byte.
    first: Vec<(u32, u32)>,
}

/// Tokens that occur in the current cluster.
struct Cluster {
    start: usize,
    end: usize,
    occurrences: usize,
    ranks: Vec<u32>,
}

impl Specials {
    /// Empty texts are left out: they occur nowhere.
    pub(super) fn new<'a>(tokens: impl Iterator<Item = (u32, &'a [u8])>) -> Self {
        let mut sorted: Vec<Special> = tokens
            .filter(|(_, text)| !text.is_empty())
            .map(|(id, text)| Special { text: text.into(), id, rank: 0 })
            .collect();
        sorted.sort_by(|a, b| a.text.cmp(&b.text).then(a.id.cmp(&b.id)));
        let mut by_rank: Vec<u32> = (0..sorted.len() as u32).collect();
        by_rank.sort_by_key(|&i| (std::cmp::Reverse(sorted[i as usize].text.len()), sorted[i as usize].id));
        for (rank, &i) in by_rank.iter().enumerate() {
            sorted[i as usize].rank = rank as u32;
        }
        let mut first = vec![(0, 0); 256];
        for (i, special) in sorted.iter().enumerate() {
            let range = &mut first[special.text[0] as usize];
            if range.1 == 0 {
                range.0 = i as u32;
            }
            range.1 = i as u32 + 1;
        }
        Self { sorted, by_rank, first }
    }

    /// Whether there is nothing to look for.
    pub(super) fn is_empty(&self) -> bool {
        self.sorted.is_empty()
    }

    /// Calls `found` with each token that `text` starts with, shortest first.
    fn starting(&self, text: &[u8], mut found: impl FnMut(&Special)) {
        let Some(&(low, high)) = text.first().and_then(|&byte| self.first.get(byte as usize)) else { return };
        let mut range = &self.sorted[low as usize..high as usize];
        let mut depth = 1;
        loop {
            // Those that end here come first.
            while let Some((special, rest)) = range.split_first()
                && special.text.len() == depth
            {
                found(special);
                range = rest;
            }
            let (Some(&byte), Some(low), Some(high)) = (text.get(depth), range.first(), range.last()) else { return };
            if low.text[depth] != byte || high.text[depth] != byte {
                let start = range.partition_point(|special| special.text[depth] < byte);
                let len = range[start..].partition_point(|special| special.text[depth] == byte);
                range = &range[start..start + len];
            }
            depth += 1;
        }
    }

    /// The text in fragments, in order; none is empty.
    pub(super) fn partition(&self, text: &str) -> Vec<Fragment> {
        let bytes = text.as_bytes();
        let mut fragments = Vec::new();
        let mut plain = 0;
        let mut taken = Vec::new();
        let mut stamps: Vec<usize> = Vec::new();
        let mut at = 0;
        while !self.is_empty() && at < bytes.len() {
            let Some(cluster) = self.cluster(bytes, at, &mut stamps) else {
                at += 1;
                continue;
            };
            self.resolve(bytes, &cluster, &mut taken);
            for (start, id, len) in taken.drain(..) {
                if plain < start {
                    fragments.push(Fragment::Text(plain..start));
                }
                fragments.push(Fragment::Token(id));
                plain = start + len;
            }
            at = cluster.end;
        }
        if plain < bytes.len() {
            fragments.push(Fragment::Text(plain..bytes.len()));
        }
        fragments
    }

    /// All tokens that start at `start`, and those that overlap them, and those that overlap those.
    fn cluster(&self, bytes: &[u8], start: usize, stamps: &mut Vec<usize>) -> Option<Cluster> {
        let (low, high) = self.first[bytes[start] as usize];
        if low == high {
            return None;
        }
        let mut cluster = Cluster { start, end: start, occurrences: 0, ranks: Vec::new() };
        let mut at = start;
        loop {
            self.starting(&bytes[at..], |special| {
                cluster.end = cluster.end.max(at + special.text.len());
                cluster.occurrences += 1;
                if stamps.is_empty() {
                    stamps.resize(self.sorted.len(), usize::MAX);
                }
                let stamp = &mut stamps[special.rank as usize];
                if *stamp != start {
                    *stamp = start;
                    cluster.ranks.push(special.rank);
                }
            });
            at += 1;
            if at >= cluster.end {
                return (cluster.occurrences > 0).then_some(cluster);
            }
        }
    }

    /// Which tokens of a cluster are cut out: start, id and length of each, in order.
    fn resolve(&self, bytes: &[u8], cluster: &Cluster, taken: &mut Vec<(usize, u32, usize)>) {
        let mut ranks = cluster.ranks.clone();
        ranks.sort_unstable();
        let (mut free, mut left) = (Vec::new(), Vec::new());
        free.push(cluster.start..cluster.end);
        for rank in ranks {
            let special = &self.sorted[self.by_rank[rank as usize] as usize];
            let len = special.text.len();
            for mut gap in free.drain(..) {
                let mut at = gap.start;
                while at + len <= gap.end {
                    if bytes[at..gap.end].starts_with(&special.text) {
                        taken.push((at, special.id, len));
                        if gap.start < at {
                            left.push(gap.start..at);
                        }
                        gap.start = at + len;
                        at = gap.start;
                    } else {
                        at += 1;
                    }
                }
                if gap.start < gap.end {
                    left.push(gap);
                }
            }
            std::mem::swap(&mut free, &mut left);
        }
        taken.sort_unstable();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The rule as it is said: one token after the other over all text that is left.
    fn naive(specials: &[(u32, &str)], text: &str) -> Vec<Fragment> {
        let mut order: Vec<_> = specials.to_vec();
        order.sort_by_key(|(id, text)| (std::cmp::Reverse(text.len()), *id));
        let mut fragments = if text.is_empty() { vec![] } else { vec![Fragment::Text(0..text.len())] };
        for (id, special) in order {
            let mut next = Vec::new();
            for fragment in fragments {
                let Fragment::Text(mut range) = fragment else {
                    next.push(fragment);
                    continue;
                };
                while let Some(at) = text[range.clone()].find(special) {
                    if at > 0 {
                        next.push(Fragment::Text(range.start..range.start + at));
                    }
                    next.push(Fragment::Token(id));
                    range.start += at + special.len();
                }
                if !range.is_empty() {
                    next.push(Fragment::Text(range));
                }
            }
            fragments = next;
        }
        fragments
    }

    #[test]
    fn longest_token_is_cut_out_first_even_when_it_starts_later() {
        let specials = [(7, "ab"), (8, "bcd"), (9, "b")];
        let set = Specials::new(specials.iter().map(|(id, text)| (*id, text.as_bytes())));
        assert_eq!(
            set.partition("xabcd ab"),
            [Fragment::Text(0..2), Fragment::Token(8), Fragment::Text(5..6), Fragment::Token(7)]
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 3000, ..ProptestConfig::default() })]

        #[test]
        fn partition_matches_naive(
            specials in proptest::collection::btree_set("[ab\u{e9}]{1,5}", 0..8),
            text in "[abc\u{e9}]{0,40}",
        ) {
            let specials: Vec<(u32, &str)> = specials.iter().enumerate().map(|(i, s)| (i as u32, s.as_str())).collect();
            let set = Specials::new(specials.iter().map(|(id, text)| (*id, text.as_bytes())));
            prop_assert_eq!(set.partition(&text), naive(&specials, &text));
        }
    }
}
