#![forbid(unsafe_code)]
//! Greedy picks, and draws by position (T-115 .. T-121).
//!
//! # Invariants
//! - [`uniform`] is the only source of chance, and a pure function.
//! - [`exp`] and the sum over a row are written out in f32 operations with one order, so that the same row gives the same
//!   probabilities on every machine, at every batch size and with every number of threads.

use super::Scratch;
use super::filter::{Cuts, Ranked};
use super::wide::{RowLoop, widest};

/// Weights of tokens further than this below the best are 0 (T-116): about a ten-millionth of a billionth of it.
const LEAST: f32 = -36.7368;

/// Independent sums of the row, combined at the end (T-121).
const LANES: usize = 16;

/// The number in [0, 1) that belongs to a position (T-119).
pub fn uniform(position: u64) -> f64 {
    let mut z = position.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^= z >> 31;
    (z >> 11) as f64 / (1u64 << 53) as f64
}

/// The lowest index among the maxima (T-115).
///
/// NaN entries are ignored, but NaN in front gives 0; so do an empty row and one of nothing but minus infinity.
pub fn argmax(row: &[f32]) -> u32 {
    survey(row).lowest(row)
}

/// The largest entry that is a number; minus infinity when there is none.
pub(super) fn maximum(row: &[f32]) -> f32 {
    survey(row).best
}

/// What one look at a row finds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Survey {
    /// Whether every entry is.
    pub(super) is_finite: bool,
    /// The largest entry that is a number; minus infinity when there is none.
    pub(super) best: f32,
    /// The first block that holds it.
    block: usize,
}

/// Entries of a row that are looked at together.
const BLOCK: usize = 256;

/// Looks at a row once.
pub(super) fn survey(row: &[f32]) -> Survey {
    widest(Look(row))
}

/// [`survey`]. No branch per entry, so it is as fast as the row is read.
pub(super) struct Look<'a>(pub(super) &'a [f32]);

impl RowLoop for Look<'_> {
    type Output = Survey;

    #[inline(always)]
    fn run(self) -> Survey {
        let mut survey = Survey { is_finite: true, best: f32::NEG_INFINITY, block: 0 };
        for (index, block) in self.0.chunks(BLOCK).enumerate() {
            let mut bests = [f32::NEG_INFINITY; LANES];
            // Zero times a number is 0, and NaN where it is not finite; a sum with NaN is NaN.
            let mut zeros = [0.0f32; LANES];
            let (lines, tail) = block.as_chunks::<LANES>();
            for line in lines {
                for ((best, zero), &x) in bests.iter_mut().zip(&mut zeros).zip(line) {
                    *best = if x > *best { x } else { *best };
                    *zero += 0.0 * x;
                }
            }
            let best = bests.iter().chain(tail).fold(f32::NEG_INFINITY, |best, &x| if x > best { x } else { best });
            survey.is_finite &= zeros.iter().sum::<f32>() == 0.0 && tail.iter().all(|x| x.is_finite());
            if best > survey.best {
                (survey.best, survey.block) = (best, index);
            }
        }
        survey
    }
}

impl Survey {
    /// The lowest index among the maxima of the row that was looked at (T-115).
    pub(super) fn lowest(&self, row: &[f32]) -> u32 {
        if row.first().is_none_or(|first| first.is_nan()) {
            return 0;
        }
        let first = self.block * BLOCK;
        let block = row.get(first..).unwrap_or_default();
        block.iter().position(|&x| x == self.best).map_or(0, |index| (first + index) as u32)
    }
}

/// `e^x` for `x` in (-36.7368, 0], within 2.5e-7 of it relative to its value; `exp(0)` is 1 (T-121).
///
/// An `x` outside counts as the nearer end; NaN gives NaN.
///
/// # Numerics
/// `x = n ln 2 + r`, a polynomial of degree 6 in `r`, scaled by `2^n`. No fused operations, so that a machine that lacks them
/// agrees.
#[inline]
pub fn exp(x: f32) -> f32 {
    // Adding 1.5 * 2^23 rounds to a whole number, which then stands in the low bits. Unlike a cast this has no case apart, so
    // that a loop over a row needs no branch. `n` is at most 0: rounding up is truncating.
    const SHIFT: f32 = 12_582_912.0;
    let x = x.clamp(LEAST, 0.0);
    let exponent = x * core::f32::consts::LOG2_E - 0.5;
    let nearest = (exponent + SHIFT) - SHIFT;
    let n = if nearest < exponent { nearest + 1.0 } else { nearest };
    let r = (x - n * 0.693_359_4) - n * -2.121_944_4e-4;
    let mut polynomial = 1.987_569_1e-4;
    for coefficient in [1.398_2e-3, 8.333_452e-3, 4.166_579_6e-2, 0.166_666_65, 0.5] {
        polynomial = polynomial * r + coefficient;
    }
    let mantissa = polynomial * (r * r) + r + 1.0;
    // n lies in [-53, 0], so 2^n is a normal number.
    let biased = (n + SHIFT).to_bits().wrapping_sub(SHIFT.to_bits()).wrapping_add(127);
    let scale = f32::from_bits(biased << 23);
    mantissa * scale
}

