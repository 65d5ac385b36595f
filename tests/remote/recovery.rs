//! A worker that is gone, and what goes on in the next one.

use std::time::{Duration, Instant};

use ictus::engine::{Engine, PlanBuilder};
use ictus::record::constant::{op_state, sampling};
use ictus::record::{LaneAdmit, Status};
use ictus::ring::{MemoryRings, Rings};
use ictus::testing::{Events, Harness, StageRings};
use ictus::worker::client::{RemoteEngine, RemoteOptions};
use rustix::process::{Pid, Signal, kill_process};

use crate::probe::fake;
use crate::{command, options, remote};

/// Kills a process the way nobody can catch.
pub(crate) fn kill(id: u32) {
    if let Some(pid) = i32::try_from(id).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, Signal::KILL);
    }
}

fn kill_worker<R: StageRings>(host: &Harness<RemoteEngine, R>) {
    kill(host.engine.process_id().expect("a worker"));
}

fn sampled(admit: &mut LaneAdmit) {
    admit.sampling = sampling::GPU_GUMBEL;
    admit.params.temperature = 0.9;
    admit.params.top_p = 0.95;
    // Penalties look back on what was produced before a worker died.
    admit.params.freq_penalty = 0.5;
    admit.rng_counter_base = 1000;
}

/// Runs a lane of each kind, decode by decode; `between` may do something to the engine after each tick.
fn run<E: Engine>(mut host: Harness<E>, mut between: impl FnMut(&mut Harness<E>, usize)) -> Vec<Vec<u32>> {
    let prompts: Vec<Vec<u32>> = (1..=4u32).map(|lane| (1..=30 * lane).map(|n| n * lane % 500).collect()).collect();
    let bias = host.engine.logit_bias_create(&[7, 8], &[20.0, 20.0]).expect("a list");
    let mut plan = host.plan();
    for (tag, prompt) in (1..).zip(&prompts) {
        let staged = host.prompt(prompt);
        let change = |admit: &mut LaneAdmit| match tag {
            2 => sampled(admit),
            3 => {
                sampled(admit);
                admit.logit_bias_handle = bias;
            }
            4 => admit.sampling = sampling::HOST,
            _ => {}
        };
        plan = plan.admit_with(change, tag, staged);
        // Half of the prompt; the rest in the second tick.
        plan = plan.prefill(tag, 0, prompt.len() as u32 / 2);
    }
    host.tick_ok(plan);
    between(&mut host, 0);
    host.engine.logit_bias_free(bias).expect("lanes have copied it");
    let mut out = vec![Vec::new(); 4];
    let mut nonce = None;
    for round in 1..8 {
        let mut plan = host.plan();
        if round == 1 {
            for (tag, prompt) in (1..).zip(&prompts) {
                let half = prompt.len() as u32 / 2;
                plan = plan.prefill(tag, half, prompt.len() as u32 - half);
            }
        }
        plan = plan.decode(1, 3).decode(2, 3).decode(3, 1);
        if let Some((token, nonce)) = nonce {
            plan = plan.commit(4, token, nonce);
        }
        let events = host.tick_ok(plan.decode(4, 1));
        for tag in 1..=3u64 {
            out[tag as usize - 1].extend(host.tokens_of(&events, tag));
        }
        let row = events.emit_for(4).expect("a row").logits_row;
        let mut logits = Vec::new();
        host.rings.read_logits_row(&row, &mut logits).expect("the row");
        let best = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).expect("logits") as u32;
        out[3].push(best);
        nonce = Some((best, row.generation));
        between(&mut host, round);
    }
    let plan = host.plan().retire(1, true).retire(2, false).retire(3, true).retire(4, false);
    host.tick_ok(plan);
    out
}

