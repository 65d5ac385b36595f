#![forbid(unsafe_code)]
//! The first part of decode: tails that lanes had generated before they were preempted are fed again (T-97 .. T-101).
//!
//! A replayed token goes in alone, as it once did, so that its state is made by the same steps. It costs a unit of grant,
//! and nothing else: no emit, no draw, no callback.
//!
//! ```text
//!   pass:   every replaying lane with grant left feeds its next tail token
//!           the last one asks: its answer is the lane's first new token ...
//!           ... unless it took the last unit of grant; then it is held back, and the next tick feeds it for its answer
//!   until no lane replays, or somebody wants the tick to end (not before the second pass)
//! ```

use super::lane::Phase;
use super::run::{Fatal, Job, Portion, Run};
use crate::runtime::Runtime;

/// Replays the tails of the active jobs. Jobs whose tail is not through, or whose grant is spent, stop being active.
///
/// # Errors
/// The runtime is broken.
pub(super) fn replay<R: Runtime>(jobs: &mut [Job], run: &mut Run<'_, R>) -> Result<(), Fatal> {
    let mut first = true;
    loop {
        queue_pass(jobs, run);
        if run.steps.portions.is_empty() || (!first && run.rings.yield_requested()) {
            break;
        }
        first = false;
        for portion in &run.steps.portions {
            let job = portion.job.and_then(|job| jobs.get_mut(job)).ok_or(Fatal)?;
            job.grant_left -= 1;
        }
        run.step(jobs)?;
    }
    for job in jobs.iter_mut().filter(|job| job.active) {
        let through = run.state.lanes.get(job.lane).is_some_and(|lane| lane.phase() != Phase::Replaying);
        job.active = through && job.grant_left > 0;
    }
    Ok(())
}

/// Lists what each replaying lane with grant left feeds next.
fn queue_pass<R: Runtime>(jobs: &[Job], run: &mut Run<'_, R>) {
    run.steps.portions.clear();
    for (number, job) in jobs.iter().enumerate().filter(|(_, job)| job.active && job.grant_left > 0) {
        let lane = run.state.lanes.get(job.lane).filter(|lane| lane.phase() == Phase::Replaying);
        let Some(lane) = lane else { continue };
        let committed = lane.committed_len() + 1;
        let last = committed == lane.prompt_len();
        let held_back = last && job.grant_left == 1;
        run.steps.portions.push(Portion {
            lane: job.lane,
            job: Some(number),
            fed: if held_back { committed - 1 } else { committed },
            committed,
            asks: last && !held_back,
        });
    }
}
