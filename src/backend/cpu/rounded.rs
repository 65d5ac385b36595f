//! Products of quantised weights with rounded activations: the fast path.
//!
//! A row of `x` is rounded once to [`Rounded`] blocks of 32 columns, each half with a scale of its own, and used for all products that it
//! goes into. A block of weights and a block of `x` meet in integers:
//! ```text
//! weight = code_w * scale_w + offset_w        (16 or 32 columns share the two)
//! x      = code_x * scale_x                   scale_x = max |x| / 127 of 16 columns, code_x = x / scale_x to the nearest, ties to even
//!
//! for each group of columns that share scale_w, ascending:
//!   dot = sum code_w * code_x                 of each half, exact
//!   sum = fma(offset_w, moment_x, sum)        moment_x = scale_x * sum code_x, of both halves added up
//!   sum = fma(dot * scale_x, scale_w, sum)    of two halves: fma(first dot, its scale_x, second dot * its scale_x)
//! ```
//! Scales of 16 columns are there because of accuracy: with 32 the errors of single tokens are 1.4 times as large, for a sixth less work.
//!
//! # Numerics
//! Integers are exact in any order, and the rest is this one chain for every form and every number of rows: so an output depends on
//! its row of `x` and its row of weights alone, and all instruction sets that fuse give the same bits.
//! A half that holds an infinity or no number has no number for a scale, and so have the outputs of its row.
//!
//! # Cost
//! Per 32 columns of 16 outputs and a row of `x`: 8 integer products of 64 with VNNI (AVX2: 16 of 32, and as many 16-bit additions), and 6
//! operations on the sums.

use core::marker::PhantomData;
use core::ops::Range;

use super::linear::Outputs;
use super::simd::{IntegerOp, Integers, LANES, Op, Simd};
use super::tile::{
    BLOCK, BlockScales, CHUNK_BLOCKS, ChunkScales, Codes, Geometry, Lines, Quant, ReadScales, Scales, Weights, codes,
    with_quant,
};

/// The largest code of `x`.
const LARGEST: f32 = 127.0;
/// Columns that share a scale.
const HALF: usize = 16;
/// Columns none of whose numbers is larger count as zeros: their scale would have no inverse.
const SMALLEST: f32 = 1e-30;
/// Adding this to a number of size below 2^22 rounds it to an integer, ties to even, which then stands in the lowest bits.
const TO_INTEGER: f32 = 12_582_912.0;
/// Row groups that are read together for one row of `x`: as many streams of memory.
pub(super) const STREAMS: usize = 4;
/// Rows of `x` that all row groups are gone through with before the next rows are: they stay in L2.
const ROW_BLOCK: usize = 128;

/// 32 columns of a row of `x`, rounded.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, bytemuck::Pod, bytemuck::Zeroable)]
pub(super) struct Rounded {
    /// Codes, four columns together, -127 ..= 127; of each half.
    codes: [[[i8; 4]; 4]; 2],
    /// What a code of each half counts.
    scales: [f32; 2],
    /// The scale times the sum of the codes, of each half.
    moments: [f32; 2],
    /// Both added up.
    moment: f32,
    /// The sums of the codes.
    sums: [i16; 2],
}

impl Rounded {
    const ZERO: Self = Self { codes: [[[0; 4]; 4]; 2], scales: [0.0; 2], moments: [0.0; 2], moment: 0.0, sums: [0; 2] };
}

/// Rounds whole blocks.
pub(super) struct Round<'a> {
    /// A multiple of 32 numbers.
    pub(super) x: &'a [f32],
    /// As many blocks.
    pub(super) to: &'a mut [Rounded],
}

impl Op for Round<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for (x, to) in self.x.as_chunks::<BLOCK>().0.iter().zip(self.to) {
            *to = round(s, x);
        }
    }
}

#[inline(always)]
fn round<S: Simd>(s: S, x: &[f32; BLOCK]) -> Rounded {
    let mut out = Rounded::ZERO;
    let (halves, _) = x.as_chunks::<HALF>();
    for (half, x) in halves.iter().enumerate() {
        let (codes, scale) = round_half(s, x);
        let sum: i32 = codes.iter().map(|&code| i32::from(code)).sum();
        out.codes[half] = bytemuck::cast(codes);
        out.scales[half] = scale;
        out.moments[half] = scale * sum as f32;
        out.sums[half] = sum as i16;
    }
    out.moment = out.moments[0] + out.moments[1];
    out
}

