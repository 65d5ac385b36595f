//! Whole models by simulated CUDA kernels: every family against logits that a double-precision program of its own computed from the same file,
//! and state that moves.

#![allow(dead_code, reason = "the shared helpers have more than this file uses")]

#[path = "common/model.rs"]
mod model;
#[path = "common/simulated.rs"]
mod simulated;
#[path = "cuda/simulator.rs"]
mod simulator;

use ictus::backend::KvType;
use ictus::checkpoint::Checkpoint;
use ictus::runtime::{Answers, Feed, Input, Runtime, Want};
use serde_json::Value;
use simulated::Simulated;

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

fn floats(value: &Value) -> Vec<f64> {
    value.as_array().expect("a list").iter().map(|x| x.as_f64().expect("a number")).collect()
}

fn ids(value: &Value) -> Vec<u32> {
    floats(value).into_iter().map(|id| id as u32).collect()
}

#[test]
fn cuda_families_match_the_reference_program() {
    if simulator::device().is_none() {
        return;
    }
    for (folder, name) in FILES {
        let checkpoint = Checkpoint::open(model::file(format!("{folder}/{name}.gguf"))).expect("the model opens");
        let mut runtime = model::runtime(Simulated, &checkpoint, &model::options(KvType::F32, 64));
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

/// Promise: a prompt in one piece, in chunks, and beside another sequence has the same bits.
#[test]
fn cuda_rows_do_not_depend_on_chunks_or_neighbours() {
    if simulator::device().is_none() {
        return;
    }
    let checkpoint = Checkpoint::open(model::file("tests/data/llama-window.gguf")).expect("the model opens");
    let prompt: Vec<u32> = (0..23).map(|i| 3 + i * 7 % 40).collect();
    for kv_type in [KvType::F32, KvType::F16] {
        let mut runtime = model::runtime(Simulated, &checkpoint, &model::options(kv_type, 64));
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
    }
}
