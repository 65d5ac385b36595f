//! Random loads on small pools: whatever happens, each request says what it says alone, and nothing stays.

use std::collections::BTreeMap;
use std::time::Duration;

use ictus::ModelOptions;
use ictus::driver::{
    Driver, DriverOptions, EngineSource, Failure, Finish, ManualClock, Progress, Request, RequestId, Sampling,
};
use ictus::engine::{Engine, PlanBuilder};
use ictus::ring::MemoryRings;
use ictus::runtime::FakeOptions;
#[allow(unused_imports, reason = "a trait of the runtime, where that is in this process")]
use ictus::runtime::Runtime;

use super::alone::{Transcript, alone, check};
use super::engine::{ADAPTERS, ROUNDS, STRIDE, Under, engine_of};
use super::random::Random;
use super::{fake, here, tiny};

const VOCAB: u32 = 64;

/// Cells (0 is no limit), tokens of a page, whether copies share.
const POOLS: [(u64, u32, bool); 5] =
    [(128, 16, true), (220, 4, false), (300, 1, true), (640, 16, true), (0, 16, false)];

/// A request of any kind; some share the beginning of their prompts.
fn random_request(random: &mut Random, vocab: u32, prompt_max: usize, tokens_max: usize) -> Request {
    let begins = random.below(4) as u32;
    let common = if random.below(3) == 0 { 0 } else { random.below(prompt_max / 2) };
    let own = 1 + random.below(prompt_max / 2);
    let mut prompt: Vec<u32> = (0..common as u32).map(|at| (begins * 7 + at * 3) % vocab).collect();
    prompt.extend((0..own).map(|_| random.below(vocab as usize) as u32));
    let mut request = Request {
        max_tokens: 1 + random.below(tokens_max) as u64,
        priority: random.below(5) as i16 - 2,
        ignore_eos: random.below(2) == 0,
        publish: random.below(4) > 0,
        ..Request::tokens(prompt)
    };
    match random.below(5) {
        0 => request.stop_tokens = (0..2).map(|_| random.below(vocab as usize) as u32).collect(),
        1 => request.logprobs = Some(random.below(4) as u8),
        2 => {
            request.logit_bias =
                (0..3).map(|_| (random.below(vocab as usize) as u32, random.below(12) as f32)).collect()
        }
        3 => {
            request.sampling = Sampling {
                temperature: 0.8,
                top_p: 0.95,
                repeat_penalty: 1.2,
                frequency_penalty: 0.1,
                ..request.sampling
            };
            request.rng_counter_base = random.next() >> 8;
        }
        _ => request.sampling = Sampling { temperature: 1.1, top_k: 20, ..request.sampling },
    }
    request
}

/// What happened in a load.
#[derive(Debug, Default)]
struct Load {
    preemptions: u64,
    cached: u64,
    replayed: u64,
    cancelled: u64,
    expired: u64,
    no_room: u64,
}

/// Requests come, are cancelled and expire at random; then everything is compared.
fn run_load<E: EngineSource>(
    engine: E,
    fresh: impl Fn() -> Box<dyn Engine>,
    options: DriverOptions,
    requests: usize,
    random: &mut Random,
    mut request: impl FnMut(&mut Random) -> Request,
    mut check_engine: impl FnMut(&E),
) -> (E, Load) {
    let clock = ManualClock::new();
    let mut driver = Driver::with_clock(engine, options, clock.clone()).expect("a driver");
    let mut transcript = Transcript::default();
    let mut asked: BTreeMap<RequestId, Request> = BTreeMap::new();
    while asked.len() < requests || !driver.is_idle() {
        for _ in 0..random.below(4).min(requests - asked.len()) {
            let mut request = request(random);
            if random.below(8) == 0 {
                request.deadline = Some(Duration::from_millis(random.below(400) as u64));
            }
            match driver.submit(request.clone()) {
                Ok(id) => assert!(asked.insert(id, request).is_none()),
                Err(error) => assert!(matches!(error, ictus::driver::SubmitError::QueueFull { .. }), "{error}"),
            }
        }
        if random.below(12) == 0 && !asked.is_empty() {
            let id = RequestId::from_number(1 + random.below(asked.len()) as u64);
            let was_there = transcript.finish(id).is_none();
            assert_eq!(driver.cancel(id), was_there, "a request is there until its last event");
        }
        clock.advance(Duration::from_millis(random.below(10) as u64));
        let progress = driver.step();
        assert_ne!(progress, Progress::Stalled, "nobody else is using the engine");
        while let Some(event) = driver.next_event() {
            transcript.take(event);
        }
        check_engine(driver.engine());
    }
    let mut load = Load::default();
    for (id, request) in &asked {
        let said = &transcript.answers[id];
        match said.finish {
            Some(Finish::Failed(Failure::NoRoom)) => load.no_room += 1,
            Some(Finish::Cancelled) => load.cancelled += 1,
            Some(Finish::DeadlineExpired) => load.expired += 1,
            _ => {}
        }
        load.preemptions += u64::from(said.stats.preemptions);
        load.cached += said.stats.cached_tokens;
        load.replayed += said.stats.replayed_tokens;
        if said.finish == Some(Finish::Failed(Failure::NoRoom)) {
            let expected = alone(&mut *fresh(), request);
            assert!(expected.tokens.starts_with(&said.tokens));
            continue;
        }
        check(said, &alone(&mut *fresh(), request));
    }
    assert_eq!(transcript.answers.len(), requests);
    let (engine, rest) = driver.close();
    assert_eq!(rest, []);
    (engine, load)
}

