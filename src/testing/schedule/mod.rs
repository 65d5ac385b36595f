#![forbid(unsafe_code)]
//! Schedule invariance: whatever the schedule, a request's answer is the same to the bit.
//!
//! Each request first runs alone in a fresh engine: whole prompt at once, one token a tick. Then all of them run together under a
//! random schedule, and each must come to the same tokens, log-probabilities and rows. The schedule is drawn tick by tick:
//!
//! - which lanes are admitted, prefilled, decoded and left waiting, and the order of the records;
//! - chunk lengths, prefill budgets that cut chunks, grants of several tokens, decoding in the tick that completes a prompt;
//! - ticks that are asked to end at random points;
//! - lanes that are retired in the middle and admitted again, with what they had said as a tail to replay (T-97);
//! - lanes that start from what others left in the cache, in the pool or exported, or on a fork that the host adopts; forks that are
//!   published, or leave the engine as bytes and come back; leases that are held for a while, and evictions between ticks;
//! - drafts, for requests that name a strategy, and grants that accepted drafts may exceed;
//! - noise: neighbours that nobody compares, some of which fault;
//! - steps that may be captured as graphs, which those of the request alone may not.
//!
//! On the way the harness holds the engine to its word: what was prefilled and what the shed report says was not add up to what
//! was asked (T-84, T-91), and nobody faults but the noise.

mod draw;
mod request;
mod starts;

pub use request::{Counts, Request, Transcript, drafted, random_requests};

use std::collections::BTreeMap;

use self::draw::{Act, Lane, Row, Stage, draw_plan};
use self::starts::Holdings;
use super::{EngineInspect, Events, Harness, RestlessRings};
use crate::engine::PlanBuilder;
use crate::record::constant::{fault, finish, shed_kind, tick_flag};
use crate::record::{LaneLogprob, RingRef, Status};
use crate::ring::Rings;

/// Gives a random number below its argument, which is above 0.
pub type Below<'a> = dyn FnMut(usize) -> usize + 'a;

/// Plans after which a schedule counts as stuck.
const PLANS_MAX: usize = 20_000;

/// Runs a request alone, the simplest way there is.
///
/// # Panics
/// When the engine refuses a plan or the lane faults.
pub fn run_alone<E: EngineInspect>(engine: E, request: &Request) -> Transcript {
    let mut harness = Harness::with_engine_and_rings(engine, RestlessRings::calm());
    let mut lane = Lane::new(0, request.clone(), false);
    for _ in 0..PLANS_MAX {
        let mut act = Act::default();
        if lane.done() {
            return lane.transcript;
        }
        match lane.stage {
            Stage::Waiting => act.admit = true,
            Stage::Live => {
                act.prefill = lane.prefill_left();
                act.commits = lane.row.is_some();
                act.grant = 1;
            }
        }
        let lanes = std::slice::from_mut(&mut lane);
        run_plan(&mut harness, lanes, &mut Holdings::default(), &mut [(0, act)], u32::MAX).expect("the plan is good");
    }
    panic!("the request alone does not come to an end");
}

/// Runs requests together under one random schedule, beside `noise` lanes like them, at most `lanes_max` at once; answers also
/// what happened on the way.
///
/// # Panics
/// When the engine refuses a plan for anything but room, a compared lane faults, or the schedule gets stuck.
pub fn run_together<E: EngineInspect>(
    engine: E,
    requests: &[Request],
    noise: usize,
    lanes_max: usize,
    below: &mut Below<'_>,
) -> (Vec<Transcript>, Counts) {
    let rings = RestlessRings::new(below(usize::MAX) as u64);
    // Alone without graphs, together with them, where the engine has any.
    let mut harness = Harness::with_engine_and_rings(engine, rings)
        .with_max_decode_lanes(lanes_max as u32)
        .with_plan_flags(tick_flag::CAPTURE_OK);
    let noise = requests.iter().cycle().take(noise * usize::from(!requests.is_empty()));
    let compared = requests.iter().map(|request| (request, false));
    let mut lanes: Vec<Lane> = compared
        .chain(noise.map(|request| (request, true)))
        .enumerate()
        .map(|(number, (request, noise))| Lane::new(number as u64, request.clone(), noise))
        .collect();
    let mut holdings = Holdings::default();
    for _ in 0..PLANS_MAX {
        harness.engine.audit();
        if lanes.iter().filter(|lane| !lane.noise).all(Lane::done) {
            let mut counts = Counts::default();
            lanes.iter().for_each(|lane| counts += lane.counts);
            holdings.release(&mut harness);
            harness.engine.audit();
            let compared = lanes.into_iter().filter(|lane| !lane.noise);
            return (compared.map(|lane| lane.transcript).collect(), counts);
        }
        let (mut acts, budget) = draw_plan(&lanes, lanes_max, below);
        disturb_noise(&mut harness, &lanes, below);
        holdings.disturb(&mut harness, &lanes, below);
        let mut outcome = run_plan(&mut harness, &mut lanes, &mut holdings, &mut acts, budget);
        if outcome == Err(Status::NeedsReplan) {
            // Perhaps it fits without newcomers.
            acts.retain(|(_, act)| !act.admit);
            outcome = run_plan(&mut harness, &mut lanes, &mut holdings, &mut acts, budget);
        }
        if let Err(status) = outcome {
            assert_eq!(status, Status::NeedsReplan, "a plan of the schedule is refused");
            make_room(&mut harness, &mut lanes, &mut holdings, below);
        }
    }
    panic!("the schedule does not come to an end");
}

