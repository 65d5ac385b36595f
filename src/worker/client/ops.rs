#![forbid(unsafe_code)]
//! State operations that were accepted, their buffers, and how they ended.
//!
//! # Invariants
//! - An operation ends once, and stays as it ended; one whose worker is gone has failed.
//! - The bytes of a finished export lie in memory of this side: they outlive the worker.
//!
//! # Limits
//! Of operations that ended, and whose output nobody can take any more, the last 4096 are known.

use std::collections::{BTreeMap, HashMap};

use crate::record::constant::op_state;
use crate::record::{OpComplete, OpStatus, StateEnvelope, Status};
use crate::worker::memory::SharedMemory;
use crate::worker::payload;

const KNOWN: usize = 4096;
/// Where an envelope says how long its payload is.
const PAYLOAD_LEN_AT: usize = core::mem::offset_of!(StateEnvelope, payload_len);

/// Whether an envelope is as long as it says (S-72): a buffer may be longer than what lies in it, so the worker cannot know.
pub(super) fn is_whole(sealed: &[u8]) -> bool {
    let says = sealed.get(PAYLOAD_LEN_AT..).and_then(|rest| rest.first_chunk::<8>());
    let payload_len = says.and_then(|&bytes| usize::try_from(u64::from_le_bytes(bytes)).ok());
    payload_len.and_then(|len| len.checked_add(size_of::<StateEnvelope>())) == Some(sealed.len())
}

/// Sealed state of the beginning of a lane.
#[derive(Clone, Debug)]
pub(super) struct Parked {
    pub(super) memory: SharedMemory,
    pub(super) space_id: u32,
    /// How many tokens of the lane it holds.
    pub(super) tokens: u64,
}

#[derive(Debug)]
struct Op {
    state: u8,
    error: u32,
    bytes_moved: u64,
    /// Of an export that was not taken: its name at the worker of its time, and the memory.
    buffer: Option<(u64, SharedMemory)>,
    /// Of an import: its output, which is empty, is there to be taken (S-75).
    imports: bool,
    /// Of a snapshot of a live lane: the lane's number, and what it will hold.
    parks: Option<(u64, Parked)>,
}

impl Op {
    fn is_over(&self) -> bool {
        !matches!(self.state, op_state::PENDING | op_state::RUNNING)
    }
}

/// All operations that the host may ask about.
#[derive(Debug, Default)]
pub(super) struct Ops {
    last: u64,
    ops: BTreeMap<u64, Op>,
    /// Names of those that the worker of the moment knows.
    named: HashMap<u64, u64>,
    /// Per lane, by its number, the longest snapshot that is done.
    parked: HashMap<u64, Parked>,
    /// Failed with their worker, and not reported yet.
    unreported: Vec<u64>,
    /// Buffers that nobody needs any more.
    idle_buffers: Vec<u64>,
}

impl Ops {
    /// An operation was accepted; answers its name.
    pub(super) fn add(
        &mut self,
        remote: u64,
        buffer: Option<(u64, SharedMemory)>,
        parks: Option<(u64, Parked)>,
    ) -> u64 {
        self.last += 1;
        let imports = buffer.is_none();
        let op = Op { state: op_state::RUNNING, error: 0, bytes_moved: 0, buffer, imports, parks };
        self.ops.insert(self.last, op);
        self.named.insert(remote, self.last);
        self.forget_old();
        self.last
    }

    fn forget_old(&mut self) {
        while self.ops.len() > KNOWN {
            let Some((&name, _)) = self.ops.iter().find(|(_, op)| op.is_over() && op.buffer.is_none()) else { return };
            self.ops.remove(&name);
            self.named.retain(|_, known| *known != name);
        }
    }

    /// What the worker calls it.
    pub(super) fn remote(&self, name: u64) -> Option<u64> {
        self.named.iter().find(|(_, known)| **known == name).map(|(&remote, _)| remote)
    }

    /// Whether the worker works on something.
    pub(super) fn are_running(&self) -> bool {
        self.ops.values().any(|op| !op.is_over())
    }

    /// Notes which have ended. Those of another host, and those that ended before, say nothing.
    pub(super) fn note(&mut self, done: &[payload::OpComplete]) {
        for complete in done {
            let op = self.named.get(&complete.op).and_then(|name| self.ops.get_mut(name));
            let terminal = matches!(complete.state, op_state::DONE | op_state::FAILED | op_state::CANCELLED);
            if let Some(op) = op.filter(|op| !op.is_over() && terminal) {
                (op.state, op.error, op.bytes_moved) = (complete.state, complete.error, complete.bytes_moved);
                if let (op_state::DONE, Some((lane, parked))) = (op.state, op.parks.take()) {
                    let longer = self.parked.get(&lane).is_none_or(|before| before.tokens <= parked.tokens);
                    longer.then(|| self.parked.insert(lane, parked));
                }
                if op.state != op_state::DONE
                    && let Some((buffer, _)) = op.buffer.take()
                {
                    self.idle_buffers.push(buffer);
                }
            }
        }
    }

    /// What was exported of a lane, by its number.
    pub(super) fn parked(&self, lane: u64) -> Option<&Parked> {
        self.parked.get(&lane)
    }

