#![forbid(unsafe_code)]
//! Decode rounds that are begun before the tokens of the round before are known: one step ahead.
//!
//! ```text
//!   host      begin k | begin k+1 | wait for k | evaluate k | begin k+2 | wait for k+1 | evaluate k+1 ...
//!   device            [ ------ k ------ ][ ------- k+1 ------ ][ ------- k+2 ------ ]
//! ```
//! Where the runtime can ([`Runtime::steps_ahead`]), and the next round of every lane follows from what is known but for its newest token, the
//! next round's step is begun while this round's is under way. Its feeds are [`Input::Picked`]: the runtime feeds what it has picked itself.
//! The host evaluates a round while the device computes the next one.
//!
//! What was computed in vain is taken back: the rows of lanes that ended in the round before, all of them where the tick ends early. Their
//! sequences are cut to what they held, which gives their pages back.
//!
//! # Invariants
//! - Nothing of it shows: events, emits, marks, costs and memory are those of rounds that wait for each other. The marks of a lane move
//!   when its step ends, so between two rounds a sequence may hold a token more than its lane says, and at the end of a tick none does.
//! - A round ahead feeds only lanes that have grant and room for its token, so the reserve stage has counted it. Nothing of the round
//!   before shares a page that it writes, so it copies none.
//! - A step that cannot be begun is not begun: the round runs as any other, and meets then whatever error stood in the way.
//!
//! # Not here
//! Rounds with a lane whose request depends on the newest token (grammar, penalties, a draft) or that the host picks for: `step.rs`. While
//! entries of the cache depart there is no step ahead either, as it would take room earlier than the round does.

use super::lane::Lane;
use super::lanes::LaneId;
use super::run::{Fatal, Job, Run};
use super::state::State;
use super::step::{Cause, answers_fit, recycle};
use crate::runtime::{Answer, Answers, Feed, Input, Runtime, RuntimeError, SamplingSupport, SeqHandle, Want};

/// The steps of a tick that were begun and have not ended.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    /// Oldest first; behind the first `begun` ones lists mean nothing.
    steps: [Begun; 2],
    begun: usize,
    /// Whether this tick looks ahead.
    on: bool,
    /// What the yield word said when it was last looked at. As long as it is raised, ticks end behind one round, and a step ahead would
    /// only hold up their end.
    yields: bool,
    /// When the last step ended: the next one had the device from then on.
    ended_ns: u64,
}

/// A step that was begun.
#[derive(Debug, Default)]
struct Begun {
    rows: Vec<Row>,
    begun_ns: u64,
}

/// One of its feeds.
#[derive(Clone, Copy, Debug)]
struct Row {
    lane: LaneId,
    job: usize,
    /// Kept for when the lane is gone.
    sequence: SeqHandle,
}

