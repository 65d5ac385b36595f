#![forbid(unsafe_code)]
//! Quant blocks of 256 values in groups that have scales of their own: the unit is a superblock.
//!
//! ```text
//! scales   16 x f16 d | 16 x f16 m, where the type has minima | for each group 16 x i8 s | for each group 16 x i8 -t, likewise
//! Q2_K     16 x f16 d | 16 x f16 m | for each group 16 bytes with s in the low and t in the high halves
//! ```
//! `s` is what a value is multiplied by beside `d`: where the file raises it, that is taken back. The pictures of the file's bytes
//! are in `tensor`.

use super::legacy::{halves, put_half};
use super::lines::{Five, Four, LEVELS_RAISED, Levels, Six, Three, Two};
use super::words::UNIT_WORDS;
use super::{Quant, ROWS, Scales, Unit, Words};
use crate::backend::cpu::simd::{Wide, part};
use crate::tensor::DType;

/// 2 bits from a minimum.
pub(in super::super) struct Q2K;
/// 3 bits around 4.
pub(in super::super) struct Q3K;
/// 4 bits from a minimum.
pub(in super::super) struct Q4K;
/// 5 bits from a minimum.
pub(in super::super) struct Q5K;
/// 6 bits around 32.
pub(in super::super) struct Q6K;
/// 4 bits into a table of levels, a scale of 6 bits for each 32.
pub(in super::super) struct Iq4Xs;

#[inline(always)]
fn byte(unit: &[u8], at: usize) -> u8 {
    let [byte] = *part::<1>(unit, at);
    byte
}

#[inline(always)]
fn put(value: u8, at: usize, to: &mut [u8]) {
    if let Some(to) = to.get_mut(at) {
        *to = value;
    }
}

/// `d * s`, and what takes back that the codes are raised by `raised`. `s` is at byte `at`.
#[inline(always)]
fn around<S: Wide>(s: S, unit: &[u8], at: usize, raised: u8) -> Scales<S> {
    let scale = s.mul_w(s.load_w_f16(part(unit, 0)), s.load_w_i8(part(unit, at)));
    Scales { scale, offset: s.mul_w(scale, s.splat_w(-f32::from(raised))) }
}

/// `d * s` and `-m * t` of group `g` of 8.
#[inline(always)]
fn above<S: Wide>(s: S, unit: &[u8], g: usize) -> Scales<S> {
    let scale = s.mul_w(s.load_w_f16(part(unit, 0)), s.load_w_i8(part(unit, 64 + ROWS * g)));
    let offset = s.mul_w(s.load_w_f16(part(unit, 32)), s.load_w_i8(part(unit, 64 + ROWS * (8 + g))));
    Scales { scale, offset }
}

/// Two bits of each of four columns from 64 bytes at `at`, as Q2_K has them.
#[inline(always)]
fn two_bits(unit: Unit<'_>, at: usize, i: usize) -> Words {
    // Word i: column 4 i = 128 h + 32 j + l.
    let (h, j, l) = (i / 32, i / 8 % 4, 4 * (i % 8));
    unit.word(at + 32 * h + l) >> (2 * j as u32) & 0x0303_0303
}

/// Four bits of each of four columns from 128 bytes at `at`, as Q4_K has them.
#[inline(always)]
fn four_bits(unit: Unit<'_>, at: usize, i: usize) -> Words {
    let (part, j, l) = (i / 16, i / 8 % 2, 4 * (i % 8));
    unit.word(at + 32 * part + l) >> (4 * j as u32) & 0x0f0f_0f0f
}

/// One bit of each of four columns from 32 bytes at `at`.
#[inline(always)]
fn one_bit(unit: Unit<'_>, at: usize, i: usize) -> Words {
    unit.word(at + 4 * (i % 8)) >> (i as u32 / 8) & 0x0101_0101
}

