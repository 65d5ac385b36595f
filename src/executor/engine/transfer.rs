#![forbid(unsafe_code)]
//! Calls of the host about the transfer of state (S-61 .. S-91).
//!
//! Each call checks everything first, in the order of the contract; what it refuses left no trace. What it accepts is an operation
//! with its first slice done (`transfers.rs`).

use std::ops::Range;

use crate::capacity::{Demand, Domain, NOTHING, Remedy};
use crate::engine::{ExportSize, OpHandle};
use crate::executor::Executor;
use crate::executor::sequences::Owner;
use crate::executor::spaces::Space;
use crate::executor::state::State;
use crate::identity::content_digest;
use crate::record::constant::encoding;
use crate::record::{OpStatus, Status, TokenRange};
use crate::runtime::{Runtime, SeqHandle};
use crate::transfer::{HEADER_BYTES, Job, Opened, Opener, Seal, SizingKey, Work, taint_of_export};

/// Sequences with sizings from which on those that went on are swept out.
const SIZINGS_SWEPT: usize = 64;

impl<R: Runtime> Executor<R> {
    /// What an export would take; nothing is exported (S-61, S-62, S-97).
    pub(super) fn size_export(
        &mut self,
        sequence: SeqHandle,
        space: u32,
        range: TokenRange,
        encoding: u8,
    ) -> Result<ExportSize, Status> {
        let state = &mut self.state;
        let space = state.space_of_op(space, sequence)?;
        let range = state.check_range(&space, sequence, range, encoding)?;
        let payload_bytes = state.payload_bytes(sequence, range.clone(), encoding)?;
        let generation = state.content_of(sequence).ok_or(Status::UnknownHandle)?.generation;
        let bytes = payload_bytes.saturating_add(HEADER_BYTES as u64);
        state.sweep_sizings();
        let key = SizingKey { start: range.start, end: range.end, encoding };
        state.transfers.sizings.keep(sequence, space.id, generation, key, bytes);
        Ok(ExportSize { bytes, sizing_gen: generation })
    }

    /// The largest position that may be snapshot (S-66): before what is demoted, and of whole pages on a cuttable runtime.
    pub(super) fn boundary(&self, sequence: SeqHandle, space: u32, cap: u64) -> Result<u64, Status> {
        let space = self.state.space_of_op(space, sequence)?;
        let len = self.state.runtime.seq_len(sequence);
        let whole = self.state.transfers.demoted.first(sequence).unwrap_or(len);
        let boundary = self.state.runtime.seq_boundary(sequence, cap.min(whole));
        if space.is_blob() {
            return Ok(space.boundary_under(boundary, len));
        }
        let cuttable = self.state.descriptor.truncate_partial;
        Ok(if cuttable { boundary - boundary % space.page } else { boundary })
    }

    /// Exports the first `position` tokens (S-65).
    pub(super) fn snapshot(
        &mut self,
        sequence: SeqHandle,
        space: u32,
        position: u64,
        dst_bytes: u64,
        sizing_gen: u64,
    ) -> Result<OpHandle, Status> {
        let state = &mut self.state;
        let space = state.space_of_op(space, sequence)?;
        if position == 0 {
            return Err(Status::RejectBounds);
        }
        let len = state.runtime.seq_len(sequence);
        let reachable = state.runtime.seq_boundary(sequence, position) == position;
        let whole = !state.transfers.demoted.overlap(sequence, 0, position);
        if !reachable || !whole || !space.snapshots_at(position, len) {
            return Err(Status::OutOfBoundary);
        }
        state.transfers.check_unclaimed(sequence)?;
        state.start_export(&space, sequence, 0..position, encoding::LOSSLESS, dst_bytes, sizing_gen, false)
    }

    /// Exports a range and gives its memory back when that is done (S-67, S-91).
    pub(super) fn demote(
        &mut self,
        sequence: SeqHandle,
        space: u32,
        range: TokenRange,
        encoding: u8,
        dst_bytes: u64,
        sizing_gen: u64,
    ) -> Result<OpHandle, Status> {
        let state = &mut self.state;
        let space = state.space_of_op(space, sequence)?;
        let range = state.check_range(&space, sequence, range, encoding)?;
        if state.transfers.demoted.overlap(sequence, range.start, range.end) {
            return Err(Status::RejectBounds);
        }
        if !state.is_free_to_demote(sequence) {
            return Err(Status::Busy);
        }
        let len = state.runtime.seq_len(sequence);
        if !range.end.is_multiple_of(space.page) && range.end != len {
            return Err(Status::OutOfBoundary);
        }
        state.start_export(&space, sequence, range, encoding, dst_bytes, sizing_gen, true)
    }

