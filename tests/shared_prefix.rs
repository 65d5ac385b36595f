//! One prompt for many lanes on a real paged runtime: what it costs, by the counters of runtime and engine.

#![allow(dead_code, reason = "the shared helpers have more than this file uses")]

#[path = "common/model.rs"]
mod model;

use ictus::backend::KvType;
use ictus::backend::cpu::CpuBackend;
use ictus::checkpoint::Checkpoint;
use ictus::engine::Engine;
use ictus::executor::Executor;
use ictus::record::constant::determinism;
use ictus::runtime::{ModelRuntime, PagedOptions};
use ictus::testing::Harness;

const LANES: u64 = 32;
const PROMPT_TOKENS: u32 = 5000;
const PAGE_SIZE_TOKENS: u32 = 16;
/// Whole pages of the prompt, which is what is published.
const SHARED_PAGES: usize = (PROMPT_TOKENS / PAGE_SIZE_TOKENS) as usize;
const SHARED_TOKENS: u32 = SHARED_PAGES as u32 * PAGE_SIZE_TOKENS;

type PagedHarness = Harness<Executor<ModelRuntime<CpuBackend>>>;

/// An engine whose pool holds the shared pages once and `more` pages.
fn harness(more: usize) -> PagedHarness {
    let checkpoint = Checkpoint::open(model::file("tests/data/llama-window.gguf")).expect("the model opens");
    let options = PagedOptions {
        page_size_tokens: PAGE_SIZE_TOKENS as usize,
        pool_pages: SHARED_PAGES + more,
        context_tokens: PROMPT_TOKENS as usize + 64,
        max_lanes: LANES as u32,
        ..model::options(KvType::F32, 64)
    };
    let runtime = model::runtime(CpuBackend::new(2), &checkpoint, &options);
    Harness::with_engine(Executor::new(runtime)).with_max_decode_lanes(LANES as u32)
}

/// The prompt of a lane: all agree in the shared pages and differ in the rest of the prompt.
fn prompt(lane: u64, vocab: u32) -> Vec<u32> {
    let token = |i: u32| if i < SHARED_TOKENS { (i * 7 + 3) % vocab } else { (i * 5 + lane as u32) % vocab };
    (0..PROMPT_TOKENS).map(token).collect()
}

fn pages_used(harness: &PagedHarness) -> usize {
    harness.engine.primitives().sequences().pool().pages_used()
}

/// The first token and the next ones of a lane that shares nothing.
fn cold(lane: u64, tokens: usize) -> Vec<u32> {
    let mut harness = harness(2);
    let prompt = prompt(lane, harness.engine.descriptor().vocab_size);
    let staged = harness.prompt(&prompt);
    let plan = harness.plan().prefill_budget(u32::MAX).admit(lane, staged).prefill(lane, 0, PROMPT_TOKENS);
    let events = harness.tick_ok(plan.decode(lane, tokens as u16));
    harness.tokens_of(&events, lane)
}

/// S-95, S-96, T-64, T-77, T-80: 32 lanes of a 5 000-token prompt cost one prefill and 32 block tables. The pool could not hold
/// two of these prompts.
#[test]
fn shared_prompt_costs_one_prefill_and_a_block_table_per_lane() {
    let mut harness = harness(LANES as usize + 1);
    let vocab = harness.engine.descriptor().vocab_size;

    let first = harness.prompt(&prompt(0, vocab));
    let plan = harness.plan().prefill_budget(u32::MAX).admit(99, first).prefill(99, 0, PROMPT_TOKENS);
    harness.tick_ok(plan);
    let mut prefill_tokens = harness.engine.lane_cost(99).expect("it is live").prefill_tokens;
    let plan = harness.plan().retire(99, true);
    harness.tick_ok(plan);
    assert_eq!(pages_used(&harness), SHARED_PAGES, "the entry keeps whole pages");

    let mut plan = harness.plan().prefill_budget(u32::MAX);
    for lane in 0..LANES {
        let prompt = prompt(lane, vocab);
        let lease = harness.engine.seed_acquire(&prompt, SHARED_TOKENS.into(), determinism::DETERMINISTIC);
        let lease = lease.expect("the entry serves");
        let staged = harness.prompt(&prompt);
        let seeded = |admit: &mut ictus::record::LaneAdmit| {
            admit.seed_handle = lease;
            admit.determinism_class = determinism::DETERMINISTIC;
        };
        plan = plan.admit_with(seeded, lane, staged).prefill(lane, SHARED_TOKENS, PROMPT_TOKENS - SHARED_TOKENS);
        plan = plan.decode(lane, 1);
    }
    let mut events = harness.tick_ok(plan);
    let mut tokens: Vec<Vec<u32>> = (0..LANES).map(|lane| harness.tokens_of(&events, lane)).collect();

    for lane in 0..LANES {
        let cost = harness.engine.lane_cost(lane).expect("it is live");
        assert_eq!(cost.seeded_tokens, u64::from(SHARED_TOKENS), "lane {lane}");
        assert_eq!(cost.page_copies, 0, "lane {lane} writes into pages of its own only");
        prefill_tokens += cost.prefill_tokens;
    }
    let rests = LANES * u64::from(PROMPT_TOKENS - SHARED_TOKENS);
    // The publisher's last token waited to be fed until it retired.
    assert_eq!(prefill_tokens + 1, u64::from(PROMPT_TOKENS) + rests, "one prefill, and 8 tokens per lane");
    assert_eq!(pages_used(&harness), SHARED_PAGES + LANES as usize, "one page of its own per lane");

    let sequences = harness.engine.primitives().sequences();
    let table = |lane| {
        let sequence = harness.engine.lane_sequence(lane).expect("it is live");
        sequences.table(sequence).expect("it exists").pages().to_vec()
    };
    let shared = table(0)[..SHARED_PAGES].to_vec();
    for lane in 0..LANES {
        let pages = table(lane);
        assert_eq!((&pages[..SHARED_PAGES], pages.len()), (&shared[..], SHARED_PAGES + 1), "lane {lane}");
    }
    let holders = LANES as u32 + 1;
    assert!(shared.iter().all(|&page| sequences.pool().references(page) == holders), "the lanes and the entry");

    for _ in 0..3 {
        let plan = (0..LANES).fold(harness.plan(), |plan, lane| plan.decode(lane, 1));
        events = harness.tick_ok(plan);
        tokens.iter_mut().zip(0..).for_each(|(all, lane)| all.extend(harness.tokens_of(&events, lane)));
    }
    assert_eq!(tokens[5], cold(5, 4), "a seeded lane gives the tokens of a cold one");

    let plan = (0..LANES).fold(harness.plan(), |plan, lane| plan.retire(lane, false));
    harness.tick_ok(plan);
    assert_eq!(pages_used(&harness), SHARED_PAGES);
    harness.engine.audit().expect("the invariants hold");
}
