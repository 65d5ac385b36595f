//! Matrix products: `out[m][o] = sum_k x[m][k] * weight[o][k] (+ bias[o])`, over weights in tiles.
//!
//! ```text
//! one row:    for each four row groups of weights (AVX2, NEON: two), a quarter of the range apart:
//!               for each 8 columns: decode in registers, multiply with the row of x, add
//! few rows:   for each row group, for each four rows of x: the same with each row
//! more rows:  for each 128 rows of x (L2), for each few row groups, for each 128 columns: decode into a panel (L1)
//!               for each tile of rows: its sums in registers over these columns, kept in the output in between
//! ```
//! Only decoding knows the type of the weights; the product of a panel is compiled once.
//!
//! # Numerics
//! An output is one number in single precision: `sum = fma(weight, x[k], sum)` for ascending `k`, from 0, and the bias at last. `weight` is the
//! value that the file means, rounded once. Keeping a sum in memory between two blocks of columns changes nothing. So all forms
//! give the same bits (but for the sign of a zero where every product has underflowed), and so do all instruction sets that fuse; the portable instance rounds each product as well.
//!
//! # Cost
//! One row: 2 operations on 8 weights to decode them, 1 to scale, 1 to add; memory is read once, in four streams. More rows: 12
//! products for 8 loads on AVX2, while a weight is decoded once for 128 rows. Where rows or row groups are fewer than a tile has, the
//! last of them is computed several times.

use core::marker::PhantomData;
use core::ops::Range;

use super::outputs::Outputs;
use super::simd::{Op, Simd};
use super::tile::{
    BLOCK, BlockScales, ByteScales, Decode, Kind, Lines, MOST_BLOCKS, ROWS, Sink, Weights, decode, decode_block,
    with_kind,
};

/// Blocks of a panel.
const PANEL_BLOCKS: usize = 4;
const PANEL_COLS: usize = PANEL_BLOCKS * BLOCK;
/// Most row groups in a panel: 32 KiB.
const PANEL_GROUPS: usize = 4;
/// Elements of a panel.
const PANEL: usize = PANEL_GROUPS * PANEL_COLS * ROWS;
/// Blocks whose scales there is room for beside a panel of codes.
pub(super) const SCALE_BLOCKS: usize = 32;
/// Elements of the memory that a product works in, which is the caller's: a panel, and scales where it is one of codes.
pub(super) const SCRATCH: usize = PANEL + SCALE_BLOCKS * size_of::<BlockScales>() / size_of::<f32>();
/// Rows of `x` that a panel is used for before the next one is decoded: all row groups are gone through with them, while they stay in L2.
const ROW_BLOCK: usize = 128;
/// Most rows of `x` that weights are decoded in registers for, where the sums of four rows fit there beside a block's scales, and elsewhere.
const FEW_ROWS: (usize, usize) = (8, 2);
/// Row groups that are read together for one row of `x`: as many streams of memory.
pub(super) const STREAMS: usize = 4;

/// The two parts of [`SCRATCH`] elements.
#[inline(always)]
pub(super) fn cut_scratch(scratch: &mut [f32]) -> (&mut [f32], &mut [BlockScales]) {
    let (panel, scales) = scratch[..SCRATCH].split_at_mut(PANEL);
    (panel, bytemuck::cast_slice_mut(scales))
}

/// Rows of `x` with some row groups.
pub(super) struct Product<'a> {
    /// `[rows, cols]`
    pub(super) x: &'a [f32],
    pub(super) weights: Weights<'a>,
    /// Row groups, whose outputs nobody else works on.
    pub(super) range: Range<usize>,
    /// [`SCRATCH`] elements.
    pub(super) scratch: &'a mut [f32],
    pub(super) out: Outputs<'a>,
}

impl Op for Product<'_> {
    type Output = ();

    // The constant is a block of its own so that the compiler leaves out, and does not only skip, what an instance does not use.
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let rows = self.x.len() / self.weights.cols;
        if rows == 0 {
            return;
        }
        if const { S::IN_REGISTERS } && rows <= few_rows::<S>() {
            if const { S::IN_REGISTERS } {
                match rows {
                    1 => with_kind!(self.weights.dtype, K => s.run(OneRow::<K>(self, PhantomData))),
                    _ => with_kind!(self.weights.dtype, K => s.run(FewRows::<K>(self, PhantomData))),
                }
            }
        } else {
            self.panels(s, rows);
        }
    }
}

/// One row, weights decoded in registers: several row groups together, far apart, so that memory is read in as many streams, each of
/// them from its first byte to its last.
struct OneRow<'a, K>(Product<'a>, PhantomData<K>);