    /// Fills an empty bare sequence (S-73 .. S-75).
    pub(super) fn restore(&mut self, sequence: SeqHandle, space: u32, sealed: &[u8]) -> Result<OpHandle, Status> {
        let state = &mut self.state;
        let space = state.space_of_op(space, sequence)?;
        let bare = state.bare.get(&sequence).ok_or(Status::UnknownHandle)?;
        if bare.lease.is_some() || state.transfers.claims(sequence) || state.runtime.seq_len(sequence) > 0 {
            return Err(Status::Busy);
        }
        let (opened, adapter) = state.open(&space, sealed)?;
        Ok(state.start_import(&space, sequence, &opened, Some(adapter)))
    }

    /// Fills a demoted range again (S-91).
    pub(super) fn promote(
        &mut self,
        sequence: SeqHandle,
        space: u32,
        range: TokenRange,
        sealed: &[u8],
    ) -> Result<OpHandle, Status> {
        let state = &mut self.state;
        let space = state.space_of_op(space, sequence)?;
        state.transfers.check_unclaimed(sequence)?;
        // The sequence's own adapter, which may be unloaded by now: what left can always come back.
        let identities = [state.identity_of(&space, sequence)?];
        let opener = Opener { kind: space.kind, version_tag: space.version_tag, identities: &identities };
        let opened = opener.open(sealed)?;
        let asked = space.tokens(range.start, range.end);
        let sealed_range = space.tokens(opened.seal.start, opened.seal.end);
        let demoted = state.transfers.demoted.of(sequence).iter().find(|gone| (gone.start..gone.end) == asked);
        let Some(demoted) = demoted.filter(|_| sealed_range == asked) else { return Err(Status::RejectBounds) };
        if demoted.provenance != opened.seal.provenance {
            return Err(Status::IdentityMismatch);
        }
        Ok(state.start_import(&space, sequence, &opened, None))
    }

    /// Cuts a bare sequence (S-68).
    pub(super) fn trim(&mut self, sequence: SeqHandle, space: u32, len: u64) -> Result<(), Status> {
        let state = &mut self.state;
        let space = state.space_of_op(space, sequence)?;
        let leased = state.bare.get(&sequence).is_none_or(|bare| bare.lease.is_some());
        if leased || state.transfers.claims(sequence) {
            return Err(Status::Busy);
        }
        let held = state.runtime.seq_len(sequence);
        if len > held {
            return Err(Status::RejectBounds);
        }
        if !space.trims_to(len, held) || state.transfers.demoted.are_cut_by(sequence, len) {
            return Err(Status::OutOfBoundary);
        }
        state.runtime.seq_truncate(sequence, len)?;
        // An entry that shared the cells may hold them alone now (S-57).
        state.cells_moved = true;
        state.transfers.demoted.cut(sequence, len);
        state.cells_moved = true;
        state.advance_generation(sequence);
        Ok(())
    }

    pub(super) fn poll_op(&self, op: OpHandle) -> Result<OpStatus, Status> {
        self.state.transfers.ops.poll(op).ok_or(Status::UnknownHandle)
    }

    pub(super) fn take_output(&mut self, op: OpHandle) -> Option<Vec<u8>> {
        self.state.transfers.ops.take_output(op)
    }

    /// Cancels a running operation; one that has ended stays as it is (S-88).
    pub(super) fn cancel_op(&mut self, op: OpHandle) -> Result<(), Status> {
        self.poll_op(op)?;
        if let Some(job) = self.state.transfers.ops.take_job(op) {
            self.state.abandon(op, job, None);
        }
        Ok(())
    }

    /// Runs a slice of the operations that have not ended (S-90).
    pub(super) fn pump_ops(&mut self) {
        if !self.state.broken {
            self.state.run_ops();
        }
    }
}

impl<R: Runtime> State<R> {
    /// A range that an export in this encoding may have (S-61).
    fn check_range(
        &self,
        space: &Space,
        sequence: SeqHandle,
        range: TokenRange,
        encoding: u8,
    ) -> Result<Range<u64>, Status> {
        let range = space.tokens(range.start, range.end);
        if range.start > range.end || !space.may_start_at(range.start) {
            return Err(Status::Unsupported);
        }
        if !space.encodes(encoding) || self.runtime.payload_token_bytes(encoding).is_none() {
            return Err(Status::Unsupported);
        }
        let len = self.runtime.seq_len(sequence);
        if range.is_empty() || range.end > len {
            return Err(Status::RejectBounds);
        }
        if space.is_blob() && !space.snapshots_at(range.end, len) {
            return Err(Status::OutOfBoundary);
        }
        Ok(range)
    }