/// Scale and minimum of group `g`, six bits each, from the 12 bytes at 4.
#[inline(always)]
fn scale_and_minimum(unit: &[u8], g: usize) -> [u8; 2] {
    if g < 4 {
        return [byte(unit, 4 + g) & 63, byte(unit, 8 + g) & 63];
    }
    let lower = byte(unit, 8 + g);
    [lower & 15 | byte(unit, g) >> 6 << 4, lower >> 4 | byte(unit, 4 + g) >> 6 << 4]
}

/// The scales of Q4_K and Q5_K.
#[inline(always)]
fn put_scales_and_minima(unit: &[u8], r: usize, to: &mut [u8]) {
    put_half(unit, 0, r, 0, to);
    put_half(unit, 2, r, 32, to);
    for g in 0..8 {
        let [scale, minimum] = scale_and_minimum(unit, g);
        put(scale, 64 + ROWS * g + r, to);
        put(minimum.wrapping_neg(), 64 + ROWS * (8 + g) + r, to);
    }
}

impl Quant for Q2K {
    type Codes = Two;
    const RAISED: u8 = 0;

    const DTYPE: DType = DType::Q2_K;
    const SCALE_BYTES: usize = 64 + 16 * ROWS;

    #[inline(always)]
    fn scales<S: Wide>(s: S, unit: &[u8], block: usize, half: usize) -> Scales<S> {
        let both = s.widen_c(part(unit, 64 + ROWS * (2 * block + half)));
        let scale = s.byte::<0>(s.and_c(both, s.splat_c(15)));
        let minimum = s.byte::<0>(s.shr_c(both, 4));
        let (d, m) = (s.load_w_f16(part(unit, 0)), s.load_w_f16(part(unit, 32)));
        Scales { scale: s.mul_w(d, scale), offset: s.mul_w(s.mul_w(m, minimum), s.splat_w(-1.0)) }
    }

    #[inline(always)]
    fn file_codes(unit: Unit<'_>, to: &mut [Words]) {
        for (i, to) in to.iter_mut().take(UNIT_WORDS).enumerate() {
            *to = two_bits(unit, 16, i);
        }
    }

    #[inline(always)]
    fn file_scales(unit: &[u8], r: usize, to: &mut [u8]) {
        put_half(unit, 80, r, 0, to);
        put_half(unit, 82, r, 32, to);
        for g in 0..16 {
            put(byte(unit, g), 64 + ROWS * g + r, to);
        }
    }
}

impl Quant for Q3K {
    type Codes = Three;
    const RAISED: u8 = 4;

    const DTYPE: DType = DType::Q3_K;
    const SCALE_BYTES: usize = 32 + 16 * ROWS;

    #[inline(always)]
    fn scales<S: Wide>(s: S, unit: &[u8], block: usize, half: usize) -> Scales<S> {
        around(s, unit, 32 + ROWS * (2 * block + half), Self::RAISED)
    }

    #[inline(always)]
    fn file_codes(unit: Unit<'_>, to: &mut [Words]) {
        for (i, to) in to.iter_mut().take(UNIT_WORDS).enumerate() {
            *to = two_bits(unit, 32, i) | one_bit(unit, 0, i) << 2;
        }
    }

    #[inline(always)]
    fn file_scales(unit: &[u8], r: usize, to: &mut [u8]) {
        put_half(unit, 108, r, 0, to);
        for g in 0..16 {
            let lower = byte(unit, 96 + g % 8) >> (4 * (g / 8)) & 15;
            let upper = byte(unit, 104 + g % 4) >> (2 * (g / 4)) & 3;
            put((lower | upper << 4).wrapping_sub(32), 32 + ROWS * g + r, to);
        }
    }
}

impl Quant for Q4K {
    type Codes = Four;
    const RAISED: u8 = 0;

    const DTYPE: DType = DType::Q4_K;
    const SCALE_BYTES: usize = 64 + 16 * ROWS;

