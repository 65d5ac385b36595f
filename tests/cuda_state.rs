//! State out of a CUDA device's pages and back in eight and four bits an element: the bytes of the host's encoder, and only they travel. And the scenarios of
//! state over real models (`state_models/scenarios.rs`).
//!
//! Runs on simulated devices, or on the machine's: tests/common/cuda_device.rs.

#![cfg(feature = "cuda")]
#![allow(dead_code, reason = "the shared helpers have more than this file uses")]

#[path = "common/cuda_device.rs"]
mod cuda_device;
#[path = "common/model.rs"]
mod model;
#[path = "common/random.rs"]
mod random;
#[path = "state_models/scenarios.rs"]
mod scenarios;

use cuda_device::{Setting, TestDevice, backend, simulated, test_device};
use half::f16;
use ictus::backend::cpu::CpuBackend;
use ictus::backend::cuda::{CudaBackend, CudaGroup};
use ictus::backend::{Backend, KvShape, KvType};
use ictus::checkpoint::Checkpoint;
use ictus::engine::{Engine, OpHandle};
use ictus::executor::{Executor, ExecutorOptions};
use ictus::record::TokenRange;
use ictus::record::constant::{encoding, op_state};
use ictus::runtime::{PagedOptions, Runtime};
use ictus::testing::Harness;
use ictus::transfer::{Encoding, HEADER_BYTES};
use random::Random;

/// What the scenarios of `tests/state_models.rs` run on here. Those of `tests/state_scenarios` are about the fake runtime: they choose its pages, cells and
/// tokens, which no model has.
mod engine {
    use ictus::backend::Arithmetic;
    use ictus::backend::cuda::CudaBackend;

    use crate::cuda_device::{TestDevice, backend, test_device};

    pub(crate) type Under = CudaBackend;

    /// Simulated devices take a second for what a processor does at once, so: heads of one size with a window, and another family.
    pub(crate) const FILES: [&str; 2] = ["tests/data/llama-window.gguf", "tests/data/gemma3.gguf"];

    pub(crate) fn device() -> Option<TestDevice> {
        test_device()
    }

    pub(crate) fn under(arithmetic: Arithmetic, _: usize) -> CudaBackend {
        backend().with_arithmetic(arithmetic)
    }
}

const LOSSY: [Encoding; 2] = [Encoding::Q8, Encoding::Q4];

fn floats(bytes: &[u8], element: KvType) -> Vec<f32> {
    match element {
        KvType::F32 => bytes.as_chunks::<4>().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect(),
        KvType::F16 => bytes.as_chunks::<2>().0.iter().map(|&bytes| f16::from_le_bytes(bytes).to_f32()).collect(),
    }
}

/// A lossless payload in an encoding, by the host.
fn encoded(lossless: &[u8], element: KvType, head_dim: usize, encoding: Encoding) -> Vec<u8> {
    let mut out = Vec::new();
    for vector in floats(lossless, element).chunks(head_dim) {
        let mut bytes = vec![0; encoding.vector_bytes(head_dim, element.bytes())];
        encoding.encode(vector, &mut bytes);
        out.extend(bytes);
    }
    out
}

/// The numbers of a payload as a pool of this type keeps them, by the host.
fn decoded(payload: &[u8], element: KvType, head_dim: usize, encoding: Encoding) -> Vec<f32> {
    let mut out = Vec::new();
    for bytes in payload.chunks(encoding.vector_bytes(head_dim, element.bytes())) {
        let mut vector = vec![0.0; head_dim];
        encoding.decode(bytes, &mut vector);
        out.extend(vector.into_iter().map(|value| match element {
            KvType::F32 => value,
            KvType::F16 => f16::from_f32(value).to_f32(),
        }));
    }
    out
}

/// Equal to the bit, but that a NaN is any NaN.
fn assert_same(got: &[f32], want: &[f32], what: &str) {
    assert_eq!(got.len(), want.len(), "{what}");
    let differs = |(got, want): (&f32, &f32)| got.to_bits() != want.to_bits() && !(got.is_nan() && want.is_nan());
    if let Some(at) = got.iter().zip(want).position(differs) {
        panic!("{what}: element {at} is {} and not {}", got[at], want[at]);
    }
}