    /// Payload bytes of a checked range. What is demoted is counted as if it were there: an operation on it says what is wrong.
    fn payload_bytes(&self, sequence: SeqHandle, range: Range<u64>, encoding: u8) -> Result<u64, Status> {
        if self.transfers.demoted.overlap(sequence, range.start, range.end) {
            let token = self.runtime.payload_token_bytes(encoding).ok_or(Status::Unsupported)?;
            return Ok(token.saturating_mul(range.end - range.start));
        }
        Ok(self.runtime.export_bytes(sequence, range, encoding)?)
    }

    /// Drops sizings of sequences that went on, once there are many.
    fn sweep_sizings(&mut self) {
        if self.transfers.sizings.len() < SIZINGS_SWEPT {
            return;
        }
        let mut sizings = core::mem::take(&mut self.transfers.sizings);
        sizings.retain(|sequence, generation| {
            self.content_of(sequence).is_some_and(|content| content.generation == generation)
        });
        self.transfers.sizings = sizings;
    }

    /// Whether memory of this sequence may be given back: it is a lane's or the host's, not leased, and no operation runs on it.
    fn is_free_to_demote(&self, sequence: SeqHandle) -> bool {
        let owned = match self.owner_of(sequence) {
            Some(Owner::Bare) => self.bare.get(&sequence).is_some_and(|bare| bare.lease.is_none()),
            Some(Owner::Lane(_)) => true,
            _ => false,
        };
        owned && !self.transfers.claims(sequence)
    }

    /// Whether so many bytes of state may leave for the host's memory.
    fn has_room_out(&self, bytes: u64) -> bool {
        let mut units = NOTHING;
        units[Domain::HostExport.index()] = bytes;
        // What is retained is told at the end of this call, and nobody else exports in it.
        self.ledger.check(&Demand::of(units), Remedy::Wait).is_ok()
    }

    /// Starts an export that was checked but for its sizing (S-63, S-64).
    #[expect(clippy::too_many_arguments, reason = "an operation is all of this")]
    fn start_export(
        &mut self,
        space: &Space,
        sequence: SeqHandle,
        range: Range<u64>,
        encoding: u8,
        dst_bytes: u64,
        sizing_gen: u64,
        release: bool,
    ) -> Result<OpHandle, Status> {
        let content = self.content_of(sequence).ok_or(Status::UnknownHandle)?;
        let key = SizingKey { start: range.start, end: range.end, encoding };
        let sized = self.transfers.sizings.find(sequence, space.id, content.generation, key);
        let bytes = sized.filter(|_| sizing_gen == content.generation).ok_or(Status::StaleSizing)?;
        if dst_bytes < bytes {
            return Err(Status::BufferTooSmall);
        }
        let seal = Seal {
            kind: space.kind,
            version_tag: space.version_tag,
            compat_identity: self.identity_of(space, sequence)?,
            provenance: self.provenance(sequence, range.end),
            taint: taint_of_export(content.taint as u32, encoding),
            start: if space.is_blob() { range.end } else { range.start },
            end: range.end,
            encoding,
        };
        let token_bytes = self.runtime.payload_token_bytes(encoding).ok_or(Status::Unsupported)?;
        let next = range.start;
        let mut sealed = Vec::new();
        if !self.has_room_out(bytes) {
            // The host counts these bytes: what does not fit is an operation that failed, and no engine that is short.
            self.transfers.sizings.consume(sequence, space.id, key);
            let work = Work::Export { sealed, checksum: self.new_checksum(), release };
            let job = Job { sequence, space: space.id, seal, range, token_bytes, next, begun: true, work };
            let op = self.transfers.ops.submit(job);
            if let Some(job) = self.transfers.ops.take_job(op) {
                self.abandon(op, job, Some(Status::RejectBudget));
            }
            return Ok(op);
        }
        let room = usize::try_from(bytes).map_err(|_| Status::NeedsReplan)?;
        sealed.try_reserve_exact(room).map_err(|_| Status::NeedsReplan)?;
        sealed.resize(HEADER_BYTES, 0);
        self.transfers.sizings.consume(sequence, space.id, key);
        let work = Work::Export { sealed, checksum: self.new_checksum(), release };
        let job = Job { sequence, space: space.id, seal, range, token_bytes, next, begun: true, work };
        let op = self.transfers.ops.submit(job);
        // An entry of the cache may be evicted by any tick, so its export waits for none.
        let rests = matches!(self.owner_of(sequence), Some(Owner::Entry(_)));
        let slice = if rests { u64::MAX } else { self.options.op_slice_bytes };
        if slice > 0 {
            self.run_slice(op, slice, None);
        }
        Ok(op)
    }

