//! Matrix products: `out[m][o] = sum_k x[m][k] * weight[o][k] (+ bias[o])`, over weights in tiles.
//!
//! ```text
//! one row:    for each four row groups of weights, a quarter of the range apart:
//!               for each 8 columns: decode in registers, multiply with the row of x, add
//! more rows:  for each few row groups, for each 128 rows of x (L2), for each 128 columns: decode into a panel (L1)
//!               for each tile of rows: its sums in registers over these columns, kept in the output in between
//! ```
//! Only decoding knows the type of the weights: it is compiled for each kind of lines, the product of a panel once.
//!
//! # Numerics
//! An output is one number in single precision: `sum = fma(weight, x[k], sum)` for ascending `k`, from 0, and the bias at last. `weight` is the
//! value that the file means, rounded once. Keeping a sum in memory between two blocks of columns changes nothing. So both forms
//! give the same bits, and so do all instruction sets that fuse; the portable instance rounds each product as well.
//!
//! # Cost
//! One row: 2 operations on 8 weights to decode them, 1 to scale, 1 to add; memory is read once, in four streams. More rows: 12
//! products for 8 loads on AVX2, while a weight is decoded once for 128 rows. Where rows or row groups are fewer than a tile has, the
//! last of them is computed several times.

use core::marker::PhantomData;
use core::ops::Range;

use super::shared::Shared;
use super::simd::{Op, Simd};
use super::tile::{
    BLOCK, BlockScales, ByteScales, CHUNK_BLOCKS, ChunkScales, Decode, Lines, ROWS, ReadScales, Scales, Sink, Weights,
    decode, with_lines,
};

/// Blocks of a panel: half a chunk.
const PANEL_BLOCKS: usize = CHUNK_BLOCKS / 2;
const PANEL_COLS: usize = PANEL_BLOCKS * BLOCK;
/// Most row groups in a panel: 32 KiB.
const PANEL_GROUPS: usize = 4;
/// Elements of a panel, which lies in memory of the caller.
pub(super) const PANEL: usize = PANEL_GROUPS * PANEL_COLS * ROWS;
/// Rows of `x` that a panel is used for before the next one is decoded.
const ROW_BLOCK: usize = 128;
/// Row groups that are read together for one row of `x`: as many streams of memory.
pub(super) const STREAMS: usize = 4;

/// Where outputs go.
#[derive(Clone, Copy)]
pub(super) struct Outputs<'a> {
    pub(super) values: Shared<'a, f32>,
    /// Elements of a row of the output.
    pub(super) width: usize,
    pub(super) bias: Option<&'a [f32]>,
}

impl<'a> Outputs<'a> {
    /// The outputs of row group `group` in row `row`.
    ///
    /// # Safety
    /// - While they are used, nobody else uses them.
    #[inline(always)]
    unsafe fn part(&self, row: usize, group: usize) -> &'a mut [f32] {
        let first = group * ROWS;
        // SAFETY: by the promise of the caller; a row group has outputs of its own, cut where the row ends.
        unsafe { self.values.part(row * self.width + first, ROWS.min(self.width - first)) }
    }

    /// Writes the sums of row group `group`, with their bias where they are whole.
    ///
    /// # Safety
    /// - Nobody else uses these outputs at this time.
    #[inline(always)]
    pub(super) unsafe fn write<S: Simd>(&self, s: S, row: usize, group: usize, sums: S::W, whole: bool) {
        // SAFETY: by the promise of the caller, and the part is dropped before this function returns.
        let to = unsafe { self.part(row, group) };
        let bias = self.bias.filter(|_| whole).and_then(|bias| bias.get(group * ROWS..));
        let mut sums = sums;
        if let Some(bias) = bias {
            sums = s.add_w(sums, load_cut(s, bias));
        }
        match to.first_chunk_mut() {
            Some(to) => s.store_w(sums, to),
            None => {
                let mut lanes = [0.0; ROWS];
                s.store_w(sums, &mut lanes);
                to.iter_mut().zip(lanes).for_each(|(to, lane)| *to = lane);
            }
        }
    }

    /// What [`Outputs::write`] wrote.
    ///
    /// # Safety
    /// - Nobody else uses these outputs at this time.
    #[inline(always)]
    pub(super) unsafe fn read<S: Simd>(&self, s: S, row: usize, group: usize) -> S::W {
        // SAFETY: by the promise of the caller, and the part is dropped before this function returns.
        load_cut(s, unsafe { self.part(row, group) })
    }
}

/// Sixteen numbers, or what there is and zeros.
#[inline(always)]
fn load_cut<S: Simd>(s: S, from: &[f32]) -> S::W {
    match from.first_chunk() {
        Some(from) => s.load_w(from),
        None => {
            let mut lanes = [0.0; ROWS];
            lanes.iter_mut().zip(from).for_each(|(lane, from)| *lane = *from);
            s.load_w(&lanes)
        }
    }
}

