#![forbid(unsafe_code)]
//! Stage 4, settle: the accepted plan takes hold; retires, commits and admits, in this order (T-4, T-70 .. T-82).
//!
//! # Limits
//! A publishing retire frees its state like any other, and leaves nothing behind to start from: the prefix cache is not built
//! yet, as `SPACE_FLAG_NO_PREFIX_CACHE` says.

use super::lane::Lane;
use super::plan::Party;
use super::recipe::Recipe;
use super::reserve::Reserved;
use super::run::{Fatal, Job, Run};
use super::validate::{Chunk, Valid};
use crate::record::constant::{admit_status, exactness, finish};
use crate::record::{AdmitResult, LaneAdmit};
use crate::runtime::Runtime;

/// A plan whose lanes are all where it wants them; what is left is work.
pub(super) struct Settled<'s> {
    pub(super) plan_seq: u64,
    /// One per prefill record.
    pub(super) chunks: &'s [Chunk],
    pub(super) parties: &'s [Party],
    /// One per decode record, in plan order.
    pub(super) jobs: &'s mut Vec<Job>,
}

/// Accepts the plan and carries out what needs no step.
///
/// # Errors
/// No sequence could be made although the slots were counted.
pub(super) fn settle<'s, R: Runtime>(
    reserved: Reserved<'s>,
    jobs: &'s mut Vec<Job>,
    run: &mut Run<'_, R>,
) -> Result<Settled<'s>, Fatal> {
    let mut valid = reserved.into_plan();
    let plan_seq = valid.plan.header.plan_seq;
    run.state.plan_seq = Some(plan_seq);
    run.state.tick_count += 1;
    run.events.begin();
    retire(&valid, run);
    commit(&valid, run)?;
    admit(&mut valid, run)?;
    list_jobs(&valid, jobs, run)?;
    Ok(Settled { plan_seq, chunks: valid.chunks, parties: valid.plan.parties, jobs })
}

/// Ends lanes; of a faulted one only the mark is left to clear (T-71).
fn retire<R: Runtime>(valid: &Valid<'_>, run: &mut Run<'_, R>) {
    for retire in valid.plan.retires {
        let standing = valid.plan.parties.get(retire.party).and_then(|party| party.standing);
        match standing.and_then(|standing| standing.lane).and_then(|lane| run.state.lanes.remove(lane)) {
            Some(lane) => run.state.runtime.seq_free(lane.sequence()),
            None => {
                run.state.faulted.remove(&retire.record.lane_tag);
            }
        }
    }
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

/// Starts lanes, in plan order (T-77, T-81). Every admit that passed validation is admitted (T-82).
fn admit<R: Runtime>(valid: &mut Valid<'_>, run: &mut Run<'_, R>) -> Result<(), Fatal> {
    for (number, admit) in valid.plan.admits.iter().enumerate() {
        let lane = start_lane(&admit.record, valid.prompts.of(number), run)?;
        let tag = lane.tag();
        run.state.faulted.remove(&tag);
        let id = run.state.lanes.insert(lane);
        let party = valid.plan.parties.get_mut(admit.party);
        party.and_then(|party| party.standing.as_mut()).ok_or(Fatal)?.lane = Some(id);
        run.events.admit_results.push(AdmitResult {
            lane_tag: tag,
            status: admit_status::ADMITTED,
            reject_code: 0,
            cert_id: 0,
            granted_class: exactness::SEED_PATH_INVARIANT,
            _pad0: [0; 3],
        });
    }
    Ok(())
}

fn start_lane<R: Runtime>(record: &LaneAdmit, prompt: &[u32], run: &mut Run<'_, R>) -> Result<Lane, Fatal> {
    let sequence = run.state.runtime.seq_create().map_err(|_| Fatal)?;
    let recipe = Recipe::new(record, run.state.bias.get(record.logit_bias_handle).cloned());
    Ok(Lane::new(record.lane_tag, sequence, prompt, record.decode_replay as usize, recipe))
}

/// One job per decode record.
fn list_jobs<R: Runtime>(valid: &Valid<'_>, jobs: &mut Vec<Job>, run: &Run<'_, R>) -> Result<(), Fatal> {
    jobs.clear();
    for decode in valid.plan.decodes {
        let standing = valid.plan.parties.get(decode.party).and_then(|party| party.standing);
        let id = standing.and_then(|standing| standing.lane).ok_or(Fatal)?;
        jobs.push(Job {
            tag: decode.record.lane_tag,
            lane: id,
            grant_left: decode.record.max_new_tokens.into(),
            emit_from: run.state.lanes.get(id).ok_or(Fatal)?.known_len(),
            finish: finish::NONE,
            held: None,
            active: false,
        });
    }
    Ok(())
}
