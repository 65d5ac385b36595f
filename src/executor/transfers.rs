#![forbid(unsafe_code)]
//! State operations at work: slices between steps, claims, completions (S-85 .. S-91).
//!
//! An operation is submitted with its first slice done. Further slices run when the host pumps and at the end of every accepted tick,
//! oldest operation first, until `op_slice_bytes` are moved; so a tick is delayed by one slice at most, however much there is to do.
//!
//! ```text
//!   export    pages --part by part--> sealed bytes, checksum on the way --> header --> DONE (a demotion now gives its pages back)
//!   import    checked bytes --part by part--> pages that nobody reads   --> DONE (the taint and the generation change now)
//! ```
//!
//! # Invariants
//! - A running operation claims its sequence: whatever would change or read the sequence is refused until it ends (S-90). So an
//!   export sees one state, and a half-filled import is seen by nobody.
//! - What an operation that does not end in DONE moved is undone: an import is cut to nothing, a promotion gives its pages back, an
//!   export's bytes are dropped (S-74).

use std::collections::BTreeSet;

use super::spaces::Space;
use super::state::{AuditError, State};
use crate::identity::{CompatInput, compat_identity};
use crate::record::Status;
use crate::record::constant::checksum_kind;
use crate::runtime::{Runtime, RuntimeError, SeqHandle};
use crate::transfer::{Checksum, Demoted, DemotedRanges, End, HEADER_BYTES, Job, Ops, Sizings, Work};

/// Bytes that go through the cache at once, between the runtime and the checksum.
const PART_BYTES: u64 = 256 << 10;

/// Operations, and what they leave behind.
#[derive(Debug, Default)]
pub(super) struct Transfers {
    pub(super) ops: Ops,
    pub(super) sizings: Sizings,
    pub(super) demoted: DemotedRanges,
}

impl Transfers {
    /// Whether no operation runs and nothing is demoted: no plan can meet a lock.
    pub(super) fn is_idle(&self) -> bool {
        self.ops.is_idle() && self.demoted.is_empty()
    }

    /// Whether the sequence must be left alone: an operation runs on it (S-90).
    pub(super) fn claims(&self, sequence: SeqHandle) -> bool {
        !self.ops.is_idle() && self.ops.claims(sequence)
    }

    /// Whether part of the sequence is demoted: it can be neither fed nor copied.
    pub(super) fn has_holes(&self, sequence: SeqHandle) -> bool {
        !self.demoted.of(sequence).is_empty()
    }

    /// Refuses what would change or read a sequence that an operation claims (S-90).
    ///
    /// # Errors
    /// `Busy`.
    pub(super) fn check_unclaimed(&self, sequence: SeqHandle) -> Result<(), Status> {
        if self.claims(sequence) { Err(Status::Busy) } else { Ok(()) }
    }

    /// Refuses what needs all of a sequence: a fork, an adoption, a publication (S-90, S-91).
    ///
    /// # Errors
    /// `Busy` when an operation runs on it or part of it is demoted.
    pub(super) fn check_whole(&self, sequence: SeqHandle) -> Result<(), Status> {
        if self.claims(sequence) || self.has_holes(sequence) { Err(Status::Busy) } else { Ok(()) }
    }
}

/// How far one slice came.
enum Slice {
    More,
    Complete,
}

impl<R: Runtime> State<R> {
    /// The identity of state in a space, of the model alone or with an adapter (S-80).
    pub(super) fn compat_identity(&self, kind: u32, version_tag: u64, adapter: Option<&[u8; 32]>) -> [u8; 32] {
        compat_identity(&CompatInput {
            kind,
            version_tag,
            runtime_id: &self.descriptor.runtime_id,
            runtime_version: &self.descriptor.runtime_version,
            weights_identity: &self.descriptor.weights_identity,
            adapter,
        })
    }

    /// The identity of a sequence's state.
    ///
    /// # Errors
    /// `Fatal` when the runtime does not know the adapter that it says the sequence carries.
    pub(super) fn identity_of(&self, space: &Space, sequence: SeqHandle) -> Result<[u8; 32], Status> {
        let digest = match self.runtime.seq_adapter(sequence) {
            0 => None,
            adapter => Some(self.runtime.adapter_digest(adapter).ok_or(Status::Fatal)?),
        };
        Ok(self.compat_identity(space.kind, space.version_tag, digest.as_ref()))
    }

