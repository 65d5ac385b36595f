//! Adapters against merged weights, for every family, both file formats, and several in one step.

#![allow(dead_code, reason = "the shared helpers have more than this file uses")]

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

use ictus::backend::cpu::CpuBackend;
use ictus::backend::{Backend, KvType};
use ictus::checkpoint::{AdapterFile, Checkpoint};
use ictus::runtime::{
    AdapterLoadError, Answers, Feed, Input, ModelRuntime, PagedIdentity, Runtime, RuntimeError, SeqHandle, Want,
};
use lora::Lora;
use naive::Naive;
use random::Random;

/// Largest difference of a logit to that of the merged weights.
///
/// The merged reference rounds each weight once (6e-8 of it), the adapted product each of its sums; both walk the whole network, whose
/// own error against double precision is bounded by 3e-5 (`tests/families.rs`). Twice that, as there are two of them. An
/// adapter that is not applied, or with rows in another order, moves logits by more than 0.05 (asserted below).
const TOLERANCE: f64 = 6e-5;
/// Least that an adapter of these tests moves some logit.
const MOVES: f64 = 0.05;

const FILES: [&str; 8] = [
    "tests/data/llama-rope-scaled.gguf",
    "tests/data/llama-window.gguf",
    "tests/data/qwen2.gguf",
    "tests/data/qwen3.gguf",
    "tests/data/gemma3.gguf",
    "models/ictus-tiny.gguf",
    "tests/data/hf-llama",
    "tests/data/hf-qwen3",
];

fn open(path: &str) -> Checkpoint {
    Checkpoint::open(model::file(path)).expect("the model opens")
}

fn prompt(random: &mut Random, checkpoint: &Checkpoint, len: usize) -> Vec<u32> {
    (0..len).map(|_| random.below(checkpoint.config().vocab) as u32).collect()
}

fn adapted_sequence(runtime: &mut impl Runtime, adapter: u64) -> SeqHandle {
    let sequence = runtime.seq_create().expect("a sequence");
    runtime.seq_adapt(sequence, adapter).expect("an empty sequence takes an adapter");
    sequence
}

/// The row behind the prompt with an adapter, in two feeds.
fn row_with(runtime: &mut impl Runtime, adapter: u64, ids: &[u32]) -> Vec<f32> {
    let sequence = adapted_sequence(runtime, adapter);
    let (first, rest) = ids.split_at(ids.len() / 2);
    model::last_row(runtime, sequence, first);
    let row = model::last_row(runtime, sequence, rest);
    runtime.seq_free(sequence);
    row
}

fn difference(a: &[f32], b: &[f32]) -> f64 {
    let b: Vec<f64> = b.iter().map(|&x| f64::from(x)).collect();
    model::max_difference(a, &b)
}

/// What the naive backend computes with weights that have the change merged in.
fn merged_row(checkpoint: &Checkpoint, lora: &Lora, ids: &[u32]) -> Vec<f32> {
    let options = model::options(KvType::F32, 64);
    let tensors = lora.merged(checkpoint);
    let identity = PagedIdentity::default();
    let mut runtime = ModelRuntime::new(Naive::default(), checkpoint.config(), &tensors, &options, identity)
        .expect("merged weights load");
    row_with(&mut runtime, 0, ids)
}

