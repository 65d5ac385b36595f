#![forbid(unsafe_code)]
//! Quant blocks of 32 values with one scale.

use super::{half_at, nibbles};

/// ```text
/// 0  d | 2  16 bytes: low halves are q[0..16], high halves q[16..32]
/// value[i] = d * (q[i] - 8)
/// ```
pub(super) fn q4_0(block: &[u8], out: &mut [f32]) {
    let d = half_at(block, 0);
    split(&block[2..18], out, |q, _| d * (q - 8) as f32);
}

/// ```text
/// 0  d | 2  m | 4  16 bytes as in Q4_0
/// value[i] = d * q[i] + m
/// ```
pub(super) fn q4_1(block: &[u8], out: &mut [f32]) {
    let (d, m) = (half_at(block, 0), half_at(block, 2));
    split(&block[4..20], out, |q, _| d * q as f32 + m);
}

/// ```text
/// 0  d | 2  u32: bit i is the fifth bit of q[i] | 6  16 bytes: the lower four, as in Q4_0
/// value[i] = d * (q[i] - 16)
/// ```
pub(super) fn q5_0(block: &[u8], out: &mut [f32]) {
    let d = half_at(block, 0);
    let high = high_bits(block, 2);
    split(&block[6..22], out, |q, i| d * ((q | fifth(high, i)) - 16) as f32);
}

/// ```text
/// 0  d | 2  m | 4  u32 of fifth bits | 8  16 bytes, both as in Q5_0
/// value[i] = d * q[i] + m
/// ```
pub(super) fn q5_1(block: &[u8], out: &mut [f32]) {
    let (d, m) = (half_at(block, 0), half_at(block, 2));
    let high = high_bits(block, 4);
    split(&block[8..24], out, |q, i| d * (q | fifth(high, i)) as f32 + m);
}

/// ```text
/// 0  d | 2  q: 32 x i8
/// value[i] = d * q[i]
/// ```
pub(super) fn q8_0(block: &[u8], out: &mut [f32]) {
    let d = half_at(block, 0);
    for (value, &q) in out.iter_mut().zip(&block[2..34]) {
        *value = d * f32::from(q.cast_signed());
    }
}

/// Values from 16 bytes whose low halves belong to the first 16 values and whose high halves to the last 16.
fn split(bytes: &[u8], out: &mut [f32], value: impl Fn(i32, usize) -> f32) {
    for (i, &byte) in bytes.iter().enumerate() {
        let [low, high] = nibbles(byte);
        out[i] = value(low, i);
        out[i + 16] = value(high, i + 16);
    }
}

fn high_bits(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
}

fn fifth(high: u32, i: usize) -> i32 {
    if high >> i & 1 == 1 { 16 } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 0.5 as f16.
    const HALF: [u8; 2] = [0x00, 0x38];

    #[test]
    fn q4_0_by_hand() {
        let mut block = [0x88; 18];
        block[..2].copy_from_slice(&HALF);
        block[2] = 0xf0;
        let mut out = [9.0; 32];
        q4_0(&block, &mut out);
        assert_eq!((out[0], out[16], out[1], out[31]), (-4.0, 3.5, 0.0, 0.0));
    }

    #[test]
    fn q5_0_takes_the_fifth_bit_of_each_value() {
        let mut block = [0; 22];
        block[..2].copy_from_slice(&HALF);
        // Fifth bits of values 1 and 31; value 31 also has its lower four set.
        block[2..6].copy_from_slice(&(1_u32 << 1 | 1 << 31).to_le_bytes());
        block[21] = 0xf0;
        let mut out = [9.0; 32];
        q5_0(&block, &mut out);
        assert_eq!((out[0], out[1], out[15], out[31]), (-8.0, 0.0, -8.0, 7.5));
    }

    #[test]
    fn q8_0_is_signed() {
        let mut block = [0; 34];
        block[..2].copy_from_slice(&HALF);
        (block[2], block[33]) = (0x80, 0x7f);
        let mut out = [9.0; 32];
        q8_0(&block, &mut out);
        assert_eq!((out[0], out[1], out[31]), (-64.0, 0.0, 63.5));
    }
}