/// WS-22: greedy, sampled, biased and host-sampled lanes, killed after any tick, go on with the tokens of an undisturbed run.
#[test]
fn lanes_go_on_in_a_fresh_worker_with_the_same_tokens() {
    let expected = run(Harness::with_engine(fake()), |_, _| {});
    assert_eq!(run(Harness::with_engine(remote("fake")), |_, _| {}), expected, "undisturbed, over the link");
    for victim in [0, 1, 4, 7] {
        let killed = run(Harness::with_engine(remote("fake")), |host, round| {
            if round == victim {
                kill_worker(host);
            }
        });
        assert_eq!(killed, expected, "killed after tick {victim}");
    }
    let respawned = run(Harness::with_engine(remote("fake")), |host, _| host.engine.respawn().expect("a fresh one"));
    assert_eq!(respawned, expected, "a fresh worker after every tick");
}

/// Names that the host holds: leases and the sequences of lanes stay good, bare sequences do not, and none is given twice.
#[test]
fn handles_outlive_a_worker_or_are_unknown() {
    let mut host = Harness::with_engine(remote("fake"));
    let tokens: Vec<u32> = (1..=65).collect();
    let prompt = host.prompt(&tokens);
    let plan = host.plan().admit(1, prompt).admit(2, prompt).prefill(1, 0, 65).prefill(2, 0, 65).decode(1, 4);
    let events = host.tick_ok(plan);
    let cold = host.tokens_of(&events, 1);
    let plan = host.plan().retire(1, true);
    host.tick_ok(plan);
    let lease = host.engine.seed_acquire(&tokens, 64, 0).expect("a lease");
    let of_lane = host.engine.lane_sequence(2).expect("live");
    let bare = host.engine.create_sequence().expect("a sequence");
    kill_worker(&host);
    assert_eq!(host.engine.free_sequence(bare), Err(Status::UnknownHandle));
    let fresh = host.engine.create_sequence().expect("a sequence");
    assert!(fresh != bare && fresh != of_lane);
    assert_eq!(host.engine.lane_sequence(2), Some(of_lane));
    let child = host.engine.seq_fork(of_lane, 0).expect("a fork of the lane's sequence");
    host.engine.free_sequence(child).expect("bare");
    let prompt = host.prompt(&tokens);
    let plan = host.plan().admit_with(|admit| admit.seed_handle = lease, 3, prompt).prefill(3, 64, 1).decode(3, 4);
    let events = host.tick_ok(plan);
    assert_eq!(host.tokens_of(&events, 3), cold, "the prefix was computed again");
    assert_eq!(host.engine.seed_release(lease), Err(Status::UnknownHandle), "consumed");
    assert_eq!(host.engine.started(), 2);
}

/// An operation whose worker dies has failed, and the bytes of one that was done are there still.
#[test]
fn finished_export_outlives_its_worker() {
    use ictus::record::TokenRange;
    let mut host = Harness::with_engine(remote("fake"));
    let prompt = host.prompt(&(1..=40).collect::<Vec<u32>>());
    let plan = host.plan().admit(1, prompt).prefill(1, 0, 40).decode(1, 1);
    host.tick_ok(plan);
    let sequence = host.engine.lane_sequence(1).expect("live");
    let size = host.engine.space_export_size(sequence, 1, TokenRange { start: 0, end: 32 }, 0).expect("a size");
    let op = host.engine.space_snapshot(sequence, 1, 32, size.bytes, size.sizing_gen).expect("an operation");
    while host.engine.op_poll(op).expect("known").state < op_state::DONE {
        host.engine.pump();
    }
    kill_worker(&host);
    host.engine.respawn().expect("a fresh one");
    assert_eq!(host.engine.take_op_output(op).map(|bytes| bytes.len() as u64), Some(size.bytes));
    let stale = host.engine.space_snapshot(sequence, 1, 32, size.bytes, size.sizing_gen);
    assert!(stale.is_err(), "a sizing of the worker before");
}

