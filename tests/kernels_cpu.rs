//! The CPU kernels: every instance of every operation against plain double-precision sums, and their bits against themselves.
//!
//! # Tolerances
//! With u = 2^-24, a sum of n products in single precision, one after another, differs from the exact sum by at most n u times the sum of the
//! products' sizes, and one u more where products are rounded before they are added; where 8 partial sums are kept, by (n / 8 + 6) u. The
//! tests allow that, and twice the rounding of the result.

#![allow(dead_code, reason = "the shared helpers have more than this file uses")]

#[path = "common/kernels.rs"]
mod kernels;
#[path = "common/naive.rs"]
mod naive;
#[path = "kernels_cpu/products.rs"]
mod products;
#[path = "common/random.rs"]
mod random;

use std::panic::{AssertUnwindSafe, catch_unwind};

use ictus::backend::cpu::{CpuBackend, InstructionSet};
use ictus::backend::{AttentionShape, Backend, BackendError, Gate, KvShape, KvType, Product, RopeTable, Span};
use ictus::checkpoint::RopePairing;
use ictus::tensor::{Bytes, DType, Tensor};
use kernels::{
    backend, bits, columns, decoded, filled, instances, plain, product, read, sized, tensor, uniform, values,
};
use naive::Naive;
use random::Random;

/// Unit of rounding of single precision.
const U: f64 = 1.0 / (1 << 24) as f64;

fn assert_close(got: &[f32], exact: &[f32], relative: f64, absolute: f64, what: &str) {
    assert_eq!(got.len(), exact.len());
    for (i, (&got, &exact)) in got.iter().zip(exact).enumerate() {
        let (got, exact) = (f64::from(got), f64::from(exact));
        let error = (got - exact).abs();
        assert!(error <= relative * exact.abs() + absolute, "{what} [{i}]: {got} instead of {exact}");
    }
}

#[test]
fn every_type_decodes_to_the_bits_of_the_truth() {
    let mut random = Random::new("decode");
    for set in instances() {
        let backend = backend(set, 1);
        for dtype in DType::ALL.iter().copied() {
            for &cols in columns(dtype) {
                let tensor = tensor(&mut random, dtype, 5, cols);
                let table = backend.matrix(&tensor).expect("a matrix");
                let mut out = sized(&backend, cols, 5);
                backend.embed(&table, &[0, 1, 2, 3, 4], 1.0, &mut out);
                let got = read(&backend, &out, 5 * cols);
                // The sign of a zero is not kept: 8 d - 8 d is +0, and d * 0 has the sign of d.
                let unsigned_zeros =
                    |values: &[f32]| values.iter().map(|value| (value + 0.0).to_bits()).collect::<Vec<_>>();
                assert_eq!(unsigned_zeros(&got), unsigned_zeros(&decoded(&tensor)), "{} {dtype:?} {cols}", set.name());
                backend.embed(&table, &[3, 3, 0, 4, 1], 0.3, &mut out);
                let scaled = read(&backend, &out, 5 * cols);
                assert_eq!(scaled[2 * cols].to_bits(), (got[0] * 0.3).to_bits(), "row 2 is token 0");
                assert_eq!(bits(&scaled[..cols]), bits(&scaled[cols..2 * cols]), "the same token twice");
            }
        }
    }
}

