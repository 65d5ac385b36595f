//! Fast products: rows rounded as the definition says, sums of what was rounded within the bounds of their order, and the same bits by every kernel.

use half::{bf16, f16};
use ictus::tensor::{DType, Tensor};

use crate::linear::{name, upload};
use crate::random::Random;
use crate::simulator::{Arg, Device, Memory, args, device};
use crate::weights::{bits, decoded, tensor, uniform, values};

/// Unit of rounding of single precision.
const U: f64 = 1.0 / (1 << 24) as f64;

/// Rows on the device as products take them, and the numbers that they stand for.
struct Rounded {
    values: Memory,
    notes: Memory,
    rows: usize,
    numbers: Vec<f64>,
}

fn is_coded(dtype: DType) -> bool {
    !matches!(dtype, DType::F16 | DType::BF16)
}

fn round(device: &mut Device, x: &[f32], dtype: DType, cols: usize) -> Rounded {
    if is_coded(dtype) { round_to_codes(device, x, cols) } else { round_to_16(device, x, dtype, cols) }
}

fn round_to_codes(device: &mut Device, x: &[f32], cols: usize) -> Rounded {
    let (rows, groups) = (x.len() / cols, cols / 32);
    let padded = rows.next_multiple_of(2);
    let (values, notes) = (device.room::<u8>(rows * cols), device.room::<u32>(2 * padded * groups));
    let x = device.upload(x);
    device.launch("ictus_round_s8", [padded, groups.div_ceil(8), 1], args![values, notes, x, rows as u32, cols as u32]);
    let (codes, words) = (device.read::<u8>(values), device.read::<u32>(notes));
    let number = |i: usize| {
        let (row, col) = (i / cols, i % cols);
        let (group, word) = (col / 32, col % 32 / 4);
        let place = [0, 2, 4, 6, 1, 3, 5, 7][word];
        let scale = f32::from_bits(words[2 * (group * padded + row)]);
        f64::from(codes[i - i % 32 + 4 * place + i % 4] as i8) * f64::from(scale)
    };
    Rounded { values, notes, rows, numbers: (0..rows * cols).map(number).collect() }
}

fn round_to_16(device: &mut Device, x: &[f32], dtype: DType, cols: usize) -> Rounded {
    let (rows, padded) = (x.len() / cols, cols.next_multiple_of(32));
    let (values, notes) = (device.room::<u16>(rows * padded), device.room::<f32>(rows));
    let x = device.upload(x);
    let kernel = format!("ictus_round_{}", name(dtype));
    device.launch(&kernel, [rows, 1, 1], args![values, notes, x, cols as u32, padded as u32]);
    let words = device.read::<u16>(values);
    let scales = if dtype == DType::F16 { device.read::<f32>(notes) } else { vec![1.0; rows] };
    assert!((0..rows * padded).all(|i| i % padded < cols || words[i] == 0), "zeros behind the columns");
    let number = |i: usize| {
        let word = words[i / cols * padded + i % cols];
        let number = if dtype == DType::F16 { f16::from_bits(word).to_f64() } else { bf16::from_bits(word).to_f64() };
        number * f64::from(scales[i / cols])
    };
    Rounded { values, notes, rows, numbers: (0..rows * cols).map(number).collect() }
}

/// Kernels that take weights of this type, with the outputs and rows of their blocks.
fn kernels(dtype: DType) -> Vec<(&'static str, usize, usize)> {
    if is_coded(dtype) {
        vec![("m1", 4, 1), ("m16", 16, 16), ("m64", 64, 64)]
    } else {
        vec![("m16", 16, 16), ("m64", 64, 64), ("m128", 128, 128)]
    }
}

fn product(
    device: &mut Device,
    x: &Rounded,
    weight: &Tensor,
    bias: Option<&[f32]>,
    (kernel, outputs, rows): (&str, usize, usize),
) -> Vec<f32> {
    let matrix = upload(device, weight);
    let out = device.room::<f32>(x.rows * weight.rows);
    let bias = bias.map_or(Arg::Null, |bias| device.upload(bias).into());
    let grid = [weight.rows.div_ceil(outputs), x.rows.div_ceil(rows), 1];
    let kernel = format!("ictus_fast_{}_{kernel}", name(weight.dtype));
    let (count, cols) = (x.rows as u32, weight.cols as u32);
    let (values, notes, padded_rows) = (x.values, x.notes, x.rows.next_multiple_of(2) as u32);
    let sizes = if is_coded(weight.dtype) { [padded_rows, cols] } else { [cols, cols.next_multiple_of(32)] };
    let [first, second] = sizes;
    device.launch(&kernel, grid, args![out, values, notes, matrix, bias, count, first, second, weight.rows as u32]);
    device.read(out)
}

