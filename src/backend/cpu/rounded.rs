//! Products of quantised weights with rounded activations: the fast path.
//!
//! A row of `x` is rounded once to [`Rounded`] blocks of 32 columns, each half with a scale of its own, and used for all products that it
//! goes into. A block of weights and a block of `x` meet in integers:
//! ```text
//! weight = (code_w - raised) * scale_w + offset_w    (16 or 32 columns share scale and offset; where codes are raised there is no other offset)
//! x      = code_x * scale_x                   scale_x = max |x| / 127 of 16 columns, code_x = x / scale_x to the nearest, ties to even
//!
//! for each group of columns that share scale_w, ascending:
//!   dot = sum (code_w - raised) * code_x      of each half, exact
//!   sum = fma(offset_w, moment_x, sum)        where there are offsets; moment_x = scale_x * sum code_x, of both halves added up
//!   sum = fma(dot * scale_x, scale_w, sum)    of two halves: fma(first dot, its scale_x, second dot * its scale_x)
//! ```
//! Scales of 16 columns are there because of accuracy: with 32 the errors of single tokens are 1.4 times as large, for a sixth less work.
//!
//! # Numerics
//! Integers are exact in any order, and the rest is this one chain for every form and every number of rows: so an output depends on
//! its row of `x` and its row of weights alone, and all instruction sets that fuse give the same bits.
//! A block that holds an infinity or no number has no numbers for scales, and so have the outputs of its row.
//!
//! # Forms
//! One row, and up to 32 where codes stay in registers, meet codes as they are unpacked; more rows meet a panel of them. All read a row group
//! from its first byte to its last.
//!
//! # Cost
//! Per 32 columns of 16 outputs and a row of `x`: 8 integer products of 64 with VNNI (AVX2: 16 of 32, and as many 16-bit additions), and 5
//! operations on the sums, 6 with offsets. Zen 4 has integer products, multiplications and multiply-adds in the same units: 11 or 12 in turn, 8 of which are
//! products; so 73 or 67 % of their rate at most.

use core::marker::PhantomData;
use core::ops::Range;

use super::linear::{STREAMS, streams};
use super::outputs::Outputs;
use super::prefetch::Prefetch;
use super::simd::{IntegerOp, Integers, LANES, Op, SUM_UNIT, Simd};
use super::tile::{BLOCK, BlockScales, Codes, Kind, Lines, Quant, ROWS, Scales, Weights, codes, with_quant};

/// The largest code of `x`.
const LARGEST: f32 = 127.0;
/// Columns that share a scale.
const HALF: usize = 16;
/// Columns none of whose numbers is larger count as zeros: their scale would have no inverse.
const SMALLEST: f32 = 1e-30;
/// Adding this to a number of size below 2^22 rounds it to an integer, ties to even, which then stands in the lowest bits.
const TO_INTEGER: f32 = 12_582_912.0;
/// Blocks of a panel: 16 KiB of codes. The last columns of a panel cost a round trip of the sums through the output.
const PANEL_BLOCKS: usize = 32;
/// Elements of a panel of codes.
const PANEL: usize = PANEL_BLOCKS * BLOCK * ROWS / size_of::<f32>();
/// Elements of the memory that a product works in, which is the caller's: a panel of codes, and the scales of its blocks.
pub(super) const SCRATCH: usize = PANEL + PANEL_BLOCKS * size_of::<BlockScales>() / size_of::<f32>();
/// Most rows of `x` that codes are unpacked in registers for, where they stay there.
const FEW_ROWS: usize = 32;
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
    /// [`SUM_UNIT`] times the sum of the codes, of each half.
    sums: [i32; 2],
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
    // Nothing, or no number where there is an infinity or no number.
    let mut flaw = s.splat(0.0);
    for x in x.as_chunks::<LANES>().0 {
        flaw = s.fma(s.load(x), s.splat(0.0), flaw);
    }
    let flaw = s.sum(flaw);
    let (halves, _) = x.as_chunks::<HALF>();
    for (half, x) in halves.iter().enumerate() {
        let (codes, scale, sum) = round_half(s, x);
        out.codes[half] = bytemuck::cast(codes);
        out.scales[half] = scale + flaw;
        out.moments[half] = out.scales[half] * sum;
        out.sums[half] = SUM_UNIT * sum as i32;
    }
    out.moment = out.moments[0] + out.moments[1];
    out
}