#[test]
fn norms_match_exact_ones_and_have_the_same_bits_in_place_and_among_others() {
    let mut random = Random::new("norms");
    for set in instances() {
        for (group, heads, rows) in [(1, 1, 3), (7, 2, 3), (33, 1, 2), (64, 9, 5), (100, 3, 40), (576, 1, 300)] {
            let width = group * heads;
            let (x, weight) = (values(&mut random, rows * width), values(&mut random, group));
            let naive = Naive::default();
            let mut exact = filled(&naive, width, &x);
            naive.rms_norm_in_place(&mut exact, &weight, 1e-5);
            let exact = read(&naive, &exact, rows * width);
            let mut runs = Vec::new();
            for threads in [1, 2, 3] {
                let backend = backend(set, threads);
                let weight = backend.vector(&plain(1, group, &weight)).expect("a vector");
                let mut all = filled(&backend, width, &x);
                let mut out = sized(&backend, width, rows);
                backend.rms_norm(&all, &weight, 1e-5, &mut out);
                backend.rms_norm_in_place(&mut all, &weight, 1e-5);
                runs.push(bits(&read(&backend, &out, rows * width)));
                runs.push(bits(&read(&backend, &all, rows * width)));
                let mut last = filled(&backend, width, &x[(rows - 1) * width..]);
                backend.rms_norm_in_place(&mut last, &weight, 1e-5);
                assert_eq!(bits(&read(&backend, &last, width)), runs[0][(rows - 1) * width..]);
            }
            assert!(runs.iter().all(|run| *run == runs[0]), "{} {group}", set.name());
            let got: Vec<f32> = runs[0].iter().map(|&bits| f32::from_bits(bits)).collect();
            // Half the relative error of the sum of squares, then three roundings.
            assert_close(&got, &exact, (group as f64 / 64.0 + 8.0) * U, 1e-30, "norm");
        }
    }
}

#[test]
fn gates_match_exact_ones_at_all_magnitudes() {
    let mut random = Random::new("gates");
    let naive = Naive::default();
    for (width, rows) in [(1, 1), (7, 3), (64, 5), (1536, 40)] {
        let x: Vec<f32> = (0..width * rows)
            .map(|_| uniform(&mut random) * 10.0_f32.powf(uniform(&mut random) * 3.0))
            .map(|x| x.clamp(-80.0, 80.0))
            .collect();
        let up = values(&mut random, width * rows);
        for act in [Gate::Silu, Gate::GeluTanh] {
            let mut exact = filled(&naive, width, &x);
            naive.gate(&mut exact, &filled(&naive, width, &up), act);
            let exact = read(&naive, &exact, rows * width);
            for set in instances() {
                let mut runs = Vec::new();
                for threads in [1, 2] {
                    let backend = backend(set, threads);
                    let mut gate = filled(&backend, width, &x);
                    backend.gate(&mut gate, &filled(&backend, width, &up), act);
                    runs.push(read(&backend, &gate, rows * width));
                }
                assert_eq!(bits(&runs[0]), bits(&runs[1]), "{}", set.name());
                // GELU's exponent is a rounded product of up to 1e3, which its result, then below 1e-30, is relative to.
                let relative = if act == Gate::Silu { 8.0 * U } else { 100.0 * U };
                assert_close(&runs[0], &exact, relative, 1e-7, &format!("{} {act:?}", set.name()));
            }
        }
    }
}

#[test]
fn sums_and_gathered_rows_are_exact() {
    let mut random = Random::new("sums");
    for set in instances() {
        let backend = backend(set, 2);
        let (x, y) = (values(&mut random, 33 * 11), values(&mut random, 33 * 11));
        let mut sum = filled(&backend, 11, &x);
        backend.add(&mut sum, &filled(&backend, 11, &y));
        let expected: Vec<f32> = x.iter().zip(&y).map(|(x, y)| x + y).collect();
        assert_eq!(bits(&read(&backend, &sum, 33 * 11)), bits(&expected));
        let mut some = sized(&backend, 11, 3);
        backend.gather_rows(&sum, &[32, 0, 32], &mut some);
        let got = read(&backend, &some, 33);
        assert_eq!((&got[..11], &got[11..22]), (&expected[32 * 11..], &expected[..11]));
        assert_eq!(got[22..], expected[32 * 11..]);
    }
}