fn matches_merged<B: Backend>(random: &mut Random, path: &str, backend: B) {
    let checkpoint = open(path);
    let folder = tempfile::tempdir().expect("a folder");
    let ids = prompt(random, &checkpoint, 20);
    let mut runtime = model::runtime(backend, &checkpoint, &model::options(KvType::F32, 64));
    let bare = row_with(&mut runtime, 0, &ids);
    let sets: [&[usize]; 4] = [&[0, 1, 2, 3, 4, 5, 6], &[0, 1], &[4, 5, 6], &[3]];
    for (number, matrices) in sets.into_iter().enumerate() {
        let rank = [1, 3, 8, 16][random.below(4)];
        let mut lora = Lora::random(random, checkpoint.config(), rank, matrices);
        lora.root = number == 1;
        let expected = merged_row(&checkpoint, &lora, &ids);
        let peft = lora.write_peft(&folder.path().join(format!("peft{number}")));
        let loaded = runtime.adapter_load(&peft).expect("the adapter fits");
        let row = row_with(&mut runtime, loaded.handle, &ids);
        let (error, moved) = (difference(&row, &expected), difference(&row, &bare));
        println!("{path} {matrices:?} rank {rank}: error {error:.1e}, moves {moved:.2}");
        assert!(error < TOLERANCE, "{path} {matrices:?}: {error:.1e}");
        assert!(moved > MOVES || matrices.len() < 7, "{path} {matrices:?}: moves {moved:.1e}");
        if !lora.root {
            let file = folder.path().join(format!("{number}.gguf"));
            std::fs::write(&file, lora.gguf(checkpoint.config()).build()).expect("it can be written");
            let again = runtime.adapter_load(&file).expect("the same adapter in another file");
            assert_eq!(again, loaded, "{path} {matrices:?}: what is computed is the same, so is its name");
        }
        assert!(runtime.adapter_unload(loaded.handle));
    }
    let after = row_with(&mut runtime, 0, &ids);
    assert!(bare.iter().zip(&after).all(|(a, b)| a.to_bits() == b.to_bits()), "the model alone is what it was");
}

#[test]
fn adapters_match_merged_weights_on_the_processor() {
    let mut random = Random::new("adapters, processor");
    for path in FILES {
        matches_merged(&mut random, path, CpuBackend::new(2));
    }
}

#[test]
fn adapters_match_merged_weights_on_the_naive_backend() {
    let mut random = Random::new("adapters, naive");
    for path in FILES {
        matches_merged(&mut random, path, Naive::default());
    }
}

/// The rows of one step with lanes of three adapters and of none have the bits that each lane has alone.
#[test]
fn adapters_of_other_lanes_change_no_bit() {
    let mut random = Random::new("adapters, one step");
    for path in FILES {
        let checkpoint = open(path);
        let folder = tempfile::tempdir().expect("a folder");
        let mut runtime = model::runtime(CpuBackend::new(2), &checkpoint, &model::options(KvType::F16, 64));
        let mut adapters = vec![0];
        for (number, rank) in [1, 4, 4].into_iter().enumerate() {
            let lora = Lora::random(&mut random, checkpoint.config(), rank, &[0, 1, 2, 3, 4, 5, 6]);
            let path = lora.write_peft(&folder.path().join(number.to_string()));
            adapters.push(runtime.adapter_load(&path).expect("the adapter fits").handle);
        }
        let lanes: Vec<(u64, Vec<u32>)> = (0..7)
            .map(|_| {
                let len = random.between(2, 12);
                (*random.pick(&adapters), prompt(&mut random, &checkpoint, len))
            })
            .collect();
        let alone: Vec<Vec<f32>> = lanes.iter().map(|(adapter, ids)| row_with(&mut runtime, *adapter, ids)).collect();
        let sequences: Vec<SeqHandle> =
            lanes.iter().map(|&(adapter, _)| adapted_sequence(&mut runtime, adapter)).collect();
        let feeds: Vec<Feed<'_>> = lanes
            .iter()
            .zip(&sequences)
            .map(|((_, ids), &sequence)| Feed { sequence, input: Input::Tokens(ids), want: Want::LastRow })
            .collect();
        let mut answers = Answers::new();
        runtime.step(&feeds, &mut answers).expect("the step runs");
        for (index, alone) in alone.iter().enumerate() {
            let together = answers.row(index).expect("a row for each");
            assert!(alone.iter().zip(together).all(|(a, b)| a.to_bits() == b.to_bits()), "{path}: lane {index}");
        }
    }
}

/// Largest difference of a logit of the real model to that of the merged weights.
///
/// The bound that `tests/golden_logits.rs` has for one walk. Texts stay sixteen times below it; the two walks here are over random tokens with random
/// factors, whose rows were seen 2.3e-4 apart. What an adapter does to them is hundreds of times as much.
const REAL_TOLERANCE: f64 = 1e-3;

