//! Thousands of requests against a pool that holds twenty, beside a tick host on the same core.

use ictus::executor::Executor;
use ictus::facade::CoreOptions;
use ictus::record::constant::cache_class;
use ictus::testing::Harness;

use crate::host::{Host, pool_with, prompt, text};
use crate::scheduler::{Outcome, Request, Scheduler};

#[allow(dead_code, reason = "the shared helpers have more than this file uses")]
#[path = "../common/random.rs"]
mod random;

use random::Random;

/// every request ends with the bits of a run alone; nobody probes without news; what was there is there again.
#[test]
fn xs_64_overload_beside_ticks_loses_nothing() {
    let mut random = Random::new("overload");
    // Twenty requests of about three blocks.
    let host = Host::with(Executor::new(pool_with(60, 0, |options| options.end_ids.clear())), CoreOptions::default());
    let memory = host.memory();
    let requests: Vec<Request> = (0..5000)
        .map(|id| {
            let len = random.between(1, 90);
            Request { id, prompt: prompt(len, id as u32), outputs: random.between(1, 24) }
        })
        .collect();
    let mut scheduler = Scheduler::new(&*host.executor, 48);
    let capacity = host.executor.capacity().clone();
    let mut ticking = Harness::with_engine(host.core.tick_host().expect("nobody else ticks"));
    let mut lanes: Vec<(u64, Vec<u32>, Vec<u32>)> = Vec::new();
    let (mut next, mut tag, mut ticks, mut refused) = (0, 0u64, 0u32, 0u32);
    let mut checks = 0u64;
    while next < requests.len() || !scheduler.is_idle() || !lanes.is_empty() {
        while next < requests.len() && scheduler.waiting() < 40 {
            scheduler.submit(requests[next].clone());
            next += 1;
        }
        scheduler.turn(&mut || {
            checks += 1;
            capacity.memory().check().expect("the level of memory holds together");
        });
        // The tick host has lanes of its own in the same pool.
        if random.below(4) == 0 && (next < requests.len() || !lanes.is_empty()) {
            let mut plan = ticking.plan().evict_envelope(cache_class::RESIDENT, u64::MAX);
            let admits = lanes.len() < 4 && next < requests.len();
            let question = prompt(random.between(1, 60), 7_000 + tag as u32);
            if admits {
                let staged = ticking.prompt(&question);
                plan = plan.admit(tag, staged).prefill(tag, 0, question.len() as u32).decode(tag, 1);
            }
            for (lane, ..) in &lanes {
                plan = plan.decode(*lane, 2);
            }
            match ticking.tick(plan) {
                Ok(events) => {
                    ticks += 1;
                    if admits {
                        lanes.push((tag, question, Vec::new()));
                        tag += 1;
                    }
                    for emit in &events.emits {
                        let mut tokens = Vec::new();
                        use ictus::ring::Rings;
                        ticking.rings.read_tokens(&emit.token_ref, &mut tokens).expect("it was just written");
                        let lane = lanes.iter_mut().find(|lane| lane.0 == emit.lane_tag).expect("it is live");
                        lane.2.extend(tokens);
                    }
                }
                Err(status) => {
                    assert_eq!(status, ictus::record::Status::NeedsReplan);
                    refused += 1;
                }
            }
            let done = lanes.iter().position(|lane| lane.2.len() >= 20 || status_of_pressure(refused, &lane.2));
            if let Some(done) = done {
                let (lane, question, said) = lanes.remove(done);
                let plan = ticking.plan().retire(lane, false);
                ticking.tick_ok(plan);
                assert_eq!(said, text(&question, said.len()), "lane {lane}");
            }
            refused = if done.is_some() { 0 } else { refused };
        }
    }
    scheduler.outcomes.sort_by_key(|outcome| outcome.0);
    assert_eq!(scheduler.outcomes.len(), requests.len());
    for (request, (id, outcome)) in requests.iter().zip(&scheduler.outcomes) {
        assert_eq!(*outcome, Outcome::Said(text(&request.prompt, request.outputs)), "request {id}");
    }
    let deeds = scheduler.deeds;
    println!("{deeds:?}, {ticks} ticks, {checks} checks of memory");
    assert_eq!((deeds.probes_without_news, deeds.useless_victims), (0, 0));
    assert!(deeds.most_bypasses <= 8);
    assert!(deeds.preemptions > 100 && ticks > 100, "there was pressure: {deeds:?}, {ticks} ticks");
    drop(ticking);
    let stats = host.executor.stats();
    assert_eq!((stats.completed, stats.accounting_faults, stats.faults), (5000, 0, [0; 4]));
    // What completed may rest in the cache; beside that the pool is as it was.
    let after = host.memory();
    assert_eq!(after.blocks_free + after.blocks_evictable, memory.blocks_free);
    host.core.inspect(|executor| {
        use ictus::engine::Engine;
        executor.cache_evict(u64::MAX, 0, u64::MAX, u64::MAX).expect("it can be emptied");
    });
    assert_eq!(host.memory(), memory, "pages in are pages out");
    host.audit();
}

/// A tick host that finds no room often gives a lane back.
fn status_of_pressure(refused: u32, said: &[u32]) -> bool {
    refused > 3 && !said.is_empty()
}
