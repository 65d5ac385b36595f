#![forbid(unsafe_code)]
//! The operations that carry state: where each one stands, what it claims, what it gave.
//!
//! ```text
//!   submit --> PENDING --first slice--> RUNNING --last slice--> DONE        its output is taken once
//!                 |                        |------ error -----> FAILED
//!                 '------- cancel ---------+------------------> CANCELLED
//! ```
//!
//! An operation that has not ended holds its [`Job`], and by it a claim on one space of one sequence. When it ends the claim is
//! gone, and it waits to be reported once.
//!
//! # Invariants
//! - At most one operation that has not ended claims a (sequence, space).
//! - `bytes_moved` never falls. Handles ascend from 1 and are never reused (S-85).
//! - An output exists only in state DONE, and is whole.
//!
//! # Limits
//! Of operations that are over - ended, reported, their output taken or without one - the newest [`ENDED_KEPT`] can still be polled;
//! older ones are forgotten (S-97).

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use crate::record::constant::op_state;
use crate::record::view::Plain;
use crate::record::{OpComplete, OpStatus, Status};

use super::checksum::Checksum;
use super::envelope::Seal;

/// Operations that are over and can still be polled.
pub const ENDED_KEPT: usize = 256;

/// What an operation does.
#[derive(Clone)]
pub enum Work {
    /// Writes a range of a sequence into sealed bytes.
    Export {
        /// Header room and the payload so far.
        sealed: Vec<u8>,
        /// Of the payload so far.
        checksum: Checksum,
        /// Give the range's memory back when the bytes are complete (S-91).
        release: bool,
    },
    /// Reads a payload into a sequence.
    Import {
        /// The bytes that are not read yet, and some before them.
        payload: Vec<u8>,
        /// Bytes of `payload` that were read.
        read: usize,
        /// The range was demoted and comes back into a sequence that holds more (S-91).
        promote: bool,
        /// The adapter that the sequence carried before, for when it is undone.
        adapter_before: u64,
    },
}

impl core::fmt::Debug for Work {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Export { sealed, checksum, release } => {
                write!(f, "Export({} bytes, {checksum:?}, release {release})", sealed.len())
            }
            Self::Import { payload, read, promote, .. } => {
                write!(f, "Import({read} of {}, promote {promote})", payload.len())
            }
        }
    }
}

/// An operation at work.
#[derive(Clone, Debug)]
pub struct Job {
    /// The sequence.
    pub sequence: u64,
    /// The space.
    pub space: u32,
    /// The envelope, read or to be written.
    pub seal: Seal,
    /// The tokens that move.
    pub range: Range<u64>,
    /// Payload bytes per token.
    pub token_bytes: u64,
    /// The next token to move.
    pub next: u64,
    /// An import has taken its room: there is something to undo.
    pub begun: bool,
    /// What it does.
    pub work: Work,
}

impl Job {
    /// Payload bytes that have moved.
    pub fn moved_bytes(&self) -> u64 {
        self.token_bytes * (self.next - self.range.start)
    }
}

/// How an operation ended.
#[derive(Debug)]
pub enum End {
    /// With this output, empty for an import.
    Done(Vec<u8>),
    /// With a status.
    Failed(Status),
    /// The host asked for it.
    Cancelled,
}

struct Op {
    state: u8,
    error: Option<Status>,
    bytes_moved: u64,
    job: Option<Job>,
    output: Option<Vec<u8>>,
    reported: bool,
}

impl core::fmt::Debug for Op {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let output = self.output.as_ref().map(Vec::len);
        write!(f, "{} {:?} {} {:?} {output:?} {}", self.state, self.error, self.bytes_moved, self.job, self.reported)
    }
}

/// All operations of an engine.
#[derive(Debug, Default)]
pub struct Ops {
    newest: u64,
    ops: BTreeMap<u64, Op>,
    /// Those that have not ended, oldest first.
    running: VecDeque<u64>,
    /// Those that ended and were not reported, in the order they ended.
    unreported: VecDeque<u64>,
    /// Those that are over, in the order they became so.
    over: VecDeque<u64>,
}

