//! Whole models on the CUDA backend: every family against logits that a double-precision program of its own computed from the same file, rows that
//! do not depend on schedules, adapters, and state that moves.
//!
//! Runs on simulated devices, or on the machine's: tests/common/cuda_device.rs.

#![cfg(feature = "cuda")]
#![allow(dead_code, reason = "the shared helpers have more than this file uses")]

#[path = "common/cuda_device.rs"]
mod cuda_device;
#[path = "common/gguf.rs"]
mod gguf;
#[path = "common/lora.rs"]
mod lora;
#[path = "common/model.rs"]
mod model;
#[path = "common/models.rs"]
mod models;
#[path = "common/naive.rs"]
mod naive;
#[path = "common/random.rs"]
mod random;

use cuda_device::{backend, test_device};
use ictus::backend::cpu::CpuBackend;
use ictus::backend::cuda::CudaBackend;
use ictus::backend::{Arithmetic, KvType};
use ictus::checkpoint::Checkpoint;
use ictus::model::TensorSource;
use ictus::record::constant::encoding;
use ictus::runtime::{
    Answer, Answers, Feed, Input, ModelRuntime, PagedIdentity, PagedOptions, Runtime, SeqHandle, Want,
};
use ictus::sample::{SampleRequest, Scratch, pick};
use ictus::tensor::Tensor;
use lora::Lora;
use naive::Naive;
use random::Random;
use serde_json::Value;

/// Largest error of a logit: that of tests/families.rs, which says why.
const TOLERANCE: f64 = 3e-5;

/// Models that have an expectation.
const FILES: [(&str, &str); 6] = [
    ("tests/data", "llama-rope-scaled"),
    ("tests/data", "llama-window"),
    ("tests/data", "qwen2"),
    ("tests/data", "qwen3"),
    ("tests/data", "gemma3"),
    ("models", "ictus-tiny"),
];
/// Prompts tried of each, and tokens picked after each.
const PROMPTS: usize = 2;
const TOKENS: usize = 4;

fn open(path: &str) -> Checkpoint {
    Checkpoint::open(model::file(path)).expect("the model opens")
}

fn floats(value: &Value) -> Vec<f64> {
    value.as_array().expect("a list").iter().map(|x| x.as_f64().expect("a number")).collect()
}

fn ids(value: &Value) -> Vec<u32> {
    floats(value).into_iter().map(|id| id as u32).collect()
}

fn bits(row: &[f32]) -> Vec<u32> {
    row.iter().map(|value| value.to_bits()).collect()
}

fn prompt(len: usize) -> Vec<u32> {
    (0..len as u32).map(|i| 3 + i * 7 % 40).collect()
}

fn on_device(checkpoint: &Checkpoint, options: &PagedOptions) -> ModelRuntime<CudaBackend> {
    model::runtime(backend(), checkpoint, options)
}

#[test]
fn cuda_families_match_the_reference_program() {
    let Some(_device) = test_device() else { return };
    for (folder, name) in FILES {
        let checkpoint = open(&format!("{folder}/{name}.gguf"));
        let mut runtime = on_device(&checkpoint, &model::options(KvType::F32, 64));
        let text = std::fs::read(model::file(format!("tests/data/{name}.expected.json"))).expect("an expectation");
        let expected: Value = serde_json::from_slice(&text).expect("json");
        let mut most: f64 = 0.0;
        for prompt in expected["prompts"].as_array().expect("a list").iter().take(PROMPTS) {
            let positions: Vec<usize> = floats(&prompt["positions"]).into_iter().map(|p| p as usize).collect();
            let rows = model::rows_at(&mut runtime, &ids(&prompt["ids"]), &positions);
            for (row, want) in rows.iter().zip(prompt["logits"].as_array().expect("a list")) {
                most = most.max(model::max_difference(row, &floats(want)));
            }
            let greedy = &prompt["greedy"];
            let margins = floats(&greedy["margin"]);
            let sure = margins.iter().position(|&margin| margin < 1e-3).unwrap_or(margins.len()).min(TOKENS);
            let picked = model::greedy(&mut runtime, &ids(&prompt["ids"]), sure);
            assert_eq!(picked, ids(&greedy["ids"])[..sure], "{name}: {}", prompt["name"]);
        }
        println!("{name}: {most:.2e}");
        assert!(most < TOLERANCE, "{name}: {most:.2e}");
    }
}