/// Rows of `x` with some row groups.
pub(super) struct Product<'a> {
    /// `[rows, cols]`
    pub(super) x: &'a [f32],
    pub(super) weights: Weights<'a>,
    /// Row groups, whose outputs nobody else works on.
    pub(super) range: Range<usize>,
    /// [`PANEL`] elements.
    pub(super) panel: &'a mut [f32],
    pub(super) out: Outputs<'a>,
}

impl Op for Product<'_> {
    type Output = ();

    // The constant is a block of its own so that the compiler leaves out, and does not only skip, what an instance does not use.
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let rows = self.x.len() / self.weights.cols;
        if const { S::IN_REGISTERS } && rows == 1 {
            if const { S::IN_REGISTERS } {
                with_lines!(self.weights.dtype, L => s.run(OneRow::<L>(&self, PhantomData)));
            }
        } else {
            self.panels(s, rows);
        }
    }
}

/// One row, weights decoded in registers.
struct OneRow<'a, L>(&'a Product<'a>, PhantomData<L>);

impl<L: Lines> Op for OneRow<'_, L> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Product { x, weights, range, out, .. } = self.0;
        let blocks = weights.cols.div_ceil(BLOCK);
        let apart = range.len().div_ceil(STREAMS);
        let mut scales = [const { ChunkScales::ZERO }; STREAMS];
        for at in range.start..range.start + apart {
            let outputs = [at, at + apart, at + 2 * apart, at + 3 * apart].map(|group| group.min(range.end - 1));
            let groups = outputs.map(|group| weights.group(group));
            let mut sums = [s.splat_w(0.0); STREAMS];
            for first in (0..blocks).step_by(CHUNK_BLOCKS) {
                let chunks = groups.map(|group| weights.chunk(group, first));
                let blocks = CHUNK_BLOCKS.min(blocks - first);
                if L::GROUP > 0 {
                    for (chunk, to) in chunks.into_iter().zip(&mut scales) {
                        s.run(ReadScales { dtype: weights.dtype, chunk, blocks, to });
                    }
                }
                for b in 0..blocks {
                    let lines = chunks.map(|chunk| weights.geometry.lines::<L>(chunk, b));
                    let [Some(l0), Some(l1), Some(l2), Some(l3)] = lines else { continue };
                    let mut tail = [0.0; BLOCK];
                    let x = columns(x, (first + b) * BLOCK, &mut tail);
                    let scales = [&scales[0].0[b], &scales[1].0[b], &scales[2].0[b], &scales[3].0[b]];
                    let streams = Streams { lines: [l0, l1, l2, l3], x };
                    streams.add::<S, L>(s, scales, &mut sums);
                }
            }
            for (group, sums) in outputs.into_iter().zip(sums) {
                // SAFETY: these outputs belong to this operation.
                unsafe { out.write(s, 0, group, sums, true) };
            }
        }
    }
}

/// A block of each stream, and what it meets.
struct Streams<'a> {
    lines: [&'a [u8]; STREAMS],
    x: &'a [f32; BLOCK],
}

impl Streams<'_> {
    /// Adds the products of the block, the streams in turn, so that the sum of one waits while the others work.
    #[inline(always)]
    fn add<S: Simd, L: Lines>(&self, s: S, scales: [&BlockScales; STREAMS], sums: &mut [S::W; STREAMS]) {
        self.eight::<S, L, 0>(s, scales, sums);
        self.eight::<S, L, 1>(s, scales, sums);
        self.eight::<S, L, 2>(s, scales, sums);
        self.eight::<S, L, 3>(s, scales, sums);
    }

    /// Columns `8 I ..`.
    #[inline(always)]
    fn eight<S: Simd, L: Lines, const I: usize>(
        &self,
        s: S,
        scales: [&BlockScales; STREAMS],
        sums: &mut [S::W; STREAMS],
    ) {
        let half = if L::GROUP == 16 { I / 2 } else { 0 };
        for ((lines, scales), sum) in self.lines.into_iter().zip(scales).zip(sums) {
            let scales = ByteScales::new(s, Scales::load(s, &scales[half]));
            L::eight::<S, _, I>(s, lines, scales, &mut Dot(self.x, sum));
        }
    }
}

/// Multiplies columns with a row of `x` and adds.
struct Dot<'a, S: Simd>(&'a [f32; BLOCK], &'a mut S::W);

