//! Products with rounded activations: the formula of `backend/cpu/rounded` in plain code, and bits that depend on one row alone.

#![allow(dead_code, reason = "the shared helpers have more than this file uses")]

#[path = "common/codes.rs"]
mod codes;
#[path = "common/random.rs"]
mod random;

use codes::Group;
use ictus::backend::cpu::{CpuBackend, InstructionSet};
use ictus::backend::{Arithmetic, Backend};
use ictus::tensor::{Bytes, DType, Tensor, dequantise_row};
use random::Random;

/// Types whose values are codes, and where the f16 numbers of their blocks lie.
const TYPES: [(DType, &[usize]); 12] = [
    (DType::Q4_0, &[0]),
    (DType::Q4_1, &[0, 2]),
    (DType::Q5_0, &[0]),
    (DType::Q5_1, &[0, 2]),
    (DType::Q8_0, &[0]),
    (DType::Q2_K, &[80, 82]),
    (DType::Q3_K, &[108]),
    (DType::Q4_K, &[0, 2]),
    (DType::Q5_K, &[0, 2]),
    (DType::Q6_K, &[208]),
    (DType::IQ4_NL, &[0]),
    (DType::IQ4_XS, &[0]),
];

fn backend(set: InstructionSet, threads: usize) -> CpuBackend {
    let backend = CpuBackend::with_instruction_set(threads, set).expect("the instance is there");
    backend.with_arithmetic(Arithmetic::Fast)
}

/// The instances that this processor has; those that fuse give the same bits.
fn instances() -> Vec<InstructionSet> {
    let all = InstructionSet::ALL.iter().copied();
    let (present, absent): (Vec<InstructionSet>, Vec<InstructionSet>) = all.partition(|set| set.is_available());
    for set in absent {
        println!("skipped: this processor has no {}", set.name());
    }
    present
}

fn fuses(set: InstructionSet) -> bool {
    set != InstructionSet::Portable
}

fn uniform(random: &mut Random) -> f32 {
    (random.next() >> 40) as f32 / (1 << 23) as f32 - 1.0
}

/// Rows of activations as models have them: most small, a few large, some blocks of zeros.
fn activations(random: &mut Random, len: usize) -> Vec<f32> {
    let mut values: Vec<f32> = (0..len)
        .map(|_| if random.below(40) == 0 { 30.0 * uniform(random) } else { uniform(random).powi(3) })
        .collect();
    for block in values.chunks_mut(32) {
        if random.below(16) == 0 {
            block.fill(0.0);
        }
    }
    values
}

fn tensor(random: &mut Random, (dtype, halves): (DType, &[usize]), rows: usize, cols: usize) -> Tensor {
    let len = rows * dtype.row_bytes(cols).expect("whole units");
    let mut bytes: Vec<u8> = (0..len).map(|_| random.next() as u8).collect();
    for unit in bytes.chunks_mut(dtype.unit_bytes()) {
        for &at in halves {
            let scale = half::f16::from_f32(uniform(random) / 16.0);
            unit[at..at + 2].copy_from_slice(&scale.to_le_bytes());
        }
    }
    Tensor { dtype, rows, cols, data: Bytes::copy_aligned(&bytes) }
}

fn filled(backend: &CpuBackend, width: usize, values: &[f32]) -> <CpuBackend as Backend>::Buffer {
    let mut buffer = backend.buffer(width);
    backend.resize(&mut buffer, values.len() / width).expect("memory");
    backend.write(&mut buffer, 0, values).expect("the processor writes");
    buffer
}

/// The product of these rows with a matrix, and a bias for it.
fn product(backend: &CpuBackend, weights: &Tensor, x: &[f32], bias: Option<&[f32]>) -> Vec<f32> {
    let matrix = backend.matrix(weights).expect("a matrix");
    let bias = bias.map(|bias| {
        let tensor = Tensor { dtype: DType::F32, rows: 1, cols: bias.len(), data: Bytes::from_f32(bias) };
        backend.vector(&tensor).expect("a vector")
    });
    let rows = x.len() / weights.cols;
    let x = filled(backend, weights.cols, x);
    multiply(backend, &x, &matrix, bias.as_ref(), (rows, weights.rows))
}

