//! State that leaves and comes back: sizings, envelopes, and what is refused of an operation (S-61 .. S-75, S-91).
//!
//! The payload of a token is its id here, and zeros up to the bytes that it takes: so an envelope of the model differs from one of an
//! engine over a real network in nothing but the payload and its checksum.

use std::rc::Rc;

use ictus::record::Status;
use ictus::record::constant::{encoding, misc, op_state, space_id, taint};

use super::cache::{BASIS, digest, fnv};
use super::running::{Job, Work};
use super::{Answer, Hole, Model, Sizing};
use crate::shape::Shape;

/// Bytes of the header of an envelope.
pub(crate) const HEADER: usize = 136;

#[derive(Clone, Debug)]
pub(crate) struct Op {
    pub(crate) handle: u64,
    pub(crate) state: u8,
    pub(crate) error: u32,
    pub(crate) moved: u64,
    pub(super) output: Option<Rc<Vec<u8>>>,
    /// What is still to be done.
    pub(super) job: Option<Job>,
}

/// What a header says beside the identity and the payload.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seal {
    pub(super) provenance: [u8; 32],
    pub(super) taint: u32,
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) encoding: u8,
}

/// What a host hands in: bytes that an engine sealed, or that it sealed itself, as they were or spoiled.
#[derive(Clone)]
pub(crate) struct Envelope {
    pub(crate) pristine: Rc<Vec<u8>>,
    pub(crate) spoil: Spoil,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Spoil {
    Nothing,
    /// A bit, counted over all.
    Flip(usize),
    /// So many bytes are left.
    Cut(usize),
    /// The payload is longer by this much, and sealed as if that were right.
    Longer(usize),
}

impl Envelope {
    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.spoil.apply(&self.pristine)
    }
}

impl std::fmt::Debug for Envelope {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let range = u64_at(&self.pristine, 96)..u64_at(&self.pristine, 104);
        write!(f, "{range:?} in {} bytes, {:?}", self.pristine.len(), self.spoil)
    }
}

impl Spoil {
    pub(crate) fn apply(self, pristine: &[u8]) -> Vec<u8> {
        let mut bytes = pristine.to_vec();
        match self {
            Self::Nothing => {}
            Self::Flip(bit) => bytes[bit / 8] ^= 1 << (bit % 8),
            Self::Cut(len) => bytes.truncate(len),
            Self::Longer(more) => {
                bytes.resize(bytes.len() + more, 0);
                let payload = (bytes.len() - HEADER) as u64;
                bytes[120..128].copy_from_slice(&payload.to_le_bytes());
                let sum = checksum(&bytes).expect("engines know what they write");
                bytes[128..HEADER].copy_from_slice(&sum.to_le_bytes());
            }
        }
        bytes
    }
}

/// The payload of tokens.
fn payload(tokens: &[u32], token_bytes: u64) -> Vec<u8> {
    let of = |token: &u32| {
        let mut bytes = token.to_le_bytes().to_vec();
        bytes.resize(token_bytes as usize, 0);
        bytes
    };
    tokens.iter().flat_map(of).collect()
}

/// The bytes of a state as they leave (section 8 of the state contract).
pub(super) fn seal(identity: [u8; 32], seal: Seal, payload: &[u8]) -> Vec<u8> {
    let mut sealed = Vec::new();
    sealed.extend(misc::STATE_ENVELOPE_MAGIC.to_le_bytes());
    sealed.extend(1u32.to_le_bytes());
    sealed.extend(1u32.to_le_bytes());
    sealed.extend(identity);
    sealed.extend(1u64.to_le_bytes());
    sealed.extend(seal.provenance);
    sealed.extend(seal.taint.to_le_bytes());
    sealed.extend(0u32.to_le_bytes());
    sealed.extend(seal.start.to_le_bytes());
    sealed.extend(seal.end.to_le_bytes());
    sealed.extend([seal.encoding, 0, 0, 0]);
    sealed.extend(2u32.to_le_bytes());
    sealed.extend((payload.len() as u64).to_le_bytes());
    sealed.extend(fnv(payload, BASIS).to_le_bytes());
    assert_eq!(sealed.len(), HEADER);
    sealed.extend(payload);
    sealed
}