/// Sealed bytes of all whole pages of a lane.
pub(crate) fn park<R: StageRings>(host: &mut Harness<RemoteEngine, R>, tag: u64) -> (u64, Vec<u8>) {
    use ictus::record::TokenRange;
    let sequence = host.engine.lane_sequence(tag).expect("live");
    let boundary = host.engine.space_snapshot_boundary(sequence, 1, u64::MAX).expect("a boundary");
    let size = host.engine.space_export_size(sequence, 1, TokenRange { start: 0, end: boundary }, 0).expect("a size");
    let op = host.engine.space_snapshot(sequence, 1, boundary, size.bytes, size.sizing_gen).expect("an operation");
    while host.engine.op_poll(op).expect("known").state < op_state::DONE {
        host.engine.pump();
    }
    (boundary, host.engine.take_op_output(op).expect("sealed bytes"))
}

/// A lane that was exported while it lived goes on from there when its worker dies, and computes the rest only: the same tokens.
#[test]
fn lane_goes_on_from_its_last_snapshot() {
    type Change = fn(&mut LaneAdmit);
    let kinds: [Change; 2] = [|_| {}, sampled];
    let prompt: Vec<u32> = (1..=70).collect();
    for change in kinds {
        let run = |mut host: Harness<RemoteEngine>, parks: &[usize], kills: &[usize]| {
            let staged = host.prompt(&prompt);
            let plan = host.plan().admit_with(change, 1, staged).prefill(1, 0, 50);
            host.tick_ok(plan);
            let (mut tokens, mut held) = (Vec::new(), Vec::new());
            for round in 0..10 {
                if parks.contains(&round) {
                    held.push(park(&mut host, 1).0);
                }
                if kills.contains(&round) {
                    kill_worker(&host);
                }
                let plan = if round == 0 { host.plan().prefill(1, 50, 20) } else { host.plan() };
                let events = host.tick_ok(plan.decode(1, 5));
                tokens.extend(host.tokens_of(&events, 1));
            }
            (tokens, held, host.engine.restored_tokens())
        };
        let start = || Harness::with_engine(remote("fake"));
        let (expected, _, none) = run(start(), &[], &[]);
        assert_eq!((expected.len(), none), (50, 0));
        // Parked in its prompt, behind it, and later; killed at once and some ticks after.
        for (parks, kills, restored) in [
            (&[0][..], &[0][..], &[0usize][..]),
            (&[3], &[3], &[0]),
            (&[3], &[7], &[0]),
            (&[1, 6], &[4, 8], &[0, 1]),
            (&[2], &[3, 4, 5], &[0, 0, 0]),
            (&[], &[5], &[]),
        ] {
            let (tokens, held, taken) = run(start(), parks, kills);
            assert_eq!(tokens, expected, "parked before {parks:?}, killed before {kills:?}");
            assert_eq!(taken, restored.iter().map(|&at| held[at]).sum::<u64>(), "{parks:?} {kills:?}: {held:?}");
            assert!(held.iter().all(|&tokens| tokens >= 48));
        }
    }
}

/// With the real engine: state that one process computed, sealed and gave away is what the next goes on from.
#[test]
fn lane_of_a_model_goes_on_from_its_last_snapshot() {
    let prompt: Vec<u32> = (0..60).map(|n| 5 + n * 7 % 300).collect();
    let run = |parks: bool| {
        let mut host = Harness::with_engine(remote("tiny"));
        let staged = host.prompt(&prompt);
        let plan = host.plan().admit_with(sampled, 1, staged).prefill(1, 0, 60).decode(1, 8);
        let events = host.tick_ok(plan);
        let mut tokens = host.tokens_of(&events, 1);
        if parks {
            park(&mut host, 1);
            kill_worker(&host);
        }
        let plan = host.plan().decode(1, 16);
        let events = host.tick_ok(plan);
        tokens.extend(host.tokens_of(&events, 1));
        (tokens, host.engine.restored_tokens())
    };
    let (expected, none) = run(false);
    let (tokens, restored) = run(true);
    assert_eq!((tokens, none), (expected, 0));
    assert!(restored >= 48, "{restored} tokens were not computed again");
}

