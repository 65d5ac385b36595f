#![forbid(unsafe_code)]
//! One batch (X-36 .. X-51).
//!
//! ```text
//!   shape of all items -> identity, state of all -> one claim -----------> step, step ... -> publish
//!   check.rs              check.rs, table locked    claim.rs, the same     step.rs           publish.rs
//!                                                   hold of the table      submission        submission, table
//!   refused: nothing happened .......................................|     nothing is refused any more
//! ```
//! With the claim the sequences are in flight and theirs is what it took; what goes wrong afterwards is a fault in a row.
//!
//! # Invariants
//! - A sequence in flight is touched by its run alone; it lands in the hold of the table that publishes its row.
//! - A runtime that panics is broken: what it had not answered is held (X-63), and nothing stays in flight.
//! - Mixed kinds run in one step. Only a verification of more rows than a feed may want goes on in further steps.

mod check;
mod claim;
mod publish;
mod step;

use std::time::Instant;

use super::core::Shared;
use super::work::{Fault, Kind, Out, Row, Work};
use crate::capacity::{NOTHING, Refusal, Units};
use crate::runtime::{Answers, Feed, Runtime, SeqHandle};

/// Lists of calls that are kept between them, at most.
const SCRATCHES_MAX: usize = 16;
/// Output buffers that a call keeps, at most.
const SPARES_MAX: usize = 1024;

/// What one submission at a time steps with.
#[derive(Debug, Default)]
pub(super) struct Workshop {
    pub(super) answers: Answers,
    pub(super) feeds: Vec<Feed<'static>>,
    /// The job of each feed.
    pub(super) fed: Vec<usize>,
    /// Penalised ids, each once.
    pub(super) distinct: Vec<u32>,
}

/// Lists of one call.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    jobs: Vec<Job>,
    units: Vec<Units>,
    /// Claimed for the batch as a whole.
    shared: Units,
    spare_tokens: Vec<Vec<u32>>,
    spare_data: Vec<Vec<f32>>,
}

/// One item on its way.
#[derive(Debug)]
struct Job {
    slot: usize,
    kind: Kind,
    /// Its first token, and behind its last one as it will run.
    start: usize,
    end: usize,
    /// Whether it ends where it was planned to, and so may yield a row.
    yields: bool,
    probes: u32,
    counted: bool,
    /// Blocks that were claimed for it, and pages that it takes from the pool.
    pages: u64,
    handle: SeqHandle,
    /// The sequence's tokens, lent.
    tokens: Vec<u32>,
    /// How far it has been stepped.
    done: usize,
    /// Its step could not pick: the row is asked for again.
    again: bool,
    picked: Vec<u32>,
    data: Vec<f32>,
    rows: usize,
    no_finite: bool,
    fault: Option<Fault>,
    /// Tokens that the runtime says the sequence holds.
    reached: u64,
}

impl Scratch {
    /// Takes the buffers of the rows of an earlier call.
    fn recycle(&mut self, rows: &mut Vec<Row>) {
        for row in rows.drain(..) {
            match row.out {
                Ok(Out::Tokens(tokens)) if self.spare_tokens.len() < SPARES_MAX => self.spare_tokens.push(tokens),
                Ok(Out::Logits { data, .. }) if self.spare_data.len() < SPARES_MAX => self.spare_data.push(data),
                _ => {}
            }
        }
    }
}

impl<R: Runtime> Shared<R> {
    pub(super) fn run_batch(&self, work: &[Work<'_>], rows: &mut Vec<Row>) -> Result<(), Refusal> {
        let spare = self.scratches.lock().unwrap_or_else(std::sync::PoisonError::into_inner).pop();
        let mut scratch = spare.unwrap_or_default();
        scratch.recycle(rows);
        let outcome = self.run_with(work, rows, &mut scratch);
        scratch.jobs.clear();
        let mut kept = self.scratches.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if kept.len() < SCRATCHES_MAX {
            kept.push(scratch);
        }
        outcome
    }

    fn run_with(&self, work: &[Work<'_>], rows: &mut Vec<Row>, scratch: &mut Scratch) -> Result<(), Refusal> {
        if work.is_empty() {
            return Ok(());
        }
        self.check_shape(work)?;
        scratch.shared = NOTHING;
        self.take_off(work, scratch)?;
        let mut turn = self.submit();
        let started = Instant::now();
        if self.contain(&mut turn, |core| self.step(core, work, scratch)).is_err() {
            self.give_up(scratch);
        }
        self.publish(turn, work, scratch, rows, started.elapsed());
        Ok(())
    }
}
