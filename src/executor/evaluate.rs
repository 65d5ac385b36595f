#![forbid(unsafe_code)]
//! One job's share of a round: its answer becomes a token, or a row for the host (T-106 .. T-108).
//!
//! # Limits
//! A row that is not finite is the fault of its lane, and of that lane only: whoever picks from it, nothing is picked.

use super::events::Events;
use super::lane::Lane;
use super::run::{Fatal, Job, Run};
use crate::record::constant::{fault, finish};
use crate::record::{LaneLogprob, PartialEmit};
use crate::ring::Rings;
use crate::runtime::{Answer, Runtime};
use crate::sample::{self, Logprobs, Pick, Scratch};

/// Whether a job wants another round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Its newest token is to be fed.
    GoesOn,
    /// It is done for this tick, or its lane is gone.
    Done,
}

impl<R: Runtime> Run<'_, R> {
    /// Evaluates one job.
    ///
    /// # Errors
    /// The job holds no answer although its lane was fed.
    pub(super) fn evaluate(&mut self, job: &mut Job) -> Result<Verdict, Fatal> {
        let Run { state, rings, events, steps, partial_emit, .. } = &mut *self;
        let held = job.held.take();
        let Some(lane) = state.lanes.get_mut(job.lane) else { return Ok(Verdict::Done) };
        let context = state.descriptor.max_seq_len;
        if lane.committed_len() as u64 >= context {
            lane.finish();
            job.finish = finish::LENGTH;
            return Ok(Verdict::Done);
        }
        let held = held.ok_or(Fatal)?;
        if lane.drafting().is_some_and(|drafting| drafting.feed().is_some()) {
            let outcome = self.verify(job, held)?;
            return Ok(self.settle_job(job, outcome));
        }
        let answers = steps.banks.get_mut(held.bank).ok_or(Fatal)?;
        let mut host = Host { events, partial_emit: *partial_emit };
        let outcome = match answers.as_slice().get(held.feed).ok_or(Fatal)? {
            Answer::Picked(pick) => host.commit(pick, lane, job, &state.runtime, context),
            &Answer::Fault(code) => Err(code),
            &Answer::Rows { first, .. } => {
                let row = answers.row_mut(first).ok_or(Fatal)?;
                match lane.recipe().is_host() {
                    true => give_row(row, lane, &mut **rings).map(|()| Verdict::Done),
                    false => pick_from(row, lane, &state.exempt, &mut steps.scratch)
                        .and_then(|pick| host.commit(&pick, lane, job, &state.runtime, context)),
                }
            }
            Answer::Nothing | Answer::Again => return Err(Fatal),
        };
        Ok(self.settle_job(job, outcome))
    }

    /// Faults the lane of a job that failed.
    fn settle_job(&mut self, job: &Job, outcome: Result<Verdict, u32>) -> Verdict {
        outcome.unwrap_or_else(|code| {
            match code {
                // After the round, so that its other lanes are as if nothing had happened (T-134).
                fault::GRAMMAR_OVERFLOW => self.steps.struck.push(job.lane),
                _ => self.fault(job.lane, code),
            }
            Verdict::Done
        })
    }

    /// Faults the lanes whose grammar failed in the round that was evaluated (T-134).
    pub(super) fn strike(&mut self) {
        while let Some(lane) = self.steps.struck.pop() {
            self.fault(lane, fault::GRAMMAR_OVERFLOW);
        }
    }
}

/// Picks a token from the lane's row; the error is a fault code.
pub(super) fn pick_from(row: &mut [f32], lane: &mut Lane, exempt: &[u32], scratch: &mut Scratch) -> Result<Pick, u32> {
    lane.prepare_mask();
    let request = lane.request(lane.committed_len(), exempt);
    sample::pick(row, &request, scratch).map_err(|error| error.fault_code())
}

/// Gives the host the row as it is; the error is a fault code.
fn give_row(row: &[f32], lane: &mut Lane, rings: &mut dyn Rings) -> Result<(), u32> {
    if !sample::row_is_finite(row) {
        return Err(fault::INTERNAL);
    }
    let reference = rings.write_logits_row(row).map_err(|_| fault::REF_SPAN_OOB)?;
    lane.wait_for_commit(reference);
    Ok(())
}

/// Who hears of a token when it is committed.
pub(super) struct Host<'e> {
    pub(super) events: &'e mut Events,
    pub(super) partial_emit: Option<PartialEmit>,
}

impl Host<'_> {
    /// Commits a picked token (T-107) and says whether the lane goes on (T-108); the error is a fault code.
    pub(super) fn commit<R: Runtime>(
        &mut self,
        pick: &Pick,
        lane: &mut Lane,
        job: &mut Job,
        runtime: &R,
        context: u64,
    ) -> Result<Verdict, u32> {
        lane.produce(pick.token);
        let complete = lane.accept(pick.token).map_err(|_| fault::GRAMMAR_OVERFLOW)?;
        if let Some(logprobs) = &pick.logprobs {
            self.events.logprobs.push(logprob_record(job.tag, logprobs));
        }
        if let Some(partial_emit) = &self.partial_emit {
            partial_emit.call(job.tag, pick.token);
        }
        job.grant_left = job.grant_left.saturating_sub(1);
        if !lane.recipe().ignore_eos && runtime.is_eos(pick.token) {
            job.finish = finish::EOS;
        } else if complete {
            job.finish = finish::GRAMMAR;
        } else if lane.committed_len() as u64 >= context {
            job.finish = finish::LENGTH;
        } else if job.grant_left > 0 {
            return Ok(Verdict::GoesOn);
        }
        if job.finish != finish::NONE {
            lane.finish();
        }
        Ok(Verdict::Done)
    }
}

fn logprob_record(lane_tag: u64, logprobs: &Logprobs) -> LaneLogprob {
    LaneLogprob {
        lane_tag,
        logprob: logprobs.logprob,
        n_top: logprobs.n_top,
        top_ids: logprobs.top_ids,
        top_logprobs: logprobs.top_logprobs,
    }
}