    #[inline(always)]
    fn scales<S: Wide>(s: S, unit: &[u8], block: usize, _: usize) -> Scales<S> {
        above(s, unit, block)
    }

    #[inline(always)]
    fn file_codes(unit: Unit<'_>, to: &mut [Words]) {
        for (i, to) in to.iter_mut().take(UNIT_WORDS).enumerate() {
            *to = four_bits(unit, 16, i);
        }
    }

    #[inline(always)]
    fn file_scales(unit: &[u8], r: usize, to: &mut [u8]) {
        put_scales_and_minima(unit, r, to);
    }
}

impl Quant for Q5K {
    type Codes = Five;
    const RAISED: u8 = 0;

    const DTYPE: DType = DType::Q5_K;
    const SCALE_BYTES: usize = 64 + 16 * ROWS;

    #[inline(always)]
    fn scales<S: Wide>(s: S, unit: &[u8], block: usize, _: usize) -> Scales<S> {
        above(s, unit, block)
    }

    #[inline(always)]
    fn file_codes(unit: Unit<'_>, to: &mut [Words]) {
        for (i, to) in to.iter_mut().take(UNIT_WORDS).enumerate() {
            *to = four_bits(unit, 48, i) | one_bit(unit, 16, i) << 4;
        }
    }

    #[inline(always)]
    fn file_scales(unit: &[u8], r: usize, to: &mut [u8]) {
        put_scales_and_minima(unit, r, to);
    }
}

impl Quant for Q6K {
    type Codes = Six;
    const RAISED: u8 = 32;

    const DTYPE: DType = DType::Q6_K;
    const SCALE_BYTES: usize = 32 + 16 * ROWS;

    #[inline(always)]
    fn scales<S: Wide>(s: S, unit: &[u8], block: usize, half: usize) -> Scales<S> {
        around(s, unit, 32 + ROWS * (2 * block + half), Self::RAISED)
    }

    #[inline(always)]
    fn file_codes(unit: Unit<'_>, to: &mut [Words]) {
        for (i, to) in to.iter_mut().take(UNIT_WORDS).enumerate() {
            // Word i: column 4 i = 128 h + 64 j + l.
            let (h, j, l) = (i / 32, i / 16 % 2, 4 * (i % 16));
            let lower = unit.word(64 * h + l) >> (4 * j as u32) & 0x0f0f_0f0f;
            *to = lower | two_bits(unit, 128, i) << 4;
        }
    }

    #[inline(always)]
    fn file_scales(unit: &[u8], r: usize, to: &mut [u8]) {
        put_half(unit, 208, r, 0, to);
        for g in 0..16 {
            put(byte(unit, 192 + g), 32 + ROWS * g + r, to);
        }
    }
}

impl Quant for Iq4Xs {
    type Codes = Levels;
    const RAISED: u8 = LEVELS_RAISED;

    const DTYPE: DType = DType::IQ4_XS;
    const SCALE_BYTES: usize = 32 + 8 * ROWS;

    #[inline(always)]
    fn scales<S: Wide>(s: S, unit: &[u8], block: usize, _: usize) -> Scales<S> {
        around(s, unit, 32 + ROWS * block, Self::RAISED)
    }

    #[inline(always)]
    fn file_codes(unit: Unit<'_>, to: &mut [Words]) {
        for (block, to) in to.chunks_exact_mut(8).take(8).enumerate() {
            halves(unit, 8 + 16 * block, to);
        }
    }

    #[inline(always)]
    fn file_scales(unit: &[u8], r: usize, to: &mut [u8]) {
        put_half(unit, 0, r, 0, to);
        let upper = u16::from_le_bytes(*part(unit, 2));
        for g in 0..8 {
            let lower = byte(unit, 4 + g / 2) >> (4 * (g % 2)) & 15;
            let scale = lower | ((upper >> (2 * g) & 3) as u8) << 4;
            put(scale.wrapping_sub(32), 32 + ROWS * g + r, to);
        }
    }
}
