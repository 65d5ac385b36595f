//! The prefix cache on shared pages, over a real model: pages are counted, copied once when they are written, and change no bit.

#![allow(dead_code, reason = "the shared helpers have more than this file uses")]

#[path = "common/model.rs"]
mod model;

use ictus::backend::KvType;
use ictus::backend::cpu::CpuBackend;
use ictus::checkpoint::Checkpoint;
use ictus::engine::Engine;
use ictus::executor::Executor;
use ictus::record::Status;
use ictus::record::constant::sampling;
use ictus::runtime::{ModelRuntime, PagedOptions};
use ictus::testing::{Events, Harness, PlanBuilder};

type Paged = Harness<Executor<ModelRuntime<CpuBackend>>>;

const MODEL: &str = "tests/data/llama-rope-scaled.gguf";

fn paged(options: &PagedOptions, lanes: u32) -> Paged {
    let checkpoint = Checkpoint::open(model::file(MODEL)).expect("the model opens");
    let runtime = model::runtime(CpuBackend::new(2), &checkpoint, &PagedOptions { max_lanes: lanes, ..*options });
    Harness::with_engine(Executor::new(runtime)).with_max_decode_lanes(lanes)
}

#[track_caller]
fn ok(h: &mut Paged, build: impl FnOnce(PlanBuilder) -> PlanBuilder) -> Events {
    let plan = build(h.plan().prefill_budget(u32::MAX));
    let events = h.tick_ok(plan);
    h.engine.audit().expect("the engine is sound");
    #[cfg(debug_assertions)]
    h.engine.primitives().sequences().audit().expect("the tables agree");
    events
}

fn pages(h: &Paged) -> usize {
    h.engine.primitives().sequences().pool().pages_used()
}

fn prompt(len: usize, last: u32) -> Vec<u32> {
    let mut tokens: Vec<u32> = (0..len as u32).map(|i| 3 + i * 7 % 50).collect();
    tokens[len - 1] = last;
    tokens
}

/// The bits of the rows that a HOST lane gives, one token after the other, and nothing else of it stays.
fn rows(h: &mut Paged, tag: u64, seed: u64, prompt: &[u32], seeded: usize, count: usize) -> Vec<Vec<u32>> {
    let staged = h.prompt(prompt);
    let rest = (prompt.len() - seeded) as u32;
    let mut events = ok(h, |plan| {
        let plan = plan.admit_with(|admit| (admit.sampling, admit.seed_handle) = (sampling::HOST, seed), tag, staged);
        let plan = if rest > 0 { plan.prefill(tag, seeded as u32, rest) } else { plan };
        plan.decode(tag, 1)
    });
    let mut rows = Vec::new();
    for token in 0..count as u32 {
        let reference = events.emits[0].logits_row;
        let mut row = Vec::new();
        ictus::ring::Rings::read_logits_row(&h.rings, &reference, &mut row).expect("the row was just written");
        rows.push(row.iter().map(|logit| logit.to_bits()).collect());
        events = ok(h, |plan| plan.commit(tag, 5 + token, reference.generation).decode(tag, 1));
    }
    rows
}

fn publish(h: &mut Paged, tag: u64, prompt: &[u32]) {
    let staged = h.prompt(prompt);
    ok(h, |plan| plan.admit(tag, staged).prefill(tag, 0, prompt.len() as u32));
    ok(h, |plan| plan.retire(tag, true));
}

/// S-96, T-64: a prompt of 5 000 tokens that 32 lanes share is prefilled once; each lane takes a block table and the pages of its own
/// tokens.
#[test]
fn long_prompt_is_prefilled_once_for_32_lanes() {
    const LANES: u64 = 32;
    let shared = prompt(5_000, 1);
    let whole_pages = shared.len() / 16;
    let options = PagedOptions { pool_pages: whole_pages + 64, ..model::options(KvType::F16, 5_100) };
    let mut h = paged(&options, LANES as u32);
    publish(&mut h, 999, &shared);
    assert_eq!(pages(&h), whole_pages);
    let key = whole_pages * 16;
    let mut plan = h.plan().prefill_budget(u32::MAX);
    for lane in 0..LANES {
        let own = [&shared[..key], &[60, 61 + lane as u32 % 3, 62]].concat();
        let lease = h.engine.seed_acquire(&own, key as u64, 0).expect("it is cached");
        let staged = h.prompt(&own);
        plan = plan.admit_with(|admit| admit.seed_handle = lease, lane, staged).prefill(lane, key as u32, 3);
        plan = plan.decode(lane, 4);
    }
    let events = h.tick_ok(plan);
    assert_eq!((events.emits.len() as u64, events.evictions), (LANES, 0));
    assert_eq!(pages(&h), whole_pages + LANES as usize, "one page of its own for each");
    for lane in 0..LANES {
        let cost = h.engine.lane_cost(lane).expect("it is live");
        assert_eq!((cost.prefill_tokens, cost.seeded_tokens, cost.page_copies), (3, key as u64, 0));
    }
    h.engine.audit().expect("the engine is sound");
    let retire = (0..LANES).fold(h.plan(), |plan, lane| plan.retire(lane, false));
    h.tick_ok(retire);
    assert_eq!(pages(&h), whole_pages, "the entry is as it was");
}

