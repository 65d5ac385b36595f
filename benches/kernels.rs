//! The CPU kernels, each with the bytes that it reads: what is left to the bandwidth or to the arithmetic shows.
//!
//! Sizes are those of a model of 135 M parameters. Every instance of this processor is measured with one thread and with two;
//! each bench asserts its result against the portable instance. Products are measured in exact arithmetic (`linear`) and, of quantised
//! weights, in fast arithmetic (`rounded`; the rounded row is kept from one product to the next).

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use ictus::backend::cpu::{Buffer, CpuBackend, InstructionSet};
use ictus::backend::{Arithmetic, AttentionShape, Backend, Gate, KvShape, KvType, RopeTable, Span};
use ictus::checkpoint::RopePairing;
use ictus::tensor::{Bytes, DType, Tensor};

const HIDDEN: usize = 576;
const FFN: usize = 1536;

/// Every instance with its number of threads, and a name.
fn backends(arithmetic: Arithmetic) -> Vec<(String, CpuBackend)> {
    let mut all = Vec::new();
    for &set in InstructionSet::ALL {
        for threads in [1, 2] {
            match CpuBackend::with_instruction_set(threads, set) {
                Ok(backend) => all.push((format!("{}-{threads}", set.name()), backend.with_arithmetic(arithmetic))),
                Err(error) => eprintln!("skipped: {error}"),
            }
        }
    }
    all
}

/// Bytes whose every 16-bit word is a small binary16: good scales wherever they lie, and any integers.
fn weights(dtype: DType, rows: usize, cols: usize) -> Tensor {
    let len = rows * dtype.row_bytes(cols).expect("whole units");
    let bytes: Vec<u8> =
        (0..len).map(|i| if i % 2 == 0 { (i * 37 % 251) as u8 } else { 0x20 + (i / 2 % 8) as u8 }).collect();
    Tensor { dtype, rows, cols, data: Bytes::copy_aligned(&bytes) }
}

fn number(i: usize) -> f32 {
    ((i * 2_654_435_761) >> 8 & 0xffff) as f32 / 32768.0 - 1.0
}

fn filled(backend: &CpuBackend, rows: usize, width: usize) -> Buffer {
    let values: Vec<f32> = (0..rows * width).map(number).collect();
    let table = Tensor { dtype: DType::F32, rows, cols: width, data: Bytes::from_f32(&values) };
    let table = backend.matrix(&table).expect("a matrix");
    let tokens: Vec<u32> = (0..rows as u32).collect();
    let mut buffer = sized(backend, rows, width);
    backend.embed(&table, &tokens, 1.0, &mut buffer);
    buffer
}

fn sized(backend: &CpuBackend, rows: usize, width: usize) -> Buffer {
    let mut buffer = backend.buffer(width);
    backend.resize(&mut buffer, rows).expect("memory");
    buffer
}

/// The first row, which must be near that of the portable instance.
fn check(backend: &CpuBackend, buffer: &Buffer, width: usize, expected: &mut Vec<f32>) {
    let mut row = vec![0.0; width];
    backend.read(buffer, 0, &mut row).expect("read");
    if expected.is_empty() {
        expected.clone_from(&row);
    }
    let most = expected.iter().fold(1e-3_f32, |most, x| most.max(x.abs()));
    assert!(row.iter().zip(&*expected).all(|(a, b)| (a - b).abs() <= 1e-4 * most), "instances agree");
}

/// Every kind of codes, and single elements.
const DTYPES: [DType; 10] = [
    DType::F32,
    DType::F16,
    DType::Q4_0,
    DType::Q4_1,
    DType::Q5_0,
    DType::Q8_0,
    DType::Q2_K,
    DType::Q4_K,
    DType::Q6_K,
    DType::IQ4_NL,
];

fn linear(criterion: &mut Criterion) {
    products(criterion, "linear", Arithmetic::Exact);
}

fn rounded(criterion: &mut Criterion) {
    products(criterion, "rounded", Arithmetic::Fast);
}

fn products(criterion: &mut Criterion, kernel: &str, arithmetic: Arithmetic) {
    let shapes = [(1, FFN, HIDDEN), (1, 8192, HIDDEN), (8, FFN, HIDDEN), (128, FFN, HIDDEN), (128, HIDDEN, FFN)];
    for (rows, outputs, cols) in shapes {
        let mut group = criterion.benchmark_group(format!("{kernel} {outputs}x{cols}, {rows} rows"));
        let rounds = |dtype: &DType| arithmetic == Arithmetic::Exact || !matches!(dtype, DType::F32 | DType::F16);
        for dtype in DTYPES.into_iter().filter(rounds) {
            let cols = cols.next_multiple_of(dtype.unit_values());
            let tensor = weights(dtype, outputs, cols);
            // One row is bound by reading weights, many by products.
            let elements = (rows * outputs * cols) as u64;
            group.throughput(if rows == 1 {
                Throughput::Bytes(tensor.data.len() as u64)
            } else {
                Throughput::Elements(elements)
            });
            let mut expected = Vec::new();
            for (name, backend) in backends(arithmetic) {
                let (x, weight) = (filled(&backend, rows, cols), backend.matrix(&tensor).expect("a matrix"));
                let mut out = sized(&backend, rows, outputs);
                group.bench_function(BenchmarkId::new(name, format!("{dtype:?}")), |bencher| {
                    bencher.iter(|| backend.linear(&x, &weight, None, &mut out));
                });
                // A filter may have left the bench out.
                backend.linear(&x, &weight, None, &mut out);
                check(&backend, &out, outputs, &mut expected);
            }
        }
        group.finish();
    }
}

