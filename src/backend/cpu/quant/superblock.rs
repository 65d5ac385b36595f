#![forbid(unsafe_code)]
//! Quant blocks of 256 values in groups that have scales of their own.

use super::{Format, half_at, nibbles, scaled, scaled_from};
use crate::backend::cpu::simd::{Simd, part};

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

/// The 32 bytes at `at`.
#[inline(always)]
fn bytes32<S: Simd>(s: S, block: &[u8], at: usize) -> [S::B; 2] {
    [s.load_bytes(part(block, at)), s.load_bytes(part(block, at + 16))]
}

/// Two bits of each of the 32 bytes that group `g` shares with three others, from 64 bytes at `at`.
#[inline(always)]
fn two_bits<S: Simd>(s: S, block: &[u8], at: usize, g: usize) -> [S::B; 2] {
    let [a, b] = bytes32(s, block, at + 32 * (g / 4));
    let (shift, three) = (2 * (g % 4) as u32, s.splat_byte(3));
    [s.and(s.shr_bytes(a, shift), three), s.and(s.shr_bytes(b, shift), three)]
}

/// The halves of 32 bytes that belong to group `g`, from 128 bytes at `at`.
#[inline(always)]
fn four_bits<S: Simd>(s: S, block: &[u8], at: usize, g: usize) -> [S::B; 2] {
    let [a, b] = bytes32(s, block, at + 32 * (g / 2));
    [nibbles(s, a, g % 2), nibbles(s, b, g % 2)]
}

/// `value` where bit `g` of the 32 bytes at `at` is set, else 0.
#[inline(always)]
fn where_bit<S: Simd>(s: S, block: &[u8], at: usize, g: usize, value: u8) -> [S::B; 2] {
    let [a, b] = bytes32(s, block, at);
    let (bit, value) = (s.splat_byte(1 << (g & 7)), s.splat_byte(value));
    [s.and(s.equal_bytes(s.and(a, bit), bit), value), s.and(s.equal_bytes(s.and(b, bit), bit), value)]
}

#[inline(always)]
fn byte(block: &[u8], at: usize) -> u8 {
    let [byte] = *part::<1>(block, at);
    byte
}

/// Scale and minimum of group `g`, six bits each, from the 12 bytes at 4.
#[inline(always)]
fn scale_and_minimum(block: &[u8], g: usize) -> [f32; 2] {
    let [scale, minimum] = if g < 4 {
        [byte(block, 4 + g) & 63, byte(block, 8 + g) & 63]
    } else {
        let lower = byte(block, 8 + g);
        [lower & 15 | byte(block, g) >> 6 << 4, lower >> 4 | byte(block, 4 + g) >> 6 << 4]
    };
    [f32::from(scale), f32::from(minimum)]
}

/// `d * scale * q - m * minimum`, for the types with one scale and minimum per group.
#[inline(always)]
fn from_minimum<S: Simd>(s: S, block: &[u8], g: usize, q: [S::B; 2]) -> [S::V; 4] {
    let [scale, minimum] = scale_and_minimum(block, g);
    let (d, m) = (half_at(s, block, 0) * scale, -(half_at(s, block, 2) * minimum));
    scaled_from(s, [s.unsigned(q[0]), s.unsigned(q[1])], [d, d], [m, m])
}

impl Format for Q2K {
    const VALUES: usize = 256;
    const BYTES: usize = 84;

    #[inline(always)]
    fn group<S: Simd>(s: S, block: &[u8], g: usize) -> [S::V; 4] {
        let (d, m) = (half_at(s, block, 80), half_at(s, block, 82));
        let [a, b] = *part::<2>(block, 2 * g);
        let scale = [d * f32::from(a & 15), d * f32::from(b & 15)];
        let offset = [-(m * f32::from(a >> 4)), -(m * f32::from(b >> 4))];
        let q = two_bits(s, block, 16, g);
        scaled_from(s, [s.unsigned(q[0]), s.unsigned(q[1])], scale, offset)
    }
}

impl Format for Q3K {
    const VALUES: usize = 256;
    const BYTES: usize = 110;

    #[inline(always)]
    fn group<S: Simd>(s: S, block: &[u8], g: usize) -> [S::V; 4] {
        let d = half_at(s, block, 108);
        let mut scale = [0.0; 2];
        for (i, scale) in scale.iter_mut().enumerate() {
            let group = 2 * g + i;
            let lower = byte(block, 96 + group % 8) >> (4 * (group / 8)) & 15;
            let upper = byte(block, 104 + group % 4) >> (2 * (group / 4)) & 3;
            *scale = d * (i32::from(lower | upper << 4) - 32) as f32;
        }
        let (lower, third, four) = (two_bits(s, block, 32, g), where_bit(s, block, 0, g, 4), s.splat_byte(4));
        let q = [s.or(lower[0], third[0]), s.or(lower[1], third[1])];
        scaled(s, [s.signed(s.sub_bytes(q[0], four)), s.signed(s.sub_bytes(q[1], four))], scale)
    }
}

impl Format for Q4K {
    const VALUES: usize = 256;
    const BYTES: usize = 144;

    #[inline(always)]
    fn group<S: Simd>(s: S, block: &[u8], g: usize) -> [S::V; 4] {
        from_minimum(s, block, g, four_bits(s, block, 16, g))
    }
}

impl Format for Q5K {
    const VALUES: usize = 256;
    const BYTES: usize = 176;

    #[inline(always)]
    fn group<S: Simd>(s: S, block: &[u8], g: usize) -> [S::V; 4] {
        let (lower, fifth) = (four_bits(s, block, 48, g), where_bit(s, block, 16, g, 16));
        from_minimum(s, block, g, [s.or(lower[0], fifth[0]), s.or(lower[1], fifth[1])])
    }
}

impl Format for Q6K {
    const VALUES: usize = 256;
    const BYTES: usize = 210;

    #[inline(always)]
    fn group<S: Simd>(s: S, block: &[u8], g: usize) -> [S::V; 4] {
        let d = half_at(s, block, 208);
        let [a, b] = *part::<2>(block, 192 + 2 * g);
        let scale = [d * f32::from(a.cast_signed()), d * f32::from(b.cast_signed())];
        let lower = bytes32(s, block, 64 * (g / 4) + 32 * (g % 2));
        let upper = two_bits(s, block, 128, g);
        let thirty_two = s.splat_byte(32);
        let mut values = [[s.splat(0.0); 2]; 2];
        for (i, values) in values.iter_mut().enumerate() {
            let q = s.or(nibbles(s, lower[i], g % 4 / 2), s.shl_bytes(upper[i], 4));
            *values = s.signed(s.sub_bytes(q, thirty_two));
        }
        scaled(s, values, scale)
    }
}
