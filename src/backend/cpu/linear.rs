//! Exact matrix products: `out[m][o] = sum_k x[m][k] * weight[o][k] (+ bias[o])`, over weights in tiles.
//!
//! ```text
//! one row:    for each four row groups of weights (AVX2, NEON: two), a quarter of the range apart:
//!               for each 8 columns: numbers in registers, multiplied with the row of x and added
//! more rows:  for each 128 rows of x (L2), for each row group, for each four rows: the same with each row
//! ```
//!
//! # Numerics
//! An output is one number in single precision, and the bias is added at last. Weights that are single elements are added one by one, from 0:
//! ```text
//! for ascending k:                             sum = fma(weight, x[k], sum)
//! ```
//! Of codes, those that share a scale are added among themselves, and the scale enters once:
//! ```text
//! for each 16 or 32 columns, ascending:
//!   for ascending k, from 0:                   dot = fma(code, x[k], dot)
//!   moment = sum of x[k] (`inputs` has its order)
//!   sum = fma(offset, moment, sum);  sum = fma(dot, scale, sum)
//! ```
//! A code is an integer and its product with `x[k]` is not rounded before it is added, so weights are not rounded at all. Codes and `x` are
//! multiplied and divided by the same powers of two, which changes no bit. So all forms give the same bits (but for the sign of a zero where every product has underflowed), and so do all
//! instruction sets that fuse; the portable instance rounds each product as well.
//!
//! # Cost
//! Per 16 codes: 1 operation to mask them, 1 to convert them, and 1 for each of the rows that they meet, four at most. So multiply-adds are
//! bound by their own rate where masks and conversions go through other units (Zen), and take two thirds of all operations elsewhere. Decoded
//! weights in memory, for tiles of more rows, were no faster at any number of rows: between two groups their sums had to leave the registers. With one
//! row memory is read once, in several streams. Where rows or row groups are fewer than are computed together, the last of them is computed several times.

use core::marker::PhantomData;
use core::ops::Range;

use super::inputs::{Input, PREPARED};
use super::outputs::Outputs;
use super::prefetch::Prefetch;
use super::simd::{Op, Simd};
use super::tile::{BLOCK, Decode, Kind, Lines, MOST_BLOCKS, ROWS, Sink, Weights, decode, with_kind};

/// Rows of `x` that all row groups are gone through with before the next rows are: they stay in L2.
const ROW_BLOCK: usize = 128;
/// Row groups that are read together for one row of `x`: as many streams of memory.
pub(super) const STREAMS: usize = 4;

/// Rows of `x` with some row groups.
pub(super) struct Product<'a> {
    /// Rows of [`row_len`] elements: as they are where weights are single elements, else prepared (`inputs`).
    pub(super) x: &'a [f32],
    pub(super) weights: Weights<'a>,
    /// Row groups, whose outputs nobody else works on.
    pub(super) range: Range<usize>,
    pub(super) out: Outputs<'a>,
}

/// Elements of a row of `x` that meets rows of `cols` weights of a kind.
const fn row_len<K: Kind>(cols: usize) -> usize {
    if K::Lines::GROUP == 0 { cols } else { cols / BLOCK * PREPARED }
}

/// Block `block` of a row of `x` for weights of a kind.
#[inline(always)]
fn input<'a, K: Kind>(row: &'a [f32], block: usize, tail: &'a mut [f32; BLOCK]) -> Input<'a> {
    if const { K::Lines::GROUP == 0 } { Input::plain(row, block, tail) } else { Input::prepared(row, block) }
}

impl Op for Product<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        with_kind!(self.weights.dtype, K => self.of_kind::<S, K>(s));
    }
}

impl Product<'_> {
    #[inline(always)]
    fn of_kind<S: Simd, K: Kind>(self, s: S) {
        match self.x.len() / row_len::<K>(self.weights.cols) {
            0 => {}
            1 => s.run(OneRow::<K>(self, PhantomData)),
            _ => s.run(Rows::<K>(self, PhantomData)),
        }
    }
}

/// One row, weights in registers: several row groups together, far apart, so that memory is read in as many streams, each of them from its
/// first byte to its last.
struct OneRow<'a, K>(Product<'a>, PhantomData<K>);

impl<K: Kind> Op for OneRow<'_, K> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        // Known when it is compiled: what registers do not hold is left out.
        if const { S::HOLDS_MANY } {
            self.streams::<S, STREAMS>(s);
        } else {
            self.streams::<S, { STREAMS / 2 }>(s);
        }
    }
}

