#![forbid(unsafe_code)]
//! Quant blocks whose integers are places in a table of levels.

use super::{half_at, nibbles};

/// The levels: dense around 0, where weights are.
pub(super) const LEVELS: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// ```text
/// 0  d | 2  16 bytes: low halves are q[0..16], high halves q[16..32]
/// value[i] = d * LEVELS[q[i]]
/// ```
pub(super) fn iq4_nl(block: &[u8], out: &mut [f32]) {
    levels(half_at(block, 0), &block[2..18], out);
}

/// ```text
/// 0  d | 2  u16: 8 x upper 2 bits of s | 4  4 bytes: 8 x lower 4 bits of s, low half first | 8  8 x 16 bytes as in IQ4_NL
/// value[32 b + i] = d * (s[b] - 32) * LEVELS[q[32 b + i]]
/// ```
pub(super) fn iq4_xs(block: &[u8], out: &mut [f32]) {
    let d = half_at(block, 0);
    let upper = u16::from_le_bytes([block[2], block[3]]);
    for (b, (bytes, values)) in block[8..136].chunks_exact(16).zip(out.chunks_exact_mut(32)).enumerate() {
        let lower = nibbles(block[4 + b / 2])[b % 2];
        let scale = lower | i32::from(upper >> (2 * b) & 3) << 4;
        levels(d * (scale - 32) as f32, bytes, values);
    }
}

fn levels(scale: f32, bytes: &[u8], out: &mut [f32]) {
    for (i, &byte) in bytes.iter().enumerate() {
        let [low, high] = [byte & 15, byte >> 4];
        out[i] = scale * f32::from(LEVELS[usize::from(low)]);
        out[i + 16] = scale * f32::from(LEVELS[usize::from(high)]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn iq4_xs_scales_have_six_bits_around_32() {
        let mut block = [0x88; 136];
        block[..2].copy_from_slice(&[0x00, 0x3c]);
        // s[0] = 0b01_0011 = 19, s[1] = 0b10_0000 = 32, s[7] = 0b11_1111 = 63, the others 0.
        block[2..4].copy_from_slice(&(0b01_u16 | 0b10 << 2 | 0b11 << 14).to_le_bytes());
        block[4..8].copy_from_slice(&[0x03, 0, 0, 0xf0]);
        let mut out = [9.0; 256];
        iq4_xs(&block, &mut out);
        // Level 8 is 1: the values are the scales.
        assert_eq!((out[0], out[31], out[32], out[64], out[255]), (-13.0, -13.0, 0.0, -32.0, 31.0));
    }
}
