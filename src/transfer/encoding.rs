#![forbid(unsafe_code)]
//! How the numbers of a payload are written: as they are, in eight bits, or in four.
//!
//! A payload is cut into vectors: the keys, or the values, of one head in one token. A lossy encoding cuts a vector into blocks of
//! [`BLOCK`] elements, the last one shorter, and writes each block by itself:
//!
//! ```text
//!   Q8   scale f32 | code i8 per element                           element = code * scale, code in -127 ..= 127
//!   Q4   scale f32 | two codes per byte, the first in the low half  element = (code - 8) * scale, code in 1 ..= 15
//! ```
//!
//! The scale is the block's greatest magnitude over the greatest code, so an element is off by at most half a scale:
//! [`Encoding::error_bound`]. A block of zeros is exact. A number that is not finite has no code: NaN becomes 0, an infinity the
//! block's greatest magnitude.
//!
//! # Invariants
//! - The bytes of a vector depend on that vector alone, so that a payload is the same in whatever slices it is made.
//! - Every byte string of the right length decodes, to whatever numbers its scales say; the checksum is what keeps damaged ones out.

use crate::record::constant::encoding;

/// Elements that share a scale.
pub const BLOCK: usize = 32;
const SCALE_BYTES: usize = size_of::<f32>();
/// Magnitudes up to this are written as 0: their scale would have too few digits to divide by.
const TINY: f32 = 1e-30;

/// An encoding of payloads (`ENCODING_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// The bytes as they lie in memory.
    Lossless,
    /// Eight bits and a share of a scale.
    Q8,
    /// Four bits and a share of a scale.
    Q4,
}

impl Encoding {
    /// The encoding of a record's number; none for an unknown one.
    pub fn from_number(number: u8) -> Option<Self> {
        match number {
            encoding::LOSSLESS => Some(Self::Lossless),
            encoding::Q8 => Some(Self::Q8),
            encoding::Q4 => Some(Self::Q4),
            _ => None,
        }
    }

    /// Whether what comes back may differ from what was written.
    pub fn is_lossy(self) -> bool {
        self != Self::Lossless
    }

    /// Bytes of a vector of `elements` numbers that take `element_bytes` bytes each in memory.
    pub fn vector_bytes(self, elements: usize, element_bytes: usize) -> usize {
        let scales = elements.div_ceil(BLOCK) * SCALE_BYTES;
        match self {
            Self::Lossless => elements * element_bytes,
            Self::Q8 => scales + elements,
            // Blocks are even, so only the last one rounds up.
            Self::Q4 => scales + elements.div_ceil(2),
        }
    }

    /// The most by which a decoded element differs from the one encoded, in a block whose greatest magnitude is `block_max`.
    ///
    /// Half a scale, and three roundings of f32 on the way. A runtime that keeps narrower numbers rounds once more to those.
    pub fn error_bound(self, block_max: f32) -> f32 {
        let half_scale = match self {
            Self::Lossless => return 0.0,
            Self::Q8 => block_max / 254.0,
            Self::Q4 => block_max / 14.0,
        };
        half_scale + block_max * (4.0 * f32::EPSILON) + TINY
    }

    /// Writes a vector; `out` has [`Encoding::vector_bytes`] bytes, and of a lossless one those of f32.
    pub fn encode(self, vector: &[f32], out: &mut [u8]) {
        let mut out = out;
        for block in vector.chunks(BLOCK) {
            let bytes = self.vector_bytes(block.len(), size_of::<f32>());
            let (now, rest) = out.split_at_mut(bytes.min(out.len()));
            out = rest;
            match self {
                Self::Lossless => write_floats(block, now),
                Self::Q8 => encode_q8(block, now),
                Self::Q4 => encode_q4(block, now),
            }
        }
    }