/// The weight of a logit against the best of its row: 0 for NaN and for what is too far below (T-116).
#[inline(always)]
fn weight(x: f32, best: f32) -> f32 {
    let below = x - best;
    // Both sides are computed, so that the loop over a row has no branch.
    let value = exp(below);
    if below > LEAST { value } else { 0.0 }
}

/// Sums `term` over a row in the order of T-121: sixteen sums by index, combined, then the tail in order.
#[inline(always)]
fn sum_in_order(row: &[f32], term: impl Fn(f32) -> f32) -> f32 {
    let mut sums = [0.0f32; LANES];
    let (blocks, tail) = row.as_chunks::<LANES>();
    for block in blocks {
        for (sum, &x) in sums.iter_mut().zip(block) {
            *sum += term(x);
        }
    }
    let mut total = combined(&sums);
    for &x in tail {
        total += term(x);
    }
    total
}

/// The sixteen sums of T-121 in one.
fn combined(sums: &[f32; LANES]) -> f32 {
    let quarter = |q: usize| (sums[q] + sums[q + 4]) + (sums[q + 8] + sums[q + 12]);
    (quarter(0) + quarter(1)) + (quarter(2) + quarter(3))
}

/// The sum of the weights of a row against its best, in the order of T-121.
pub(super) fn weight_sum(row: &[f32], best: f32) -> f32 {
    widest(WeightSum { row, best })
}

/// [`weight_sum`].
pub(super) struct WeightSum<'a> {
    pub(super) row: &'a [f32],
    pub(super) best: f32,
}

impl RowLoop for WeightSum<'_> {
    type Output = f32;

    #[inline(always)]
    fn run(self) -> f32 {
        sum_in_order(self.row, |x| weight(x, self.best))
    }
}

/// Writes the probabilities of a row at a temperature over `out`, one per token (T-116); all 0 when the row has no mass.
///
/// # Numerics
/// f32; the sum has the order of T-121, so nothing but the row and the temperature decides any bit.
pub fn probabilities(row: &[f32], temperature: f32, out: &mut Vec<f32>) {
    let scale = 1.0 / temperature;
    out.clear();
    out.extend(row.iter().map(|x| x * scale));
    let best = maximum(out);
    for x in out.iter_mut() {
        *x = weight(*x, best);
    }
    let sum = sum_in_order(out, |weight| weight);
    if sum > 0.0 {
        for weight in out {
            *weight /= sum;
        }
    }
}

/// Writes the weights of a row at a temperature over `out`, one per token, and answers their sum: what [`probabilities`] divides.
///
/// `most` is the maximum of the row.
fn weights(row: &[f32], most: f32, temperature: f32, out: &mut Vec<f32>) -> f32 {
    let scale = 1.0 / temperature;
    // Scaling keeps the order of numbers, so the best one scaled is the best scaled one; where that is none, somebody looks.
    let mut best = most * scale;
    if best.is_nan() {
        best = row.iter().map(|x| x * scale).fold(f32::NEG_INFINITY, |best, x| if x > best { x } else { best });
    }
    out.resize(row.len(), 0.0);
    widest(Weigh { row, scale, best, out })
}

/// Writes the weights of a row, scaled, against the best over `out`, which is as long, and answers their sum in the order of T-121.
pub(super) struct Weigh<'a> {
    pub(super) row: &'a [f32],
    pub(super) scale: f32,
    pub(super) best: f32,
    pub(super) out: &'a mut [f32],
}