fn multiply(
    backend: &CpuBackend,
    x: &<CpuBackend as Backend>::Buffer,
    matrix: &<CpuBackend as Backend>::Matrix,
    bias: Option<&<CpuBackend as Backend>::Vector>,
    (rows, outputs): (usize, usize),
) -> Vec<f32> {
    let mut out = backend.buffer(outputs);
    backend.resize(&mut out, rows).expect("memory");
    backend.linear(x, matrix, bias, &mut out);
    let mut values = vec![0.0; rows * outputs];
    backend.read(&out, 0, &mut values).expect("the processor reads");
    values
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// 16 numbers, rounded: codes and scale.
fn round(block: &[f32]) -> (Vec<i32>, f32) {
    let largest = block.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
    if largest <= 1e-30 {
        return (vec![0; 16], 0.0);
    }
    let codes = block.iter().map(|x| (x * (127.0 / largest)).round_ties_even() as i32).collect();
    (codes, largest / 127.0)
}

/// The formula, in plain code.
fn reference(weights: &Tensor, x: &[f32], fused: bool) -> Vec<f32> {
    let fma = |a: f32, b: f32, c: f32| if fused { a.mul_add(b, c) } else { a * b + c };
    let dot = |w: &[u8], zero: u8, x: &[i32]| {
        w.iter().zip(x).map(|(&w, x)| (i32::from(w) - i32::from(zero)) * x).sum::<i32>() as f32
    };
    let moment = |codes: &[i32], scale: f32| scale * codes.iter().sum::<i32>() as f32;
    let row_bytes = weights.dtype.row_bytes(weights.cols).expect("whole units");
    let mut out = Vec::new();
    for x in x.chunks(weights.cols) {
        for row in weights.data.as_slice().chunks(row_bytes) {
            let groups = codes::groups(weights.dtype, row);
            let mut sum = 0.0;
            for (Group { codes, scale, offset, zero }, x) in groups.iter().zip(x.chunks(groups[0].codes.len())) {
                let halves: Vec<_> = codes.chunks(16).zip(x.chunks(16).map(round)).collect();
                let moments = halves.iter().map(|(_, (codes, scale))| moment(codes, *scale));
                if *zero == 0 {
                    sum =
                        fma(*offset, moments.reduce(|first, second| first + second).expect("a group has a half"), sum);
                }
                // From the second half on, so that the first one is fused with it.
                let products = halves.iter().rev().map(|(w, (x, scale))| (dot(w, *zero, x), *scale));
                let product = products
                    .fold(None, |sum, (dot, x_scale)| Some(sum.map_or(dot * x_scale, |sum| fma(dot, x_scale, sum))));
                sum = fma(product.expect("a group has a half"), *scale, sum);
            }
            out.push(sum);
        }
    }
    out
}

/// Every instance, to the bit.
#[test]
fn every_type_follows_the_formula() {
    let random = &mut Random::new("fast products: formula");
    for kind in TYPES {
        for rows in [1, 5] {
            let most = if kind.0.unit_values() == 32 { 12 } else { 3 };
            let (outputs, cols) = (1 + random.below(90), kind.0.unit_values() * (1 + random.below(most)));
            let weights = tensor(random, kind, outputs, cols);
            let x = activations(random, rows * cols);
            for set in instances() {
                let got = product(&backend(set, 1), &weights, &x, None);
                let expected = reference(&weights, &x, fuses(set));
                assert_eq!(bits(&got), bits(&expected), "{kind:?} {} {rows} x {outputs} x {cols}", set.name());
            }
        }
    }
}

/// Every type and instance against double precision over the decoded weights and the rounded activations.
#[test]
fn every_type_is_near_double_precision() {
    let random = &mut Random::new("fast products: double precision");
    for kind in TYPES {
        let (outputs, cols, rows) = (1 + random.below(70), 256 * (1 + random.below(3)), 1 + random.below(6));
        let weights = tensor(random, kind, outputs, cols);
        let mut decoded = vec![0.0; outputs * cols];
        dequantise_row(kind.0, weights.data.as_slice(), &mut decoded).expect("whole rows");
        let x = activations(random, rows * cols);
        let rounded: Vec<f64> = x
            .chunks(16)
            .map(round)
            .flat_map(|(codes, scale)| codes.into_iter().map(move |code| f64::from(code) * f64::from(scale)))
            .collect();
        for set in instances() {
            let got = product(&backend(set, 1), &weights, &x, None);
            for (row, got) in rounded.chunks(cols).zip(got.chunks(outputs)) {
                for (weights, &got) in decoded.chunks(cols).zip(got) {
                    let exact: f64 = weights.iter().zip(row).map(|(&w, x)| f64::from(w) * x).sum();
                    let largest = weights.iter().fold(0.0f32, |largest, w| largest.max(w.abs()));
                    let sizes = f64::from(largest) * row.iter().map(|x| x.abs()).sum::<f64>();
                    let error = (f64::from(got) - exact).abs();
                    assert!(error <= 2e-6 * sizes, "{kind:?} {}: {got} for {exact}, of {sizes}", set.name());
                }
            }
        }
    }
}

/// Promise 1 for the fast path: a row alone, among others, on any threads, on any instruction set that fuses.
#[test]
fn bits_depend_on_the_row_alone() {
    let random = &mut Random::new("fast products: invariance");
    for kind in TYPES {
        for _ in 0..3 {
            let (outputs, rows) = (1 + random.below(150), 1 + random.below(40));
            let cols = kind.0.unit_values() * (1 + random.below(4));
            let weights = tensor(random, kind, outputs, cols);
            let (x, bias) = (activations(random, rows * cols), activations(random, outputs));
            let mut fused = None;
            for set in instances() {
                let together = product(&backend(set, 1 + random.below(3)), &weights, &x, Some(&bias));
                for (row, (x, together)) in x.chunks(cols).zip(together.chunks(outputs)).enumerate() {
                    let alone = product(&backend(set, 1), &weights, x, Some(&bias));
                    assert_eq!(bits(&alone), bits(together), "{kind:?} {} row {row} of {rows}", set.name());
                }
                if fuses(set) {
                    assert_eq!(bits(&together), *fused.get_or_insert(bits(&together)), "{kind:?} {}", set.name());
                }
            }
        }
    }
}

#[test]
fn flawed_rows_have_no_numbers_and_others_are_untouched() {
    let random = &mut Random::new("fast products: flaws");
    let weights = tensor(random, TYPES[1], 33, 64);
    let clean = activations(random, 4 * 64);
    for set in instances() {
        let backend = backend(set, 1);
        let expected = product(&backend, &weights, &clean, None);
        for flaw in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x = clean.clone();
            x[64 + 40] = flaw;
            let got = product(&backend, &weights, &x, None);
            assert!(got[33..66].iter().all(|value| value.is_nan()), "{} {flaw}", set.name());
            assert_eq!((bits(&got[..33]), bits(&got[66..])), (bits(&expected[..33]), bits(&expected[66..])));
        }
        let mut x = clean.clone();
        x[..64].fill(1e-31);
        assert!(product(&backend, &weights, &x, None)[..33].iter().all(|&value| value == 0.0), "too small to count");
    }
}