fn fast_on_device(checkpoint: &Checkpoint, options: &PagedOptions) -> ModelRuntime<CudaBackend> {
    model::runtime(backend().with_arithmetic(Arithmetic::Fast), checkpoint, options)
}

fn squares(values: impl Iterator<Item = f64>) -> f64 {
    values.map(|value| value * value).sum()
}

/// Fast arithmetic is as far from double precision as the rounding of the inputs of its products explains, and no nearer than exact arithmetic is, which shows that it is there.
///
/// A code is off by a step over the root of 12 on average, a step is a 127th of the largest of 32 numbers, which is at most the root of 32 times their average size. A row
/// goes through four such products a layer and the head's, whose errors are independent.
#[test]
fn cuda_fast_families_are_near_the_reference_program() {
    let Some(_device) = test_device() else { return };
    for (folder, name) in FILES {
        let checkpoint = open(&format!("{folder}/{name}.gguf"));
        let mut runtime = fast_on_device(&checkpoint, &model::options(KvType::F32, 64));
        let text = std::fs::read(model::file(format!("tests/data/{name}.expected.json"))).expect("an expectation");
        let expected: Value = serde_json::from_slice(&text).expect("json");
        let products = 4 * checkpoint.config().layers + 1;
        let bound = (32.0_f64 / 12.0).sqrt() / 127.0 * (products as f64).sqrt();
        let (mut errors, mut sizes, mut most): (f64, f64, f64) = (0.0, 0.0, 0.0);
        for prompt in expected["prompts"].as_array().expect("a list").iter().take(PROMPTS) {
            let positions: Vec<usize> = floats(&prompt["positions"]).into_iter().map(|p| p as usize).collect();
            let rows = model::rows_at(&mut runtime, &ids(&prompt["ids"]), &positions);
            for (row, want) in rows.iter().zip(prompt["logits"].as_array().expect("a list")) {
                let want = floats(want);
                errors += squares(row.iter().zip(&want).map(|(&got, want)| f64::from(got) - want));
                sizes += squares(want.iter().copied());
                most = most.max(model::max_difference(row, &want));
            }
        }
        let error = (errors / sizes).sqrt();
        println!("{name}: relative {error:.2e} of {bound:.2e}, at most {most:.2e}");
        assert!(error < bound, "{name}: {error:.2e}");
        assert!(most > TOLERANCE, "{name}: {most:.2e}");
    }
}

/// Promise 1 of fast arithmetic: by every kernel that numbers of rows choose.
#[test]
fn cuda_fast_rows_do_not_depend_on_chunks() {
    let Some(_device) = test_device() else { return };
    for (_, name) in &FILES[..5] {
        let checkpoint = open(&format!("tests/data/{name}.gguf"));
        let mut runtime = fast_on_device(&checkpoint, &model::options(KvType::F16, 128));
        let prompt = prompt(100);
        let whole = model::rows_at(&mut runtime, &prompt, &[99]);
        let chunks = model::rows_at(&mut runtime, &prompt, &[0, 3, 19, 39, 99]);
        assert_eq!(whole.last().map(|row| bits(row)), chunks.last().map(|row| bits(row)), "{name}");
    }
}