/// Codes and scale of 16 columns.
#[inline(always)]
fn round_half<S: Simd>(s: S, x: &[f32; HALF]) -> ([i8; HALF], f32) {
    let mut largest = s.splat(0.0);
    // Nothing, or no number where there is an infinity or no number.
    let mut flaw = s.splat(0.0);
    for x in x.as_chunks::<LANES>().0 {
        let x = s.load(x);
        largest = s.max(s.max(x, s.sub(s.splat(0.0), x)), largest);
        flaw = s.fma(x, s.splat(0.0), flaw);
    }
    let mut lanes = [0.0; LANES];
    s.store(largest, &mut lanes);
    let largest = lanes.into_iter().fold(0.0, f32::max);
    s.store(flaw, &mut lanes);
    let flaw = lanes.into_iter().sum::<f32>();
    let (scale, inverse) = if largest > SMALLEST { (largest / LARGEST, LARGEST / largest) } else { (0.0, 0.0) };
    let mut shifted = [0.0; HALF];
    for (x, to) in x.as_chunks::<LANES>().0.iter().zip(shifted.as_chunks_mut::<LANES>().0) {
        let scaled = s.mul(s.load(x), s.splat(inverse));
        s.store(s.add(scaled, s.splat(TO_INTEGER)), to);
    }
    (shifted.map(|x| x.to_bits() as i8), scale + flaw)
}

/// Rounded rows with some row groups of quantised weights.
pub(super) struct RoundedProduct<'a> {
    /// `[rows, cols / 32]`
    pub(super) x: &'a [Rounded],
    pub(super) weights: Weights<'a>,
    /// Row groups, whose outputs nobody else works on.
    pub(super) range: Range<usize>,
    pub(super) out: Outputs<'a>,
}

impl IntegerOp for RoundedProduct<'_> {
    type Output = ();

    // The constant is a block of its own so that the compiler leaves out, and does not only skip, what an instance does not use.
    #[inline(always)]
    fn run<S: Integers>(self, s: S) {
        let rows = self.x.len() / (self.weights.cols / BLOCK);
        if const { S::IN_REGISTERS } && rows == 1 {
            if const { S::IN_REGISTERS } {
                with_quant!(self.weights.dtype, Q => {
                    s.run_integers(OneRow::<<Q as Quant>::Codes>(&self, PhantomData));
                }, else {});
            }
        } else {
            self.panels(s, rows);
        }
    }
}

/// One row, codes in registers: four row groups together, a quarter of the range apart, so that memory is read in four streams.
struct OneRow<'a, C>(&'a RoundedProduct<'a>, PhantomData<C>);

impl<C: Codes> IntegerOp for OneRow<'_, C> {
    type Output = ();

    #[inline(always)]
    fn run<S: Integers>(self, s: S) {
        let RoundedProduct { x, weights, range, out } = self.0;
        let apart = range.len().div_ceil(STREAMS);
        let mut scales = [const { ChunkScales::ZERO }; STREAMS];
        for at in range.start..range.start + apart {
            let outputs = [at, at + apart, at + 2 * apart, at + 3 * apart].map(|group| group.min(range.end - 1));
            let groups = outputs.map(|group| weights.group(group));
            let mut sums = [[s.splat_w(0.0)]; STREAMS];
            for (index, x) in x.chunks(CHUNK_BLOCKS).enumerate() {
                let chunks = groups.map(|group| weights.chunk(group, index * CHUNK_BLOCKS));
                for (chunk, to) in chunks.into_iter().zip(&mut scales) {
                    s.run(ReadScales { dtype: weights.dtype, chunk, blocks: x.len(), to });
                }
                for (b, x) in x.iter().enumerate() {
                    for g in 0..STREAMS {
                        let Some(lines) = weights.geometry.lines::<C>(chunks[g], b) else { continue };
                        let meeting = Meeting { x: [x], scales: &scales[g].0[b], group: C::GROUP, largest: C::LARGEST };
                        meeting.add(s, block_codes::<S, C>(s, lines), &mut sums[g]);
                    }
                }
            }
            for (group, [sums]) in outputs.into_iter().zip(sums) {
                // SAFETY: these outputs belong to this operation.
                unsafe { out.write(s, 0, group, sums, true) };
            }
        }
    }
}

