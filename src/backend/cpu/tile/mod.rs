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
//! All codes are unsigned; a type whose integers are signed says what they were raised by ([`Quant::RAISED`]), and has it in its offset. The scales lie as the
//! type says, row by row: f16 for a unit, and bytes for the groups of a superblock.
//!
//! Two things vary: how scales lie ([`Quant`], one of each type) and how lines do ([`Lines`], which several types share). A kernel goes
//! through a row group from its first byte to its last, scales and lines of a block together ([`Kind`]): read apart, memory is waited for
//! at every jump from the ones to the others.
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
pub(super) use lines::{Bf16, Codes, F16, F32, Lines, Sink, codes};
pub(super) use pack::pack;
pub(super) use superblock::{Iq4Xs, Q2K, Q3K, Q4K, Q5K, Q6K};
pub(super) use words::{Unit, Words};

/// Rows of weights of a row group: the lanes of [`Wide::W`].
pub(super) const ROWS: usize = 16;
/// Columns of a block.
pub(super) const BLOCK: usize = 32;
/// Blocks of the largest unit.
pub(super) const MOST_BLOCKS: usize = 8;
/// Bytes of a line.
const LINE: usize = 64;

/// A type whose values are `code * scale + offset`.
pub(super) trait Quant {
    /// How its codes lie.
    type Codes: Codes;
    /// What its codes are raised by, so that none is negative: where that is not 0, offsets are `-RAISED * scale`.
    const RAISED: u8;

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

/// An element type, as kernels that go through a row group in order of memory see it: units of blocks, scales before their lines.
pub(super) trait Kind {
    /// How the lines of a block lie.
    type Lines: Lines;

    /// Bytes of a unit of a row group.
    const UNIT_BYTES: usize;
    /// Where its lines begin.
    const LINES_AT: usize;
    /// Its blocks.
    const UNIT_BLOCKS: usize;

    /// As [`Quant::scales`]; nothing where there are none.
    fn unit_scales<S: Wide>(s: S, unit: &[u8], block: usize, half: usize) -> Scales<S>;

    /// The unit of a row group that a block lies in, and which of its blocks it is.
    #[inline(always)]
    fn unit(group: &[u8], block: usize) -> (&[u8], usize) {
        (group.get(block / Self::UNIT_BLOCKS * Self::UNIT_BYTES..).unwrap_or_default(), block % Self::UNIT_BLOCKS)
    }

    /// The lines of a block of a unit.
    #[inline(always)]
    fn lines(unit: &[u8], block: usize) -> &[u8] {
        unit.get(Self::LINES_AT + block * Self::Lines::BYTES..).unwrap_or_default()
    }
}

impl<Q: Quant> Kind for Q {
    type Lines = Q::Codes;

    const UNIT_BYTES: usize = Q::BYTES;
    const LINES_AT: usize = Q::SCALE_BYTES;
    const UNIT_BLOCKS: usize = Q::COLS / BLOCK;

