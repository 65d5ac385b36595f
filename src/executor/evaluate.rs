#![forbid(unsafe_code)]
//! One job's share of a round: its answer becomes a token, or a row for the host (T-106 .. T-108).
//!
//! # Limits
//! A row that is not finite is the fault of its lane, and of that lane only: whoever picks from it, nothing is picked.

use super::lane::Lane;
use super::run::{Fatal, Job, Run};
use crate::record::LaneLogprob;
use crate::record::constant::{fault, finish};
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

/// What an answer came to.
enum Outcome {
    Token(Pick),
    /// The host has its row.
    Row,
    Fault(u32),
}

impl<R: Runtime> Run<'_, R> {
    /// Evaluates one job.
    ///
    /// # Errors
    /// The job holds no answer although its lane was fed.
    pub(super) fn evaluate(&mut self, job: &mut Job) -> Result<Verdict, Fatal> {
        let held = job.held.take();
        let Some(lane) = self.state.lanes.get_mut(job.lane) else { return Ok(Verdict::Done) };
        if lane.committed_len() as u64 >= self.state.descriptor.max_seq_len {
            lane.finish();
            job.finish = finish::LENGTH;
            return Ok(Verdict::Done);
        }
        let held = held.ok_or(Fatal)?;
        let answers = self.steps.banks.get_mut(held.bank).ok_or(Fatal)?;
        let outcome = match answers.as_slice().get(held.feed).ok_or(Fatal)? {
            &Answer::Picked(pick) => Outcome::Token(pick),
            &Answer::Fault(code) => Outcome::Fault(code),
            &Answer::Rows { first, .. } => {
                let row = answers.row_mut(first).ok_or(Fatal)?;
                read_row(row, lane, &self.state.exempt, &mut self.steps.scratch, self.rings)
            }
            Answer::Nothing => return Err(Fatal),
        };
        match outcome {
            Outcome::Token(pick) => Ok(self.commit(job, &pick)),
            Outcome::Row => Ok(Verdict::Done),
            Outcome::Fault(code) => {
                self.fault(job.lane, code);
                Ok(Verdict::Done)
            }
        }
    }

    /// Commits a picked token (T-107) and says whether the lane goes on (T-108).
    fn commit(&mut self, job: &mut Job, pick: &Pick) -> Verdict {
        let Some(lane) = self.state.lanes.get_mut(job.lane) else { return Verdict::Done };
        lane.produce(pick.token);
        if let Some(logprobs) = &pick.logprobs {
            self.events.logprobs.push(logprob_record(job.tag, logprobs));
        }
        if let Some(partial_emit) = &self.partial_emit {
            partial_emit.call(job.tag, pick.token);
        }
        job.grant_left = job.grant_left.saturating_sub(1);
        if !lane.recipe().ignore_eos && self.state.runtime.is_eos(pick.token) {
            job.finish = finish::EOS;
        } else if lane.committed_len() as u64 >= self.state.descriptor.max_seq_len {
            job.finish = finish::LENGTH;
        } else if job.grant_left > 0 {
            return Verdict::GoesOn;
        }
        if job.finish != finish::NONE {
            lane.finish();
        }
        Verdict::Done
    }
}

/// Picks from a row, or gives it to the host as it is.
fn read_row(row: &mut [f32], lane: &mut Lane, exempt: &[u32], scratch: &mut Scratch, rings: &mut dyn Rings) -> Outcome {
    if !lane.recipe().is_host() {
        let request = lane.recipe().request(lane.committed(), lane.draw_position(), exempt);
        return match sample::pick(row, &request, scratch) {
            Ok(pick) => Outcome::Token(pick),
            Err(error) => Outcome::Fault(error.fault_code()),
        };
    }
    if !sample::row_is_finite(row) {
        return Outcome::Fault(fault::INTERNAL);
    }
    match rings.write_logits_row(row) {
        Ok(reference) => {
            lane.wait_for_commit(reference);
            Outcome::Row
        }
        Err(_) => Outcome::Fault(fault::REF_SPAN_OOB),
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