/// The codes of a block, four columns in each.
#[inline(always)]
fn block_codes<S: Simd, C: Codes>(s: S, lines: &[u8]) -> [S::C; 8] {
    let [c0, c1] = codes::<S, C, 0>(s, lines);
    let [c2, c3] = codes::<S, C, 1>(s, lines);
    let [c4, c5] = codes::<S, C, 2>(s, lines);
    let [c6, c7] = codes::<S, C, 3>(s, lines);
    [c0, c1, c2, c3, c4, c5, c6, c7]
}

/// The codes of the blocks of a chunk, a byte each, as [`block_codes`] has them.
#[repr(align(64))]
struct Panel([[[u8; 64]; 8]; CHUNK_BLOCKS]);

/// Writes the codes of the first blocks of a chunk.
struct Unpack<'a, C> {
    chunk: &'a [u8],
    geometry: Geometry,
    to: &'a mut [[[u8; 64]; 8]],
    codes: PhantomData<C>,
}

impl<C: Codes> Op for Unpack<'_, C> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for (b, to) in self.to.iter_mut().enumerate() {
            let Some(lines) = self.geometry.lines::<C>(self.chunk, b) else { return };
            for (codes, to) in block_codes::<S, C>(s, lines).into_iter().zip(to) {
                s.store_c(codes, to);
            }
        }
    }
}

impl RoundedProduct<'_> {
    /// Any number of rows, codes unpacked into a panel.
    #[inline(always)]
    fn panels<S: Integers>(self, s: S, rows: usize) {
        let Self { x, weights, range, out } = self;
        let blocks = weights.cols / BLOCK;
        let mut scales = ChunkScales::ZERO;
        let mut panel = Panel([[[0; 64]; 8]; CHUNK_BLOCKS]);
        for row in (0..rows).step_by(ROW_BLOCK) {
            let rows = row..rows.min(row + ROW_BLOCK);
            for group in range.clone() {
                for first in (0..blocks).step_by(CHUNK_BLOCKS) {
                    let chunk = weights.chunk(weights.group(group), first);
                    let count = CHUNK_BLOCKS.min(blocks - first);
                    s.run(ReadScales { dtype: weights.dtype, chunk, blocks: count, to: &mut scales });
                    let (codes, scales) = (&mut panel.0[..count], &scales.0[..count]);
                    let geometry = weights.geometry;
                    with_quant!(weights.dtype, Q => {
                        type C = <Q as Quant>::Codes;
                        s.run(Unpack::<C> { chunk, geometry, to: &mut *codes, codes: PhantomData });
                        let tiles = Tiles { x, width: blocks, first, codes, scales, out, group, rows: rows.clone() };
                        s.run_integers(OfCodes::<{ <C as Lines>::GROUP }, { largest(<C as Codes>::LARGEST) }>(tiles));
                    }, else {});
                }
            }
        }
    }
}

/// The largest code of the kinds whose products are computed alike.
const fn largest(code: u8) -> u8 {
    match code {
        0..=31 => 31,
        32..=63 => 63,
        _ => 255,
    }
}

/// Rows of `x` with a panel.
struct Tiles<'a> {
    x: &'a [Rounded],
    /// Blocks of a row of `x`.
    width: usize,
    /// Block that the panel begins with.
    first: usize,
    codes: &'a [[[u8; 64]; 8]],
    scales: &'a [BlockScales],
    out: Outputs<'a>,
    /// The row group in the panel, whose outputs nobody else works on.
    group: usize,
    /// Rows of `x`.
    rows: Range<usize>,
}

/// Tiles with codes up to `LARGEST`, of which `GROUP` columns share scales.
struct OfCodes<'a, const GROUP: usize, const LARGEST: u8>(Tiles<'a>);

