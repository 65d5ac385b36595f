//! Sequences of real models as payload bytes: what comes back is what was there, wherever its pages lie, in whatever slices it moves.

#![allow(dead_code, reason = "the shared helpers have more than this file uses")]

#[path = "common/model.rs"]
mod model;
#[path = "common/naive.rs"]
mod naive;

use ictus::backend::cpu::CpuBackend;
use ictus::backend::{Backend, KvType};
use ictus::checkpoint::Checkpoint;
use ictus::record::constant::encoding;
use ictus::runtime::{Answers, Feed, Input, ModelRuntime, PagedOptions, Runtime, RuntimeError, SeqHandle, Want};
use ictus::transfer::{BLOCK, Encoding};
use naive::Naive;

const FAMILIES: [&str; 6] = ["ictus-tiny", "llama-window", "llama-rope-scaled", "gemma3", "qwen2", "qwen3"];

fn checkpoint(family: &str) -> Checkpoint {
    let file =
        if family == "ictus-tiny" { format!("models/{family}.gguf") } else { format!("tests/data/{family}.gguf") };
    Checkpoint::open(model::file(file)).expect("the model opens")
}

fn options(kv_type: KvType, page_size_tokens: usize) -> PagedOptions {
    PagedOptions { page_size_tokens, pool_pages: 256 / page_size_tokens, ..model::options(kv_type, 64) }
}

fn prompt(len: usize) -> Vec<u32> {
    (0..len as u32).map(|i| 3 + i * 7 % 90).collect()
}

fn filled<B: Backend>(runtime: &mut ModelRuntime<B>, len: usize) -> SeqHandle {
    let sequence = runtime.seq_create().expect("a slot");
    model::last_row(runtime, sequence, &prompt(len));
    sequence
}

fn bits(row: &[f32]) -> Vec<u32> {
    row.iter().map(|value| value.to_bits()).collect()
}

/// The payload in slices of these many tokens.
fn sliced<B: Backend>(runtime: &mut ModelRuntime<B>, sequence: SeqHandle, len: u64, code: u8, step: usize) -> Vec<u8> {
    let token = runtime.payload_token_bytes(code).expect("it is offered") as usize;
    let mut payload = vec![0xAA; len as usize * token];
    for (start, out) in (0..len).step_by(step).zip(payload.chunks_mut(step * token)) {
        runtime.export_part(sequence, start..len.min(start + step as u64), code, out).expect("it is held");
    }
    payload
}

/// a lossless payload moves to other pages of other sizes, and every later row has the same bits.
#[test]
fn lossless_payload_gives_the_same_bits_in_any_pool() {
    for family in FAMILIES {
        for kv_type in [KvType::F32, KvType::F16] {
            let file = checkpoint(family);
            let mut from = model::runtime(CpuBackend::new(1), &file, &options(kv_type, 16));
            let source = filled(&mut from, 41);
            let payload = from.seq_export(source, 37, encoding::LOSSLESS).expect("lossless is offered");
            from.seq_truncate(source, 37).expect("it can be cut");
            let expected = bits(&model::last_row(&mut from, source, &[5, 6]));
            for page in [1, 16, 5] {
                let mut to = model::runtime(CpuBackend::new(2), &file, &options(kv_type, page));
                let _elsewhere = filled(&mut to, 7);
                let target = to.seq_create().expect("a slot");
                assert_eq!(to.seq_import(target, &payload), Ok(37));
                assert_eq!(to.seq_export(target, 37, encoding::LOSSLESS).as_ref(), Ok(&payload));
                assert_eq!(
                    bits(&model::last_row(&mut to, target, &[5, 6])),
                    expected,
                    "{family} {kv_type:?} page {page}"
                );
            }
        }
    }
}

/// S-97: slices of any length are the same bytes, and what sizing says is their number.
#[test]
fn payload_does_not_depend_on_how_it_is_sliced() {
    let mut runtime = model::runtime(CpuBackend::new(1), &checkpoint("gemma3"), &options(KvType::F32, 16));
    let source = filled(&mut runtime, 41);
    for code in [encoding::LOSSLESS, encoding::Q8, encoding::Q4] {
        let whole = runtime.seq_export(source, 41, code).expect("it is offered");
        assert_eq!(runtime.export_bytes(source, 0..41, code), Ok(whole.len() as u64));
        for step in [1, 3, 16, 40] {
            assert!(sliced(&mut runtime, source, 41, code, step) == whole, "encoding {code}, slices of {step}");
        }
        let token = whole.len() / 41;
        let target = runtime.seq_create().expect("a slot");
        runtime.import_begin(target, 0..41).expect("there is room");
        for (start, bytes) in (0..41).step_by(6).zip(whole.chunks(6 * token)) {
            runtime.import_part(target, start..41.min(start + 6), code, bytes).expect("its bytes");
        }
        assert_eq!(runtime.import_end(target, 0..41), Ok(41));
        let again = runtime.seq_export(target, 41, code).expect("it is offered");
        // What a lossy encoding gave has no digits left to lose, but for a rounding of the scale.
        if code == encoding::LOSSLESS {
            assert!(again == whole);
        }
        runtime.seq_free(target);
    }
}