#[test]
fn rotations_match_exact_ones_and_depend_on_the_position_alone() {
    let mut random = Random::new("rotations");
    for (head_dim, pairs, heads) in [(2, 1, 1), (6, 2, 3), (64, 32, 9), (256, 128, 4), (80, 20, 2)] {
        let width = head_dim * heads;
        let frequencies: Vec<f64> = (0..pairs).map(|i| 1e5_f64.powf(-(i as f64) / pairs as f64)).collect();
        for pairing in [RopePairing::Interleaved, RopePairing::Halves] {
            let table = RopeTable { frequencies: frequencies.clone(), pairing };
            let x = values(&mut random, 70 * width);
            let spans = [
                Span { first_row: 0, rows: 1, start: 131_071, block_table: &[] },
                Span { first_row: 1, rows: 69, start: 1000, block_table: &[] },
            ];
            let mut exact = x.clone();
            for (row, position) in exact.chunks_mut(width).zip([131_071].into_iter().chain(1000..)) {
                row.chunks_mut(head_dim).for_each(|head| rotate(head, &table, position));
            }
            for set in instances() {
                let mut runs = Vec::new();
                for threads in [1, 3] {
                    let backend = backend(set, threads);
                    let rotated = |x: &[f32], spans: &[Span<'_>]| {
                        let mut angles = sized(&backend, 2 * pairs, x.len() / width);
                        backend.angles(&table, spans, &mut angles);
                        let mut rows = filled(&backend, width, x);
                        backend.rope(&mut rows, head_dim, pairing, &angles);
                        read(&backend, &rows, x.len())
                    };
                    runs.push(rotated(&x, &spans));
                    let span = Span { first_row: 0, rows: 1, start: 1039, block_table: &[] };
                    let one = rotated(&x[40 * width..41 * width], &[span]);
                    assert_eq!(bits(&one), bits(&runs[0][40 * width..41 * width]));
                }
                assert_eq!(bits(&runs[0]), bits(&runs[1]));
                assert_close(&runs[0], &exact, 0.0, 8.0 * U, set.name());
            }
        }
    }
}

/// Rotates a head in double precision.
fn rotate(head: &mut [f32], table: &RopeTable, position: usize) {
    let pairs = table.frequencies.len();
    for (pair, frequency) in table.frequencies.iter().enumerate() {
        let (one, two) = match table.pairing {
            RopePairing::Interleaved => (2 * pair, 2 * pair + 1),
            RopePairing::Halves => (pair, pair + pairs),
        };
        let (sin, cos) = (position as f64 * frequency).sin_cos();
        let (a, b) = (f64::from(head[one]), f64::from(head[two]));
        head[one] = (a * cos - b * sin) as f32;
        head[two] = (a * sin + b * cos) as f32;
    }
}

#[test]
fn joined_operations_have_the_bits_of_their_parts() {
    let mut random = Random::new("joined");
    for set in instances() {
        for (threads, rows, cols) in [(1, 1, 96), (3, 1, 576), (2, 7, 64), (3, 70, 576), (2, 0, 64)] {
            let backend = backend(set, threads);
            let (x, delta) = (values(&mut random, rows * cols), values(&mut random, rows * cols));
            let weight = backend.vector(&plain(1, cols, &values(&mut random, cols))).expect("a vector");
            let (mut sum, mut normed) = (filled(&backend, cols, &x), sized(&backend, cols, rows));
            let delta = filled(&backend, cols, &delta);
            backend.add(&mut sum, &delta);
            backend.rms_norm(&sum, &weight, 1e-5, &mut normed);
            let (mut joined_sum, mut joined) = (filled(&backend, cols, &x), sized(&backend, cols, rows));
            backend.add_rms_norm(&mut joined_sum, &delta, &weight, 1e-5, &mut joined);
            let all = |buffer| bits(&read(&backend, buffer, rows * cols));
            assert_eq!((all(&joined_sum), all(&joined)), (all(&sum), all(&normed)), "{} {threads}", set.name());

            let mut weights = Vec::new();
            for (dtype, outputs) in [(DType::Q4_1, 192), (DType::Q8_0, 5), (DType::F32, 33)] {
                let bias = backend.vector(&plain(1, outputs, &values(&mut random, outputs))).expect("a vector");
                let matrix = backend.matrix(&tensor(&mut random, dtype, outputs, cols)).expect("a matrix");
                weights.push((outputs, matrix, (dtype == DType::Q8_0).then_some(bias)));
            }
            let mut outs: Vec<_> = weights.iter().map(|(outputs, ..)| sized(&backend, *outputs, rows)).collect();
            let products = weights.iter().zip(&mut outs);
            let mut products: Vec<_> =
                products.map(|((_, weight, bias), out)| Product { weight, bias: bias.as_ref(), out }).collect();
            backend.linear_many(&joined, &mut products);
            for ((outputs, weight, bias), out) in weights.iter().zip(&outs) {
                let mut alone = sized(&backend, *outputs, rows);
                backend.linear(&joined, weight, bias.as_ref(), &mut alone);
                let all = |buffer| bits(&read(&backend, buffer, rows * outputs));
                assert_eq!(all(out), all(&alone), "{} {threads} {rows} {outputs}", set.name());
            }
        }
    }
}

