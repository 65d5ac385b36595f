//! Exact products: near exact sums, and to the bit the formula of `backend/cpu/linear`.
//!
//! # Tolerances
//! Of single elements as in the file above. Of codes, n of which share a scale and an offset: n + 1 roundings of their products, 5 of the sum that the
//! offset is multiplied by, and 4 of the whole sum for each group, relative to what scaled codes and offsets add up to in size.

#[path = "../common/codes.rs"]
mod codes;

use ictus::backend::cpu::InstructionSet;
use ictus::tensor::{DType, Tensor};

use super::U;
use super::kernels::{backend, bits, columns, decoded, instances, product, tensor, values};
use super::random::Random;

#[test]
fn products_match_exact_sums() {
    let mut random = Random::new("products");
    for set in instances() {
        let backend = backend(set, 2);
        for dtype in DType::ALL.iter().copied() {
            for &cols in columns(dtype) {
                for (rows, outputs) in [(1, 1), (1, 23), (2, 5), (3, 13), (8, 24), (33, 31)] {
                    let weight = tensor(&mut random, dtype, outputs, cols);
                    let (x, bias) = (values(&mut random, rows * cols), values(&mut random, outputs));
                    let got = product(&backend, &x, &weight, Some(&bias));
                    let w = decoded(&weight);
                    for (i, &got) in got.iter().enumerate() {
                        let (row, output) = (i / outputs, i % outputs);
                        let x = &x[row * cols..][..cols];
                        let terms = x.iter().zip(&w[output * cols..]).map(|(&a, &b)| f64::from(a) * f64::from(b));
                        let (sum, size) = terms.fold((0.0, 0.0), |(sum, size), t| (sum + t, size + t.abs()));
                        let exact = sum + f64::from(bias[output]);
                        let groups = codes::groups(dtype, row_of(&weight, output));
                        let (roundings, size) = match groups.first() {
                            // Products are rounded too where they are not fused: one more per term.
                            None => (cols + 2, size),
                            Some(group) => (group.codes.len() + 6 + 4 * groups.len(), sizes(&groups, x)),
                        };
                        let bound = roundings as f64 * U * size + 2.0 * U * exact.abs() + 1e-30;
                        let error = (f64::from(got) - exact).abs();
                        let what = (set.name(), dtype, cols, rows, outputs);
                        assert!(error <= bound, "{what:?} [{row}][{output}]: {error:e} above {bound:e}");
                    }
                }
            }
        }
    }
}

/// Promise: an output's bits depend on its row and its weights, whatever is computed with them.
#[test]
fn a_product_has_the_same_bits_alone_and_among_others() {
    let mut random = Random::new("product bits");
    for set in instances() {
        for dtype in DType::ALL.iter().copied() {
            for &cols in columns(dtype) {
                let outputs = random.between(1, 60);
                let weight = tensor(&mut random, dtype, outputs, cols);
                let x = values(&mut random, 33 * cols);
                let one = backend(set, 1);
                let alone: Vec<Vec<u32>> = x.chunks(cols).map(|row| bits(&product(&one, row, &weight, None))).collect();
                for threads in [1, 2, 3] {
                    let backend = backend(set, threads);
                    for rows in [1, 2, 3, 4, 8, 33] {
                        let mut order: Vec<usize> = (0..33).collect();
                        random.shuffle(&mut order);
                        order.truncate(rows);
                        let some: Vec<f32> = order.iter().flat_map(|&row| &x[row * cols..][..cols]).copied().collect();
                        let got = product(&backend, &some, &weight, None);
                        for (got, &row) in got.chunks(outputs).zip(&order) {
                            assert_eq!(bits(got), alone[row], "{} {dtype:?} {cols} {rows} {threads}", set.name());
                        }
                    }
                }
            }
        }
    }
}

fn row_of(weight: &Tensor, row: usize) -> &[u8] {
    let bytes = weight.dtype.row_bytes(weight.cols).expect("whole units");
    &weight.data.as_slice()[row * bytes..][..bytes]
}

/// What scaled codes and offsets times a row add up to in size.
fn sizes(groups: &[codes::Group], x: &[f32]) -> f64 {
    let of_group = |(group, x): (&codes::Group, &[f32])| {
        let (scale, offset) = (f64::from(group.scale).abs(), f64::from(group.offset).abs());
        let each =
            x.iter().zip(&group.codes).map(|(&x, &code)| f64::from(x).abs() * (scale * f64::from(code) + offset));
        each.sum::<f64>()
    };
    groups.iter().zip(x.chunks(groups[0].codes.len())).map(of_group).sum()
}

