//! Replayed tails, rounds, and what comes of them (T-96 .. T-109, T-140); and the whole tick.

use ictus::record::Status;
use ictus::record::constant::{fault, finish, sampling_flag};
use ictus::runtime::RuntimeError;

use super::settle::Fatal;
use super::{Emit, Model, Predicted};
use crate::plan::Plan;
use crate::shape::END_IDS;

/// One decode record at work.
#[derive(Clone, Debug)]
struct Job {
    tag: u64,
    left: usize,
    overshoot: usize,
    /// What this round feeds behind the pending token.
    draft: Vec<u32>,
    proposed: u32,
    accepted: u32,
    tokens: Vec<u32>,
    finish: u32,
    row: Option<(u64, Vec<f32>)>,
    active: bool,
    /// Its grammar failed in this round (T-134).
    struck: bool,
}

impl Model {
    /// T-1 .. T-5: the plan is refused, or runs.
    pub(crate) fn tick(&mut self, plan: &Plan, yields: bool) -> Result<Predicted, Status> {
        if self.broken {
            return Err(Status::Fatal);
        }
        let valid = self.validate(plan)?;
        let decided = self.decide_capacity(plan, &valid)?;
        self.plan_seq = Some(plan.seq); // T-4
        self.now += 1;
        self.spare = decided.spare;
        let mut out = Predicted::default();
        let ran = self
            .settle(plan, &decided, &mut out)
            .and_then(|()| self.prefill(plan, &valid, yields, &mut out))
            .and_then(|cut| self.decode(plan, cut, yields, &mut out));
        match ran {
            Ok(()) => {
                self.run_ops();
                out.completions = self.take_completions();
                Ok(out)
            }
            Err(Fatal) => {
                self.broken = true;
                Err(Status::Fatal)
            }
        }
    }

    fn decode(&mut self, plan: &Plan, cut: bool, yields: bool, out: &mut Predicted) -> Result<(), Fatal> {
        let mut jobs = Vec::new();
        for &(tag, grant, overshoot) in &plan.decodes {
            let Some(lane) = self.lane(tag).cloned() else { continue };
            if let Some(code) = lane.doomed {
                self.fault(tag, code, out); // T-96
                continue;
            }
            let short = lane.committed.len() < lane.prompt.len();
            let active = grant > 0 && !(cut && short); // T-91, T-96
            jobs.push(Job {
                tag,
                left: grant as usize,
                overshoot: overshoot as usize,
                draft: vec![],
                proposed: 0,
                accepted: 0,
                tokens: vec![],
                finish: finish::NONE,
                row: None,
                active,
                struck: false,
            });
        }
        self.replay(&mut jobs, yields, out)?;
        self.rounds(&mut jobs, yields, out)?;
        // A record belongs to an emitted token, and a faulted lane emits none (T-122, T-133).
        let Predicted { logprobs, faults, .. } = out;
        logprobs.retain(|(tag, ..)| faults.iter().all(|(faulted, _)| faulted != tag));
        for job in &jobs {
            if let Some(lane) = self.lanes.iter_mut().find(|lane| lane.tag == job.tag) {
                lane.has_row = false;
                let (tag, tokens, finish) = (job.tag, job.tokens.clone(), job.finish);
                let drafts = (job.proposed, job.accepted, u32::from(job.proposed > 0));
                out.emits.push(Emit { tag, tokens, finish, row: job.row.clone(), drafts });
            }
        }
        for lane in &mut self.lanes {
            lane.has_row = false;
        }
        Ok(())
    }

    /// T-97 .. T-101.
    fn replay(&mut self, jobs: &mut Vec<Job>, yields: bool, out: &mut Predicted) -> Result<(), Fatal> {
        for pass in 0.. {
            let replaying = |model: &Self, job: &Job| {
                let lane = model.lane(job.tag).expect("a live lane");
                job.active && job.left > 0 && lane.committed.len() < lane.prompt.len()
            };
            let queue: Vec<u64> = jobs.iter().filter(|job| replaying(self, job)).map(|job| job.tag).collect();
            if queue.is_empty() {
                break;
            }
            if pass > 0 && yields {
                for job in jobs.iter_mut().filter(|job| queue.contains(&job.tag)) {
                    job.active = false; // T-100
                }
                break;
            }
            let mut feeds = Vec::new();
            for job in jobs.iter_mut().filter(|job| queue.contains(&job.tag)) {
                job.left -= 1;
                let lane = self.lane_mut(job.tag);
                let token = lane.prompt[lane.committed.len()];
                lane.committed.push(token);
                let last = lane.committed.len() == lane.prompt.len();
                if last && job.left == 0 {
                    lane.pending = true; // T-99
                } else {
                    lane.has_row = last;
                    lane.cost.answered += u64::from(last);
                    feeds.push((job.tag, lane.seq, vec![token]));
                }
            }
            self.feed_lanes(&feeds, jobs, out)?;
        }
        for job in jobs.iter_mut() {
            job.active &= job.left > 0;
        }
        Ok(())
    }

