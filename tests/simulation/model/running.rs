//! Operations at work (S-74, S-75, S-85 .. S-91): slices, what they leave behind, how they end.
//!
//! A submission moves a slice of bytes, at least a token, or nothing where slices are of nothing. Then the oldest operations go on, for
//! a slice of bytes together, when the host pumps and at the end of every accepted tick.

use std::rc::Rc;

use ictus::record::Status;
use ictus::record::constant::op_state;

use super::ops::{HEADER, Seal, seal, u32_at};
use super::{Hole, Model};

#[derive(Clone, Copy, Debug)]
pub(super) enum Work {
    Export {
        /// The range is given back when the bytes are complete.
        release: bool,
    },
    Import {
        /// A demoted range comes back.
        promote: bool,
        /// Its room is taken.
        begun: bool,
        /// Bytes that had to be kept because the first slice did not read them.
        kept: u64,
        /// The adapter that the sequence carried before.
        carried: u64,
    },
}

/// An operation that has not ended.
#[derive(Clone, Debug)]
pub(super) struct Job {
    pub(super) seq: u64,
    pub(super) seal: Seal,
    pub(super) token_bytes: u64,
    /// The next token to move.
    pub(super) next: u64,
    /// The whole payload.
    pub(super) bytes: Rc<Vec<u8>>,
    pub(super) work: Work,
}

impl Job {
    fn moved(&self) -> u64 {
        self.token_bytes * (self.next - self.seal.start)
    }
}

impl Model {
    /// S-90: an operation that has not ended works on it.
    pub(crate) fn is_claimed(&self, seq: u64) -> bool {
        self.ops.iter().any(|op| op.job.as_ref().is_some_and(|job| job.seq == seq))
    }

    /// The oldest operation that has not ended.
    pub(crate) fn running(&self) -> Option<u64> {
        self.ops.iter().find(|op| op.job.is_some()).map(|op| op.handle)
    }

    /// The oldest operation whose bytes wait to be taken.
    pub(crate) fn waiting(&self) -> Option<u64> {
        let waits = |op: &&super::ops::Op| op.output.as_ref().is_some_and(|output| !output.is_empty());
        self.ops.iter().find(waits).map(|op| op.handle)
    }

    pub(super) fn has_holes(&self, seq: u64) -> bool {
        !self.seq(seq).holes.is_empty()
    }

    pub(super) fn job_mut(&mut self, op: u64) -> &mut Job {
        self.ops[op as usize - 1].job.as_mut().expect("it has not ended")
    }

    pub(super) fn begun(&mut self, op: u64) {
        if let Work::Import { begun, .. } = &mut self.job_mut(op).work {
            *begun = true;
        }
    }

    /// The first slice.
    pub(super) fn submit(&mut self, op: u64, slice: u64) {
        if slice > 0 {
            self.run_slice(op, slice);
        }
    }

    /// What the first slice of an import did not read is kept for the next ones.
    pub(super) fn keep_rest(&mut self, op: u64) {
        if let Some(job) = &mut self.ops[op as usize - 1].job {
            let rest = job.bytes.len() as u64 - job.moved();
            if let Work::Import { kept, .. } = &mut job.work {
                *kept = rest;
            }
        }
    }

    /// The slices of a pump, or of the end of a tick.
    pub(super) fn run_ops(&mut self) {
        let mut budget = self.shape.slice.max(1);
        while budget > 0
            && let Some(op) = self.ops.iter().find(|op| op.job.is_some()).map(|op| op.handle)
        {
            budget = budget.saturating_sub(self.run_slice(op, budget).max(1));
        }
    }

    /// Moves about so many bytes; answers how many it were.
    fn run_slice(&mut self, op: u64, budget: u64) -> u64 {
        let job = self.job_mut(op).clone();
        let tokens = (budget / job.token_bytes).max(1);
        let until = job.seal.end.min(job.next.saturating_add(tokens));
        let at = |token: u64| (job.token_bytes * (token - job.seal.start)) as usize;
        let moved = match job.work {
            Work::Export { .. } => self.seq_export(),
            Work::Import { .. } => {
                let part = job.bytes[at(job.next)..at(until)].chunks(job.token_bytes as usize);
                let tokens: Vec<u32> = part.map(|bytes| u32_at(bytes, 0)).collect();
                self.import_part(job.seq, job.next as usize, &tokens)
            }
        };
        if let Err(error) = moved {
            self.end_badly(op, Some(error.into()));
            return 0;
        }
        self.job_mut(op).next = until;
        let (running, bytes) = (&mut self.ops[op as usize - 1], job.token_bytes * (until - job.next));
        running.state = op_state::RUNNING;
        running.moved = job.token_bytes * (until - job.seal.start);
        if until == job.seal.end {
            self.complete(op);
        }
        bytes
    }