    /// Reads a vector written by [`Encoding::encode`].
    pub fn decode(self, bytes: &[u8], vector: &mut [f32]) {
        let mut bytes = bytes;
        for block in vector.chunks_mut(BLOCK) {
            let take = self.vector_bytes(block.len(), size_of::<f32>());
            let (now, rest) = bytes.split_at(take.min(bytes.len()));
            bytes = rest;
            match self {
                Self::Lossless => read_floats(now, block),
                Self::Q8 => decode_q8(now, block),
                Self::Q4 => decode_q4(now, block),
            }
        }
    }
}

fn write_floats(values: &[f32], out: &mut [u8]) {
    for (value, bytes) in values.iter().zip(out.as_chunks_mut::<4>().0) {
        *bytes = value.to_le_bytes();
    }
}

fn read_floats(bytes: &[u8], values: &mut [f32]) {
    for (value, bytes) in values.iter_mut().zip(bytes.as_chunks::<4>().0) {
        *value = f32::from_le_bytes(*bytes);
    }
}

/// The scale of a block whose greatest code is `codes`, and its inverse; zeros for a block of (almost) zeros.
fn scale(block: &[f32], codes: f32) -> (f32, f32) {
    let magnitude = |value: &f32| if value.is_finite() { value.abs() } else { 0.0 };
    let max = block.iter().map(magnitude).fold(0.0, f32::max);
    if max <= TINY { (0.0, 0.0) } else { (max / codes, codes / max) }
}

/// The whole number next to `value * inverse`, between `-codes` and `codes`; ties go to the even one.
#[inline(always)]
fn code(value: f32, inverse: f32, codes: f32) -> i32 {
    // Adding 1.5 * 2^23 leaves no place for a fraction, whatever the processor's instruction for rounding is. A NaN passes
    // `clamp` and becomes the integer 0.
    const ROUND: f32 = 12_582_912.0;
    let exact = (value * inverse).clamp(-codes, codes);
    ((exact + ROUND) - ROUND) as i32
}

fn encode_q8(block: &[f32], out: &mut [u8]) {
    let (scale, inverse) = scale(block, 127.0);
    let Some((head, codes)) = out.split_first_chunk_mut::<SCALE_BYTES>() else { return };
    *head = scale.to_le_bytes();
    for (value, byte) in block.iter().zip(codes) {
        *byte = code(*value, inverse, 127.0) as i8 as u8;
    }
}

fn decode_q8(bytes: &[u8], block: &mut [f32]) {
    let Some((head, codes)) = bytes.split_first_chunk::<SCALE_BYTES>() else { return };
    let scale = f32::from_le_bytes(*head);
    for (value, byte) in block.iter_mut().zip(codes) {
        *value = f32::from(*byte as i8) * scale;
    }
}

fn encode_q4(block: &[f32], out: &mut [u8]) {
    let (scale, inverse) = scale(block, 7.0);
    let Some((head, codes)) = out.split_first_chunk_mut::<SCALE_BYTES>() else { return };
    *head = scale.to_le_bytes();
    let nibble = |value: f32| (code(value, inverse, 7.0) + 8) as u8;
    for (pair, byte) in block.chunks(2).zip(codes) {
        // The half that no element fills is the code of 0.
        let second = pair.get(1).copied().unwrap_or(0.0);
        *byte = pair.first().copied().map_or(8, nibble) | nibble(second) << 4;
    }
}