impl Ops {
    /// Starts an operation, which has done nothing yet.
    pub fn submit(&mut self, job: Job) -> u64 {
        self.newest += 1;
        let op =
            Op { state: op_state::PENDING, error: None, bytes_moved: 0, job: Some(job), output: None, reported: false };
        self.ops.insert(self.newest, op);
        self.running.push_back(self.newest);
        self.newest
    }

    /// Whether none is running.
    pub fn is_idle(&self) -> bool {
        self.running.is_empty()
    }

    /// Whether an operation that has not ended works on this sequence, whatever the space.
    pub fn claims(&self, sequence: u64) -> bool {
        self.jobs().any(|job| job.sequence == sequence)
    }

    /// The jobs of those that have not ended, oldest first.
    pub fn jobs(&self) -> impl Iterator<Item = &Job> {
        self.running.iter().filter_map(|op| self.ops.get(op)?.job.as_ref())
    }

    /// The oldest that has not ended.
    pub fn oldest(&self) -> Option<u64> {
        self.running.front().copied()
    }

    /// Takes the job of a running operation, to work on it; the claim stays. It is put back, or the operation ends.
    pub fn take_job(&mut self, op: u64) -> Option<Job> {
        self.ops.get_mut(&op)?.job.take()
    }

    /// Puts a job back that has moved this many bytes in all. Until the first of them it is pending.
    pub fn put_back(&mut self, op: u64, job: Job, bytes_moved: u64) {
        if let Some(op) = self.ops.get_mut(&op) {
            if bytes_moved > 0 {
                op.state = op_state::RUNNING;
            }
            op.bytes_moved = op.bytes_moved.max(bytes_moved);
            op.job = Some(job);
        }
    }

    /// Ends a running operation.
    pub fn end(&mut self, handle: u64, end: End, bytes_moved: u64) {
        let Some(op) = self.ops.get_mut(&handle) else { return };
        op.job = None;
        op.bytes_moved = op.bytes_moved.max(bytes_moved);
        (op.state, op.error, op.output) = match end {
            End::Done(output) => (op_state::DONE, None, Some(output)),
            End::Failed(status) => (op_state::FAILED, Some(status), None),
            End::Cancelled => (op_state::CANCELLED, None, None),
        };
        self.running.retain(|running| *running != handle);
        self.unreported.push_back(handle);
    }

    /// Where an operation stands (S-86).
    pub fn poll(&self, op: u64) -> Option<OpStatus> {
        let op = self.ops.get(&op)?;
        let mut status = OpStatus::zeroed();
        status.struct_size = size_of::<OpStatus>() as u64;
        status.state = op.state;
        status.error = error_code(op);
        status.bytes_moved = op.bytes_moved;
        Some(status)
    }

    /// The output, once, and only when it is done (S-87).
    pub fn take_output(&mut self, op: u64) -> Option<Vec<u8>> {
        let output = self.ops.get_mut(&op)?.output.take();
        self.settle(op);
        output
    }

    /// Tells of every operation that ended and was not told of (S-89).
    pub fn report(&mut self, completions: &mut Vec<OpComplete>) {
        while let Some(handle) = self.unreported.pop_front() {
            let Some(op) = self.ops.get_mut(&handle) else { continue };
            op.reported = true;
            let mut complete = OpComplete::zeroed();
            complete.op = handle;
            complete.state = op.state;
            complete.error = error_code(op);
            complete.bytes_moved = op.bytes_moved;
            completions.push(complete);
            self.settle(handle);
        }
    }

    /// Host memory of outputs and payloads.
    pub fn retained_bytes(&self) -> u64 {
        let of = |op: &Op| {
            let job = op.job.as_ref().map_or(0, |job| match &job.work {
                Work::Export { sealed, .. } => sealed.capacity(),
                Work::Import { payload, .. } => payload.capacity(),
            });
            job + op.output.as_ref().map_or(0, Vec::capacity)
        };
        self.ops.values().map(of).sum::<usize>() as u64
    }

