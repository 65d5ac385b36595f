#![forbid(unsafe_code)]
//! Stage 5, prefill: prompt tokens, in steps (T-84 .. T-94).
//!
//! ```text
//!   chunks in plan order, each what the budget let through
//!   until none is left:
//!       fill a step: lane after lane gives what fits, at most max_batch lanes
//!       run it
//!       somebody wants the tick to end?  -> the rest is dropped and reported
//! ```
//!
//! A lane *completes* when its last prompt token is in the step. If it decodes in this tick, that token is fed and its answer
//! gives the first token; else the token is held back as pending input, for the step of its first decode.
//!
//! # Not here
//! The replayed tail is not prefill: `replay.rs`. Lengths of steps: `pace.rs`.

use std::time::Instant;

use super::lanes::Lanes;
use super::run::{Fatal, Job, Portion, Run};
use super::settle::Settled;
use super::validate::Chunk;
use crate::runtime::Runtime;

/// A plan whose prompts are in, as far as they came.
pub(super) struct Prefilled<'s> {
    pub(super) plan_seq: u64,
    pub(super) jobs: &'s mut Vec<Job>,
    /// The tick was asked to end before all prompts were in: lanes without their whole prompt give nothing (T-91).
    pub(super) yielded: bool,
    pub(super) prefill_ns: u64,
}

/// A place in the work list.
#[derive(Clone, Copy, Default)]
struct Cursor {
    /// The chunk whose turn it is.
    chunk: usize,
    /// Its tokens that are done.
    done: u32,
}

/// Runs the chunks.
///
/// # Errors
/// The runtime is broken.
pub(super) fn prefill<'s, R: Runtime>(mut settled: Settled<'s>, run: &mut Run<'_, R>) -> Result<Prefilled<'s>, Fatal> {
    choose_sync(run);
    let mut yielded = false;
    let mut prefill_ns = 0;
    if !settled.chunks.is_empty() {
        let started = Instant::now();
        for chunk in settled.chunks.iter().filter(|chunk| chunk.cut > 0) {
            let tag = settled.parties.get(chunk.party).ok_or(Fatal)?.tag;
            run.events.drop_chunk(tag, chunk.cut, chunk.short_of);
        }
        let tokens;
        (tokens, yielded) = run_chunks(&mut settled, run)?;
        let took = started.elapsed();
        prefill_ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        run.state.pace.record(tokens, took.as_secs_f64());
    }
    Ok(Prefilled { plan_seq: settled.plan_seq, jobs: settled.jobs, yielded, prefill_ns })
}

/// Tells the runtime once per tick whether to wait its steps out (T-87).
fn choose_sync<R: Runtime>(run: &mut Run<'_, R>) {
    let limit = run.state.descriptor.prefill_step_tokens;
    if limit != 0 {
        let wait = run.state.pace.waits_steps_out(limit, run.rings.latency_wanted());
        run.state.runtime.sync_steps(wait);
    }
}

/// Steps until nothing is left or the tick should end; gives the tokens that ran and whether it was asked to end.
fn run_chunks<R: Runtime>(settled: &mut Settled<'_>, run: &mut Run<'_, R>) -> Result<(u64, bool), Fatal> {
    let mut cursor = Cursor::default();
    let mut tokens = 0;
    let mut due = Vec::new();
    loop {
        let filled = fill_step(settled, &mut cursor, run)?;
        if run.steps.portions.is_empty() {
            return Ok((tokens, false));
        }
        run.checkpoints_due(&mut due)?;
        if run.step(settled.jobs)? {
            tokens += filled;
            run.checkpoint(&due, &mut settled.spare_cells);
        }
        let Run { state, rings, events, .. } = &mut *run;
        let mut rest = unrun(settled, cursor, &state.lanes).peekable();
        if rest.peek().is_some() && rings.yield_requested() {
            rest.for_each(|(tag, left)| events.drop_chunk(tag, left, 0));
            return Ok((tokens, true));
        }
    }
}

/// Puts the next step together and gives its number of tokens (T-85, T-88).
fn fill_step<R: Runtime>(settled: &Settled<'_>, cursor: &mut Cursor, run: &mut Run<'_, R>) -> Result<u64, Fatal> {
    let limit = run.state.descriptor.prefill_step_tokens;
    let step_tokens = run.state.pace.step_tokens(limit, run.rings.latency_wanted());
    let lanes_max = run.state.descriptor.max_batch.max(1) as usize;
    let mut room = step_tokens;
    run.steps.portions.clear();
    while room > 0 && run.steps.portions.len() < lanes_max {
        let Some(chunk) = settled.chunks.get(cursor.chunk) else { break };
        let left = chunk.take - cursor.done;
        match portion(settled, chunk, u64::from(left).min(room), run) {
            Some(portion) if left > 0 => {
                let take = u64::from(left).min(room);
                run.steps.portions.push(portion);
                room -= take;
                // At most `left`, which is a `u32`.
                cursor.done += take as u32;
            }
            _ => *cursor = Cursor { chunk: cursor.chunk + 1, done: 0 },
        }
    }
    Ok(step_tokens - room)
}

/// What a lane takes of a step when it gives `take` tokens; none when the lane is gone (T-89).
///
/// A runtime whose state is cut only at its head holds the last token back always, so that its state ends one short of the
/// prompt and can serve it again (T-90).
fn portion<R: Runtime>(settled: &Settled<'_>, chunk: &Chunk, take: u64, run: &Run<'_, R>) -> Option<Portion> {
    let party = settled.parties.get(chunk.party)?;
    let id = party.standing?.lane?;
    let lane = run.state.lanes.get(id)?;
    // Bounded by the length of the prompt, which is in memory.
    let committed = lane.committed_len() + take as usize;
    let completes = committed == lane.prompt_len();
    let job = party.decode.map(|job| job as usize);
    let decodes = job.and_then(|job| settled.jobs.get(job)).is_some_and(|job| job.grant_left > 0);
    let asks = completes && decodes && run.state.descriptor.truncate_partial;
    let fed = if completes && !asks { committed - 1 } else { committed };
    Some(Portion { lane: id, job, fed, committed, asks })
}

/// Tag and tokens left of every chunk that the cursor has not passed and whose lane lives.
fn unrun<'c>(settled: &'c Settled<'_>, cursor: Cursor, lanes: &'c Lanes) -> impl Iterator<Item = (u64, u32)> {
    let done = std::iter::once(cursor.done).chain(std::iter::repeat(0));
    let rest = settled.chunks.get(cursor.chunk..).unwrap_or_default();
    rest.iter().zip(done).filter_map(|(chunk, done)| {
        let party = settled.parties.get(chunk.party)?;
        let left = chunk.take - done;
        (left > 0 && lanes.get(party.standing?.lane?).is_some()).then_some((party.tag, left))
    })
}