/// Promise 1: a prompt in one piece, in chunks, beside other sequences, cut by parts of a step, on pages of any size, has the same bits.
#[test]
fn cuda_rows_do_not_depend_on_chunks_neighbours_or_pages() {
    let Some(_device) = test_device() else { return };
    let checkpoint = open("tests/data/llama-window.gguf");
    let prompt = prompt(23);
    for kv_type in [KvType::F32, KvType::F16] {
        let mut runtime = on_device(&checkpoint, &model::options(kv_type, 64));
        let whole = model::rows_at(&mut runtime, &prompt, &[22]);
        let chunks = model::rows_at(&mut runtime, &prompt, &[0, 1, 7, 16, 22]);
        assert_eq!(whole.last(), chunks.last(), "{kv_type:?}: in chunks");
        let sequences = [(); 2].map(|()| runtime.seq_create().expect("a sequence"));
        let inputs = [&prompt[3..9], &prompt[..]];
        let feeds: Vec<Feed<'_>> = sequences
            .iter()
            .zip(inputs)
            .map(|(&sequence, tokens)| Feed { sequence, input: Input::Tokens(tokens), want: Want::LastRow })
            .collect();
        let mut answers = Answers::new();
        runtime.step(&feeds, &mut answers).expect("the step runs");
        assert_eq!(answers.row(1).expect("a row"), whole[0], "{kv_type:?}: beside another");
        let options = PagedOptions { page_size_tokens: 4, pool_pages: 64, ..model::options(kv_type, 64) };
        let mut runtime = on_device(&checkpoint, &options);
        let _elsewhere = model::rows_at(&mut runtime, &prompt, &[5]);
        assert_eq!(model::rows_at(&mut runtime, &prompt, &[9, 22])[1], whole[0], "{kv_type:?}: on small pages");
    }
}

/// Sequences that share pages: who writes first gets a copy, and nobody else's bits change.
#[test]
fn cuda_shared_pages_are_copied_before_they_are_written() {
    let Some(_device) = test_device() else { return };
    let checkpoint = open("tests/data/qwen3.gguf");
    let prompt = prompt(21);
    for kv_type in [KvType::F32, KvType::F16] {
        let mut runtime = on_device(&checkpoint, &model::options(kv_type, 64));
        let alone = |runtime: &mut ModelRuntime<CudaBackend>, tail: &[u32]| {
            let tokens = [&prompt[..], tail].concat();
            model::rows_at(runtime, &tokens, &[tokens.len() - 1]).remove(0)
        };
        let expected = [[5, 6], [7, 8]].map(|tail| bits(&alone(&mut runtime, &tail)));
        let source = runtime.seq_create().expect("a sequence");
        model::last_row(&mut runtime, source, &prompt);
        let fork = runtime.seq_create().expect("a sequence");
        // The last page is shared, and half full.
        runtime.seq_copy(source, fork, 21).expect("the source has it");
        assert_eq!(bits(&model::last_row(&mut runtime, fork, &[7, 8])), expected[1], "{kv_type:?}: the fork");
        assert_eq!(bits(&model::last_row(&mut runtime, source, &[5, 6])), expected[0], "{kv_type:?}: the source");
    }
}

/// state moves to another pool with other pages, on the device and from the processor's, and comes back as it was.
#[test]
fn cuda_payloads_give_the_same_bits_in_any_pool() {
    let Some(_device) = test_device() else { return };
    let checkpoint = open("tests/data/gemma3.gguf");
    for kv_type in [KvType::F32, KvType::F16] {
        let mut from = on_device(&checkpoint, &model::options(kv_type, 64));
        let source = from.seq_create().expect("a sequence");
        model::last_row(&mut from, source, &prompt(21));
        let payload = from.seq_export(source, 19, encoding::LOSSLESS).expect("lossless is offered");
        from.seq_truncate(source, 19).expect("it can be cut");
        let expected = bits(&model::last_row(&mut from, source, &[5, 6]));
        let options = PagedOptions { page_size_tokens: 4, pool_pages: 64, ..model::options(kv_type, 64) };
        let mut to = on_device(&checkpoint, &options);
        let _elsewhere = model::rows_at(&mut to, &prompt(7), &[6]);
        let target = to.seq_create().expect("a sequence");
        assert_eq!(to.seq_import(target, &payload), Ok(19));
        assert_eq!(to.seq_export(target, 19, encoding::LOSSLESS).as_ref(), Ok(&payload), "{kv_type:?}");
        assert_eq!(bits(&model::last_row(&mut to, target, &[5, 6])), expected, "{kv_type:?}");
        // The processor lays it out the same way.
        let mut cpu = model::runtime(CpuBackend::new(1), &checkpoint, &options);
        let target = cpu.seq_create().expect("a sequence");
        assert_eq!(cpu.seq_import(target, &payload), Ok(19));
        assert_eq!(cpu.seq_export(target, 19, encoding::LOSSLESS), Ok(payload), "{kv_type:?}");
    }
}

