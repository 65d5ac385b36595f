#![forbid(unsafe_code)]
//! Stage 4, settle: the accepted plan takes hold (T-4, T-5, T-70 .. T-82).
//!
//! ```text
//!   chosen entries leave the pool          cache.rs
//!   retires: publish or free               retire.rs
//!   the cache settles, every tick
//!   commits
//!   takeovers, then admits, in plan order  admit.rs
//! ```
//! What the cache lost by then is in the shed report, with what it lost since the last tick.

mod admit;
mod retire;

use super::plan::Party;
use super::reserve::Reserved;
use super::run::{Fatal, Job, Run};
use super::validate::{Chunk, Valid};
use crate::runtime::Runtime;

/// A plan whose lanes are all where it wants them; what is left is work.
pub(super) struct Settled<'s> {
    pub(super) plan_seq: u64,
    /// One per prefill record.
    pub(super) chunks: &'s [Chunk],
    pub(super) parties: &'s [Party],
    /// One per decode record of a lane that was admitted, in plan order; parties know theirs.
    pub(super) jobs: &'s mut Vec<Job>,
    /// Cells that nobody in this plan will need.
    pub(super) spare_cells: u64,
}

/// Accepts the plan and carries out what needs no step of the lanes that go on.
///
/// # Errors
/// The runtime is broken, or refuses what was counted.
pub(super) fn settle<'s, R: Runtime>(
    reserved: Reserved<'s>,
    jobs: &'s mut Vec<Job>,
    run: &mut Run<'_, R>,
) -> Result<Settled<'s>, Fatal> {
    let Reserved { mut valid, evictions, takeovers, spare_cells, short_of, .. } = reserved;
    let plan_seq = valid.plan.header.plan_seq;
    run.state.plan_seq = Some(plan_seq);
    run.state.tick_count += 1;
    run.events.begin();
    let mut losses = std::mem::take(&mut run.state.losses);
    for &entry in evictions {
        let before = losses.len();
        run.state.leave_pool(entry, &mut losses);
        losses.iter_mut().skip(before).for_each(|loss| loss.reason = short_of);
    }
    retire::retire(&valid, run)?;
    run.state.settle_cache(&mut losses);
    // Also what the runtime failed to export meanwhile.
    losses.append(&mut run.state.losses);
    losses.drain(..).for_each(|loss| run.events.lose(0, loss));
    // The list goes back for what is lost between this tick and the next.
    run.state.losses = losses;
    commit(&valid, run)?;
    admit::admit(&mut valid, takeovers, run)?;
    list_jobs(&mut valid, jobs, run)?;
    Ok(Settled { plan_seq, chunks: valid.chunks, parties: valid.plan.parties, jobs, spare_cells })
}

/// Appends the tokens that the host picked (T-75).
fn commit<R: Runtime>(valid: &Valid<'_>, run: &mut Run<'_, R>) -> Result<(), Fatal> {
    for commit in valid.plan.commits {
        let standing = valid.plan.parties.get(commit.party).and_then(|party| party.standing);
        let lane = standing.and_then(|standing| run.state.lanes.get_mut(standing.lane?)).ok_or(Fatal)?;
        lane.produce(commit.record.token_id);
    }
    Ok(())
}

/// One job per decode record.
fn list_jobs<R: Runtime>(valid: &mut Valid<'_>, jobs: &mut Vec<Job>, run: &Run<'_, R>) -> Result<(), Fatal> {
    jobs.clear();
    for decode in valid.plan.decodes {
        let party = valid.plan.parties.get_mut(decode.party).ok_or(Fatal)?;
        // What a rejected lane was to decode leaves no job, so the numbers of the jobs may differ from those of the records.
        party.decode = (!party.rejected).then_some(jobs.len() as u32);
        if party.rejected {
            continue;
        }
        let id = party.standing.and_then(|standing| standing.lane).ok_or(Fatal)?;
        jobs.push(Job {
            tag: decode.record.lane_tag,
            lane: id,
            grant_left: decode.record.max_new_tokens.into(),
            overshoot_left: decode.record.overshoot.into(),
            emit_from: run.state.lanes.get(id).ok_or(Fatal)?.known_len(),
            ..Job::default()
        });
    }
    Ok(())
}
