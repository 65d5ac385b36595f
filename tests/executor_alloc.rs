//! A tick in the steady state allocates nothing: not for the plan, not for the steps, not for the events.
//!
//! The global allocator of this test counts. The counts are read from one thread, and this file holds one test, so nobody
//! else's allocations are counted.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

use ictus::engine::{Engine, StrategyBuilder};
use ictus::executor::Executor;
use ictus::record::constant::sampling;
use ictus::record::{LaneAdmit, RecordArena, TickPlan};
use ictus::ring::MemoryRings;
use ictus::runtime::{CopyModel, FakeRuntime, Runtime};
use ictus::testing::{FreeRuntime, Harness, register_strategy};

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call is passed on to the system's allocator unchanged; counting touches no memory it hands out.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise, passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise, passed on.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise, passed on.
        unsafe { System.realloc(pointer, layout, new_size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Lanes of every kind the executor serves, all decoding, and the plan that decodes them.
fn decoding<R: Runtime>(runtime: R, lanes: u64) -> (Harness<Executor<R>>, TickPlan, RecordArena) {
    let kinds: [fn(&mut LaneAdmit); 4] = [
        |_| {},
        |admit| {
            admit.sampling = sampling::GPU_GUMBEL;
            admit.params.temperature = 0.9;
            admit.params.top_k = 20;
        },
        |admit| admit.params.repeat_penalty = 1.3,
        |admit| admit.want_logprobs = 4,
    ];
    let mut harness = Harness::with_engine(Executor::new(runtime)).with_max_decode_lanes(lanes as u32);
    for (tag, kind) in (0..lanes).map(|lane| lane * 7919).zip(kinds.into_iter().cycle()) {
        let prompt = harness.prompt(&[1, 2, 3, 4, 5]);
        let plan = harness.plan().admit_with(kind, tag, prompt).prefill(tag, 0, 5);
        harness.tick_ok(plan);
    }
    let plan = (0..lanes).fold(harness.plan(), |plan, lane| plan.decode(lane * 7919, 2));
    let (plan, arena) = plan.build();
    (harness, plan, arena)
}

/// Allocations of `ticks` ticks after `warm` others.
fn allocations<R: Runtime>(runtime: R, lanes: u64, warm: u32, ticks: u32) -> u64 {
    let (mut harness, mut plan, arena) = decoding(runtime, lanes);
    let mut before = 0;
    for tick in 0..warm + ticks {
        if tick == warm {
            before = ALLOCATIONS.load(Ordering::Relaxed);
        }
        plan.plan_seq += 1;
        let rings: &mut MemoryRings = &mut harness.rings;
        let events = harness.engine.tick(&plan, &arena, rings).expect("the plan is good");
        assert_eq!(events.emits.len() as u64, lanes);
        assert!(events.emits.iter().all(|emit| emit.n_tokens == 2));
    }
    ALLOCATIONS.load(Ordering::Relaxed) - before
}

/// Allocations of ticks that draft, after they have warmed up: eight lanes on a text that repeats itself.
fn drafting_allocations() -> u64 {
    let fake = FakeRuntime::with(|options| {
        options.descriptor.vocab_size = 64;
        options.descriptor.verify_rows = true;
        options.copy_model = Some(CopyModel { miss_every: 7 });
        options.record = false;
    });
    let mut harness = Harness::with_engine(Executor::new(fake));
    let strategy = StrategyBuilder::new("prompt-lookup").config("throughput_gate=0,yield_rounds=1000");
    register_strategy(&mut harness, &strategy).expect("the runtime verifies drafts");
    for tag in 0..8 {
        let prompt = harness.prompt(&[1, 2, 3, 4, 1, 2, 3, 4]);
        let plan = harness.plan().admit_with(|admit| admit.strategy_slot = 1, tag, prompt).prefill(tag, 0, 8);
        harness.tick_ok(plan);
    }
    let (mut plan, arena) = (0..8).fold(harness.plan(), |plan, tag| plan.decode(tag, 4)).build();
    let (mut before, mut proposed) = (0, 0);
    for tick in 0..60 {
        // The lists of the fake double at 128 and at 256 tokens: counted are 136 to 248.
        if tick == 32 {
            before = ALLOCATIONS.load(Ordering::Relaxed);
        }
        plan.plan_seq += 1;
        let events = harness.engine.tick(&plan, &arena, &mut harness.rings).expect("the plan is good");
        proposed += events.emits.iter().map(|emit| emit.spec.proposed).sum::<u32>();
    }
    assert!(proposed > 100, "{proposed} proposed");
    ALLOCATIONS.load(Ordering::Relaxed) - before
}

/// Allocations of ticks whose rounds are begun ahead, after they have warmed up.
fn ahead_allocations() -> u64 {
    let lanes = 32;
    let engine = Executor::new(FreeRuntime::new(lanes as u32).stepping_ahead());
    let mut harness = Harness::with_engine(engine).with_max_decode_lanes(lanes as u32);
    for tag in 0..lanes {
        let prompt = harness.prompt(&[1, 2, 3]);
        let plan = harness.plan().admit(tag, prompt).prefill(tag, 0, 3);
        harness.tick_ok(plan);
    }
    // Grants differ, so lanes leave the rounds one after another.
    let (mut plan, arena) = (0..lanes).fold(harness.plan(), |plan, tag| plan.decode(tag, 1 + tag as u16 % 5)).build();
    let mut before = 0;
    for tick in 0..60 {
        if tick == 20 {
            before = ALLOCATIONS.load(Ordering::Relaxed);
        }
        plan.plan_seq += 1;
        harness.engine.tick(&plan, &arena, &mut harness.rings).expect("the plan is good");
    }
    ALLOCATIONS.load(Ordering::Relaxed) - before
}

#[test]
fn decoding_ticks_allocate_nothing() {
    // The counter counts: a list that grows is seen.
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    drop(std::hint::black_box(vec![1u8; 100]));
    assert_eq!(ALLOCATIONS.load(Ordering::Relaxed) - before, 1);

    assert_eq!(allocations(FreeRuntime::new(64), 64, 70, 60), 0, "over a runtime that counts tokens");
    // The fake keeps every token, in lists that double at 128 and at 256; the 50 ticks counted run from 135 tokens to 235.
    let fake = FakeRuntime::with(|options| {
        options.descriptor.vocab_size = 256;
        options.record = false;
    });
    assert_eq!(allocations(fake, 8, 64, 50), 0, "over the fake");
    assert_eq!(drafting_allocations(), 0, "with drafts");
    assert_eq!(ahead_allocations(), 0, "with rounds that are begun ahead");
}
