//! The tick contract over a real model: the executor on the model runtime.

#![allow(dead_code, reason = "the shared helpers have more than this file uses")]

#[path = "common/model.rs"]
mod model;
#[path = "common/naive.rs"]
mod naive;

use ictus::backend::KvType;
use ictus::checkpoint::Checkpoint;
use ictus::executor::Executor;
use ictus::testing::{Harness, tick_contract};
use naive::Naive;

#[test]
fn executor_passes_the_tick_contract_on_a_model() {
    let checkpoint = Checkpoint::open(model::file("tests/data/llama-window.gguf")).expect("the model opens");
    tick_contract::run_all(|| {
        let runtime = model::runtime(Naive::default(), &checkpoint, &model::options(KvType::F32, 128));
        Harness::with_engine(Executor::new(runtime))
    });
}