    /// The digest of the first `end` known tokens; zeros when fewer are known.
    fn provenance(&self, sequence: SeqHandle, end: u64) -> [u8; 32] {
        let known = self.known_tokens(sequence).unwrap_or_default();
        usize::try_from(end).ok().and_then(|end| known.get(..end)).map_or([0; 32], content_digest)
    }

    /// Opens sealed bytes (S-72), and says which adapter they were computed with.
    fn open<'b>(&self, space: &Space, sealed: &'b [u8]) -> Result<(Opened<'b>, u64), Status> {
        let adapters = self.runtime.adapters();
        let mut identities = vec![self.compat_identity(space.kind, space.version_tag, None)];
        identities.extend(
            adapters.iter().map(|loaded| self.compat_identity(space.kind, space.version_tag, Some(&loaded.digest))),
        );
        let opener = Opener { kind: space.kind, version_tag: space.version_tag, identities: &identities };
        let opened = opener.open(sealed)?;
        let adapter = opened.identity.checked_sub(1).and_then(|index| adapters.get(index));
        Ok((opened, adapter.map_or(0, |loaded| loaded.handle)))
    }

    /// Starts an import of opened bytes; there is an operation from here on, whatever happens (S-74). `adapter` is what an empty
    /// sequence is to carry; none promotes a range.
    fn start_import(
        &mut self,
        space: &Space,
        sequence: SeqHandle,
        opened: &Opened<'_>,
        adapter: Option<u64>,
    ) -> OpHandle {
        let seal = opened.seal;
        let range = space.tokens(seal.start, seal.end);
        let token_bytes = self.runtime.payload_token_bytes(seal.encoding).unwrap_or(0);
        let promote = adapter.is_none();
        let adapter_before = self.runtime.seq_adapter(sequence);
        let work = Work::Import { payload: Vec::new(), read: 0, promote, adapter_before };
        let next = range.start;
        let job = Job { sequence, space: space.id, seal, range, token_bytes, next, begun: false, work };
        let op = self.transfers.ops.submit(job);
        match self.begin_import(op, opened, adapter) {
            Ok(()) if self.options.op_slice_bytes > 0 => {
                self.run_slice(op, self.options.op_slice_bytes, Some(opened.payload));
                self.keep_rest(op, opened.payload);
            }
            Ok(()) => self.keep_rest(op, opened.payload),
            Err(error) => {
                if let Some(job) = self.transfers.ops.take_job(op) {
                    self.abandon(op, job, Some(error));
                }
            }
        }
        op
    }

    /// What an import checks as an operation (S-74), and the room it takes.
    fn begin_import(&mut self, op: OpHandle, opened: &Opened<'_>, adapter: Option<u64>) -> Result<(), Status> {
        let Some(mut job) = self.transfers.ops.take_job(op) else { return Err(Status::Fatal) };
        let outcome = self.begin_checked_import(&mut job, opened, adapter);
        let moved = job.moved_bytes();
        self.transfers.ops.put_back(op, job, moved);
        outcome
    }

    fn begin_checked_import(&mut self, job: &mut Job, opened: &Opened<'_>, adapter: Option<u64>) -> Result<(), Status> {
        let range = job.range.clone();
        if (adapter.is_some() && range.start != 0) || range.is_empty() || range.end > self.descriptor.max_seq_len {
            return Err(Status::RejectBounds);
        }
        let payload_bytes = opened.payload.len() as u64;
        let token = self.runtime.payload_token_bytes(job.seal.encoding).ok_or(Status::Unsupported)?;
        if !payload_bytes.is_multiple_of(token.max(1)) {
            return Err(Status::OutOfBoundary);
        }
        if payload_bytes / token.max(1) != range.end - range.start {
            return Err(Status::EnvelopeMismatch);
        }
        if let Some(adapter) = adapter.filter(|&adapter| adapter != self.runtime.seq_adapter(job.sequence)) {
            self.carry_adapter(job.sequence, adapter)?;
            job.begun = true;
        }
        self.with_room(|runtime| runtime.import_begin(job.sequence, range.clone()))?;
        job.begun = true;
        Ok(())
    }

    /// Keeps the bytes of a payload that the first slice has not read.
    fn keep_rest(&mut self, op: OpHandle, payload: &[u8]) {
        let Some(mut job) = self.transfers.ops.take_job(op) else { return };
        let Work::Import { payload: kept, read, .. } = &mut job.work else { return };
        let rest = payload.get(*read..).unwrap_or_default();
        if kept.try_reserve_exact(rest.len()).is_err() {
            return self.abandon(op, job, Some(Status::NeedsReplan));
        }
        kept.extend_from_slice(rest);
        *read = 0;
        let moved = job.moved_bytes();
        self.transfers.ops.put_back(op, job, moved);
    }
}
