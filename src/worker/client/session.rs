#![forbid(unsafe_code)]
//! One worker from its start to its end: the link, the process, the shared memory, and what the worker said of itself.
//!
//! # Invariants
//! A session is whole or gone: the first failure ends it, and everything it has (sockets, memory, process) goes with it.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use super::error::{LinkError, WorkerGone};
use super::link::{Link, Listener, Unasked};
use super::options::RemoteOptions;
use super::process::WorkerProcess;
use super::{Launcher, Peer};
use crate::record::constant::ring_id;
use crate::record::{RingRef, TokenRef};
use crate::ring::{RingError, SharedRing, segment_bytes};
use crate::worker::codec::Wire;
use crate::worker::frame::{MAX_FRAME_BYTES, VERSION};
use crate::worker::memory::SharedMemory;
use crate::worker::message::kind;
use crate::worker::payload::{
    BufAttach, Hello, HelloAck, RingAck, RingAttach, RingKind, RingSpec, Role, SyncOk, SyncRequest, SyncResult,
    Versions,
};
use crate::worker::socket::send_descriptor;

/// Tag of the control segment (W-37).
const CONTROL_TAG: u64 = 0xC0;
/// Most bytes of one ring that a worker may ask for.
const MAX_RING_BYTES: usize = 4 << 30;
/// How long a worker that was left may take to go.
const GRACE: Duration = Duration::from_secs(2);

/// Hears nothing: for requests during which nothing unasked matters.
pub(super) struct Deaf;

impl Listener for Deaf {
    fn hear(&mut self, _: Unasked<'_>) {}
}

/// A worker that serves.
#[derive(Debug)]
pub(super) struct Session {
    link: Link,
    process: Option<WorkerProcess>,
    pub(super) ack: HelloAck,
    tokens_in: SharedRing,
    tokens_out: SharedRing,
    logits: SharedRing,
    /// Slots of token-in, token-out and logits.
    pub(super) slots: [u32; 3],
    next_buffer: u64,
}

impl Session {
    /// Starts a worker and shakes hands (W-31, W-37, W-90).
    pub(super) fn start(
        launcher: &mut dyn Launcher,
        control: &SharedMemory,
        options: &RemoteOptions,
    ) -> Result<Self, WorkerGone> {
        let Peer { frames, descriptors, mut process } = match launcher.launch() {
            Ok(peer) => peer,
            Err(error) => {
                return Err(WorkerGone { cause: error.into(), status: None, stderr_tail: String::new() });
            }
        };
        let link = Link::new(frames, descriptors);
        let deadline = options.start_timeout.map(|limit| Instant::now() + limit);
        match Self::shake_hands(link, &mut process, control, deadline) {
            Ok(mut session) => {
                session.process = process;
                Ok(session)
            }
            Err(cause) => Err(post_mortem(cause, process)),
        }
    }

    fn shake_hands(
        mut link: Link,
        process: &mut Option<WorkerProcess>,
        control: &SharedMemory,
        deadline: Option<Instant>,
    ) -> Result<Self, LinkError> {
        let versions = Versions { lowest: VERSION, highest: VERSION };
        let hello = Hello { versions, role: Role::NodeAgent, auth: Vec::new() };
        let mut ack = HelloAck::default();
        let seq = link.send(kind::HELLO, &hello, deadline)?;
        link.receive((seq, kind::HELLO_ACK), &mut ack, &mut Deaf, process, deadline)?;
        if ack.chosen != VERSION {
            return Err(LinkError::Version { got: ack.chosen });
        }
        link.agree(ack.chosen);
        if ack.limits.max_frame > MAX_FRAME_BYTES {
            return Err(LinkError::Protocol("it takes larger frames than there are"));
        }
        let specs = check_specs(&ack.limits.ring_specs)?;
        let mut rings = Vec::with_capacity(specs.len());
        // In the order that it advertises (W-90).
        for spec in &ack.limits.ring_specs {
            let ring = attach_ring(&mut link, process, spec, deadline)?;
            rings.push(ring);
        }
        let mut echo = 0u32;
        let bytes = control.len_bytes() as u32;
        let seq = link.send(kind::CONTROL_ATTACH, &bytes, deadline)?;
        send_descriptor(link.descriptors(), CONTROL_TAG, control.descriptor())?;
        link.receive((seq, kind::CONTROL_ACK), &mut echo, &mut Deaf, process, deadline)?;
        if echo != bytes {
            return Err(LinkError::Protocol("it acknowledges another control segment"));
        }
        let mut take = |id| {
            let at = rings.iter().position(|ring: &SharedRing| ring.id() == id);
            at.map(|at| rings.swap_remove(at)).ok_or(LinkError::Protocol("a ring is missing"))
        };
        let (tokens_in, tokens_out) = (take(ring_id::TOKENS_IN)?, take(ring_id::TOKENS_OUT)?);
        let logits = take(ring_id::LOGITS)?;
        let slots = specs.map(|spec| spec.slots);
        Ok(Self { link, process: None, ack, tokens_in, tokens_out, logits, slots, next_buffer: 1 })
    }