impl<K: Kind> Op for OneRow<'_, K> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        if const { holds_many::<S>() } {
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
            let mut sums = [s.splat_w(0.0); N];
            let groups = outputs.map(|group| weights.group(group));
            let units = weights.group_bytes / K::UNIT_BYTES;
            for (index, x) in (0..units).zip(x.chunks(K::UNIT_BLOCKS * BLOCK)) {
                let mut units: [&[u8]; N] = [&[]; N];
                for n in 0..N {
                    units[n] = &groups[n][index * K::UNIT_BYTES..][..K::UNIT_BYTES];
                }
                for b in 0..K::UNIT_BLOCKS {
                    let mut tail = [0.0; BLOCK];
                    let x = columns(x, b * BLOCK, &mut tail);
                    sums = Streams::<K, N> { units, b, x, kind: PhantomData }.add(s, sums);
                }
            }
            for n in 0..N {
                // SAFETY: these outputs belong to this operation.
                unsafe { out.write(s, 0, outputs[n], sums[n], true) };
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

/// Block `b` of a unit of each stream, and what it meets.
struct Streams<'a, K, const N: usize> {
    units: [&'a [u8]; N],
    b: usize,
    x: &'a [f32; BLOCK],
    kind: PhantomData<K>,
}

impl<K: Kind, const N: usize> Streams<'_, K, N> {
    /// Adds the products of the block, the streams in turn, so that the sum of one waits while the others work.
    #[inline(always)]
    fn add<S: Simd>(&self, s: S, sums: [S::W; N]) -> [S::W; N] {
        let scales = self.byte_scales(s, 0);
        let sums = self.eight::<S, 0>(s, &scales, sums);
        let sums = self.eight::<S, 1>(s, &scales, sums);
        let scales = if K::Lines::GROUP == 16 { self.byte_scales(s, 1) } else { scales };
        let sums = self.eight::<S, 2>(s, &scales, sums);
        self.eight::<S, 3>(s, &scales, sums)
    }

    #[inline(always)]
    fn byte_scales<S: Simd>(&self, s: S, half: usize) -> [ByteScales<S>; N] {
        let mut all = [ByteScales::new(s, K::unit_scales(s, self.units[0], self.b, half)); N];
        for (scales, unit) in all.iter_mut().zip(self.units).skip(1) {
            *scales = ByteScales::new(s, K::unit_scales(s, unit, self.b, half));
        }
        all
    }

    /// Columns `8 I ..`.
    #[inline(always)]
    fn eight<S: Simd, const I: usize>(&self, s: S, scales: &[ByteScales<S>; N], sums: [S::W; N]) -> [S::W; N] {
        let mut out = sums;
        for n in 0..N {
            let mut dots = Dots { x: [self.x], sums: [out[n]] };
            K::Lines::eight::<S, _, I>(s, K::lines(self.units[n], self.b), scales[n], &mut dots);
            out[n] = dots.sums[0];
        }
        out
    }
}

/// A few rows, four of them at a time; weights decoded in registers for each four, one row group after another.
struct FewRows<'a, K>(Product<'a>, PhantomData<K>);

impl<K: Kind> Op for FewRows<'_, K> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let rows = self.0.x.len() / self.0.weights.cols;
        for group in self.0.range.clone() {
            let mut row = 0;
            while row < rows {
                row += if const { !holds_many::<S>() } || rows - row <= 2 {
                    self.some::<S, 2>(s, group, row, rows)
                } else {
                    self.some::<S, 4>(s, group, row, rows)
                };
            }
        }
    }
}

impl<K: Kind> FewRows<'_, K> {
    /// `M` rows from `row` on, or the last one several times; answers `M`. Eight at a time would be fewer operations, of which the compiler
    /// makes more, as it moves the columns of a block away from each other.
    #[inline(always)]
    fn some<S: Simd, const M: usize>(&self, s: S, group: usize, row: usize, rows: usize) -> usize {
        let Product { x, weights, out, .. } = &self.0;
        let mut all = [row; M];
        let mut of_row: [&[f32]; M] = [&[]; M];
        for m in 0..M {
            all[m] = (row + m).min(rows - 1);
            of_row[m] = &x[all[m] * weights.cols..][..weights.cols];
        }
        let mut sums = [s.splat_w(0.0); M];
        for (index, unit) in weights.group(group).chunks_exact(K::UNIT_BYTES).enumerate() {
            for b in 0..K::UNIT_BLOCKS {
                let column = (index * K::UNIT_BLOCKS + b) * BLOCK;
                let mut tails = [[0.0; BLOCK]; M];
                let mut blocks: [&[f32; BLOCK]; M] = [&[0.0; BLOCK]; M];
                for (m, tail) in tails.iter_mut().enumerate() {
                    blocks[m] = columns(of_row[m], column, tail);
                }
                let mut dots = Dots::<S, M> { x: blocks, sums };
                decode_block::<S, K, _>(s, unit, b, &mut dots);
                sums = dots.sums;
            }
        }
        // A copy: what `write_tile` goes through by address would be in memory all the time.
        let mut whole = [[s.splat_w(0.0)]; M];
        for m in 0..M {
            whole[m] = [sums[m]];
        }
        // SAFETY: these outputs belong to this operation.
        unsafe { out.write_tile(s, &all, group, 1, &whole, true) };
        M
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
    fn column(&mut self, s: S, k: usize, weights: S::W) {
        for m in 0..M {
            self.sums[m] = s.fma_w(weights, s.splat_w(self.x[m][k & (BLOCK - 1)]), self.sums[m]);
        }
    }
}

