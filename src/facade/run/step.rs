#![forbid(unsafe_code)]
//! The steps of a batch: fed, answered, checked (X-44, X-47 .. .. X-64).

use super::{Job, Scratch, Workshop};
use crate::executor::Executor;
use crate::facade::core::{Shared, Submission};
use crate::facade::select::{distinct, select};
use crate::facade::work::{Fault, FaultCode, FaultState, Kind, Logits, Work};
use crate::runtime::{Answer, Answers, Feed, Input, Runtime, RuntimeError, Want};
use crate::sample::{SampleRequest, row_is_finite};
use std::sync::atomic::Ordering;

/// What a feed of a job wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ask {
    Nothing,
    /// Rows, this many.
    Rows(usize),
    Token,
}

impl<R: Runtime> Shared<R> {
    /// Steps all jobs to their ends; what goes wrong is noted in the jobs.
    pub(super) fn step(&self, core: &mut Submission<R>, work: &[Work<'_>], scratch: &mut Scratch) {
        let Submission { executor, workshop } = core;
        let jobs = &mut scratch.jobs;
        let pages = jobs.iter().fold(0, |sum: u64, job| sum.saturating_add(job.pages));
        let evicted = executor.make_room(pages);
        self.counters.evictions.fetch_add(evicted, Ordering::Relaxed);
        self.counters.runs.fetch_add(1, Ordering::Relaxed);
        for job in jobs.iter_mut().filter(|job| job.handle == 0) {
            match executor.make_guest(None) {
                Ok(handle) => job.handle = handle,
                Err(_) => job.fault = Some(self.doubt(FaultState::Intact)),
            }
        }
        while self.feed(executor, workshop, work, jobs) {}
        for job in jobs.iter_mut() {
            job.reached = executor.guest_len(job.handle);
        }
    }

    /// One step of all jobs that are not at their ends; whether there was one.
    fn feed(&self, executor: &mut Executor<R>, shop: &mut Workshop, work: &[Work<'_>], jobs: &mut [Job]) -> bool {
        let Workshop { answers, feeds: spare, fed, distinct } = shop;
        fed.clear();
        let mut feeds: Vec<Feed<'_>> = std::mem::take(spare);
        for ((job, item), index) in jobs.iter().zip(work).zip(0..) {
            if job.fault.is_some() || (job.done >= job.end && !job.again) {
                continue;
            }
            let range = self.next(job);
            let tokens = job.tokens.get(range).unwrap_or_default();
            let want = match self.ask(job, item) {
                Ask::Nothing => Want::Nothing,
                Ask::Rows(1) => Want::LastRow,
                Ask::Rows(_) => Want::EveryRow,
                Ask::Token => Want::Token(SampleRequest::default()),
            };
            feeds.push(Feed { sequence: job.handle, input: Input::Tokens(tokens), want });
            fed.push(index);
        }
        let any = !feeds.is_empty();
        let outcome = if any { executor.step_guests(&feeds, answers) } else { Ok(()) };
        let answered = outcome.is_err() || answers.as_slice().len() == feeds.len();
        feeds.clear();
        // Collecting from a vector's own iterator keeps its memory.
        *spare = feeds.into_iter().map_while(|_| None).collect();
        if !any {
            return false;
        }
        for (&index, number) in fed.iter().zip(0..) {
            let (Some(job), Some(item)) = (jobs.get_mut(index), work.get(index)) else { continue };
            match outcome {
                Ok(()) if !answered => job.fault = Some(lost(FaultCode::Contract, 0)),
                Ok(()) => self.take(job, item, number, answers, distinct),
                Err(error) => self.fail(executor, job, error),
            }
            if job.again && job.fault.is_none() && !executor.cut_guest(job.handle, job.done as u64 - 1) {
                job.fault = Some(lost(FaultCode::Device, 0));
            }
        }
        true
    }

    /// The tokens that a job feeds next.
    fn next(&self, job: &Job) -> std::ops::Range<usize> {
        match job.kind {
            _ if job.again => job.done - 1..job.done,
            Kind::Verify => job.done..job.end.min(job.done + self.traits.rows_max),
            Kind::Prefill | Kind::Decode => job.done..job.end,
        }
    }

    fn ask(&self, job: &Job, item: &Work<'_>) -> Ask {
        match job.kind {
            _ if !job.yields => Ask::Nothing,
            _ if job.again => Ask::Rows(1),
            Kind::Verify => Ask::Rows(self.next(job).len()),
            _ if self.is_picked(item) => Ask::Token,
            _ => Ask::Rows(1),
        }
    }

    /// Takes the answer to a job's feed.
    fn take(&self, job: &mut Job, item: &Work<'_>, number: usize, answers: &mut Answers, kept: &mut Vec<u32>) {
        let ask = self.ask(job, item);
        job.done = self.next(job).end;
        let again = std::mem::take(&mut job.again);
        let answer = answers.as_slice().get(number).copied();
        match (ask, answer) {
            (Ask::Nothing, Some(Answer::Nothing)) => {}
            (Ask::Rows(rows), Some(Answer::Rows { first, count })) if rows == count => {
                self.take_rows(job, item.logits(), first..first + count, answers, kept);
            }
            // A row is as good as the token that was asked for.
            (Ask::Token, Some(Answer::Rows { first, count: 1 })) => {
                self.take_rows(job, item.logits(), first..first + 1, answers, kept);
            }
            (Ask::Rows(1) | Ask::Token, Some(Answer::Picked(pick))) if self.may_be(pick.token, item.logits()) => {
                job.picked.push(pick.token);
                job.rows += 1;
            }
            // It could not pick: a row that is not finite, or trouble. The row tells.
            (Ask::Token, Some(Answer::Fault(_))) if !again => job.again = true,
            (_, Some(Answer::Fault(code))) => job.fault = Some(lost(FaultCode::Device, code)),
            _ => job.fault = Some(lost(FaultCode::Contract, 0)),
        }
    }

    /// Whether a selected token answers what was asked.
    fn may_be(&self, token: u32, logits: &Logits) -> bool {
        match logits {
            Logits::Full => false,
            Logits::Greedy { mask, .. } => {
                token < self.traits.vocab && mask.as_ref().is_none_or(|mask| mask.allows(token))
            }
        }
    }

    fn take_rows(
        &self,
        job: &mut Job,
        logits: &Logits,
        rows: std::ops::Range<usize>,
        answers: &mut Answers,
        kept: &mut Vec<u32>,
    ) {
        for index in rows {
            let row = answers.row_mut(index).filter(|row| row.len() == self.traits.vocab as usize);
            let Some(row) = row else {
                job.fault = Some(lost(FaultCode::Contract, 0));
                return;
            };
            if !row_is_finite(row) {
                self.counters.non_finite_rows.fetch_add(1, Ordering::Relaxed);
            }
            job.rows += 1;
            match logits {
                Logits::Full => job.data.extend_from_slice(row),
                Logits::Greedy { mask, penalty, penalised } => {
                    let penalised = if *penalty == 1.0 { &[] } else { distinct(penalised, kept) };
                    match select(row, *penalty, penalised, mask.as_ref()) {
                        Some(token) => job.picked.push(token),
                        None => job.no_finite = true,
                    }
                }
            }
        }
    }

    /// The runtime panicked in a step: what it had answered stands, and of the rest nobody knows whether the device is quiet.
    pub(super) fn give_up(&self, scratch: &mut Scratch) {
        for job in scratch.jobs.iter_mut().filter(|job| job.fault.is_none() && (job.done < job.end || job.again)) {
            job.fault = Some(Fault { code: FaultCode::Device, state: FaultState::Held, detail: 0 });
        }
    }

    /// A step failed: what is certain of a job's sequence?
    fn fail(&self, executor: &mut Executor<R>, job: &mut Job, error: RuntimeError) {
        let (code, detail) = match error {
            RuntimeError::Fatal => {
                self.broken.store(true, Ordering::Release);
                // Whether the device is quiet, a broken runtime does not say.
                job.fault = Some(Fault { code: FaultCode::Device, state: FaultState::Held, detail: 0 });
                return;
            }
            RuntimeError::Capacity => (FaultCode::Memory, 0),
            RuntimeError::Fault(detail) => (FaultCode::Device, detail),
            _ => (FaultCode::Device, 0),
        };
        if code == FaultCode::Memory {
            self.counters.doubts.fetch_add(1, Ordering::Relaxed);
        }
        let (held, start) = (executor.guest_len(job.handle), job.start as u64);
        let intact = held == start || (held > start && executor.cut_guest(job.handle, start));
        let state = if intact { FaultState::Intact } else { FaultState::Lost };
        job.fault = Some(Fault { code, state, detail });
    }

    /// The pool lacked what the ledger had.
    fn doubt(&self, state: FaultState) -> Fault {
        self.counters.doubts.fetch_add(1, Ordering::Relaxed);
        Fault { code: FaultCode::Memory, state, detail: 0 }
    }
}

fn lost(code: FaultCode, detail: u32) -> Fault {
    Fault { code, state: FaultState::Lost, detail }
}