impl<const GROUP: usize, const LARGEST: u8> IntegerOp for OfCodes<'_, GROUP, LARGEST> {
    type Output = ();

    /// Rows in tiles as high as registers hold, or of even heights.
    #[inline(always)]
    fn run<S: Integers>(self, s: S) {
        let mut row = self.0.rows.start;
        while row < self.0.rows.end {
            let left = self.0.rows.end - row;
            row += match left.div_ceil(left.div_ceil(S::DOT_ROWS)) {
                5.. => self.tile::<S, 8>(s, row),
                3.. => self.tile::<S, 4>(s, row),
                2 => self.tile::<S, 2>(s, row),
                _ => self.tile::<S, 1>(s, row),
            };
        }
    }
}

impl<const GROUP: usize, const LARGEST: u8> OfCodes<'_, GROUP, LARGEST> {
    /// `M` rows from `row` on, the last one several times where there are fewer; answers `M`.
    #[inline(always)]
    fn tile<S: Integers, const M: usize>(&self, s: S, row: usize) -> usize {
        if const { M > S::DOT_ROWS } {
            // Not reached: it keeps the compiler from making tiles that registers do not hold.
            return M;
        }
        let Tiles { x, width, first, codes, scales, out, group, ref rows } = self.0;
        let rows: [usize; M] = core::array::from_fn(|m| (row + m).min(rows.end - 1));
        let x = rows.map(|row| &x[row * width + first..][..codes.len()]);
        let mut sums = [s.splat_w(0.0); M];
        if first > 0 {
            for m in 0..M {
                // SAFETY: these outputs belong to this operation.
                sums[m] = unsafe { out.read(s, rows[m], group) };
            }
        }
        for (b, (codes, scales)) in codes.iter().zip(scales).enumerate() {
            let meeting = Meeting { x: x.map(|x| &x[b]), scales, group: GROUP, largest: LARGEST };
            let [c0, c1, c2, c3, c4, c5, c6, c7] = codes;
            let codes = [
                s.load_c(c0),
                s.load_c(c1),
                s.load_c(c2),
                s.load_c(c3),
                s.load_c(c4),
                s.load_c(c5),
                s.load_c(c6),
                s.load_c(c7),
            ];
            meeting.add(s, codes, &mut sums);
        }
        let whole = first + codes.len() == width;
        for m in 0..M {
            // SAFETY: these outputs belong to this operation.
            unsafe { out.write(s, rows[m], group, sums[m], whole) };
        }
        M
    }
}

/// A block of 16 rows of weights and of `M` rows of `x`.
struct Meeting<'a, const M: usize> {
    x: [&'a Rounded; M],
    scales: &'a BlockScales,
    /// Columns that share scales.
    group: usize,
    /// The largest code.
    largest: u8,
}

impl<const M: usize> Meeting<'_, M> {
    /// Adds their products.
    #[inline(always)]
    fn add<S: Integers>(&self, s: S, codes: [S::C; 8], sums: &mut [S::W; M]) {
        let Self { x, scales, group, largest } = *self;
        let [c0, c1, c2, c3, c4, c5, c6, c7] = codes;
        let first = s.dots([c0, c1, c2, c3], largest, x.map(|x| &x.codes[0]), x.map(|x| x.sums[0].into()));
        let second = s.dots([c4, c5, c6, c7], largest, x.map(|x| &x.codes[1]), x.map(|x| x.sums[1].into()));
        let w = Scales::load(s, &scales[0]);
        if group == 32 {
            for m in 0..M {
                let [scale, scale_2] = x[m].scales.map(|scale| s.splat_w(scale));
                let sum = s.fma_w(w.offset, s.splat_w(x[m].moment), sums[m]);
                let dot = s.fma_w(s.numbers(first[m]), scale, s.mul_w(s.numbers(second[m]), scale_2));
                sums[m] = s.fma_w(dot, w.scale, sum);
            }
        } else {
            let w_2 = Scales::load(s, &scales[1]);
            for m in 0..M {
                for (half, (w, dots)) in [(w, &first), (w_2, &second)].into_iter().enumerate() {
                    let sum = s.fma_w(w.offset, s.splat_w(x[m].moments[half]), sums[m]);
                    let dot = s.mul_w(s.numbers(dots[m]), s.splat_w(x[m].scales[half]));
                    sums[m] = s.fma_w(dot, w.scale, sum);
                }
            }
        }
    }
}
