#![forbid(unsafe_code)]
#![expect(
    clippy::needless_range_loop,
    reason = "the same index goes through several arrays, of lengths known when it is compiled"
)]
//! The loops of attention: `R` queries against sixteen positions, or sixteen dimensions, at a time, with all sums in registers.
//!
//! # Numerics
//! - [`Scores`]: a score is one sum over the dimensions in ascending order, beginning at 0, then multiplied by the scale.
//! - [`Soften`]: the weights of a segment have 16 sums, position modulo 16.
//! - [`Values`]: a weighted value is one sum over the positions in ascending order, beginning at 0.
//!
//! So neither `R` nor `N` shows in the result, nor how many lanes a register has.

use core::ops::Range;

use super::super::pages::{Element, SIDE};
use super::super::simd::{Op, Simd};
use super::wide::{self, Wide16};
use super::{BLOCKS, SEGMENT};

/// Scores of `R` queries with the positions of `N` blocks.
pub(super) struct Scores<'a, E, const R: usize, const N: usize> {
    /// `[head_dim][R]`
    pub(super) queries: &'a [[f32; R]],
    /// Each `[head_dim][16 positions]`.
    pub(super) keys: [&'a [[E; SIDE]]; N],
    pub(super) scale: f32,
    /// Of each query, those of the segment.
    pub(super) scores: &'a mut [[f32; SEGMENT]; R],
    /// Which of the segment they are.
    pub(super) blocks: [usize; N],
    /// For each block, where as many elements begin that are wanted later.
    pub(super) ahead: Option<[*const E; N]>,
}

impl<E: Element, const R: usize, const N: usize> Op for Scores<'_, E, R, N> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let dims = self.queries.len();
        let mut keys = self.keys;
        for n in 0..N {
            keys[n] = &self.keys[n][..dims];
        }
        let mut sums = [[s.splat_w(0.0); N]; R];
        for dim in 0..dims {
            if let Some(ahead) = self.ahead
                && begins_line::<E>(dim)
            {
                for n in 0..N {
                    s.prefetch(ahead[n].wrapping_add(dim * SIDE));
                }
            }
            let mut key = [s.splat_w(0.0); N];
            for n in 0..N {
                key[n] = E::load_w(s, &keys[n][dim]);
            }
            for r in 0..R {
                let query = s.splat_w(self.queries[dim][r]);
                for n in 0..N {
                    sums[r][n] = s.fma_w(query, key[n], sums[r][n]);
                }
            }
        }
        let scale = s.splat_w(self.scale);
        for r in 0..R {
            let scores = self.scores[r].as_chunks_mut::<SIDE>().0;
            for n in 0..N {
                s.store_w(s.mul_w(sums[r][n], scale), &mut scores[self.blocks[n]]);
            }
        }
    }
}

/// Weighted sums of values: `R` rows of weights, sixteen dimensions from each of `N` strips.
pub(super) struct Values<'a, E, const R: usize, const N: usize> {
    pub(super) weights: &'a [[f32; SEGMENT]; R],
    pub(super) elements: &'a [E],
    /// Where the values of a block begin: 16 positions of 16 dimensions.
    pub(super) blocks: &'a [usize; BLOCKS],
    /// Of each strip, how much further they begin.
    pub(super) strips: [usize; N],
    /// Positions of the segment.
    pub(super) positions: Range<usize>,
    /// For each block, where elements begin that are wanted later, as many as its values and as far apart.
    pub(super) ahead: Option<&'a [usize; BLOCKS]>,
    /// Taken further.
    pub(super) sums: &'a mut [[[f32; SIDE]; N]; R],
}

impl<E: Element, const R: usize, const N: usize> Op for Values<'_, E, R, N> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Range { start, end } = self.positions;
        let mut sums = [[s.splat_w(0.0); N]; R];
        for r in 0..R {
            for n in 0..N {
                sums[r][n] = s.load_w(&self.sums[r][n]);
            }
        }
        for block in start / SIDE..end.min(SEGMENT).div_ceil(SIDE) {
            let mut values = [self.elements.as_chunks::<SIDE>().0; N];
            for n in 0..N {
                values[n] = self.elements[self.blocks[block] + self.strips[n]..][..SIDE * SIDE].as_chunks().0;
            }
            let first = start.max(block * SIDE) - block * SIDE;
            let last = (end - block * SIDE).min(SIDE);
            for i in first..last {
                if let Some(ahead) = self.ahead
                    && begins_line::<E>(i)
                {
                    for n in 0..N {
                        s.prefetch(self.elements.as_ptr().wrapping_add(ahead[block] + self.strips[n] + i * SIDE));
                    }
                }
                let mut value = [s.splat_w(0.0); N];
                for n in 0..N {
                    value[n] = E::load_w(s, &values[n][i]);
                }
                for r in 0..R {
                    let weight = s.splat_w(self.weights[r].as_chunks::<SIDE>().0[block][i]);
                    for n in 0..N {
                        sums[r][n] = s.fma_w(weight, value[n], sums[r][n]);
                    }
                }
            }
        }
        for r in 0..R {
            for n in 0..N {
                s.store_w(sums[r][n], &mut self.sums[r][n]);
            }
        }
    }
}

/// Bytes of a line of memory.
const LINE_BYTES: usize = 64;

