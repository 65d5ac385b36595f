#![forbid(unsafe_code)]
//! Quant blocks whose integers are places in a table of levels.

use super::{Format, half_at, nibbles, scaled};
use crate::backend::cpu::simd::{Simd, part};

/// 32 values, one scale.
pub(in super::super) struct Iq4Nl;
/// 256 values, a scale of 6 bits for each 32.
pub(in super::super) struct Iq4Xs;

/// The levels, as the bits of signed bytes.
const LEVELS: [u8; 16] = {
    let signed: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];
    let mut bytes = [0; 16];
    let mut i = 0;
    while i < 16 {
        bytes[i] = signed[i].cast_unsigned();
        i += 1;
    }
    bytes
};

/// `scale * LEVELS[q]` for the 32 halves of the 16 bytes at `at`.
#[inline(always)]
fn levels<S: Simd>(s: S, block: &[u8], at: usize, scale: f32) -> [S::V; 4] {
    let table = s.load_bytes(&LEVELS);
    let bytes = s.load_bytes(part(block, at));
    let [low, high] = [s.lookup(table, nibbles(s, bytes, 0)), s.lookup(table, nibbles(s, bytes, 1))];
    scaled(s, [s.signed(low), s.signed(high)], [scale, scale])
}

impl Format for Iq4Nl {
    const VALUES: usize = 32;
    const BYTES: usize = 18;

    #[inline(always)]
    fn group<S: Simd>(s: S, block: &[u8], _: usize) -> [S::V; 4] {
        levels(s, block, 2, half_at(s, block, 0))
    }
}

impl Format for Iq4Xs {
    const VALUES: usize = 256;
    const BYTES: usize = 136;

    #[inline(always)]
    fn group<S: Simd>(s: S, block: &[u8], g: usize) -> [S::V; 4] {
        let upper = u16::from_le_bytes(*part(block, 2)) >> (2 * g) & 3;
        let [lower] = *part::<1>(block, 4 + g / 2);
        let scale = i32::from(lower >> (4 * (g % 2)) & 15) | i32::from(upper) << 4;
        levels(s, block, 8 + 16 * g, half_at(s, block, 0) * (scale - 32) as f32)
    }
}