/// The naive backend writes the payload in the words of its documentation, and the real one reads it.
#[test]
fn payload_is_laid_out_as_documented() {
    let file = checkpoint("qwen3");
    let mut naive = model::runtime(Naive::default(), &file, &options(KvType::F32, 16));
    let source = filled(&mut naive, 21);
    let payload = naive.seq_export(source, 21, encoding::LOSSLESS).expect("lossless is offered");
    let mut cpu = model::runtime(CpuBackend::new(1), &file, &options(KvType::F32, 16));
    let target = cpu.seq_create().expect("a slot");
    assert_eq!(cpu.seq_import(target, &payload), Ok(21));
    assert_eq!(cpu.seq_export(target, 21, encoding::LOSSLESS), Ok(payload));
    let row: Vec<f64> = model::last_row(&mut naive, source, &[5]).iter().map(|&value| f64::from(value)).collect();
    let difference = model::max_difference(&model::last_row(&mut cpu, target, &[5]), &row);
    assert!(difference < 1e-3, "the two backends compute the same from it: {difference}");
}

/// S-67: on real keys and values the error of Q8 and Q4 stays within the declared bound, element by element.
#[test]
fn lossy_payloads_keep_their_declared_error_on_real_models() {
    for family in FAMILIES {
        for kv_type in [KvType::F32, KvType::F16] {
            let file = checkpoint(family);
            let mut runtime = model::runtime(CpuBackend::new(1), &file, &options(kv_type, 16));
            let source = filled(&mut runtime, 41);
            let exact = floats(&runtime.seq_export(source, 41, encoding::LOSSLESS).expect("offered"), kv_type);
            for encoding in [Encoding::Q8, Encoding::Q4] {
                let code = if encoding == Encoding::Q8 { encoding::Q8 } else { encoding::Q4 };
                let payload = runtime.seq_export(source, 41, code).expect("offered");
                let target = runtime.seq_create().expect("a slot");
                runtime.import_begin(target, 0..41).expect("room");
                runtime.import_part(target, 0..41, code, &payload).expect("its bytes");
                let lossy = floats(&runtime.seq_export(target, 41, encoding::LOSSLESS).expect("offered"), kv_type);
                runtime.seq_free(target);
                let head_dim = file.config().head_dim;
                let mut worst = 0f32;
                for (exact, lossy) in exact.chunks(head_dim).zip(lossy.chunks(head_dim)) {
                    for (exact, lossy) in exact.chunks(BLOCK).zip(lossy.chunks(BLOCK)) {
                        let max = exact.iter().fold(0f32, |max, value| max.max(value.abs()));
                        // A pool of half precision rounds what was decoded once more: half a unit in the last place.
                        let rounding = if kv_type == KvType::F16 { max / 2048.0 + 3e-8 } else { 0.0 };
                        for (exact, lossy) in exact.iter().zip(lossy) {
                            let error = (exact - lossy).abs();
                            assert!(
                                error <= encoding.error_bound(max) + rounding,
                                "{family} {encoding:?}: {exact} {lossy}"
                            );
                            worst = worst.max(error);
                        }
                    }
                }
                assert!(worst > 0.0, "{family} {encoding:?}: something was rounded");
            }
        }
    }
}

fn floats(payload: &[u8], kv_type: KvType) -> Vec<f32> {
    match kv_type {
        KvType::F32 => payload.as_chunks::<4>().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect(),
        KvType::F16 => payload.as_chunks::<2>().0.iter().map(|&b| half::f16::from_le_bytes(b).to_f32()).collect(),
    }
}