fn row_with(runtime: &mut impl Runtime, adapter: u64, ids: &[u32]) -> Vec<f32> {
    let sequence = runtime.seq_create().expect("a sequence");
    runtime.seq_adapt(sequence, adapter).expect("an empty sequence takes an adapter");
    let row = model::last_row(runtime, sequence, ids);
    runtime.seq_free(sequence);
    row
}

/// An adapter computes what weights with its change merged in compute, and a lane without one beside it keeps its bits.
#[test]
fn cuda_adapters_match_merged_weights_lane_by_lane() {
    /// That of tests/adapters.rs, which says why.
    const MERGED: f64 = 6e-5;
    let Some(_device) = test_device() else { return };
    let mut random = Random::new("cuda adapters");
    let checkpoint = open("tests/data/llama-window.gguf");
    let options = model::options(KvType::F32, 64);
    let mut runtime = on_device(&checkpoint, &options);
    let ids = prompt(11);
    let bare = row_with(&mut runtime, 0, &ids);
    let lora = Lora::random(&mut random, checkpoint.config(), 3, &[0, 1, 2, 3, 4, 5, 6]);
    let (merged, identity) = (lora.merged(&checkpoint), PagedIdentity::default());
    let mut reference = ModelRuntime::new(Naive::default(), checkpoint.config(), &merged, &options, identity)
        .expect("merged weights load");
    let expected: Vec<f64> = row_with(&mut reference, 0, &ids).iter().map(|&x| f64::from(x)).collect();
    let folder = tempfile::tempdir().expect("a folder");
    let loaded = runtime.adapter_load(&lora.write_peft(folder.path())).expect("the adapter fits");
    let adapted = row_with(&mut runtime, loaded.handle, &ids);
    let error = model::max_difference(&adapted, &expected);
    println!("error {error:.1e}");
    assert!(error < MERGED, "{error:.1e}");
    // Both in one step.
    let sequences: [SeqHandle; 2] = [0, loaded.handle].map(|adapter| {
        let sequence = runtime.seq_create().expect("a sequence");
        runtime.seq_adapt(sequence, adapter).expect("an empty sequence takes an adapter");
        sequence
    });
    let feeds = sequences.map(|sequence| Feed { sequence, input: Input::Tokens(&ids), want: Want::LastRow });
    let mut answers = Answers::new();
    runtime.step(&feeds, &mut answers).expect("the step runs");
    assert_eq!(bits(answers.row(0).expect("a row")), bits(&bare));
    assert_eq!(bits(answers.row(1).expect("a row")), bits(&adapted));
}

/// One step that feeds each prompt to a sequence of its own.
fn answer<'r>(runtime: &mut impl Runtime, prompts: &[Vec<u32>], want: impl Fn(usize) -> Want<'r>) -> Answers {
    let sequences: Vec<SeqHandle> = prompts.iter().map(|_| runtime.seq_create().expect("a sequence")).collect();
    let feed = |i: usize| Feed { sequence: sequences[i], input: Input::Tokens(&prompts[i]), want: want(i) };
    let feeds: Vec<Feed<'_>> = (0..prompts.len()).map(feed).collect();
    let mut answers = Answers::new();
    runtime.step(&feeds, &mut answers).expect("the step runs");
    sequences.iter().for_each(|&sequence| runtime.seq_free(sequence));
    answers
}

