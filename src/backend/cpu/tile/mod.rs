#![forbid(unsafe_code)]
//! Weights re-laid so that the lanes of a vector are outputs.
//!
//! Sixteen rows of weights are one *row group*; a matrix is its row groups one after another, the last one filled up with rows of
//! zeros. A row group is its *blocks* of 32 columns of the 16 rows, each of them *lines* of 64 bytes, with scales before them:
//! ```text
//! blocks of 32       [scales] lines | [scales] lines | ...           the unit is a block
//! superblocks        [scales] lines lines ... of 8 blocks | ...      the unit is a superblock
//! single elements    lines | lines | ...                             the last block filled up with columns of zeros
//!
//! line        16 dwords of 4 bytes; dword r belongs to row r
//! codes       the lines of their lower bits, then those of their upper bits. A line has, of B bits of every code, 8 / B groups of
//!             4 columns: byte b of dword r has in its bits B p .. B p + B the code of column 4 (8 / B l + p) + b of row r, for line
//!             l. So 4 bits: 64 bytes are 16 rows x 8 columns, low halves first
//! single      [column][row]: 16 elements of 2 or 4 bytes, then those of the next column
//! ```
//! All codes are unsigned; a type whose integers are signed has the amount that they were raised by in its offset. The scales lie as the
//! type says, row by row: f16 for a unit, and bytes for the groups of a superblock.
//!
//! Two things vary, and are compiled apart: how scales lie ([`Quant`], one of each type) and how lines do ([`Lines`], which several
//! types share). A kernel reads the scales of a *chunk*, 256 columns, into numbers ([`ReadScales`]) and then goes through its lines.
//!
//! # Invariants
//! `fma(code, scale, offset)` has the bits that [`dequantise_row`](crate::tensor::dequantise_row) gives, in every instance, but for the sign
//! of a zero: the product is exact, so the value is rounded once. (Where scales are infinite or no numbers, so is the weight.)
//!
//! # Not here
//! Products (`linear`, `rounded`), and whose memory it is (`memory`).

mod legacy;
mod lines;
mod pack;
mod superblock;
#[cfg(test)]
mod tests;
mod words;

use core::marker::PhantomData;
use core::ops::Range;

use super::simd::{Op, Simd, Wide};
use crate::tensor::DType;

pub(super) use legacy::{Iq4Nl, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0};
pub(super) use lines::{Bf16, ByteScales, Codes, F16, F32, Lines, Sink, codes};
pub(super) use pack::pack;
pub(super) use superblock::{Iq4Xs, Q2K, Q3K, Q4K, Q5K, Q6K};
pub(super) use words::{Unit, Words};

/// Rows of weights of a row group: the lanes of [`Wide::W`].
pub(super) const ROWS: usize = 16;
/// Columns of a block.
pub(super) const BLOCK: usize = 32;
/// Blocks of a chunk.
pub(super) const CHUNK_BLOCKS: usize = 8;
/// Bytes of a line.
const LINE: usize = 64;

/// A type whose values are `code * scale + offset`.
pub(super) trait Quant {
    /// How its codes lie.
    type Codes: Codes;

    /// Its name.
    const DTYPE: DType;
    /// Bytes before the lines of a unit.
    const SCALE_BYTES: usize;

    /// Columns of a unit: a block or a superblock.
    const COLS: usize = Self::DTYPE.unit_values();
    /// Bytes of a unit of a row in the file.
    const FILE_BYTES: usize = Self::DTYPE.unit_bytes();
    /// Bytes of a unit of a row group.
    const BYTES: usize = Self::SCALE_BYTES + Self::COLS / BLOCK * Self::Codes::BYTES;

    /// Scale and offset of the 16 rows for the columns `32 block + 16 half ..` of a unit; types with groups of 32 are asked for half 0
    /// only.
    fn scales<S: Wide>(s: S, unit: &[u8], block: usize, half: usize) -> Scales<S>;