    /// Most tokens of a prompt (W-30).
    pub(super) fn prompt_capacity(&self) -> usize {
        self.tokens_in.payload_bytes() / 4
    }

    /// The number of the worker's process, if it was started here.
    pub(super) fn process_id(&self) -> Option<u32> {
        self.process.as_ref().map(WorkerProcess::id)
    }

    /// Writes a span into token-in.
    pub(super) fn stage(&mut self, tokens: &[u32]) -> Result<crate::worker::payload::TokenRef, RingError> {
        let (index, generation) = self.tokens_in.write(tokens)?;
        let count = u32::try_from(tokens.len()).map_err(|_| RingError::OutOfBounds)?;
        Ok(crate::worker::payload::TokenRef { ring_id: ring_id::TOKENS_IN, index, count, generation })
    }

    /// The tokens of an emit.
    pub(super) fn emitted(&self, reference: &TokenRef, out: &mut Vec<u32>) -> Result<(), RingError> {
        if reference.ring_id != ring_id::TOKENS_OUT {
            return Err(RingError::UnknownRing(reference.ring_id));
        }
        self.tokens_out.read(reference.index, reference.generation, Some(reference.count), out)
    }

    /// A row of logits.
    pub(super) fn row(&self, reference: &RingRef, out: &mut Vec<f32>) -> Result<(), RingError> {
        if reference.ring_id != ring_id::LOGITS {
            return Err(RingError::UnknownRing(reference.ring_id));
        }
        self.logits.read(reference.index, reference.generation, None, out)
    }

    /// Sends what has no reply.
    pub(super) fn tell<T: Wire>(&mut self, kind: u16, payload: &T, limit: Option<Duration>) -> Result<(), LinkError> {
        self.link.send(kind, payload, deadline(limit)).map(|_| ())
    }

    /// Sends a request and waits for its reply.
    pub(super) fn ask<T: Wire, R: Wire>(
        &mut self,
        (asked, answered): (u16, u16),
        payload: &T,
        reply: &mut R,
        listener: &mut dyn Listener,
        limit: Option<Duration>,
    ) -> Result<(), LinkError> {
        let deadline = deadline(limit);
        let seq = self.link.send(asked, payload, deadline)?;
        self.link.receive((seq, answered), reply, listener, &mut self.process, deadline)
    }

    /// A question or a change that is answered at once; the inner error is the engine's status.
    pub(super) fn sync(
        &mut self,
        request: &SyncRequest,
        listener: &mut dyn Listener,
        limit: Option<Duration>,
    ) -> Result<Result<SyncOk, i32>, LinkError> {
        let mut reply = SyncResult::default();
        self.ask((kind::STATE_SYNC_REQ, kind::STATE_SYNC_RES), request, &mut reply, listener, limit)?;
        Ok(match reply {
            SyncResult::Ok(answer) => Ok(answer),
            SyncResult::Err { status } => Err(status),
        })
    }

    /// Takes what came unasked.
    pub(super) fn listen(&mut self, listener: &mut dyn Listener) -> Result<(), LinkError> {
        self.link.listen(listener)
    }