/// Whoever picks, the device or the host, and whatever its neighbours want, the token is the one that belongs to the row.
#[test]
fn cuda_tokens_are_those_that_the_host_picks_from_the_same_rows() {
    let Some(_device) = test_device() else { return };
    let checkpoint = open("models/ictus-tiny.gguf");
    let vocab = checkpoint.config().vocab;
    let mut runtime = on_device(&checkpoint, &model::options(KvType::F32, 64));
    let mask: Vec<u32> = (0..vocab.div_ceil(32) as u32).map(|word| 0x5A5A_5A5A ^ word).collect();
    let greedy = SampleRequest::default();
    let drawn = SampleRequest { temperature: 0.8, top_k: 40, top_p: 0.95, min_p: 0.01, position: 7, ..greedy };
    let requests = [
        greedy,
        drawn,
        SampleRequest { temperature: 3.0, position: u64::MAX - 3, ..greedy },
        SampleRequest { top_p: 0.0, ..drawn },
        SampleRequest { temperature: 1e-4, ..drawn },
        SampleRequest { bias: &[(5, 100.0)], ..drawn },
        SampleRequest { mask: Some(&mask), ..greedy },
        SampleRequest { logprobs: Some(3), ..drawn },
    ];
    for round in 0..3 {
        let prompts: Vec<Vec<u32>> = (0..requests.len()).map(|i| prompt(2 + i + round)).collect();
        let rows = answer(&mut runtime, &prompts, |_| Want::LastRow);
        // All of them; those that the device picks alone; and every other one beside rows.
        let all = answer(&mut runtime, &prompts, |i| Want::Token(requests[i]));
        let plain = answer(&mut runtime, &prompts, |i| if i < 4 { Want::Token(requests[i]) } else { Want::Nothing });
        let mixed =
            answer(&mut runtime, &prompts, |i| if i % 2 == 0 { Want::Token(requests[i]) } else { Want::LastRow });
        for (i, request) in requests.iter().enumerate() {
            let row = rows.row(i).expect("a row");
            let expected = pick(&mut row.to_vec(), request, &mut Scratch::new()).expect("a sound row");
            assert_eq!(all.as_slice()[i], Answer::Picked(expected), "{request:?}");
            if i < 4 {
                assert_eq!(plain.as_slice()[i], Answer::Picked(expected), "{request:?}");
            }
            if i % 2 == 0 {
                assert_eq!(mixed.as_slice()[i], Answer::Picked(expected), "{request:?}");
            } else {
                // Every other feed has a row.
                assert!(bits(mixed.row(i / 2).expect("a row")) == bits(row), "{request:?}");
            }
        }
    }
}

/// The row after the last token, the prompt in two chunks.
fn row_in_chunks(runtime: &mut impl Runtime, prompt: &[u32]) -> Vec<f32> {
    let sequence = runtime.seq_create().expect("a sequence");
    let (first, rest) = prompt.split_at(prompt.len() - 2);
    model::last_row(runtime, sequence, first);
    model::last_row(runtime, sequence, rest)
}

/// Asserts that the device's row is the processor's. Both are exact, and add in other orders.
fn assert_rows_match(what: &str, cuda: &[f32], cpu: &[f32]) {
    /// Of the largest logit.
    const RELATIVE: f64 = 1e-5;
    let expected: Vec<f64> = cpu.iter().map(|&x| f64::from(x)).collect();
    let error = model::max_difference(cuda, &expected);
    let largest = expected.iter().fold(0.0_f64, |most, x| most.max(x.abs()));
    println!("{what}: {error:.1e} of {largest:.1}");
    assert!(error < RELATIVE * largest, "{what}: {error:.1e} of {largest:.1}");
}