    /// S-75, S-91: what an operation changes when all its bytes have moved.
    fn complete(&mut self, op: u64) {
        let job = self.job_mut(op).clone();
        let (start, end) = (job.seal.start, job.seal.end);
        let ended = match job.work {
            Work::Export { release: false } => Ok(()),
            Work::Export { release: true } => self.range_release(job.seq, start as usize, end as usize),
            Work::Import { .. } => self.import_end(),
        };
        if let Err(error) = ended {
            return self.end_badly(op, Some(error.into()));
        }
        let seq = self.seq_mut(job.seq);
        match job.work {
            Work::Export { release: false } => {}
            Work::Export { release: true } => {
                seq.holes.push(Hole { start, end, provenance: job.seal.provenance });
                seq.generation += 1;
            }
            Work::Import { promote, .. } => {
                seq.generation += 1;
                seq.taint = if promote { seq.taint | job.seal.taint } else { job.seal.taint };
                if promote {
                    seq.holes.retain(|hole| (hole.start, hole.end) != (start, end));
                } else {
                    let restored = self.bares.iter_mut().filter(|bare| bare.seq == job.seq);
                    restored.for_each(|bare| bare.known.clear());
                }
            }
        }
        let adapter = self.seq(job.seq).adapter;
        let output = match job.work {
            Work::Export { .. } => seal(self.identity(adapter), job.seal, &job.bytes),
            Work::Import { .. } => vec![],
        };
        let moved = job.moved().max(output.len() as u64);
        self.end(op, op_state::DONE, 0, moved, Some(output));
    }

    /// An operation that failed, or that the host ends; what it moved is undone (S-74, S-90).
    pub(super) fn end_badly(&mut self, op: u64, error: Option<Status>) {
        let job = self.job_mut(op).clone();
        let (start, end) = (job.seal.start as usize, job.seal.end as usize);
        let undone = match job.work {
            Work::Import { begun: true, promote: true, .. } => self.range_release(job.seq, start, end).is_ok(),
            Work::Import { begun: true, promote: false, carried, .. } => {
                let loaded = self.is_loaded(carried);
                let seq = self.seq_mut(job.seq);
                seq.tokens.clear();
                seq.granules.clear();
                let same = seq.adapter == carried;
                seq.adapter = if loaded { carried } else { seq.adapter };
                same || loaded
            }
            _ => true,
        };
        let (state, error) = match (undone, error) {
            (false, _) => (op_state::FAILED, Status::Fatal as u32),
            (true, Some(error)) => (op_state::FAILED, error as u32),
            (true, None) => (op_state::CANCELLED, 0),
        };
        self.end(op, state, error, job.moved(), None);
    }

    fn end(&mut self, handle: u64, state: u8, error: u32, moved: u64, output: Option<Vec<u8>>) {
        let op = &mut self.ops[handle as usize - 1];
        (op.state, op.error, op.output, op.job) = (state, error, output.map(Rc::new), None);
        op.moved = op.moved.max(moved);
        self.completions.push(handle);
    }

    /// Bytes of the host's memory that operations hold: exports that are not taken, those under way, and imports to be read.
    pub(crate) fn op_bytes(&self) -> u64 {
        let of = |op: &super::ops::Op| {
            let output = op.output.as_ref().map_or(0, |output| output.len() as u64);
            let job = op.job.as_ref().map_or(0, |job| match job.work {
                Work::Export { .. } => (HEADER + job.bytes.len()) as u64,
                Work::Import { kept, .. } => kept,
            });
            output + job
        };
        self.ops.iter().map(of).sum()
    }

    /// What the accepted tick reports (S-89, T-144).
    pub(super) fn take_completions(&mut self) -> Vec<(u64, u8, u32, u64)> {
        let ended = std::mem::take(&mut self.completions);
        let of = |handle| self.op(handle).map(|op| (op.handle, op.state, op.error, op.moved));
        ended.into_iter().filter_map(of).collect()
    }
}