impl RowLoop for Weigh<'_> {
    type Output = f32;

    #[inline(always)]
    fn run(self) -> f32 {
        let Self { row, scale, best, out } = self;
        let mut sums = [0.0f32; LANES];
        let (lines, tail) = row.as_chunks::<LANES>();
        let (out_lines, out_tail) = out.as_chunks_mut::<LANES>();
        for (line, out) in lines.iter().zip(out_lines) {
            for ((x, out), sum) in line.iter().zip(out).zip(&mut sums) {
                *out = weight(x * scale, best);
                *sum += *out;
            }
        }
        let mut total = combined(&sums);
        for (x, out) in tail.iter().zip(out_tail) {
            *out = weight(x * scale, best);
            total += *out;
        }
        total
    }
}

/// Draws a token at a temperature above 0 with the number `u` (T-116 .. T-118).
pub fn draw(row: &[f32], temperature: f32, cuts: Cuts, u: f64, scratch: &mut Scratch) -> u32 {
    draw_below(row, maximum(row), temperature, cuts, u, scratch)
}

/// As [`draw`], of a row whose maximum is known.
pub(super) fn draw_below(row: &[f32], most: f32, temperature: f32, cuts: Cuts, u: f64, scratch: &mut Scratch) -> u32 {
    let Scratch { weights: memory, candidates } = scratch;
    let sum = weights(row, most, temperature, memory);
    Ranked::new(memory, sum, candidates).draw(cuts, u)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// T-119, its vectors.
    #[test]
    fn uniform_has_the_published_values() {
        let values = [
            (0, 0.8833108082136426),
            (7, 0.3898297483912715),
            (8, 0.6185046250316943),
            (1003, 0.6038906202342335),
            (u64::MAX, 0.8939429202831845),
        ];
        for (position, value) in values {
            assert_eq!(uniform(position), value, "position {position}");
        }
    }

    /// T-121: the bound of the contract over the whole range, against the f64 function.
    #[test]
    fn exp_is_within_its_bound_everywhere() {
        const BOUND: f64 = 2.5e-7;
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(-0.0), 1.0);
        let mut worst = 0.0f64;
        let steps = 4_000_000;
        for step in 0..steps {
            let x = LEAST * (step as f32 / steps as f32);
            let exact = f64::from(x).exp();
            worst = worst.max((f64::from(exp(x)) - exact).abs() / exact);
        }
        // Near 0 the steps above are coarse: go through every exponent.
        for shift in 0..120 {
            let x = -f32::from_bits((127 - shift) << 23);
            let exact = f64::from(x).exp();
            worst = worst.max((f64::from(exp(x)) - exact).abs() / exact);
        }
        assert!(worst <= BOUND, "largest relative error {worst:e}");
    }

    /// T-121: the profile as it is written, with a truncation, gives the same bits.
    #[test]
    fn exp_has_the_bits_of_the_profile() {
        let profile = |x: f32| {
            let n = (x * core::f32::consts::LOG2_E - 0.5).trunc();
            let r = (x - n * 0.693_359_4) - n * -2.121_944_4e-4;
            let coefficients = [1.987_569_1e-4, 1.398_2e-3, 8.333_452e-3, 4.166_579_6e-2, 0.166_666_65, 0.5];
            let polynomial = coefficients.into_iter().reduce(|sum, coefficient| sum * r + coefficient).unwrap_or(0.0);
            (polynomial * (r * r) + r + 1.0) * n.exp2()
        };
        for step in 0..1_000_000 {
            let x = LEAST * (step as f32 / 1e6);
            assert_eq!(exp(x).to_bits(), profile(x).to_bits(), "{x}");
        }
    }

    /// T-121: the order of the sum, spelled out for a row of two blocks and a tail.
    #[test]
    fn sum_runs_in_the_order_of_the_profile() {
        let row: Vec<f32> = (0..37).map(|i| 1.0 / (3.0 + i as f32 * 0.7)).collect();
        let mut a = [0.0f32; 16];
        for (i, x) in row[..32].iter().enumerate() {
            a[i % 16] += x;
        }
        let q = [0, 1, 2, 3].map(|q| (a[q] + a[q + 4]) + (a[q + 8] + a[q + 12]));
        let mut total = (q[0] + q[1]) + (q[2] + q[3]);
        for x in &row[32..] {
            total += x;
        }
        assert_eq!(sum_in_order(&row, |x| x).to_bits(), total.to_bits());
    }
}
