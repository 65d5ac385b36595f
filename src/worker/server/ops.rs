#![forbid(unsafe_code)]
//! Operations on state: accepted, run, and their end told (W-55 .. W-59).
//!
//! # Invariants
//! - Each accepted operation is told to have ended once, and never before it was told to be accepted.
//! - The sealed bytes of an export lie in the buffer before its end is told.

use std::sync::Arc;

use super::buffer::Buffer;
use super::{OP_WINDOW, Request, ServeError, WorkerServer};
use crate::engine::{Engine, OpHandle};
use crate::record::Status;
use crate::record::constant::op_state;
use crate::worker::message::Message;
use crate::worker::payload::{OpAccepted, OpComplete, StateOp};

/// Operations that were accepted and have not ended.
#[derive(Debug, Default)]
pub(super) struct Ops {
    open: Vec<OpenOp>,
    /// Whether something moved when they were last looked at.
    moved: bool,
}

#[derive(Debug)]
struct OpenOp {
    handle: OpHandle,
    /// Where an export goes; it is kept until the end is told.
    destination: Option<Arc<Buffer>>,
    bytes_moved: u64,
}

impl Ops {
    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    pub(super) fn len(&self) -> u32 {
        // At most the window.
        self.open.len() as u32
    }

    /// Whether the last slice moved anything: then the next one will, too.
    pub(super) fn moved(&self) -> bool {
        self.moved
    }
}

impl<E: Engine + ?Sized> WorkerServer<E> {
    pub(super) fn submit_op(&mut self, request: Request, op: &StateOp) -> Result<(), ServeError> {
        let answer = match self.start_op(op) {
            Ok(open) => {
                let op_handle = open.handle;
                self.ops.open.push(open);
                self.ops.moved = true;
                OpAccepted::Accepted { op_handle }
            }
            Err(status) => OpAccepted::Rejected { status: status.code() },
        };
        self.link.reply(request.seq, &Message::StateOpAccepted(answer))
    }

    fn start_op(&mut self, op: &StateOp) -> Result<OpenOp, Status> {
        if self.ops.len() >= OP_WINDOW {
            return Err(Status::Busy);
        }
        let (StateOp::Snapshot { buf_id, .. }
        | StateOp::Restore { buf_id, .. }
        | StateOp::Demote { buf_id, .. }
        | StateOp::Promote { buf_id, .. }) = op;
        let buffer = self.attached.buffer_of(*buf_id).ok_or(Status::UnknownHandle)?;
        let bytes = buffer.len_bytes();
        let engine = &mut self.engine;
        let (handle, destination) = match op {
            &StateOp::Snapshot { sequence, space_id, boundary_pos, sizing_gen, .. } => {
                (engine.space_snapshot(sequence, space_id, boundary_pos, bytes, sizing_gen)?, Some(Arc::clone(buffer)))
            }
            StateOp::Demote { sequence, space_id, range, encoding, sizing_gen, .. } => {
                let (range, encoding) = (range.into(), *encoding);
                let handle = engine.space_demote(*sequence, *space_id, range, encoding, bytes, *sizing_gen)?;
                (handle, Some(Arc::clone(buffer)))
            }
            StateOp::Restore { sequence, space_id, .. } => {
                (engine.space_restore(*sequence, *space_id, &buffer.envelope()?)?, None)
            }
            StateOp::Promote { sequence, space_id, range, .. } => {
                (engine.space_promote(*sequence, *space_id, range.into(), &buffer.envelope()?)?, None)
            }
        };
        Ok(OpenOp { handle, destination, bytes_moved: 0 })
    }

    /// Tells the end of every operation that has ended.
    pub(super) fn report_ops(&mut self) -> Result<(), ServeError> {
        let Self { engine, link, ops, .. } = self;
        ops.moved = false;
        let mut at = 0;
        while at < ops.open.len() {
            let open = &mut ops.open[at];
            let status = engine.op_poll(open.handle);
            let mut done = match &status {
                Ok(status) => OpComplete {
                    op: open.handle,
                    state: status.state,
                    error: status.error,
                    bytes_moved: status.bytes_moved,
                },
                // An engine that forgot an operation will not finish it.
                Err(status) => OpComplete {
                    op: open.handle,
                    state: op_state::FAILED,
                    error: status.code() as u32,
                    bytes_moved: open.bytes_moved,
                },
            };
            if !matches!(done.state, op_state::DONE | op_state::FAILED | op_state::CANCELLED) {
                ops.moved |= done.bytes_moved > open.bytes_moved;
                open.bytes_moved = done.bytes_moved;
                at += 1;
                continue;
            }
            let open = ops.open.remove(at);
            ops.moved = true;
            if let (op_state::DONE, Some(destination)) = (done.state, &open.destination)
                && let Some(sealed) = engine.take_op_output(open.handle)
                && !destination.put(&sealed)
            {
                (done.state, done.error) = (op_state::FAILED, Status::BufferTooSmall.code() as u32);
            }
            link.reply(0, &Message::StateOpDone(done))?;
        }
        Ok(())
    }

    /// Finishes everything and says so (W-67).
    pub(super) fn drain(&mut self, request: Request) -> Result<(), ServeError> {
        while !self.ops.is_empty() {
            self.pump()?;
            if !self.ops.is_empty() && !self.ops.moved() {
                // They go on elsewhere; a host that has gone meanwhile ends the wait.
                std::thread::sleep(super::ELSEWHERE);
                if self.link.has_gone() {
                    return Ok(());
                }
            }
        }
        self.link.reply(request.seq, &Message::Drained)
    }
}
