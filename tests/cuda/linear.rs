//! Rows of tables and products with weights of every element type.

use ictus::tensor::{DType, Tensor};

use crate::random::Random;
use crate::simulator::{Arg, Device, Memory, args, device};
use crate::weights::{bits, columns, decoded, tensor, values};

/// Unit of rounding of single precision.
const U: f64 = 1.0 / (1 << 24) as f64;

/// Rows that a launch of a kernel takes at a time.
const ROWS: [usize; 3] = [1, 4, 16];

pub(crate) fn name(dtype: DType) -> String {
    format!("{dtype:?}").to_lowercase()
}

/// Weights as a driver takes them: in elements of the kernel's own type.
pub(crate) fn upload(device: &mut Device, weight: &Tensor) -> Memory {
    let bytes = weight.data.as_slice();
    match weight.dtype {
        DType::F32 => {
            let words: Vec<f32> = bytes.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect();
            device.upload(&words)
        }
        DType::F16 | DType::BF16 => {
            let words: Vec<u16> = bytes.as_chunks().0.iter().map(|&bytes| u16::from_le_bytes(bytes)).collect();
            device.upload(&words)
        }
        _ => device.upload(bytes),
    }
}

fn product(device: &mut Device, x: &[f32], weight: &Tensor, bias: Option<&[f32]>, at_a_time: usize) -> Vec<f32> {
    let rows = x.len() / weight.cols;
    let (x, matrix) = (device.upload(x), upload(device, weight));
    let out = device.room::<f32>(rows * weight.rows);
    let bias = bias.map_or(Arg::Null, |bias| device.upload(bias).into());
    let kernel = format!("ictus_linear_{}_m{at_a_time}", name(weight.dtype));
    let grid = [weight.rows.div_ceil(4), rows.div_ceil(at_a_time), 1];
    let arguments = args![out, x, matrix, bias, rows as u32, weight.cols as u32, weight.rows as u32];
    device.launch(&kernel, grid, arguments);
    device.read(out)
}

#[test]
fn cuda_every_type_decodes_to_the_bits_of_the_truth() {
    let Some(mut device) = device() else { return };
    let mut random = Random::new("embed");
    for dtype in DType::ALL.iter().copied() {
        for &cols in columns(dtype) {
            let table = tensor(&mut random, dtype, 4, cols);
            let run = |device: &mut Device, tokens: &[u32], scale: f32| {
                let (memory, tokens_memory) = (upload(device, &table), device.upload(tokens));
                let out = device.room::<f32>(tokens.len() * cols);
                let kernel = format!("ictus_embed_{}", name(dtype));
                device.launch(&kernel, [tokens.len(), 1, 1], args![out, memory, tokens_memory, cols as u32, scale]);
                device.read::<f32>(out)
            };
            let got = run(&mut device, &[0, 1, 2, 3], 1.0);
            // The sign of a zero is not kept.
            let unsigned = |values: &[f32]| values.iter().map(|value| (value + 0.0).to_bits()).collect::<Vec<_>>();
            assert_eq!(unsigned(&got), unsigned(&decoded(&table)), "{dtype:?} {cols}");
            let scaled = run(&mut device, &[3, 1, 3], 0.3);
            let expected = [3, 1, 3].iter().flat_map(|&row| &got[row * cols..][..cols]);
            assert_eq!(bits(&scaled), expected.map(|value| (value * 0.3).to_bits()).collect::<Vec<_>>(), "{dtype:?}");
        }
    }
}

#[test]
fn cuda_products_match_exact_sums() {
    let Some(mut device) = device() else { return };
    let mut random = Random::new("linear");
    for dtype in DType::ALL.iter().copied() {
        for &cols in columns(dtype) {
            for (rows, outputs, at_a_time) in
                [(1, 1, 1), (1, 23, 1), (2, 5, 4), (3, 13, 1), (6, 3, 4), (16, 4, 16), (17, 2, 16)]
            {
                let weight = tensor(&mut random, dtype, outputs, cols);
                let (x, bias) = (values(&mut random, rows * cols), values(&mut random, outputs));
                let got = product(&mut device, &x, &weight, Some(&bias), at_a_time);
                let w = decoded(&weight);
                for (i, &got) in got.iter().enumerate() {
                    let (row, output) = (i / outputs, i % outputs);
                    let pairs = x[row * cols..][..cols].iter().zip(&w[output * cols..]);
                    let terms = pairs.map(|(&a, &b)| f64::from(a) * f64::from(b));
                    let (sum, size) = terms.fold((0.0, 0.0), |(sum, size), t| (sum + t, size + t.abs()));
                    let exact = sum + f64::from(bias[output]);
                    // A lane's chain has at most this many sums, and the butterfly five.
                    let chain = cols.div_ceil(256) as f64 * 8.0 + 6.0;
                    let bound = chain * U * size + 2.0 * U * exact.abs() + 1e-30;
                    let error = (f64::from(got) - exact).abs();
                    let what = (dtype, cols, rows, outputs, at_a_time);
                    assert!(error <= bound, "{what:?} [{row}][{output}]: {error:e} above {bound:e}");
                }
            }
        }
    }
}

/// Promise: an output's bits depend on its row and its weights, neither on the rows beside it nor on the kernel's number of rows.
#[test]
fn cuda_product_has_the_same_bits_alone_and_among_others() {
    let Some(mut device) = device() else { return };
    let mut random = Random::new("linear bits");
    for dtype in DType::ALL.iter().copied() {
        let cols = *columns(dtype).last().expect("there are some");
        let weight = tensor(&mut random, dtype, 5, cols);
        let x = values(&mut random, 17 * cols);
        let alone: Vec<Vec<u32>> =
            x.chunks(cols).map(|row| bits(&product(&mut device, row, &weight, None, 1))).collect();
        for at_a_time in ROWS {
            for rows in [1, 3, 17] {
                let mut order: Vec<usize> = (0..17).collect();
                random.shuffle(&mut order);
                order.truncate(rows);
                let some: Vec<f32> = order.iter().flat_map(|&row| &x[row * cols..][..cols]).copied().collect();
                let got = product(&mut device, &some, &weight, None, at_a_time);
                for (got, &row) in got.chunks(5).zip(&order) {
                    assert_eq!(bits(got), alone[row], "{dtype:?} {rows} {at_a_time}");
                }
            }
        }
        let first = device.in_every_schedule(|device| bits(&product(device, &x[..2 * cols], &weight, None, 4)));
        assert_eq!(first, alone[..2].concat(), "{dtype:?}");
    }
}