    /// The checksum that envelopes get.
    pub(super) fn new_checksum(&self) -> Checksum {
        let kind = if self.options.op_fast_checksum { checksum_kind::XXH3_64 } else { checksum_kind::FNV1A64 };
        Checksum::new(kind).unwrap_or(Checksum::Fnv(crate::identity::FNV_BASIS))
    }

    /// Runs slices of the oldest operations until the bytes of one slice are moved.
    pub(super) fn run_ops(&mut self) {
        let mut budget = self.options.op_slice_bytes.max(1);
        while budget > 0
            && let Some(op) = self.transfers.ops.oldest()
        {
            let moved = self.run_slice(op, budget, None);
            budget = budget.saturating_sub(moved.max(1));
        }
        self.run_departures();
        if !self.transfers.demoted.is_empty() {
            self.forget_demoted();
        }
    }

    /// One slice of an operation, of about `budget` bytes and at least a token; answers the bytes. `source` is where an import that was
    /// just submitted reads from.
    pub(super) fn run_slice(&mut self, op: u64, budget: u64, source: Option<&[u8]>) -> u64 {
        let Some(mut job) = self.transfers.ops.take_job(op) else { return 0 };
        let before = job.next;
        let tokens = (budget / job.token_bytes.max(1)).max(1);
        let until = job.range.end.min(before.saturating_add(tokens));
        let outcome = self.move_tokens(&mut job, until, source);
        let bytes = job.token_bytes * (job.next - before);
        match outcome {
            Ok(Slice::More) => {
                let moved = job.moved_bytes();
                self.transfers.ops.put_back(op, job, moved);
            }
            Ok(Slice::Complete) => self.complete(op, job),
            Err(error) => self.abandon(op, job, Some(error)),
        }
        bytes
    }

    /// Moves tokens up to `until`, part by part.
    fn move_tokens(&mut self, job: &mut Job, until: u64, source: Option<&[u8]>) -> Result<Slice, Status> {
        let part = (PART_BYTES / job.token_bytes.max(1)).max(1);
        while job.next < until {
            let tokens = job.next..until.min(job.next + part);
            let bytes = (job.token_bytes * (tokens.end - tokens.start)) as usize;
            match &mut job.work {
                Work::Export { sealed, checksum, .. } => {
                    // Of memory that was reserved when the operation was submitted.
                    let start = sealed.len();
                    sealed.resize(start + bytes, 0);
                    let out = sealed.get_mut(start..).unwrap_or_default();
                    self.runtime.export_part(job.sequence, tokens.clone(), job.seal.encoding, out)?;
                    checksum.update(out);
                }
                Work::Import { payload, read, .. } => {
                    let from = source.unwrap_or(payload);
                    let now = from.get(*read..*read + bytes).ok_or(Status::EnvelopeMismatch)?;
                    self.runtime.import_part(job.sequence, tokens.clone(), job.seal.encoding, now)?;
                    *read += bytes;
                }
            }
            job.next = tokens.end;
        }
        Ok(if job.next < job.range.end { Slice::More } else { Slice::Complete })
    }

    /// Ends an operation whose bytes have all moved.
    fn complete(&mut self, op: u64, mut job: Job) {
        let outcome = match &mut job.work {
            Work::Export { release: true, .. } => self.release_demoted(&job),
            Work::Export { .. } => Ok(()),
            Work::Import { .. } => self.finish_import(&job),
        };
        if let Err(error) = outcome {
            return self.abandon(op, job, Some(error));
        }
        let payload_bytes = job.moved_bytes();
        let output = match job.work {
            Work::Export { mut sealed, checksum, .. } => {
                let header = job.seal.header(payload_bytes, &checksum);
                if let Some(room) = sealed.first_chunk_mut::<HEADER_BYTES>() {
                    *room = header;
                }
                sealed
            }
            Work::Import { .. } => Vec::new(),
        };
        let bytes_moved = payload_bytes.max(output.len() as u64);
        self.transfers.ops.end(op, End::Done(output), bytes_moved);
    }