/// Loads two adapters, handles 1 and 2, where the engine takes any.
fn adapted<E: Engine>(mut engine: E) -> E {
    for (name, handle) in ADAPTERS.iter().zip(1..) {
        assert_eq!(engine.adapter_load(name), Ok(handle));
    }
    engine
}

/// What makes the fake one that takes adapters.
fn adaptable(options: &mut FakeOptions) {
    options.descriptor.workloads.adapters = true;
}

/// Cache emptied, nothing is left: no sequence, no cell, no lease that holds an entry.
#[track_caller]
pub(crate) fn check_empty(engine: &mut Under) {
    let _ = engine.cache_evict(u64::MAX, 0, u64::MAX, u64::MAX);
    engine.audit().expect("the engine is sound");
    assert_eq!(engine.live_sequences(), 0, "no lane, no bare sequence, no entry that a lease holds");
    assert_eq!(engine.primitives().live_sequences(), 0);
    assert_eq!(engine.primitives().mem_counters().cells_used, 0);
}

#[test]
fn every_request_says_on_a_small_pool_what_it_says_alone() {
    let mut random = Random::new("every_request_says_on_a_small_pool_what_it_says_alone");
    let mut all = Load::default();
    for round in 0..ROUNDS {
        // In turn: few rounds meet small pools too.
        let (cells, page, shares) = POOLS[round as usize % POOLS.len()];
        let (batch, slots) = *random.pick(&[(8, 0), (3, 0), (8, 12)]);
        let head_only = round % 8 == 7;
        let small = move |options: &mut FakeOptions| {
            adaptable(options);
            options.descriptor.cells_total = cells;
            options.descriptor.page_size_tokens = page;
            options.descriptor.cell_granule_tokens = if page == 16 { 16 } else { 1 };
            options.descriptor.copy_shares_cells = shares;
            options.descriptor.max_batch = batch;
            options.descriptor.max_seqs = slots;
            options.descriptor.truncate_partial = !head_only;
            options.descriptor.prefill_step_tokens = 24;
        };
        let options = DriverOptions {
            max_lanes: 8,
            tick_tokens: *random.pick(&[8, 48, 512]),
            decode_tokens: *random.pick(&[1, 1, 3]),
            replay_tokens: *random.pick(&[1, 4, 16]),
            queue_limit: *random.pick(&[4, 1000]),
            reserve_tokens: *random.pick(&[0, 8, 64]),
            seed_min_tokens: *random.pick(&[1, 16]),
            share_min_tokens: *random.pick(&[0, 1, 16]),
            ageing: Duration::from_millis(20),
            ..DriverOptions::default()
        };
        println!(
            "round {round}: cells {cells}, page {page}, shares {shares}, batch {batch}, slots {slots}, head-only {head_only}, {options:?}"
        );
        let fresh = || {
            let engine = here(|options| {
                adaptable(options);
                options.descriptor.truncate_partial = !head_only;
            });
            Box::new(adapted(engine)) as Box<dyn Engine>
        };
        let request = |random: &mut Random| {
            let adapter = (random.below(5).saturating_sub(2) as u64).min(ADAPTERS.len() as u64);
            Request { adapter, ..random_request(random, VOCAB, 80, 40) }
        };
        let sound = |engine: &Under| engine.audit().expect("the engine is sound");
        let (mut engine, load) = run_load(adapted(fake(small)), fresh, options, 60, &mut random, request, sound);
        check_empty(&mut engine);
        println!("{load:?}");
        all.preemptions += load.preemptions;
        all.replayed += load.replayed;
        all.cached += load.cached;
        all.cancelled += load.cancelled;
        all.expired += load.expired;
        all.no_room += load.no_room;
    }
    println!("{all:?}");
    // A few of each: how many there are in so many rounds is chance.
    let least = 5 * ROUNDS / 24;
    assert!(
        all.preemptions > least
            && all.replayed > least
            && all.cancelled > least
            && all.expired > least
            && all.cached > 100 * least,
        "{all:?}"
    );
    assert_eq!(all.no_room, 0, "everything fits alone");
}