/// Without restarts the first end is told at once, with how it ended; a later call starts anew when it may.
#[test]
fn end_of_a_worker_is_told_at_once_and_in_full() {
    let never = RemoteOptions { restarts: 0, ..options() };
    let mut host = Harness::with_engine(RemoteEngine::start(command("fake"), never).expect("started"));
    let prompt = host.prompt(&[1, 2, 3]);
    let plan = host.plan().admit(1, prompt).prefill(1, 0, 3).decode(1, 1);
    host.tick_ok(plan);
    kill_worker(&host);
    let began = Instant::now();
    let plan = host.plan().decode(1, 1);
    assert_eq!(host.tick_err(plan), Status::Fatal);
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    use std::os::unix::process::ExitStatusExt;
    let gone = host.engine.gone().expect("it is gone");
    assert_eq!(gone.status.and_then(|status| status.signal()), Some(9), "{gone}");
    assert!(gone.to_string().contains("signal 9"), "{gone}");
}

/// A program that is no worker: refused in words, its last ones among them.
#[test]
fn worker_that_does_not_start_says_why() {
    use ictus::worker::client::WorkerCommand;
    let missing = RemoteEngine::start(WorkerCommand::new("/nonexistent/worker"), options()).expect_err("no such file");
    assert!(missing.status.is_none());
    let line =
        WorkerCommand::new("/bin/sh").without_descriptor_flags().argument("-c").argument("echo no model >&2; exit 3");
    let failed = RemoteEngine::start(line, options()).expect_err("it exits");
    assert_eq!(failed.status.and_then(|status| status.code()), Some(3), "W-25");
    assert_eq!(failed.to_string(), "the worker is gone: the worker closed the link (exit code 3): no model");
}

/// The same in process and out of it, with the real engine: the bits are the model's.
#[test]
fn model_in_a_worker_gives_the_tokens_of_the_model_in_process() {
    use ictus::Model;
    let model = Model::open(crate::tiny(), &crate::tiny_options()).expect("the model");
    let run = |engine: &mut dyn Engine, victim: Option<(usize, u32)>| {
        let mut rings = MemoryRings::new();
        let mut seq = 0;
        let mut tick = |build: &dyn Fn(PlanBuilder) -> PlanBuilder, rings: &mut MemoryRings| {
            seq += 1;
            let (plan, memory) = build(PlanBuilder::new(seq)).build();
            let view = engine.tick(&plan, &memory, rings).expect("accepted");
            Events::of(&view)
        };
        let prompt = rings.stage_prompt(&[1, 20, 300, 4, 50, 60]);
        tick(
            &|plan| plan.admit_with(sampled, 1, prompt).admit(2, prompt).prefill(1, 0, 6).prefill(2, 0, 4),
            &mut rings,
        );
        let (mut one, mut two) = (Vec::new(), Vec::new());
        for round in 0..6 {
            if let Some((_, id)) = victim.filter(|&(at, _)| at == round) {
                kill(id);
            }
            let build =
                |plan: PlanBuilder| if round == 0 { plan.prefill(2, 4, 2) } else { plan }.decode(1, 4).decode(2, 4);
            let events = tick(&build, &mut rings);
            for (tag, out) in [(1, &mut one), (2, &mut two)] {
                let emit = events.emit_for(tag).expect("an emit");
                rings.read_tokens(&emit.token_ref, out).expect("its tokens");
            }
        }
        (one, two)
    };
    let expected = run(&mut *model.engine().expect("an engine"), None);
    assert_eq!(expected.0.len(), 24);
    assert_eq!(run(&mut remote("tiny"), None), expected);
    for round in [0, 3] {
        let mut engine = remote("tiny");
        let id = engine.process_id().expect("a worker");
        assert_eq!(run(&mut engine, Some((round, id))), expected, "killed before round {round}");
    }
}