#[test]
fn kept_rows_are_those_that_were_named() {
    let mut random = Random::new("kept");
    let backend = backend(InstructionSet::best(), 1);
    let x = values(&mut random, 33 * 11);
    for rows in [&[][..], &[0], &[32], &[3, 4, 5, 31], &(0..33).collect::<Vec<_>>()] {
        let mut kept = filled(&backend, 11, &x);
        backend.keep_rows(&mut kept, rows);
        let expected: Vec<f32> = rows.iter().flat_map(|&row| &x[row * 11..][..11]).copied().collect();
        assert_eq!(read(&backend, &kept, 11 * rows.len()), expected);
        let mut out = sized(&backend, 11, rows.len());
        backend.rms_norm(&kept, &backend.vector(&plain(1, 11, &[1.0; 11])).expect("a vector"), 0.0, &mut out);
    }
}

/// One attention problem: sequences of some length, all of whose keys, values and queries are known.
struct Problem {
    shape: AttentionShape,
    lengths: Vec<usize>,
    /// `[tokens of all sequences, heads * head_dim]`
    queries: Vec<f32>,
    keys: Vec<f32>,
    values: Vec<f32>,
}

impl Problem {
    fn new(random: &mut Random, shape: AttentionShape, lengths: &[usize]) -> Self {
        let tokens: usize = lengths.iter().sum();
        let (query, key) = (shape.n_heads * shape.head_dim, shape.n_kv_heads * shape.head_dim);
        let mut queries = values(random, tokens * query);
        queries.iter_mut().for_each(|x| *x *= 4.0);
        let (keys, values) = (values(random, tokens * key), values(random, tokens * key));
        Self { shape, lengths: lengths.to_vec(), queries, keys, values }
    }

    /// Runs all sequences side by side, in chunks of up to `chunk` tokens, over pages of `page_size` tokens in any order.
    fn run<B: Backend>(
        &self,
        backend: &B,
        random: &mut Random,
        element: KvType,
        page_size_tokens: usize,
        chunk: usize,
    ) -> Vec<f32> {
        let AttentionShape { n_heads, n_kv_heads, head_dim, .. } = self.shape;
        let (query, key) = (n_heads * head_dim, n_kv_heads * head_dim);
        let needed: Vec<usize> = self.lengths.iter().map(|len| len.div_ceil(page_size_tokens)).collect();
        let pages = needed.iter().sum::<usize>() + 3;
        let mut numbers: Vec<u32> = (0..pages as u32).collect();
        random.shuffle(&mut numbers);
        let mut tables = Vec::new();
        for &count in &needed {
            tables.push(numbers.split_off(numbers.len() - count));
        }
        let shape = KvShape { layers: 2, n_kv_heads, head_dim, page_size_tokens, pages, element };
        let mut pool = backend.pages(&shape).expect("a pool");
        // What pages held before must not matter, not even when it is no number.
        let junk: Vec<f32> = vec![f32::NAN; pages * page_size_tokens * key];
        let junk = filled(backend, key, &junk);
        let all: Vec<u32> = (0..pages as u32).collect();
        let span = Span { first_row: 0, rows: pages * page_size_tokens, start: 0, block_table: &all };
        backend.kv_write(&mut pool, 1, &junk, &junk, &[span]);

        let mut out = vec![0.0; self.queries.len()];
        let mut done = vec![0; self.lengths.len()];
        while done != self.lengths {
            let (mut rows, mut spans) = (Vec::new(), Vec::new());
            let mut first_token = 0;
            for (sequence, &len) in self.lengths.iter().enumerate() {
                let now = (len - done[sequence]).min(chunk);
                if now > 0 {
                    let start = done[sequence];
                    let block_table = &tables[sequence][..];
                    spans.push(Span { first_row: rows.len(), rows: now, start, block_table });
                    rows.extend(first_token + start..first_token + start + now);
                    done[sequence] += now;
                }
                first_token += len;
            }
            let pick = |from: &[f32], width: usize| -> Vec<f32> {
                rows.iter().flat_map(|&row| &from[row * width..][..width]).copied().collect()
            };
            let keys = filled(backend, key, &pick(&self.keys, key));
            let values = filled(backend, key, &pick(&self.values, key));
            backend.kv_write(&mut pool, 1, &keys, &values, &spans);
            let queries = filled(backend, query, &pick(&self.queries, query));
            let mut attended = sized(backend, query, rows.len());
            backend.attention(&queries, &pool, 1, &self.shape, &spans, &mut attended);
            let attended = read(backend, &attended, rows.len() * query);
            for (attended, &row) in attended.chunks(query).zip(&rows) {
                out[row * query..][..query].copy_from_slice(attended);
            }
        }
        out
    }
}

