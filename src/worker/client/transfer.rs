#![forbid(unsafe_code)]
//! How an operation on state begins: its buffer is attached, then it is submitted (W-40, W-56).

use super::connection::{Connection, DoneList, status_of};
use super::ops::{Parked, is_whole};
use crate::engine::{OpHandle, SeqHandle};
use crate::record::Status;
use crate::worker::memory::SharedMemory;
use crate::worker::message::kind;
use crate::worker::payload::{OpAccepted, StateOp};

impl Connection {
    /// Submits an operation. An export gets a buffer of `room` bytes, an import one with `sealed`. A snapshot of a lane `parks` so many tokens
    /// of a space: a fresh worker may begin with them.
    pub(super) fn operate(
        &mut self,
        sequence: SeqHandle,
        buffer: &dyn Fn() -> Result<SharedMemory, Status>,
        exports: bool,
        parks: Option<(u32, u64)>,
        make: &dyn Fn(u64, u64) -> StateOp,
    ) -> Result<OpHandle, Status> {
        self.with_worker(|connection| {
            let remote = connection.sequence(sequence)?;
            let limit = connection.options.request_timeout;
            for idle in connection.ops.take_idle_buffers() {
                connection.live()?.tell(kind::BUF_RELEASE, &idle, limit)?;
            }
            let memory = buffer()?;
            let session = connection.live()?;
            let buf_id = session.attach_buffer(&memory, limit)?;
            let (mut accepted, mut done) = (OpAccepted::default(), DoneList::default());
            let kinds = (kind::STATE_OP_SUBMIT, kind::STATE_OP_ACCEPTED);
            session.ask(kinds, &make(remote, buf_id), &mut accepted, &mut done, limit)?;
            let op_handle = match accepted {
                OpAccepted::Accepted { op_handle } => op_handle,
                OpAccepted::Rejected { status } => {
                    session.tell(kind::BUF_RELEASE, &buf_id, limit)?;
                    connection.ops.note(&done.0);
                    return Err(status_of(status).into());
                }
            };
            // An import was copied when it was submitted (W-56).
            if !exports {
                session.tell(kind::BUF_RELEASE, &buf_id, limit)?;
            }
            let parks = parks.filter(|_| exports).and_then(|(space_id, tokens)| {
                let lane = connection.lanes.values().find(|lane| lane.sequence == Some(sequence))?;
                Some((lane.number, Parked { memory: memory.clone(), space_id, tokens }))
            });
            let name = connection.ops.add(op_handle, exports.then_some((buf_id, memory)), parks);
            connection.ops.note(&done.0);
            connection.ping()?;
            Ok(name)
        })
    }
}

/// An import's bytes in memory of their own.
pub(super) fn sealed_memory(sealed: &[u8]) -> Result<SharedMemory, Status> {
    if !is_whole(sealed) {
        return Err(Status::EnvelopeMismatch);
    }
    let memory = SharedMemory::create("ictus-import", sealed.len().max(1)).map_err(|_| Status::NeedsReplan)?;
    if memory.copy_in(0, sealed) { Ok(memory) } else { Err(Status::EnvelopeMismatch) }
}