    #[inline(always)]
    fn unit_scales<S: Wide>(s: S, unit: &[u8], block: usize, half: usize) -> Scales<S> {
        Q::scales(s, unit, block, half)
    }
}

/// Single elements: a unit is a block.
macro_rules! single_kinds {
    ($($type:ty),*) => {
        $(
            impl Kind for $type {
                type Lines = Self;

                const UNIT_BYTES: usize = <Self as Lines>::BYTES;
                const LINES_AT: usize = 0;
                const UNIT_BLOCKS: usize = 1;

                #[inline(always)]
                fn unit_scales<S: Wide>(s: S, _: &[u8], _: usize, _: usize) -> Scales<S> {
                    Scales { scale: s.splat_w(0.0), offset: s.splat_w(0.0) }
                }
            }
        )*
    };
}

single_kinds!(F32, F16, Bf16);

/// Evaluates an expression for the [`Kind`] of an element type.
macro_rules! with_kind {
    ($dtype:expr, $kind:ident => $run:expr) => {
        $crate::backend::cpu::tile::with_quant!($dtype, $kind => $run, else match $dtype {
            $crate::tensor::DType::F32 => {
                type $kind = $crate::backend::cpu::tile::F32;
                $run
            }
            $crate::tensor::DType::F16 => {
                type $kind = $crate::backend::cpu::tile::F16;
                $run
            }
            _ => {
                type $kind = $crate::backend::cpu::tile::Bf16;
                $run
            }
        })
    };
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

pub(super) use {with_kind, with_quant};

/// A matrix in tiles.
#[derive(Clone, Copy)]
pub(super) struct Weights<'a> {
    pub(super) dtype: DType,
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

    /// The bytes of the row group behind it in a range; none behind the last.
    #[inline(always)]
    pub(super) fn next(&self, index: usize, range: &Range<usize>) -> &'a [u8] {
        if index + 1 < range.end { self.group(index + 1) } else { &[] }
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
    /// From where [`Scales::store`] has put them.
    #[inline(always)]
    pub(super) fn load(s: S, [scale, offset]: &[[f32; ROWS]; 2]) -> Self {
        Self { scale: s.load_w(scale), offset: s.load_w(offset) }
    }

    /// Puts them down.
    #[inline(always)]
    pub(super) fn store(&self, s: S, [scale, offset]: &mut [[f32; ROWS]; 2]) {
        s.store_w(self.scale, scale);
        s.store_w(self.offset, offset);
    }
}

/// Scale and offset of each half of a block; of its first half alone where both share them.
pub(super) type BlockScales = [[[f32; ROWS]; 2]; 2];

/// Decodes some blocks of a row group.
pub(super) struct Decode<'a> {
    pub(super) group: &'a [u8],
    pub(super) blocks: Range<usize>,
    /// Their columns.
    pub(super) to: &'a mut [[f32; ROWS]],
}

/// [`Decode`] for an element type.
struct DecodeKind<'a, K>(Decode<'a>, PhantomData<K>);

/// Runs [`Decode`].
#[inline(always)]
pub(super) fn decode<S: Simd>(s: S, dtype: DType, op: Decode<'_>) {
    with_kind!(dtype, K => s.run(DecodeKind::<K>(op, PhantomData)));
}

impl<K: Kind> Op for DecodeKind<'_, K> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self(Decode { group, blocks, to }, _) = self;
        for (block, to) in blocks.zip(to.as_chunks_mut::<BLOCK>().0) {
            let (unit, b) = K::unit(group, block);
            let lines = K::lines(unit, b);
            let mut weights = Weigh::<S, K> { scales: K::unit_scales(s, unit, b, 0), to, kind: PhantomData };
            K::Lines::eight::<S, _, 0>(s, lines, &mut weights);
            K::Lines::eight::<S, _, 1>(s, lines, &mut weights);
            if K::Lines::GROUP == 16 {
                weights.scales = K::unit_scales(s, unit, b, 1);
            }
            K::Lines::eight::<S, _, 2>(s, lines, &mut weights);
            K::Lines::eight::<S, _, 3>(s, lines, &mut weights);
        }
    }
}

/// Keeps columns as weights.
struct Weigh<'a, S: Wide, K> {
    scales: Scales<S>,
    to: &'a mut [[f32; ROWS]; BLOCK],
    kind: PhantomData<K>,
}

impl<S: Wide, K: Kind> Sink<S> for Weigh<'_, S, K> {
    #[inline(always)]
    fn column(&mut self, s: S, k: usize, numbers: S::W) {
        let weights = if K::Lines::GROUP == 0 {
            numbers
        } else {
            // Exact: the factor is a power of two.
            let scale = s.mul_w(self.scales.scale, s.splat_w(1.0 / S::BYTE_FACTORS[k % 4]));
            s.fma_w(numbers, scale, self.scales.offset)
        };
        s.store_w(weights, &mut self.to[k & (BLOCK - 1)]);
    }
}