/// The text of a host sealed as an engine seals it.
pub(crate) fn seal_text(shape: &Shape, tokens: &[u32], taint: u32) -> Vec<u8> {
    let token_bytes = shape.token_bytes(encoding::LOSSLESS).expect("every runtime offers it");
    let end = tokens.len() as u64;
    let how = Seal { provenance: digest(tokens), taint, start: 0, end, encoding: encoding::LOSSLESS };
    seal(shape.identity(None), how, &payload(tokens, token_bytes))
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// The checksum of an envelope's payload, of either kind (the note on S-72); none of another kind.
pub(crate) fn checksum(sealed: &[u8]) -> Option<u64> {
    let payload = &sealed[HEADER..];
    match u32_at(sealed, 116) {
        1 => Some(xxhash_rust::xxh3::xxh3_64(payload)),
        2 => Some(fnv(payload, BASIS)),
        _ => None,
    }
}

/// S-72.
fn open(sealed: &[u8], identities: &[[u8; 32]]) -> Result<(Seal, usize), Status> {
    let envelope = Err(Status::EnvelopeMismatch);
    if sealed.len() < HEADER {
        return envelope;
    }
    if u64_at(sealed, 0) != misc::STATE_ENVELOPE_MAGIC || u32_at(sealed, 8) != 1 || u32_at(sealed, 12) != 1 {
        return envelope;
    }
    let known = identities.iter().position(|identity| *identity == sealed[16..48]);
    let Some(known) = known.filter(|_| u64_at(sealed, 48) == 1) else { return Err(Status::IdentityMismatch) };
    if u64_at(sealed, 120) != (sealed.len() - HEADER) as u64 {
        return envelope;
    }
    match checksum(sealed) {
        None => envelope,
        Some(sum) if sum != u64_at(sealed, 128) => Err(Status::Checksum),
        Some(_) => Ok((
            Seal {
                provenance: sealed[56..88].try_into().expect("32 bytes"),
                taint: u32_at(sealed, 88),
                start: u64_at(sealed, 96),
                end: u64_at(sealed, 104),
                encoding: sealed[112],
            },
            known,
        )),
    }
}

impl Model {
    fn known_space(&self, seq: u64, space: u32) -> Result<(), Status> {
        match space == space_id::KV && self.is_known(seq) {
            true => Ok(()),
            false => Err(Status::UnknownHandle),
        }
    }

    /// Whether a demoted range of the sequence has a token of this range.
    pub(super) fn meets_hole(&self, seq: u64, start: u64, end: u64) -> bool {
        self.seq(seq).holes.iter().any(|hole| hole.start < end && start < hole.end)
    }

    /// S-61, and ranges that begin at a page (S-91); answers the bytes of a token.
    fn check_range(&self, seq: u64, space: u32, (start, end): (u64, u64), how: u8) -> Result<u64, Status> {
        self.known_space(seq, space)?;
        if start > end || !start.is_multiple_of(self.shape.page as u64) {
            return Err(Status::Unsupported);
        }
        let token_bytes = self.shape.token_bytes(how).ok_or(Status::Unsupported)?;
        match start == end || end > self.seq(seq).tokens.len() as u64 {
            true => Err(Status::RejectBounds),
            false => Ok(token_bytes),
        }
    }

    /// S-61, S-62. What is demoted is sized as if it were there.
    pub(super) fn size(&mut self, seq: u64, space: u32, range: (u64, u64), how: u8) -> Result<u64, Status> {
        let token_bytes = self.check_range(seq, space, range, how)?;
        let (start, end) = range;
        let held = self.seq(seq).tokens.len();
        if !self.meets_hole(seq, start, end) && !self.cuttable_at(held, end as usize) {
            return Err(Status::OutOfBoundary);
        }
        let seq = self.seq_mut(seq);
        let generation = seq.generation;
        seq.sizings.retain(|sizing| sizing.generation == generation);
        let sizing = Sizing { generation, start, end, encoding: how };
        if !seq.sizings.contains(&sizing) {
            seq.sizings.push(sizing);
        }
        Ok(HEADER as u64 + token_bytes * (end - start))
    }

    /// S-65, S-90.
    pub(super) fn snapshot(
        &mut self,
        seq: u64,
        space: u32,
        pos: u64,
        dst: u64,
        generation: u64,
    ) -> Result<u64, Status> {
        self.known_space(seq, space)?;
        if pos == 0 {
            return Err(Status::RejectBounds);
        }
        let held = self.seq(seq).tokens.len() as u64;
        let boundary = match (self.shape.cuts, held <= pos) {
            (true, _) => held.min(pos),
            (false, true) => held,
            (false, false) => 0,
        };
        if boundary != pos || self.meets_hole(seq, 0, pos) {
            return Err(Status::OutOfBoundary);
        }
        if self.is_claimed(seq) {
            return Err(Status::Busy);
        }
        self.start_export(seq, Sizing { generation, start: 0, end: pos, encoding: encoding::LOSSLESS }, dst, false)
    }

    /// S-67, S-90, S-91.
    pub(super) fn demote(
        &mut self,
        seq: u64,
        space: u32,
        (start, end): (u64, u64),
        how: u8,
        dst: u64,
        generation: u64,
    ) -> Result<u64, Status> {
        self.check_range(seq, space, (start, end), how)?;
        if self.meets_hole(seq, start, end) {
            return Err(Status::RejectBounds);
        }
        // An entry rests for everybody, and a lease has promised the sequence whole.
        let leased = self.bare(seq).is_some_and(|bare| bare.leased);
        if self.entry(seq).is_some() || leased || self.is_claimed(seq) {
            return Err(Status::Busy);
        }
        let held = self.seq(seq).tokens.len() as u64;
        if !end.is_multiple_of(self.shape.page as u64) && end != held {
            return Err(Status::OutOfBoundary);
        }
        self.start_export(seq, Sizing { generation, start, end, encoding: how }, dst, true)
    }

    /// S-63, S-64.
    fn start_export(&mut self, seq: u64, sizing: Sizing, dst: u64, release: bool) -> Result<u64, Status> {
        let found = self.seq(seq);
        if sizing.generation != found.generation || !found.sizings.contains(&sizing) {
            return Err(Status::StaleSizing);
        }
        let Sizing { start, end, encoding: how, .. } = sizing;
        let token_bytes = self.shape.token_bytes(how).expect("it was sized");
        if dst < HEADER as u64 + token_bytes * (end - start) {
            return Err(Status::BufferTooSmall);
        }
        let known = self.known_tokens(seq);
        let provenance = if known.len() < end as usize { [0; 32] } else { digest(&known[..end as usize]) };
        let lossy = if how == encoding::LOSSLESS { 0 } else { taint::QUANTIZED_DEMOTION };
        let seal = Seal { provenance, taint: found.taint | lossy, start, end, encoding: how };
        let bytes = Rc::new(payload(&found.tokens[start as usize..end as usize], token_bytes));
        self.seq_mut(seq).sizings.retain(|other| *other != sizing);
        let rests = self.entry(seq).is_some();
        let op = self.new_op(Job { seq, seal, token_bytes, next: start, bytes, work: Work::Export { release } });
        // An entry may be evicted by any tick, so its export does not wait for one.
        self.submit(op, if rests { u64::MAX } else { self.shape.slice });
        Ok(op)
    }

    /// S-73 .. S-75.
    pub(super) fn restore(&mut self, seq: u64, space: u32, sealed: &[u8]) -> Result<u64, Status> {
        if space != space_id::KV {
            return Err(Status::UnknownHandle);
        }
        let bare = self.bare(seq).ok_or(Status::UnknownHandle)?;
        if bare.leased || self.is_claimed(seq) || !self.seq(seq).tokens.is_empty() {
            return Err(Status::Busy);
        }
        // Of the model alone, or of an adapter that is loaded: the sequence will carry it.
        let loaded = self.adapters.iter().filter(|adapter| adapter.loads > 0).map(|adapter| adapter.handle);
        let adapters: Vec<u64> = std::iter::once(0).chain(loaded).collect();
        let identities: Vec<[u8; 32]> = adapters.iter().map(|&adapter| self.identity(adapter)).collect();
        let (seal, known) = open(sealed, &identities)?;
        Ok(self.start_import(seq, seal, &sealed[HEADER..], Some(adapters[known])))
    }

    /// S-91.
    pub(super) fn promote(&mut self, seq: u64, space: u32, range: (u64, u64), sealed: &[u8]) -> Result<u64, Status> {
        self.known_space(seq, space)?;
        if self.is_claimed(seq) {
            return Err(Status::Busy);
        }
        let (seal, _) = open(sealed, &[self.identity(self.seq(seq).adapter)])?;
        let hole = self.seq(seq).holes.iter().find(|hole| (hole.start, hole.end) == range);
        let Some(&Hole { provenance, .. }) = hole.filter(|_| (seal.start, seal.end) == range) else {
            return Err(Status::RejectBounds);
        };
        if provenance != seal.provenance {
            return Err(Status::IdentityMismatch);
        }
        Ok(self.start_import(seq, seal, &sealed[HEADER..], None))
    }

    /// S-74: from here on there is an operation, whatever becomes of it. An empty sequence carries `adapter` then; without one a range
    /// comes back.
    fn start_import(&mut self, seq: u64, seal: Seal, payload: &[u8], adapter: Option<u64>) -> u64 {
        let promote = adapter.is_none();
        let token_bytes = self.shape.token_bytes(seal.encoding).unwrap_or(0);
        let work = Work::Import { promote, begun: false, kept: 0, carried: self.seq(seq).adapter };
        let bytes = Rc::new(payload.to_vec());
        let op = self.new_op(Job { seq, seal, token_bytes, next: seal.start, bytes, work });
        match self.begin_import(op, seal, payload.len() as u64, token_bytes, adapter) {
            Err(error) => self.end_badly(op, Some(error)),
            Ok(()) => {
                self.submit(op, self.shape.slice);
                self.keep_rest(op);
            }
        }
        op
    }

    fn begin_import(
        &mut self,
        op: u64,
        seal: Seal,
        payload: u64,
        token_bytes: u64,
        adapter: Option<u64>,
    ) -> Result<(), Status> {
        if (adapter.is_some() && seal.start != 0) || seal.start >= seal.end || seal.end > self.shape.context as u64 {
            return Err(Status::RejectBounds);
        }
        if token_bytes == 0 {
            return Err(Status::Unsupported);
        }
        if !payload.is_multiple_of(token_bytes) {
            return Err(Status::OutOfBoundary);
        }
        // Found before anything is imported.
        if payload / token_bytes != seal.end - seal.start {
            return Err(Status::EnvelopeMismatch);
        }
        let seq = self.job_mut(op).seq;
        if let Some(adapter) = adapter.filter(|&adapter| adapter != self.seq(seq).adapter) {
            self.seq_mut(seq).adapter = adapter;
            self.begun(op);
        }
        self.import_begin(seq, seal.start as usize, seal.end as usize)?;
        self.begun(op);
        Ok(())
    }

    fn new_op(&mut self, job: Job) -> u64 {
        let handle = self.ops.len() as u64 + 1;
        self.ops.push(Op { handle, state: op_state::PENDING, error: 0, moved: 0, output: None, job: Some(job) });
        handle
    }

    pub(super) fn op(&self, op: u64) -> Option<&Op> {
        self.ops.iter().find(|other| other.handle == op)
    }

    /// S-86.
    pub(super) fn poll(&self, op: u64) -> Answer {
        match self.op(op) {
            Some(op) => Answer::Op { state: op.state, error: op.error, moved: op.moved },
            None => Answer::Refused(Status::UnknownHandle),
        }
    }

    /// S-87.
    pub(super) fn take(&mut self, op: u64) -> Answer {
        let op = self.ops.iter_mut().find(|other| other.handle == op && other.state == op_state::DONE);
        let output = op.and_then(|op| op.output.take());
        self.handed_over.extend(output.iter().filter(|output| !output.is_empty()).cloned());
        Answer::Bytes(output.map(|output| output.to_vec()))
    }

    /// S-88, S-90.
    pub(super) fn cancel(&mut self, op: u64) -> Result<(), Status> {
        let running = self.op(op).ok_or(Status::UnknownHandle)?.job.is_some();
        if running {
            self.end_badly(op, None);
        }
        Ok(())
    }
}