fn attention_shapes() -> Vec<AttentionShape> {
    let shape = |n_heads, n_kv_heads, head_dim, window| AttentionShape {
        n_heads,
        n_kv_heads,
        head_dim,
        scale: 1.0 / (head_dim as f32).sqrt(),
        window,
    };
    vec![
        shape(1, 1, 1, None),
        shape(2, 1, 7, Some(5)),
        shape(4, 4, 8, Some(1)),
        shape(6, 2, 12, None),
        shape(9, 3, 64, None),
        shape(4, 1, 256, Some(300)),
        shape(80, 2, 80, Some(64)),
    ]
}

/// Every length around which something begins or ends: vectors of 8, windows, segments of 256.
const LENGTHS: [usize; 5] = [1, 9, 257, 70, 300];

#[test]
fn attention_matches_exact_softmax() {
    let mut random = Random::new("attention");
    for shape in attention_shapes() {
        let lengths = if shape.n_heads > 9 { &LENGTHS[..2] } else { &LENGTHS[..] };
        let problem = Problem::new(&mut random, shape, lengths);
        for element in [KvType::F32, KvType::F16] {
            let exact = problem.run(&Naive::default(), &mut random, element, 16, usize::MAX);
            for set in instances() {
                let got = problem.run(&backend(set, 2), &mut random, element, 16, usize::MAX);
                // A score is a sum of head_dim products of at most 4: its error shifts a weight by as much, relatively; then up
                // to 300 weighted values are added one after another. Most errors are far below.
                let scores = 4.0 * (shape.head_dim as f64 / 8.0 + 8.0) * (shape.head_dim as f64).sqrt() * U;
                assert_close(&got, &exact, 0.0, 2.0 * scores + 310.0 * U, &format!("{} {shape:?}", set.name()));
            }
        }
    }
}

/// Promise: the bits of a row depend on its query and on what it sees, not on pages, chunks, neighbours or threads.
#[test]
fn attention_has_the_same_bits_in_any_pages_chunks_and_threads() {
    let mut random = Random::new("attention bits");
    for set in instances() {
        for shape in attention_shapes() {
            let lengths = if shape.n_heads > 9 { &LENGTHS[..2] } else { &LENGTHS[..] };
            let problem = Problem::new(&mut random, shape, lengths);
            for element in [KvType::F32, KvType::F16] {
                let whole = bits(&problem.run(&backend(set, 1), &mut random, element, 16, usize::MAX));
                for (page_size, chunk, threads) in [(4, usize::MAX, 2), (1, 100, 1), (16, 1, 2), (48, 7, 3), (5, 64, 2)]
                {
                    let got = problem.run(&backend(set, threads), &mut random, element, page_size, chunk);
                    assert!(bits(&got) == whole, "{} {shape:?} {page_size} {chunk} {threads}", set.name());
                }
                // Each sequence by itself.
                let (query, key) = (shape.n_heads * shape.head_dim, shape.n_kv_heads * shape.head_dim);
                let mut first = 0;
                for &len in lengths {
                    let alone = Problem {
                        shape,
                        lengths: vec![len],
                        queries: problem.queries[first * query..(first + len) * query].to_vec(),
                        keys: problem.keys[first * key..(first + len) * key].to_vec(),
                        values: problem.values[first * key..(first + len) * key].to_vec(),
                    };
                    let got = bits(&alone.run(&backend(set, 2), &mut random, element, 8, 33));
                    assert!(got == whole[first * query..(first + len) * query], "{} {shape:?} {len}", set.name());
                    first += len;
                }
            }
        }
    }
}