/// The rounded rows are kept between products of one buffer; whatever changes the buffer makes them anew.
#[test]
fn a_buffer_that_changed_is_rounded_again() {
    let random = &mut Random::new("fast products: changes");
    for set in instances() {
        let backend = backend(set, 1);
        let (weights, other) = (tensor(random, TYPES[1], 40, 64), tensor(random, TYPES[4], 24, 64));
        let (matrix, matrix_2) = (backend.matrix(&weights).expect("ok"), backend.matrix(&other).expect("ok"));
        let (a, b) = (activations(random, 6 * 64), activations(random, 6 * 64));
        let mut x = filled(&backend, 64, &a);
        let y = filled(&backend, 64, &b);
        let of = |x: &_| multiply(&backend, x, &matrix, None, (6, 40));
        let (first, second) = (product(&backend, &weights, &a, None), product(&backend, &weights, &b, None));
        assert_eq!(bits(&of(&x)), bits(&first));
        assert_eq!(bits(&multiply(&backend, &x, &matrix_2, None, (6, 24))), bits(&product(&backend, &other, &a, None)));
        assert_eq!(bits(&of(&y)), bits(&second), "another buffer");
        assert_eq!(bits(&of(&x)), bits(&first));
        backend.write(&mut x, 0, &b).expect("the processor writes");
        assert_eq!(bits(&of(&x)), bits(&second), "written");
        backend.add(&mut x, &y);
        let sum: Vec<f32> = b.iter().map(|b| b + b).collect();
        assert_eq!(bits(&of(&x)), bits(&product(&backend, &weights, &sum, None)), "added to");
        backend.resize(&mut x, 2).expect("memory");
        let shorter = multiply(&backend, &x, &matrix, None, (2, 40));
        assert_eq!(bits(&shorter), bits(&product(&backend, &weights, &sum[..128], None)), "shorter");
    }
}

#[test]
fn weights_that_are_no_codes_are_multiplied_exactly() {
    let random = &mut Random::new("fast products: plain");
    let x = activations(random, 3 * 100);
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let numbers = activations(random, 20 * 100);
        let bytes: Vec<u8> = match dtype {
            DType::F32 => numbers.iter().flat_map(|x| x.to_le_bytes()).collect(),
            DType::F16 => numbers.iter().flat_map(|&x| half::f16::from_f32(x).to_le_bytes()).collect(),
            _ => numbers.iter().flat_map(|&x| half::bf16::from_f32(x).to_le_bytes()).collect(),
        };
        let weights = Tensor { dtype, rows: 20, cols: 100, data: Bytes::copy_aligned(&bytes) };
        for set in instances() {
            let exact = CpuBackend::with_instruction_set(1, set).expect("the instance is there");
            let (exact, fast) = (product(&exact, &weights, &x, None), product(&backend(set, 1), &weights, &x, None));
            assert_eq!(bits(&exact), bits(&fast), "{dtype:?} {}", set.name());
        }
    }
}