/// A pool of eight pages of sixteen cells, which copies share.
fn eight_pages(options: &mut FakeOptions) {
    options.descriptor.cells_total = 128;
    options.descriptor.cell_granule_tokens = 16;
    options.descriptor.copy_shares_cells = true;
}

/// Publishes an entry of a prompt and the one token that follows it.
fn publish(driver: &mut Driver<Under>, transcript: &mut Transcript, prompt: Vec<u32>) {
    let publisher = Request { max_tokens: 1, ignore_eos: true, publish: true, ..Request::tokens(prompt) };
    driver.submit(publisher).expect("taken");
    transcript.drain(driver);
}

fn bearing(tokens: u32) -> Vec<u32> {
    (0..tokens).map(|at| at * 5 % 61).collect()
}

/// The load found it: a request started from two pages of an entry that filled the pool, which its own lease kept there.
#[test]
fn request_does_not_fail_for_the_entry_that_it_was_to_start_from() {
    let options = DriverOptions { max_lanes: 8, tick_tokens: 8, seed_min_tokens: 1, ..DriverOptions::default() };
    let mut driver = Driver::new(fake(eight_pages), options).expect("a driver");
    let mut transcript = Transcript::default();
    publish(&mut driver, &mut transcript, bearing(127));
    assert_eq!(driver.engine().primitives().mem_counters().cells_used, 128, "the entry fills the pool");
    let prompt = [&bearing(32)[..], &[7; 28]].concat();
    let request = Request { max_tokens: 20, ignore_eos: true, ..Request::tokens(prompt) };
    let id = driver.submit(request.clone()).expect("taken");
    transcript.drain(&mut driver);
    check(&transcript.answers[&id], &alone(&mut here(|_| {}), &request));
    check_empty(&mut driver.close().0);
}

/// The load found it: a lane needed the page of an entry that was leased for a request that had been sent back for want of room.
#[test]
fn lane_does_not_fail_for_the_lease_of_a_request_that_waits() {
    let options = DriverOptions { max_lanes: 8, seed_min_tokens: 1, reserve_tokens: 0, ..DriverOptions::default() };
    for steps in (1..50).step_by(STRIDE) {
        let mut driver = Driver::new(fake(eight_pages), options.clone()).expect("a driver");
        let mut transcript = Transcript::default();
        publish(&mut driver, &mut transcript, bearing(79));
        let long = Request { max_tokens: 90, ignore_eos: true, ..Request::tokens([9; 20]) };
        let long_id = driver.submit(long.clone()).expect("taken");
        for _ in 0..steps {
            driver.step();
        }
        let late = Request { max_tokens: 4, ..Request::tokens([&bearing(32)[..], &[7; 28]].concat()) };
        let late_id = driver.submit(late.clone()).expect("taken");
        transcript.drain(&mut driver);
        for (id, request) in [(long_id, &long), (late_id, &late)] {
            check(&transcript.answers[&id], &alone(&mut here(|_| {}), request));
        }
        check_empty(&mut driver.close().0);
    }
}

#[test]
fn every_request_says_on_a_real_model_what_it_says_alone() {
    let mut random = Random::new("every_request_says_on_a_real_model_what_it_says_alone");
    let open =
        |pool_tokens| tiny(ModelOptions { pool_tokens, max_lanes: 6, context_tokens: 160, ..ModelOptions::default() });
    let roomy = open(0);
    let vocab = roomy.tokenizer().vocab_size() as u32;
    let options = DriverOptions {
        max_lanes: 64,
        tick_tokens: 40,
        reserve_tokens: 4,
        ageing: Duration::from_millis(20),
        ..DriverOptions::default()
    };
    let fresh = || -> Box<dyn Engine> { roomy.engine().expect("an engine") };
    let request = |random: &mut Random| random_request(random, vocab, 60, 20);
    let wished = Driver::new(engine_of(&roomy), options.clone()).expect("a driver");
    assert_eq!(wished.options().max_lanes, 6, "the engine takes fewer lanes than was wished");
    // The pool is small, but one load in fifteen keeps clear of its end.
    for loads in 1.. {
        let engine = engine_of(&open(192));
        let (engine, load) = run_load(engine, fresh, options.clone(), 40, &mut random, request, |_| {});
        println!("{load:?}");
        check_pages(engine);
        if load.preemptions > 0 {
            break;
        }
        assert!(loads < 10, "no load needs a preemption");
    }
}

/// Cache emptied, no page is in use.
pub(crate) fn check_pages(mut engine: Box<dyn Engine + Send>) {
    let _ = engine.cache_evict(u64::MAX, 0, u64::MAX, u64::MAX);
    let (plan, arena) = PlanBuilder::new(u64::MAX).max_decode_lanes(1).build();
    let view = engine.tick(&plan, &arena, &mut MemoryRings::new()).expect("an empty plan");
    assert_eq!(view.record.mem.pool_blocks_used, 0);
}