/// T-78, S-96: a seed of the whole prompt goes on inside a page that the entry holds: it is copied, and both are right afterwards.
#[test]
fn partly_filled_page_is_copied_by_the_lane_that_writes_it() {
    let shared = prompt(64, 9);
    let options = PagedOptions { pool_pages: 32, ..model::options(KvType::F32, 128) };
    let mut cold = paged(&options, 8);
    let expected = rows(&mut cold, 1, 0, &shared, 0, 20);
    let mut h = paged(&options, 8);
    publish(&mut h, 999, &shared);
    assert_eq!(pages(&h), 4);
    for lane in 1..4 {
        let lease = h.engine.seed_acquire(&shared, 64, 0).expect("it is cached");
        assert!(rows(&mut h, lane, lease, &shared, 64, 20) == expected, "lane {lane} has the bits of a cold one");
        // Three pages are the entry's; the copied one and two more are the lane's.
        assert_eq!(pages(&h), 4 + 3 * lane as usize);
    }
    assert_eq!(h.engine.match_lengths(&shared), [64]);
}

/// T-60, T-66: the copy of a shared page is part of the demand; that page is not needed when its other holder goes.
#[test]
fn copy_of_a_shared_page_is_reserved() {
    let shared = prompt(64, 9);
    let options = PagedOptions { pool_pages: 5, ..model::options(KvType::F32, 128) };
    let mut h = paged(&options, 8);
    publish(&mut h, 999, &shared);
    let seeds: Vec<u64> = (0..2).map(|_| h.engine.seed_acquire(&shared, 64, 0).expect("it is cached")).collect();
    let staged = h.prompt(&shared);
    let admit =
        |plan: PlanBuilder, lane: usize| plan.admit_with(|admit| admit.seed_handle = seeds[lane], lane as u64, staged);
    ok(&mut h, |plan| admit(admit(plan, 0), 1));
    assert_eq!(pages(&h), 4, "two more block tables");
    // One page is free. One lane may go on; a second copy has no page, unless the entry goes: then the last holder keeps the page.
    let plan = h.plan().evict_envelope(0, 0).decode(0, 1).decode(1, 1);
    assert_eq!(h.refused(plan), Status::NeedsReplan);
    let events = ok(&mut h, |plan| plan.decode(0, 1).decode(1, 1));
    assert_eq!((events.evictions, pages(&h)), (1, 5));
    assert_eq!(h.tokens_of(&events, 0), h.tokens_of(&events, 1));
}

/// S-50, S-21, T-77: forks, publication and adoption on shared pages give the rows of a cold lane.
#[test]
fn forked_published_and_adopted_state_has_the_bits_of_a_cold_lane() {
    let whole = prompt(50, 9);
    let options = PagedOptions { pool_pages: 40, ..model::options(KvType::F16, 128) };
    let mut cold = paged(&options, 8);
    let expected = rows(&mut cold, 1, 0, &whole, 0, 8);
    let mut h = paged(&options, 8);
    let staged = h.prompt(&whole);
    ok(&mut h, |plan| plan.admit(1, staged).prefill(1, 0, 50));
    let parent = h.engine.lane_sequence(1).expect("it is live");
    let held = whole[..49].to_vec();
    let forks: Vec<u64> = (0..3).map(|_| h.engine.seq_fork(parent, 0).expect("there is room")).collect();
    assert_eq!(pages(&h), 4, "block tables alone");
    h.engine.publish_sequence(forks[0], &held).expect("it holds them");
    // The lane goes on in the page that the forks share, and an adopted fork in its own copy of it.
    ok(&mut h, |plan| plan.decode(1, 9));
    let lease = h.engine.seed_adopt(forks[1], &held).expect("it is bare");
    assert!(rows(&mut h, 2, lease, &whole, 49, 8) == expected, "adopted");
    let lease = h.engine.seed_acquire(&whole, 48, 0).expect("it is cached");
    assert!(rows(&mut h, 3, lease, &whole, 48, 8) == expected, "seeded");
    h.engine.free_sequence(forks[2]).expect("it is bare");
    ok(&mut h, |plan| plan.retire(1, false).retire(2, false).retire(3, false));
    assert_eq!((pages(&h), h.engine.cache_bytes()), (3, 48 * h.engine.descriptor().kv_bytes_per_token));
    h.engine.cache_evict(u64::MAX, 0, u64::MAX, u64::MAX).expect("evicting is offered");
    assert_eq!(pages(&h), 0);
}