fn rows(criterion: &mut Criterion) {
    for rows in [1, 128] {
        let mut group = criterion.benchmark_group(format!("{rows} rows"));
        let bytes = |width: usize, arrays: usize| Throughput::Bytes((4 * rows * width * arrays) as u64);
        for (name, backend) in backends(Arithmetic::Exact) {
            let (x, y) = (filled(&backend, rows, HIDDEN), filled(&backend, rows, HIDDEN));
            let ones = Tensor { dtype: DType::F32, rows: 1, cols: HIDDEN, data: Bytes::from_f32(&[1.0; HIDDEN]) };
            let weight = backend.vector(&ones).expect("a vector");
            let mut out = sized(&backend, rows, HIDDEN);
            group.throughput(bytes(HIDDEN, 2));
            group.bench_function(BenchmarkId::new("rms_norm", &name), |bencher| {
                bencher.iter(|| backend.rms_norm(&x, &weight, 1e-5, &mut out));
            });
            group.throughput(bytes(HIDDEN, 3));
            group.bench_function(BenchmarkId::new("add", &name), |bencher| {
                bencher.iter(|| backend.add(&mut out, &y));
            });
            group.throughput(bytes(HIDDEN, 5));
            let mut sum = filled(&backend, rows, HIDDEN);
            group.bench_function(BenchmarkId::new("add_rms_norm", &name), |bencher| {
                bencher.iter(|| backend.add_rms_norm(&mut sum, &y, &weight, 1e-5, &mut out));
            });
            let frequencies = (0..32).map(|i| 1e5_f64.powf(-f64::from(i) / 32.0)).collect();
            let table = RopeTable { frequencies, pairing: RopePairing::Interleaved };
            let span = Span { first_row: 0, rows, start: 500, block_table: &[] };
            let mut angles = sized(&backend, rows, 64);
            group.throughput(bytes(64, 1));
            group.bench_function(BenchmarkId::new("angles", &name), |bencher| {
                bencher.iter(|| backend.angles(&table, &[span], &mut angles));
            });
            group.throughput(bytes(HIDDEN, 2));
            group.bench_function(BenchmarkId::new("rope", &name), |bencher| {
                bencher.iter(|| backend.rope(&mut out, 64, RopePairing::Interleaved, &angles));
            });
            let (mut gate, up) = (filled(&backend, rows, FFN), filled(&backend, rows, FFN));
            group.throughput(bytes(FFN, 3));
            for act in [Gate::Silu, Gate::GeluTanh] {
                group.bench_function(BenchmarkId::new(format!("{act:?}"), &name), |bencher| {
                    bencher.iter(|| backend.gate(&mut gate, &up, act));
                });
            }
        }
        group.finish();
    }
}

fn attention(criterion: &mut Criterion) {
    let shape = AttentionShape { n_heads: 9, n_kv_heads: 3, head_dim: 64, scale: 0.125, window: None };
    let mut group = criterion.benchmark_group("attention, 9 heads of 64 over 3");
    // One row: depths on both sides of where its work is worth a second thread.
    for (rows, start) in [(1, 0), (1, 127), (1, 512), (1, 2048), (32, 0), (128, 0), (128, 384)] {
        let tokens: usize = rows + start;
        for element in [KvType::F16, KvType::F32] {
            let mut expected = Vec::new();
            for (name, backend) in backends(Arithmetic::Exact) {
                let pages = tokens.div_ceil(16);
                let pool = KvShape { layers: 1, n_kv_heads: 3, head_dim: 64, page_size_tokens: 16, pages, element };
                let mut pool = backend.pages(&pool).expect("a pool");
                let table: Vec<u32> = (0..pages as u32).rev().collect();
                let (keys, values) = (filled(&backend, tokens, 192), filled(&backend, tokens, 192));
                let all = Span { first_row: 0, rows: tokens, start: 0, block_table: &table };
                backend.kv_write(&mut pool, 0, &keys, &values, &[all]);
                let (queries, mut out) = (filled(&backend, rows, HIDDEN), sized(&backend, rows, HIDDEN));
                let span = Span { first_row: 0, rows, start, block_table: &table };
                group.throughput(Throughput::Bytes((2 * tokens * 192 * element.bytes()) as u64));
                group.bench_function(BenchmarkId::new(name, format!("{element:?} {rows} at {start}")), |bencher| {
                    bencher.iter(|| backend.attention(&queries, &pool, 0, &shape, &[span], &mut out));
                });
                backend.attention(&queries, &pool, 0, &shape, &[span], &mut out);
                check(&backend, &out, HIDDEN, &mut expected);
            }
        }
    }
    group.finish();
}

criterion_group!(benches, linear, rounded, rows, attention);
criterion_main!(benches);