    /// From the file: the codes of a unit of the 16 rows, four columns in a word, the first in its lowest byte; places where there
    /// is a table.
    fn file_codes(unit: Unit<'_>, to: &mut [Words]);

    /// From the file: the scales of a unit of row `r`, into the first [`Quant::SCALE_BYTES`] bytes of the unit of the row group.
    fn file_scales(unit: &[u8], r: usize, to: &mut [u8]);
}

/// Evaluates an expression for the [`Quant`] of an element type, or another one where its values are no codes.
macro_rules! with_quant {
    ($dtype:expr, $quant:ident => $run:expr, else $other:expr) => {
        $crate::backend::cpu::tile::with_quant!($dtype, $quant, $run, $other, {
            Q4_0 => Q4_0, Q4_1 => Q4_1, Q5_0 => Q5_0, Q5_1 => Q5_1, Q8_0 => Q8_0, IQ4_NL => Iq4Nl,
            Q2_K => Q2K, Q3_K => Q3K, Q4_K => Q4K, Q5_K => Q5K, Q6_K => Q6K, IQ4_XS => Iq4Xs
        })
    };
    ($dtype:expr, $quant:ident, $run:expr, $other:expr, { $($name:ident => $type:ident),* }) => {
        match $dtype {
            $($crate::tensor::DType::$name => {
                type $quant = $crate::backend::cpu::tile::$type;
                $run
            })*
            $crate::tensor::DType::F32 | $crate::tensor::DType::F16 | $crate::tensor::DType::BF16 => $other,
        }
    };
}

/// Evaluates an expression for the [`Lines`] of an element type: code that is compiled once for all types that share them.
macro_rules! with_lines {
    ($dtype:expr, $lines:ident => $run:expr) => {
        $crate::backend::cpu::tile::with_quant!($dtype, Type => {
            type $lines = <Type as $crate::backend::cpu::tile::Quant>::Codes;
            $run
        }, else match $dtype {
            $crate::tensor::DType::F32 => {
                type $lines = $crate::backend::cpu::tile::F32;
                $run
            }
            $crate::tensor::DType::F16 => {
                type $lines = $crate::backend::cpu::tile::F16;
                $run
            }
            _ => {
                type $lines = $crate::backend::cpu::tile::Bf16;
                $run
            }
        })
    };
}

pub(super) use {with_lines, with_quant};

/// A matrix in tiles.
#[derive(Clone, Copy)]
pub(super) struct Weights<'a> {
    pub(super) dtype: DType,
    /// That of the type.
    pub(super) geometry: Geometry,
    /// All row groups, one after another.
    pub(super) bytes: &'a [u8],
    pub(super) group_bytes: usize,
    pub(super) rows: usize,
    pub(super) cols: usize,
}

impl<'a> Weights<'a> {
    /// The bytes of a row group.
    #[inline(always)]
    pub(super) fn group(&self, index: usize) -> &'a [u8] {
        &self.bytes[index * self.group_bytes..][..self.group_bytes]
    }

    /// What a row group has from the chunk on that begins with this block.
    #[inline(always)]
    pub(super) fn chunk(&self, group: &'a [u8], block: usize) -> &'a [u8] {
        group.get(block / CHUNK_BLOCKS * self.geometry.chunk_bytes..).unwrap_or_default()
    }
}

/// Where the blocks of a row group are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Geometry {
    /// From chunk to chunk.
    pub(super) chunk_bytes: usize,
    /// Where the lines of the first block begin in a chunk.
    pub(super) first: usize,
    /// From block to block of a chunk.
    pub(super) stride: usize,
}

impl Geometry {
    /// That of an element type.
    pub(super) fn of(dtype: DType) -> Self {
        with_quant!(dtype, Q => Self {
            chunk_bytes: CHUNK_BLOCKS * BLOCK / Q::COLS * Q::BYTES,
            first: Q::SCALE_BYTES,
            stride: if Q::COLS == BLOCK { Q::BYTES } else { <Q as Quant>::Codes::BYTES },
        }, else {
            let stride = BLOCK * ROWS * dtype.unit_bytes();
            Self { chunk_bytes: CHUNK_BLOCKS * stride, first: 0, stride }
        })
    }

    /// The lines of block `index` of a chunk; nothing where the chunk ends before, which callers exclude.
    #[inline(always)]
    pub(super) fn lines<'a, L: Lines>(&self, chunk: &'a [u8], index: usize) -> Option<&'a [u8]> {
        let at = self.first + index * self.stride;
        chunk.get(at..at + L::BYTES)
    }
}

/// Bytes of a row group of `cols` columns; none when they do not fill whole units or the size overflows.
pub(super) fn group_bytes(dtype: DType, cols: usize) -> Option<usize> {
    if !cols.is_multiple_of(dtype.unit_values()) {
        return None;
    }
    with_quant!(dtype, Q => (cols / Q::COLS).checked_mul(Q::BYTES), else {
        cols.div_ceil(BLOCK).checked_mul(BLOCK * ROWS * dtype.unit_bytes())
    })
}