/// Codes and scale of 16 columns, and the sum of the codes.
#[inline(always)]
fn round_half<S: Simd>(s: S, x: &[f32; HALF]) -> ([i8; HALF], f32, f32) {
    let mut largest = s.splat(0.0);
    for x in x.as_chunks::<LANES>().0 {
        let x = s.load(x);
        largest = s.max(s.max(x, s.sub(s.splat(0.0), x)), largest);
    }
    let largest = s.largest(largest);
    let (scale, inverse) = if largest > SMALLEST { (largest / LARGEST, LARGEST / largest) } else { (0.0, 0.0) };
    let mut shifted = [0.0; HALF];
    let mut sum = s.splat(0.0);
    for (x, to) in x.as_chunks::<LANES>().0.iter().zip(shifted.as_chunks_mut::<LANES>().0) {
        let integer = s.add(s.mul(s.load(x), s.splat(inverse)), s.splat(TO_INTEGER));
        s.store(integer, to);
        // Integers this small add up exactly in any order.
        sum = s.add(s.sub(integer, s.splat(TO_INTEGER)), sum);
    }
    (shifted.map(|x| x.to_bits() as i8), scale, s.sum(sum))
}

/// Rounded rows with some row groups of quantised weights.
pub(super) struct RoundedProduct<'a> {
    /// `[rows, cols / 32]`
    pub(super) x: &'a [Rounded],
    pub(super) weights: Weights<'a>,
    /// Row groups, whose outputs nobody else works on.
    pub(super) range: Range<usize>,
    /// [`SCRATCH`] elements.
    pub(super) scratch: &'a mut [f32],
    pub(super) out: Outputs<'a>,
}

impl IntegerOp for RoundedProduct<'_> {
    type Output = ();

    // The constant is a block of its own so that the compiler leaves out, and does not only skip, what an instance does not use.
    #[inline(always)]
    fn run<S: Integers>(self, s: S) {
        let rows = self.x.len() / (self.weights.cols / BLOCK);
        if rows == 0 {
            return;
        }
        if const { S::IN_REGISTERS } && rows == 1 {
            if const { S::IN_REGISTERS } {
                with_quant!(self.weights.dtype, Q => s.run_integers(OneRow::<Q>(self, PhantomData)), else {});
            }
        } else if const { S::DOT_PARTIES > 1 } && rows <= FEW_ROWS {
            if const { S::DOT_PARTIES > 1 } {
                with_quant!(self.weights.dtype, Q => s.run_integers(FewRows::<Q>(self, PhantomData)), else {});
            }
        } else {
            self.panels(s, rows);
        }
    }
}

/// One row, codes in registers: four row groups together, a quarter of the range apart, so that memory is read in four streams, each of
/// them from its first byte to its last.
struct OneRow<'a, Q>(RoundedProduct<'a>, PhantomData<Q>);

