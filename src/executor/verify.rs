#![forbid(unsafe_code)]
//! A draft that was fed is verified: the rows are picked from in order, by the code of a round without drafts (T-127, T-128).
//!
//! ```text
//!   fed        p  d1 d2 d3        p pending, d drafted
//!   rows       r0 r1 r2 r3        r0 after p, r1 after d1 ...
//!   picked     d1 d2 x            as if each had been a round of its own; x differs from d3, and ends it
//!   state      p  d1 d2 |         cut behind the last draft token that was picked; x is the pending input
//! ```
//! Rows behind the first difference are never looked at: they follow tokens that the lane did not say.

use super::evaluate::{Host, Verdict, pick_from};
use super::run::{Fatal, Held, Job, Run};
use crate::record::constant::finish;
use crate::runtime::{Answer, Runtime};

impl<R: Runtime> Run<'_, R> {
    /// Takes the tokens that the rows of a verified draft give, and cuts the state to them.
    ///
    /// The inner error is the fault code of the lane.
    ///
    /// # Errors
    /// The job holds no rows, or the runtime is broken.
    pub(super) fn verify(&mut self, job: &mut Job, held: Held) -> Result<Result<Verdict, u32>, Fatal> {
        let Run { state, events, steps, partial_emit, .. } = &mut *self;
        let lane = state.lanes.get_mut(job.lane).ok_or(Fatal)?;
        let (drafting, _) = lane.drafting_mut().ok_or(Fatal)?;
        let draft = drafting.land();
        let draft = draft.tokens();
        let answers = steps.banks.get_mut(held.bank).ok_or(Fatal)?;
        let Some(&Answer::Rows { first, .. }) = answers.as_slice().get(held.feed) else { return Err(Fatal) };
        let context = state.descriptor.max_seq_len;
        // The pending token is in, as in any round; the draft lies behind it.
        let before = lane.fed_len().saturating_sub(1);
        let mut host = Host { events, partial_emit: *partial_emit };
        let (mut taken, mut accepted) = (0, 0);
        for row in 0..=draft.len() {
            if lane.committed_len() as u64 >= context {
                job.finish = finish::LENGTH;
                lane.finish();
                break;
            }
            if job.grant_left == 0 {
                if job.overshoot_left == 0 {
                    break;
                }
                job.overshoot_left -= 1;
            }
            let row_logits = answers.row_mut(first + row).ok_or(Fatal)?;
            let pick = match pick_from(row_logits, lane, &state.exempt, &mut steps.scratch) {
                Ok(pick) => pick,
                Err(code) => return Ok(Err(code)),
            };
            if let Err(code) = host.commit(&pick, lane, job, &state.runtime, context) {
                return Ok(Err(code));
            }
            taken += 1;
            let agrees = draft.get(row) == Some(&pick.token);
            accepted += usize::from(agrees);
            if !agrees || job.finish != finish::NONE {
                break;
            }
        }
        job.proposed += draft.len() as u32;
        job.accepted += accepted as u32;
        lane.cost_mut().draft_proposed += draft.len() as u64;
        lane.cost_mut().draft_accepted += accepted as u64;
        let kept = before + taken.max(1);
        if let Some((drafting, _)) = lane.drafting_mut() {
            drafting.depth.learn(accepted);
        }
        lane.advance(kept, lane.committed_len());
        steps.drafted = true;
        if kept < before + 1 + draft.len() {
            let cut = lane.content().advanced();
            *lane.content_mut() = cut;
            if let Err(error) = state.runtime.seq_truncate(lane.sequence(), kept as u64) {
                return error.fault_code().ok_or(Fatal).map(Err);
            }
        }
        // Overshoot lengthens a verified draft; a new round starts only while grant remains (T-129).
        let goes_on = job.finish == finish::NONE && job.grant_left > 0;
        Ok(Ok(if goes_on { Verdict::GoesOn } else { Verdict::Done }))
    }
}