/// `weight = code * scale + offset`, for 16 rows.
#[derive(Clone, Copy)]
pub(super) struct Scales<S: Wide> {
    pub(super) scale: S::W,
    pub(super) offset: S::W,
}

impl<S: Wide> Scales<S> {
    /// From where [`ReadScales`] has put them.
    #[inline(always)]
    pub(super) fn load(s: S, [scale, offset]: &[[f32; ROWS]; 2]) -> Self {
        Self { scale: s.load_w(scale), offset: s.load_w(offset) }
    }
}

/// Scale and offset of each half of a block; of its first half alone where both share them.
pub(super) type BlockScales = [[[f32; ROWS]; 2]; 2];

/// Those of no weights.
pub(super) const NO_SCALES: BlockScales = [[[0.0; ROWS]; 2]; 2];

/// Reads the scales of the first blocks of some row groups, whole chunks before; nothing for single elements. For all of them at once: which
/// type it is, is looked up each time.
pub(super) struct ReadScales<'a> {
    pub(super) dtype: DType,
    /// What each row group has from a chunk on.
    pub(super) chunks: &'a [&'a [u8]],
    /// Blocks of each.
    pub(super) blocks: usize,
    /// Those of each row group, one after another.
    pub(super) to: &'a mut [BlockScales],
}

impl Op for ReadScales<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        with_quant!(self.dtype, Q => self.read::<S, Q>(s), else {});
    }
}

impl ReadScales<'_> {
    #[inline(always)]
    fn read<S: Simd, Q: Quant>(self, s: S) {
        for (chunk, to) in self.chunks.iter().zip(self.to.chunks_exact_mut(self.blocks)) {
            for (unit, blocks) in chunk.chunks_exact(Q::BYTES).zip(to.chunks_mut(Q::COLS / BLOCK)) {
                for (b, halves) in blocks.iter_mut().enumerate() {
                    for (half, to) in halves.iter_mut().enumerate().take(BLOCK / Q::Codes::GROUP) {
                        let Scales { scale, offset } = Q::scales(s, unit, b, half);
                        s.store_w(scale, &mut to[0]);
                        s.store_w(offset, &mut to[1]);
                    }
                }
            }
        }
    }
}

/// Decodes some blocks of a chunk.
pub(super) struct Decode<'a> {
    pub(super) chunk: &'a [u8],
    /// Of the chunk.
    pub(super) scales: &'a [BlockScales],
    pub(super) blocks: Range<usize>,
    /// Their columns.
    pub(super) to: &'a mut [[f32; ROWS]],
}

/// [`Decode`] for a kind of lines.
struct DecodeLines<'a, L>(Decode<'a>, Geometry, PhantomData<L>);

/// Runs [`Decode`].
#[inline(always)]
pub(super) fn decode<S: Simd>(s: S, weights: &Weights<'_>, op: Decode<'_>) {
    with_lines!(weights.dtype, L => s.run(DecodeLines::<L>(op, weights.geometry, PhantomData)));
}

impl<L: Lines> Op for DecodeLines<'_, L> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self(Decode { chunk, scales, blocks, to }, geometry, _) = self;
        for (b, to) in blocks.zip(to.as_chunks_mut::<BLOCK>().0) {
            let (Some(lines), Some(scales)) = (geometry.lines::<L>(chunk, b), scales.get(b)) else { return };
            let first = ByteScales::new(s, Scales::load(s, &scales[0]));
            L::eight::<S, _, 0>(s, lines, first, &mut Keep(to));
            L::eight::<S, _, 1>(s, lines, first, &mut Keep(to));
            let second = if L::GROUP == 16 { ByteScales::new(s, Scales::load(s, &scales[1])) } else { first };
            L::eight::<S, _, 2>(s, lines, second, &mut Keep(to));
            L::eight::<S, _, 3>(s, lines, second, &mut Keep(to));
        }
    }
}

/// Keeps columns.
struct Keep<'a>(&'a mut [[f32; ROWS]; BLOCK]);

impl<S: Wide> Sink<S> for Keep<'_> {
    #[inline(always)]
    fn column(&mut self, s: S, k: usize, weights: S::W) {
        s.store_w(weights, &mut self.0[k & (BLOCK - 1)]);
    }
}
