#![forbid(unsafe_code)]
//! Quant blocks of 32 values with one scale.

use super::{Format, half_at, nibbles, scaled, scaled_from};
use crate::backend::cpu::simd::{Simd, part};

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

/// Low halves, then high halves, of the 16 bytes at `at`.
#[inline(always)]
fn both_nibbles<S: Simd>(s: S, block: &[u8], at: usize) -> [S::B; 2] {
    let bytes = s.load_bytes(part(block, at));
    [nibbles(s, bytes, 0), nibbles(s, bytes, 1)]
}

/// As [`both_nibbles`], with the fifth bits from the four bytes at `bits`.
#[inline(always)]
fn five_bits<S: Simd>(s: S, block: &[u8], bits: usize, at: usize) -> [S::B; 2] {
    let [low, high] = both_nibbles(s, block, at);
    let sixteen = s.splat_byte(16);
    let fifth_low = s.and(s.bits_to_bytes(u16::from_le_bytes(*part(block, bits))), sixteen);
    let fifth_high = s.and(s.bits_to_bytes(u16::from_le_bytes(*part(block, bits + 2))), sixteen);
    [s.or(low, fifth_low), s.or(high, fifth_high)]
}

/// `d * (q - zero)`
#[inline(always)]
fn around<S: Simd>(s: S, q: [S::B; 2], zero: u8, d: f32) -> [S::V; 4] {
    let zero = s.splat_byte(zero);
    scaled(s, [s.signed(s.sub_bytes(q[0], zero)), s.signed(s.sub_bytes(q[1], zero))], [d, d])
}

/// `d * q + m`
#[inline(always)]
fn above<S: Simd>(s: S, q: [S::B; 2], d: f32, m: f32) -> [S::V; 4] {
    scaled_from(s, [s.unsigned(q[0]), s.unsigned(q[1])], [d, d], [m, m])
}

impl Format for Q4_0 {
    const VALUES: usize = 32;
    const BYTES: usize = 18;

    #[inline(always)]
    fn group<S: Simd>(s: S, block: &[u8], _: usize) -> [S::V; 4] {
        around(s, both_nibbles(s, block, 2), 8, half_at(s, block, 0))
    }
}

impl Format for Q4_1 {
    const VALUES: usize = 32;
    const BYTES: usize = 20;

    #[inline(always)]
    fn group<S: Simd>(s: S, block: &[u8], _: usize) -> [S::V; 4] {
        above(s, both_nibbles(s, block, 4), half_at(s, block, 0), half_at(s, block, 2))
    }
}

impl Format for Q5_0 {
    const VALUES: usize = 32;
    const BYTES: usize = 22;

    #[inline(always)]
    fn group<S: Simd>(s: S, block: &[u8], _: usize) -> [S::V; 4] {
        around(s, five_bits(s, block, 2, 6), 16, half_at(s, block, 0))
    }
}

impl Format for Q5_1 {
    const VALUES: usize = 32;
    const BYTES: usize = 24;

    #[inline(always)]
    fn group<S: Simd>(s: S, block: &[u8], _: usize) -> [S::V; 4] {
        above(s, five_bits(s, block, 4, 8), half_at(s, block, 0), half_at(s, block, 2))
    }
}

impl Format for Q8_0 {
    const VALUES: usize = 32;
    const BYTES: usize = 34;

    #[inline(always)]
    fn group<S: Simd>(s: S, block: &[u8], _: usize) -> [S::V; 4] {
        let d = half_at(s, block, 0);
        let q = [s.load_bytes(part(block, 2)), s.load_bytes(part(block, 18))];
        scaled(s, [s.signed(q[0]), s.signed(q[1])], [d, d])
    }
}
