#![forbid(unsafe_code)]
//! Operations on single rows: norm, rotation, gate, sum.
//!
//! # Numerics
//! The sum of squares of a norm has 32 partial sums (element `i` goes to sum `i` modulo 32), which are added as
//! `(0..8 + 8..16) + (16..24 + 24..32)` and then as the lanes of a vector. Everything else is element by element.
//!
//! # Source
//! arXiv 1910.07467 (RMSNorm), 2104.09864 (RoPE), 2002.05202 (gated feed-forward layers)

use super::math::{gelu_tanh, silu};
use super::simd::{LANES, Op, Simd, load_part, store_part};
use crate::backend::Gate;
use crate::checkpoint::RopePairing;

/// Each group of `weight.len()` elements divided by its root mean square, times `weight`.
pub(super) struct RmsNorm<'a> {
    pub(super) x: &'a [f32],
    pub(super) weight: &'a [f32],
    pub(super) epsilon: f32,
    pub(super) out: &'a mut [f32],
}

impl Op for RmsNorm<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let width = self.weight.len();
        for (x, out) in self.x.chunks_exact(width).zip(self.out.chunks_exact_mut(width)) {
            let scale = norm_scale(s, x, self.epsilon);
            for ((out, &x), &weight) in out.iter_mut().zip(x).zip(self.weight) {
                *out = x * scale * weight;
            }
        }
    }
}

/// As [`RmsNorm`], in place.
pub(super) struct RmsNormInPlace<'a> {
    pub(super) x: &'a mut [f32],
    pub(super) weight: &'a [f32],
    pub(super) epsilon: f32,
}

impl Op for RmsNormInPlace<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for x in self.x.chunks_exact_mut(self.weight.len()) {
            let scale = norm_scale(s, x, self.epsilon);
            for (x, &weight) in x.iter_mut().zip(self.weight) {
                *x = *x * scale * weight;
            }
        }
    }
}

/// One divided by the root mean square.
#[inline(always)]
fn norm_scale<S: Simd>(s: S, x: &[f32], epsilon: f32) -> f32 {
    let mean = f64::from(sum_of_squares(s, x)) / x.len() as f64;
    (1.0 / (mean + f64::from(epsilon)).sqrt()) as f32
}

/// `x = x + delta`, then `out` is `x` divided by its root mean square, times `weight`.
pub(super) struct AddRmsNorm<'a> {
    pub(super) x: &'a mut [f32],
    pub(super) delta: &'a [f32],
    pub(super) weight: &'a [f32],
    pub(super) epsilon: f32,
    pub(super) out: &'a mut [f32],
}

impl Op for AddRmsNorm<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let width = self.weight.len();
        let rows = self.x.chunks_exact_mut(width).zip(self.delta.chunks_exact(width));
        for ((x, delta), out) in rows.zip(self.out.chunks_exact_mut(width)) {
            Add { x, y: delta }.run(s);
            RmsNorm { x, weight: self.weight, epsilon: self.epsilon, out }.run(s);
        }
    }
}

#[inline(always)]
fn sum_of_squares<S: Simd>(s: S, x: &[f32]) -> f32 {
    let mut sums = [s.splat(0.0); 4];
    let (vectors, tail) = x.as_chunks::<LANES>();
    let (fours, rest) = vectors.as_chunks::<4>();
    for four in fours {
        for i in 0..4 {
            let x = s.load(&four[i]);
            sums[i] = s.fma(x, x, sums[i]);
        }
    }
    for i in 0..rest.len().min(3) {
        let x = s.load(&rest[i]);
        sums[i] = s.fma(x, x, sums[i]);
    }
    if !tail.is_empty() {
        let x = load_part(s, tail);
        sums[rest.len() & 3] = s.fma(x, x, sums[rest.len() & 3]);
    }
    s.sum(s.add(s.add(sums[0], sums[1]), s.add(sums[2], sums[3])))
}

/// Rotates each head of a row by angles.
pub(super) struct Rope<'a> {
    pub(super) row: &'a mut [f32],
    pub(super) head_dim: usize,
    pub(super) pairing: RopePairing,
    /// The cosines of all pairs, then their sines.
    pub(super) angles: &'a [f32],
}

impl Op for Rope<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let pairs = self.angles.len() / 2;
        let (cosines, sines) = self.angles.split_at(pairs);
        for head in self.row.chunks_exact_mut(self.head_dim) {
            match self.pairing {
                RopePairing::Interleaved => {
                    let pairs = head[..2 * pairs].as_chunks_mut::<2>().0;
                    for ((pair, &cos), &sin) in pairs.iter_mut().zip(cosines).zip(sines) {
                        let [a, b] = *pair;
                        *pair = [a * cos - b * sin, a * sin + b * cos];
                    }
                }
                RopePairing::Halves => {
                    let (low, high) = head[..2 * pairs].split_at_mut(pairs);
                    for (((a, b), &cos), &sin) in low.iter_mut().zip(high).zip(cosines).zip(sines) {
                        (*a, *b) = (*a * cos - *b * sin, *a * sin + *b * cos);
                    }
                }
            }
        }
    }
}

/// `gate = act(gate) * up`
pub(super) struct Activate<'a> {
    pub(super) gate: &'a mut [f32],
    pub(super) up: &'a [f32],
    pub(super) act: Gate,
}

impl Op for Activate<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        match self.act {
            Gate::Silu => activate::<S, true>(s, self.gate, self.up),
            Gate::GeluTanh => activate::<S, false>(s, self.gate, self.up),
        }
    }
}

#[inline(always)]
fn activate<S: Simd, const SILU: bool>(s: S, gate: &mut [f32], up: &[f32]) {
    let (gates, gate_tail) = gate.as_chunks_mut::<LANES>();
    let (ups, up_tail) = up.as_chunks::<LANES>();
    for (gate, up) in gates.iter_mut().zip(ups) {
        let x = s.load(gate);
        let y = if SILU { silu(s, x) } else { gelu_tanh(s, x) };
        s.store(s.mul(y, s.load(up)), gate);
    }
    if !gate_tail.is_empty() {
        let x = load_part(s, gate_tail);
        let y = if SILU { silu(s, x) } else { gelu_tanh(s, x) };
        store_part(s, s.mul(y, load_part(s, up_tail)), gate_tail);
    }
}

/// `x = x + y`
pub(super) struct Add<'a> {
    pub(super) x: &'a mut [f32],
    pub(super) y: &'a [f32],
}

impl Op for Add<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        for (x, y) in self.x.iter_mut().zip(self.y) {
            *x += y;
        }
    }
}
