//! Common beginnings are computed once, where the engine keeps what was computed.

use ictus::driver::{Driver, DriverOptions, Request, RequestId};
use ictus::runtime::FakeOptions;
use ictus::testing::{Harness, register_prompt_lookup_with};

use super::alone::{Transcript, alone, check};
use super::pressure::check_empty;
use super::{fake, here};

/// 32 requests with a prompt of 5000 tokens in common: one computes it, and each says what it says alone.
#[test]
fn beginning_that_many_share_is_computed_once() {
    let shape = |options: &mut FakeOptions| {
        options.descriptor.max_seq_len = 6000;
        options.descriptor.copy_shares_cells = true;
        options.descriptor.max_batch = 32;
    };
    let options = DriverOptions { max_lanes: 32, ..DriverOptions::default() };
    let mut driver = Driver::new(fake(shape), options).expect("a driver");
    let asked: Vec<Request> = (0..32)
        .map(|own| {
            let mut prompt: Vec<u32> = (0..5000).map(|at| at * 7 % 63).collect();
            prompt.extend([own, 9, own + 1]);
            Request { max_tokens: 6, ignore_eos: true, ..Request::tokens(prompt) }
        })
        .collect();
    let ids: Vec<RequestId> = asked.iter().map(|asked| driver.submit(asked.clone()).expect("taken")).collect();
    let mut transcript = Transcript::default();
    transcript.drain(&mut driver);
    let mut computed = 0;
    for (id, asked) in ids.iter().zip(&asked) {
        check(&transcript.answers[id], &alone(&mut here(shape), asked));
        computed += transcript.answers[id].stats.prefill_tokens;
    }
    // All but the last partial page is shared.
    assert!(computed <= 5003 + 31 * (16 + 3), "{computed} prompt tokens were computed");
    // A later one finds the beginning in the cache.
    let later = Request { max_tokens: 6, ignore_eos: true, ..asked[7].clone() };
    let id = driver.submit(later.clone()).expect("taken");
    transcript.drain(&mut driver);
    check(&transcript.answers[&id], &alone(&mut here(shape), &later));
    assert!(transcript.answers[&id].stats.cached_tokens >= 4992, "{:?}", transcript.answers[&id].stats);
    check_empty(&mut driver.close().0);
}

/// a model that repeats itself is drafted for; drafts change when tokens come, never which.
#[test]
fn drafts_run_within_the_answer_and_change_nothing() {
    let shape = |options: &mut FakeOptions| {
        options.descriptor.verify_rows = true;
        options.descriptor.cells_total = 400;
        options.copy_model = Some(ictus::runtime::CopyModel { miss_every: 7 });
    };
    let mut harness = Harness::with_engine(fake(shape));
    let (slot, _) = register_prompt_lookup_with(&mut harness, [1; 32], [2; 32], 0).expect("a strategy");
    let options = DriverOptions { max_lanes: 4, decode_tokens: 2, reserve_tokens: 0, ..DriverOptions::default() };
    let mut driver = Driver::new(harness.engine, options).expect("a driver");
    let asked: Vec<Request> = (0..10)
        .map(|own| {
            let prompt: Vec<u32> = (0..30).map(|at| (at * (own + 1)) % 11).collect();
            let max_tokens = 30 + u64::from(own);
            Request { strategy_slot: slot, max_tokens, ignore_eos: true, ..Request::tokens(prompt) }
        })
        .collect();
    let ids: Vec<RequestId> = asked.iter().map(|asked| driver.submit(asked.clone()).expect("taken")).collect();
    let mut transcript = Transcript::default();
    transcript.drain(&mut driver);
    let mut accepted = 0;
    for (id, asked) in ids.iter().zip(&asked) {
        let said = &transcript.answers[id];
        check(said, &alone(&mut here(shape), asked));
        assert!(said.stats.accepted_tokens <= said.stats.drafted_tokens);
        accepted += said.stats.accepted_tokens;
    }
    assert!(accepted > 20, "{accepted} drafted tokens were kept");
    check_empty(&mut driver.close().0);
}
