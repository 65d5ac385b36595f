#![forbid(unsafe_code)]
//! Steps that a fake begins ahead, where its options say so.
//!
//! All of a step is computed when it is begun, but for what others may notice: planned rows are used up, failures strike, time passes and the
//! record is written when it ends, as of a step that was run then. So a step of which nothing is wanted leaves no trace.
//!
//! # Limits
//! Stricter than the contract: steps that feed picked tokens where there are none, feeds that end otherwise than they were begun, and
//! a third step answer `Fatal`.

use std::collections::VecDeque;

use super::{FakeRuntime, Planned};
use crate::runtime::{Answer, Answers, Feed, Input, RuntimeError, SeqHandle, Want};

/// Steps that were begun and have not ended, oldest first.
#[derive(Debug, Default)]
pub(super) struct BegunSteps {
    steps: VecDeque<Vec<Begun>>,
    /// Feeds that were begun so far.
    feeds: u64,
}

impl BegunSteps {
    /// Whether none is under way.
    pub(super) fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Planned rows of a sequence that steps under way have looked at.
    fn planned_for(&self, sequence: SeqHandle) -> usize {
        self.steps.iter().flatten().filter(|begun| begun.sequence == sequence && begun.was_planned).count()
    }
}

/// A feed of a step that was begun.
#[derive(Clone, Copy, Debug)]
struct Begun {
    sequence: SeqHandle,
    /// What it fed; nothing where the step before was first.
    token: Option<u32>,
    answer: Answer,
    /// It is to be fed again; what was begun on its token was fed another one.
    again: bool,
    was_planned: bool,
}

impl FakeRuntime {
    /// The token that the next step is fed where it asks for what this feed picks.
    fn token_of(&self, begun: &Begun) -> u32 {
        let Answer::Picked(pick) = begun.answer else { return 0 };
        let vocab = self.options.descriptor.vocab_size.max(1);
        if begun.again { (pick.token + 1) % vocab } else { pick.token }
    }

    pub(super) fn begin(&mut self, feeds: &[Feed<'_>]) -> Result<(), RuntimeError> {
        let wants_tokens = feeds.iter().all(|feed| matches!(feed.want, Want::Token(_)));
        if !self.options.steps_ahead || !wants_tokens || feeds.is_empty() {
            return Err(RuntimeError::Unsupported);
        }
        if self.begun.steps.len() > 1 {
            return Err(RuntimeError::Fatal);
        }
        let mut tokens = Vec::new();
        for feed in feeds {
            tokens.push(match (feed.input, self.begun.steps.back()) {
                (Input::Tokens(_), None) => None,
                (Input::Picked { feed: number }, Some(before)) => {
                    let source = before.get(number).filter(|source| source.sequence == feed.sequence);
                    Some(self.token_of(source.ok_or(RuntimeError::Fatal)?))
                }
                _ => return Err(RuntimeError::Fatal),
            });
        }
        let known: Vec<Feed<'_>> = feeds.iter().zip(&tokens).map(|(feed, token)| with_token(feed, token)).collect();
        self.check(&known)?;
        self.grow_pages(&known)?;
        let mut answers = Answers::new();
        answers.clear(self.options.descriptor.vocab_size as usize);
        let mut step = Vec::new();
        for (feed, &token) in known.iter().zip(&tokens) {
            let (Input::Tokens(fed), Want::Token(request)) = (feed.input, feed.want) else {
                return Err(RuntimeError::Fatal);
            };
            let sequence = feed.sequence;
            self.append(sequence, fed);
            let looked_at = self.begun.planned_for(sequence);
            let planned: Option<Planned> = self.scripts.get(&sequence).and_then(|rows| rows.get(looked_at)).cloned();
            let was_planned = planned.is_some();
            self.answer_pick(sequence, &request, planned, &mut answers);
            let answer = answers.as_slice().last().copied().unwrap_or(Answer::Nothing);
            self.begun.feeds += 1;
            let every = self.options.picks_again_every;
            let again = every != 0 && self.begun.feeds.is_multiple_of(every) && matches!(answer, Answer::Picked(_));
            step.push(Begun { sequence, token, answer, again, was_planned });
        }
        self.begun.steps.push_back(step);
        Ok(())
    }

    pub(super) fn end(&mut self, feeds: &[Feed<'_>], answers: &mut Answers) -> Result<(), RuntimeError> {
        answers.clear(self.options.descriptor.vocab_size as usize);
        let step = self.begun.steps.pop_front().ok_or(RuntimeError::Fatal)?;
        let is_wanted = |feed: &&Feed<'_>| !matches!(feed.want, Want::Nothing);
        let as_begun = feeds.iter().zip(&step).filter(|(feed, _)| is_wanted(feed)).all(|(feed, begun)| {
            let token_fits = match (feed.input, begun.token) {
                (Input::Tokens(fed), Some(token)) => *fed == [token],
                (Input::Tokens(_), None) => true,
                _ => false,
            };
            feed.sequence == begun.sequence && token_fits && matches!(feed.want, Want::Token(_))
        });
        if feeds.len() != step.len() || !as_begun {
            return Err(RuntimeError::Fatal);
        }
        let wanted: Vec<Feed<'_>> = feeds.iter().filter(is_wanted).copied().collect();
        if !wanted.is_empty() {
            self.pass_time()?;
            self.record_step(&wanted);
        }
        for (feed, begun) in feeds.iter().zip(&step) {
            match begun.answer {
                _ if matches!(feed.want, Want::Nothing) => answers.push_nothing(),
                _ if begun.again => answers.push_again(),
                answer => {
                    if begun.was_planned
                        && let Some(planned) = self.scripts.get_mut(&begun.sequence)
                    {
                        planned.pop_front();
                    }
                    match answer {
                        Answer::Picked(pick) => answers.push_pick(pick),
                        Answer::Fault(code) => answers.push_fault(code),
                        _ => return Err(RuntimeError::Fatal),
                    }
                }
            }
        }
        Ok(())
    }
}

/// The feed with the token that it was to be told by the step before.
fn with_token<'a>(feed: &Feed<'a>, token: &'a Option<u32>) -> Feed<'a> {
    match token {
        Some(token) => Feed { input: Input::Tokens(core::slice::from_ref(token)), ..*feed },
        None => *feed,
    }
}