impl<S: Simd> Sink<S> for Dot<'_, S> {
    #[inline(always)]
    fn column(&mut self, s: S, k: usize, weights: S::W) {
        *self.1 = s.fma_w(weights, s.splat_w(self.0[k & (BLOCK - 1)]), *self.1);
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
        let Self { x, weights, range, panel, out } = self;
        let blocks = weights.cols.div_ceil(BLOCK);
        let together = (2 * S::TILE.1).min(PANEL_GROUPS);
        let mut scales = [const { ChunkScales::ZERO }; PANEL_GROUPS];
        for first in range.clone().step_by(together) {
            let groups = first..range.end.min(first + together);
            for row in (0..rows).step_by(ROW_BLOCK) {
                let rows = row..rows.min(row + ROW_BLOCK);
                for chunk_block in (0..blocks).step_by(CHUNK_BLOCKS) {
                    let blocks = CHUNK_BLOCKS.min(blocks - chunk_block);
                    for (group, to) in groups.clone().zip(&mut scales) {
                        let chunk = weights.chunk(weights.group(group), chunk_block);
                        s.run(ReadScales { dtype: weights.dtype, chunk, blocks, to });
                    }
                    for part in (0..blocks).step_by(PANEL_BLOCKS) {
                        let blocks = part..blocks.min(part + PANEL_BLOCKS);
                        let panels = panel.chunks_exact_mut(PANEL_COLS * ROWS);
                        for ((group, scales), to) in groups.clone().zip(&scales).zip(panels) {
                            let chunk = weights.chunk(weights.group(group), chunk_block);
                            let to = to.as_chunks_mut().0;
                            decode(s, &weights, Decode { chunk, scales, blocks: blocks.clone(), to });
                        }
                        let column = (chunk_block + part) * BLOCK;
                        let cols = (blocks.len() * BLOCK).min(weights.cols - column);
                        let (groups, rows) = (groups.clone(), rows.clone());
                        s.run(Tiles { x, width: weights.cols, column, cols, panel, out, groups, rows });
                    }
                }
            }
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
    #[expect(
        clippy::needless_range_loop,
        reason = "the same index goes through several arrays, of lengths known when it is compiled"
    )]
    #[inline(always)]
    fn tile<S: Simd, const M: usize, const N: usize>(&self, s: S, row: usize, group: usize) {
        let rows: [usize; M] = core::array::from_fn(|m| (row + m).min(self.rows.end - 1));
        let x = rows.map(|row| &self.x[row * self.width + self.column..][..self.cols]);
        // Where there are fewer row groups, what the panel has in their places is multiplied for nothing.
        let present = self.groups.end - group;
        let first = (group - self.groups.start) * PANEL_COLS;
        let weights = &self.panel.as_chunks::<ROWS>().0[first..first + N * PANEL_COLS];
        let mut sums = [[s.splat_w(0.0); N]; M];
        if self.column > 0 {
            for m in 0..M {
                for n in 0..N.min(present) {
                    // SAFETY: these outputs belong to this operation.
                    sums[m][n] = unsafe { self.out.read(s, rows[m], group + n) };
                }
            }
        }
        // Checks in this loop would keep the sums out of registers.
        for k in 0..self.cols.min(PANEL_COLS) {
            let mut w = [s.splat_w(0.0); N];
            for n in 0..N {
                // SAFETY: `n` is below `N` and `k` below `PANEL_COLS`, and there are `N * PANEL_COLS` columns.
                w[n] = s.load_w(unsafe { weights.get_unchecked(n * PANEL_COLS + k) });
            }
            for m in 0..M {
                // SAFETY: `k` is below `cols`, the length of every row.
                let value = s.splat_w(unsafe { *x[m].get_unchecked(k) });
                for n in 0..N {
                    sums[m][n] = s.fma_w(w[n], value, sums[m][n]);
                }
            }
        }
        let whole = self.column + self.cols == self.width;
        for m in 0..M {
            for n in 0..N.min(present) {
                // SAFETY: these outputs belong to this operation.
                unsafe { self.out.write(s, rows[m], group + n, sums[m][n], whole) };
            }
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
        let mut scales = ChunkScales::ZERO;
        let mut columns = [[0.0; ROWS]; CHUNK_BLOCKS * BLOCK];
        for (index, out) in out.chunks_mut(CHUNK_BLOCKS * BLOCK).enumerate() {
            let chunk = weights.chunk(weights.group(row / ROWS), index * CHUNK_BLOCKS);
            let blocks = out.len().div_ceil(BLOCK);
            s.run(ReadScales { dtype: weights.dtype, chunk, blocks, to: &mut scales });
            decode(s, &weights, Decode { chunk, scales: &scales, blocks: 0..blocks, to: &mut columns });
            for (out, column) in out.iter_mut().zip(&columns) {
                *out = column[row % ROWS] * scale;
            }
        }
    }
}