impl<R: Runtime> Run<'_, R> {
    /// Says whether the rounds to come may be begun ahead.
    ///
    /// # Errors
    /// A tick that did not come to its end has left a step behind.
    pub(super) fn look_ahead(&mut self, drafts: bool) -> Result<(), Fatal> {
        let can = self.can_look_ahead(drafts);
        let ahead = &mut self.steps.ahead;
        // A time of the timeline, of which there may be another one now.
        ahead.ended_ns = 0;
        ahead.on = can && !ahead.yields;
        if ahead.begun == 0 { Ok(()) } else { Err(Fatal) }
    }

    fn can_look_ahead(&self, drafts: bool) -> bool {
        let state = &*self.state;
        state.runtime.steps_ahead() && state.descriptor.truncate_partial && !drafts && state.departures.is_empty()
    }

    /// Notes what the yield word says behind a round (T-109), when the tick goes on unless it is raised.
    pub(super) fn note_yield(&mut self, drafts: bool, yields: bool) {
        // Not where a step could not be begun meanwhile: then the word was not raised before either.
        if self.steps.ahead.yields && !yields {
            self.steps.ahead.on = self.can_look_ahead(drafts);
        }
        self.steps.ahead.yields = yields;
    }

    /// Runs the queued round, which feeds lanes among the `active` jobs, and begins the one behind it where that is possible.
    ///
    /// # Errors
    /// As [`Run::step`].
    pub(super) fn run_round(&mut self, active: &[usize], jobs: &mut [Job]) -> Result<(), Fatal> {
        if self.steps.ahead.begun == 0 && !(self.goes_ahead(active, jobs) && self.begin_queued(jobs)?) {
            return self.step(jobs).map(drop);
        }
        if self.goes_ahead(active, jobs) {
            self.begin_next(active, jobs)?;
        }
        self.end_queued(jobs)
    }

    /// Whether the next round can be begun before the queued one is evaluated, and some lane surely wants it as far as is known.
    fn goes_ahead(&self, active: &[usize], jobs: &[Job]) -> bool {
        let State { lanes, descriptor, exempt, .. } = &*self.state;
        if !self.steps.ahead.on || self.steps.portions.len() != active.len() {
            return false;
        }
        let mut goes_on = false;
        let all_follow = active.iter().all(|&number| {
            let job = jobs.get(number);
            job.and_then(|job| Some((job, lanes.get(job.lane)?))).is_some_and(|(job, lane)| {
                goes_on |= continues(job, lane, descriptor.max_seq_len);
                follows(lane, exempt, descriptor.sampling)
            })
        });
        all_follow && goes_on
    }

    /// Begins the queued round as the first step; false where it has to be stepped instead.
    fn begin_queued(&mut self, jobs: &mut [Job]) -> Result<bool, Fatal> {
        let State { runtime, lanes, exempt, .. } = &mut *self.state;
        let mut feeds: Vec<Feed<'_>> = std::mem::take(&mut self.steps.feeds);
        let rows = self.steps.ahead.next_rows()?;
        for portion in &self.steps.portions {
            let lane = lanes.get(portion.lane).ok_or(Fatal)?;
            let job = portion.job.ok_or(Fatal)?;
            let sequence = lane.sequence();
            rows.push(Row { lane: portion.lane, job, sequence });
            let input = Input::Tokens(lane.known(lane.fed_len(), portion.fed));
            feeds.push(Feed { sequence, input, want: Want::Token(lane.request(portion.fed, exempt)) });
        }
        let begun = runtime.step_begin(&feeds);
        self.steps.feeds = recycle(feeds);
        self.has_begun(begun, jobs)
    }

    /// Begins the round behind the queued one, which is under way, for the lanes that may want it; or does not.
    fn begin_next(&mut self, active: &[usize], jobs: &mut [Job]) -> Result<(), Fatal> {
        let State { runtime, lanes, descriptor, exempt, .. } = &mut *self.state;
        let mut feeds: Vec<Feed<'_>> = std::mem::take(&mut self.steps.feeds);
        let rows = self.steps.ahead.next_rows()?;
        for &number in active {
            let job = jobs.get(number).ok_or(Fatal)?;
            let lane = lanes.get(job.lane).ok_or(Fatal)?;
            if !continues(job, lane, descriptor.max_seq_len) {
                continue;
            }
            let sequence = lane.sequence();
            rows.push(Row { lane: job.lane, job: number, sequence });
            let request = lane.request_ahead(exempt);
            feeds.push(Feed { sequence, input: Input::Picked { feed: job.row }, want: Want::Token(request) });
        }
        let begun = runtime.step_begin(&feeds);
        self.steps.feeds = recycle(feeds);
        self.has_begun(begun, jobs).map(drop)
    }

    /// Notes that a step was begun, or was not.
    fn has_begun(&mut self, begun: Result<(), RuntimeError>, jobs: &mut [Job]) -> Result<bool, Fatal> {
        let begun_ns = self.trace_step_start();
        let ahead = &mut self.steps.ahead;
        match begun {
            Ok(()) => {
                let step = ahead.steps.get_mut(ahead.begun).ok_or(Fatal)?;
                step.begun_ns = begun_ns;
                for (feed, row) in step.rows.iter().enumerate() {
                    jobs.get_mut(row.job).ok_or(Fatal)?.row = feed;
                }
                ahead.begun += 1;
                Ok(true)
            }
            Err(RuntimeError::Fatal) => Err(Fatal),
            Err(_) => {
                // Whatever stood in the way will most likely stand there in the next round.
                ahead.on = false;
                Ok(false)
            }
        }
    }

    /// Ends the step that was begun first, which is the queued round and rows in vain.
    fn end_queued(&mut self, jobs: &mut [Job]) -> Result<(), Fatal> {
        let bank = self.free_bank();
        let outcome = self.end_begun(bank, true)?;
        let begun_ns = self.steps.ahead.last_begun_ns();
        let from_ns = begun_ns.max(self.steps.ahead.ended_ns);
        self.trace_step(from_ns, outcome.is_err());
        self.steps.ahead.ended_ns = self.trace_step_start();
        match outcome {
            Ok(()) => self.take_answers(bank, jobs)?,
            Err(code) => self.fail_step(code)?,
        }
        self.cut_vain()?;
        let answers = self.steps.banks.get(bank).ok_or(Fatal)?;
        if outcome.is_ok() && answers.as_slice().contains(&Answer::Again) {
            self.feed_again(jobs)?;
        }
        self.steps.vain.clear();
        Ok(())
    }

    /// Ends the oldest step; with `wanted`, for the lanes that are queued. Notes in `steps.vain` which feeds nobody wants.
    ///
    /// The inner error is the fault code of the fed lanes.
    fn end_begun(&mut self, bank: usize, wanted: bool) -> Result<Result<(), u32>, Fatal> {
        let State { runtime, lanes, exempt, descriptor, .. } = &mut *self.state;
        let steps = &mut *self.steps;
        let answers = steps.banks.get_mut(bank).ok_or(Fatal)?;
        let portions = if wanted { steps.portions.as_slice() } else { &[] };
        let mut queued = portions.iter().peekable();
        let mut feeds: Vec<Feed<'_>> = std::mem::take(&mut steps.feeds);
        steps.vain.clear();
        for row in steps.ahead.oldest()? {
            let portion = queued.next_if(|portion| portion.lane == row.lane);
            steps.vain.push(portion.is_none());
            feeds.push(match portion {
                Some(portion) => {
                    let lane = lanes.get(portion.lane).ok_or(Fatal)?;
                    let input = Input::Tokens(lane.known(lane.fed_len(), portion.fed));
                    let want = Want::Token(lane.request(portion.fed, exempt));
                    Feed { sequence: row.sequence, input, want }
                }
                None => Feed { sequence: row.sequence, input: Input::Tokens(&[]), want: Want::Nothing },
            });
        }
        if queued.next().is_some() {
            return Err(Fatal);
        }
        let outcome = runtime.step_end(&feeds, answers);
        let checked = match outcome {
            Ok(()) => answers_fit(&feeds, answers, descriptor.vocab_size, Cause::Begun).map(Ok),
            Err(error) => error.fault_code().ok_or(Fatal).map(Err),
        };
        steps.feeds = recycle(feeds);
        steps.ahead.ended()?;
        checked
    }

    /// Cuts the sequences of lanes whose rows in the step that ended were in vain.
    fn cut_vain(&mut self) -> Result<(), Fatal> {
        let State { runtime, lanes, .. } = &mut *self.state;
        for (row, _) in self.steps.ahead.ended_rows().iter().zip(&self.steps.vain).filter(|(_, vain)| **vain) {
            cut_to_mark(runtime, lanes.get(row.lane))?;
        }
        Ok(())
    }

    /// Feeds the lanes of the queued round once more whose token could not be picked, by a step of their own. What was begun on what they
    /// picked is taken back, and so is all of that step: the next round waits.
    fn feed_again(&mut self, jobs: &mut [Job]) -> Result<(), Fatal> {
        self.take_back()?;
        let State { runtime, lanes, .. } = &mut *self.state;
        let unfed =
            |portion: &super::run::Portion| lanes.get(portion.lane).is_some_and(|lane| lane.fed_len() < portion.fed);
        self.steps.portions.retain(unfed);
        for portion in &self.steps.portions {
            cut_to_mark(runtime, lanes.get(portion.lane))?;
        }
        self.step(jobs).map(drop)
    }

    /// Takes back all that was begun: nobody wants it. No step of this tick is begun ahead any more.
    ///
    /// # Errors
    /// The runtime is broken.
    pub(super) fn take_back(&mut self) -> Result<(), Fatal> {
        self.steps.ahead.on = false;
        while self.steps.ahead.begun > 0 {
            let bank = self.free_bank();
            // A fault of a step that nobody wants is nobody's.
            let _ = self.end_begun(bank, false)?;
            self.cut_vain()?;
        }
        self.steps.vain.clear();
        Ok(())
    }

    /// A bank that holds no answers; what it holds means nothing.
    fn free_bank(&mut self) -> usize {
        let bank = self.steps.banks_kept;
        if self.steps.banks.len() <= bank {
            self.steps.banks.push(Answers::new());
        }
        bank
    }
}