    /// Passes a buffer and answers its name (W-40).
    pub(super) fn attach_buffer(&mut self, memory: &SharedMemory, limit: Option<Duration>) -> Result<u64, LinkError> {
        let buf_id = self.next_buffer;
        self.next_buffer += 1;
        let attach = BufAttach { buf_id, len: memory.len_bytes() as u64, generation: 1 };
        self.tell(kind::BUF_ATTACH, &attach, limit)?;
        send_descriptor(self.link.descriptors(), buf_id, memory.descriptor())?;
        Ok(buf_id)
    }

    /// The session is over.
    pub(super) fn bury(self, cause: LinkError) -> WorkerGone {
        let Self { link, process, .. } = self;
        drop(link);
        post_mortem(cause, process)
    }

    /// Leaves the worker, which then ends by itself (W-70); one that does not is killed.
    pub(super) fn leave(self) -> Option<std::process::ExitStatus> {
        let Self { link, process, .. } = self;
        drop(link);
        process.and_then(|mut process| process.end(GRACE))
    }
}

fn deadline(limit: Option<Duration>) -> Option<Instant> {
    limit.map(|limit| Instant::now() + limit)
}

/// Ends the process and notes its end.
fn post_mortem(cause: LinkError, process: Option<WorkerProcess>) -> WorkerGone {
    let Some(mut process) = process else {
        return WorkerGone { cause, status: None, stderr_tail: String::new() };
    };
    process.listen();
    // One that closed its end is about to exit and says how; one that is mute or breaks the protocol is not waited for.
    let grace = if matches!(cause, LinkError::Closed) { GRACE } else { Duration::ZERO };
    let status = process.end(grace);
    WorkerGone { cause, status, stderr_tail: process.last_words() }
}

/// The specs of token-in, token-out and logits, each there once (W-30).
fn check_specs(specs: &[RingSpec]) -> Result<[RingSpec; 3], LinkError> {
    let ids = [ring_id::TOKENS_IN, ring_id::TOKENS_OUT, ring_id::LOGITS];
    if specs.len() != ids.len() {
        return Err(LinkError::Protocol("it does not advertise three rings"));
    }
    let mut found = [const { None }; 3];
    for (place, id) in found.iter_mut().zip(ids) {
        *place = specs.iter().find(|spec| spec.ring_id == id).cloned();
    }
    let [Some(tokens_in), Some(tokens_out), Some(logits)] = found else {
        return Err(LinkError::Protocol("it advertises a ring that is none"));
    };
    if (&tokens_in.kind, &tokens_out.kind, &logits.kind) != (&RingKind::Tokens, &RingKind::Tokens, &RingKind::Logits) {
        return Err(LinkError::Protocol("a ring is of the wrong kind"));
    }
    Ok([tokens_in, tokens_out, logits])
}

/// Makes a ring, passes it, and waits until the worker has taken it (W-31).
fn attach_ring(
    link: &mut Link,
    process: &mut Option<WorkerProcess>,
    spec: &RingSpec,
    deadline: Option<Instant>,
) -> Result<SharedRing, LinkError> {
    let unfit = LinkError::Protocol("a ring cannot be laid out");
    let Ok(bytes) = segment_bytes(spec.slots, spec.slot_bytes) else { return Err(unfit) };
    if bytes > MAX_RING_BYTES {
        return Err(unfit);
    }
    let memory = SharedMemory::create("ictus-ring", bytes)?;
    let ring = SharedRing::lay_out(spec.ring_id, spec.slots, spec.slot_bytes, memory.mapping()).map_err(|_| unfit)?;
    let attach = RingAttach { ring_id: spec.ring_id, layout: spec.clone() };
    let seq = link.send(kind::RING_ATTACH, &attach, deadline)?;
    send_descriptor(link.descriptors().as_fd(), u64::from(spec.ring_id), memory.descriptor())?;
    let mut ack = RingAck::default();
    link.receive((seq, kind::RING_ACK), &mut ack, &mut Deaf, process, deadline)?;
    if (ack.ring_id, ack.generation_base) != (spec.ring_id, 1) {
        return Err(LinkError::Protocol("it acknowledges another ring"));
    }
    Ok(ring)
}
