#[path = "../../../../tests/common/random.rs"]
#[allow(dead_code, reason = "the shared helpers have more than this file uses")]
mod random;

use super::*;
use crate::backend::cpu::dispatch::{InstructionSet, Isa};
use crate::backend::cpu::simd::{IntegerOp, Integers, part};
use crate::tensor::dequantise_row;
use random::Random;

/// Rows of any bytes in which nothing decodes to an infinity: wherever an f16 scale may lie, its exponent is not all ones.
fn rows(dtype: DType, rows: usize, cols: usize, random: &mut Random) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..rows * dtype.row_bytes(cols).unwrap()).map(|_| random.next() as u8).collect();
    let scales: &[usize] = match dtype {
        DType::Q2_K => &[80, 82],
        DType::Q3_K => &[108],
        DType::Q6_K => &[208],
        DType::Q4_1 | DType::Q5_1 | DType::Q4_K | DType::Q5_K => &[0, 2],
        _ => &[0],
    };
    for unit in bytes.chunks_mut(dtype.unit_bytes()) {
        match dtype {
            DType::F32 => unit[3] &= 0xbf,
            DType::BF16 | DType::F16 => unit[1] &= 0xbf,
            _ => scales.iter().for_each(|&at| unit[at + 1] &= 0xbf),
        }
    }
    bytes
}

/// Decodes a row group: `[cols][16]`.
struct Whole<'a>(Weights<'a>, &'a mut [[f32; ROWS]]);

impl Op for Whole<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self(weights, out) = self;
        let mut columns = vec![[0.0; ROWS]; out.len().next_multiple_of(BLOCK)];
        let blocks = 0..columns.len() / BLOCK;
        // In two parts, which a superblock may lie in both of.
        let half = blocks.end / 2;
        let (first, second) = columns.split_at_mut(half * BLOCK);
        decode(s, weights.dtype, Decode { group: weights.group(0), blocks: 0..half, to: first });
        decode(s, weights.dtype, Decode { group: weights.group(0), blocks: half..blocks.end, to: second });
        out.copy_from_slice(&columns[..out.len()]);
    }
}

fn same(a: f32, b: f32) -> bool {
    // A zero may have the other sign: 8 d - 8 d is +0, and d * 0 has the sign of d.
    a.to_bits() == b.to_bits() || (a == 0.0 && b == 0.0)
}

#[test]
fn every_type_decodes_from_tiles_to_the_bits_of_the_truth() {
    let mut random = Random::new("tiles");
    let sets = InstructionSet::ALL.iter().filter_map(|&set| Isa::new(set).map(|isa| (set, isa)));
    for (set, isa) in sets {
        for &dtype in DType::ALL {
            let all: &[usize] = match dtype.unit_values() {
                1 => &[1, 7, 31, 32, 33, 64, 101],
                32 => &[32, 96, 576],
                _ => &[256, 768],
            };
            for (&cols, present) in all.iter().cycle().take(12).zip([1, 2, 5, 15, 16, 16].into_iter().cycle()) {
                let bytes = rows(dtype, present, cols, &mut random);
                let split: Vec<&[u8]> = bytes.chunks(dtype.row_bytes(cols).unwrap()).collect();
                let len = group_bytes(dtype, cols).unwrap();
                // Wherever the row group begins: an odd address is none that a load asks for.
                let mut memory = vec![0; len + 1];
                pack(dtype, &split, &mut memory[1..]);
                let mut got = vec![[9.0; ROWS]; cols];
                let weights = Weights { dtype, bytes: &memory[1..], group_bytes: len, rows: present, cols };
                isa.run(Whole(weights, &mut got));
                for r in 0..ROWS {
                    let mut exact = vec![0.0; cols];
                    if let Some(row) = split.get(r) {
                        dequantise_row(dtype, row, &mut exact).unwrap();
                    }
                    for (k, exact) in exact.into_iter().enumerate() {
                        let got = got[k][r];
                        let what = (set.name(), dtype, cols, present);
                        assert!(same(got, exact), "{what:?} row {r}, column {k}: {got:e} instead of {exact:e}");
                    }
                }
            }
        }
    }
}

#[test]
fn tiles_take_no_more_than_a_few_hundredths_above_the_file() {
    for &dtype in DType::ALL {
        let (tile, file) = (group_bytes(dtype, 256).unwrap(), 16 * dtype.row_bytes(256).unwrap());
        assert!(tile >= file && tile * 100 <= file * 104, "{dtype:?}: {tile} for {file}");
        assert_eq!(group_bytes(dtype, 255).is_none(), dtype.unit_values() > 1);
    }
}

/// The integer products of some columns of each block of 256 columns with the same four numbers.
struct Dots<'a, Q>(&'a [u8], [i8; 4], PhantomData<Q>);

impl<Q: Quant> IntegerOp for Dots<'_, Q> {
    type Output = [f32; ROWS];

    #[inline(always)]
    fn run<S: Integers>(self, s: S) -> [f32; ROWS] {
        let Self(group, x, _) = self;
        let mut sum = s.zero_i();
        for block in 0..MOST_BLOCKS {
            let (unit, b) = Q::unit(group, block);
            for codes in codes::<S, Q::Codes, 2>(s, Q::lines(unit, b)) {
                sum = if Q::Codes::LARGEST <= 127 {
                    s.dot(sum, codes, x)
                } else {
                    s.dot_signed(sum, s.xor_c(codes, s.splat_c(0x80)), x)
                };
            }
        }
        let mut out = [0.0; ROWS];
        s.store_w(s.numbers(sum), &mut out);
        out
    }
}

