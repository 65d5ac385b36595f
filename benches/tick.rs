//! What a tick costs beside the model: every lane decodes one token over a runtime whose step is free.
//!
//! `cargo bench --bench tick`. The plan is built outside the measured time, as a host in C would fill its own arrays.

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use ictus::engine::Engine;
use ictus::executor::Executor;
use ictus::record::constant::sampling;
use ictus::record::{LaneAdmit, RecordArena, TickPlan};
use ictus::ring::MemoryRings;
use ictus::runtime::Runtime;
use ictus::testing::{FreeRuntime, Harness};

/// Lanes that decode at once.
const LANES: [u64; 4] = [1, 8, 64, 256];
/// Prompt tokens of each lane.
const PROMPT_TOKENS: u32 = 8;

fn penalised(admit: &mut LaneAdmit) {
    admit.sampling = sampling::GPU_GUMBEL;
    admit.params.temperature = 0.8;
    admit.params.repeat_penalty = 1.1;
}

/// An engine whose lanes have their first token, and a plan that decodes all of them.
fn decoding<R: Runtime>(
    runtime: R,
    lanes: u64,
    change: fn(&mut LaneAdmit),
) -> (Harness<Executor<R>>, TickPlan, RecordArena) {
    let mut harness = Harness::with_engine(Executor::new(runtime)).with_max_decode_lanes(lanes as u32);
    // Tags as a host makes them: spread, and not in the order of the lanes.
    let tag = |lane: u64| lane.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    for lane in 0..lanes {
        let prompt = harness.prompt(&[1; PROMPT_TOKENS as usize]);
        let plan = harness.plan().admit_with(change, tag(lane), prompt).prefill(tag(lane), 0, PROMPT_TOKENS);
        harness.tick_ok(plan);
    }
    let mut plan = harness.plan();
    for lane in 0..lanes {
        plan = plan.decode(tag(lane), 1);
    }
    let (plan, arena) = plan.build();
    (harness, plan, arena)
}

fn tick(harness: &mut Harness<Executor<FreeRuntime>>, plan: &mut TickPlan, arena: &RecordArena) -> usize {
    plan.plan_seq += 1;
    let rings: &mut MemoryRings = &mut harness.rings;
    harness.engine.tick(plan, arena, rings).map_or(0, |events| events.emits.len())
}

fn decode_tick(criterion: &mut Criterion) {
    for (name, change) in [("greedy", (|_| {}) as fn(&mut LaneAdmit)), ("penalised draw", penalised)] {
        let mut group = criterion.benchmark_group(format!("decode tick, {name}"));
        for lanes in LANES {
            let (mut harness, mut plan, arena) = decoding(FreeRuntime::new(lanes as u32), lanes, change);
            group.bench_function(BenchmarkId::from_parameter(lanes), |bencher| {
                bencher.iter(|| {
                    let emits = tick(&mut harness, &mut plan, &arena);
                    assert_eq!(emits as u64, lanes, "every lane emits");
                });
            });
        }
        group.finish();
    }
}

criterion_group!(benches, decode_tick);
criterion_main!(benches);
