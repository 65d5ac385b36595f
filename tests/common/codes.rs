//! Quantised rows as their formats define them, in plain code: integers, and what scales them.

use ictus::tensor::DType;

/// Columns that share a scale: `weight = code * scale + offset`.
pub(crate) struct Group {
    pub(crate) codes: Vec<u8>,
    pub(crate) scale: f32,
    pub(crate) offset: f32,
    /// The code of 0, where the format has one for all: then `offset = -zero * scale`. Else 0.
    pub(crate) zero: u8,
}

/// The levels of IQ4_NL and IQ4_XS, 128 above what they are.
const LEVELS: [u8; 16] = [1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241];

/// The groups of a row; none where its values are no codes.
pub(crate) fn groups(dtype: DType, row: &[u8]) -> Vec<Group> {
    if dtype.unit_values() == 1 {
        return Vec::new();
    }
    row.chunks(dtype.unit_bytes()).flat_map(|unit| unit_groups(dtype, unit)).collect()
}

fn unit_groups(dtype: DType, unit: &[u8]) -> Vec<Group> {
    let half = |at: usize| half::f16::from_le_bytes([unit[at], unit[at + 1]]).to_f32();
    // Of simple blocks: value `i` of 32.
    let nibble = |at: usize, i: usize| unit[at + i % 16] >> (4 * (i / 16)) & 15;
    let fifth = |at: usize, i: usize| (unit[at + i / 8] >> (i % 8) & 1) << 4;
    // Of superblocks: value `i` of 256.
    let two = |at: usize, i: usize| unit[at + 32 * (i / 128) + i % 32] >> (2 * (i / 32 % 4)) & 3;
    let four = |at: usize, i: usize| unit[at + 32 * (i / 64) + i % 32] >> (4 * (i / 32 % 2)) & 15;
    let one = |at: usize, i: usize| unit[at + i % 32] >> (i / 32) & 1;
    let six = |i: usize| unit[64 * (i / 128) + i % 64] >> (4 * (i / 64 % 2)) & 15 | two(128, i) << 4;
    let six_bits = |g: usize| match g {
        0..4 => [unit[4 + g] & 63, unit[8 + g] & 63],
        _ => [unit[8 + g] & 15 | unit[g] >> 6 << 4, unit[8 + g] >> 4 | unit[4 + g] >> 6 << 4],
    };
    let split = |len: usize, code: &dyn Fn(usize) -> u8, scales: &dyn Fn(usize) -> (f32, f32, u8)| {
        let one = |g: usize| {
            let (scale, offset, zero) = scales(g);
            Group { codes: (g * len..(g + 1) * len).map(code).collect(), scale, offset, zero }
        };
        (0..dtype.unit_values() / len).map(one).collect::<Vec<Group>>()
    };
    let around = |scale: f32, zero: u8| (scale, scale * -f32::from(zero), zero);
    let above = |g: usize| {
        let [scale, minimum] = six_bits(g);
        (half(0) * f32::from(scale), -(half(2) * f32::from(minimum)), 0)
    };
    match dtype {
        DType::Q4_0 => split(32, &|i| nibble(2, i), &|_| around(half(0), 8)),
        DType::Q4_1 => split(32, &|i| nibble(4, i), &|_| (half(0), half(2), 0)),
        DType::Q5_0 => split(32, &|i| nibble(6, i) | fifth(2, i), &|_| around(half(0), 16)),
        DType::Q5_1 => split(32, &|i| nibble(8, i) | fifth(4, i), &|_| (half(0), half(2), 0)),
        DType::Q8_0 => split(32, &|i| unit[2 + i] ^ 0x80, &|_| around(half(0), 128)),
        DType::IQ4_NL => split(32, &|i| LEVELS[usize::from(nibble(2, i))], &|_| around(half(0), 128)),
        DType::Q2_K => split(16, &|i| two(16, i), &|g| {
            (half(80) * f32::from(unit[g] & 15), -(half(82) * f32::from(unit[g] >> 4)), 0)
        }),
        DType::Q3_K => split(16, &|i| two(32, i) | one(0, i) << 2, &|g| {
            let bits = unit[96 + g % 8] >> (4 * (g / 8)) & 15 | (unit[104 + g % 4] >> (2 * (g / 4)) & 3) << 4;
            around(half(108) * (f32::from(bits) - 32.0), 4)
        }),
        DType::Q4_K => split(32, &|i| four(16, i), &above),
        DType::Q5_K => split(32, &|i| four(48, i) | one(16, i) << 4, &above),
        DType::Q6_K => split(16, &six, &|g| around(half(208) * f32::from(unit[192 + g].cast_signed()), 32)),
        DType::IQ4_XS => {
            let code = |i: usize| LEVELS[usize::from(unit[8 + 16 * (i / 32) + i % 16] >> (4 * (i / 16 % 2)) & 15)];
            split(32, &code, &|g| {
                let upper = u16::from_le_bytes([unit[2], unit[3]]) >> (2 * g) & 3;
                let bits = u16::from(unit[4 + g / 2] >> (4 * (g % 2)) & 15) | upper << 4;
                around(half(0) * (f32::from(bits) - 32.0), 128)
            })
        }
        other => panic!("{other:?} has no codes"),
    }
}