/// The columns of a block from `at` on; in `tail`, with zeros, where there are fewer.
#[inline(always)]
fn columns<'a>(x: &'a [f32], at: usize, tail: &'a mut [f32; BLOCK]) -> &'a [f32; BLOCK] {
    let x = x.get(at..).unwrap_or_default();
    match x.first_chunk() {
        Some(x) => x,
        None => {
            tail.iter_mut().zip(x).for_each(|(to, x)| *to = *x);
            tail
        }
    }
}

impl Product<'_> {
    /// Any number of rows, weights decoded into the panel.
    #[inline(always)]
    fn panels<S: Simd>(self, s: S, rows: usize) {
        let Self { x, weights, range, scratch, out } = self;
        let (panel, _) = cut_scratch(scratch);
        let blocks = weights.cols.div_ceil(BLOCK);
        let together = (2 * S::TILE.1).min(PANEL_GROUPS);
        for row in (0..rows).step_by(ROW_BLOCK) {
            let rows = row..rows.min(row + ROW_BLOCK);
            for first in range.clone().step_by(together) {
                let groups = first..range.end.min(first + together);
                for first_block in (0..blocks).step_by(PANEL_BLOCKS) {
                    let blocks = first_block..blocks.min(first_block + PANEL_BLOCKS);
                    for (group, to) in groups.clone().zip(panel.chunks_exact_mut(PANEL_COLS * ROWS)) {
                        let (group, blocks, to) = (weights.group(group), blocks.clone(), to.as_chunks_mut().0);
                        decode(s, weights.dtype, Decode { group, blocks, to });
                    }
                    ask_for(s, &weights, &groups, blocks.end);
                    let column = blocks.start * BLOCK;
                    let cols = (blocks.len() * BLOCK).min(weights.cols - column);
                    let (groups, rows) = (groups.clone(), rows.clone());
                    s.run(Tiles { x, width: weights.cols, column, cols, panel, out, groups, rows });
                }
            }
        }
    }
}

/// Asks for the weights of the panel behind this one, which begins with this block, while this one is multiplied; nothing behind the last
/// one of a row.
#[inline(always)]
fn ask_for<S: Simd>(s: S, weights: &Weights<'_>, groups: &Range<usize>, block: usize) {
    let (per_block, blocks) = (weights.group_bytes / weights.cols.div_ceil(BLOCK), block..block + PANEL_BLOCKS);
    for group in groups.clone() {
        let bytes = weights.group(group);
        let from = (blocks.start * per_block).min(bytes.len());
        for line in bytes[from..(blocks.end * per_block).min(bytes.len())].chunks(64) {
            s.prefetch(line.as_ptr());
        }
    }
}

/// Rows of `x` with a panel.
struct Tiles<'a> {
    x: &'a [f32],
    /// Elements of a row of `x`.
    width: usize,
    /// The columns that the panel has.
    column: usize,
    cols: usize,
    panel: &'a [f32],
    out: Outputs<'a>,
    /// The row groups in the panel, whose outputs nobody else works on.
    groups: Range<usize>,
    /// Rows of `x`.
    rows: Range<usize>,
}

impl Op for Tiles<'_> {
    type Output = ();

    /// Rows in tiles as high as registers hold, or of even heights.
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let mut row = self.rows.start;
        while row < self.rows.end {
            let left = self.rows.end - row;
            row += match left.div_ceil(left.div_ceil(S::TILE.0)) {
                9.. => self.tiles::<S, 12>(s, row),
                7.. => self.tiles::<S, 8>(s, row),
                5.. => self.tiles::<S, 6>(s, row),
                4 => self.tiles::<S, 4>(s, row),
                3 => self.tiles::<S, 3>(s, row),
                _ => self.tiles::<S, 2>(s, row),
            };
        }
    }
}