/// Numbers of all magnitudes; some vectors of zeros, of almost zeros, and with what is no number.
fn elements(random: &mut Random, shape: &KvShape, tokens: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..tokens * shape.token_elements() / shape.head_dim {
        let magnitude = 10_f32.powi(random.below(12) as i32 - 8);
        let kind = random.below(8);
        for _ in 0..shape.head_dim {
            let uniform = (random.next() >> 40) as f32 / (1 << 23) as f32 - 1.0;
            let value = match kind {
                0 => 0.0,
                1 => uniform * 1e-31,
                2 if random.below(9) == 0 => *random.pick(&[f32::NAN, f32::INFINITY, f32::NEG_INFINITY]),
                // Half codes: products that end on a tie.
                3 => random.below(255) as f32 * 0.5 - 63.5,
                _ => uniform * magnitude,
            };
            match shape.element {
                KvType::F32 => bytes.extend(value.to_le_bytes()),
                KvType::F16 => bytes.extend(f16::from_f32(value).to_le_bytes()),
            }
        }
    }
    bytes
}

fn read(
    backend: &CudaBackend,
    pool: &<CudaBackend as Backend>::Pages,
    table: &[u32],
    tokens: core::ops::Range<usize>,
    len: usize,
) -> Vec<u8> {
    let mut out = vec![0xAA; len];
    backend.read_tokens(pool, table, tokens, &mut out).expect("it reads");
    out
}

/// S-67: over odd shapes, pages and ranges the device writes the bytes of the host's encoder, and reads them, and any others, to its numbers.
#[test]
fn cuda_pages_are_encoded_to_the_bytes_of_the_host() {
    let Some(device) = test_device() else { return };
    let mut random = Random::new("cuda encodings");
    let shapes = [(1, 1, 8, 16), (2, 3, 24, 5), (1, 2, 32, 1), (2, 1, 40, 7), (1, 2, 72, 4), (1, 1, 256, 16)];
    for (round, (layers, n_kv_heads, head_dim, page_size_tokens)) in shapes.into_iter().enumerate() {
        for element in [KvType::F32, KvType::F16] {
            if let TestDevice::Simulated(driver) = &device {
                driver.reset();
                driver.set(Setting::Order, 2);
                driver.set(Setting::Seed, round as u64);
            }
            let shape = KvShape { layers, n_kv_heads, head_dim, page_size_tokens, pages: 14, element };
            let backend = backend();
            let mut pool = backend.pages(&shape).expect("a pool");
            let table: Vec<u32> = (0..14).map(|page| page * 5 % 14).collect();
            let tokens = (6 * page_size_tokens).min(13);
            let token = shape.token_elements() * element.bytes();
            let plain = elements(&mut random, &shape, tokens);
            backend.write_tokens(&mut pool, &table, 0..tokens, &plain).expect("it writes");
            for encoding in LOSSY {
                let what = format!("{shape:?} {encoding:?}");
                let from = tokens / 3;
                let expected = encoded(&plain[from * token..], element, head_dim, encoding);
                let mut got = vec![0xAA; expected.len()];
                let is_done = backend.read_tokens_as(&pool, &table, from..tokens, encoding, &mut got);
                assert_eq!(is_done, Ok(true), "{what}");
                assert!(got == expected, "{what}: the bytes differ");
                // Back into other pages, beside others that stay as they are.
                let other: Vec<u32> = table.iter().rev().copied().collect();
                let len = got.len() / (tokens - from);
                let mut pool = backend.pages(&shape).expect("a pool");
                for bytes in [got.clone(), (0..got.len()).map(|_| random.next() as u8).collect()] {
                    assert_eq!(backend.write_tokens_as(&mut pool, &other, 1..2, encoding, &bytes[..len]), Ok(true));
                    let now = read(&backend, &pool, &other, 0..3.min(tokens), 3.min(tokens) * token);
                    let numbers = floats(&now, element);
                    let want = decoded(&bytes[..len], element, head_dim, encoding);
                    let vectors = shape.token_elements();
                    assert_same(&numbers[vectors..2 * vectors], &want, &what);
                    assert!(numbers[..vectors].iter().chain(&numbers[2 * vectors..]).all(|&x| x == 0.0), "{what}");
                    let count = tokens - from;
                    assert_eq!(backend.write_tokens_as(&mut pool, &other, 0..count, encoding, &bytes), Ok(true));
                    let now = read(&backend, &pool, &other, 0..count, count * token);
                    assert_same(&floats(&now, element), &decoded(&bytes, element, head_dim, encoding), &what);
                    pool = backend.pages(&shape).expect("a pool");
                }
            }
        }
    }
}