impl<Q: Quant> IntegerOp for OneRow<'_, Q> {
    type Output = ();

    #[inline(always)]
    fn run<S: Integers>(self, s: S) {
        let RoundedProduct { x, weights, range, out, .. } = self.0;
        let apart = range.len().div_ceil(STREAMS);
        for at in range.start..range.start + apart {
            let outputs = streams::<STREAMS>(at, apart, &range);
            let [mut sum0, mut sum1, mut sum2, mut sum3] = [s.splat_w(0.0); STREAMS];
            let units = outputs.map(|group| weights.group(group).chunks_exact(Q::BYTES));
            let [u0, u1, u2, u3] = units;
            let units = u0.zip(u1).zip(u2.zip(u3));
            for (((u0, u1), (u2, u3)), x) in units.zip(x.chunks(Q::COLS / BLOCK)) {
                for (b, x) in x.iter().enumerate() {
                    // Written out, as in `linear`.
                    sum0 = Meeting::of_unit::<Q>(s, u0, b).add_row(
                        s,
                        block_codes::<S, Q::Codes>(s, Q::lines(u0, b)),
                        x,
                        sum0,
                    );
                    sum1 = Meeting::of_unit::<Q>(s, u1, b).add_row(
                        s,
                        block_codes::<S, Q::Codes>(s, Q::lines(u1, b)),
                        x,
                        sum1,
                    );
                    sum2 = Meeting::of_unit::<Q>(s, u2, b).add_row(
                        s,
                        block_codes::<S, Q::Codes>(s, Q::lines(u2, b)),
                        x,
                        sum2,
                    );
                    sum3 = Meeting::of_unit::<Q>(s, u3, b).add_row(
                        s,
                        block_codes::<S, Q::Codes>(s, Q::lines(u3, b)),
                        x,
                        sum3,
                    );
                }
            }
            for (group, sums) in outputs.into_iter().zip([sum0, sum1, sum2, sum3]) {
                // SAFETY: these outputs belong to this operation.
                unsafe { out.write(s, 0, group, sums, true) };
            }
        }
    }
}

/// A few rows, eight of them at a time; the codes of a block stay in registers for these eight, one row group after another.
struct FewRows<'a, Q>(RoundedProduct<'a>, PhantomData<Q>);

impl<Q: Quant> IntegerOp for FewRows<'_, Q> {
    type Output = ();

    #[inline(always)]
    fn run<S: Integers>(self, s: S) {
        let RoundedProduct { x, weights, range, .. } = &self.0;
        let rows = x.len() / (weights.cols / BLOCK);
        for group in range.clone() {
            let next = weights.next(group, range);
            let mut row = 0;
            while row < rows {
                let prefetch = Prefetch::share(next, row..row + 8, rows, weights.group_bytes / Q::BYTES);
                row += match rows - row {
                    1 | 2 => self.some::<S, 2, 1>(s, group, row, rows, prefetch),
                    3 | 4 => self.some::<S, 4, 1>(s, group, row, rows, prefetch),
                    _ => self.some::<S, 4, 2>(s, group, row, rows, prefetch),
                };
            }
        }
    }
}

impl<Q: Quant> FewRows<'_, Q> {
    /// `P` parties, one or two, of `M` rows from `row` on, or the last row several times; answers how many rows.
    #[inline(always)]
    fn some<S: Integers, const M: usize, const P: usize>(
        &self,
        s: S,
        group: usize,
        row: usize,
        rows: usize,
        prefetch: Prefetch<'_>,
    ) -> usize {
        let RoundedProduct { x, weights, out, .. } = &self.0;
        let width = weights.cols / BLOCK;
        let mut all = [[row; M]; P];
        let mut of_row: [[&[Rounded]; M]; P] = [[&[]; M]; P];
        for p in 0..P {
            for m in 0..M {
                all[p][m] = (row + p * M + m).min(rows - 1);
                of_row[p][m] = &x[all[p][m] * width..][..width];
            }
        }
        let mut sums = [[[s.splat_w(0.0)]; M]; P];
        for (index, unit) in weights.group(group).chunks_exact(Q::BYTES).enumerate() {
            prefetch.step(s, index);
            for b in 0..Q::COLS / BLOCK {
                let at = index * (Q::COLS / BLOCK) + b;
                let (codes, meeting) =
                    (block_codes::<S, Q::Codes>(s, Q::lines(unit, b)), Meeting::of_unit::<Q>(s, unit, b));
                // Written out: in a loop the sums would be in memory.
                sums[0] = party(s, &meeting, codes, &of_row[0], at, sums[0]);
                if const { P > 1 } {
                    sums[P - 1] = party(s, &meeting, codes, &of_row[P - 1], at, sums[P - 1]);
                }
            }
        }
        for p in 0..P {
            // A copy: what is gone through by address would be in memory all the time.
            let mut whole = [[s.splat_w(0.0)]; M];
            for m in 0..M {
                whole[m] = [sums[p][m][0]];
            }
            // SAFETY: these outputs belong to this operation.
            unsafe { out.write_tile(s, &all[p], group, 1, &whole, true) };
        }
        P * M
    }
}

