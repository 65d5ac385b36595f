//! Matrix products: `out[m][o] = sum_k x[m][k] * weight[o][k] (+ bias[o])`, over weights in tiles.
//!
//! ```text
//! one row:    for each four row groups of weights, a quarter of the range apart:
//!               for each 8 columns: decode in registers, multiply with the row of x, add
//! more rows:  for each 128 rows of x (L2), for each few row groups, for each 128 columns: decode into a panel (L1)
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
    BLOCK, BlockScales, ByteScales, CHUNK_BLOCKS, Decode, Lines, NO_SCALES, ROWS, ReadScales, Scales, Sink, Weights,
    decode, with_lines,
};

/// Blocks of a panel: half a chunk.
const PANEL_BLOCKS: usize = CHUNK_BLOCKS / 2;
const PANEL_COLS: usize = PANEL_BLOCKS * BLOCK;
/// Most row groups in a panel: 32 KiB.
const PANEL_GROUPS: usize = 4;
/// Elements of a panel.
const PANEL: usize = PANEL_GROUPS * PANEL_COLS * ROWS;
/// Blocks whose scales are read together: a chunk of each row group of a panel, or of each stream.
pub(super) const SCALE_BLOCKS: usize = PANEL_GROUPS * CHUNK_BLOCKS;
/// Elements of the memory that a product works in, which is the caller's: a panel, and scales.
pub(super) const SCRATCH: usize = PANEL + SCALE_BLOCKS * size_of::<BlockScales>() / size_of::<f32>();
/// Rows of `x` that a panel is used for before the next one is decoded: all row groups are gone through with them, while they stay in L2.
const ROW_BLOCK: usize = 128;
/// Row groups that are read together for one row of `x`: as many streams of memory.
pub(super) const STREAMS: usize = 4;

/// The two parts of [`SCRATCH`] elements.
#[inline(always)]
pub(super) fn cut_scratch(scratch: &mut [f32]) -> (&mut [f32], &mut [BlockScales]) {
    let (panel, scales) = scratch[..SCRATCH].split_at_mut(PANEL);
    (panel, bytemuck::cast_slice_mut(scales))
}

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

    /// Whether all outputs of `groups` row groups from `group` on are there, and have nothing added.
    #[inline(always)]
    fn plain(&self, group: usize, groups: usize, whole: bool) -> bool {
        (group + groups) * ROWS <= self.width && !(whole && self.bias.is_some())
    }

    /// Writes the sums of a tile: of each of its rows, those of up to `N` row groups from `group` on.
    ///
    /// # Safety
    /// - Nobody else uses the outputs of the `present` row groups in these rows at this time.
    #[inline(always)]
    pub(super) unsafe fn write_tile<S: Simd, const M: usize, const N: usize>(
        &self,
        s: S,
        rows: &[usize; M],
        group: usize,
        present: usize,
        sums: &[[S::W; N]; M],
        whole: bool,
    ) {
        if present >= N && self.plain(group, N, whole) {
            for m in 0..M {
                // SAFETY: by the promise of the caller, and the part is dropped at the end of this round.
                let to = unsafe { self.values.part(rows[m] * self.width + group * ROWS, N * ROWS) };
                for (to, &sums) in to.as_chunks_mut().0.iter_mut().zip(&sums[m]) {
                    s.store_w(sums, to);
                }
            }
            return;
        }
        // Laid down first: what is indexed by numbers that the compiler does not know is not kept in registers, in the loops before either.
        let mut lanes = [[[0.0; ROWS]; N]; M];
        for m in 0..M {
            for n in 0..N {
                s.store_w(sums[m][n], &mut lanes[m][n]);
            }
        }
        for (&row, lanes) in rows.iter().zip(&lanes) {
            for (n, lanes) in lanes.iter().enumerate().take(present) {
                // SAFETY: by the promise of the caller.
                unsafe { self.write(s, row, group + n, s.load_w(lanes), whole) };
            }
        }
    }

    /// What [`Outputs::write_tile`] wrote before the last columns.
    ///
    /// # Safety
    /// - As for [`Outputs::write_tile`].
    #[inline(always)]
    pub(super) unsafe fn read_tile<S: Simd, const M: usize, const N: usize>(
        &self,
        s: S,
        rows: &[usize; M],
        group: usize,
        present: usize,
        sums: &mut [[S::W; N]; M],
    ) {
        if present >= N && self.plain(group, N, false) {
            for m in 0..M {
                // SAFETY: by the promise of the caller, and the part is dropped at the end of this round.
                let from = unsafe { self.values.part(rows[m] * self.width + group * ROWS, N * ROWS) };
                for (sum, from) in sums[m].iter_mut().zip(from.as_chunks().0) {
                    *sum = s.load_w(from);
                }
            }
            return;
        }
        let mut lanes = [[[0.0; ROWS]; N]; M];
        for (&row, lanes) in rows.iter().zip(&mut lanes) {
            for (n, lanes) in lanes.iter_mut().enumerate().take(present) {
                // SAFETY: by the promise of the caller, and the part is dropped at the end of this round.
                let from = unsafe { self.part(row, group + n) };
                lanes.iter_mut().zip(from).for_each(|(lane, from)| *lane = *from);
            }
        }
        for m in 0..M {
            for n in 0..N {
                sums[m][n] = s.load_w(&lanes[m][n]);
            }
        }
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
        if const { S::IN_REGISTERS } && rows == 1 {
            if const { S::IN_REGISTERS } {
                with_lines!(self.weights.dtype, L => s.run(OneRow::<L>(self, PhantomData)));
            }
        } else {
            self.panels(s, rows);
        }
    }
}