/// A real model with factors of every matrix of every third layer, in one step with lanes that have none; then the adapter goes, and its memory.
#[test]
fn adapter_of_a_real_model_matches_merged_weights_and_frees_what_it_took() {
    let Some(path) = models::find(models::SMOLLM2) else { return };
    let mut random = Random::new("adapters, SmolLM2");
    let checkpoint = Checkpoint::open(path).expect("the model opens");
    let folder = tempfile::tempdir().expect("a folder");
    let options = model::options(KvType::F32, 64);
    let mut runtime = model::runtime(CpuBackend::new(2), &checkpoint, &options);
    assert_eq!(runtime.adapter_bytes(), 0);
    let mut lora = Lora::random(&mut random, checkpoint.config(), 8, &[0, 1, 2, 3, 4, 5, 6]);
    lora.factors.retain(|factors| factors.layer % 3 == 0);
    lora.alpha = 1.0;
    let ids = prompt(&mut random, &checkpoint, 20);
    let bare = row_with(&mut runtime, 0, &ids);
    let adapter = runtime.adapter_load(&lora.write_peft(folder.path())).expect("the adapter fits").handle;
    let factor_bytes: usize = lora.factors.iter().map(|factors| 4 * (factors.a.len() + factors.b.len())).sum();
    let loaded_bytes = runtime.adapter_bytes();
    let rows_bytes = loaded_bytes - factor_bytes as u64;

    let sequences: Vec<SeqHandle> = [0, adapter, 0].map(|adapter| adapted_sequence(&mut runtime, adapter)).into();
    let feed = |&sequence: &SeqHandle| Feed { sequence, input: Input::Tokens(&ids), want: Want::LastRow };
    let feeds: Vec<Feed<'_>> = sequences.iter().map(feed).collect();
    let mut answers = Answers::new();
    runtime.step(&feeds, &mut answers).expect("the step runs");
    for lane in [0, 2] {
        let row = answers.row(lane).expect("a row for each");
        assert!(row.iter().zip(&bare).all(|(a, b)| a.to_bits() == b.to_bits()), "lane {lane} has no adapter");
    }
    let row = answers.row(1).expect("a row for each").to_vec();
    let merged = {
        let identity = PagedIdentity::default();
        let tensors = lora.merged(&checkpoint);
        let mut runtime = ModelRuntime::new(CpuBackend::new(2), checkpoint.config(), &tensors, &options, identity)
            .expect("merged weights load");
        row_with(&mut runtime, 0, &ids)
    };
    let (error, moved) = (difference(&row, &merged), difference(&row, &bare));
    println!("SmolLM2: error {error:.1e}, moves {moved:.2}, {factor_bytes} bytes of factors, {rows_bytes} of rows");
    assert!(error < REAL_TOLERANCE && moved > MOVES, "error {error:.1e}, moves {moved:.2}");

    assert!(runtime.adapter_unload(adapter));
    assert_eq!(runtime.adapter_bytes(), loaded_bytes, "a sequence still carries it");
    sequences.iter().for_each(|&sequence| runtime.seq_free(sequence));
    assert_eq!(runtime.adapter_bytes(), rows_bytes, "rows stay for the next adapter");
}