fn options(kv_type: KvType, page_size_tokens: usize) -> PagedOptions {
    PagedOptions { page_size_tokens, pool_pages: 256 / page_size_tokens, ..model::options(kv_type, 64) }
}

fn prompt(len: usize) -> Vec<u32> {
    (0..len as u32).map(|i| 3 + i * 7 % 90).collect()
}

/// S-97: a runtime's lossy payloads are those of the processor for the same state, in whatever slices, on one device or two; what is
/// imported from them is the same; and what travels is the small form.
#[test]
fn cuda_lossy_payloads_are_those_of_the_processor_and_travel_small() {
    let Some(driver) = simulated() else { return };
    driver.set(Setting::Devices, 2);
    let checkpoint = Checkpoint::open(model::file("tests/data/gemma3.gguf")).expect("the model opens");
    for kv_type in [KvType::F32, KvType::F16] {
        let mut cuda = model::runtime(backend(), &checkpoint, &options(kv_type, 16));
        let source = cuda.seq_create().expect("a sequence");
        model::last_row(&mut cuda, source, &prompt(21));
        let lossless = cuda.seq_export(source, 21, encoding::LOSSLESS).expect("offered");
        let group = CudaGroup::new(&[0, 1]).expect("two devices");
        let mut group = model::runtime(group, &checkpoint, &options(kv_type, 4));
        let spread = group.seq_create().expect("a sequence");
        group.seq_import(spread, &lossless).expect("its state");
        let mut cpu = model::runtime(CpuBackend::new(1), &checkpoint, &options(kv_type, 5));
        let twin = cpu.seq_create().expect("a sequence");
        cpu.seq_import(twin, &lossless).expect("its state");
        for code in [encoding::Q8, encoding::Q4] {
            let before = driver.statistics().bytes_to_host;
            let payload = cuda.seq_export(source, 21, code).expect("offered");
            assert_eq!(driver.statistics().bytes_to_host - before, payload.len() as u64, "the small form travels");
            assert!(payload.len() < lossless.len() / 2 + lossless.len() / 8, "it is small");
            assert!(cpu.seq_export(twin, 21, code).as_ref() == Ok(&payload), "{kv_type:?} {code}");
            assert!(group.seq_export(spread, 21, code).as_ref() == Ok(&payload), "{kv_type:?} {code}: two devices");
            let token = payload.len() / 21;
            let mut sliced = vec![0xAA; payload.len()];
            for (start, out) in (0..21).step_by(4).zip(sliced.chunks_mut(4 * token)) {
                cuda.export_part(source, start..21.min(start + 4), code, out).expect("held");
            }
            assert!(sliced == payload, "{kv_type:?} {code}: in slices");
            let import = |runtime: &mut dyn Runtime| {
                let target = runtime.seq_create().expect("a sequence");
                runtime.import_begin(target, 0..21).expect("room");
                runtime.import_part(target, 0..8, code, &payload[..8 * token]).expect("its bytes");
                runtime.import_part(target, 8..21, code, &payload[8 * token..]).expect("its bytes");
                let held = runtime.seq_export(target, 21, encoding::LOSSLESS).expect("offered");
                runtime.seq_free(target);
                held
            };
            let before = driver.statistics().bytes_to_device;
            let expected = import(&mut cuda);
            // The payload, and the block tables of three moves.
            let came = driver.statistics().bytes_to_device - before;
            assert!(came <= payload.len() as u64 + 3 * 4 * 64, "{came} bytes for a payload of {}", payload.len());
            assert!(import(&mut cpu) == expected, "{kv_type:?} {code}");
            assert!(import(&mut group) == expected, "{kv_type:?} {code}: two devices");
        }
    }
}

