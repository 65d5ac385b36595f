//! The tick contract over a real model: the executor on the model runtime.

#![allow(dead_code, reason = "the shared helpers have more than this file uses")]

#[path = "common/model.rs"]
mod model;
#[path = "common/naive.rs"]
mod naive;

use ictus::backend::KvType;
use ictus::checkpoint::Checkpoint;
use ictus::executor::Executor;
use ictus::runtime::PagedOptions;
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

#[test]
fn ten_thousand_lanes_admitted_and_retired_leak_no_page() {
    const AT_ONCE: u64 = 40;
    let checkpoint = Checkpoint::open(model::file("tests/data/llama-window.gguf")).expect("the model opens");
    // Half of the prompts end inside a page, and there are just pages enough.
    let options = PagedOptions {
        page_size_tokens: 2,
        pool_pages: 2 * AT_ONCE as usize,
        max_lanes: AT_ONCE as u32,
        ..model::options(KvType::F32, 4)
    };
    let runtime = model::runtime(Naive::default(), &checkpoint, &options);
    let mut harness = Harness::with_engine(Executor::new(runtime)).with_max_decode_lanes(AT_ONCE as u32);
    for round in 0..10_000 / AT_ONCE {
        let tags = || round * AT_ONCE..(round + 1) * AT_ONCE;
        let mut plan = harness.plan();
        for tag in tags() {
            let len = 1 + (tag % 3) as u32;
            let prompt = harness.prompt(&[5, 6, 7][..len as usize]);
            plan = plan.admit(tag, prompt).prefill(tag, 0, len);
        }
        let mem = harness.tick_ok(plan).mem;
        // The last token of a prompt is fed when the lane decodes.
        assert_eq!(mem.pool_blocks_used, tags().map(|tag| (tag % 3).div_ceil(2)).sum::<u64>());
        let decode = tags().fold(harness.plan(), |plan, tag| plan.decode(tag, 1));
        let events = harness.tick_ok(decode);
        assert_eq!(events.emits.len() as u64, AT_ONCE);
        assert_eq!(events.mem.pool_blocks_used, tags().map(|tag| (1 + tag % 3).div_ceil(2)).sum::<u64>());
        let retire = tags().fold(harness.plan(), |plan, tag| plan.retire(tag, false));
        assert_eq!(harness.tick_ok(retire).mem.pool_blocks_used, 0, "round {round}");
    }
    assert_eq!(harness.engine.live_sequences(), 0);
    #[cfg(debug_assertions)]
    harness.engine.primitives().sequences().audit().expect("the tables agree");
}
