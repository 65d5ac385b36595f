#![forbid(unsafe_code)]
//! Quant blocks of 256 values in groups that have scales of their own.

use super::{half_at, nibbles};

/// ```text
/// 0  16 bytes: group g of 16 values has scale (low half) s[g] and minimum (high half) t[g] | 16  64 bytes of q | 80  d | 82  m
/// value[i] = d * s[i / 16] * q[i] - m * t[i / 16]
/// ```
/// q is in two halves of 128 values and 32 bytes: bits 2j and 2j + 1 of byte l belong to value 32 j + l.
pub(super) fn q2_k(block: &[u8], out: &mut [f32]) {
    let (d, m) = (half_at(block, 80), half_at(block, 82));
    for (i, value) in out.iter_mut().enumerate() {
        let [scale, minimum] = nibbles(block[i / 16]);
        *value = d * scale as f32 * two_bits(&block[16..80], i) as f32 - m * minimum as f32;
    }
}

/// ```text
/// 0  32 bytes: third bits of q | 32  64 bytes: lower two bits of q, as in Q2_K | 96  12 bytes of s | 108  d
/// value[i] = d * (s[i / 16] - 32) * (q[i] - 4)
/// ```
/// The third bit of value `32 b + l` is bit b of byte l. s has six bits: the lower four of s[0..8] are the low halves of the first
/// eight bytes and those of s[8..16] their high halves; the upper two of s[g] are bits 2 (g / 4) of byte 8 + g % 4.
pub(super) fn q3_k(block: &[u8], out: &mut [f32]) {
    let d = half_at(block, 108);
    let scales = &block[96..108];
    for (i, value) in out.iter_mut().enumerate() {
        let group = i / 16;
        let lower = nibbles(scales[group % 8])[group / 8];
        let upper = i32::from(scales[8 + group % 4] >> (2 * (group / 4)) & 3);
        let third = i32::from(block[i % 32] >> (i / 32) & 1);
        let q = two_bits(&block[32..96], i) | third << 2;
        *value = d * ((lower | upper << 4) - 32) as f32 * (q - 4) as f32;
    }
}

/// ```text
/// 0  d | 2  m | 4  12 bytes of s and t | 16  128 bytes of q
/// value[i] = d * s[i / 32] * q[i] - m * t[i / 32]
/// ```
/// q is in four parts of 64 values and 32 bytes: low halves first. s and t: see [`scale_and_minimum`].
pub(super) fn q4_k(block: &[u8], out: &mut [f32]) {
    let (d, m) = (half_at(block, 0), half_at(block, 2));
    for (i, value) in out.iter_mut().enumerate() {
        let [scale, minimum] = scale_and_minimum(&block[4..16], i / 32);
        *value = d * scale as f32 * four_bits(&block[16..144], i) as f32 - m * minimum as f32;
    }
}

/// ```text
/// 0  d | 2  m | 4  12 bytes of s and t as in Q4_K | 16  32 bytes: fifth bits of q | 48  128 bytes: lower four, as in Q4_K
/// value[i] = d * s[i / 32] * q[i] - m * t[i / 32]
/// ```
/// The fifth bit of value `32 b + l` is bit b of byte l.
pub(super) fn q5_k(block: &[u8], out: &mut [f32]) {
    let (d, m) = (half_at(block, 0), half_at(block, 2));
    for (i, value) in out.iter_mut().enumerate() {
        let [scale, minimum] = scale_and_minimum(&block[4..16], i / 32);
        let fifth = i32::from(block[16 + i % 32] >> (i / 32) & 1);
        let q = four_bits(&block[48..176], i) | fifth << 4;
        *value = d * scale as f32 * q as f32 - m * minimum as f32;
    }
}