/// Runs requests alone, then together under `schedules` random schedules, and compares; answers what happened on the way.
///
/// # Panics
/// When two runs of a request differ, or as [`run_together`].
pub fn assert_schedule_invariance<E: EngineInspect>(
    mut make: impl FnMut() -> E,
    requests: &[Request],
    schedules: usize,
    lanes_max: usize,
    below: &mut Below<'_>,
) -> Counts {
    let mut counts = Counts::default();
    let alone: Vec<Transcript> = requests.iter().map(|request| run_alone(make(), request)).collect();
    for schedule in 0..schedules {
        let noise = below(3);
        let (together, counted) = run_together(make(), requests, noise, lanes_max, below);
        counts += counted;
        for (number, (alone, together)) in alone.iter().zip(&together).enumerate() {
            assert_eq!(alone.tokens, together.tokens, "tokens of request {number}, schedule {schedule}");
            assert_eq!(alone.finish, together.finish, "finish of request {number}, schedule {schedule}");
            assert_eq!(alone.logprobs, together.logprobs, "log-probabilities of request {number}, schedule {schedule}");
            assert!(alone.rows == together.rows, "rows of request {number}, schedule {schedule}");
        }
    }
    counts
}

/// Runs one plan and books what came of it. A refused plan changes nothing, here as there.
fn run_plan<E: EngineInspect>(
    harness: &mut Harness<E, RestlessRings>,
    lanes: &mut [Lane],
    holdings: &mut Holdings,
    acts: &mut [(usize, Act)],
    budget: u32,
) -> Result<(), Status> {
    let mut plan = harness.plan().prefill_budget(budget);
    let mut admitted = Vec::new();
    let mut bias_handles = Vec::new();
    for &mut (number, ref mut act) in acts.iter_mut() {
        let lane = &mut lanes[number];
        if act.admit {
            let (admit, start) = lane.admit(harness, holdings, act);
            let bias = admit.logit_bias_handle;
            let slot = if act.drafts { lane.request.strategy_slot } else { 0 };
            plan = plan.admit_with(|record| (*record, record.strategy_slot) = (admit, slot), lane.tag, admit.prompt);
            admitted.push((number, start));
            bias_handles.extend((bias != 0).then_some(bias));
        }
        plan = add_records(plan, lane, *act);
    }
    let outcome = harness.tick(plan);
    for bias in bias_handles {
        harness.engine.logit_bias_free(bias).expect("the bias is known: its lane has a copy (E-12)");
    }
    for start in admitted.iter().filter_map(|(_, start)| *start).filter(|_| outcome.is_err()) {
        harness.engine.seed_release(start.lease).expect("a refused plan leaves the lease (S-45)");
    }
    let events = outcome?;
    for (number, start) in admitted {
        lanes[number].stage = Stage::Live;
        if let Some(start) = start {
            start.count(&mut lanes[number].counts);
            holdings.consumed(&start);
        }
    }
    book(harness, lanes, acts, &events);
    Ok(())
}

fn add_records(mut plan: PlanBuilder, lane: &Lane, act: Act) -> PlanBuilder {
    if let (true, Some(row)) = (act.commits, &lane.row) {
        plan = plan.commit(lane.tag, host_pick(&row.logits), row.nonce);
    }
    if act.prefill > 0 {
        plan = plan.prefill(lane.tag, lane.committed as u32, act.prefill as u32);
    }
    if act.grant > 0 {
        plan = plan.decode_with_overshoot(lane.tag, act.grant, act.overshoot);
    }
    if act.retire {
        plan = plan.retire(lane.tag, act.publish);
    }
    plan
}

