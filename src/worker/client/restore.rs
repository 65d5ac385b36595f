#![forbid(unsafe_code)]
//! A lane that begins again takes what the host has exported of it.
//!
//! ```text
//!   snapshot     p p p p                     the longest one of this lane that is done
//!   renewal      p p p p p p o o o           all that the host has seen is the prompt
//!                s s s s x x x x x           s: restored, adopted, and the seed of the admit; x: prefilled
//! ```
//! The sealed bytes lie in memory of this side, which outlives the worker that wrote them, and are kept as long as their lane. They are
//! checked again by the engine that restores them: bytes that are no good cost a prefill.
//!
//! # Limits
//! One space: an engine with several would need a snapshot of each at the same place.

use std::time::Instant;

use super::connection::{Connection, DoneList, Trouble};
use super::error::LinkError;
use super::ops::Parked;
use crate::record::Status;
use crate::record::constant::op_state;
use crate::worker::message::kind;
use crate::worker::payload::{Load, OpAccepted, StateOp, SyncOk, SyncRequest};

/// A sequence of the fresh worker that an admit may begin with.
#[derive(Debug)]
pub(super) struct Restored {
    pub(super) lane_tag: u64,
    /// What the worker calls the lease.
    pub(super) lease: u64,
    sequence: u64,
    pub(super) tokens: usize,
}

impl Connection {
    /// Restores what was exported of these lanes. What is refused is left out.
    pub(super) fn restore(&mut self, tags: &[u64]) -> Result<Vec<Restored>, Trouble> {
        let mut restored = Vec::new();
        if self.live()?.ack.spaces.len() != 1 {
            return Ok(restored);
        }
        for &lane_tag in tags {
            let Some(lane) = self.lanes.get(&lane_tag) else { continue };
            let Some(parked) = self.ops.parked(lane.number).cloned() else { continue };
            let tokens = usize::try_from(parked.tokens).unwrap_or(usize::MAX);
            let (_, prefill) = lane.renewal();
            // One token at least is left to be fed.
            if tokens == 0 || tokens > prefill || tokens >= lane.history.len() {
                continue;
            }
            let span = lane.history[..tokens].to_vec();
            match self.restore_one(&parked, &span) {
                Ok((sequence, lease)) => restored.push(Restored { lane_tag, lease, sequence, tokens }),
                Err(Trouble::Refused(_)) => self.forget_parked(lane_tag),
                Err(gone) => return Err(gone),
            }
        }
        Ok(restored)
    }

    /// Makes a sequence of sealed bytes and leases it; answers both.
    fn restore_one(&mut self, parked: &Parked, span: &[u32]) -> Result<(u64, u64), Trouble> {
        let SyncOk::CreateSequence { sequence } = self.sync(&SyncRequest::CreateSequence)? else {
            return Err(LinkError::Protocol("another answer than to a new sequence").into());
        };
        let leased = self.fill_and_lease(sequence, parked, span);
        if matches!(leased, Err(Trouble::Refused(_))) {
            // The refusal that counts is the one before.
            match self.sync(&SyncRequest::FreeSequence { sequence }) {
                Err(Trouble::Gone(cause)) => return Err(cause.into()),
                _ => return leased,
            }
        }
        leased
    }

    fn fill_and_lease(&mut self, sequence: u64, parked: &Parked, span: &[u32]) -> Result<(u64, u64), Trouble> {
        let limit = self.options.request_timeout;
        let session = self.live()?;
        let buf_id = session.attach_buffer(&parked.memory, limit)?;
        let (mut accepted, mut done) = (OpAccepted::default(), DoneList::default());
        let op = StateOp::Restore { sequence, space_id: parked.space_id, buf_id };
        let kinds = (kind::STATE_OP_SUBMIT, kind::STATE_OP_ACCEPTED);
        session.ask(kinds, &op, &mut accepted, &mut done, limit)?;
        session.tell(kind::BUF_RELEASE, &buf_id, limit)?;
        let OpAccepted::Accepted { op_handle } = accepted else {
            self.ops.note(&done.0);
            return Err(Status::EnvelopeMismatch.into());
        };
        let deadline = limit.map(|limit| Instant::now() + limit);
        let ended = loop {
            self.ops.note(&done.0);
            if let Some(ended) = done.0.iter().find(|ended| ended.op == op_handle) {
                break ended.state;
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Err(LinkError::TimedOut.into());
            }
            // The worker moves the operation on between two questions, and says so before it answers.
            let mut pong = Load::default();
            self.live()?.ask((kind::PING, kind::PONG), &Load::default(), &mut pong, &mut done, limit)?;
        };
        if ended != op_state::DONE {
            return Err(Status::EnvelopeMismatch.into());
        }
        let span = self.stage(span)?;
        match self.sync(&SyncRequest::AdoptSequence { sequence, span })? {
            SyncOk::AdoptSequence { seed_handle } => Ok((sequence, seed_handle)),
            _ => Err(LinkError::Protocol("another answer than to an adoption").into()),
        }
    }

    /// Ends leases that no admit has consumed, and their sequences.
    pub(super) fn give_back(&mut self, restored: &[Restored]) -> Result<(), Trouble> {
        let limit = self.options.request_timeout;
        for seed in restored {
            self.live()?.tell(kind::SEED_RELEASE, &seed.lease, limit)?;
            // One that is of a lane by now stays: an admit of the plan took it.
            if let Err(Trouble::Gone(cause)) = self.sync(&SyncRequest::FreeSequence { sequence: seed.sequence }) {
                return Err(cause.into());
            }
        }
        Ok(())
    }

    /// What was exported of a lane is of no use.
    pub(super) fn forget_parked(&mut self, lane_tag: u64) {
        if let Some(lane) = self.lanes.get(&lane_tag) {
            self.ops.forget_lane(lane.number);
        }
    }
}
