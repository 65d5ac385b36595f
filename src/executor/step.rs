#![forbid(unsafe_code)]
//! One step of the runtime: the only place where sequences grow, but for steps that are begun ahead (`ahead.rs`).
//!
//! Prefill, replay and decode rounds all say what each lane takes ([`Portion`]) and come here. The step feeds the tokens that the
//! lanes know and the sequences lack, asks for a token where the runtime picks it itself and for a row where not, checks
//! the answers, and moves the marks of the lanes. So E-1 is kept in one function, which takes the answers of both.
//!
//! # Invariants
//! A failed step moved no mark: its lanes are gone instead (T-132).

use super::draft::Drafting;
use super::lane::Lane;
use super::lanes::Lanes;
use super::run::{Fatal, Held, Job, Portion, Run, StepBuffers};
use super::state::State;
use crate::record::constant::fault;
use crate::runtime::{Answer, Answers, Feed, Input, Runtime, RuntimeError, SamplingSupport, Want};

impl<R: Runtime> Run<'_, R> {
    /// Runs `steps.portions` as one step; portions that feed nothing only move their lane's marks.
    ///
    /// Answers that were asked for are then held by their jobs. When the step fails with a fault, every lane it fed is
    /// faulted.
    ///
    /// Answers whether the step ran, which a step without feeds does.
    ///
    /// # Errors
    /// The runtime is broken, or its answers do not fit what was asked.
    pub(super) fn step(&mut self, jobs: &mut [Job]) -> Result<bool, Fatal> {
        let started_ns = self.trace_step_start();
        let StepBuffers { banks, banks_kept, feeds, portions, .. } = &mut *self.steps;
        if banks.len() <= *banks_kept {
            banks.push(Answers::new());
        }
        let bank = *banks_kept;
        let answers = banks.get_mut(bank).ok_or(Fatal)?;
        let outcome = feed(self.state, portions, answers, feeds)?;
        self.trace_step(started_ns, outcome.is_err());
        match outcome {
            Ok(()) => self.take_answers(bank, jobs).map(|()| true),
            Err(code) => self.fail_step(code).map(|()| false),
        }
    }

    /// Runs `steps.portions`, none of which asks, as one step that may fail without a trace: then no mark moves and no lane
    /// faults (T-72).
    ///
    /// # Errors
    /// The runtime is broken.
    pub(super) fn step_if_it_can(&mut self) -> Result<(), Fatal> {
        let StepBuffers { banks, banks_kept, feeds, portions, .. } = &mut *self.steps;
        if banks.len() <= *banks_kept {
            banks.push(Answers::new());
        }
        let bank = *banks_kept;
        let answers = banks.get_mut(bank).ok_or(Fatal)?;
        match feed(self.state, portions, answers, feeds)? {
            Ok(()) => self.take_answers(bank, &mut []),
            Err(_) => Ok(()),
        }
    }

    /// Moves the marks of the lanes and hands the answers of bank `bank` to the jobs that asked.
    ///
    /// Of a step that was begun ahead, feeds in vain are passed over, and lanes that are to be fed again stay where they are.
    pub(super) fn take_answers(&mut self, bank: usize, jobs: &mut [Job]) -> Result<(), Fatal> {
        let mut feed = 0;
        for index in 0..self.steps.portions.len() {
            let portion = *self.steps.portions.get(index).ok_or(Fatal)?;
            let lane = self.state.lanes.get_mut(portion.lane).ok_or(Fatal)?;
            if lane.fed_len() >= portion.fed {
                lane.advance(lane.fed_len(), portion.committed);
                continue;
            }
            feed += self.steps.vain.get(feed..).unwrap_or_default().iter().take_while(|vain| **vain).count();
            let answer = self.steps.banks.get(bank).and_then(|answers| answers.as_slice().get(feed)).ok_or(Fatal)?;
            if *answer == Answer::Again {
                feed += 1;
                continue;
            }
            lane.advance(portion.fed, portion.committed);
            self.state.cells_moved |= lane.take_sharing();
            // The grammar's faults strike after the round's evaluation (T-134).
            let strikes_later = |code| portion.asks && code == fault::GRAMMAR_OVERFLOW;
            if let &Answer::Fault(code) = answer
                && !strikes_later(code)
            {
                self.fault(portion.lane, code);
            } else if portion.asks {
                let job = portion.job.and_then(|job| jobs.get_mut(job)).ok_or(Fatal)?;
                job.held = Some(Held { bank, feed });
                lane.cost_mut().answered_steps += 1;
                self.steps.banks_kept = bank + 1;
            }
            feed += 1;
        }
        Ok(())
    }

    /// Faults the lanes of a failed step; those it did not feed go on (T-92, T-132).
    pub(super) fn fail_step(&mut self, code: u32) -> Result<(), Fatal> {
        for index in 0..self.steps.portions.len() {
            let portion = *self.steps.portions.get(index).ok_or(Fatal)?;
            let lane = self.state.lanes.get_mut(portion.lane).ok_or(Fatal)?;
            if lane.fed_len() < portion.fed {
                self.fault(portion.lane, code);
            } else {
                lane.advance(lane.fed_len(), portion.committed);
            }
        }
        Ok(())
    }
}