/// One row, weights decoded in registers.
struct OneRow<'a, L>(Product<'a>, PhantomData<L>);

impl<L: Lines> Op for OneRow<'_, L> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Product { x, weights, range, scratch, out } = self.0;
        let (_, scales) = cut_scratch(scratch);
        let blocks = weights.cols.div_ceil(BLOCK);
        let apart = range.len().div_ceil(STREAMS);
        for at in range.start..range.start + apart {
            let outputs = streams(at, apart, &range);
            let mut sums = [s.splat_w(0.0); STREAMS];
            for first in (0..blocks).step_by(CHUNK_BLOCKS) {
                let chunks = stream_chunks(&weights, outputs, first);
                let blocks = CHUNK_BLOCKS.min(blocks - first);
                if L::GROUP > 0 {
                    s.run(ReadScales { dtype: weights.dtype, chunks: &chunks, blocks, to: &mut *scales });
                }
                let scales = stream_scales(scales, blocks);
                for b in 0..blocks {
                    let lines = chunks.map(|chunk| weights.geometry.lines::<L>(chunk, b));
                    let [Some(l0), Some(l1), Some(l2), Some(l3)] = lines else { break };
                    let mut tail = [0.0; BLOCK];
                    let x = columns(x, (first + b) * BLOCK, &mut tail);
                    let scales = [&scales[0][b], &scales[1][b], &scales[2][b], &scales[3][b]];
                    let streams = Streams { lines: [l0, l1, l2, l3], scales, x };
                    sums = streams.add::<S, L>(s, sums);
                }
            }
            for (group, sums) in outputs.into_iter().zip(sums) {
                // SAFETY: these outputs belong to this operation.
                unsafe { out.write(s, 0, group, sums, true) };
            }
        }
    }
}

/// The row groups that are read together, a quarter of the range apart; the last one several times where there are fewer.
#[inline(always)]
pub(super) fn streams(at: usize, apart: usize, range: &Range<usize>) -> [usize; STREAMS] {
    let last = range.end - 1;
    [at.min(last), (at + apart).min(last), (at + 2 * apart).min(last), (at + 3 * apart).min(last)]
}

/// What they have from the chunk on that begins with this block.
#[inline(always)]
pub(super) fn stream_chunks<'a>(weights: &Weights<'a>, groups: [usize; STREAMS], block: usize) -> [&'a [u8]; STREAMS] {
    let [g0, g1, g2, g3] = groups;
    let chunk = |group| weights.chunk(weights.group(group), block);
    [chunk(g0), chunk(g1), chunk(g2), chunk(g3)]
}

/// Their scales, as [`ReadScales`] has read them: `blocks` for each.
#[inline(always)]
pub(super) fn stream_scales(scales: &[BlockScales], blocks: usize) -> [&[BlockScales]; STREAMS] {
    let of = |stream: usize| &scales[stream * blocks..][..blocks];
    [of(0), of(1), of(2), of(3)]
}