/// A model that people download, its first layers and its whole vocabulary: the processor's row. All of its layers would take the simulator minutes.
#[test]
fn cuda_first_layers_of_smollm2_match_the_processor() {
    const LAYERS: usize = 2;
    let Some(_device) = test_device() else { return };
    let Some(path) = models::find(models::SMOLLM2) else { return };
    let checkpoint = Checkpoint::open(path).expect("the model opens");
    let mut config = checkpoint.config().clone();
    config.layers = LAYERS;
    let options = model::options(KvType::F16, 32);
    let prompt = [1, 4093, 198, 2683, 359];
    let identity = PagedIdentity::default;
    let mut cpu = ModelRuntime::new(CpuBackend::new(2), &config, &checkpoint, &options, identity()).expect("it loads");
    let expected = row_in_chunks(&mut cpu, &prompt);
    let mut cuda = ModelRuntime::new(backend(), &config, &checkpoint, &options, identity()).expect("it loads");
    assert_rows_match(&format!("{LAYERS} layers"), &row_in_chunks(&mut cuda, &prompt), &expected);
}

/// A model whose vocabulary ends early: embedding and head are its first rows.
struct Cut<'a> {
    checkpoint: &'a Checkpoint,
    embedding: Tensor,
}

impl<'a> Cut<'a> {
    const EMBEDDING: &'static str = "token_embd.weight";

    fn new(checkpoint: &'a Checkpoint, vocab: usize) -> Self {
        let whole = checkpoint.tensor(Self::EMBEDDING).expect("an embedding");
        let bytes = vocab * whole.dtype.row_bytes(whole.cols).expect("whole rows");
        let data = whole.data.slice(0..bytes).expect("the file has more rows");
        Self { checkpoint, embedding: Tensor { dtype: whole.dtype, rows: vocab, cols: whole.cols, data } }
    }
}

impl TensorSource for Cut<'_> {
    fn tensor(&self, name: &str) -> Option<&Tensor> {
        if name == Self::EMBEDDING { Some(&self.embedding) } else { self.checkpoint.tensor(name) }
    }
}

/// A model that people download, of another family: its first layers, local ones and one that sees all, over the first part of its vocabulary. Its whole
/// embedding is too large to simulate; the part's logits are those of the whole model, bit by bit, which the processor shows.
#[test]
fn cuda_first_layers_of_gemma3_match_the_processor() {
    const LAYERS: usize = 6;
    const VOCAB: usize = 2600;
    let Some(_device) = test_device() else { return };
    let Some(path) = models::find(models::GEMMA3) else { return };
    let checkpoint = Checkpoint::open(path).expect("the model opens");
    let mut config = checkpoint.config().clone();
    config.layers = LAYERS;
    let windows: Vec<bool> = (0..LAYERS).map(|layer| config.window_of(layer).is_some()).collect();
    assert_eq!(windows, [true, true, true, true, true, false], "both kinds of layer");
    // Pages of half precision would round sums that differ in their last bit to halves that differ.
    let options = model::options(KvType::F32, 32);
    let prompt = [2, 818, 2544];
    let identity = PagedIdentity::default;
    let mut whole =
        ModelRuntime::new(CpuBackend::new(1), &config, &checkpoint, &options, identity()).expect("it loads");
    let all = row_in_chunks(&mut whole, &prompt);
    drop(whole);
    config.vocab = VOCAB;
    let cut = Cut::new(&checkpoint, VOCAB);
    let mut cpu = ModelRuntime::new(CpuBackend::new(1), &config, &cut, &options, identity()).expect("it loads");
    let expected = row_in_chunks(&mut cpu, &prompt);
    assert!(bits(&all[..VOCAB]) == bits(&expected), "the head of a part is a part of the head");
    let mut cuda = ModelRuntime::new(backend(), &config, &cut, &options, identity()).expect("it loads");
    assert_rows_match(&format!("{LAYERS} layers"), &row_in_chunks(&mut cuda, &prompt), &expected);
}