fn fast_types() -> impl Iterator<Item = DType> {
    DType::ALL.iter().copied().filter(|&dtype| dtype != DType::F32)
}

fn columns(dtype: DType) -> &'static [usize] {
    match dtype.unit_values() {
        1 => &[8, 32, 104, 576],
        32 => &[32, 96, 576],
        _ => &[256, 768],
    }
}

/// Activations as they are in models: a few large ones among many small ones.
fn activations(random: &mut Random, len: usize) -> Vec<f32> {
    let mut x = values(random, len);
    x.iter_mut().for_each(|x| *x *= if random.below(40) == 0 { 300.0 } else { 1.0 });
    x
}

#[test]
fn cuda_rows_are_rounded_to_the_nearest_code() {
    let Some(mut device) = device() else { return };
    let mut random = Random::new("round s8");
    let mut x = activations(&mut random, 3 * 288);
    x[32..64].fill(0.0);
    x[64..96].iter_mut().for_each(|x| *x *= 1e-35);
    let numbers = device.in_every_schedule(|device| bits_64(&round_to_codes(device, &x, 288).numbers));
    for (group, (x, numbers)) in x.chunks(32).zip(numbers.chunks(32)).enumerate() {
        let most = x.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
        for (x, &number) in x.iter().zip(numbers) {
            let error = (f64::from(*x) - f64::from_bits(number)).abs();
            // Half of a step, and what a quotient and a product of single precision lose of 127 steps.
            let bound = if most < 1e-30 { 1e-30 } else { f64::from(most) / 127.0 * (0.5 + 127.0 * 4.0 * U) };
            assert!(error <= bound, "group {group}: {x} became {}", f64::from_bits(number));
        }
    }
    // The sums beside the scales are those of the codes.
    let rounded = round_to_codes(&mut device, &x, 288);
    let (codes, notes) = (device.read::<u8>(rounded.values), device.read::<u32>(rounded.notes));
    for (group, codes) in codes.chunks(32).enumerate() {
        let sums = notes[2 * (group % 9 * 4 + group / 9) + 1];
        let sum =
            |odd: usize| codes.chunks(4).skip(odd).step_by(2).flatten().map(|&code| i32::from(code as i8)).sum::<i32>();
        assert_eq!([sums as i16, (sums >> 16) as i16].map(i32::from), [sum(0), sum(1)], "group {group}");
    }
}

fn bits_64(values: &[f64]) -> Vec<u64> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn cuda_rows_are_rounded_to_sixteen_bits_and_large_ones_do_not_overflow() {
    let Some(mut device) = device() else { return };
    let mut random = Random::new("round 16");
    for (dtype, unit) in [(DType::BF16, 1.0 / 256.0), (DType::F16, 1.0 / 2048.0)] {
        for size in [1.0_f32, 1e9, 1e-9, 3e38] {
            let x: Vec<f32> = values(&mut random, 2 * 104).iter().map(|x| x * size).collect();
            let numbers = device.in_every_schedule(|device| bits_64(&round_to_16(device, &x, dtype, 104).numbers));
            for (x, &number) in x.iter().zip(&numbers) {
                let error = (f64::from(*x) - f64::from_bits(number)).abs();
                let bound = f64::from(x.abs()) * unit + f64::from(size) * f64::from(2.0_f32.powi(-38)) + 1e-45;
                assert!(error <= bound, "{dtype:?}: {x} became {}", f64::from_bits(number));
            }
        }
    }
}

#[test]
fn cuda_fast_products_match_exact_sums_of_rounded_rows() {
    let Some(mut device) = device() else { return };
    let mut random = Random::new("fast");
    for dtype in fast_types() {
        for &cols in columns(dtype) {
            for kernel in kernels(dtype) {
                for (rows, outputs) in [(1, 1), (3, 21), (17, 66)] {
                    let weight = tensor(&mut random, dtype, outputs, cols);
                    let (x, bias) = (activations(&mut random, rows * cols), values(&mut random, outputs));
                    let x = round(&mut device, &x, dtype, cols);
                    let got = product(&mut device, &x, &weight, Some(&bias), kernel);
                    check_sums(&got, &x, &weight, &bias, kernel.0);
                }
            }
        }
    }
}