#[test]
fn copied_pages_are_read_as_their_source() {
    let mut random = Random::new("copied pages");
    for set in instances() {
        for element in [KvType::F32, KvType::F16] {
            let backend = backend(set, 1);
            let shape = KvShape { layers: 3, n_kv_heads: 2, head_dim: 12, page_size_tokens: 4, pages: 5, element };
            let mut pool = backend.pages(&shape).expect("a pool");
            let attention = AttentionShape { n_heads: 4, n_kv_heads: 2, head_dim: 12, scale: 0.3, window: None };
            let queries = filled(&backend, 48, &values(&mut random, 48));
            let mut outs = Vec::new();
            for layer in 0..3 {
                let keys = filled(&backend, 24, &values(&mut random, 6 * 24));
                let values = filled(&backend, 24, &values(&mut random, 6 * 24));
                let span = Span { first_row: 0, rows: 6, start: 0, block_table: &[3, 0] };
                backend.kv_write(&mut pool, layer, &keys, &values, &[span]);
            }
            backend.copy_pages(&mut pool, &[(3, 1), (0, 4)]);
            for layer in 0..3 {
                for table in [[3, 0], [1, 4], [1, 0], [0, 1]] {
                    let span = Span { first_row: 0, rows: 1, start: 5, block_table: &table };
                    let mut out = sized(&backend, 48, 1);
                    backend.attention(&queries, &pool, layer, &attention, &[span], &mut out);
                    outs.push(bits(&read(&backend, &out, 48)));
                }
                let last = &outs[4 * layer..];
                assert_eq!((&last[0], &last[0]), (&last[1], &last[2]), "{} {element:?}", set.name());
                assert_ne!(last[0], last[3], "other pages are other keys");
            }
        }
    }
}

#[test]
fn numbers_that_are_none_go_through_and_stay_in_their_row() {
    let mut random = Random::new("not numbers");
    for set in instances() {
        let backend = backend(set, 2);
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX] {
            let mut x = values(&mut random, 5 * 96);
            x[2 * 96 + 50] = bad;
            let clean: Vec<f32> = x.iter().map(|&x| if x == bad || x.is_nan() { 0.0 } else { x }).collect();
            let weight = tensor(&mut random, DType::Q8_0, 30, 96);
            let (got, good) = (product(&backend, &x, &weight, None), product(&backend, &clean, &weight, None));
            for row in [0, 1, 3, 4] {
                assert_eq!(bits(&got[row * 30..][..30]), bits(&good[row * 30..][..30]));
            }
            if !bad.is_finite() {
                assert!(got[60..90].iter().all(|x| !x.is_finite()), "{} {bad}", set.name());
            }
            let mut buffer = filled(&backend, 96, &x);
            let ones = backend.vector(&plain(1, 96, &[1.0; 96])).expect("a vector");
            backend.gate(&mut buffer, &filled(&backend, 96, &x), Gate::Silu);
            backend.gate(&mut buffer, &filled(&backend, 96, &x), Gate::GeluTanh);
            backend.rms_norm_in_place(&mut buffer, &ones, 1e-5);
            let got = read(&backend, &buffer, 5 * 96);
            assert!(got[..192].iter().chain(&got[288..]).all(|x| x.is_finite()));
            if bad.is_nan() {
                assert!(got[192..288].iter().all(|x| x.is_nan()), "{}: a NaN is not lost", set.name());
            }

            let shape = AttentionShape { n_heads: 2, n_kv_heads: 1, head_dim: 16, scale: 0.25, window: Some(4) };
            let mut problem = Problem::new(&mut random, shape, &[12]);
            let clean = problem.run(&backend, &mut random, KvType::F32, 4, usize::MAX);
            (problem.keys[3 * 16], problem.values[3 * 16]) = (bad, bad);
            let got = problem.run(&backend, &mut random, KvType::F32, 4, usize::MAX);
            // Rows 3 to 6 see position 3; no other does.
            assert_eq!(bits(&got[..3 * 32]), bits(&clean[..3 * 32]));
            assert_eq!(bits(&got[7 * 32..]), bits(&clean[7 * 32..]));
            if bad.is_nan() {
                assert!(got[3 * 32..7 * 32].iter().all(|x| x.is_nan()), "{}: a NaN is not lost", set.name());
            }
        }
        for dtype in DType::ALL.iter().copied() {
            // Any bytes at all: scales that are no numbers, too.
            let cols = dtype.unit_values().max(8);
            let bytes: Vec<u8> =
                (0..7 * dtype.row_bytes(cols).expect("whole units")).map(|_| random.next() as u8).collect();
            let weight = Tensor { dtype, rows: 7, cols, data: Bytes::copy_aligned(&bytes) };
            product(&backend, &values(&mut random, 3 * cols), &weight, None);
        }
    }
}