/// Calls the runtime, if any portion feeds it. The inner error is the fault code of the fed lanes.
fn feed<R: Runtime>(
    state: &mut State<R>,
    portions: &[Portion],
    answers: &mut Answers,
    spare: &mut Vec<Feed<'static>>,
) -> Result<Result<(), u32>, Fatal> {
    if !state.departures.is_empty() {
        state.have_room_for(most_cells(state, portions));
    }
    let State { runtime, descriptor, lanes, exempt, grammars, .. } = state;
    if grammars.any_borrowed() {
        prepare_masks(portions, lanes);
    }
    let mut feeds: Vec<Feed<'_>> = std::mem::take(spare);
    for portion in portions {
        let lane = lanes.get(portion.lane).ok_or(Fatal)?;
        if lane.fed_len() < portion.fed {
            let sequence = lane.sequence();
            feeds.push(match lane.drafting().and_then(Drafting::feed) {
                Some(drafted) => Feed { sequence, input: Input::Tokens(drafted), want: Want::EveryRow },
                None => Feed {
                    sequence,
                    input: Input::Tokens(lane.known(lane.fed_len(), portion.fed)),
                    want: want(lane, portion, exempt, descriptor.sampling),
                },
            });
        }
    }
    let outcome = match feeds.is_empty() {
        true => Ok(()),
        false => runtime.step(&feeds, answers),
    };
    let checked = match outcome {
        Ok(()) => answers_fit(&feeds, answers, descriptor.vocab_size, Cause::Stepped).map(Ok),
        // A runtime that says it verifies drafts, and then does not (T-126).
        Err(RuntimeError::Unsupported) if feeds.iter().any(|feed| matches!(feed.want, Want::EveryRow)) => Err(Fatal),
        Err(error) => error.fault_code().ok_or(Fatal).map(Err),
    };
    *spare = recycle(feeds);
    checked
}

/// Cells that a step takes at most: what it feeds, and per sequence a granule that is begun and one that is copied.
fn most_cells<R: Runtime>(state: &State<R>, portions: &[Portion]) -> u64 {
    let granule = u64::from(state.descriptor.cell_granule_tokens.max(1));
    let fed = |portion: &Portion| {
        let lane = state.lanes.get(portion.lane)?;
        let drafted = lane.drafting().and_then(Drafting::feed).map_or(0, <[u32]>::len);
        Some(portion.fed.saturating_sub(lane.fed_len()).max(drafted) as u64 + 2 * granule)
    };
    portions.iter().filter_map(fed).fold(0, u64::saturating_add)
}

/// Makes the masks known that the runtime, or the evaluation after it, applies.
fn prepare_masks(portions: &[Portion], lanes: &mut Lanes) {
    for portion in portions.iter().filter(|portion| portion.asks) {
        if let Some(lane) = lanes.get_mut(portion.lane) {
            lane.prepare_mask();
        }
    }
}

/// What a portion wants of the runtime: the token itself where the runtime picks it, else the row.
fn want<'a>(lane: &'a Lane, portion: &Portion, exempt: &'a [u32], served: SamplingSupport) -> Want<'a> {
    if !portion.asks {
        return Want::Nothing;
    }
    if lane.recipe().is_host() {
        return Want::LastRow;
    }
    let request = lane.request(portion.fed, exempt);
    match served.serves(&request) {
        true => Want::Token(request),
        false => Want::LastRow,
    }
}

/// How a step came to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// It was run as a whole.
    Stepped,
    /// It was begun ahead: it may have tokens picked later.
    Begun,
}

/// Whether there is one answer of the right kind per feed.
pub(super) fn answers_fit(feeds: &[Feed<'_>], answers: &Answers, vocab_size: u32, cause: Cause) -> Result<(), Fatal> {
    if feeds.is_empty() {
        return Ok(());
    }
    let list = answers.as_slice();
    let fits = |(feed, answer): (&Feed<'_>, &Answer)| match (&feed.want, answer) {
        (Want::Nothing, Answer::Nothing) | (_, Answer::Fault(_)) => true,
        (Want::LastRow, Answer::Rows { first, count: 1 }) => {
            answers.row(*first).is_some_and(|row| row.len() == vocab_size as usize)
        }
        (Want::EveryRow, &Answer::Rows { first, count }) => {
            let rows =
                (first..first + count).all(|row| answers.row(row).is_some_and(|row| row.len() == vocab_size as usize));
            rows && matches!(feed.input, Input::Tokens(tokens) if tokens.len() == count)
        }
        (Want::Token(request), Answer::Picked(pick)) => {
            pick.token < vocab_size && pick.logprobs.is_some() == request.logprobs.is_some()
        }
        (Want::Token(_), Answer::Again) => cause == Cause::Begun,
        _ => false,
    };
    match list.len() == feeds.len() && feeds.iter().zip(list).all(fits) {
        true => Ok(()),
        false => Err(Fatal),
    }
}

/// The memory of a list whose borrows have ended, for a list of the next step.
pub(super) fn recycle(mut feeds: Vec<Feed<'_>>) -> Vec<Feed<'static>> {
    feeds.clear();
    // Collecting from a vector's own iterator keeps its memory; `executor_alloc` proves it.
    feeds.into_iter().map_while(|_| None).collect()
}
