//! The instruction sets that fuse products and sums give the same bits: operation by operation, and over whole models.
//!
//! The portable instance rounds products and sums apart, so it is left out; `kernels_cpu` bounds its error.

#![allow(dead_code, reason = "the shared helpers have more than this file uses")]

#[path = "common/kernels.rs"]
mod kernels;
#[path = "common/model.rs"]
mod model;
#[path = "common/models.rs"]
mod models;
#[path = "common/random.rs"]
mod random;

use ictus::backend::cpu::{CpuBackend, InstructionSet};
use ictus::backend::{AttentionShape, Backend, Gate, KvShape, KvType, Span};
use ictus::checkpoint::Checkpoint;
use ictus::tensor::DType;
use kernels::{backend, bits, columns, filled, instances, plain, product, read, sized, tensor, uniform, values};
use random::Random;

const FAMILIES: [&str; 6] = [
    "tests/data/llama-rope-scaled.gguf",
    "tests/data/llama-window.gguf",
    "tests/data/qwen2.gguf",
    "tests/data/qwen3.gguf",
    "tests/data/gemma3.gguf",
    "models/ictus-tiny.gguf",
];

/// The instances of this processor that fuse; nothing where there are fewer than two to compare.
fn fusing() -> Vec<InstructionSet> {
    let sets: Vec<InstructionSet> = instances().into_iter().filter(|&set| set != InstructionSet::Portable).collect();
    if sets.len() < 2 {
        println!("skipped: this processor has only {} instruction set(s) with fused products to compare", sets.len());
        return Vec::new();
    }
    sets
}

/// What each instance answers is what the first one does.
fn agree<T: PartialEq>(what: &str, answer: impl Fn(CpuBackend) -> T) {
    let sets = fusing();
    let Some((&first, rest)) = sets.split_first() else { return };
    let expected = answer(backend(first, 1));
    for &set in rest {
        for threads in [1, 2] {
            let same = answer(backend(set, threads)) == expected;
            assert!(same, "{what}: {} differs from {} ({threads} threads)", set.name(), first.name());
        }
    }
}

#[test]
fn products_have_the_same_bits_on_every_instruction_set_that_fuses() {
    let mut random = Random::new("products of instruction sets");
    for dtype in DType::ALL.iter().copied() {
        for &cols in columns(dtype) {
            let rows = (1..20).chain([31, 33, 64, 97]);
            for rows in rows {
                let outputs = random.between(1, 75);
                let weight = tensor(&mut random, dtype, outputs, cols);
                let (x, bias) = (values(&mut random, rows * cols), values(&mut random, outputs));
                agree(&format!("{dtype:?} {cols} {rows} {outputs}"), |backend| {
                    bits(&product(&backend, &x, &weight, Some(&bias)))
                });
            }
        }
    }
}

#[test]
fn large_products_have_the_same_bits_on_every_instruction_set_that_fuses() {
    let mut random = Random::new("large products of instruction sets");
    for dtype in DType::ALL.iter().copied() {
        for (rows, cols, outputs) in [(1, 768, 1003), (5, 1536, 70), (67, 768, 301)] {
            let weight = tensor(&mut random, dtype, outputs, cols);
            let x = values(&mut random, rows * cols);
            agree(&format!("{dtype:?} {cols} {rows}"), |backend| bits(&product(&backend, &x, &weight, None)));
        }
    }
}

#[test]
fn norms_and_gates_have_the_same_bits_on_every_instruction_set_that_fuses() {
    let mut random = Random::new("rows of instruction sets");
    for (width, rows) in [(1, 1), (7, 3), (64, 5), (100, 40), (1536, 9)] {
        let x: Vec<f32> =
            (0..width * rows).map(|_| uniform(&mut random) * 10.0_f32.powf(uniform(&mut random) * 3.0)).collect();
        let (up, weight) = (values(&mut random, width * rows), values(&mut random, width));
        for act in [Gate::Silu, Gate::GeluTanh] {
            agree(&format!("{act:?} {width}"), |backend| {
                let mut gate = filled(&backend, width, &x);
                backend.gate(&mut gate, &filled(&backend, width, &up), act);
                bits(&read(&backend, &gate, width * rows))
            });
        }
        agree(&format!("norm {width}"), |backend| {
            let weight = backend.vector(&plain(1, width, &weight)).expect("a vector");
            let mut out = filled(&backend, width, &x);
            backend.rms_norm_in_place(&mut out, &weight, 1e-5);
            bits(&read(&backend, &out, width * rows))
        });
    }
}