#[test]
fn what_cannot_be_made_is_refused() {
    for set in instances() {
        let backend = backend(set, 1);
        for _ in 0..2 {
            let short = Tensor { dtype: DType::Q4_1, rows: 2, cols: 32, data: Bytes::copy_aligned(&[0; 39]) };
            let part = Tensor { dtype: DType::Q4_1, rows: 1, cols: 33, data: Bytes::copy_aligned(&[0; 40]) };
            let none = Tensor { dtype: DType::F32, rows: 1, cols: 0, data: Bytes::copy_aligned(&[]) };
            for tensor in [&short, &part, &none] {
                let refused = backend.matrix(tensor).err();
                assert_eq!(refused, Some(BackendError::UnsupportedTensor { operation: "matrix" }));
                assert!(backend.vector(tensor).is_err());
            }
            for (layers, pages) in [(usize::MAX, 2), (1 << 20, 1 << 40)] {
                let shape = KvShape {
                    layers,
                    n_kv_heads: 64,
                    head_dim: 128,
                    page_size_tokens: 16,
                    pages,
                    element: KvType::F16,
                };
                assert!(matches!(backend.pages(&shape), Err(BackendError::OutOfMemory { .. })));
            }
            let mut buffer = sized(&backend, 8, 2);
            assert!(matches!(backend.resize(&mut buffer, usize::MAX / 4), Err(BackendError::OutOfMemory { .. })));
            assert_eq!(read(&backend, &buffer, 16).len(), 16, "what there was is still there");
        }
    }
}

#[test]
fn an_instruction_set_is_used_only_where_it_is() {
    assert!(InstructionSet::Portable.is_available());
    assert!(InstructionSet::best().is_available());
    for &set in InstructionSet::ALL {
        let made = CpuBackend::with_instruction_set(1, set);
        match made {
            Ok(backend) => assert!(set.is_available() && backend.instruction_set() == set),
            Err(error) => assert!(!set.is_available() && matches!(error, BackendError::NoDevice { .. })),
        }
    }
}

#[test]
fn a_panic_in_a_task_reaches_the_caller_and_the_backend_goes_on() {
    let mut random = Random::new("panic");
    let backend = backend(InstructionSet::best(), 3);
    let table = backend.matrix(&tensor(&mut random, DType::F32, 2, 4096)).expect("a matrix");
    let mut out = sized(&backend, 4096, 64);
    for _ in 0..3 {
        let mut tokens = vec![1; 64];
        tokens[37] = 9;
        let run = catch_unwind(AssertUnwindSafe(|| backend.embed(&table, &tokens, 1.0, &mut out)));
        assert!(run.is_err(), "there is no row 9");
        tokens[37] = 0;
        backend.embed(&table, &tokens, 1.0, &mut out);
    }
}
