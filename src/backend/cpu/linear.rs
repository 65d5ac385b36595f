//! Matrix products: `out[m][o] = sum_k x[m][k] * weight[o][k] (+ bias[o])`.
//!
//! ```text
//! one row:    for each 4 rows of weights, a quarter of the range apart, for each 32 columns: decode in registers, multiply, add
//! more rows:  for each panel of 12 rows of weights: decode into memory (L2)
//!               for each 4 rows of x (L1), for each 3 rows of the panel: 12 sums in registers over all columns
//! ```
//! # Numerics
//! An output has one vector of 8 sums: lane `i` adds the products of columns `i` modulo 8 in ascending order, then the lanes are
//! summed in the order of `simd`. Columns beyond the last count as zeros in both factors. Both forms do exactly this, so the bits of
//! an output depend on its row of `x` and its row of weights alone.
//!
//! # Cost
//! Weights are read once per call; in the tiled form 7 loads serve 12 products.

use core::ops::Range;

use super::quant::{Format, FormatVisitor, GROUP, padded_unit, unpack_row, with_format};
use super::shared::Shared;
use super::simd::{LANES, Op, Simd, load_part};
use crate::tensor::DType;

/// Rows of weights that are decoded together.
pub(super) const PANEL: usize = 12;
/// Rows of weights in a tile of sums.
const TILE_OUTPUTS: usize = 3;
/// Rows of `x` in a tile of sums.
const TILE_ROWS: usize = 4;
/// Rows of weights that are read together for one row of `x`.
pub(super) const STREAMS: usize = 4;

/// Rows of weights in a type.
#[derive(Clone, Copy)]
pub(super) struct Weights<'a> {
    pub(super) dtype: DType,
    /// All rows, one after another.
    pub(super) bytes: &'a [u8],
    pub(super) row_bytes: usize,
    pub(super) cols: usize,
}

impl<'a> Weights<'a> {
    /// The bytes of a row.
    #[inline(always)]
    pub(super) fn row(&self, index: usize) -> &'a [u8] {
        &self.bytes[index * self.row_bytes..][..self.row_bytes]
    }

    /// Elements that a decoded row takes: whole groups.
    pub(super) fn padded_cols(&self) -> usize {
        self.cols.next_multiple_of(GROUP)
    }
}

/// Where outputs go.
#[derive(Clone, Copy)]
pub(super) struct Outputs<'a> {
    pub(super) values: Shared<'a, f32>,
    /// Elements of a row of the output.
    pub(super) width: usize,
    pub(super) bias: Option<&'a [f32]>,
}

impl Outputs<'_> {
    /// Writes `sums` to columns from `first` on of row `row`.
    ///
    /// # Safety
    /// - No other thread writes these columns at this time.
    #[inline(always)]
    unsafe fn write(&self, row: usize, first: usize, sums: &[f32]) {
        // SAFETY: by the promise of the caller, and the part is dropped before this function returns.
        let to = unsafe { self.values.part(row * self.width + first, sums.len()) };
        match self.bias.and_then(|bias| bias.get(first..)) {
            Some(bias) => to.iter_mut().zip(sums).zip(bias).for_each(|((to, sum), bias)| *to = sum + bias),
            None => to.copy_from_slice(sums),
        }
    }
}

/// One row of `x` with some rows of weights.
pub(super) struct OneRow<'a> {
    pub(super) x: &'a [f32],
    pub(super) weights: Weights<'a>,
    /// Rows of weights, which nobody else works on.
    pub(super) range: Range<usize>,
    pub(super) out: Outputs<'a>,
}

impl Op for OneRow<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        /// Carries the arguments past the choice of the format.
        struct With<'a, S>(OneRow<'a>, S);

        impl<S: Simd> FormatVisitor for With<'_, S> {
            type Output = ();

            #[inline(always)]
            fn visit<F: Format>(self) {
                one_row::<S, F>(self.1, &self.0);
            }
        }

        with_format(self.weights.dtype, With(self, s));
    }
}

#[inline(always)]
fn one_row<S: Simd, F: Format>(s: S, op: &OneRow<'_>) {
    // Each stream reads rows that follow one another, which is what the processor fetches ahead.
    let apart = op.range.len() / STREAMS;
    for at in op.range.start..op.range.start + apart {
        let outputs = [at, at + apart, at + 2 * apart, at + 3 * apart];
        let mut rows = [op.weights.bytes; STREAMS];
        for (row, &output) in rows.iter_mut().zip(&outputs) {
            *row = op.weights.row(output);
        }
        let sums = s.sum4(dot_rows::<S, F, STREAMS>(s, rows, op.x));
        for (&output, sum) in outputs.iter().zip(sums) {
            // SAFETY: these outputs belong to this operation.
            unsafe { op.out.write(0, output, &[sum]) };
        }
    }
    for at in op.range.start + STREAMS * apart..op.range.end {
        let [sum] = dot_rows::<S, F, 1>(s, [op.weights.row(at)], op.x);
        // SAFETY: these outputs belong to this operation.
        unsafe { op.out.write(0, at, &[s.sum(sum)]) };
    }
}

