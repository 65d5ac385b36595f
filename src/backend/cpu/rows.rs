#![forbid(unsafe_code)]
//! Operations on single rows: embedding, norm, rotation, gate, sum.
//!
//! # Numerics
//! The sum of squares of a norm has 32 partial sums (element `i` goes to sum `i` modulo 32), which are added as
//! `(0..8 + 8..16) + (16..24 + 24..32)` and then as the lanes of a vector. Everything else is element by element.
//!
//! # Source
//! arXiv 1910.07467 (RMSNorm), 2104.09864 (RoPE), 2002.05202 (gated feed-forward layers)

use super::linear::{Decode, Weights};
use super::math::{gelu_tanh, silu};
use super::simd::{LANES, Op, Simd, load_part, store_part};
use crate::backend::{Gate, RopeTable};
use crate::checkpoint::RopePairing;

/// `out = table[token] * scale`
pub(super) struct Embed<'a> {
    pub(super) table: Weights<'a>,
    pub(super) token: usize,
    pub(super) scale: f32,
    /// A decoded row in whole groups.
    pub(super) scratch: &'a mut [f32],
    pub(super) out: &'a mut [f32],
}

impl Op for Embed<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { table, token, scale, scratch, out } = self;
        Decode { weights: table, range: token..token + 1, to: scratch }.run(s);
        for (out, &value) in out.iter_mut().zip(scratch.iter()) {
            *out = value * scale;
        }
    }
}

/// Each group of `weight.len()` elements divided by its root mean square, times `weight`.
pub(super) struct RmsNorm<'a> {
    pub(super) x: &'a mut [f32],
    pub(super) weight: &'a [f32],
    pub(super) epsilon: f32,
}

impl Op for RmsNorm<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for group in self.x.chunks_exact_mut(self.weight.len()) {
            let mean = f64::from(sum_of_squares(s, group)) / group.len() as f64;
            let scale = (1.0 / (mean + f64::from(self.epsilon)).sqrt()) as f32;
            for (x, &weight) in group.iter_mut().zip(self.weight) {
                *x = *x * scale * weight;
            }
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

/// Pairs whose sines and cosines are computed together.
const PAIRS: usize = 64;

/// Rotates each head of a row to a position.
pub(super) struct Rope<'a> {
    pub(super) row: &'a mut [f32],
    pub(super) head_dim: usize,
    pub(super) table: &'a RopeTable,
    pub(super) position: usize,
}

impl Op for Rope<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let pairs = self.table.frequencies.len();
        for (chunk, frequencies) in self.table.frequencies.chunks(PAIRS).enumerate() {
            let (mut sin, mut cos) = ([0.0; PAIRS], [0.0; PAIRS]);
            for ((frequency, sin), cos) in frequencies.iter().zip(&mut sin).zip(&mut cos) {
                let (s, c) = (self.position as f64 * frequency).sin_cos();
                (*sin, *cos) = (s as f32, c as f32);
            }
            let (first, len) = (chunk * PAIRS, frequencies.len());
            for head in self.row.chunks_exact_mut(self.head_dim) {
                match self.table.pairing {
                    RopePairing::Interleaved => {
                        let pairs = head[2 * first..2 * (first + len)].as_chunks_mut::<2>().0;
                        for ((pair, &sin), &cos) in pairs.iter_mut().zip(&sin).zip(&cos) {
                            let [a, b] = *pair;
                            *pair = [a * cos - b * sin, a * sin + b * cos];
                        }
                    }
                    RopePairing::Halves => {
                        let (low, high) = head.split_at_mut(pairs);
                        let low = low[first..first + len].iter_mut();
                        let high = high[first..first + len].iter_mut();
                        for (((a, b), &sin), &cos) in low.zip(high).zip(&sin).zip(&cos) {
                            (*a, *b) = (*a * cos - *b * sin, *a * sin + *b * cos);
                        }
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