impl Ahead {
    /// The list of the step that is begun next, emptied.
    fn next_rows(&mut self) -> Result<&mut Vec<Row>, Fatal> {
        let rows = &mut self.steps.get_mut(self.begun).ok_or(Fatal)?.rows;
        rows.clear();
        Ok(rows)
    }

    /// The feeds of the step that was begun first.
    fn oldest(&self) -> Result<&[Row], Fatal> {
        self.steps.first().filter(|_| self.begun > 0).map(|step| step.rows.as_slice()).ok_or(Fatal)
    }

    /// The oldest step has ended: its list goes to the back, where [`Ahead::ended_rows`] finds it until the next one is begun.
    fn ended(&mut self) -> Result<(), Fatal> {
        self.begun = self.begun.checked_sub(1).ok_or(Fatal)?;
        self.steps.reverse();
        Ok(())
    }

    /// The feeds of the step that ended last.
    fn ended_rows(&self) -> &[Row] {
        self.steps.last().map(|step| step.rows.as_slice()).unwrap_or_default()
    }

    /// When the step that ended last was begun.
    fn last_begun_ns(&self) -> u64 {
        self.steps.last().map_or(0, |step| step.begun_ns)
    }
}

/// Cuts a sequence to what its lane says that it holds; a lane that is gone has none.
fn cut_to_mark<R: Runtime>(runtime: &mut R, lane: Option<&Lane>) -> Result<(), Fatal> {
    let Some(lane) = lane else { return Ok(()) };
    let held = lane.fed_len() as u64;
    if runtime.seq_len(lane.sequence()) > held {
        runtime.seq_truncate(lane.sequence(), held).map_err(|_| Fatal)?;
    }
    Ok(())
}

/// Whether a job may want the round behind the one that is queued: it has grant for a second token, and room to feed the first.
fn continues(job: &Job, lane: &Lane, context: u64) -> bool {
    job.grant_left > 1 && (lane.committed_len() as u64).saturating_add(1) < context
}

/// Whether what a lane asks for follows from what is known but for its newest token, and is a token that the runtime picks.
fn follows(lane: &Lane, exempt: &[u32], served: SamplingSupport) -> bool {
    let plain = lane.recipe().is_blind() && lane.drafting().is_none() && lane.grammar().is_none();
    plain && served.serves(&lane.request(lane.committed_len(), exempt))
}