/// what is refused, twice and without a trace.
#[test]
fn refused_transfers_leave_no_trace() {
    let mut runtime = model::runtime(CpuBackend::new(1), &checkpoint("qwen2"), &options(KvType::F32, 16));
    let full = filled(&mut runtime, 20);
    let empty = runtime.seq_create().expect("a slot");
    let payload = runtime.seq_export(full, 20, encoding::LOSSLESS).expect("offered");
    let before = (runtime.mem_counters(), runtime.seq_len(full), runtime.seq_len(empty));
    for _ in 0..2 {
        assert_eq!(runtime.export_bytes(99, 0..1, 0), Err(RuntimeError::UnknownSeq));
        assert_eq!(runtime.export_bytes(full, 0..21, 0), Err(RuntimeError::OutOfBoundary));
        assert_eq!(runtime.export_bytes(full, 0..20, 3), Err(RuntimeError::Unsupported));
        assert_eq!(runtime.export_part(full, 0..20, 0, &mut [0; 8]), Err(RuntimeError::OutOfBoundary));
        assert_eq!(runtime.seq_import(full, &payload), Err(RuntimeError::OutOfBoundary));
        assert_eq!(runtime.seq_import(empty, &payload[1..]), Err(RuntimeError::OutOfBoundary));
        assert_eq!(runtime.seq_import(99, &payload), Err(RuntimeError::UnknownSeq));
        assert_eq!(runtime.import_begin(empty, 16..20), Err(RuntimeError::OutOfBoundary));
        assert_eq!(runtime.import_begin(empty, 0..65), Err(RuntimeError::OutOfBoundary));
        assert_eq!(runtime.import_part(full, 0..20, 0, &[0; 8]), Err(RuntimeError::OutOfBoundary));
        assert_eq!((runtime.mem_counters(), runtime.seq_len(full), runtime.seq_len(empty)), before);
    }
    assert_eq!(runtime.seq_export(full, 20, encoding::LOSSLESS), Ok(payload));
}

/// S-91: a released range gives its pages back, is in nobody's way, and comes back to the same bits.
#[test]
fn released_range_frees_pages_and_is_filled_to_the_same_bits() {
    let mut runtime = model::runtime(CpuBackend::new(1), &checkpoint("llama-window"), &options(KvType::F32, 16));
    let sequence = filled(&mut runtime, 41);
    let twin = filled(&mut runtime, 41);
    let expected = bits(&model::last_row(&mut runtime, twin, &[5]));
    let used = runtime.mem_counters().cells_used;
    let token = runtime.payload_token_bytes(encoding::LOSSLESS).expect("offered") as usize;
    for range in [0..16, 16..32, 32..41, 0..41] {
        let mut payload = vec![0; (range.end - range.start) as usize * token];
        runtime.export_part(sequence, range.clone(), encoding::LOSSLESS, &mut payload).expect("held");
        runtime.range_release(sequence, range.clone()).expect("whole pages");
        assert_eq!(runtime.mem_counters().cells_used, used - 16 * (range.end - range.start).div_ceil(16));
        assert_eq!(runtime.seq_len(sequence), 41);
        let other = runtime.seq_create().expect("a slot");
        for _ in 0..2 {
            let feed = Feed { sequence, input: Input::Tokens(&[5]), want: Want::Nothing };
            assert_eq!(runtime.step(&[feed], &mut Answers::new()), Err(RuntimeError::OutOfBoundary));
            assert_eq!(runtime.range_release(sequence, range.clone()), Err(RuntimeError::OutOfBoundary));
            assert_eq!(runtime.export_bytes(sequence, 0..41, encoding::LOSSLESS), Err(RuntimeError::OutOfBoundary));
            assert_eq!(runtime.seq_copy(sequence, other, range.start + 1), Err(RuntimeError::OutOfBoundary));
            assert_eq!(runtime.range_release(sequence, 1..16), Err(RuntimeError::OutOfBoundary));
            assert_eq!(runtime.import_begin(sequence, 0..9), Err(RuntimeError::OutOfBoundary));
        }
        assert_eq!(runtime.seq_copy(sequence, other, range.start), Ok(()), "what lies before the hole can be copied");
        runtime.seq_free(other);
        runtime.sequences().audit().expect("the tables agree");
        runtime.import_begin(sequence, range.clone()).expect("its pages are free");
        runtime.import_part(sequence, range.clone(), encoding::LOSSLESS, &payload).expect("its bytes");
        assert_eq!(runtime.import_end(sequence, range), Ok(41));
        assert_eq!(runtime.mem_counters().cells_used, used);
    }
    assert_eq!(bits(&model::last_row(&mut runtime, sequence, &[5])), expected);
    runtime.range_release(sequence, 16..32).expect("whole pages");
    runtime.seq_truncate(sequence, 0).expect("a sequence with holes can be emptied");
    runtime.seq_free(twin);
    assert_eq!(runtime.mem_counters().cells_used, 0);
    runtime.sequences().audit().expect("the tables agree");
}