/// A block of each stream, and what it meets.
struct Streams<'a> {
    lines: [&'a [u8]; STREAMS],
    scales: [&'a BlockScales; STREAMS],
    x: &'a [f32; BLOCK],
}

impl Streams<'_> {
    /// Adds the products of the block, the streams in turn, so that the sum of one waits while the others work.
    #[inline(always)]
    fn add<S: Simd, L: Lines>(&self, s: S, sums: [S::W; STREAMS]) -> [S::W; STREAMS] {
        let scales = self.byte_scales(s, 0);
        let sums = self.eight::<S, L, 0>(s, &scales, sums);
        let sums = self.eight::<S, L, 1>(s, &scales, sums);
        let scales = if L::GROUP == 16 { self.byte_scales(s, 1) } else { scales };
        let sums = self.eight::<S, L, 2>(s, &scales, sums);
        self.eight::<S, L, 3>(s, &scales, sums)
    }

    #[inline(always)]
    fn byte_scales<S: Simd>(&self, s: S, half: usize) -> [ByteScales<S>; STREAMS] {
        let [s0, s1, s2, s3] = self.scales;
        [
            ByteScales::new(s, Scales::load(s, &s0[half])),
            ByteScales::new(s, Scales::load(s, &s1[half])),
            ByteScales::new(s, Scales::load(s, &s2[half])),
            ByteScales::new(s, Scales::load(s, &s3[half])),
        ]
    }

    /// Columns `8 I ..`. Written out: of a loop over the streams the compiler makes one, with the sums in memory.
    #[inline(always)]
    fn eight<S: Simd, L: Lines, const I: usize>(
        &self,
        s: S,
        scales: &[ByteScales<S>; STREAMS],
        sums: [S::W; STREAMS],
    ) -> [S::W; STREAMS] {
        let [l0, l1, l2, l3] = self.lines;
        let [mut sum0, mut sum1, mut sum2, mut sum3] = sums;
        L::eight::<S, _, I>(s, l0, scales[0], &mut Dot(self.x, &mut sum0));
        L::eight::<S, _, I>(s, l1, scales[1], &mut Dot(self.x, &mut sum1));
        L::eight::<S, _, I>(s, l2, scales[2], &mut Dot(self.x, &mut sum2));
        L::eight::<S, _, I>(s, l3, scales[3], &mut Dot(self.x, &mut sum3));
        [sum0, sum1, sum2, sum3]
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
        let Self { x, weights, range, scratch, out } = self;
        let (panel, scales) = cut_scratch(scratch);
        let blocks = weights.cols.div_ceil(BLOCK);
        let together = (2 * S::TILE.1).min(PANEL_GROUPS);
        for row in (0..rows).step_by(ROW_BLOCK) {
            let rows = row..rows.min(row + ROW_BLOCK);
            for first in range.clone().step_by(together) {
                let groups = first..range.end.min(first + together);
                for chunk_block in (0..blocks).step_by(CHUNK_BLOCKS) {
                    let blocks = CHUNK_BLOCKS.min(blocks - chunk_block);
                    let mut chunks: [&[u8]; PANEL_GROUPS] = [&[]; PANEL_GROUPS];
                    for (chunk, group) in chunks.iter_mut().zip(groups.clone()) {
                        *chunk = weights.chunk(weights.group(group), chunk_block);
                    }
                    let chunks = &chunks[..groups.len()];
                    s.run(ReadScales { dtype: weights.dtype, chunks, blocks, to: &mut *scales });
                    for part in (0..blocks).step_by(PANEL_BLOCKS) {
                        let part = part..blocks.min(part + PANEL_BLOCKS);
                        let panels = panel.chunks_exact_mut(PANEL_COLS * ROWS);
                        for ((&chunk, scales), to) in chunks.iter().zip(scales.chunks_exact(blocks)).zip(panels) {
                            let to = to.as_chunks_mut().0;
                            decode(s, &weights, Decode { chunk, scales, blocks: part.clone(), to });
                        }
                        let column = (chunk_block + part.start) * BLOCK;
                        let cols = (part.len() * BLOCK).min(weights.cols - column);
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
        let mut scales = [NO_SCALES; CHUNK_BLOCKS];
        let mut columns = [[0.0; ROWS]; CHUNK_BLOCKS * BLOCK];
        for (index, out) in out.chunks_mut(CHUNK_BLOCKS * BLOCK).enumerate() {
            let chunk = weights.chunk(weights.group(row / ROWS), index * CHUNK_BLOCKS);
            let blocks = out.len().div_ceil(BLOCK);
            s.run(ReadScales { dtype: weights.dtype, chunks: &[chunk], blocks, to: &mut scales });
            decode(s, &weights, Decode { chunk, scales: &scales, blocks: 0..blocks, to: &mut columns });
            for (out, column) in out.iter_mut().zip(&columns) {
                *out = column[row % ROWS] * scale;
            }
        }
    }
}
