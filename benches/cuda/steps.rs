//! Whole steps of a model of random weights.

use std::collections::HashMap;
use std::time::Instant;

use ictus::backend::{Arithmetic, KvType};
use ictus::checkpoint::ModelConfig;
use ictus::runtime::{
    Answers, Feed, GraphCounts, Input, ModelRuntime, PagedIdentity, PagedOptions, Runtime, SeqHandle, Want,
};
use ictus::sample::SampleRequest;
use ictus::tensor::{DType, Tensor};
use serde_json::json;

use super::{Bench, PAGE, Sizes, backend_in, floats, median, round, weights};

/// Whole steps, with and without graphs. Figures that are named after graphs and had none are an error.
pub(crate) fn steps(bench: &Bench, arithmetic: Arithmetic) {
    let &Sizes { ref model, lanes, prompt, steps, .. } = &bench.sizes;
    let tensors = tensors(model);
    let weight_bytes: usize = tensors.values().map(|tensor| tensor.data.len()).sum();
    let most = lanes.iter().copied().max().unwrap_or(1);
    let context_tokens = prompt + 2 * steps + 1;
    let options = PagedOptions {
        kv_type: KvType::F16,
        page_size_tokens: PAGE,
        pool_pages: (most + 1) * context_tokens.div_ceil(PAGE),
        context_tokens,
        max_lanes: most as u32,
        prefill_step_tokens: prompt as u32,
        pass_rows: 0,
        cache_resident_tokens: 0,
        cache_exported_tokens: 0,
    };
    let mut runtime = ModelRuntime::new(backend_in(arithmetic), model, &tensors, &options, PagedIdentity::default())
        .expect("the model loads");
    drop(tensors);
    let tokens: Vec<u32> = (0..prompt).map(|i| (i * 31 % model.vocab) as u32).collect();
    let sequences: Vec<SeqHandle> = (0..most).map(|_| runtime.seq_create().expect("a sequence")).collect();
    let mut answers = Answers::new();
    let mut prefill_seconds = Vec::new();
    for &sequence in &sequences {
        let started = Instant::now();
        let feed = Feed { sequence, input: Input::Tokens(&tokens), want: want() };
        runtime.step(&[feed], &mut answers).expect("the step runs");
        prefill_seconds.push(started.elapsed().as_secs_f64());
    }
    let seconds = median(&mut prefill_seconds);
    bench.say("pp", json!({ "arithmetic": arithmetic.name(), "n": prompt, "ms": round(seconds * 1e3), "tok_s": round(prompt as f64 / seconds) }));
    // Those without permission first: a graph that is there would be used without it.
    for may_capture in [false, true] {
        runtime.allow_capture(may_capture);
        for &lanes in lanes {
            runtime.take_graph_counts();
            let seconds = decode(&mut runtime, &sequences[..lanes], bench);
            let GraphCounts { hits, misses } = runtime.take_graph_counts();
            bench.say(
                "step",
                json!({ "arithmetic": arithmetic.name(), "lanes": lanes, "positions": prompt, "graphs": may_capture, "graph_hits": hits, "steps": steps,
                    "ms": round(seconds * 1e3), "tok_s": round(lanes as f64 / seconds), "of_bandwidth": round(weight_bytes as f64 / seconds / bench.bandwidth) }),
            );
            assert_eq!(hits > 0, may_capture, "graphs launched at {lanes} lanes: {hits}, not {misses}");
        }
    }
}

/// Median seconds of a step in which each sequence feeds one token. What is fed is cut off again, so that each case finds the same positions.
fn decode(runtime: &mut impl Runtime, sequences: &[SeqHandle], bench: &Bench) -> f64 {
    let &Sizes { ref model, prompt, steps, .. } = &bench.sizes;
    let mut answers = Answers::new();
    let mut runs: Vec<f64> = (0..steps)
        .map(|step| {
            let token = [(step * 7 % model.vocab) as u32];
            let feeds: Vec<Feed<'_>> = sequences
                .iter()
                .map(|&sequence| Feed { sequence, input: Input::Tokens(&token), want: want() })
                .collect();
            let started = Instant::now();
            runtime.step(&feeds, &mut answers).expect("the step runs");
            started.elapsed().as_secs_f64()
        })
        .collect();
    for &sequence in sequences {
        runtime.seq_truncate(sequence, prompt as u64).expect("a sequence can be cut");
    }
    median(&mut runs)
}

fn want() -> Want<'static> {
    Want::Token(SampleRequest::default())
}

/// Random weights of a whole model, under the names that its family asks for; the embedding is the output layer too.
fn tensors(model: &ModelConfig) -> HashMap<String, Tensor> {
    let ModelConfig { layers, hidden, ffn_hidden, n_heads, n_kv_heads, head_dim, vocab, .. } = *model;
    let mut all = HashMap::from([
        ("token_embd.weight".to_owned(), weights(DType::BF16, vocab, hidden)),
        ("output_norm.weight".to_owned(), floats(1, hidden)),
    ]);
    for layer in 0..layers {
        let matrices = [
            ("attn_q", n_heads * head_dim, hidden),
            ("attn_k", n_kv_heads * head_dim, hidden),
            ("attn_v", n_kv_heads * head_dim, hidden),
            ("attn_output", hidden, n_heads * head_dim),
            ("ffn_gate", ffn_hidden, hidden),
            ("ffn_up", ffn_hidden, hidden),
            ("ffn_down", hidden, ffn_hidden),
        ];
        for (name, rows, cols) in matrices {
            all.insert(format!("blk.{layer}.{name}.weight"), weights(DType::BF16, rows, cols));
        }
        for name in ["attn_norm", "ffn_norm"] {
            all.insert(format!("blk.{layer}.{name}.weight"), floats(1, hidden));
        }
    }
    all
}
