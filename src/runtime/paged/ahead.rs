#![forbid(unsafe_code)]
//! Steps that are begun ahead: launched, and answered when somebody waits for them.
//!
//! ```text
//! begin   check -> take pages -> walk -> head -> begin the picks        the backend goes on by itself
//! end     wait for the picks of the oldest step -> answer
//! ```
//! Every feed has one token and wants one. Of the second of two steps under way no token is known: the backend embeds what it picks in the first.
//!
//! # Invariants
//! - Rows, pages and bits are those of a step that is waited for: the walk is the same, and so are the kernels that pick.
//! - Nothing is read back but what came of the picks. A token that the backend could not pick is asked for again, as its row is gone.
//!
//! # Limits
//! As many feeds as a part of a step has rows and block tables; else the step is `Unsupported`, and can be stepped.

use smallvec::SmallVec;

use super::ModelRuntime;
use super::step::Cursor;
use crate::backend::{Backend, Picked};
use crate::runtime::{Answers, Feed, Input, RuntimeError, SeqHandle, Want};
use crate::sample::SampleRequest;

/// Requests of the rows of a step.
type Requests<'f> = SmallVec<[&'f SampleRequest<'f>; 64]>;

/// The sequences of each feed of the steps that were begun and have not ended, oldest first.
#[derive(Debug, Default)]
pub(super) struct BegunSteps {
    steps: [Vec<SeqHandle>; 2],
    count: usize,
}

impl BegunSteps {
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The step that was begun last.
    fn newest(&self) -> Option<&[SeqHandle]> {
        self.count.checked_sub(1).map(|last| self.steps[last].as_slice())
    }
}

impl<B: Backend> ModelRuntime<B> {
    pub(super) fn begin_step(&mut self, feeds: &[Feed<'_>]) -> Result<(), RuntimeError> {
        let begun = self.begin_checked(feeds);
        // However it went: other steps have tokens of their own.
        self.rows.sources.clear();
        begun
    }

    fn begin_checked(&mut self, feeds: &[Feed<'_>]) -> Result<(), RuntimeError> {
        if self.broken {
            return Err(RuntimeError::Fatal);
        }
        let requests = self.find_sources(feeds)?;
        if !self.has_room_for(feeds) || !self.backend.can_begin_picks(self.rows.shape.vocab, &requests) {
            return Err(RuntimeError::Unsupported);
        }
        self.grow(feeds)?;
        let walked = self.walk_ahead(feeds, &requests);
        self.broken = walked.is_err();
        walked?;
        let sequences = &mut self.begun.steps[self.begun.count];
        sequences.clear();
        sequences.extend(feeds.iter().map(|feed| feed.sequence));
        self.begun.count += 1;
        Ok(())
    }

    /// Checks what each feed says, notes which rows of the step before feed it, and answers what it wants.
    fn find_sources<'f>(&mut self, feeds: &'f [Feed<'_>]) -> Result<Requests<'f>, RuntimeError> {
        if !self.backend.picks_ahead() || self.begun.count == self.begun.steps.len() || feeds.is_empty() {
            return Err(RuntimeError::Unsupported);
        }
        let vocab = self.descriptor.vocab_size;
        let mut requests = Requests::new();
        let sources = &mut self.rows.sources;
        for feed in feeds {
            let Want::Token(request) = &feed.want else { return Err(RuntimeError::Unsupported) };
            if !self.descriptor.sampling.serves(request) {
                return Err(RuntimeError::Unsupported);
            }
            match (feed.input, self.begun.newest()) {
                (Input::Tokens(&[token]), None) if token < vocab => {}
                (Input::Picked { feed: number }, Some(before)) if before.get(number) == Some(&feed.sequence) => {
                    sources.push(number);
                }
                _ => return Err(RuntimeError::Unsupported),
            }
            requests.push(request);
        }
        Ok(requests)
    }

    /// Whether the step is one part.
    fn has_room_for(&self, feeds: &[Feed<'_>]) -> bool {
        let page = self.sequences.shape().page_size_tokens;
        let pages =
            |feed: &Feed<'_>| self.sequences.table(feed.sequence).map_or(0, |table| (table.len() + 1).div_ceil(page));
        let longest = feeds.iter().map(pages).max().unwrap_or(0);
        let tables_fit = feeds.len() == 1 || feeds.len().saturating_mul(longest) <= self.table_entries;
        feeds.len() <= self.rows.shape.rows && tables_fit
    }

    /// Walks the rows of a step and begins its picks.
    fn walk_ahead(&mut self, feeds: &[Feed<'_>], requests: &[&SampleRequest<'_>]) -> Result<(), RuntimeError> {
        self.backend.part_begin(self.comes_again(feeds));
        let walked = self.walk_part(feeds, Cursor::default());
        let begun = walked.and_then(|cursor| match cursor.feed == feeds.len() {
            true => self.begin_picks(requests),
            false => Err(RuntimeError::Fatal),
        });
        self.backend.part_end();
        begun?;
        self.backend.send_picks().map_err(|_| RuntimeError::Fatal)
    }

    /// Begins the picks, for as many rows at once as there is room for logits.
    fn begin_picks(&mut self, requests: &[&SampleRequest<'_>]) -> Result<(), RuntimeError> {
        let mut first = 0;
        for group in requests.chunks(self.rows.shape.head_rows.max(1)) {
            let at_once = &mut self.rows.at_once;
            at_once.clear();
            at_once.extend(first..first + group.len());
            first += group.len();
            let fatal = |_| RuntimeError::Fatal;
            self.network.head(&self.backend, &mut self.work, at_once).map_err(fatal)?;
            self.backend.begin_picks(self.work.logits_mut(), group).map_err(fatal)?;
        }
        Ok(())
    }

    pub(super) fn end_step(&mut self, feeds: &[Feed<'_>], answers: &mut Answers) -> Result<(), RuntimeError> {
        answers.clear(self.descriptor.vocab_size as usize);
        let begun = &mut self.begun;
        if self.broken || begun.count == 0 || begun.steps[0].len() != feeds.len() {
            return Err(RuntimeError::Fatal);
        }
        begun.count -= 1;
        begun.steps.reverse();
        let mut requests: SmallVec<[Option<&SampleRequest<'_>>; 64]> = SmallVec::new();
        for feed in feeds {
            requests.push(match &feed.want {
                Want::Token(request) => Some(request),
                _ => None,
            });
        }
        let picked = &mut self.rows.picked;
        picked.clear();
        picked.resize(feeds.len(), Picked::NotServed);
        if self.backend.take_picks(&requests, picked).is_err() {
            self.broken = true;
            return Err(RuntimeError::Fatal);
        }
        for (request, picked) in requests.iter().zip(&*picked) {
            match *picked {
                _ if request.is_none() => answers.push_nothing(),
                Picked::Done(Ok(pick)) => answers.push_pick(pick),
                Picked::Done(Err(error)) => answers.push_fault(error.fault_code()),
                Picked::Shaped | Picked::NotServed => answers.push_again(),
            }
        }
        Ok(())
    }
}
