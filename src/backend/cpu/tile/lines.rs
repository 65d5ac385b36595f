#![forbid(unsafe_code)]
//! The lines of a block: codes, and single elements.

use super::{BLOCK, LINE, ROWS};
use crate::backend::cpu::simd::{Wide, part};

/// How the 32 columns of a block lie: what the types that differ in their scales alone have in common.
pub(in super::super) trait Lines {
    /// Bytes of a block: all 16 rows, scales left out.
    const BYTES: usize;
    /// Columns that share scales, 16 or 32; 0 where there are none.
    const GROUP: usize;

    /// Hands the columns `8 I ..` of a block, eight of them in order, to `sink`.
    fn eight<S: Wide, K: Sink<S>, const I: usize>(s: S, block: &[u8], sink: &mut K);
}

/// Takes numbers column by column.
pub(in super::super) trait Sink<S: Wide> {
    /// Column `k` of a block for the 16 rows: their weights, or their codes times [`Wide::BYTE_FACTORS`]`[k % 4]`, without scale and offset.
    /// Called with ascending `k`; implementations are `#[inline(always)]`.
    fn column(&mut self, s: S, k: usize, numbers: S::W);
}

/// Codes: put together from a plane of their lower [`Codes::LOW`] bits and one of their upper [`Codes::HIGH`] bits.
pub(in super::super) trait Codes: Lines {
    /// Bits of the lower plane, 2, 4 or 8, and so its lines per block.
    const LOW: u32;
    /// Bits of the upper plane, 0, 1 or 2.
    const HIGH: u32;
    /// Where codes are places in a table: the table.
    const TABLE: Option<&'static [u8; 16]>;
    /// The largest code that [`codes`] gives.
    const LARGEST: u8;
}

/// Declares kinds of codes: bits of both planes, columns that share scales, a table, the largest code.
macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident: $low:literal + $high:literal, $group:literal, $table:expr, $largest:literal;)*) => {
        $(
            $(#[$doc])*
            pub(in super::super) struct $name;

            impl Codes for $name {
                const LOW: u32 = $low;
                const HIGH: u32 = $high;
                const TABLE: Option<&'static [u8; 16]> = $table;
                const LARGEST: u8 = $largest;
            }

            impl Lines for $name {
                const BYTES: usize = LINE * ($low + $high);
                const GROUP: usize = $group;

                #[inline(always)]
                fn eight<S: Wide, K: Sink<S>, const I: usize>(s: S, block: &[u8], sink: &mut K) {
                    let [first, second] = codes::<S, Self, I>(s, block);
                    hand(s, first, 8 * I, sink);
                    hand(s, second, 8 * I + 4, sink);
                }
            }
        )*
    };
}

kinds! {
    /// 2 bits.
    Two: 2 + 0, 16, None, 3;
    /// 3 bits.
    Three: 2 + 1, 16, None, 7;
    /// 4 bits.
    Four: 4 + 0, 32, None, 15;
    /// 5 bits.
    Five: 4 + 1, 32, None, 31;
    /// 6 bits.
    Six: 4 + 2, 16, None, 63;
    /// 8 bits.
    Eight: 8 + 0, 32, None, 255;
    /// 4 bits into a table of levels.
    Levels: 4 + 0, 32, Some(&LEVELS), 241;
}

/// What the levels of the table are raised by.
pub(super) const LEVELS_RAISED: u8 = 128;

/// The levels, raised to unsigned bytes.
const LEVELS: [u8; 16] = {
    let signed: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];
    let mut bytes = [0; 16];
    let mut i = 0;
    while i < 16 {
        bytes[i] = signed[i].cast_unsigned() ^ 0x80;
        i += 1;
    }
    bytes
};

/// The codes of the columns `8 I ..` of a block: four columns, and the next four.
#[inline(always)]
pub(in super::super) fn codes<S: Wide, C: Codes, const I: usize>(s: S, block: &[u8]) -> [S::C; 2] {
    [four_codes::<S, C>(s, block, 2 * I), four_codes::<S, C>(s, block, 2 * I + 1)]
}

/// The codes of the columns `4 group ..` of a block.
#[inline(always)]
fn four_codes<S: Wide, C: Codes>(s: S, block: &[u8], group: usize) -> S::C {
    let mut codes = plane(s, block, C::LOW, group, 0);
    if C::HIGH > 0 {
        let upper = block.get(LINE * C::LOW as usize..).unwrap_or(&[]);
        codes = s.or_c(codes, plane(s, upper, C::HIGH, group, C::LOW));
    }
    match C::TABLE {
        Some(table) => s.lookup_c(table, codes),
        None => codes,
    }
}

/// The bits of a plane that belong to the columns `4 group ..` of a block, moved to bit `to` of each byte.
#[inline(always)]
fn plane<S: Wide>(s: S, lines: &[u8], bits: u32, group: usize, to: u32) -> S::C {
    let per_line = 8 / bits as usize;
    let line = s.load_c(part(lines, LINE * (group / per_line)));
    if bits == 8 {
        return line;
    }
    let from = bits * (group % per_line) as u32;
    let moved = match from.cmp(&to) {
        core::cmp::Ordering::Less => s.shl_c(line, to - from),
        core::cmp::Ordering::Equal => line,
        core::cmp::Ordering::Greater => s.shr_c(line, from - to),
    };
    s.and_c(moved, s.splat_c((((1_u32 << bits) - 1) << to) as u8))
}

/// Hands four columns to `sink`, the first of which is `k`.
#[inline(always)]
fn hand<S: Wide, K: Sink<S>>(s: S, codes: S::C, k: usize, sink: &mut K) {
    sink.column(s, k, s.byte::<0>(codes));
    sink.column(s, k + 1, s.byte::<1>(codes));
    sink.column(s, k + 2, s.byte::<2>(codes));
    sink.column(s, k + 3, s.byte::<3>(codes));
}

/// Declares single elements: their bytes, and the method that reads sixteen of them.
macro_rules! singles {
    ($($(#[$doc:meta])* $name:ident: $bytes:literal, $load:ident;)*) => {
        $(
            $(#[$doc])*
            pub(in super::super) struct $name;

            impl Lines for $name {
                const BYTES: usize = BLOCK * ROWS * $bytes;
                const GROUP: usize = 0;

                #[inline(always)]
                fn eight<S: Wide, K: Sink<S>, const I: usize>(s: S, block: &[u8], sink: &mut K) {
                    for k in 8 * I..8 * I + 8 {
                        sink.column(s, k, s.$load(part(block, k * ROWS * $bytes)));
                    }
                }
            }
        )*
    };
}

singles! {
    /// IEEE binary32.
    F32: 4, load_w_f32;
    /// IEEE binary16.
    F16: 2, load_w_f16;
    /// bfloat16.
    Bf16: 2, load_w_bf16;
}
