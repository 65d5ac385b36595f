//! Ten thousand lanes come and go, in every way there is to go, and nothing of them stays.

#[path = "common/random.rs"]
#[expect(dead_code, reason = "not every test needs every kind of random number")]
mod random;

use std::collections::BTreeMap;

use ictus::engine::Engine;
use ictus::executor::Executor;
use ictus::record::constant::sampling;
use ictus::runtime::{FakeRuntime, Runtime};
use ictus::testing::Harness;
use random::Random;

const LANES: u64 = 10_000;

#[test]
fn ten_thousand_lanes_leave_nothing_behind() {
    let mut random = Random::new("ten_thousand_lanes_leave_nothing_behind");
    let fake = FakeRuntime::with(|options| {
        options.descriptor.vocab_size = 64;
        options.descriptor.max_batch = 32;
        options.descriptor.max_seqs = 40;
        options.record = false;
    });
    let mut host = Harness::with_engine(Executor::new(fake)).with_max_decode_lanes(32);
    // Prompt length by tag.
    let mut live: BTreeMap<u64, usize> = BTreeMap::new();
    let mut marked: Vec<u64> = Vec::new();
    let mut bare = Vec::new();
    let mut admitted = 0;
    let mut tokens = 0;
    while admitted < LANES || !live.is_empty() || !marked.is_empty() {
        let mut plan = host.plan();
        let mut decoding = Vec::new();
        for (&tag, &prompt_len) in &live {
            let through = host.engine.lane_committed(tag).is_some_and(|committed| committed.len() >= prompt_len);
            plan = match random.below(6) {
                0 => plan.retire(tag, random.below(2) == 0),
                1..5 if through => {
                    decoding.push(tag);
                    plan.decode(tag, 1 + random.below(3) as u16)
                }
                _ => plan,
            };
        }
        plan = marked.iter().fold(plan, |plan, &tag| plan.retire(tag, true));
        let room = (32 - live.len()).min((LANES - admitted) as usize);
        for _ in 0..random.below(16).min(room) {
            let tag = random.next();
            let prompt: Vec<u32> = (0..random.between(1, 30)).map(|_| random.below(64) as u32).collect();
            let reference = host.prompt(&prompt);
            let drawn = random.below(2) as u32 * sampling::GPU_GUMBEL;
            // A part of the prompt only, sometimes: such a lane leaves before it is through.
            let part = if random.below(4) > 0 { prompt.len() } else { random.below(prompt.len()) };
            plan = plan.admit_with(|admit| admit.sampling = drawn, tag, reference).prefill(tag, 0, part as u32);
            if part == prompt.len() && decoding.len() < 32 {
                decoding.push(tag);
                plan = plan.decode(tag, 1);
            }
            assert!(live.insert(tag, prompt.len()).is_none(), "a tag came twice");
            admitted += 1;
        }
        if let Some(&tag) = decoding.first().filter(|_| random.below(3) == 0) {
            host.engine.inject_fault(tag, 1);
        }
        let events = host.tick_ok(plan);
        tokens += events.emits.iter().map(|emit| u64::from(emit.n_tokens)).sum::<u64>();
        marked = events.faults.iter().map(|fault| fault.lane_tag).collect();
        live.retain(|&tag, _| host.engine.lane_committed(tag).is_some());
        if random.below(4) == 0 {
            // What lanes left in the cache goes, and then only lanes and bare sequences are there.
            host.engine.cache_evict(u64::MAX, 0, u64::MAX, u64::MAX).expect("entries can be evicted");
            assert_eq!(host.engine.live_sequences(), live.len() + bare.len());
        }
        if random.below(8) == 0 && bare.len() < 4 {
            bare.push(host.engine.create_sequence().expect("a slot is free"));
        } else if let Some(sequence) = bare.pop() {
            host.engine.free_sequence(sequence).expect("it is bare");
        }
        host.engine.audit().expect("the engine is sound");
    }
    assert!(tokens > LANES, "the lanes said {tokens} tokens");
    bare.drain(..).for_each(|sequence| host.engine.free_sequence(sequence).expect("it is bare"));
    host.engine.cache_evict(u64::MAX, 0, u64::MAX, u64::MAX).expect("entries can be evicted");
    assert_eq!(admitted, LANES);
    assert_eq!(host.engine.live_sequences(), 0);
    assert_eq!(host.engine.primitives().live_sequences(), 0, "the runtime has no sequence left");
    assert_eq!(host.engine.primitives().mem_counters().cells_used, 0, "nor a cell");
}