fn book<E: EngineInspect>(
    harness: &Harness<E, RestlessRings>,
    lanes: &mut [Lane],
    acts: &[(usize, Act)],
    events: &Events,
) {
    let faulted: BTreeMap<u64, u32> = events.faults.iter().map(|fault| (fault.lane_tag, fault.code)).collect();
    for &(number, act) in acts {
        let lane = &mut lanes[number];
        if act.commits
            && let Some(row) = lane.row.take()
        {
            lane.transcript.tokens.push(host_pick(&row.logits));
            lane.transcript.rows.push(row.logits.iter().map(|logit| logit.to_bits()).collect());
        }
        if faulted.contains_key(&lane.tag) {
            assert!(lane.noise, "lane {} faults: {events:?}", lane.tag);
            lane.stage = Stage::Waiting;
            continue;
        }
        if act.retire {
            lane.stage = Stage::Waiting;
            lane.row = None;
            continue;
        }
        if lane.stage == Stage::Live {
            book_progress(harness, lane, act, events);
            book_emit(harness, lane, events);
        }
    }
}

/// Where the lane stands now; prefill and shed report must add up.
fn book_progress<E: EngineInspect>(harness: &Harness<E, RestlessRings>, lane: &mut Lane, act: Act, events: &Events) {
    let before = lane.committed.min(lane.prefill_end());
    lane.committed = harness.committed(lane.tag).len();
    let ran = lane.committed.min(lane.prefill_end()) - before;
    let chunks = events.shed_entries.iter().filter(|entry| entry.kind == shed_kind::PREFILL_CHUNK);
    let shed: u64 = chunks.filter(|entry| entry.lane_tag == lane.tag).map(|entry| entry.tokens).sum();
    assert_eq!(ran as u64 + shed, act.prefill as u64, "prefill of lane {}: ran and shed", lane.tag);
}

fn book_emit<E: EngineInspect>(harness: &Harness<E, RestlessRings>, lane: &mut Lane, events: &Events) {
    let Some(emit) = events.emit_for(lane.tag) else { return };
    if lane.is_host() {
        lane.row = (emit.logits_row.generation != 0).then(|| read_row(harness, emit.logits_row));
        // Whether a decode goes with the last commit is up to the schedule, and what it says does not count.
        lane.transcript.finish = if lane.done() { finish::NONE } else { emit.finish };
        return;
    }
    lane.counts.proposed += u64::from(emit.spec.proposed);
    lane.counts.accepted += u64::from(emit.spec.accepted);
    lane.transcript.finish = emit.finish;
    lane.transcript.tokens.extend(harness.tokens_of(events, lane.tag));
    let bits = |record: &LaneLogprob| {
        let top = record.top_ids.iter().zip(&record.top_logprobs).take(record.n_top as usize);
        (record.logprob.to_bits(), top.map(|(&id, logprob)| (id, logprob.to_bits())).collect())
    };
    lane.transcript.logprobs.extend(events.logprobs.iter().filter(|record| record.lane_tag == lane.tag).map(bits));
}

fn read_row<E: EngineInspect>(harness: &Harness<E, RestlessRings>, reference: RingRef) -> Row {
    let mut logits = Vec::new();
    harness.rings.read_logits_row(&reference, &mut logits).expect("the row was just written");
    Row { nonce: reference.generation, logits }
}

/// What the host of the schedule picks: a function of the row alone.
fn host_pick(row: &[f32]) -> u32 {
    let best = row.iter().enumerate().fold(
        (0, f32::NEG_INFINITY),
        |best, (id, &logit)| {
            if logit > best.1 { (id, logit) } else { best }
        },
    );
    best.0 as u32
}

/// Lets faults strike some of the noise.
fn disturb_noise<E: EngineInspect>(harness: &mut Harness<E, RestlessRings>, lanes: &[Lane], below: &mut Below<'_>) {
    for lane in lanes.iter().filter(|lane| lane.noise && lane.stage == Stage::Live) {
        if below(20) == 0 {
            harness.engine.inject_fault(lane.tag, fault::STRATEGY);
        }
    }
}

/// Gives forks and leases back and retires one live lane; it will be admitted again. Not to the cache: that may take a cell (T-60).
fn make_room<E: EngineInspect>(
    harness: &mut Harness<E, RestlessRings>,
    lanes: &mut [Lane],
    holdings: &mut Holdings,
    below: &mut Below<'_>,
) {
    holdings.release(harness);
    let live: Vec<usize> = (0..lanes.len()).filter(|&number| lanes[number].stage == Stage::Live).collect();
    if !live.is_empty() {
        let act = Act { retire: true, ..Act::default() };
        let acts = &mut [(live[below(live.len())], act)];
        run_plan(harness, lanes, holdings, acts, 0).expect("a lane can always be retired");
    }
}