fn dots_are_exact<Q: Quant>(random: &mut Random) {
    let units = MOST_BLOCKS * BLOCK / Q::COLS;
    let bytes: Vec<u8> = (0..ROWS * units * Q::FILE_BYTES).map(|_| random.next() as u8).collect();
    let split: Vec<&[u8]> = bytes.chunks(units * Q::FILE_BYTES).collect();
    let mut memory = vec![0; units * Q::BYTES];
    pack(Q::DTYPE, &split, &mut memory);
    for x in [[1, 2, 3, 4], [127; 4], [-127; 4], [127, -127, 0, -1]] {
        let mut exact = [0_i32; ROWS];
        for (exact, row) in exact.iter_mut().zip(&split) {
            for unit in row.chunks(Q::FILE_BYTES) {
                let mut words = [Words::ZERO; 64];
                Q::file_codes(Unit::new(&[unit; ROWS], 0), &mut words);
                for word in words.chunks(8).take(Q::COLS / BLOCK).flat_map(|block| &block[4..6]) {
                    let mut line = [0; LINE];
                    word.store(&mut line);
                    for (&code, x) in line.iter().zip(x) {
                        let code = Q::Codes::TABLE.map_or(code, |levels| levels[usize::from(code)]);
                        assert!(code <= Q::Codes::LARGEST);
                        let code = i32::from(code) - if Q::Codes::LARGEST > 127 { 128 } else { 0 };
                        *exact += code * i32::from(x);
                    }
                }
            }
        }
        for isa in InstructionSet::ALL.iter().filter_map(|&set| Isa::new(set)) {
            let got = isa.run_integers(Dots::<Q>(&memory, x, PhantomData));
            assert_eq!(got, exact.map(|sum| sum as f32), "{isa:?} {x:?}");
        }
    }
}

#[test]
fn integer_products_of_codes_are_exact() {
    let mut random = Random::new("codes");
    for _ in 0..20 {
        for &dtype in DType::ALL {
            with_quant!(dtype, Q => dots_are_exact::<Q>(&mut random), else {});
        }
    }
}

/// Every operation of [`Wide`] on given bytes, as bits.
struct Everything<'a>(&'a [u8; 64], &'a [u8; 64]);

impl Op for Everything<'_> {
    type Output = Vec<u32>;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> Vec<u32> {
        let (a, b) = (s.load_c(self.0), s.load_c(self.1));
        let low = s.and_c(a, s.splat_c(15));
        let table: &[u8; 16] = part(self.0, 0);
        let mut all = Vec::new();
        let shifts = [(s.shr_c(a, 0), 0), (s.shr_c(a, 5), 1), (s.shl_c(a, 31), 2), (s.shl_c(a, 9), 3)];
        let codes = shifts.map(|(codes, _)| codes).into_iter().chain([
            a,
            b,
            s.and_c(a, b),
            s.or_c(a, b),
            s.xor_c(a, b),
            s.splat_c(0xa5),
            s.widen_c(part(self.0, 3)),
            s.lookup_c(table, low),
        ]);
        for codes in codes {
            let factors = S::BYTE_FACTORS;
            let bytes = [
                (s.byte::<0>(codes), factors[0]),
                (s.byte::<1>(codes), factors[1]),
                (s.byte::<2>(codes), factors[2]),
                (s.byte::<3>(codes), factors[3]),
            ];
            all.extend(bytes.map(|(w, factor)| s.mul_w(w, s.splat_w(1.0 / factor))));
        }
        let x = s.load_w_i8(part(self.0, 7));
        let y = s.load_w_i8(part(self.1, 1));
        // Small integers: nothing is rounded, so a fused product and sum is like another.
        all.extend([x, y, s.add_w(x, y), s.mul_w(x, y), s.fma_w(x, y, s.splat_w(3.0)), s.splat_w(-0.75)]);
        all.extend([s.load_w_f16(part(self.0, 5)), s.load_w_bf16(part(self.0, 9)), s.load_w_f32(self.1)]);
        let mut numbers = [0.0; 16];
        s.store_w(x, &mut numbers);
        all.push(s.load_w(&numbers));
        let mut out = Vec::new();
        for w in all {
            let mut lanes = [0.0_f32; 16];
            s.store_w(w, &mut lanes);
            out.extend(lanes.map(f32::to_bits));
        }
        out
    }
}

#[test]
fn instances_agree_on_every_operation_of_sixteen_lanes() {
    let mut random = Random::new("instances");
    for _ in 0..100 {
        let mut bytes = [[0_u8; 64]; 2];
        bytes.as_flattened_mut().iter_mut().for_each(|byte| *byte = random.next() as u8 & 0xbf);
        let expected = Isa::PORTABLE.run(Everything(&bytes[0], &bytes[1]));
        for (set, isa) in InstructionSet::ALL.iter().filter_map(|&set| Isa::new(set).map(|isa| (set, isa))) {
            let got = isa.run(Everything(&bytes[0], &bytes[1]));
            let differs = got.iter().zip(&expected).position(|(got, expected)| got != expected);
            assert_eq!(differs.map(|at| (at / 16, at % 16, got[at], expected[at])), None, "{}", set.name());
        }
    }
}