fn finish(h: &mut Harness<impl Engine>, op: OpHandle) -> Vec<u8> {
    while h.engine.op_poll(op).expect("known").state < op_state::DONE {
        h.engine.pump();
    }
    assert_eq!(h.engine.op_poll(op).expect("known").state, op_state::DONE);
    h.engine.take_op_output(op).expect("an output")
}

/// S-67, S-91, on a CUDA device: a range of a live lane is demoted in each encoding, its memory is used by others, and it comes back: as it was, or to
/// the numbers that its bytes say. The sealed bytes are those of the host's encoder over what the lane held.
#[test]
fn cuda_lanes_are_demoted_and_promoted_in_every_encoding() {
    let Some(_device) = test_device() else { return };
    let checkpoint = Checkpoint::open(model::file("tests/data/qwen3.gguf")).expect("the model opens");
    let head_dim = checkpoint.config().head_dim;
    const KV: u32 = 1;
    for kv_type in [KvType::F32, KvType::F16] {
        for encoding in [Encoding::Lossless, Encoding::Q8, Encoding::Q4] {
            let code = match encoding {
                Encoding::Lossless => encoding::LOSSLESS,
                Encoding::Q8 => encoding::Q8,
                Encoding::Q4 => encoding::Q4,
            };
            let runtime = model::runtime(backend(), &checkpoint, &model::options(kv_type, 96));
            // Every operation takes several slices.
            let options = ExecutorOptions { op_slice_bytes: 1500, ..ExecutorOptions::default() };
            let mut h = Harness::with_engine(Executor::with_options(runtime, options));
            let staged = h.prompt(&prompt(40));
            let plan = h.plan().admit(1, staged).prefill(1, 0, 40).decode(1, 1);
            h.tick_ok(plan);
            let sequence = h.engine.lane_sequence(1).expect("live");
            let range = TokenRange { start: 0, end: 32 };
            let export = |h: &mut Harness<_>, range, code, release: bool| {
                let engine: &mut Executor<_> = &mut h.engine;
                let sizing = engine.space_export_size(sequence, KV, range, code).expect("held");
                let (bytes, made) = (sizing.bytes, sizing.sizing_gen);
                let op = if release {
                    engine.space_demote(sequence, KV, range, code, bytes, made)
                } else {
                    engine.space_snapshot(sequence, KV, range.end, bytes, made)
                };
                finish(h, op.expect("sized"))
            };
            let lossless = export(&mut h, range, encoding::LOSSLESS, false);
            let sealed = export(&mut h, range, code, true);
            let what = format!("{kv_type:?} {encoding:?}");
            let expected = match encoding {
                Encoding::Lossless => lossless[HEADER_BYTES..].to_vec(),
                _ => encoded(&lossless[HEADER_BYTES..], kv_type, head_dim, encoding),
            };
            assert!(sealed[HEADER_BYTES..] == expected, "{what}: the demoted bytes");
            // Somebody else uses the memory meanwhile, so the range comes back to other pages.
            let staged = h.prompt(&prompt(33));
            let plan = h.plan().admit(2, staged).prefill(2, 0, 33).decode(2, 1);
            h.tick_ok(plan);
            let op = h.engine.space_promote(sequence, KV, range, &sealed).expect("its own range");
            finish(&mut h, op);
            let held = export(&mut h, range, encoding::LOSSLESS, false);
            let numbers = floats(&held[HEADER_BYTES..], kv_type);
            let want = match encoding {
                Encoding::Lossless => floats(&lossless[HEADER_BYTES..], kv_type),
                _ => decoded(&expected, kv_type, head_dim, encoding),
            };
            assert_same(&numbers, &want, &what);
            let plan = h.plan().decode(1, 3);
            let events = h.tick_ok(plan);
            assert_eq!(h.tokens_of(&events, 1).len(), 3, "{what}: the lane goes on");
        }
    }
}