    /// Operations that can be polled.
    pub fn len(&self) -> usize {
        self.ops.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }

    /// Counts an operation among those that are over, if it is, and forgets the oldest of too many.
    fn settle(&mut self, handle: u64) {
        let Some(op) = self.ops.get(&handle) else { return };
        let waits = op.output.as_ref().is_some_and(|output| !output.is_empty());
        if !op.reported || waits || self.over.contains(&handle) {
            return;
        }
        self.over.push_back(handle);
        while self.over.len() > ENDED_KEPT {
            if let Some(oldest) = self.over.pop_front() {
                self.ops.remove(&oldest);
            }
        }
    }
}

/// The status of a failed operation as an unsigned number, else 0.
fn error_code(op: &Op) -> u32 {
    op.error.map_or(0, |status| status.code() as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::constant::checksum_kind;

    fn job(sequence: u64) -> Job {
        let seal = Seal {
            kind: 1,
            version_tag: 1,
            compat_identity: [0; 32],
            provenance: [0; 32],
            taint: 0,
            start: 0,
            end: 4,
            encoding: 0,
        };
        let work = Work::Export {
            sealed: Vec::new(),
            checksum: Checksum::new(checksum_kind::FNV1A64).expect("a known kind"),
            release: false,
        };
        Job { sequence, space: 1, seal, range: 0..4, token_bytes: 4, next: 0, begun: true, work }
    }

    fn state(ops: &Ops, op: u64) -> Option<(u8, u32, u64)> {
        ops.poll(op).map(|status| (status.state, status.error, status.bytes_moved))
    }

    /// S-85 .. S-89.
    #[test]
    fn an_operation_claims_until_it_ends_and_is_reported_once() {
        let mut ops = Ops::default();
        let (first, second) = (ops.submit(job(7)), ops.submit(job(8)));
        assert_eq!((first, second), (1, 2));
        assert!(ops.claims(7) && ops.claims(8) && !ops.claims(9));
        assert_eq!(state(&ops, first), Some((op_state::PENDING, 0, 0)));
        let taken = ops.take_job(first).expect("it runs");
        ops.put_back(first, taken, 8);
        assert_eq!(state(&ops, first), Some((op_state::RUNNING, 0, 8)));
        assert_eq!(ops.take_output(first), None, "nothing before it is done");
        ops.end(first, End::Done(vec![1, 2]), 16);
        ops.end(second, End::Failed(Status::RejectBounds), 0);
        assert!(!ops.claims(7) && ops.is_idle());
        assert_eq!(state(&ops, second), Some((op_state::FAILED, Status::RejectBounds.code() as u32, 0)));
        let mut told = Vec::new();
        ops.report(&mut told);
        ops.report(&mut told);
        assert_eq!(told.iter().map(|told| (told.op, told.state)).collect::<Vec<_>>(), [(1, 2), (2, 3)]);
        assert_eq!((ops.take_output(first), ops.take_output(first)), (Some(vec![1, 2]), None));
        assert_eq!(state(&ops, 3), None);
    }

    /// S-97: what is over is forgotten in time; what the host has not taken never is.
    #[test]
    fn records_that_are_over_are_forgotten() {
        let mut ops = Ops::default();
        let untaken = ops.submit(job(1));
        ops.end(untaken, End::Done(vec![9]), 1);
        let mut told = Vec::new();
        for round in 0..2 * ENDED_KEPT as u64 {
            let op = ops.submit(job(round));
            ops.end(op, End::Cancelled, 0);
            ops.report(&mut told);
        }
        assert_eq!(ops.len(), ENDED_KEPT + 1);
        assert_eq!(ops.take_output(untaken), Some(vec![9]));
        assert_eq!(ops.len(), ENDED_KEPT);
        assert_eq!(state(&ops, untaken).map(|state| state.0), Some(op_state::DONE), "the newest can still be polled");
        assert_eq!(state(&ops, untaken + 1), None);
    }
}
