#![forbid(unsafe_code)]
//! Quant blocks of 32 values with one scale: the unit is a block.
//!
//! ```text
//! scales   16 x f16 d | 16 x f16 m, where the type has a minimum
//! ```

use super::lines::{Eight, Five, Four, LEVELS_RAISED, Levels};
use super::{Quant, Scales, Unit, Words};
use crate::backend::cpu::simd::{Wide, part};
use crate::tensor::DType;

/// 4 bits around 8.
pub(in super::super) struct Q4_0;
/// 4 bits from a minimum.
pub(in super::super) struct Q4_1;
/// 5 bits around 16.
pub(in super::super) struct Q5_0;
/// 5 bits from a minimum.
pub(in super::super) struct Q5_1;
/// 8 bits, signed.
pub(in super::super) struct Q8_0;
/// 4 bits into a table of levels.
pub(in super::super) struct Iq4Nl;

/// 32 codes from the low halves of the 16 bytes at `at`, then the high ones.
#[inline(always)]
pub(super) fn halves(unit: Unit<'_>, at: usize, to: &mut [Words]) {
    for (i, to) in to.iter_mut().take(8).enumerate() {
        *to = unit.word(at + 4 * (i % 4)) >> (4 * (i as u32 / 4)) & 0x0f0f_0f0f;
    }
}

/// Sets the fifth bits from the 32 bits at `at`.
#[inline(always)]
fn fifth_bits(unit: Unit<'_>, at: usize, to: &mut [Words]) {
    let bits = unit.word(at);
    for (i, to) in to.iter_mut().take(8).enumerate() {
        // Bit b of four goes to bit 8 b: the product puts bit b of a copy at 7 b there, and at places that are masked.
        *to |= (((bits >> (4 * i as u32) & 15) * 0x0020_4081) & 0x0101_0101) << 4;
    }
}

/// Copies the f16 at byte `from` of a row's unit to place `r` of the sixteen at `at`.
#[inline(always)]
pub(super) fn put_half(unit: &[u8], from: usize, r: usize, at: usize, to: &mut [u8]) {
    if let Some(to) = to.get_mut(at + 2 * r..at + 2 * r + 2) {
        to.copy_from_slice(part::<2>(unit, from));
    }
}

/// `d`, and what takes back that the codes are raised by `raised`: exact, as `d` has 11 bits.
#[inline(always)]
fn around<S: Wide>(s: S, unit: &[u8], raised: u8) -> Scales<S> {
    let scale = s.load_w_f16(part(unit, 0));
    Scales { scale, offset: s.mul_w(scale, s.splat_w(-f32::from(raised))) }
}

/// `d` and `m`.
#[inline(always)]
fn above<S: Wide>(s: S, unit: &[u8]) -> Scales<S> {
    Scales { scale: s.load_w_f16(part(unit, 0)), offset: s.load_w_f16(part(unit, 32)) }
}

impl Quant for Q4_0 {
    type Codes = Four;
    const RAISED: u8 = 8;

    const DTYPE: DType = DType::Q4_0;
    const SCALE_BYTES: usize = 32;

    #[inline(always)]
    fn scales<S: Wide>(s: S, unit: &[u8], _: usize, _: usize) -> Scales<S> {
        around(s, unit, Self::RAISED)
    }

    #[inline(always)]
    fn file_codes(unit: Unit<'_>, to: &mut [Words]) {
        halves(unit, 2, to);
    }

    #[inline(always)]
    fn file_scales(unit: &[u8], r: usize, to: &mut [u8]) {
        put_half(unit, 0, r, 0, to);
    }
}

impl Quant for Q4_1 {
    type Codes = Four;
    const RAISED: u8 = 0;

    const DTYPE: DType = DType::Q4_1;
    const SCALE_BYTES: usize = 64;

    #[inline(always)]
    fn scales<S: Wide>(s: S, unit: &[u8], _: usize, _: usize) -> Scales<S> {
        above(s, unit)
    }

    #[inline(always)]
    fn file_codes(unit: Unit<'_>, to: &mut [Words]) {
        halves(unit, 4, to);
    }

    #[inline(always)]
    fn file_scales(unit: &[u8], r: usize, to: &mut [u8]) {
        put_half(unit, 0, r, 0, to);
        put_half(unit, 2, r, 32, to);
    }
}

impl Quant for Q5_0 {
    type Codes = Five;
    const RAISED: u8 = 16;

    const DTYPE: DType = DType::Q5_0;
    const SCALE_BYTES: usize = 32;

    #[inline(always)]
    fn scales<S: Wide>(s: S, unit: &[u8], _: usize, _: usize) -> Scales<S> {
        around(s, unit, Self::RAISED)
    }

    #[inline(always)]
    fn file_codes(unit: Unit<'_>, to: &mut [Words]) {
        halves(unit, 6, to);
        fifth_bits(unit, 2, to);
    }

    #[inline(always)]
    fn file_scales(unit: &[u8], r: usize, to: &mut [u8]) {
        put_half(unit, 0, r, 0, to);
    }
}

impl Quant for Q5_1 {
    type Codes = Five;
    const RAISED: u8 = 0;

    const DTYPE: DType = DType::Q5_1;
    const SCALE_BYTES: usize = 64;

    #[inline(always)]
    fn scales<S: Wide>(s: S, unit: &[u8], _: usize, _: usize) -> Scales<S> {
        above(s, unit)
    }

    #[inline(always)]
    fn file_codes(unit: Unit<'_>, to: &mut [Words]) {
        halves(unit, 8, to);
        fifth_bits(unit, 4, to);
    }

    #[inline(always)]
    fn file_scales(unit: &[u8], r: usize, to: &mut [u8]) {
        put_half(unit, 0, r, 0, to);
        put_half(unit, 2, r, 32, to);
    }
}

impl Quant for Q8_0 {
    type Codes = Eight;
    const RAISED: u8 = 128;

    const DTYPE: DType = DType::Q8_0;
    const SCALE_BYTES: usize = 32;

    #[inline(always)]
    fn scales<S: Wide>(s: S, unit: &[u8], _: usize, _: usize) -> Scales<S> {
        around(s, unit, Self::RAISED)
    }

    #[inline(always)]
    fn file_codes(unit: Unit<'_>, to: &mut [Words]) {
        for (i, to) in to.iter_mut().take(8).enumerate() {
            *to = unit.word(2 + 4 * i) ^ 0x8080_8080;
        }
    }

    #[inline(always)]
    fn file_scales(unit: &[u8], r: usize, to: &mut [u8]) {
        put_half(unit, 0, r, 0, to);
    }
}

impl Quant for Iq4Nl {
    type Codes = Levels;
    const RAISED: u8 = LEVELS_RAISED;

    const DTYPE: DType = DType::IQ4_NL;
    const SCALE_BYTES: usize = 32;

    #[inline(always)]
    fn scales<S: Wide>(s: S, unit: &[u8], _: usize, _: usize) -> Scales<S> {
        around(s, unit, Self::RAISED)
    }

    #[inline(always)]
    fn file_codes(unit: Unit<'_>, to: &mut [Words]) {
        halves(unit, 2, to);
    }

    #[inline(always)]
    fn file_scales(unit: &[u8], r: usize, to: &mut [u8]) {
        put_half(unit, 0, r, 0, to);
    }
}
