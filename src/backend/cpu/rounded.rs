//! Products of quantised weights with rounded activations: the fast path.
//!
//! A row of `x` is rounded once to [`Rounded`] blocks of 32 columns, each half with a scale of its own, and used for all products that it
//! goes into. A block of weights and a block of `x` meet in integers:
//! ```text
//! weight = code_w * scale_w + offset_w        16 or 32 columns share the two; in types around a zero, offset_w = -zero_w * scale_w
//! x      = code_x * 2^n_x * scale_x           32 columns share the scale, 16 the power
//!
//! of a block of x:
//!   large, small   the halves by their largest number, max |x|
//!   t              most of 0 ..= 4 with 2^t * max |x| of small <= max |x| of large
//!   scale_x        max |x| of large / 127 / 2^t
//!   n_x            t of large, 0 of small
//!   code_x         x / (2^n_x * scale_x) to the nearest, ties to even
//!
//! of a block of both:
//!   dot     = sum (code_w - zero_w) * code_x * 2^n_x          exact; zero_w = 0 where the offset is a number of its own
//!   moment  = sum code_x * 2^n_x                              exact
//!   product = dot * scale_w                                   around a zero
//!             fma(offset_w, moment, dot * scale_w)            where the offset is a number of its own
//!             of two groups of 16 columns, the second one's dot goes onto the first one's product: fma(dot, scale_w, product)
//!   sum     = fma(product, scale_x, sum)
//! ```
//! The halves of a block are rounded apart because of accuracy: with one scale for 32 columns the errors of single tokens are 1.4 times as
//! large. Scales a power of two apart keep the block's sum an integer, whose scale is applied once, for a scale of the smaller half that is
//! up to twice as coarse as its own numbers ask for, while the larger half's weigh more.
//!
//! # Numerics
//! Integers are exact in any order, as numbers too: a `dot`, and all that it is put together of, is below 255 * 127 * 16 * 17 < 2^24. The rest is
//! this one chain for every form and every number of rows: so an output depends on its row of `x` and its row of weights alone, and all
//! instruction sets that fuse give the same bits.
//! A block that holds an infinity or no number has no number for a scale, and so have the outputs of its row.
//!
//! # Forms
//! One row, and up to 32 where codes stay in registers, meet codes as they are unpacked; more rows meet a panel of them. All read a row group
//! from its first byte to its last.
//!
//! # Cost
//! Per 32 columns of 16 outputs and a row of `x`: 8 integer products of 64 with VNNI (AVX2: 16 of 32, and as many 16-bit additions), 2
//! multiplications (1 more for a second scale, 1 or 2 for minima), and 2 conversions, multiplications by powers of two and additions, which AVX-512
//! has an instruction of its own for: a Zen 4 does these three in other units, so that 8 operations of 10 are products, of 12 when each half had a
//! scale of its own and each block an offset.

use core::marker::PhantomData;
use core::ops::Range;

use super::linear::{STREAMS, streams};
use super::outputs::Outputs;
use super::simd::{IntegerOp, Integers, LANES, Op, Simd};
use super::tile::{BLOCK, BlockScales, Codes, Kind, Lines, Quant, ROWS, Scales, Weights, codes, with_quant};

/// The largest code of `x`.
const LARGEST: f32 = 127.0;
/// Columns that share a scale but for a power of two.
const HALF: usize = 16;
/// How often the scale of a half is halved at most: so the products of a block of bytes, and all that they are put together of, have 24 bits.
const MOST_HALVINGS: i32 = 4;
/// The codes that stand for 0 (see [`Quant::ZERO`]) in types whose 32 columns share a scale.
const ZEROS: [f32; 3] = [8.0, 16.0, 128.0];
/// The same, of types whose 16 columns do.
const HALF_ZEROS: [f32; 2] = [4.0, 32.0];
/// A block none of whose numbers is larger counts as zeros: its scale would have no inverse.
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
    /// What a code counts in the half that has 2^0.
    scale: f32,
    /// A code of each half counts `2^n` scales: `[n, 2^n]`.
    powers: [[f32; 2]; 2],
    /// What the codes of each half add up to, in scales.
    moments: [f32; 2],
    /// Both added up.
    moment: f32,
    /// That, times what each of [`ZEROS`] takes from every code of a weight.
    starts: [f32; ZEROS.len()],
    /// The same of each half for [`HALF_ZEROS`].
    half_starts: [[f32; 2]; HALF_ZEROS.len()],
}

