#![forbid(unsafe_code)]
//! Stage 6, decode: set-up, replayed tails, rounds (T-96 .. T-109).
//!
//! ```text
//!   set-up      which jobs want tokens at all
//!   replay      tails, one token a step (replay.rs)
//!   round:      feed the pending token of every job that holds no answer yet, and a draft behind it (draft.rs)
//!               where it can be, begin the round behind it, on tokens that the runtime picks and feeds itself (ahead.rs)
//!               evaluate every job, by ascending tag (evaluate.rs)
//!   until no job is left, or somebody wants the tick to end (never before the first evaluation)
//! ```
//!
//! A round is one step: a plan never decodes more lanes than the runtime takes at once (T-15, T-19).

use std::time::Instant;

use super::draft;
use super::evaluate::Verdict;
use super::prefill::Prefilled;
use super::replay::replay;
use super::run::{Fatal, Job, Portion, Run};
use crate::runtime::Runtime;

/// A plan whose work is done; what is left is to tell.
pub(super) struct Finished<'s> {
    pub(super) plan_seq: u64,
    pub(super) jobs: &'s [Job],
    pub(super) prefill_ns: u64,
    pub(super) decode_ns: u64,
}

/// Runs the jobs.
///
/// # Errors
/// The runtime is broken.
pub(super) fn decode<'s, R: Runtime>(prefilled: Prefilled<'s>, run: &mut Run<'_, R>) -> Result<Finished<'s>, Fatal> {
    let Prefilled { plan_seq, jobs, yielded, prefill_ns } = prefilled;
    let mut decode_ns = 0;
    if !jobs.is_empty() {
        let started = Instant::now();
        let load = set_up(jobs, yielded, run)?;
        replay(jobs, run)?;
        match load.speculates {
            true => run_timed(jobs, load, run)?,
            false => run_rounds(jobs, false, run)?,
        }
        decode_ns = u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
    }
    run.steps.banks_kept = 0;
    Ok(Finished { plan_seq, jobs, prefill_ns, decode_ns })
}

/// How much a tick decodes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct WorkLoad {
    /// Lanes that are not HOST and have grant.
    pub(super) lanes: u32,
    /// Whether one of them speculates.
    pub(super) speculates: bool,
}

/// Says which jobs are active, and lets injected faults strike (T-96).
fn set_up<R: Runtime>(jobs: &mut [Job], yielded: bool, run: &mut Run<'_, R>) -> Result<WorkLoad, Fatal> {
    let mut load = WorkLoad::default();
    for job in jobs {
        let Some(lane) = run.state.lanes.get_mut(job.lane) else { continue };
        if let Some(code) = lane.take_injected_fault() {
            run.fault(job.lane, code);
            continue;
        }
        // A prompt that was cut short for want of workspace ends before its lane may decode.
        let cut = lane.committed_len() < lane.prefill_end() || (yielded && lane.committed_len() < lane.prompt_len());
        job.active = job.grant_left > 0 && !cut;
        if job.active && !lane.recipe().is_host() {
            load.lanes += 1;
            load.speculates |= lane.drafting().is_some();
        }
    }
    Ok(load)
}

/// Rounds that may draft, with what the gate learns from them (R-45).
fn run_timed<R: Runtime>(jobs: &mut [Job], load: WorkLoad, run: &mut Run<'_, R>) -> Result<(), Fatal> {
    let counts = draft::batches(load, &run.state.descriptor);
    let from_prefill = jobs.iter().filter(|job| job.held.is_some()).count();
    let known = |jobs: &[Job], run: &Run<'_, R>| -> usize {
        jobs.iter().filter_map(|job| Some(run.state.lanes.get(job.lane)?.known_len())).sum()
    };
    let before = known(jobs, run);
    run.steps.drafted = false;
    let started = Instant::now();
    run_rounds(jobs, draft::drafts(load, run.state), run)?;
    let secs = started.elapsed().as_secs_f64();
    let tokens = known(jobs, run).saturating_sub(before + from_prefill);
    if counts {
        run.state.speculation.gate_mut().record(load.lanes, run.steps.drafted, tokens as u64, secs);
    }
    Ok(())
}

/// Rounds until every job is done or the tick should end; with drafts in them, or without.
fn run_rounds<R: Runtime>(jobs: &mut [Job], drafts: bool, run: &mut Run<'_, R>) -> Result<(), Fatal> {
    let mut active = std::mem::take(&mut run.steps.active);
    run.look_ahead(drafts)?;
    let is_active = |&number: &usize| jobs.get(number).is_some_and(|job| job.active);
    // The first round feeds in plan order, the others by ascending tag (T-104).
    active.clear();
    active.extend((0..jobs.len()).filter(is_active));
    queue_round(&active, jobs, run)?;
    sort_by_tag(&mut run.steps.by_tag, jobs);
    active.clear();
    active.extend(run.steps.by_tag.iter().copied().filter(is_active));
    while !active.is_empty() {
        if !run.steps.portions.is_empty() {
            if drafts {
                run.draft_round(&active, jobs)?;
            }
            run.run_round(&active, jobs)?;
        }
        evaluate_round(&mut active, jobs, run)?;
        if !active.is_empty() {
            let yields = run.rings.yield_requested();
            run.note_yield(drafts, yields);
            if yields {
                break;
            }
        }
        queue_round(&active, jobs, run)?;
    }
    run.take_back()?;
    run.steps.active = active;
    Ok(())
}

/// Makes `order` the numbers of the jobs by ascending tag. If it is that already, it costs one walk.
fn sort_by_tag(order: &mut Vec<usize>, jobs: &[Job]) {
    let tag = |&number: &usize| jobs.get(number).map(|job| job.tag);
    if order.len() != jobs.len() || !order.is_sorted_by_key(tag) {
        order.clear();
        order.extend(0..jobs.len());
        order.sort_unstable_by_key(tag);
    }
}

/// Lists what is fed: the pending token of every job without an answer (T-97).
///
/// A lane whose context is full is not fed: its evaluation ends it, whatever the answer would have been (T-106).
fn queue_round<R: Runtime>(active: &[usize], jobs: &[Job], run: &mut Run<'_, R>) -> Result<(), Fatal> {
    run.steps.portions.clear();
    for &number in active {
        let job = jobs.get(number).ok_or(Fatal)?;
        let lane = run.state.lanes.get(job.lane).ok_or(Fatal)?;
        let full = lane.committed_len() as u64 >= run.state.descriptor.max_seq_len;
        if job.held.is_some() || full {
            continue;
        }
        if !lane.has_pending_input() {
            return Err(Fatal);
        }
        let committed = lane.committed_len();
        let portion = Portion { lane: job.lane, job: Some(number), fed: committed, committed, asks: true };
        run.steps.portions.push(portion);
    }
    Ok(())
}

/// Evaluates the active jobs in their order and keeps those that go on.
fn evaluate_round<R: Runtime>(active: &mut Vec<usize>, jobs: &mut [Job], run: &mut Run<'_, R>) -> Result<(), Fatal> {
    let mut kept = 0;
    for place in 0..active.len() {
        let number = *active.get(place).ok_or(Fatal)?;
        let job = jobs.get_mut(number).ok_or(Fatal)?;
        if run.evaluate(job)? == Verdict::GoesOn {
            active.swap(kept, place);
            kept += 1;
        }
    }
    active.truncate(kept);
    run.strike();
    run.steps.banks_kept = 0;
    Ok(())
}