fn check_sums(got: &[f32], x: &Rounded, weight: &Tensor, bias: &[f32], kernel: &str) {
    let (w, cols, outputs) = (decoded(weight), weight.cols, weight.rows);
    for (i, &got) in got.iter().enumerate() {
        let (row, output) = (i / outputs, i % outputs);
        let pairs = x.numbers[row * cols..][..cols].iter().zip(&w[output * cols..]);
        let terms = pairs.map(|(&a, &b)| a * f64::from(b));
        let (sum, size) = terms.fold((0.0, 0.0), |(sum, size), t| (sum + t, size + t.abs()));
        let exact = sum + f64::from(bias[output]);
        // Weights with a minimum are decoded with one rounding more, of numbers as large as a code and its scale.
        let largest = w[output * cols..][..cols].iter().fold(0.0_f64, |most, &w| most.max(f64::from(w).abs()));
        let rows_size: f64 = x.numbers[row * cols..][..cols].iter().map(|x| x.abs()).sum();
        let size = size.max(2.0 * largest * rows_size);
        // A chain has two sums for each of its groups, of which each and its factor round, or two steps of tensor cores, which may cut off each of 17
        // terms behind 2^-23 of the largest; then there are eight chains.
        let groups = cols.div_ceil(32).div_ceil(8) as f64;
        let bound = (groups * if is_coded(weight.dtype) { 4.0 } else { 2.0 * 17.0 * 2.0 } + 9.0) * U * size
            + 2.0 * U * exact.abs()
            + 1e-30;
        let error = (f64::from(got) - exact).abs();
        let what = (weight.dtype, kernel, cols, outputs, x.rows);
        assert!(error <= bound, "{what:?} [{row}][{output}]: {error:e} above {bound:e}");
    }
}

/// Promise 1: kernels for one row, for few and for many give a row the same bits, among any others.
#[test]
fn cuda_fast_product_has_the_same_bits_by_every_kernel_and_number_of_rows() {
    let Some(mut device) = device() else { return };
    let mut random = Random::new("fast bits");
    const OUTPUTS: usize = 66;
    for dtype in fast_types() {
        let cols = *columns(dtype).last().expect("there are some");
        let weight = tensor(&mut random, dtype, OUTPUTS, cols);
        let x = activations(&mut random, 130 * cols);
        let all = round(&mut device, &x, dtype, cols);
        let most = *kernels(dtype).last().expect("there are some");
        let expected = bits(&product(&mut device, &all, &weight, None, most));
        for (rows, first) in [(1, 0), (1, 129), (3, 5), (8, 100), (16, 114), (17, 60), (64, 66)] {
            let some = round(&mut device, &x[first * cols..][..rows * cols], dtype, cols);
            for kernel in kernels(dtype) {
                if kernel.0 == "m1" && rows > 8 {
                    continue; // as it is for three, and slow in the simulator
                }
                let got = bits(&product(&mut device, &some, &weight, None, kernel));
                assert_eq!(got, expected[first * OUTPUTS..][..rows * OUTPUTS], "{dtype:?} {} {rows} rows", kernel.0);
            }
        }
    }
}

#[test]
fn cuda_fast_products_do_not_depend_on_the_order_of_threads() {
    let Some(mut device) = device() else { return };
    let mut random = Random::new("fast schedules");
    for dtype in fast_types() {
        let cols = *columns(dtype).last().expect("there are some");
        let weight = tensor(&mut random, dtype, 5, cols);
        let x = activations(&mut random, 3 * cols);
        for kernel in kernels(dtype) {
            device.in_every_schedule(|device| {
                let x = round(device, &x, dtype, cols);
                bits(&product(device, &x, &weight, None, kernel))
            });
        }
    }
}

/// An infinity or no number in a row takes the row's outputs with it, and no other's.
#[test]
fn cuda_flawed_rows_have_no_numbers_and_others_are_untouched() {
    let Some(mut device) = device() else { return };
    let mut random = Random::new("fast flaws");
    for dtype in [DType::Q4_0, DType::Q6_K, DType::BF16, DType::F16] {
        let cols = 256;
        let weight = tensor(&mut random, dtype, 5, cols);
        let mut x: Vec<f32> = (0..3 * cols).map(|_| uniform(&mut random)).collect();
        for kernel in kernels(dtype) {
            let whole = round(&mut device, &x, dtype, cols);
            let sound = product(&mut device, &whole, &weight, None, kernel);
            for flaw in [f32::INFINITY, f32::NAN] {
                let kept = std::mem::replace(&mut x[cols + 7], flaw);
                let flawed = round(&mut device, &x, dtype, cols);
                let got = product(&mut device, &flawed, &weight, None, kernel);
                x[cols + 7] = kept;
                assert!(got[5..10].iter().all(|value| !value.is_finite()), "{dtype:?} {}: {:?}", kernel.0, &got[5..10]);
                assert_eq!([&got[..5], &got[10..]].concat(), [&sound[..5], &sound[10..]].concat(), "{dtype:?}");
            }
        }
    }
}