impl Rounded {
    const ZERO: Self = Self {
        codes: [[[0; 4]; 4]; 2],
        scale: 0.0,
        powers: [[0.0, 1.0]; 2],
        moments: [0.0; 2],
        moment: 0.0,
        starts: [0.0; ZEROS.len()],
        half_starts: [[0.0; 2]; HALF_ZEROS.len()],
    };
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
            round(s, x, to);
        }
    }
}

/// Numbers are written to their places one by one: a block that is put together elsewhere is waited for when it is copied.
#[inline(always)]
fn round<S: Simd>(s: S, x: &[f32; BLOCK], to: &mut Rounded) {
    let x: &[[[f32; LANES]; 2]; 2] = bytemuck::cast_ref(x);
    let x = [[s.load(&x[0][0]), s.load(&x[0][1])], [s.load(&x[1][0]), s.load(&x[1][1])]];
    let [first, second] = [largest_of(s, x[0]), largest_of(s, x[1])];
    let (larger, largest, smallest) = if first < second { (1, second, first) } else { (0, first, second) };
    let (scale, inverse) = if largest > SMALLEST { (largest / LARGEST, LARGEST / largest) } else { (0.0, 0.0) };
    // The scale of the smaller half is halved as often as its codes allow: the difference of bits is that of exponents, and one less where
    // the largest code has the larger mantissa.
    let room = LARGEST.to_bits().cast_signed().wrapping_sub((smallest * inverse).to_bits().cast_signed());
    let halvings = (room >> 23).clamp(0, MOST_HALVINGS);
    let finer = power(halvings);
    // Nothing, or no number where there is an infinity or no number.
    let mut flaw = s.splat(0.0);
    for x in x.as_flattened() {
        flaw = s.fma(*x, s.splat(0.0), flaw);
    }
    to.scale = scale * power(-halvings) + s.sum(flaw);
    to.powers = [[0.0, 1.0]; 2];
    to.powers[larger] = [halvings as f32, finer];
    let mut inverses = [inverse * finer; 2];
    inverses[larger] = inverse;
    for half in 0..2 {
        let (mut shifted, mut sum) = ([[0.0; LANES]; 2], s.splat(0.0));
        for part in 0..2 {
            let code = s.add(s.mul(x[half][part], s.splat(inverses[half])), s.splat(TO_INTEGER));
            s.store(code, &mut shifted[part]);
            sum = s.add(sum, s.sub(code, s.splat(TO_INTEGER)));
        }
        let shifted: [f32; HALF] = bytemuck::cast(shifted);
        to.codes[half] = bytemuck::cast(shifted.map(|x| x.to_bits() as i8));
        to.moments[half] = s.sum(sum) * to.powers[half][1];
    }
    to.moment = to.moments[0] + to.moments[1];
    for (zero, to_start) in ZEROS.into_iter().zip(&mut to.starts) {
        *to_start = to.moment * -zero;
    }
    for (zero, to_starts) in HALF_ZEROS.into_iter().zip(&mut to.half_starts) {
        *to_starts = [to.moments[0] * -zero, to.moments[1] * -zero];
    }
}

/// `2^n`
#[inline(always)]
fn power(n: i32) -> f32 {
    f32::from_bits((127 + n).cast_unsigned() << 23)
}

/// The largest size of 16 columns; those that are no numbers have none.
#[inline(always)]
fn largest_of<S: Simd>(s: S, [first, second]: [S::V; 2]) -> f32 {
    let first = s.max(first, s.sub(s.splat(0.0), first));
    let second = s.max(second, s.sub(s.splat(0.0), second));
    let mut lanes = [0.0; LANES];
    s.store(s.max(first, s.max(second, s.splat(0.0))), &mut lanes);
    let [a, b, c, d, e, f, g, h] = lanes;
    larger(larger(larger(a, e), larger(b, f)), larger(larger(c, g), larger(d, h)))
}

/// The larger of two numbers: one instruction, as what is to be answered for none needs no care.
#[inline(always)]
fn larger(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
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
        let rows = self.0.x.len() / (self.0.weights.cols / BLOCK);
        for group in self.0.range.clone() {
            let mut row = 0;
            while row < rows {
                row += match rows - row {
                    1 | 2 => self.some::<S, 2, 1>(s, group, row, rows),
                    3 | 4 => self.some::<S, 4, 1>(s, group, row, rows),
                    _ => self.some::<S, 4, 2>(s, group, row, rows),
                };
            }
        }
    }
}