#[test]
fn attention_has_the_same_bits_on_every_instruction_set_that_fuses() {
    let mut random = Random::new("attention of instruction sets");
    for (n_heads, n_kv_heads, head_dim) in [(1, 1, 8), (9, 3, 64), (4, 1, 256), (4, 2, 12), (3, 3, 7)] {
        for (element, window, rows, start) in [
            (KvType::F32, None, 1, 700),
            (KvType::F16, None, 1, 700),
            (KvType::F16, None, 37, 0),
            (KvType::F32, Some(20), 33, 300),
            (KvType::F16, Some(512), 5, 611),
        ] {
            let shape = AttentionShape { n_heads, n_kv_heads, head_dim, scale: 0.3, window };
            let len: usize = start + rows;
            let pages =
                KvShape { layers: 1, n_kv_heads, head_dim, page_size_tokens: 16, pages: len.div_ceil(16), element };
            let mut block_table: Vec<u32> = (0..pages.pages as u32).collect();
            random.shuffle(&mut block_table);
            let (query, key) = (n_heads * head_dim, n_kv_heads * head_dim);
            let (queries, keys) = (values(&mut random, rows * query), values(&mut random, len * key));
            let stored = values(&mut random, len * key);
            agree(&format!("{shape:?} {element:?} {rows} {start}"), |backend| {
                let mut pool = backend.pages(&pages).expect("a pool");
                let whole = Span { first_row: 0, rows: len, start: 0, block_table: &block_table };
                let (keys, stored) = (filled(&backend, key, &keys), filled(&backend, key, &stored));
                backend.kv_write(&mut pool, 0, &keys, &stored, &[whole]);
                let mut out = sized(&backend, query, rows);
                let last = Span { first_row: 0, rows, start, block_table: &block_table };
                backend.attention(&filled(&backend, query, &queries), &pool, 0, &shape, &[last], &mut out);
                bits(&read(&backend, &out, rows * query))
            });
        }
    }
}

/// Rows of logits of a prompt fed in parts, and of the tokens picked after it.
fn run(backend: CpuBackend, checkpoint: &Checkpoint, kv_type: KvType, prompt: &[u32], picks: usize) -> Vec<Vec<u32>> {
    let tokens = prompt.len() + picks;
    let mut runtime = model::runtime(backend, checkpoint, &model::options(kv_type, tokens));
    let cut = prompt.len() / 3;
    let mut rows = model::rows_at(&mut runtime, prompt, &[cut, cut + 1, prompt.len() - 1]);
    let picked = model::greedy(&mut runtime, prompt, picks);
    let whole: Vec<u32> = prompt.iter().chain(&picked).copied().collect();
    rows.extend(model::rows_at(&mut runtime, &whole, &[whole.len() - 1]));
    let mut out: Vec<Vec<u32>> = rows.iter().map(|row| bits(row)).collect();
    out.push(picked);
    out
}

#[test]
fn models_of_every_family_have_the_same_bits_on_every_instruction_set_that_fuses() {
    let mut random = Random::new("models of instruction sets");
    for path in FAMILIES {
        let checkpoint = Checkpoint::open(model::file(path)).expect("the model opens");
        let vocab = checkpoint.config().vocab;
        let prompt: Vec<u32> = (0..45).map(|_| random.below(vocab) as u32).collect();
        for kv_type in [KvType::F32, KvType::F16] {
            agree(&format!("{path} {kv_type:?}"), |backend| run(backend, &checkpoint, kv_type, &prompt, 12));
        }
    }
}

#[test]
fn real_models_have_the_same_bits_on_every_instruction_set_that_fuses() {
    if fusing().is_empty() {
        return;
    }
    let mut random = Random::new("real models of instruction sets");
    for (name, picks) in [(models::SMOLLM2, 32), (models::GEMMA3, 8)] {
        let Some(path) = models::find(name) else { continue };
        let checkpoint = Checkpoint::open(path).expect("the model opens");
        let vocab = checkpoint.config().vocab;
        let prompt: Vec<u32> = (0..50).map(|_| random.below(vocab) as u32).collect();
        agree(name, |backend| run(backend, &checkpoint, KvType::F16, &prompt, picks));
    }
}