/// Lane sums of `R` rows of weights with `x`.
#[inline(always)]
fn dot_rows<S: Simd, F: Format, const R: usize>(s: S, rows: [&[u8]; R], x: &[f32]) -> [S::V; R] {
    let mut sums = [s.splat(0.0); R];
    let units = x.chunks_exact(F::VALUES);
    let tail = units.remainder();
    for (unit, values) in units.enumerate() {
        for (g, values) in values.as_chunks::<GROUP>().0.iter().enumerate() {
            let x = load_group(s, values);
            for r in 0..R {
                let w = F::group(s, &rows[r][unit * F::BYTES..][..F::BYTES], g);
                for i in 0..4 {
                    sums[r] = s.fma(w[i], x[i], sums[r]);
                }
            }
        }
    }
    if !tail.is_empty() {
        let mut values = [0.0; GROUP];
        for (to, &x) in values.iter_mut().zip(tail) {
            *to = x;
        }
        let x = load_group(s, &values);
        for r in 0..R {
            let w = F::group(s, &padded_unit(rows[r], rows[r].len() % F::BYTES), 0);
            for i in 0..tail.len().div_ceil(LANES) {
                sums[r] = s.fma(w[i], x[i], sums[r]);
            }
        }
    }
    sums
}

#[inline(always)]
fn load_group<S: Simd>(s: S, values: &[f32; GROUP]) -> [S::V; 4] {
    let [a, b, c, d] = values.as_chunks().0 else { return [s.splat(0.0); 4] };
    [s.load(a), s.load(b), s.load(c), s.load(d)]
}

/// Decodes rows of weights, each into `padded_cols` elements of `to`.
pub(super) struct Decode<'a> {
    pub(super) weights: Weights<'a>,
    pub(super) range: Range<usize>,
    pub(super) to: &'a mut [f32],
}

impl Op for Decode<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        /// Carries the arguments past the choice of the format.
        struct With<'a, S>(Decode<'a>, S);

        impl<S: Simd> FormatVisitor for With<'_, S> {
            type Output = ();

            #[inline(always)]
            fn visit<F: Format>(self) {
                let Decode { weights, range, to } = self.0;
                for (index, to) in range.zip(to.chunks_exact_mut(weights.padded_cols())) {
                    unpack_row::<S, F>(self.1, weights.row(index), to);
                }
            }
        }

        with_format(self.weights.dtype, With(self, s));
    }
}

/// All rows of `x` with a panel of decoded weights.
pub(super) struct Panel<'a> {
    /// `[rows, cols]`
    pub(super) x: &'a [f32],
    pub(super) cols: usize,
    /// `[outputs.len(), stride]`; elements beyond `cols` are 0.
    pub(super) panel: &'a [f32],
    pub(super) stride: usize,
    /// The rows of weights in the panel, which nobody else works on.
    pub(super) range: Range<usize>,
    pub(super) out: Outputs<'a>,
}

impl Op for Panel<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let rows = self.x.len() / self.cols;
        let mut row = 0;
        while row < rows {
            match rows - row {
                1 => self.outputs::<S, 1>(s, row),
                2 => self.outputs::<S, 2>(s, row),
                3 => self.outputs::<S, 3>(s, row),
                _ => self.outputs::<S, TILE_ROWS>(s, row),
            }
            row += TILE_ROWS;
        }
    }
}

impl Panel<'_> {
    /// `M` rows of `x` with the whole panel.
    #[inline(always)]
    fn outputs<S: Simd, const M: usize>(&self, s: S, row: usize) {
        let mut x = [self.x; M];
        for (m, x) in x.iter_mut().enumerate() {
            *x = &self.x[(row + m) * self.cols..][..self.cols];
        }
        let mut output = 0;
        while output + TILE_OUTPUTS <= self.range.len() {
            self.tile::<S, M, TILE_OUTPUTS>(s, row, x, output);
            output += TILE_OUTPUTS;
        }
        while output < self.range.len() {
            self.tile::<S, M, 1>(s, row, x, output);
            output += 1;
        }
    }

    /// `M` rows of `x` with `N` rows of the panel from `output` on.
    #[inline(always)]
    fn tile<S: Simd, const M: usize, const N: usize>(&self, s: S, row: usize, x: [&[f32]; M], output: usize) {
        let vectors = self.cols / LANES;
        let mut w = [self.panel; N];
        for (n, w) in w.iter_mut().enumerate() {
            *w = &self.panel[(output + n) * self.stride..][..self.stride];
        }
        let mut sums = [[s.splat(0.0); N]; M];
        let mut xs = [x[0].as_chunks::<LANES>().0; M];
        for m in 0..M {
            xs[m] = &x[m].as_chunks::<LANES>().0[..vectors];
        }
        let mut ws = [w[0].as_chunks::<LANES>().0; N];
        for n in 0..N {
            ws[n] = &w[n].as_chunks::<LANES>().0[..vectors];
        }
        for i in 0..vectors {
            let mut weights = [s.splat(0.0); N];
            for n in 0..N {
                weights[n] = s.load(&ws[n][i]);
            }
            for m in 0..M {
                let value = s.load(&xs[m][i]);
                for n in 0..N {
                    sums[m][n] = s.fma(weights[n], value, sums[m][n]);
                }
            }
        }
        if vectors * LANES < self.cols {
            for m in 0..M {
                let value = load_part(s, &x[m][vectors * LANES..]);
                for n in 0..N {
                    let weight = load_part(s, &w[n][vectors * LANES..self.cols]);
                    sums[m][n] = s.fma(weight, value, sums[m][n]);
                }
            }
        }
        for (m, sums) in sums.iter().enumerate() {
            let mut totals = [0.0; N];
            for (total, &sums) in totals.iter_mut().zip(sums) {
                *total = s.sum(sums);
            }
            // SAFETY: these outputs belong to this operation.
            unsafe { self.out.write(row + m, self.range.start + output, &totals) };
        }
    }
}