impl<Q: Quant> FewRows<'_, Q> {
    /// `P` parties, one or two, of `M` rows from `row` on, or the last row several times; answers how many rows.
    #[inline(always)]
    fn some<S: Integers, const M: usize, const P: usize>(&self, s: S, group: usize, row: usize, rows: usize) -> usize {
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
                        let tiles = Tiles { x, width: blocks, first, codes, scales, out, group, rows: rows.clone() };
                        s.run_integers(OfCodes::<{ <C as Lines>::GROUP }, { largest(<C as Codes>::LARGEST) }, { Q::ZERO }>(tiles));
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

/// Tiles with codes up to `LARGEST`, of which `GROUP` columns share scales, and of which `ZERO` is the number 0 (see [`Quant::ZERO`]).
struct OfCodes<'a, const GROUP: usize, const LARGEST: u8, const ZERO: i32>(Tiles<'a>);

impl<const GROUP: usize, const LARGEST: u8, const ZERO: i32> IntegerOp for OfCodes<'_, GROUP, LARGEST, ZERO> {
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

impl<const GROUP: usize, const LARGEST: u8, const ZERO: i32> OfCodes<'_, GROUP, LARGEST, ZERO> {
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
        let Tiles { x, width, first, codes, scales, out, group, ref rows } = self.0;
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
            let meeting = Meeting { scales: [first_scales, second_scales], group: GROUP, largest: LARGEST, zero: ZERO };
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
    /// The largest code.
    largest: u8,
    /// See [`Quant::ZERO`].
    zero: i32,
}

impl<S: Simd> Meeting<S> {
    /// Block `b` of a unit, whose scales are read where they lie.
    #[inline(always)]
    fn of_unit<Q: Quant>(s: S, unit: &[u8], b: usize) -> Self {
        let first = Q::scales(s, unit, b, 0);
        let second = if Q::Codes::GROUP == 16 { Q::scales(s, unit, b, 1) } else { first };
        Self { scales: [first, second], group: Q::Codes::GROUP, largest: Q::Codes::LARGEST, zero: Q::ZERO }
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
        let &Self { scales: [w, second_w], group, largest, zero } = self;
        let [c0, c1, c2, c3, c4, c5, c6, c7] = codes;
        let mut halves = [[&x[0].codes[0]; M], [&x[0].codes[1]; M]];
        for m in 0..M {
            halves[0][m] = &x[m].codes[0];
            halves[1][m] = &x[m].codes[1];
        }
        // Of pairs, each is indexed by itself: a copy of a pair would go through a general register.
        let first = s.dots([c0, c1, c2, c3], largest, halves[0]);
        if group == 16 {
            let mut products = [s.splat_w(0.0); M];
            for m in 0..M {
                products[m] = s.mul_w(self.taken::<0>(s, first[m], x[m]), w.scale);
                if zero == 0 {
                    products[m] = s.fma_w(w.offset, s.splat_w(x[m].moments[0]), products[m]);
                }
            }
            let second = s.dots([c4, c5, c6, c7], largest, halves[1]);
            for m in 0..M {
                let mut product = s.fma_w(self.taken::<1>(s, second[m], x[m]), second_w.scale, products[m]);
                if zero == 0 {
                    product = s.fma_w(second_w.offset, s.splat_w(x[m].moments[1]), product);
                }
                sums[m][0] = s.fma_w(product, s.splat_w(x[m].scale), sums[m][0]);
            }
        } else {
            let second = s.dots([c4, c5, c6, c7], largest, halves[1]);
            for m in 0..M {
                let dot = s.add_times_power(self.taken::<0>(s, first[m], x[m]), second[m], x[m].powers[1]);
                let mut product = s.mul_w(dot, w.scale);
                if zero == 0 {
                    product = s.fma_w(w.offset, s.splat_w(x[m].moment), product);
                }
                sums[m][0] = s.fma_w(product, s.splat_w(x[m].scale), sums[m][0]);
            }
        }
    }

    /// The products of half `H`, in scales of `x`, and what is to be taken from them because no code is below 0: of the half, or, where both
    /// have one scale, of the whole block.
    #[inline(always)]
    fn taken<const H: usize>(&self, s: S, dots: S::I, x: &Rounded) -> S::W
    where
        S: Integers,
    {
        // Bytes are signed without it where they are multiplied as such.
        let start = match self.zero {
            _ if self.zero == 128 && self.largest > S::LARGEST_CODE => None,
            4 => Some(x.half_starts[0][H]),
            32 => Some(x.half_starts[1][H]),
            8 => Some(x.starts[0]),
            16 => Some(x.starts[1]),
            128 => Some(x.starts[2]),
            _ => None,
        };
        match start {
            Some(start) => s.add_times_power(s.splat_w(start), dots, x.powers[H]),
            None => s.times_power(dots, x.powers[H]),
        }
    }
}
