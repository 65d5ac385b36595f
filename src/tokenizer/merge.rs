#![forbid(unsafe_code)]
//! The merge loop of byte-pair encoding, for both kinds of vocabulary.
//!
//! A word starts as a row of symbols (bytes, or characters). While some neighbours can merge, those with the lowest rank do, the leftmost
//! of equals first. What differs between the kinds is only which neighbours can merge into what: that is [`Rules`].
//!
//! ```text
//! short word: ranks of all neighbours in an array, smallest found by scanning      O(n * n), no allocation
//! long word:  neighbours in a heap; an entry whose symbols have grown since is old
//!             and skipped (symbols only grow, so the sum of both lengths tells)    O(n * log n)
//! ```

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::table::Merge;

/// Words of more symbols than this go through the heap.
const SHORT_SYMBOLS: usize = 48;

/// A symbol that is no token.
pub(super) const NONE: u32 = u32::MAX;

/// A stretch of the word: `len` bytes from `start`, token `id` or [`NONE`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Symbol {
    pub(super) start: u32,
    pub(super) len: u32,
    pub(super) id: u32,
}

/// Which neighbours merge into what.
pub(super) trait Rules {
    /// What `left` and `right`, neighbours in `word`, merge into.
    fn merge(&self, word: &[u8], left: Symbol, right: Symbol) -> Option<Merge>;
}

#[derive(Clone, Copy, Debug)]
struct Part {
    symbol: Symbol,
    /// What this symbol and the next merge into.
    with_next: Option<Merge>,
}

#[derive(Clone, Copy, Debug)]
struct Link {
    symbol: Symbol,
    prev: u32,
    next: u32,
}

/// In the heap: rank, index of the left symbol, summed length, result.
type Candidate = Reverse<(u32, u32, u32, u32)>;

/// Buffers that are used again from word to word.
#[derive(Debug, Default)]
pub(super) struct Merger {
    /// The word's symbols: filled by the caller, then what is left of them.
    pub(super) symbols: Vec<Symbol>,
    parts: Vec<Part>,
    links: Vec<Link>,
    candidates: Vec<Candidate>,
}

impl Merger {
    /// Merges `symbols` of `word` until nothing merges.
    pub(super) fn run(&mut self, word: &[u8], rules: &impl Rules) {
        match self.symbols.len() {
            0 | 1 => {}
            n if n <= SHORT_SYMBOLS => self.run_short(word, rules),
            _ => self.run_long(word, rules),
        }
    }

    fn run_short(&mut self, word: &[u8], rules: &impl Rules) {
        let pair = |left: Symbol, right: Option<&Symbol>| right.and_then(|right| rules.merge(word, left, *right));
        let parts = &mut self.parts;
        parts.clear();
        parts.extend(
            self.symbols
                .iter()
                .enumerate()
                .map(|(i, &symbol)| Part { symbol, with_next: pair(symbol, self.symbols.get(i + 1)) }),
        );
        // The first of the smallest: `min_by_key` keeps the leftmost.
        while let Some((at, merge)) = parts
            .iter()
            .enumerate()
            .filter_map(|(i, part)| Some((i, part.with_next?)))
            .min_by_key(|(_, merge)| merge.rank)
        {
            let right = parts.remove(at + 1).symbol;
            parts[at].symbol.len += right.len;
            parts[at].symbol.id = merge.id;
            parts[at].with_next = pair(parts[at].symbol, parts.get(at + 1).map(|next| &next.symbol));
            if at > 0 {
                parts[at - 1].with_next = pair(parts[at - 1].symbol, Some(&parts[at].symbol));
            }
        }
        self.symbols.clear();
        self.symbols.extend(parts.iter().map(|part| part.symbol));
    }

    fn run_long(&mut self, word: &[u8], rules: &impl Rules) {
        let links = &mut self.links;
        links.clear();
        let last = self.symbols.len() - 1;
        links.extend(self.symbols.iter().enumerate().map(|(i, &symbol)| Link {
            symbol,
            prev: if i == 0 { NONE } else { i as u32 - 1 },
            next: if i == last { NONE } else { i as u32 + 1 },
        }));
        let candidate = |links: &[Link], left: u32, right: u32| -> Option<Candidate> {
            let (l, r) = (links.get(left as usize)?.symbol, links.get(right as usize)?.symbol);
            let merge = rules.merge(word, l, r)?;
            Some(Reverse((merge.rank, left, l.len + r.len, merge.id)))
        };
        let mut start = std::mem::take(&mut self.candidates);
        start.clear();
        start.extend((1..links.len() as u32).filter_map(|right| candidate(links, right - 1, right)));
        let mut heap = BinaryHeap::from(start);
        while let Some(Reverse((_, left, len, id))) = heap.pop() {
            let link = links[left as usize];
            // A symbol that was merged away has length 0 and no next.
            let Some(right) = links.get(link.next as usize).copied() else { continue };
            if link.symbol.len == 0 || link.symbol.len + right.symbol.len != len {
                continue;
            }
            let gone = &mut links[link.next as usize];
            gone.symbol.len = 0;
            gone.next = NONE;
            let grown = &mut links[left as usize];
            grown.symbol.len = len;
            grown.symbol.id = id;
            grown.next = right.next;
            if let Some(after) = links.get_mut(right.next as usize) {
                after.prev = left;
            }
            heap.extend(candidate(links, link.prev, left));
            heap.extend(candidate(links, left, right.next));
        }
        self.candidates = heap.into_vec();
        self.symbols.clear();
        self.symbols.extend(links.iter().map(|link| link.symbol).filter(|symbol| symbol.len > 0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ids are lengths; any two neighbours merge, by a rank that mixes their lengths.
    struct ByLength {
        modulus: u32,
    }

    impl Rules for ByLength {
        fn merge(&self, _: &[u8], left: Symbol, right: Symbol) -> Option<Merge> {
            let rank = (left.len * 7 + right.len * 13) % self.modulus;
            (rank != 3).then_some(Merge { rank, id: left.len + right.len })
        }
    }

    /// The definition: look at all neighbours, take the best, begin again.
    fn naive(mut lens: Vec<u32>, rules: &ByLength) -> Vec<u32> {
        loop {
            let symbol = |len| Symbol { start: 0, len, id: len };
            let best = (1..lens.len())
                .filter_map(|i| Some((rules.merge(&[], symbol(lens[i - 1]), symbol(lens[i]))?.rank, i)))
                .min();
            let Some((_, i)) = best else { return lens };
            let right = lens.remove(i);
            lens[i - 1] += right;
        }
    }

    #[test]
    fn both_loops_match_naive() {
        for n in 2..60u32 {
            for modulus in [4, 5, 11, 17, 64] {
                let rules = ByLength { modulus };
                let symbols: Vec<Symbol> = (0..n).map(|i| Symbol { start: i, len: 1 + i % 3, id: 1 + i % 3 }).collect();
                let expected = naive(symbols.iter().map(|symbol| symbol.len).collect(), &rules);
                let mut merger = Merger::default();
                for long in [false, true] {
                    merger.symbols = symbols.clone();
                    if long {
                        merger.run_long(&[], &rules)
                    } else {
                        merger.run_short(&[], &rules)
                    }
                    let lens: Vec<u32> = merger.symbols.iter().map(|symbol| symbol.len).collect();
                    assert_eq!(lens, expected, "n {n} modulus {modulus} long {long}");
                }
            }
        }
    }
}