    /// Feeds tokens to each of these lanes; a failure is the fault of all of them (T-132).
    fn feed_lanes(
        &mut self,
        feeds: &[(u64, u64, Vec<u32>)],
        jobs: &mut Vec<Job>,
        out: &mut Predicted,
    ) -> Result<(), Fatal> {
        for chunk in feeds.chunks(self.shape.batch) {
            let step: Vec<(u64, Vec<u32>)> = chunk.iter().map(|(_, seq, tokens)| (*seq, tokens.clone())).collect();
            if let Err(error) = self.step(&step) {
                // A runtime that says it verifies drafts, and then does not (T-126).
                if error == RuntimeError::Unsupported && chunk.iter().any(|(.., tokens)| tokens.len() > 1) {
                    return Err(Fatal);
                }
                let tags: Vec<u64> = chunk.iter().map(|(tag, ..)| *tag).collect();
                self.fault_all(&tags, error, out)?;
                jobs.retain(|job| !tags.contains(&job.tag));
            }
        }
        Ok(())
    }

    /// T-104 .. T-109.
    fn rounds(&mut self, jobs: &mut Vec<Job>, yields: bool, out: &mut Predicted) -> Result<(), Fatal> {
        let drafts = self.may_draft(jobs);
        let mut feed_order: Vec<u64> = jobs.iter().filter(|job| job.active).map(|job| job.tag).collect();
        while !feed_order.is_empty() {
            let mut feeds = Vec::new();
            for &tag in &feed_order {
                let context = self.shape.context;
                let lane = self.lane_mut(tag);
                // A full lane finishes without a feed: T-60 keeps no cell for one.
                if !lane.has_row && lane.committed.len() < context {
                    if !lane.pending {
                        return Err(Fatal); // T-97
                    }
                    lane.pending = false;
                    lane.has_row = true;
                    lane.cost.answered += 1;
                    feeds.push((tag, lane.seq, vec![lane.committed[lane.committed.len() - 1]]));
                }
            }
            if drafts {
                self.draft(&mut feeds, jobs);
            }
            self.feed_lanes(&feeds, jobs, out)?;
            feed_order.sort_unstable();
            for tag in feed_order {
                if let Some(job) = jobs.iter_mut().find(|job| job.tag == tag) {
                    self.evaluate(job, out);
                }
            }
            let struck: Vec<u64> = jobs.iter().filter(|job| job.struck).map(|job| job.tag).collect();
            struck.into_iter().for_each(|tag| self.fault(tag, fault::GRAMMAR_OVERFLOW, out));
            jobs.retain(|job| !job.struck);
            feed_order = jobs.iter().filter(|job| job.active).map(|job| job.tag).collect();
            feed_order.sort_unstable();
            if yields {
                break;
            }
        }
        Ok(())
    }

    /// T-106 .. T-108.
    fn evaluate(&mut self, job: &mut Job, out: &mut Predicted) {
        let lane = self.lane(job.tag).expect("a live lane").clone();
        let context = self.shape.context;
        if lane.committed.len() >= context {
            let lane = self.lane_mut(job.tag);
            lane.finished = true;
            lane.has_row = false;
            job.finish = finish::LENGTH;
            job.active = false;
            return;
        }
        if lane.is_host() {
            self.rows_written += 1; // E-31: the generations of a ring ascend from 1
            let row = self.row_after(&self.seq(lane.seq).tokens, self.adapter_name(lane.seq));
            job.row = Some((self.rows_written, row));
            let generation = self.rows_written;
            self.lane_mut(job.tag).row = Some(generation);
            job.active = false;
            return;
        }
        if !job.draft.is_empty() {
            return self.verify(job, out);
        }
        let tokens = self.seq(lane.seq).tokens.clone();
        self.pick(job, &tokens, out);
    }