/// ```text
/// 0  128 bytes: lower four bits of q | 128  64 bytes: upper two | 192  s: 16 x i8 | 208  d
/// value[i] = d * s[i / 16] * (q[i] - 32)
/// ```
/// Two halves of 128 values; in each, of 64 bytes, the low halves belong to values 0..64 and the high halves to 64..128. The upper
/// bits are as the bits of Q2_K.
pub(super) fn q6_k(block: &[u8], out: &mut [f32]) {
    let d = half_at(block, 208);
    for (i, value) in out.iter_mut().enumerate() {
        let (half, place) = (i / 128, i % 128);
        let lower = nibbles(block[64 * half + place % 64])[place / 64];
        let q = lower | two_bits(&block[128..192], i) << 4;
        let scale = f32::from(block[192 + i / 16].cast_signed());
        *value = d * scale * (q - 32) as f32;
    }
}

/// Value `i` of two-bit integers in 64 bytes.
fn two_bits(bytes: &[u8], i: usize) -> i32 {
    let (half, place) = (i / 128, i % 128);
    i32::from(bytes[32 * half + place % 32] >> (2 * (place / 32)) & 3)
}

/// Value `i` of four-bit integers in 128 bytes.
fn four_bits(bytes: &[u8], i: usize) -> i32 {
    let (part, place) = (i / 64, i % 64);
    nibbles(bytes[32 * part + place % 32])[place / 32]
}

/// Six-bit scale and minimum of group `g` from 12 bytes.
///
/// Bytes 0..4 hold s[0..4] in their lower six bits, bytes 4..8 t[0..4]. The upper two bits of bytes 0..4 are the upper two of s[4..8],
/// those of bytes 4..8 the upper two of t[4..8], whose lower four are the low (s) and high (t) halves of bytes 8..12.
fn scale_and_minimum(bytes: &[u8], g: usize) -> [i32; 2] {
    if g < 4 {
        return [i32::from(bytes[g] & 63), i32::from(bytes[g + 4] & 63)];
    }
    let [scale, minimum] = nibbles(bytes[g + 4]);
    [scale | i32::from(bytes[g - 4] >> 6) << 4, minimum | i32::from(bytes[g] >> 6) << 4]
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: [u8; 2] = [0x00, 0x3c];

    #[test]
    fn scales_of_six_bits_are_put_together() {
        let mut bytes = [0; 12];
        bytes[1] = 0b10_000101; // s[1] = 5, upper bits of s[5]
        bytes[5] = 0b01_111111; // t[1] = 63, upper bits of t[5]
        bytes[9] = 0x3c; // s[5] = 0b10_1100, t[5] = 0b01_0011
        assert_eq!(scale_and_minimum(&bytes, 1), [5, 63]);
        assert_eq!(scale_and_minimum(&bytes, 5), [0b10_1100, 0b01_0011]);
        assert_eq!(scale_and_minimum(&bytes, 0), [0, 0]);
    }

    #[test]
    fn q6_k_by_hand() {
        let mut block = [0; 210];
        block[208..].copy_from_slice(&ONE);
        block[192..208].copy_from_slice(&[1; 16]);
        block[207] = 0xfe; // s[15] = -2
        // Value 255: second half, place 127: high half of byte 64 + 63, upper bits 6 and 7 of byte 32 + 31.
        block[127] = 0x50;
        block[191] = 0b11_00_00_00;
        let mut out = [9.0; 256];
        q6_k(&block, &mut out);
        assert_eq!((out[0], out[239], out[254]), (-32.0, -32.0, 64.0));
        assert_eq!(out[255], -2.0 * (0b11_0101 - 32) as f32);
    }

    #[test]
    fn q3_k_without_its_third_bit_is_four_lower() {
        let mut block = [0; 110];
        block[108..].copy_from_slice(&ONE);
        block[96..108].copy_from_slice(&[0x11; 12]); // every s is 0b01_0001 or 0b00_0001
        block[0] = 0b1000_0001; // third bits of values 0 and 224
        let mut out = [9.0; 256];
        q3_k(&block, &mut out);
        assert_eq!(out[0], 0.0);
        // Group 0: upper bits 0b01 from 0x11, so s = 17 - 32; q = -4.
        assert_eq!(out[1], 60.0);
        // Group 4: upper bits from bits 2 and 3 of 0x11: 0; s = 1 - 32.
        assert_eq!(out[64], 124.0);
        assert_eq!(out[224], 0.0);
    }
}
