//! How fast state moves out and in, against copying as many bytes: of the runtime alone, and as operations with their checksums.
//! Each bench asserts its result.

use std::hint::black_box;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use ictus::backend::KvType;
use ictus::backend::cpu::CpuBackend;
use ictus::checkpoint::Checkpoint;
use ictus::engine::Engine;
use ictus::executor::{Executor, ExecutorOptions};
use ictus::record::TokenRange;
use ictus::record::constant::{encoding, op_state};
use ictus::runtime::{ModelRuntime, PagedIdentity, PagedOptions, Runtime, SeqHandle};

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/models/ictus-tiny.gguf");
/// Tokens of the sequence that moves.
const TOKENS: u64 = 8 * 1024;

fn runtime() -> ModelRuntime<CpuBackend> {
    let checkpoint = Checkpoint::open(MODEL).expect("the model of the repository");
    let options = PagedOptions {
        kv_type: KvType::F32,
        page_size_tokens: 16,
        pool_pages: 4 * TOKENS as usize / 16,
        context_tokens: TOKENS as usize,
        max_lanes: 1,
        prefill_step_tokens: 16,
        pass_rows: 0,
        cache_resident_tokens: 0,
        cache_exported_tokens: 0,
    };
    let identity = PagedIdentity::default();
    ModelRuntime::new(CpuBackend::new(1), checkpoint.config(), &checkpoint, &options, identity).expect("it loads")
}

/// A payload of numbers between -1 and 1: nothing is computed to fill a sequence.
fn payload(runtime: &impl Runtime) -> Vec<u8> {
    let bytes = runtime.payload_token_bytes(encoding::LOSSLESS).expect("offered") * TOKENS;
    (0..bytes / 4).flat_map(|i| ((i * 2654435761 % 2000) as f32 / 1000.0 - 1.0).to_le_bytes()).collect()
}

fn primitives(criterion: &mut Criterion) {
    let mut runtime = runtime();
    let payload = payload(&runtime);
    let (source, target) = (runtime.seq_create().expect("a slot"), runtime.seq_create().expect("a slot"));
    runtime.seq_import(source, &payload).expect("room");
    let mut group = criterion.benchmark_group("transfer");
    group.sample_size(20).throughput(Throughput::Bytes(payload.len() as u64));
    let mut copy = vec![0; payload.len()];
    group.bench_function("memcpy", |bencher| bencher.iter(|| copy.copy_from_slice(black_box(&payload))));
    for (name, code) in [("lossless", encoding::LOSSLESS), ("q8", encoding::Q8), ("q4", encoding::Q4)] {
        let bytes = runtime.export_bytes(source, 0..TOKENS, code).expect("held") as usize;
        let mut out = vec![0; bytes];
        group.bench_function(format!("export {name}"), |bencher| {
            bencher.iter(|| runtime.export_part(source, 0..TOKENS, code, black_box(&mut out)).expect("held"));
        });
        assert!(code != encoding::LOSSLESS || out == payload);
        runtime.import_begin(target, 0..TOKENS).expect("room");
        group.bench_function(format!("import {name}"), |bencher| {
            bencher.iter(|| runtime.import_part(target, 0..TOKENS, code, black_box(&out)).expect("begun"));
        });
        assert_eq!(runtime.seq_export(target, TOKENS, code).expect("held").len(), bytes);
        runtime.seq_truncate(target, 0).expect("it is there");
    }
    group.finish();
}

fn finish(engine: &mut Executor<ModelRuntime<CpuBackend>>, op: u64) -> Vec<u8> {
    while engine.op_poll(op).expect("known").state < op_state::DONE {
        engine.pump();
    }
    assert_eq!(engine.op_poll(op).expect("known").state, op_state::DONE);
    engine.take_op_output(op).expect("an output")
}

fn snapshot(engine: &mut Executor<ModelRuntime<CpuBackend>>, sequence: SeqHandle) -> Vec<u8> {
    let sizing = engine.space_export_size(sequence, 1, TokenRange { start: 0, end: TOKENS }, 0).expect("held");
    let op = engine.space_snapshot(sequence, 1, TOKENS, sizing.bytes, sizing.sizing_gen).expect("sized");
    finish(engine, op)
}

fn operations(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("transfer");
    for (name, op_fast_checksum) in [("FNV-1a", false), ("XXH3", true)] {
        let options = ExecutorOptions { op_fast_checksum, ..ExecutorOptions::default() };
        let mut engine = Executor::with_options(runtime(), options);
        let source = engine.create_sequence().expect("a slot");
        let payload = payload(engine.primitives());
        engine.primitives_mut().seq_import(source, &payload).expect("room");
        group.sample_size(10).throughput(Throughput::Bytes(payload.len() as u64));
        let sealed = snapshot(&mut engine, source);
        assert!(sealed[136..] == payload);
        group.bench_function(format!("snapshot, {name}"), |bencher| {
            bencher.iter_batched(|| (), |()| snapshot(&mut engine, source), BatchSize::PerIteration);
        });
        let target = engine.create_sequence().expect("a slot");
        group.bench_function(format!("restore, {name}"), |bencher| {
            bencher.iter(|| {
                let op = engine.space_restore(target, 1, black_box(&sealed)).expect("its own");
                finish(&mut engine, op);
                engine.space_trim(target, 1, 0).expect("bare");
            });
        });
        let size = TokenRange { start: 0, end: TOKENS };
        group.bench_function(format!("size, {name}"), |bencher| {
            bencher.iter(|| engine.space_export_size(source, 1, size, 0).expect("held"));
        });
    }
    group.finish();
}

criterion_group!(benches, primitives, operations);
criterion_main!(benches);
