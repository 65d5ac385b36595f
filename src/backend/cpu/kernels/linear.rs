//! Rows times weights: `out[r][o] = sum_i x[r][i] * w[o][i] (+ bias[o])`.
//!
//! ```text
//! for each block of ROWS activation rows
//!   for each tile of TILE outputs
//!     for each panel of PANEL columns
//!       unpack TILE x PANEL weights to f32            (8 KB: stays in L1)
//!       for each group of rows: acc[row][output] += x[row][panel] * w[output][panel]      (registers)
//!     out[row][output] = sum of the 8 lanes of acc[row][output]
//! ```
//!
//! # Numerics
//! Each output element has one accumulator of 8 lanes; lane `l` sums columns `l, l + 8, l + 16, ...` in ascending order, and the
//! lanes are summed in the fixed order of `sum_lanes`. Tiles, panels, groups and threads only decide when an element is worked
//! on, never in which order: its bits depend on its two rows alone.

use std::ops::Range;

use super::unpack::unpack;
use crate::backend::cpu::disjoint::Disjoint;
use crate::backend::cpu::memory::Matrix;
use crate::backend::cpu::simd::{Simd, per_isa, sum_lanes};

/// Columns unpacked at once; whole units of every type.
const PANEL: usize = 256;
/// Outputs unpacked at once.
const TILE: usize = 8;
/// Activation rows that share a tile's unpacking: their accumulators are 16 KB.
const ROWS: usize = 64;

/// One product, shared by all threads.
#[derive(Clone, Copy)]
pub(in super::super) struct Linear<'a> {
    /// Rows, `stride` apart, padded with zeros to whole vectors.
    pub(in super::super) x: &'a [f32],
    pub(in super::super) x_stride: usize,
    pub(in super::super) rows: usize,
    pub(in super::super) weight: &'a Matrix,
    pub(in super::super) bias: Option<&'a [f32]>,
    pub(in super::super) out: Disjoint<'a>,
    pub(in super::super) out_stride: usize,
}

/// Outputs are split between threads in runs of this many.
pub(in super::super) const GRANULE: usize = TILE;

type Panel = [[f32; PANEL]; TILE];
type Lanes = [[f32; 8]; TILE];

per_isa! {
    /// The outputs in `outputs`, for all rows. No other thread may write these outputs.
    fn linear = linear_part(job: &Linear<'_>, outputs: Range<usize>)
}

#[inline(always)]
fn linear_part<S: Simd>(job: &Linear<'_>, outputs: Range<usize>) {
    let mut panel: Panel = [[0.0; PANEL]; TILE];
    let mut sums: [Lanes; ROWS] = [[[0.0; 8]; TILE]; ROWS];
    let cols = job.weight.tensor.cols;
    for first_row in (0..job.rows).step_by(ROWS) {
        let rows = ROWS.min(job.rows - first_row);
        for first in outputs.clone().step_by(TILE) {
            let tile = first..outputs.end.min(first + TILE);
            sums[..rows].fill([[0.0; 8]; TILE]);
            for column in (0..cols).step_by(PANEL) {
                let len = PANEL.min(cols - column);
                unpack_tile::<S>(job.weight, tile.clone(), column, len, &mut panel);
                let x = &job.x[first_row * job.x_stride + column..];
                multiply::<S>(x, job.x_stride, len.next_multiple_of(8), &panel, &mut sums[..rows]);
            }
            store(job, first_row, tile, &sums[..rows]);
        }
    }
}

#[inline(always)]
fn unpack_tile<S: Simd>(weight: &Matrix, tile: Range<usize>, column: usize, len: usize, panel: &mut Panel) {
    let dtype = weight.dtype();
    let unit = |columns: usize| columns / dtype.unit_values() * dtype.unit_bytes();
    for (output, out) in tile.zip(panel) {
        let bytes = &weight.row(output)[unit(column)..][..unit(len)];
        unpack::<S>(dtype, bytes, &mut out[..len]);
        // The activations are padded with zeros, but what lies here may not be a number.
        out[len..len.next_multiple_of(8)].fill(0.0);
    }
}

/// Adds a panel's products to the accumulators of all rows.
#[inline(always)]
fn multiply<S: Simd>(x: &[f32], stride: usize, len: usize, panel: &Panel, sums: &mut [Lanes]) {
    let mut groups = sums.chunks_exact_mut(3);
    let mut row = 0;
    for group in &mut groups {
        let x = [0, 1, 2].map(|i| &x[(row + i) * stride..][..len]);
        micro::<S, 4, 3>(x, 0, panel, group);
        micro::<S, 4, 3>(x, 4, panel, group);
        row += 3;
    }
    for one in groups.into_remainder().chunks_exact_mut(1) {
        micro::<S, 8, 1>([&x[row * stride..][..len]], 0, panel, one);
        row += 1;
    }
}

/// `W` outputs from `first` on, times `X` rows, in registers.
#[inline(always)]
fn micro<S: Simd, const W: usize, const X: usize>(x: [&[f32]; X], first: usize, panel: &Panel, sums: &mut [Lanes]) {
    let mut acc = [[S::zero(); W]; X];
    for (acc, sums) in acc.iter_mut().zip(&*sums) {
        for w in 0..W {
            acc[w] = S::load(&sums[first + w]);
        }
    }
    let x = x.map(|x| x.as_chunks::<8>().0);
    let steps = x[0].len();
    for step in 0..steps {
        let weights: [S::V; W] = core::array::from_fn(|w| S::load(&panel[first + w].as_chunks::<8>().0[step]));
        for i in 0..X {
            let lanes = S::load(&x[i][step]);
            for w in 0..W {
                acc[i][w] = S::mul_add(lanes, weights[w], acc[i][w]);
            }
        }
    }
    for (acc, sums) in acc.iter().zip(sums) {
        for w in 0..W {
            sums[first + w] = S::lanes(acc[w]);
        }
    }
}

#[inline(always)]
fn store(job: &Linear<'_>, first_row: usize, tile: Range<usize>, sums: &[Lanes]) {
    for (row, sums) in (first_row..).zip(sums) {
        for (output, lanes) in tile.clone().zip(sums) {
            let bias = job.bias.map_or(0.0, |bias| bias[output]);
            // SAFETY: the output is of this thread's range, by the contract of `linear`.
            unsafe { job.out.write(row * job.out_stride + output, sum_lanes(*lanes) + bias) };
        }
    }
}
