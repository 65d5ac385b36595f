//! The tick contract over a real model: the executor on the model runtime.

#![allow(dead_code, reason = "the shared helpers have more than this file uses")]

#[path = "common/model.rs"]
mod model;
#[path = "common/naive.rs"]
mod naive;

use ictus::backend::KvType;
use ictus::checkpoint::Checkpoint;
use ictus::executor::Executor;
use ictus::record::LaneAdmit;
use ictus::record::constant::sampling_flag;
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

/// T-89, T-104: the ticks of a prompt give the head nothing; a tick that decodes gives it a row for each token, whatever else it computes.
#[test]
fn head_is_given_a_row_for_each_token_that_is_emitted() {
    let checkpoint = Checkpoint::open(model::file("tests/data/llama-window.gguf")).expect("the model opens");
    let config = checkpoint.config();
    let backend = Naive::default();
    let runtime = model::runtime(backend.clone(), &checkpoint, &model::options(KvType::F32, 128));
    let mut harness = Harness::with_engine(Executor::new(runtime));
    let head_rows = || backend.take_multiplied().get(&(config.vocab, config.hidden)).copied().unwrap_or(0);
    let text: Vec<u32> = (0..60).map(|n| 3 + n * 7 % 200).collect();
    let forever = |admit: &mut LaneAdmit| admit.params.flags = sampling_flag::IGNORE_EOS;

    // A prompt in three ticks.
    let first = harness.prompt(&text);
    let plan = harness.plan().admit_with(forever, 1, first).prefill(1, 0, 24);
    harness.tick_ok(plan);
    for (from, count) in [(24, 24), (48, 12)] {
        let plan = harness.plan().prefill(1, from, count);
        harness.tick_ok(plan);
    }
    assert_eq!(head_rows(), 0, "three chunks of a prompt, and no token yet");
    // The next prompt beside the tokens of the first: of 24 rows and five tokens, five rows.
    let second = harness.prompt(&text);
    let plan = harness.plan().admit_with(forever, 2, second).prefill(2, 0, 24).decode(1, 5);
    let events = harness.tick_ok(plan);
    assert_eq!((harness.tokens_of(&events, 1).len(), head_rows()), (5, 5));
    // A whole prompt that ends in its first token, beside one that goes on.
    let third = harness.prompt(&text);
    let plan = harness.plan().admit_with(forever, 3, third).prefill(2, 24, 36).prefill(3, 0, 60).decode(3, 1);
    let events = harness.tick_ok(plan);
    assert_eq!((harness.tokens_of(&events, 3).len(), head_rows()), (1, 1));
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