/// Whether registers hold the scales of a block of four row groups, or the sums of four rows beside those of one.
const fn holds_many<S: Simd>() -> bool {
    S::TILE.0 >= 12
}

/// Most rows of `x` that weights are decoded in registers for.
const fn few_rows<S: Simd>() -> usize {
    if holds_many::<S>() { FEW_ROWS.0 } else { FEW_ROWS.1 }
}

/// Row groups of a tile of so many rows: sums wait for each other where there are few.
const fn wide<S: Simd>(rows: usize) -> usize {
    if 2 * rows <= S::TILE.0 { 2 * S::TILE.1 } else { S::TILE.1 }
}

impl Tiles<'_> {
    /// `M` rows from `row` on with all row groups; answers `M`.
    #[inline(always)]
    fn tiles<S: Simd, const M: usize>(&self, s: S, row: usize) -> usize {
        for group in self.groups.clone().step_by(wide::<S>(M)) {
            // Known when it is compiled: what registers do not hold is left out.
            if const { M <= S::TILE.0 && wide::<S>(M) == 4 } {
                self.tile::<S, M, 4>(s, row, group);
            } else if const { M <= S::TILE.0 && wide::<S>(M) == 2 } {
                self.tile::<S, M, 2>(s, row, group);
            } else if const { M <= S::TILE.0 && wide::<S>(M) == 1 } {
                self.tile::<S, M, 1>(s, row, group);
            }
        }
        M
    }

    /// `M` rows from `row` on, or the last one several times, with up to `N` row groups from `group` on.
    #[inline(always)]
    fn tile<S: Simd, const M: usize, const N: usize>(&self, s: S, row: usize, group: usize) {
        let mut rows = [row; M];
        let mut x: [&[f32]; M] = [&[]; M];
        for m in 0..M {
            rows[m] = (row + m).min(self.rows.end - 1);
            x[m] = &self.x[rows[m] * self.width + self.column..][..self.cols];
        }
        // Where there are fewer row groups, what the panel has in their places is multiplied for nothing.
        let present = self.groups.end - group;
        let first = (group - self.groups.start) * PANEL_COLS;
        let weights = &self.panel.as_chunks::<ROWS>().0[first..first + N * PANEL_COLS];
        let mut sums = [[s.splat_w(0.0); N]; M];
        if self.column > 0 {
            // SAFETY: these outputs belong to this operation.
            unsafe { self.out.read_tile(s, &rows, group, present, &mut sums) };
        }
        let cols = self.cols.min(PANEL_COLS);
        // Two columns a round are half of the work on the loop itself, where registers are left for what is read ahead.
        let step = if const { S::TILE.1 > 1 } { 2 } else { 1 };
        let even = cols - cols % step;
        for k in (0..even).step_by(step) {
            for k in k..k + step {
                // SAFETY: `k` is below `cols`, the length of every row, and below `PANEL_COLS`.
                unsafe { add_column(s, weights, &x, k, &mut sums) };
            }
        }
        if const { S::TILE.1 > 1 } && even < cols {
            // SAFETY: as above.
            unsafe { add_column(s, weights, &x, even, &mut sums) };
        }
        let whole = self.column + self.cols == self.width;
        // SAFETY: these outputs belong to this operation.
        unsafe { self.out.write_tile(s, &rows, group, present, &sums, whole) };
    }
}

/// Adds the products of column `k` of a panel. Checks here would keep the sums out of registers.
///
/// # Safety
/// - `k` is below the length of every row of `x`, and below [`PANEL_COLS`].
/// - `weights` has `N` times [`PANEL_COLS`] columns.
#[expect(clippy::needless_range_loop, reason = "the same index goes through several arrays")]
#[inline(always)]
unsafe fn add_column<S: Simd, const M: usize, const N: usize>(
    s: S,
    weights: &[[f32; ROWS]],
    x: &[&[f32]; M],
    k: usize,
    sums: &mut [[S::W; N]; M],
) {
    let mut w = [s.splat_w(0.0); N];
    for n in 0..N {
        // SAFETY: `n` is below `N`, and the rest by the promise of the caller.
        w[n] = s.load_w(unsafe { weights.get_unchecked(n * PANEL_COLS + k) });
    }
    for m in 0..M {
        // SAFETY: by the promise of the caller.
        let value = s.splat_w(unsafe { *x[m].get_unchecked(k) });
        for n in 0..N {
            sums[m][n] = s.fma_w(w[n], value, sums[m][n]);
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