fn decode_q4(bytes: &[u8], block: &mut [f32]) {
    let Some((head, codes)) = bytes.split_first_chunk::<SCALE_BYTES>() else { return };
    let scale = f32::from_le_bytes(*head);
    for (pair, byte) in block.chunks_mut(2).zip(codes) {
        for (value, nibble) in pair.iter_mut().zip([byte & 15, byte >> 4]) {
            *value = (f32::from(nibble) - 8.0) * scale;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// splitmix64 and a walk over magnitudes: blocks from 1e-20 to 1e20.
    fn vectors(key: u64) -> impl Iterator<Item = Vec<f32>> {
        let mut state = key;
        let mut next = move || {
            state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
            let z = (state ^ state >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            let z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
            z ^ z >> 31
        };
        (0..2000).map(move |round| {
            let magnitude = 10f32.powi(round % 41 - 20);
            let len = 1 + (next() % 100) as usize;
            (0..len).map(|_| ((next() >> 40) as f32 / (1 << 23) as f32 - 1.0) * magnitude).collect()
        })
    }

    /// S-67: the declared error of a lossy encoding holds for every element, in every block length and magnitude.
    #[test]
    fn an_element_is_off_by_at_most_the_declared_error() {
        for encoding in [Encoding::Q8, Encoding::Q4] {
            let mut worst = 0f32;
            for vector in vectors(7) {
                let mut bytes = vec![0; encoding.vector_bytes(vector.len(), 4)];
                encoding.encode(&vector, &mut bytes);
                let mut back = vec![0.0; vector.len()];
                encoding.decode(&bytes, &mut back);
                for (block, back) in vector.chunks(BLOCK).zip(back.chunks(BLOCK)) {
                    let max = block.iter().fold(0f32, |max, value| max.max(value.abs()));
                    for (value, back) in block.iter().zip(back) {
                        let (error, bound) = ((value - back).abs(), encoding.error_bound(max));
                        assert!(error <= bound, "{encoding:?}: {value} came back as {back}, bound {bound}");
                        worst = worst.max(error / bound);
                    }
                }
            }
            assert!(worst > 0.9, "{encoding:?}: the bound is not idle ({worst})");
        }
    }

    #[test]
    fn what_is_lossless_comes_back_to_the_bit() {
        for vector in vectors(8).chain([vec![f32::NAN, f32::INFINITY, -0.0, f32::MIN_POSITIVE / 2.0]]) {
            let mut bytes = vec![0; Encoding::Lossless.vector_bytes(vector.len(), 4)];
            Encoding::Lossless.encode(&vector, &mut bytes);
            let mut back = vec![1.0; vector.len()];
            Encoding::Lossless.decode(&bytes, &mut back);
            let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&vector), bits(&back));
        }
    }

    #[test]
    fn numbers_that_are_not_finite_disturb_no_other() {
        for encoding in [Encoding::Q8, Encoding::Q4] {
            let vector = [f32::NAN, 1.0, f32::INFINITY, -0.5, f32::NEG_INFINITY];
            let mut bytes = vec![0; encoding.vector_bytes(5, 4)];
            encoding.encode(&vector, &mut bytes);
            let mut back = [9.0; 5];
            encoding.decode(&bytes, &mut back);
            let near = |a: f32, b: f32| (a - b).abs() <= encoding.error_bound(1.0);
            assert!(back[0] == 0.0 && near(back[1], 1.0) && near(back[2], 1.0), "{encoding:?} {back:?}");
            assert!(near(back[3], -0.5) && near(back[4], -1.0), "{encoding:?} {back:?}");
        }
    }

    #[test]
    fn zeros_are_exact_and_sizes_are_those_written() {
        assert_eq!(Encoding::Q8.vector_bytes(80, 4), 80 + 3 * 4);
        assert_eq!(Encoding::Q4.vector_bytes(65, 2), 33 + 3 * 4);
        assert_eq!(Encoding::Lossless.vector_bytes(65, 2), 130);
        for encoding in [Encoding::Q8, Encoding::Q4] {
            let mut bytes = vec![1; encoding.vector_bytes(65, 4)];
            encoding.encode(&[0.0; 65], &mut bytes);
            let mut back = [1.0; 65];
            encoding.decode(&bytes, &mut back);
            assert_eq!(back, [0.0; 65]);
        }
        assert_eq!([0, 1, 2, 3].map(|number| Encoding::from_number(number).is_some()), [true, true, true, false]);
    }
}