impl<K: Kind> OneRow<'_, K> {
    #[inline(always)]
    fn streams<S: Simd, const N: usize>(self, s: S) {
        let Product { x, weights, range, out, .. } = self.0;
        let apart = range.len().div_ceil(N);
        for at in range.start..range.start + apart {
            let outputs = streams::<N>(at, apart, &range);
            let mut sums = [[s.splat_w(0.0)]; N];
            let groups = outputs.map(|group| weights.group(group));
            for index in 0..weights.group_bytes / K::UNIT_BYTES {
                let mut units: [&[u8]; N] = [&[]; N];
                for n in 0..N {
                    units[n] = &groups[n][index * K::UNIT_BYTES..][..K::UNIT_BYTES];
                }
                for b in 0..K::UNIT_BLOCKS {
                    let mut tail = [0.0; BLOCK];
                    let inputs = [input::<K>(x, index * K::UNIT_BLOCKS + b, &mut tail)];
                    sums = Meeting::<K, N, 1> { units, b, inputs, kind: PhantomData }.add(s, sums);
                }
            }
            for n in 0..N {
                // SAFETY: these outputs belong to this operation.
                unsafe { out.write(s, 0, outputs[n], sums[n][0], true) };
            }
        }
    }
}

/// The row groups that are read together, `apart` each from the next; the last one several times where there are fewer.
#[inline(always)]
pub(super) fn streams<const N: usize>(at: usize, apart: usize, range: &Range<usize>) -> [usize; N] {
    let mut outputs = [range.end - 1; N];
    for (n, output) in outputs.iter_mut().enumerate() {
        *output = (at + n * apart).min(range.end - 1);
    }
    outputs
}

/// Several rows, four of them at a time; weights in registers for each four, one row group after another.
struct Rows<'a, K>(Product<'a>, PhantomData<K>);

impl<K: Kind> Op for Rows<'_, K> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Product { x, weights, range, .. } = &self.0;
        let rows = x.len() / row_len::<K>(weights.cols);
        for first in (0..rows).step_by(ROW_BLOCK) {
            let end = rows.min(first + ROW_BLOCK);
            for group in range.clone() {
                let next = weights.next(group, range);
                let mut row = first;
                while row < end {
                    let done = row - first;
                    let prefetch =
                        Prefetch::share(next, done..done + 4, end - first, weights.group_bytes / K::UNIT_BYTES);
                    row += match end - row {
                        1 | 2 => self.some::<S, 2>(s, group, row, end, prefetch),
                        _ => self.some::<S, 4>(s, group, row, end, prefetch),
                    };
                }
            }
        }
    }
}

impl<K: Kind> Rows<'_, K> {
    /// `M` rows from `row` on, or the one before `end` several times; answers `M`.
    #[inline(always)]
    fn some<S: Simd, const M: usize>(
        &self,
        s: S,
        group: usize,
        row: usize,
        end: usize,
        prefetch: Prefetch<'_>,
    ) -> usize {
        let Product { x, weights, out, .. } = &self.0;
        let len = row_len::<K>(weights.cols);
        let mut all = [row; M];
        let mut of_row: [&[f32]; M] = [&[]; M];
        for m in 0..M {
            all[m] = (row + m).min(end - 1);
            of_row[m] = &x[all[m] * len..][..len];
        }
        let mut sums = [[s.splat_w(0.0); M]];
        for (index, unit) in weights.group(group).chunks_exact(K::UNIT_BYTES).enumerate() {
            prefetch.step(s, index);
            for b in 0..K::UNIT_BLOCKS {
                let mut tails = [[0.0; BLOCK]; M];
                let mut inputs = [Input::ZERO; M];
                for (m, tail) in tails.iter_mut().enumerate() {
                    inputs[m] = input::<K>(of_row[m], index * K::UNIT_BLOCKS + b, tail);
                }
                sums = Meeting::<K, 1, M> { units: [unit], b, inputs, kind: PhantomData }.add(s, sums);
            }
        }
        // A copy: what `write_tile` goes through by address would be in memory all the time.
        let mut whole = [[s.splat_w(0.0)]; M];
        for m in 0..M {
            whole[m] = [sums[0][m]];
        }
        // SAFETY: these outputs belong to this operation.
        unsafe { out.write_tile(s, &all, group, 1, &whole, true) };
        M
    }
}

