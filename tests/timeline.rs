//! The timeline of random schedules: it is JSON, its spans nest, and what it says of a lane is what the events said.

#[path = "common/random.rs"]
#[allow(dead_code, reason = "this file uses a part of it")]
mod random;

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use ictus::engine::{Engine, LaneCost, StrategyBuilder};
use ictus::executor::{Executor, ExecutorOptions};
use ictus::record::TokenRange;
use ictus::record::constant::op_state;
use ictus::runtime::{CopyModel, FakeRuntime, Runtime, RuntimeError};
use ictus::testing::{Harness, RestlessRings};
use ictus::timeline::Timeline;
use random::Random;
use serde_json::Value;

#[derive(Clone, Default)]
struct Kept(Arc<Mutex<Vec<u8>>>);

impl Write for Kept {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("no other holder panicked").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What the events said in all.
#[derive(Debug, Default)]
struct Told {
    ticks: usize,
    refused: usize,
    faults: usize,
    chunks: usize,
    emitted: BTreeMap<u64, u64>,
    cost: BTreeMap<u64, LaneCost>,
}

fn engine() -> Executor<FakeRuntime> {
    Executor::new(FakeRuntime::with(|options| {
        options.descriptor.vocab_size = 100;
        options.descriptor.prefill_step_tokens = 7;
        options.descriptor.cells_total = 400;
        options.descriptor.max_seq_len = 60;
    }))
}

/// Lanes come and go at random, some plans are refused, steps fail.
fn run_host(random: &mut Random, timeline: Option<Timeline>) -> (Told, Option<Box<Timeline>>) {
    let mut h = Harness::with_engine_and_rings(engine(), RestlessRings::new(random.next()));
    let _ = h.engine.set_timeline(timeline.map(Box::new));
    let mut told = Told::default();
    let mut live: Vec<(u64, u32, u32)> = Vec::new();
    for turn in 0..400u64 {
        let mut plan = h.plan();
        if live.len() < 5 {
            let len = 2 + random.below(25) as u32;
            let prompt = h.prompt(&(0..len).map(|_| random.below(100) as u32).collect::<Vec<_>>());
            plan = plan.admit_with(|admit| admit.decode_replay = len / 4, turn, prompt);
            live.push((turn, len - len / 4, 0));
        }
        for (tag, end, stands) in &live {
            plan = match stands < end {
                true => plan.prefill(*tag, *stands, end - stands),
                false => plan.decode(*tag, random.below(6) as u16),
            };
        }
        if random.below(20) == 0 {
            h.engine.primitives_mut().fail_step_after(random.below(3) as u64, RuntimeError::Fault(9));
        }
        if random.below(10) == 0 {
            h.tick_err(plan.retire(u64::MAX, false));
            told.refused += 1;
            live.retain(|lane| lane.0 != turn);
            continue;
        }
        let Ok(events) = h.tick(plan) else {
            told.refused += 1;
            live.retain(|lane| lane.0 != turn);
            continue;
        };
        told.ticks += 1;
        told.faults += events.faults.len();
        told.chunks += events.shed_chunks as usize;
        for emit in &events.emits {
            *told.emitted.entry(emit.lane_tag).or_default() += u64::from(emit.n_tokens);
        }
        live.retain_mut(|lane| {
            let Some(committed) = h.engine.lane_committed(lane.0) else { return false };
            lane.2 = (committed.len() as u32).min(lane.1);
            told.cost.insert(lane.0, h.engine.lane_cost(lane.0).expect("the lane is live"));
            events.emit_for(lane.0).is_none_or(|emit| emit.finish == 0)
        });
        let gone: Vec<u64> = told.cost.keys().copied().filter(|tag| live.iter().all(|lane| lane.0 != *tag)).collect();
        let gone: Vec<u64> = gone.into_iter().filter(|tag| h.engine.lane_committed(*tag).is_some()).collect();
        if !gone.is_empty() {
            let plan = gone.iter().fold(h.plan(), |plan, tag| plan.retire(*tag, false));
            told.ticks += 1;
            h.tick_ok(plan);
        }
    }
    (told, h.engine.set_timeline(None))
}

fn parsed(kept: &Kept) -> Vec<Value> {
    serde_json::from_slice(&kept.0.lock().expect("no other holder panicked")).expect("a finished timeline is JSON")
}

fn ns(value: &Value) -> u64 {
    (value.as_f64().expect("a time") * 1000.0).round() as u64
}

/// Spans of one track are disjoint, or one lies in the other.
fn assert_nested(events: &[Value]) {
    let mut tracks: BTreeMap<u64, Vec<(u64, u64, &str)>> = BTreeMap::new();
    for event in events.iter().filter(|event| event["ph"] == "X") {
        let from = ns(&event["ts"]);
        let name = event["name"].as_str().expect("a name");
        let track = event["tid"].as_u64().expect("a track");
        tracks.entry(track).or_default().push((from, from + ns(&event["dur"]), name));
    }
    for spans in tracks.values_mut() {
        spans.sort_by_key(|&(from, to, _)| (from, std::cmp::Reverse(to)));
        let mut open: Vec<(u64, u64, &str)> = Vec::new();
        for &span in spans.iter() {
            open.retain(|outer| outer.1 > span.0);
            if let Some(outer) = open.last() {
                assert!(span.1 <= outer.1, "{span:?} sticks out of {outer:?}");
            }
            open.push(span);
        }
    }
}

#[test]
fn a_timeline_nests_and_says_of_lanes_what_the_events_said() {
    let mut random = Random::new("a_timeline_nests_and_says_of_lanes_what_the_events_said");
    let kept = Kept::default();
    let (told, timeline) = run_host(&mut random, Some(Timeline::new(kept.clone())));
    timeline.expect("it was recorded").finish().expect("memory takes everything");
    let events = parsed(&kept);
    let count = |name: &str| events.iter().filter(|event| event["name"] == name).count();
    assert!(told.ticks > 100 && told.faults > 3 && told.chunks > 10 && told.refused > 10, "{told:?}");
    assert_eq!((count("tick"), count("report"), count("validate")), (told.ticks, told.ticks, told.ticks));
    assert_eq!((count("refused"), count("fault"), count("drop chunk")), (told.refused, told.faults, told.chunks));
    assert_nested(&events);

    let mut names: BTreeMap<u64, u64> = BTreeMap::new();
    for event in events.iter().filter(|event| event["name"] == "thread_name") {
        let name = event["args"]["name"].as_str().expect("a name");
        if let Some(tag) = name.strip_prefix("lane ") {
            names.insert(event["tid"].as_u64().expect("a track"), tag.parse().expect("a tag"));
        }
    }
    let total = |lane: u64, name: &str| -> u64 {
        let of_lane = events.iter().filter(|event| {
            event["name"] == name && event["tid"].as_u64().and_then(|track| names.get(&track)) == Some(&lane)
        });
        of_lane.map(|event| event["args"]["tokens"].as_u64().expect("a count")).sum()
    };
    for (&lane, &tokens) in &told.emitted {
        assert_eq!(total(lane, "emit"), tokens, "lane {lane}");
    }
    for (&lane, cost) in &told.cost {
        let fed = cost.prefill_tokens + cost.replayed_tokens + cost.decoded_tokens;
        // Of a lane that faulted, the cost was last asked for a tick earlier.
        let seen = total(lane, "prefill") + total(lane, "replay") + total(lane, "decode");
        assert!(seen >= fed, "lane {lane}: {seen} {cost:?}");
        if events
            .iter()
            .all(|event| event["name"] != "fault" || names.get(&event["tid"].as_u64().unwrap_or(0)) != Some(&lane))
        {
            assert_eq!(seen, fed, "lane {lane}: {cost:?}");
            assert_eq!(cost.answered_steps, told.emitted.get(&lane).copied().unwrap_or(0), "lane {lane}: {cost:?}");
        }
    }
}

/// Operations lie between submission and completion, however they end; what they moved is said at the end.
#[test]
fn operations_are_spans_from_submission_to_completion() {
    let kept = Kept::default();
    let options = ExecutorOptions { op_slice_bytes: 8, ..ExecutorOptions::default() };
    let mut h = Harness::with_engine(Executor::with_options(FakeRuntime::default(), options));
    let _ = h.engine.set_timeline(Some(Box::new(Timeline::new(kept.clone()))));
    let prompt = h.prompt(&(0..41).collect::<Vec<u32>>());
    let plan = h.plan().admit(3, prompt).prefill(3, 0, 41);
    h.tick_ok(plan);
    let lane = h.engine.lane_sequence(3).expect("it is live");
    let bare = h.engine.seq_fork(lane, 0).expect("there is room");
    let mut ops = Vec::new();
    for (sequence, cancelled) in [(lane, false), (bare, true)] {
        let range = TokenRange { start: 0, end: 32 };
        let sizing = h.engine.space_export_size(sequence, 1, range, 0).expect("it can be sized");
        let op = h.engine.space_snapshot(sequence, 1, 32, sizing.bytes, sizing.sizing_gen).expect("it starts");
        ops.push((op, sequence, cancelled));
        if cancelled {
            h.engine.op_cancel(op).expect("it runs");
        }
    }
    let mut completions = BTreeMap::new();
    while completions.len() < 2 {
        let plan = h.plan();
        completions.extend(h.tick_ok(plan).op_completions.iter().map(|told| (told.op, *told)));
    }
    let timeline = h.engine.set_timeline(None).expect("it was recorded");
    timeline.finish().expect("memory takes everything");
    let events = parsed(&kept);
    for (op, sequence, cancelled) in ops {
        let of = |phase: &str| -> Vec<&Value> {
            let told = |event: &&Value| event["ph"] == phase && event["id"] == op.to_string().as_str();
            events.iter().filter(told).collect()
        };
        let (begun, ended) = (of("b"), of("e"));
        assert_eq!((begun.len(), ended.len()), (1, 1), "operation {op}");
        let (begun, ended) = (begun[0], ended[0]);
        assert!(ns(&begun["ts"]) <= ns(&ended["ts"]) && begun["tid"] == ended["tid"]);
        assert_eq!((&begun["name"], &begun["cat"]), (&ended["name"], &ended["cat"]));
        assert_eq!(begun["args"]["what"], "snapshot");
        assert_eq!(begun["args"]["sequence"], sequence.to_string().as_str());
        let complete = &completions[&op];
        assert_eq!(ended["args"]["state"], complete.state);
        assert_eq!(ended["args"]["bytes"], complete.bytes_moved);
        assert_eq!(complete.state, if cancelled { op_state::CANCELLED } else { op_state::DONE });
    }
}

/// Pages and copies of a lane are those of its block table: a page that a fork shares is copied once by whoever writes into it first, and
/// what is demoted is not held.
#[test]
fn pages_of_a_lane_are_counted_as_they_are_held() {
    let mut h = Harness::with_engine(Executor::new(FakeRuntime::with(|options| {
        options.descriptor.page_size_tokens = 4;
        options.descriptor.cell_granule_tokens = 4;
        options.descriptor.cells_total = 64;
        options.descriptor.copy_shares_cells = true;
    })));
    let cost = |h: &mut Harness<Executor<FakeRuntime>>| {
        let cost = h.engine.lane_cost(1).expect("it is live");
        (cost.pages, cost.page_copies)
    };
    let prompt = h.prompt(&(0..11).collect::<Vec<u32>>());
    let plan = h.plan().admit(1, prompt).prefill(1, 0, 11);
    h.tick_ok(plan);
    assert_eq!(cost(&mut h), (3, 0), "10 tokens are fed, the last one waits");
    let lane = h.engine.lane_sequence(1).expect("it is live");
    let forks = [0, 0].map(|flags| h.engine.seq_fork(lane, flags).expect("there is room"));
    for (tokens, expected) in [(1, (3, 1)), (1, (3, 1)), (1, (4, 1))] {
        let plan = h.plan().decode(1, tokens);
        h.tick_ok(plan);
        assert_eq!(cost(&mut h), expected);
    }
    for fork in forks {
        h.engine.free_sequence(fork).expect("it is bare");
    }
    let range = TokenRange { start: 0, end: 8 };
    let sizing = h.engine.space_export_size(lane, 1, range, 0).expect("it can be sized");
    let op = h.engine.space_demote(lane, 1, range, 0, sizing.bytes, sizing.sizing_gen).expect("it starts");
    assert_eq!(h.engine.op_poll(op).map(|status| status.state), Ok(op_state::DONE));
    assert_eq!(cost(&mut h), (2, 1), "two of four pages are outside");
    assert_eq!(h.engine.primitives().mem_counters().cells_used, 8);
}

/// Time of drafting is nobody's but of lanes that draft, and lies within the time of decoding.
#[test]
fn time_of_drafts_lies_within_the_time_of_decoding() {
    let mut h = Harness::with_engine(Executor::new(FakeRuntime::with(|options| {
        options.descriptor.verify_rows = true;
        options.copy_model = Some(CopyModel::default());
    })));
    let (registration, memory) = StrategyBuilder::new("prompt-lookup").config("throughput_gate=0").build();
    let slot = h.engine.strategy_register(&registration, &memory).expect("it is granted").strategy_slot;
    let prompts = [[1, 2, 3, 4, 1, 2], [7, 8, 7, 8, 7, 8], [1, 2, 3, 4, 1, 2]].map(|prompt| h.prompt(&prompt));
    let mut plan = h.plan();
    for (tag, prompt) in prompts.into_iter().enumerate() {
        let slot = if tag < 2 { slot } else { 0 };
        plan = plan.admit_with(|admit| admit.strategy_slot = slot, tag as u64, prompt).prefill(tag as u64, 0, 6);
    }
    let (mut drafted, mut decode_ns) = (0, h.tick_ok(plan).timings.decode_ns);
    for _ in 0..20 {
        let plan = (0..3).fold(h.plan(), |plan, tag| plan.decode(tag, 4));
        let events = h.tick_ok(plan);
        decode_ns += events.timings.decode_ns;
        drafted += events.emits.iter().map(|emit| u64::from(emit.spec.proposed)).sum::<u64>();
    }
    let costs = [0, 1, 2].map(|tag| h.engine.lane_cost(tag).expect("it is live"));
    assert_eq!(costs.map(|cost| cost.draft_proposed).iter().sum::<u64>(), drafted);
    assert!(costs[0].draft_proposed > 0 && costs[1].draft_proposed > 0, "{costs:?}");
    assert_eq!((costs[2].draft_proposed, costs[2].draft_ns), (0, 0));
    let draft_ns: u64 = costs.iter().map(|cost| cost.draft_ns).sum();
    assert!(draft_ns <= decode_ns, "{draft_ns} of {decode_ns}");
}

#[test]
fn a_timeline_changes_no_token() {
    let mut random = Random::new("a_timeline_changes_no_token");
    let key = random.next();
    let (without, none) = run_host(&mut Random::from_key(key), None);
    assert!(none.is_none());
    let (with, _) = run_host(&mut Random::from_key(key), Some(Timeline::new(io::sink())));
    assert_eq!((without.emitted, without.cost), (with.emitted, with.cost));
}

/// E-14: through a boxed engine.
#[test]
fn a_timeline_is_given_back_by_the_engine_that_records_it() {
    let mut engine: Box<dyn Engine> = Box::new(engine());
    assert!(engine.timeline_stop().is_none());
    engine.timeline_start(Box::new(Timeline::new(io::sink()))).expect("the executor records");
    assert!(engine.timeline_stop().is_some());
    assert!(engine.timeline_stop().is_none());
    assert_eq!(engine.lane_cost(1), None);
}