/// Whether the `i`-th sixteen elements from the start of a line begin one.
#[inline(always)]
fn begins_line<E>(i: usize) -> bool {
    (i * SIDE * size_of::<E>()).is_multiple_of(LINE_BYTES)
}

/// Softmax so far: the largest score and the sum of weights relative to it. The weighted values are elsewhere.
#[derive(Clone, Copy, Debug)]
pub(super) struct State {
    pub(super) most: f32,
    pub(super) sum: f32,
}

impl State {
    /// Nothing yet.
    pub(super) const NONE: Self = Self { most: f32::NEG_INFINITY, sum: 0.0 };
}

/// Turns scores into weights; answers the largest score and the sum of the weights.
pub(super) struct Soften<'a> {
    pub(super) scores: &'a mut [f32; SEGMENT],
    /// The positions that count; not empty.
    pub(super) seen: Range<usize>,
}

impl Op for Soften<'_> {
    type Output = State;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> State {
        soften(s, self.scores, self.seen)
    }
}

#[inline(always)]
fn soften<S: Simd>(s: S, scores: &mut [f32; SEGMENT], seen: Range<usize>) -> State {
    let blocks = seen.start / SIDE..seen.end.div_ceil(SIDE);
    for score in &mut scores[blocks.start * SIDE..seen.start] {
        *score = f32::NEG_INFINITY;
    }
    for score in &mut scores[seen.end..blocks.end * SIDE] {
        *score = f32::NEG_INFINITY;
    }
    let scores = &mut scores.as_chunks_mut::<SIDE>().0[blocks];
    let mut most = wide::splat(s, f32::NEG_INFINITY);
    for scores in &*scores {
        most = wide::max(s, most, wide::load(s, scores));
    }
    let mut lanes = [0.0; SIDE];
    wide::store(s, most, &mut lanes);
    let most = lanes.iter().fold(f32::NEG_INFINITY, |most, &lane| if most > lane { most } else { lane });
    let mut sums = wide::splat(s, 0.0);
    for scores in scores {
        let weight = exp_below(s, wide::sub(s, wide::load(s, scores), wide::splat(s, most)));
        sums = wide::add(s, sums, weight);
        wide::store(s, weight, scores);
    }
    State { most, sum: wide::sum(s, sums) }
}

/// How the weighted values of a segment join those of the segments before.
#[derive(Clone, Copy)]
pub(super) struct Merge {
    /// There is nothing before: what was there is not read as a number.
    pub(super) fresh: bool,
    old_scale: f32,
    new_scale: f32,
}

impl Merge {
    /// The first segment.
    pub(super) const FRESH: Self = Self { fresh: true, old_scale: 0.0, new_scale: 1.0 };
}

/// Takes the next segment into a state.
pub(super) struct Next<'a> {
    pub(super) state: &'a mut State,
    pub(super) new: State,
}

impl Op for Next<'_> {
    type Output = Merge;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> Merge {
        let Self { state, new } = self;
        let most = if new.most > state.most { new.most } else { state.most };
        let mut lanes = [0.0; SIDE];
        (lanes[0], lanes[1]) = (state.most - most, new.most - most);
        let scales = exp_below(s, wide::load(s, &lanes));
        wide::store(s, scales, &mut lanes);
        *state = State { most, sum: state.sum * lanes[0] + new.sum * lanes[1] };
        Merge { fresh: false, old_scale: lanes[0], new_scale: lanes[1] }
    }
}

/// Joins the weighted values of a segment with those of the segments before.
pub(super) struct Join<'a> {
    pub(super) merge: Merge,
    pub(super) old: &'a mut [f32],
    pub(super) new: &'a [f32],
}

impl Op for Join<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (old_scale, new_scale) = (wide::splat(s, self.merge.old_scale), wide::splat(s, self.merge.new_scale));
        for (old, new) in self.old.chunks_mut(SIDE).zip(self.new.chunks(SIDE)) {
            let scaled = wide::mul(s, wide::load_part(s, old), old_scale);
            wide::store_part(s, wide::fma(s, wide::load_part(s, new), new_scale, scaled), old);
        }
    }
}

/// Adding it to a number of less than 2^22 in size rounds that number to a whole one.
const ROUND: f32 = 12_582_912.0;
/// ln 2 in ten bits, and the rest of it.
const LN2_HIGH: f32 = 0.693_359_4;
const LN2_LOW: f32 = -2.121_944_4e-4;
/// Below it, and below -87.7 at the latest, the result is 0: the power of two is -127.
const LEAST: f32 = -88.0;

/// `e^x` for `x` of at most 0, as `math::exp`, but what would be a subnormal number is 0.
#[inline(always)]
fn exp_below<S: Simd>(s: S, x: Wide16<S>) -> Wide16<S> {
    let x = wide::max(s, wide::splat(s, LEAST), x);
    let shifted = wide::fma(s, x, wide::splat(s, core::f32::consts::LOG2_E), wide::splat(s, ROUND));
    let n = wide::sub(s, shifted, wide::splat(s, ROUND));
    let r = wide::fma(s, n, wide::splat(s, -LN2_HIGH), x);
    let r = wide::fma(s, n, wide::splat(s, -LN2_LOW), r);
    let mut sum = wide::splat(s, 1.0 / 5040.0);
    for coefficient in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        sum = wide::fma(s, sum, r, wide::splat(s, coefficient));
    }
    wide::mul(s, sum, wide::pow2(s, n))
}
