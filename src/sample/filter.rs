#![forbid(unsafe_code)]
//! Top-k, min-p and top-p, and the walk that ends at the drawn token (T-117, T-118).
//!
//! The cuts speak of all tokens sorted by probability. A draw looks at the head of that list only, so the list is gathered and
//! sorted as far as somebody looked. Tokens are gathered in bands, each a thousand times less likely than the one before: of a
//! model's row the first band holds a few hundred of all the tokens. Within what is gathered a quickselect splits the next
//! stretch off, about as long again as what is sorted.
//!
//! ```text
//! [ sorted, best first | gathered, none better than the last sorted one ]   not gathered: all below the floor
//! ```
//!
//! # Invariants
//! - The order is total (probability descending, then id ascending), so every way of sorting gives one list.
//! - Tokens without probability are never gathered, but are counted where the cuts count: they come last.

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

/// How much less likely the tokens of one band are than those of the one before.
const BAND: f32 = 1.0 / 1024.0;

/// A little less than 1: what is below a bound times this stays below the bound when it is divided and rounded.
const NEARLY: f32 = 1.0 - 1.0 / (1 << 20) as f32;

/// Below every weight that is not 0 (T-116).
const LEAST_WEIGHT: f32 = 1e-16;

/// Tokens with probability, sorted as far as somebody looked.
///
/// A probability is a weight over the sum of weights, rounded, and only the tokens that are gathered are divided.
pub(super) struct Ranked<'c> {
    weights: &'c [f32],
    sum: f32,
    candidates: &'c mut Vec<Candidate>,
    sorted: usize,
    /// Every token at or above it is gathered; 0 when all with probability are.
    floor: f32,
}

impl<'c> Ranked<'c> {
    /// Over the weights of a row, the largest of which is 1 where there is any, and their sum; uses `candidates` as memory.
    pub(super) fn new(weights: &'c [f32], sum: f32, candidates: &'c mut Vec<Candidate>) -> Self {
        candidates.clear();
        let mut ranked = Self { weights, sum, candidates, sorted: 0, floor: f32::INFINITY };
        if sum > 0.0 {
            ranked.gather(BAND / sum);
        } else {
            ranked.floor = 0.0;
        }
        ranked
    }

    /// Calls `take` with the probabilities from `least` on, which is above 0, and their tokens.
    fn each_from(&self, least: f32, mut take: impl FnMut(f32, u32)) {
        const BLOCK: usize = 64;
        let least_weight = (least * self.sum * NEARLY).max(f32::from_bits(1));
        for (block, first) in self.weights.chunks(BLOCK).zip((0u32..).step_by(BLOCK)) {
            // Nearly every block has none; finding that out takes no branch per token.
            if !block.iter().fold(false, |any, &weight| any | (weight >= least_weight)) {
                continue;
            }
            for (&weight, id) in block.iter().zip(first..) {
                if weight >= least_weight {
                    let probability = weight / self.sum;
                    if probability >= least {
                        take(probability, id);
                    }
                }
            }
        }
    }

    /// The `index`-th best, or none past the end.
    fn get(&mut self, index: usize) -> Option<Candidate> {
        while index >= self.sorted {
            if self.sorted < self.candidates.len() {
                self.sort_more();
            } else if self.floor > 0.0 {
                self.gather(self.floor * BAND);
            } else {
                return None;
            }
        }
        self.candidates.get(index).copied()
    }

    /// Lowers the floor and gathers the tokens between.
    fn gather(&mut self, floor: f32) {
        // No weight lies there, or a product no longer tells bands apart: the last band takes all.
        let is_last = floor * self.sum < LEAST_WEIGHT || floor < f32::MIN_POSITIVE;
        let floor = if is_last { 0.0 } else { floor };
        let mut candidates = core::mem::take(self.candidates);
        self.each_from(floor.max(f32::from_bits(1)), |probability, id| {
            if probability < self.floor {
                candidates.push(Candidate { probability, id });
            }
        });
        *self.candidates = candidates;
        self.floor = floor;
    }

    /// Sorts the next stretch of what is gathered.
    fn sort_more(&mut self) {
        const FIRST: usize = 128;
        let rest = &mut self.candidates[self.sorted..];
        let more = FIRST.max(self.sorted * 2).min(rest.len());
        if more < rest.len() {
            rest.select_nth_unstable_by(more - 1, rank);
        }
        rest[..more].sort_unstable_by(rank);
        self.sorted += more;
    }

    /// How many have at least this probability, which is above 0.
    fn count_from(&self, least: f32) -> usize {
        let mut count = 0;
        self.each_from(least, |_, _| count += 1);
        count
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

    /// The token where `u` ends among those that `cuts` leave of the row (T-117, T-118); 0 when nothing has mass.
    pub(super) fn draw(&mut self, cuts: Cuts, u: f64) -> u32 {
        let Some(best) = self.get(0) else { return 0 };
        let (kept, cut) = self.kept(best, cuts);
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
    fn kept(&mut self, best: Candidate, cuts: Cuts) -> (usize, bool) {
        let row_len = self.weights.len();
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

    fn ranking(weights: &[f32], sum: f32) -> Vec<Candidate> {
        let mut candidates = Vec::new();
        let mut ranked = Ranked::new(weights, sum, &mut candidates);
        (0..).map_while(|index| ranked.get(index)).collect()
    }

    /// T-117: the list is the same however it comes to be sorted, across bands and stretches.
    #[test]
    fn looking_step_by_step_gives_the_fully_sorted_list() {
        let hashed = |i: u32| i.wrapping_mul(2_654_435_761);
        let flat: Vec<f32> = (0..5000).map(|i| ((hashed(i) >> 25) as f32 + 1.0) / 128.0).collect();
        // As steep as weights are, with ties and zeros.
        let steep: Vec<f32> =
            (0..5000).map(|i| hashed(i) >> 26).map(|n| if n > 52 { 0.0 } else { (-(n as f32)).exp2() }).collect();
        // Next to the floor of the first band, in steps that division does not tell apart.
        let near: Vec<f32> = (0..5000)
            .map(|i| if i == 7 { 1.0 } else { f32::from_bits(BAND.to_bits() - 40 + (hashed(i) >> 26)) })
            .collect();
        let single = [0.0, 1.0, 0.0];
        for weights in [&flat[..], &steep, &near, &single, &[0.0; 70], &[]] {
            for sum in [weights.iter().sum::<f32>(), 1.0, 1.5, 3.0, 7777.7] {
                let sum = if weights.iter().any(|&weight| weight > 0.0) { sum } else { 0.0 };
                let listed = weights.iter().zip(0..).map(|(&weight, id)| Candidate { probability: weight / sum, id });
                let mut sorted: Vec<Candidate> = listed.filter(|candidate| candidate.probability > 0.0).collect();
                sorted.sort_by(rank);
                assert_eq!(ranking(weights, sum), sorted, "{sum}");
            }
        }
    }

    #[test]
    fn ties_go_to_the_lower_id() {
        let ids: Vec<u32> = ranking(&[0.5, 1.0, 0.5, 1.0], 3.0).iter().map(|candidate| candidate.id).collect();
        assert_eq!(ids, [1, 3, 0, 2]);
    }
}