/// Adds the products of a block with block `at` of `M` rows.
#[inline(always)]
fn party<S: Integers, const M: usize>(
    s: S,
    meeting: &Meeting<S>,
    codes: [S::C; 8],
    rows: &[&[Rounded]; M],
    at: usize,
    sums: [[S::W; 1]; M],
) -> [[S::W; 1]; M] {
    let mut blocks = [&Rounded::ZERO; M];
    for m in 0..M {
        if let Some(block) = rows[m].get(at) {
            blocks[m] = block;
        }
    }
    let mut sums = sums;
    meeting.add(s, codes, blocks, &mut sums);
    sums
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

/// Writes the codes of some blocks, a byte each, as [`block_codes`] has them, and their scales.
struct Unpack<'a, Q> {
    group: &'a [u8],
    /// The first block.
    first: usize,
    codes: &'a mut [[[u8; 64]; 8]],
    scales: &'a mut [BlockScales],
    quant: PhantomData<Q>,
}

impl<Q: Quant> Op for Unpack<'_, Q> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { group, first, codes, scales, .. } = self;
        for (index, (to, halves)) in codes.iter_mut().zip(scales).enumerate() {
            let (unit, b) = Q::unit(group, first + index);
            for (half, to) in halves.iter_mut().enumerate().take(BLOCK / Q::Codes::GROUP) {
                Q::scales(s, unit, b, half).store(s, to);
            }
            for (codes, to) in block_codes::<S, Q::Codes>(s, Q::lines(unit, b)).into_iter().zip(to) {
                s.store_c(codes, to);
            }
        }
    }
}

