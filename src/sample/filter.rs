#![forbid(unsafe_code)]
//! Top-k, min-p and top-p, and the walk that ends at the drawn token (T-117, T-118).
//!
//! The cuts speak of all tokens sorted by probability. A draw looks at the head of that list only, so the list is sorted as
//! far as somebody looked: each time the sorted head runs out, a quickselect splits off about as much again.
//!
//! ```text
//! [ sorted, best first | the rest, in any order, none better than the last sorted one ]
//! ```
//!
//! # Invariants
//! - The order is total (probability descending, then id ascending), so every way of sorting gives one list.
//! - Tokens without probability are not in the list, but are counted where the cuts count: they come last.

use core::cmp::Ordering;

/// A token and its probability over the whole row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// Its probability before any cut.
    pub probability: f32,
    /// The token.
    pub id: u32,
}

/// Which tokens a draw may end at. They cut in the order of the fields (T-117).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cuts {
    /// Number of tokens kept; 0 is off.
    pub top_k: u32,
    /// Smallest kept probability relative to the best; 0 is off.
    pub min_p: f32,
    /// Probability mass kept; 1.0 is off.
    pub top_p: f32,
}

impl Cuts {
    /// No cut.
    pub const OFF: Self = Self { top_k: 0, min_p: 0.0, top_p: 1.0 };
}

/// Tokens with probability, sorted as far as somebody looked.
pub(super) struct Ranked<'c> {
    candidates: &'c mut [Candidate],
    sorted: usize,
}

impl<'c> Ranked<'c> {
    /// Nothing is sorted yet. Probabilities are above 0.
    pub(super) fn new(candidates: &'c mut [Candidate]) -> Self {
        Self { candidates, sorted: 0 }
    }

    /// The `index`-th best, or none past the end.
    fn get(&mut self, index: usize) -> Option<Candidate> {
        if index >= self.sorted {
            self.sort_to(index);
        }
        self.candidates.get(index).copied()
    }

    /// Sorts on until `index` lies in the sorted head, or everything does.
    fn sort_to(&mut self, index: usize) {
        const FIRST: usize = 128;
        while self.sorted <= index && self.sorted < self.candidates.len() {
            let rest = &mut self.candidates[self.sorted..];
            let more = FIRST.max(self.sorted * 2).min(rest.len());
            if more < rest.len() {
                rest.select_nth_unstable_by(more - 1, rank);
            }
            rest[..more].sort_unstable_by(rank);
            self.sorted += more;
        }
    }

    /// How many have at least this probability.
    fn count_from(&self, least: f32) -> usize {
        self.candidates.iter().filter(|candidate| candidate.probability >= least).count()
    }

    /// The sum of the first `count`, best first.
    fn sum(&mut self, count: usize) -> f32 {
        let mut sum = 0.0;
        for index in 0..count {
            match self.get(index) {
                Some(candidate) => sum += candidate.probability,
                None => break,
            }
        }
        sum
    }

    /// The token where `u` ends among those that `cuts` leave of a row of `row_len` (T-117, T-118); 0 when nothing has mass.
    pub(super) fn draw(&mut self, row_len: usize, cuts: Cuts, u: f64) -> u32 {
        let Some(best) = self.get(0) else { return 0 };
        let (kept, cut) = self.kept(row_len, best, cuts);
        let total = if cut { self.sum(kept) } else { 1.0 };
        let mut target = u as f32 * total;
        let mut last = best;
        for index in 0..kept {
            let Some(candidate) = self.get(index) else { break };
            if target < candidate.probability {
                return candidate.id;
            }
            target -= candidate.probability;
            last = candidate;
        }
        last.id
    }

    /// How many of the whole row stay, and whether a cut applied.
    fn kept(&mut self, row_len: usize, best: Candidate, cuts: Cuts) -> (usize, bool) {
        let mut kept = row_len;
        let mut cut = false;
        if cuts.top_k != 0 {
            kept = (cuts.top_k as usize).min(row_len);
            cut = true;
        }
        if cuts.min_p > 0.0 {
            let least = cuts.min_p * best.probability;
            // Only a floor that underflowed keeps the tokens without probability.
            if least > 0.0 {
                let above = self.count_from(least).max(1);
                cut |= above < kept;
                kept = kept.min(above);
            }
        }
        if cuts.top_p < 1.0 {
            let head = self.nucleus(kept, cuts.top_p);
            cut |= head < kept;
            kept = head;
        }
        (kept, cut)
    }

    /// The shortest head of the first `kept` whose mass reaches `top_p`, at least one; all of them when none does.
    fn nucleus(&mut self, kept: usize, top_p: f32) -> usize {
        let mut mass = 0.0;
        for index in 0..kept {
            let Some(candidate) = self.get(index) else { break };
            mass += candidate.probability;
            if mass >= top_p {
                return index + 1;
            }
        }
        kept
    }
}

/// Best first: by probability, then by the lower id. Probabilities are never NaN.
fn rank(a: &Candidate, b: &Candidate) -> Ordering {
    b.probability.total_cmp(&a.probability).then(a.id.cmp(&b.id))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidates(probabilities: &[f32]) -> Vec<Candidate> {
        probabilities.iter().zip(0..).map(|(&probability, id)| Candidate { probability, id }).collect()
    }

    /// T-117: the list is the same however it comes to be sorted.
    #[test]
    fn looking_step_by_step_gives_the_fully_sorted_list() {
        let probabilities: Vec<f32> =
            (0..5000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 25) as f32 + 1.0).collect();
        let mut sorted = candidates(&probabilities);
        sorted.sort_by(rank);
        let mut looked_at = candidates(&probabilities);
        let mut ranked = Ranked::new(&mut looked_at);
        for (index, &expected) in sorted.iter().enumerate() {
            assert_eq!(ranked.get(index), Some(expected));
        }
        assert_eq!(ranked.get(5000), None);
    }

    #[test]
    fn ties_go_to_the_lower_id() {
        let mut list = candidates(&[0.25, 0.5, 0.25, 0.5]);
        let mut ranked = Ranked::new(&mut list);
        let ids: Vec<u32> = (0..4).filter_map(|index| ranked.get(index)).map(|candidate| candidate.id).collect();
        assert_eq!(ids, [1, 3, 0, 2]);
    }
}