/// The formula of products with codes (`backend/cpu/linear`), in plain code.
fn sum_of_groups(groups: &[codes::Group], x: &[f32]) -> f32 {
    let mut sum = 0.0_f32;
    for (group, x) in groups.iter().zip(x.chunks(groups[0].codes.len())) {
        let x: Vec<f32> = x.iter().map(|&x| if x.abs() < 2.0_f32.powi(-100) { 0.0 } else { x }).collect();
        let moments = x.chunks(16).map(|x| {
            let lane = |i: usize| x[i] + x[i + 8];
            ((lane(0) + lane(4)) + (lane(2) + lane(6))) + ((lane(1) + lane(5)) + (lane(3) + lane(7)))
        });
        let moment = moments.reduce(|first, second| first + second).expect("a group has columns");
        let dot = x.iter().zip(&group.codes).fold(0.0, |dot, (&x, &code)| f32::from(code).mul_add(x, dot));
        sum = group.offset.mul_add(moment, sum);
        sum = dot.mul_add(group.scale, sum);
    }
    sum
}

/// What the formats say here is what the library decodes.
#[test]
fn codes_scales_and_offsets_are_those_of_the_decoded_weights() {
    let mut random = Random::new("codes");
    for dtype in DType::ALL.iter().copied().filter(|dtype| dtype.unit_values() > 1) {
        let weight = tensor(&mut random, dtype, 3, 768);
        for (row, decoded) in decoded(&weight).chunks(768).enumerate() {
            let groups = codes::groups(dtype, row_of(&weight, row));
            let weights = groups.iter().flat_map(|group| {
                group.codes.iter().map(|&code| f32::from(code).mul_add(group.scale, group.offset) + 0.0)
            });
            let expected: Vec<u32> = decoded.iter().map(|weight| (weight + 0.0).to_bits()).collect();
            assert_eq!(weights.map(f32::to_bits).collect::<Vec<u32>>(), expected, "{dtype:?}");
        }
    }
}

/// Every product and sum is fused, in the same order: the bits are those of scalar code, and of every instruction set that fuses.
#[test]
fn instruction_sets_that_fuse_give_the_bits_of_one_sum_per_output() {
    let mut random = Random::new("fused bits");
    for set in instances().into_iter().filter(|&set| set != InstructionSet::Portable) {
        for dtype in DType::ALL.iter().copied() {
            for &cols in columns(dtype) {
                for (rows, outputs) in [(1, 70), (2, 17), (4, 16), (7, 33), (33, 31), (131, 5)] {
                    let weight = tensor(&mut random, dtype, outputs, cols);
                    let mut x = values(&mut random, rows * cols);
                    // Numbers that are too small to be divided exactly, and those that are just not.
                    x.iter_mut().step_by(11).for_each(|x| *x *= 2.0_f32.powi(-99));
                    let got = product(&backend(set, 2), &x, &weight, None);
                    let w = decoded(&weight);
                    let groups: Vec<_> = (0..outputs).map(|row| codes::groups(dtype, row_of(&weight, row))).collect();
                    for (i, &got) in got.iter().enumerate() {
                        let (x, w) = (&x[i / outputs * cols..][..cols], &w[i % outputs * cols..][..cols]);
                        let sum = match &groups[i % outputs][..] {
                            [] => x.iter().zip(w).fold(0.0_f32, |sum, (&x, &w)| w.mul_add(x, sum)),
                            groups => sum_of_groups(groups, x),
                        };
                        let what = (set.name(), dtype, cols, rows, outputs, i);
                        assert_eq!((got + 0.0).to_bits(), (sum + 0.0).to_bits(), "{what:?}: {got} instead of {sum}");
                    }
                }
            }
        }
    }
}

#[test]
fn large_products_are_spread_and_keep_their_bits() {
    let mut random = Random::new("large products");
    for set in instances() {
        for dtype in [DType::Q4_1, DType::Q6_K, DType::F32] {
            let (rows, cols, outputs) = (37, 768, 1003);
            let weight = tensor(&mut random, dtype, outputs, cols);
            let x = values(&mut random, rows * cols);
            let alone: Vec<u32> =
                x.chunks(cols).flat_map(|row| bits(&product(&backend(set, 1), row, &weight, None))).collect();
            for threads in [1, 2, 3, 5] {
                assert_eq!(bits(&product(&backend(set, threads), &x, &weight, None)), alone, "{}", set.name());
                let first = product(&backend(set, threads), &x[..cols], &weight, None);
                assert_eq!(bits(&first), alone[..outputs], "{}", set.name());
            }
        }
    }
}