    /// Picks the token after `tokens` and commits it (T-107, T-108); none when the grammar allows none, or refuses it (T-134).
    fn pick(&mut self, job: &mut Job, tokens: &[u32], out: &mut Predicted) -> Option<u32> {
        let context = self.shape.context;
        let picked = self.next_token(self.lane(job.tag).expect("a live lane"), tokens).ok();
        let accepted = picked.and_then(|(token, logprobs)| {
            let cursor = self.lane_mut(job.tag).grammar.as_mut();
            let complete = cursor.map_or(Some(false), |cursor| cursor.accept(token).ok())?;
            Some((token, logprobs, complete))
        });
        let Some((token, logprobs, complete)) = accepted else {
            (job.struck, job.active) = (true, false);
            return None;
        };
        if let Some(record) = logprobs {
            let ids = record.top_ids[..record.n_top as usize].to_vec();
            out.logprobs.push((job.tag, record.logprob, ids));
        }
        out.partial.push((job.tag, token));
        job.tokens.push(token);
        match job.left {
            0 => job.overshoot -= 1,
            _ => job.left -= 1,
        }
        let lane = self.lane_mut(job.tag);
        lane.committed.push(token);
        lane.drawn += 1;
        lane.pending = true;
        lane.has_row = false;
        let ignores = lane.params.flags & sampling_flag::IGNORE_EOS != 0;
        job.finish = match (END_IDS.contains(&token) && !ignores, complete, lane.committed.len() >= context) {
            (true, ..) => finish::EOS,
            (false, true, _) => finish::GRAMMAR,
            (false, false, true) => finish::LENGTH,
            (false, false, false) => finish::NONE,
        };
        lane.finished = job.finish != finish::NONE;
        job.active = !lane.finished && job.left > 0;
        Some(token)
    }

    /// T-124, with the gate off.
    fn may_draft(&self, jobs: &[Job]) -> bool {
        jobs.iter().any(|job| job.active && self.lane(job.tag).is_some_and(|lane| lane.speculates))
    }

    /// T-125: the drafts of a round, behind the pending tokens of the feeds.
    fn draft(&mut self, feeds: &mut [(u64, u64, Vec<u32>)], jobs: &mut [Job]) {
        let (cells, context) = (self.shape.cells, self.shape.context);
        let mut spare = if cells == 0 { u64::MAX } else { cells - self.cells_used() };
        let growth = |model: &Self, held: usize, more: usize| model.cells(held + more) - model.cells(held);
        for job in jobs.iter().filter(|job| job.active) {
            let lane = self.lane(job.tag).expect("a live lane");
            let held = self.seq(lane.seq).tokens.len();
            // A partly filled granule may be another's too, and its copy takes one more.
            let open = if held.is_multiple_of(self.shape.granule) { 0 } else { self.shape.granule as u64 };
            spare = spare.saturating_sub(growth(self, held, job.left.min(context - held)) + open);
        }
        for (tag, _, tokens) in feeds.iter_mut() {
            let lane = self.lane(*tag).expect("a live lane");
            let job = jobs.iter_mut().find(|job| job.tag == *tag).expect("it decodes");
            job.draft.clear();
            if !lane.speculates {
                continue;
            }
            let budget = (job.left + job.overshoot).saturating_sub(1);
            let room = context.saturating_sub(lane.committed.len() + 1);
            let wanted = self.shape.drafts.min(budget).min(room);
            let held = lane.committed.len();
            let limit = (0..=wanted).rev().find(|&more| growth(self, held, more) <= spare).unwrap_or(0);
            spare -= growth(self, held, limit);
            job.draft = propose(&lane.committed, limit);
            tokens.extend(&job.draft);
        }
    }

    /// T-127 .. T-130.
    fn verify(&mut self, job: &mut Job, out: &mut Predicted) {
        let draft = std::mem::take(&mut job.draft);
        let seq = self.lane(job.tag).expect("a live lane").seq;
        let fed = self.seq(seq).tokens.clone();
        let before = fed.len() - draft.len();
        let (mut taken, mut accepted) = (0, 0);
        for row in 0..=draft.len() {
            if self.lane(job.tag).expect("a live lane").committed.len() >= self.shape.context {
                self.lane_mut(job.tag).finished = true;
                job.finish = finish::LENGTH;
                job.active = false;
                break;
            }
            if job.left + job.overshoot == 0 {
                break;
            }
            let Some(token) = self.pick(job, &fed[..before + row], out) else { return };
            taken += 1;
            let agrees = draft.get(row) == Some(&token);
            accepted += u32::from(agrees);
            if job.finish != finish::NONE || !agrees {
                break;
            }
        }
        job.proposed += draft.len() as u32;
        job.accepted += accepted;
        // One token was fed before the draft; of the draft stays what was taken but the last, which is pending.
        let keep = before - 1 + taken.max(1);
        if keep < fed.len() {
            self.seq_truncate(seq, keep).expect("drafts need a runtime that cuts");
        }
        self.lane_mut(job.tag).has_row = false;
    }
}

///
fn propose(history: &[u32], limit: usize) -> Vec<u32> {
    for n in [3, 2] {
        if n >= history.len() || limit == 0 {
            continue;
        }
        let tail = &history[history.len() - n..];
        if let Some(at) = (0..history.len() - n).rev().find(|&at| history[at..at + n] == *tail) {
            return history[at + n..].iter().take(limit).copied().collect();
        }
    }
    vec![]
}
