//! Opening model files, and decoding their rows without SIMD: each bench asserts its result.
//!
//! The two real models are measured when `scripts/fetch-models.sh target/models` has fetched them.

use std::hint::black_box;
use std::path::{Path, PathBuf};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use ictus::checkpoint::{Checkpoint, Vocabulary};
use ictus::tensor::{DType, dequantise_row};

/// A file and the rows of its vocabulary.
const FILES: &[(&str, usize)] = &[
    ("tests/data/qwen3.gguf", 288),
    ("tests/data/hf-qwen3", 288),
    ("target/models/smollm2-135m-instruct-q4_1.gguf", 49_152),
    ("target/models/gemma-3-270m-q4_k_m.gguf", 262_144),
];

fn path_of(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// From a path to a checkpoint whose every number and shape is checked; weights stay in the file.
fn open(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("open");
    for (name, vocab) in FILES {
        let path = path_of(name);
        if !path.exists() {
            eprintln!("skipped: {} is not there", path.display());
            continue;
        }
        group.bench_function(*name, |bencher| {
            bencher.iter(|| {
                let checkpoint = Checkpoint::open(black_box(&path)).expect("the model opens");
                assert_eq!(checkpoint.config().vocab, *vocab);
                if let Some(Vocabulary::Gguf(found)) = checkpoint.vocabulary() {
                    assert_eq!(found.tokens.len(), *vocab);
                }
                checkpoint
            });
        });
    }
    group.finish();
}

/// The identity of weights that are in the page cache.
fn identity(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("weights_identity");
    for (name, _) in FILES {
        let path = path_of(name);
        if !path.exists() {
            eprintln!("skipped: {} is not there", path.display());
            continue;
        }
        let expected = Checkpoint::open(&path).expect("the model opens").weights_identity();
        group.bench_function(*name, |bencher| {
            bencher.iter_batched(
                || Checkpoint::open(&path).expect("the model opens"),
                |checkpoint| assert_eq!(checkpoint.weights_identity(), expected),
                criterion::BatchSize::PerIteration,
            );
        });
    }
    group.finish();
}

/// Rows of 4096 zeros of every type: the reference, in bytes of the file.
fn dequantise(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("dequantise_row");
    let mut out = vec![1.0_f32; 4096];
    for &dtype in DType::ALL {
        let bytes = vec![0_u8; dtype.row_bytes(out.len()).expect("4096 values are whole units")];
        group.throughput(Throughput::Bytes(bytes.len() as u64));
        group.bench_function(format!("{dtype:?}"), |bencher| {
            bencher.iter(|| {
                dequantise_row(dtype, black_box(&bytes), &mut out).expect("the sizes agree");
                assert_eq!(out[4095], 0.0);
            });
        });
    }
    group.finish();
}

criterion_group!(benches, open, identity, dequantise);
criterion_main!(benches);