/// A copy inherits the adapter; one that was unloaded stays with its sequences and takes no new one.
#[test]
fn sequences_keep_an_adapter_that_is_unloaded() {
    let mut random = Random::new("adapters, unloaded");
    let checkpoint = open("models/ictus-tiny.gguf");
    let folder = tempfile::tempdir().expect("a folder");
    let mut runtime = model::runtime(CpuBackend::new(1), &checkpoint, &model::options(KvType::F32, 64));
    let lora = Lora::random(&mut random, checkpoint.config(), 4, &[0, 1, 2, 3, 4, 5, 6]);
    let path = lora.write_peft(folder.path());
    let ids = prompt(&mut random, &checkpoint, 16);
    let adapter = runtime.adapter_load(&path).expect("the adapter fits").handle;
    let expected = row_with(&mut runtime, adapter, &ids);

    let parent = adapted_sequence(&mut runtime, adapter);
    model::last_row(&mut runtime, parent, &ids[..10]);
    assert_eq!(runtime.seq_adapt(parent, 0), Err(RuntimeError::OutOfBoundary), "it holds tokens");
    let child = runtime.seq_create().expect("a sequence");
    runtime.seq_copy(parent, child, 7).expect("the parent has them");
    assert_eq!(runtime.seq_adapter(child), adapter);
    assert!(runtime.adapter_unload(adapter) && !runtime.adapter_unload(adapter));
    let late = runtime.seq_create().expect("a sequence");
    assert_eq!(runtime.seq_adapt(late, adapter), Err(RuntimeError::UnknownSeq));
    runtime.seq_free(parent);
    assert_eq!(runtime.adapter_digest(adapter).map(|digest| digest.len()), Some(32), "the child has it");
    let row = model::last_row(&mut runtime, child, &ids[7..]);
    assert!(row.iter().zip(&expected).all(|(a, b)| a.to_bits() == b.to_bits()));
    runtime.seq_free(child);
    assert_eq!(runtime.adapter_digest(adapter), None, "it went with its last sequence");
    assert_ne!(runtime.adapter_load(&path).expect("the adapter fits").handle, adapter);
}

/// An adapter names what it computes: another scale, value or layer is another one.
#[test]
fn digest_follows_the_content() {
    let mut random = Random::new("adapters, digest");
    let checkpoint = open("models/ictus-tiny.gguf");
    let folder = tempfile::tempdir().expect("a folder");
    let lora = Lora::random(&mut random, checkpoint.config(), 2, &[0, 6]);
    let digest = |lora: &Lora| {
        let path = lora.write_peft(folder.path());
        AdapterFile::open(path, checkpoint.config()).expect("it fits").digest()
    };
    let first = digest(&lora);
    assert_eq!(first, digest(&lora));
    let mut other = lora.clone();
    other.alpha += 1.0;
    assert_ne!(first, digest(&other));
    let mut other = lora.clone();
    other.factors[0].b[1] += 1.0;
    assert_ne!(first, digest(&other));
    let mut other = lora;
    other.factors.pop();
    assert_ne!(first, digest(&other));
}

/// No memory for the n-th request: the adapter is not there, and the model is what it was.
#[test]
fn load_that_runs_out_of_memory_leaves_nothing() {
    let mut random = Random::new("adapters, memory");
    let checkpoint = open("tests/data/qwen3.gguf");
    let folder = tempfile::tempdir().expect("a folder");
    let lora = Lora::random(&mut random, checkpoint.config(), 2, &[0, 6]);
    let path = lora.write_peft(folder.path());
    let options = model::options(KvType::F32, 64);
    let ids = prompt(&mut random, &checkpoint, 8);
    let expected = {
        let mut runtime = model::runtime(Naive::default(), &checkpoint, &options);
        let adapter = runtime.adapter_load(&path).expect("it fits").handle;
        row_with(&mut runtime, adapter, &ids)
    };
    let before = {
        let counting = Naive::default();
        model::runtime(counting.clone(), &checkpoint, &options);
        counting.requests()
    };
    let mut refused = 0;
    for request in before + 1.. {
        let mut runtime = model::runtime(Naive::failing(request), &checkpoint, &options);
        match runtime.adapter_load(&path) {
            Ok(_) => break,
            Err(AdapterLoadError::Model(_) | AdapterLoadError::Backend(_)) => refused += 1,
            Err(other) => panic!("{other}"),
        }
        let adapter = runtime.adapter_load(&path).expect("there is memory now").handle;
        assert_eq!(row_with(&mut runtime, adapter, &ids), expected, "request {request}");
    }
    assert!(refused > 4, "{refused} requests were refused");
}