    /// The lane is over, or what was exported of it is of no use.
    pub(super) fn forget_lane(&mut self, lane: u64) {
        self.parked.remove(&lane);
        for op in self.ops.values_mut().filter(|op| op.parks.as_ref().is_some_and(|(of, _)| *of == lane)) {
            op.parks = None;
        }
    }

    /// The completions of a tick, under the host's names, and those that failed with their worker.
    pub(super) fn report(&mut self, completions: &[payload::OpComplete], out: &mut Vec<OpComplete>) {
        self.note(completions);
        let known = completions.iter().filter_map(|complete| self.named.get(&complete.op).copied());
        for name in known.chain(self.unreported.drain(..)) {
            if let Some(op) = self.ops.get(&name) {
                let Op { state, error, bytes_moved, .. } = *op;
                out.push(OpComplete { op: name, state, _pad0: [0; 3], error, bytes_moved });
            }
        }
    }

    /// Where it stands.
    pub(super) fn status(&self, name: u64) -> Option<OpStatus> {
        let &Op { state, error, bytes_moved, .. } = self.ops.get(&name)?;
        Some(OpStatus { struct_size: size_of::<OpStatus>() as u64, state, _pad0: [0; 3], error, bytes_moved })
    }

    /// The sealed bytes of an export that is done, once. What the envelope says of their length is not believed beyond the buffer.
    pub(super) fn take_output(&mut self, name: u64) -> Option<Vec<u8>> {
        let op = self.ops.get_mut(&name).filter(|op| op.state == op_state::DONE)?;
        if std::mem::take(&mut op.imports) {
            return Some(Vec::new());
        }
        let (buffer, memory) = op.buffer.take()?;
        self.idle_buffers.push(buffer);
        let mut len = [0; 8];
        if !memory.copy_out(PAYLOAD_LEN_AT, &mut len) {
            return None;
        }
        let payload_len = usize::try_from(u64::from_le_bytes(len)).ok()?;
        let sealed = size_of::<StateEnvelope>().checked_add(payload_len).filter(|&len| len <= memory.len_bytes())?;
        let mut bytes = vec![0; sealed];
        memory.copy_out(0, &mut bytes).then_some(bytes)
    }

    /// Buffers to be released.
    pub(super) fn take_idle_buffers(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.idle_buffers)
    }

    /// What runs has failed.
    pub(super) fn worker_is_gone(&mut self) {
        for (&name, op) in self.ops.iter_mut().filter(|(_, op)| !op.is_over()) {
            // The status as the record's unsigned field carries it.
            (op.state, op.error) = (op_state::FAILED, Status::Fatal as i32 as u32);
            (op.buffer, op.parks) = (None, None);
            self.unreported.push(name);
        }
        self.named.clear();
        self.idle_buffers.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn done(op: u64, state: u8) -> payload::OpComplete {
        payload::OpComplete { op, state, error: 0, bytes_moved: 8 }
    }

    #[test]
    fn operation_of_a_dead_worker_has_failed_and_is_reported_once() {
        let mut ops = Ops::default();
        let first = ops.add(50, None, None);
        let second = ops.add(51, None, None);
        ops.note(&[done(50, op_state::DONE), done(99, op_state::DONE)]);
        ops.worker_is_gone();
        let state = |ops: &Ops, name| ops.status(name).map(|status| status.state);
        assert_eq!((state(&ops, first), state(&ops, second)), (Some(op_state::DONE), Some(op_state::FAILED)));
        let mut out = Vec::new();
        ops.report(&[done(51, op_state::DONE)], &mut out);
        ops.report(&[], &mut out);
        assert_eq!(out.iter().map(|complete| complete.op).collect::<Vec<_>>(), [second], "51 means nothing any more");
    }

    #[test]
    fn output_is_taken_once_and_never_beyond_its_buffer() {
        let memory = SharedMemory::create("test", 200).expect("created");
        assert!(memory.copy_in(PAYLOAD_LEN_AT, &64u64.to_le_bytes()));
        let mut ops = Ops::default();
        let name = ops.add(1, Some((7, memory)), None);
        assert_eq!(ops.take_output(name), None, "it runs");
        ops.note(&[done(1, op_state::DONE)]);
        assert_eq!(ops.take_output(name).map(|bytes| bytes.len()), Some(200));
        assert_eq!((ops.take_output(name), ops.take_idle_buffers()), (None, vec![7]));
        // S-75: an import has an output, once, and it is empty.
        let name = ops.add(3, None, None);
        assert_eq!(ops.take_output(name), None, "it runs");
        ops.note(&[done(3, op_state::DONE)]);
        assert_eq!((ops.take_output(name), ops.take_output(name)), (Some(Vec::new()), None));
        let memory = SharedMemory::create("test", 200).expect("created");
        assert!(memory.copy_in(PAYLOAD_LEN_AT, &u64::MAX.to_le_bytes()));
        let name = ops.add(2, Some((8, memory)), None);
        ops.note(&[done(2, op_state::DONE)]);
        assert_eq!(ops.take_output(name), None, "an envelope that lies");
    }
}