/// Block `b` of a unit of each of `N` row groups, and the `M` rows that it meets. One of the two is 1: else the sums would not stay in registers.
struct Meeting<'a, K, const N: usize, const M: usize> {
    units: [&'a [u8]; N],
    b: usize,
    inputs: [Input<'a>; M],
    kind: PhantomData<K>,
}

impl<K: Kind, const N: usize, const M: usize> Meeting<'_, K, N, M> {
    /// Adds the products of the block: eight columns of one row group after another, so that the sum of one waits while the others work.
    #[inline(always)]
    fn add<S: Simd>(&self, s: S, sums: [[S::W; M]; N]) -> [[S::W; M]; N] {
        if const { K::Lines::GROUP == 0 } {
            let sums = self.eight::<S, 1>(s, self.eight::<S, 0>(s, sums));
            return self.eight::<S, 3>(s, self.eight::<S, 2>(s, sums));
        }
        let zeros = [[s.splat_w(0.0); M]; N];
        let dots = self.eight::<S, 1>(s, self.eight::<S, 0>(s, zeros));
        let (dots, sums) =
            if const { K::Lines::GROUP == 16 } { (zeros, self.close(s, 0, dots, sums)) } else { (dots, sums) };
        let dots = self.eight::<S, 3>(s, self.eight::<S, 2>(s, dots));
        self.close(s, BLOCK / K::Lines::GROUP.max(1) - 1, dots, sums)
    }

    /// Columns `8 I ..`.
    #[expect(clippy::needless_range_loop, reason = "the same index goes through several arrays")]
    #[inline(always)]
    fn eight<S: Simd, const I: usize>(&self, s: S, sums: [[S::W; M]; N]) -> [[S::W; M]; N] {
        let mut out = sums;
        for n in 0..N {
            let mut dots = Dots { x: [Input::ZERO.x; M], sums: out[n] };
            for m in 0..M {
                dots.x[m] = self.inputs[m].x;
            }
            K::Lines::eight::<S, _, I>(s, K::lines(self.units[n], self.b), &mut dots);
            out[n] = dots.sums;
        }
        out
    }

    /// Scales what a group of columns has added up to.
    #[inline(always)]
    fn close<S: Simd>(&self, s: S, group: usize, dots: [[S::W; M]; N], sums: [[S::W; M]; N]) -> [[S::W; M]; N] {
        let mut out = sums;
        for n in 0..N {
            let scales = K::unit_scales(s, self.units[n], self.b, group);
            for m in 0..M {
                let moment = s.splat_w(self.inputs[m].moment(K::Lines::GROUP, group));
                out[n][m] = s.fma_w(dots[n][m], scales.scale, s.fma_w(scales.offset, moment, out[n][m]));
            }
        }
        out
    }
}

/// Multiplies columns with each of `M` rows of `x` and adds.
struct Dots<'a, S: Simd, const M: usize> {
    x: [&'a [f32; BLOCK]; M],
    /// Here and not elsewhere: so they stay in registers.
    sums: [S::W; M],
}

impl<S: Simd, const M: usize> Sink<S> for Dots<'_, S, M> {
    #[inline(always)]
    fn column(&mut self, s: S, k: usize, numbers: S::W) {
        for m in 0..M {
            self.sums[m] = s.fma_w(numbers, s.splat_w(self.x[m][k & (BLOCK - 1)]), self.sums[m]);
        }
    }
}

/// A row of weights times a number.
pub(super) struct Row<'a> {
    pub(super) weights: Weights<'a>,
    pub(super) row: usize,
    pub(super) scale: f32,
    /// `[cols]`
    pub(super) out: &'a mut [f32],
}

impl Op for Row<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { weights, row, scale, out } = self;
        let mut columns = [[0.0; ROWS]; MOST_BLOCKS * BLOCK];
        for (index, out) in out.chunks_mut(MOST_BLOCKS * BLOCK).enumerate() {
            let first = index * MOST_BLOCKS;
            let (group, blocks) = (weights.group(row / ROWS), first..first + out.len().div_ceil(BLOCK));
            decode(s, weights.dtype, Decode { group, blocks, to: &mut columns });
            for (out, column) in out.iter_mut().zip(&columns) {
                *out = column[row % ROWS] * scale;
            }
        }
    }
}
