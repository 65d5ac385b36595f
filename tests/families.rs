//! Every family against logits that a double-precision program of its own computed from the same file.

#![allow(dead_code, reason = "the shared helpers have more than this file uses")]

#[path = "common/model.rs"]
mod model;
#[path = "common/naive.rs"]
mod naive;

use ictus::backend::cpu::CpuBackend;
use ictus::backend::{Backend, KvType};
use ictus::checkpoint::Checkpoint;
use ictus::runtime::Runtime;
use naive::Naive;
use serde_json::Value;

/// Largest error of a logit.
///
/// These models have 2 to 7 layers of width 64 or so and logits up to about 6. An operation rounds each element by half a unit in the
/// last place, 6e-8 of it, and a sum of n products in single precision by at most n such units, sqrt(n) as they fall: 5e-7 for
/// 64. Some 15 operations a layer, each with an error of that size relative to what it gives, add like a random walk over 100
/// operations: 10 x 5e-7 = 5e-6 of a logit of 6, 3e-5. A wrong rope base, window, scale or order of rows moves logits by over 0.01.
const TOLERANCE: f64 = 3e-5;

/// How much larger the sums are that the processor rounds: it adds up codes as they are stored, which are raised to be positive. Eight-bit
/// codes have a root mean square of some 55 around their zero of 128, and of 139 from 0 on. What a zero adds is taken back afterwards, and
/// what was rounded in between stays. (Sums over wide rows are as large by themselves: there it is hardly seen, as `golden_logits` shows.)
const RAISED: f64 = 2.5;

/// Folder and name of the models that have an expectation.
const FILES: [(&str, &str); 6] = [
    ("tests/data", "llama-rope-scaled"),
    ("tests/data", "llama-window"),
    ("tests/data", "qwen2"),
    ("tests/data", "qwen3"),
    ("tests/data", "gemma3"),
    ("models", "ictus-tiny"),
];

fn floats(value: &Value) -> Vec<f64> {
    value.as_array().expect("a list").iter().map(|x| x.as_f64().expect("a number")).collect()
}

fn ids(value: &Value) -> Vec<u32> {
    floats(value).into_iter().map(|id| id as u32).collect()
}

/// The largest error over all prompts of a file.
fn error_of(runtime: &mut impl Runtime, expected: &Value) -> f64 {
    let mut most: f64 = 0.0;
    for prompt in expected["prompts"].as_array().expect("a list") {
        let positions: Vec<usize> = floats(&prompt["positions"]).into_iter().map(|p| p as usize).collect();
        let rows = model::rows_at(runtime, &ids(&prompt["ids"]), &positions);
        for (row, want) in rows.iter().zip(prompt["logits"].as_array().expect("a list")) {
            most = most.max(model::max_difference(row, &floats(want)));
        }
        let greedy = &prompt["greedy"];
        let margins = floats(&greedy["margin"]);
        let picked = model::greedy(runtime, &ids(&prompt["ids"]), margins.len());
        let sure = margins.iter().position(|&margin| margin < 1e-3).unwrap_or(margins.len());
        assert_eq!(picked[..sure], ids(&greedy["ids"])[..sure], "{}", prompt["name"]);
    }
    most
}

fn expected(name: &str) -> Value {
    let text =
        std::fs::read(model::file(format!("tests/data/{name}.expected.json"))).expect("the expectation is committed");
    serde_json::from_slice(&text).expect("json")
}

fn families_match<B: Backend>(backend: impl Fn() -> B, bound: f64) {
    for (folder, name) in FILES {
        let checkpoint = Checkpoint::open(model::file(format!("{folder}/{name}.gguf"))).expect("the model opens");
        let mut runtime = model::runtime(backend(), &checkpoint, &model::options(KvType::F32, 64));
        let error = error_of(&mut runtime, &expected(name));
        println!("{name}: {error:.2e}");
        assert!(error < bound, "{name}: {error:.2e}");
    }
}

/// The same weights under other names, with the rows of llama's q and k in another order.
fn directories_match<B: Backend>(backend: impl Fn() -> B) {
    for (folder, name) in [("hf-llama", "llama-rope-scaled"), ("hf-qwen3", "qwen3")] {
        let checkpoint = Checkpoint::open(model::file(format!("tests/data/{folder}"))).expect("the model opens");
        let mut runtime = model::runtime(backend(), &checkpoint, &model::options(KvType::F32, 64));
        let error = error_of(&mut runtime, &expected(name));
        println!("{folder}: {error:.2e}");
        assert!(error < TOLERANCE, "{folder}: {error:.2e}");
    }
}

#[test]
fn hugging_face_directories_answer_as_the_file_of_the_same_weights() {
    directories_match(Naive::default);
    directories_match(|| CpuBackend::new(2));
}

#[test]
fn families_match_the_double_precision_reference_on_the_processor() {
    families_match(|| CpuBackend::new(2), RAISED * TOLERANCE);
}

#[test]
fn families_match_the_double_precision_reference_on_the_naive_backend() {
    families_match(Naive::default, TOLERANCE);
}