impl RoundedProduct<'_> {
    /// Any number of rows, codes unpacked into a panel.
    #[inline(always)]
    fn panels<S: Integers>(self, s: S, rows: usize) {
        let Self { x, weights, range, scratch, out } = self;
        let (panel, scales) = scratch[..SCRATCH].split_at_mut(PANEL);
        let scales: &mut [BlockScales] = bytemuck::cast_slice_mut(scales);
        let panel: &mut [[[u8; 64]; 8]] = bytemuck::cast_slice_mut(panel);
        let blocks = weights.cols / BLOCK;
        for row in (0..rows).step_by(ROW_BLOCK) {
            let rows = row..rows.min(row + ROW_BLOCK);
            for group in range.clone() {
                for first in (0..blocks).step_by(PANEL_BLOCKS) {
                    let count = PANEL_BLOCKS.min(blocks - first);
                    let (codes, scales) = (&mut panel[..count], &mut scales[..count]);
                    // The next panel's, in this row group or the one behind it: they lie one after another.
                    let bytes_of = |some: usize| some * weights.group_bytes / blocks;
                    let at = group * weights.group_bytes + bytes_of(first + count);
                    let end = (at + bytes_of(PANEL_BLOCKS.min(blocks))).min(range.end * weights.group_bytes);
                    let next = weights.bytes.get(at..end).unwrap_or_default();
                    with_quant!(weights.dtype, Q => {
                        type C = <Q as Quant>::Codes;
                        let (codes, scales) = (&mut *codes, &mut *scales);
                        s.run(Unpack::<Q> {
                            group: weights.group(group),
                            first,
                            codes: &mut *codes,
                            scales: &mut *scales,
                            quant: PhantomData,
                        });
                        let tiles = Tiles { x, width: blocks, first, codes, scales, out, group, rows: rows.clone(), next };
                        s.run_integers(OfCodes::<{ <C as Lines>::GROUP }, { largest(<C as Codes>::LARGEST) }, { <Q as Quant>::RAISED }>(tiles));
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
    /// The bytes that are read next.
    next: &'a [u8],
}

/// Tiles with codes up to `LARGEST`, raised by `RAISED`, of which `GROUP` columns share scales.
struct OfCodes<'a, const GROUP: usize, const LARGEST: u8, const RAISED: u8>(Tiles<'a>);

impl<const GROUP: usize, const LARGEST: u8, const RAISED: u8> IntegerOp for OfCodes<'_, GROUP, LARGEST, RAISED> {
    type Output = ();

    /// Rows in tiles as high as the instance has them, what is left in lower ones.
    #[inline(always)]
    fn run<S: Integers>(self, s: S) {
        let mut row = self.0.rows.start;
        while row < self.0.rows.end {
            let left = self.0.rows.end - row;
            row += match left.min(S::DOT_ROWS) {
                1 => self.tile::<S, 1, 1>(s, row, left),
                2 => self.tile::<S, 2, 1>(s, row, left),
                _ if left < 8 => self.tile::<S, 4, 1>(s, row, left),
                _ => self.parties::<S, 4>(s, row, left),
            };
        }
    }
}

impl<const GROUP: usize, const LARGEST: u8, const RAISED: u8> OfCodes<'_, GROUP, LARGEST, RAISED> {
    #[inline(always)]
    fn parties<S: Integers, const M: usize>(&self, s: S, row: usize, left: usize) -> usize {
        // Known when it is compiled: tiles that the instance does not have are left out.
        if const { S::DOT_PARTIES > 1 } {
            self.tile::<S, M, 4>(s, row, left)
        } else {
            self.tile::<S, M, 1>(s, row, left)
        }
    }

    /// Up to `P` parties of `M` rows from `row` on, of `left` rows that are left, the last one several times where there are fewer; answers
    /// how many rows.
    ///
    /// The codes of a block stay in registers while one party after another meets them; the sums of a party are in registers while it
    /// does, and where there are several, otherwise in memory.
    #[inline(always)]
    fn tile<S: Integers, const M: usize, const P: usize>(&self, s: S, row: usize, left: usize) -> usize {
        if const { M > S::DOT_ROWS } {
            // Not reached: it keeps the compiler from making tiles that registers do not hold.
            return M;
        }
        // One or two rows behind the last whole party are left for a smaller tile.
        let parties = ((left + 1) / M).clamp(1, P);
        let Tiles { x, width, first, codes, scales, out, group, ref rows, next } = self.0;
        let done = row - rows.start;
        // At once: for each of so many blocks it would cost more than it brings.
        Prefetch::share(next, done..done + M * parties, rows.len(), 1).step(s, 0);
        let mut all = [[row; M]; P];
        let mut at: [[&[Rounded]; M]; P] = [[&[]; M]; P];
        let mut sums = [[[s.splat_w(0.0)]; M]; P];
        let (all, at, sums) = (&mut all[..parties], &mut at[..parties], &mut sums[..parties]);
        for (p, ((all, at), sums)) in all.iter_mut().zip(&mut *at).zip(&mut *sums).enumerate() {
            for m in 0..M {
                all[m] = (row + p * M + m).min(rows.end - 1);
                at[m] = &x[all[m] * width + first..][..codes.len()];
            }
            if first > 0 {
                // SAFETY: these outputs belong to this operation.
                unsafe { out.read_tile(s, all, group, 1, sums) };
            }
        }
        for (b, (codes, scales)) in codes.iter().zip(scales).enumerate() {
            let first_scales = Scales::load(s, &scales[0]);
            let second_scales = if GROUP == 16 { Scales::load(s, &scales[1]) } else { first_scales };
            let meeting = Meeting { scales: [first_scales, second_scales], group: GROUP, codes: [LARGEST, RAISED] };
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
            for (at, sums) in at.iter().zip(&mut *sums) {
                // SAFETY: `b` is below the number of blocks, which every row has.
                let mut x = [unsafe { at[0].get_unchecked(b) }; M];
                for m in 1..M {
                    // SAFETY: as above.
                    x[m] = unsafe { at[m].get_unchecked(b) };
                }
                meeting.add(s, codes, x, sums);
            }
        }
        let whole = first + codes.len() == width;
        for (all, sums) in all.iter().zip(&*sums) {
            // SAFETY: these outputs belong to this operation.
            unsafe { out.write_tile(s, all, group, 1, sums, whole) };
        }
        M * parties
    }
}

/// A block of 16 rows of weights that meets rows of `x`.
struct Meeting<S: Simd> {
    /// Of both halves, or of the whole block twice.
    scales: [Scales<S>; 2],
    /// Columns that share scales.
    group: usize,
    /// The largest code, and what codes are raised by.
    codes: [u8; 2],
}

impl<S: Simd> Meeting<S> {
    /// Block `b` of a unit, whose scales are read where they lie.
    #[inline(always)]
    fn of_unit<Q: Quant>(s: S, unit: &[u8], b: usize) -> Self {
        let first = Q::scales(s, unit, b, 0);
        let second = if Q::Codes::GROUP == 16 { Q::scales(s, unit, b, 1) } else { first };
        Self { scales: [first, second], group: Q::Codes::GROUP, codes: [Q::Codes::LARGEST, Q::RAISED] }
    }

    /// Adds the products of one row.
    #[inline(always)]
    fn add_row(&self, s: S, codes: [S::C; 8], x: &Rounded, sum: S::W) -> S::W
    where
        S: Integers,
    {
        let mut sums = [[sum]];
        self.add(s, codes, [x], &mut sums);
        sums[0][0]
    }

    /// Adds the products of `M` rows.
    #[inline(always)]
    fn add<const M: usize>(&self, s: S, codes: [S::C; 8], x: [&Rounded; M], sums: &mut [[S::W; 1]; M])
    where
        S: Integers,
    {
        let &Self { scales: [w, second_w], group, codes: kind } = self;
        let [c0, c1, c2, c3, c4, c5, c6, c7] = codes;
        // What codes are raised by was taken off in integers.
        let offset = |sum, offset, moment| if kind[1] == 0 { s.fma_w(offset, s.splat_w(moment), sum) } else { sum };
        let mut halves = [[&x[0].codes[0]; M], [&x[0].codes[1]; M]];
        let mut x_sums = [[0; M]; 2];
        for m in 0..M {
            halves[0][m] = &x[m].codes[0];
            halves[1][m] = &x[m].codes[1];
            x_sums[0][m] = x[m].sums[0];
            x_sums[1][m] = x[m].sums[1];
        }
        let first = s.dots([c0, c1, c2, c3], kind, halves[0], x_sums[0]);
        // Of pairs, each is indexed by itself: a copy of a pair would go through a general register.
        if group == 16 {
            for m in 0..M {
                let sum = offset(sums[m][0], w.offset, x[m].moments[0]);
                let dot = s.mul_w(s.numbers(first[m]), s.splat_w(x[m].scales[0]));
                sums[m][0] = s.fma_w(dot, w.scale, sum);
            }
        }
        let second = s.dots([c4, c5, c6, c7], kind, halves[1], x_sums[1]);
        if group == 16 {
            for m in 0..M {
                let sum = offset(sums[m][0], second_w.offset, x[m].moments[1]);
                let dot = s.mul_w(s.numbers(second[m]), s.splat_w(x[m].scales[1]));
                sums[m][0] = s.fma_w(dot, second_w.scale, sum);
            }
        } else {
            for m in 0..M {
                let sum = offset(sums[m][0], w.offset, x[m].moment);
                let second = s.mul_w(s.numbers(second[m]), s.splat_w(x[m].scales[1]));
                let dot = s.fma_w(s.numbers(first[m]), s.splat_w(x[m].scales[0]), second);
                sums[m][0] = s.fma_w(dot, w.scale, sum);
            }
        }
    }
}