    /// Gives the memory of a demoted range back (S-91).
    fn release_demoted(&mut self, job: &Job) -> Result<(), Status> {
        self.runtime.range_release(job.sequence, job.range.clone())?;
        self.cells_moved = true;
        let (start, end) = (job.range.start, job.range.end);
        self.cells_moved = true;
        self.transfers.demoted.add(job.sequence, Demoted { start, end, provenance: job.seal.provenance });
        self.advance_generation(job.sequence);
        Ok(())
    }

    /// Makes an import part of its sequence (S-75, S-91).
    fn finish_import(&mut self, job: &Job) -> Result<(), Status> {
        let held = self.runtime.import_end(job.sequence, job.range.clone())?;
        let Work::Import { promote, .. } = job.work else { return Ok(()) };
        if !promote && held != job.range.end {
            return Err(Status::EnvelopeMismatch);
        }
        self.advance_generation(job.sequence);
        if let Some(content) = self.content_mut(job.sequence) {
            let taint = u64::from(job.seal.taint);
            content.taint = if promote { content.taint | taint } else { taint };
        }
        if promote {
            self.transfers.demoted.remove(job.sequence, job.range.start, job.range.end);
        } else if let Some(bare) = self.bare.get_mut(&job.sequence) {
            bare.tokens = Default::default();
        }
        Ok(())
    }

    /// Ends an operation that failed, or that the host cancels; undoes what it moved.
    pub(super) fn abandon(&mut self, op: u64, job: Job, error: Option<Status>) {
        let moved = job.moved_bytes();
        let undone = match job.work {
            Work::Export { .. } => Ok(()),
            Work::Import { .. } if !job.begun => Ok(()),
            Work::Import { promote: true, .. } => self.runtime.range_release(job.sequence, job.range.clone()),
            Work::Import { adapter_before, .. } => self.undo_import(job.sequence, adapter_before),
        };
        let end = match (undone, error) {
            (Err(_), _) => End::Failed(Status::Fatal),
            (Ok(()), Some(error)) => End::Failed(error),
            (Ok(()), None) => End::Cancelled,
        };
        self.transfers.ops.end(op, end, moved);
    }

    /// Empties the sequence of an import, and has it carry again what it carried before.
    fn undo_import(&mut self, sequence: SeqHandle, adapter: u64) -> Result<(), RuntimeError> {
        self.runtime.seq_truncate(sequence, 0)?;
        self.cells_moved = true;
        if self.runtime.seq_adapter(sequence) == adapter { Ok(()) } else { self.carry_adapter(sequence, adapter) }
    }

    /// Has an empty bare sequence carry an adapter.
    pub(super) fn carry_adapter(&mut self, sequence: SeqHandle, adapter: u64) -> Result<(), RuntimeError> {
        self.runtime.seq_adapt(sequence, adapter)?;
        if let Some(content) = self.content_mut(sequence) {
            content.adapter = adapter;
        }
        Ok(())
    }

    /// Operations work on sequences that exist, one on each and within it, and so do demoted ranges.
    pub(super) fn audit_transfers(&self) -> Result<(), AuditError> {
        let mut claimed = BTreeSet::new();
        for job in self.transfers.ops.jobs() {
            let within = job.range.start <= job.next && job.next <= job.range.end;
            let known = self.owner_of(job.sequence).is_some() && job.range.end <= self.runtime.seq_len(job.sequence);
            if !within || !known || !claimed.insert(job.sequence) {
                return Err(AuditError::Operation { sequence: job.sequence });
            }
        }
        for (sequence, ranges) in self.transfers.demoted.iter() {
            let held = self.runtime.seq_len(sequence);
            let known = self.owner_of(sequence).is_some();
            if known && ranges.iter().any(|range| range.start >= range.end || range.end > held) {
                return Err(AuditError::Demoted { sequence });
            }
        }
        Ok(())
    }

    /// Notes that the content of a sequence is another one now; its sizings are stale (S-3).
    pub(super) fn advance_generation(&mut self, sequence: SeqHandle) {
        if let Some(content) = self.content_mut(sequence) {
            *content = content.advanced();
        }
    }

    /// Forgets demoted ranges of sequences that are gone.
    fn forget_demoted(&mut self) {
        let mut demoted = core::mem::take(&mut self.transfers.demoted);
        demoted.retain(|sequence| self.owner_of(sequence).is_some());
        self.transfers.demoted = demoted;
    }
}
