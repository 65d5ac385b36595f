#![forbid(unsafe_code)]
//! The worker's side of the link: an engine that is served to one host, until that host goes.
//!
//! ```text
//!            poll                    frames, in order
//!   frames ------> read --> FrameReader --> handle: check, call the engine, reply --> pump, report what ended
//!                                             |
//!   fds  ------------------------------------ + one descriptor for each message that announces one
//! ```
//!
//! One thread, one loop. Without unfinished operations it sleeps until bytes come, for as long as that takes. Operations of the engines
//! of this crate run in slices, inside `pump` on this very thread: while there are any, the loop pumps, looks for bytes without waiting,
//! and pumps again. An engine whose operations go on elsewhere is asked again every millisecond until they end (W-72).
//!
//! # Invariants
//! - Replies go out in the order of the requests, each before the next request is looked at (W-8).
//! - Whatever comes in is answered, ignored, or ends the link with a [`ServeError`]; it does not panic (W-74).
//! - What lies in shared memory is read once and then used: a number is checked where it is copied to.
//!
//! # Limits
//! [`OP_WINDOW`] unfinished operations; a frame of 16 MiB; a descriptor is waited for [`ServerOptions::descriptor_limit`].
//!
//! # Not here
//! Loading a model and the command line: the binary `ictus-worker`. The host's side: `client`.

mod attach;
mod buffer;
mod link;
mod ops;
mod strategy;
mod sync;
mod tick;

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use self::attach::Attached;
use self::link::Link;
use self::ops::Ops;
use self::tick::TickBuffers;
use super::codec::{PayloadError, Wire, decode};
use super::frame::{Frame, FrameError, FrameReader, MAX_FRAME_BYTES, VERSION};
use super::message::{self, Message, Sender, kind};
use super::payload::{
    Candidate, Hello, HelloAck, Limits, Load, MatchReq, MatchRes, Mem, RingKind, RingSpec, SeedAcquire, SeedGrant,
    SpaceMatch,
};
use super::socket::DescriptorError;
use crate::engine::Engine;
use crate::record::constant::ring_id;
use crate::record::{Status, TokenRef};
use crate::ring::{LayoutError, Rings, slot_bytes_for};

/// Most accepted operations that are not finished (W-55).
pub const OP_WINDOW: u32 = 16;
/// How long a lease is said to live, in milliseconds; advisory (W-51).
const SEED_TTL_MS: u32 = 1000;
/// Slots of the three rings (W-30).
const TOKENS_IN_SLOTS: u32 = 64;
const TOKENS_OUT_SLOTS: u32 = 256;
const LOGITS_SLOTS: u32 = 8;
/// Most tokens of one emit.
const EMIT_TOKENS: u32 = 1024;
/// How often operations that go on elsewhere are asked for.
const ELSEWHERE: Duration = Duration::from_millis(1);

/// What a server says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerOptions {
    /// Longest sequence in tokens: the size of a prompt's slot.
    pub context_tokens: u32,
    /// Tokens of the vocabulary: the size of a row's slot.
    pub vocab_size: u32,
    /// Content hash of what is served; zero is none.
    pub bundle_hash: [u8; 32],
    /// How long a descriptor that was announced is waited for.
    pub descriptor_limit: Duration,
}

impl ServerOptions {
    /// A bundle without a hash, and ten seconds for a descriptor (W-33).
    pub fn new(context_tokens: u32, vocab_size: u32) -> Self {
        Self { context_tokens, vocab_size, bundle_hash: [0; 32], descriptor_limit: Duration::from_secs(10) }
    }

    /// The three rings that a host has to make (W-30).
    pub fn ring_specs(&self) -> [RingSpec; 3] {
        let slot = |values: u32| slot_bytes_for(values.saturating_mul(4).min(u32::MAX - 64));
        [
            RingSpec {
                ring_id: ring_id::TOKENS_IN,
                kind: RingKind::Tokens,
                slot_bytes: slot(self.context_tokens.max(512)),
                slots: TOKENS_IN_SLOTS,
            },
            RingSpec {
                ring_id: ring_id::TOKENS_OUT,
                kind: RingKind::Tokens,
                slot_bytes: slot(EMIT_TOKENS),
                slots: TOKENS_OUT_SLOTS,
            },
            RingSpec {
                ring_id: ring_id::LOGITS,
                kind: RingKind::Logits,
                slot_bytes: slot(self.vocab_size),
                slots: LOGITS_SLOTS,
            },
        ]
    }
}

/// How a link ended as it should.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The host closed the stream between two frames (W-70).
    Closed,
    /// The host closed the stream inside a frame (W-6).
    Truncated {
        /// Bytes of the frame that came.
        left: usize,
    },
}

/// Why a link ended as it should not (W-71).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// What came is no frame.
    #[error("{0}")]
    Frame(#[from] FrameError),
    /// What a frame carries is not what its type has.
    #[error("payload error in {}: {error}", message::name(*kind).unwrap_or("a message"))]
    Payload {
        /// The number of the message.
        kind: u16,
        /// What is wrong.
        error: PayloadError,
    },
    /// The first message was not HELLO.
    #[error("protocol error: {} before HELLO", message::name(*kind).unwrap_or("a message"))]
    NoHello {
        /// The number of the message.
        kind: u16,
    },
    /// Host and worker speak no common version.
    #[error("no common version: the host speaks {lowest} to {highest}, this worker {VERSION}")]
    NoCommonVersion {
        /// The host's lowest.
        lowest: u16,
        /// The host's highest.
        highest: u16,
    },
    /// A frame of another version than was agreed.
    #[error("protocol error: a frame of version {got}, {VERSION} was agreed")]
    Version {
        /// Its version.
        got: u16,
    },
    /// A message that only workers send.
    #[error("unhandled message {}", message::name(*kind).unwrap_or("of an unknown type"))]
    Unhandled {
        /// The number of the message.
        kind: u16,
    },
    /// A message that needs rings came before they were attached.
    #[error("protocol error: {} before the rings", message::name(*kind).unwrap_or("a message"))]
    NoRings {
        /// The number of the message.
        kind: u16,
    },
    /// An announced descriptor did not come as it should.
    #[error("{what}: {error}")]
    Descriptor {
        /// What it was for.
        what: &'static str,
        /// What came instead.
        error: DescriptorError,
    },
    /// What was attached is not what was announced.
    #[error("{what}: {reason}")]
    Attach {
        /// What was attached.
        what: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// The memory is no ring, or no control segment.
    #[error("{what}: {error}")]
    Layout {
        /// What was attached.
        what: &'static str,
        /// What is wrong with it.
        error: LayoutError,
    },
    /// The host has cut short what it had attached.
    #[error("{what}: the shared object was cut short")]
    Cut {
        /// What was attached.
        what: &'static str,
    },
    /// The stream failed.
    #[error("the link failed: {0}")]
    Io(#[from] io::Error),
}

/// Serves one engine to one host.
#[derive(Debug)]
pub struct WorkerServer<E: Engine + ?Sized> {
    options: ServerOptions,
    link: Link,
    attached: Attached,
    ops: Ops,
    tick: TickBuffers,
    /// The counters of the last accepted tick (W-66).
    mem: Mem,
    /// The version of HELLO's answer; none before it.
    agreed: bool,
    /// A prompt, while it is looked at.
    span: Vec<u32>,
    engine: Box<E>,
}

/// What a message is handled with: its number, and the `seq` that the reply names.
#[derive(Clone, Copy, Debug)]
struct Request {
    kind: u16,
    seq: u64,
}

impl<E: Engine + ?Sized> WorkerServer<E> {
    /// A server that has heard nothing yet.
    ///
    /// `frames` and `descriptors` are the worker's ends of the two streams.
    pub fn new(engine: Box<E>, options: ServerOptions, frames: OwnedFd, descriptors: OwnedFd) -> Self {
        Self {
            attached: Attached::new(&options, descriptors),
            options,
            link: Link::new(frames),
            ops: Ops::default(),
            tick: TickBuffers::default(),
            mem: Mem::default(),
            agreed: false,
            span: Vec::new(),
            engine,
        }
    }

    /// Serves until the host goes. The engine is dropped then, whatever lanes and operations it has.
    ///
    /// # Errors
    /// A [`ServeError`]; the host has got no answer to what was wrong.
    pub fn serve(mut self) -> Result<End, ServeError> {
        let mut reader = FrameReader::new();
        loop {
            while let Some(frame) = reader.next()? {
                self.handle(&frame)?;
                self.attached.whole()?;
                self.pump()?;
            }
            let wait = self.pause();
            if self.link.wait(wait)? {
                if !self.link.read(&mut reader)? {
                    return Ok(match reader.finish() {
                        Err(FrameError::Truncated { left }) => End::Truncated { left },
                        _ => End::Closed,
                    });
                }
            } else {
                self.pump()?;
            }
        }
    }

    /// How long to wait for bytes; none is as long as it takes.
    fn pause(&self) -> Option<Duration> {
        match (self.ops.is_empty(), self.ops.moved()) {
            (true, _) => None,
            (false, true) => Some(Duration::ZERO),
            (false, false) => Some(ELSEWHERE),
        }
    }

    /// Gives unfinished operations a slice and reports those that ended.
    fn pump(&mut self) -> Result<(), ServeError> {
        if self.ops.is_empty() {
            return Ok(());
        }
        self.engine.pump();
        self.report_ops()
    }

    fn handle(&mut self, frame: &Frame<'_>) -> Result<(), ServeError> {
        let request = Request { kind: frame.kind, seq: frame.seq };
        if !self.agreed && frame.kind != kind::HELLO {
            return Err(ServeError::NoHello { kind: frame.kind });
        }
        // HELLO says itself what is spoken (W-20).
        if frame.kind != kind::HELLO && frame.version != VERSION {
            return Err(ServeError::Version { got: frame.version });
        }
        if message::sender(frame.kind) == Some(Sender::Worker) {
            return Err(ServeError::Unhandled { kind: frame.kind });
        }
        match frame.kind {
            kind::HELLO => self.hello(request, self.payload(frame)?),
            kind::RING_ATTACH => self.attach_ring(request, self.payload(frame)?),
            kind::CONTROL_ATTACH => self.attach_control(request, self.payload(frame)?),
            kind::TICK_SUBMIT => self.run_tick(request, frame.payload),
            kind::MATCH_REQ => self.find_match(request, self.payload(frame)?),
            kind::SEED_ACQUIRE => self.acquire_seed(request, self.payload(frame)?),
            kind::SEED_RELEASE => {
                // Unknown leases are ignored (W-51).
                let _ = self.engine.seed_release(self.payload(frame)?);
                Ok(())
            }
            kind::STATE_OP_SUBMIT => self.submit_op(request, &self.payload(frame)?),
            kind::OP_CANCEL => {
                // The end of the operation tells the outcome (W-59).
                let _ = self.engine.op_cancel(self.payload(frame)?);
                Ok(())
            }
            kind::STRATEGY_REGISTER => self.register_strategy(request, &self.payload(frame)?),
            kind::STATE_SYNC_REQ => self.answer_sync(request, self.payload(frame)?),
            kind::BUF_ALLOC => self.payload::<super::payload::BufAlloc>(frame).map(|_| ()),
            kind::BUF_ATTACH => self.attached.buffer(&self.payload(frame)?),
            kind::BUF_RELEASE => {
                let buffer: u64 = self.payload(frame)?;
                self.attached.release(buffer);
                Ok(())
            }
            kind::PING => {
                let _: Load = self.payload(frame)?;
                let load = Load { queue_depth: self.ops.len(), mem: self.mem.clone() };
                self.link.reply(request.seq, &Message::Pong(load))
            }
            kind::DRAIN_REQ => self.drain(request),
            // A cancel that comes when nothing is transcribed, and spans that nobody collects.
            _ => Ok(()),
        }
    }

    fn payload<T: Wire>(&self, frame: &Frame<'_>) -> Result<T, ServeError> {
        decode(frame.payload).map_err(|error| ServeError::Payload { kind: frame.kind, error })
    }

    /// Agrees on the version and says what there is (W-21, W-23, W-24).
    fn hello(&mut self, request: Request, hello: Hello) -> Result<(), ServeError> {
        let (lowest, highest) = (hello.versions.lowest, hello.versions.highest);
        if !(lowest..=highest).contains(&VERSION) {
            return Err(ServeError::NoCommonVersion { lowest, highest });
        }
        self.agreed = true;
        let limits =
            Limits { max_frame: MAX_FRAME_BYTES, op_window: OP_WINDOW, ring_specs: self.options.ring_specs().to_vec() };
        let ack = HelloAck {
            chosen: VERSION,
            engine_bundle_hash: self.options.bundle_hash,
            capabilities: self.engine.capability_descriptor().unwrap_or_default().to_owned(),
            spaces: self.engine.state_spaces().iter().map(Into::into).collect(),
            strategies: Vec::new(),
            limits,
            kv_bits: self.engine.kv_bits(),
        };
        self.link.reply(request.seq, &Message::HelloAck(ack))
    }

    /// The tokens of a span, copied once into `self.span`; answers whether they could be read.
    fn read_span(&mut self, reference: &TokenRef) -> bool {
        self.span.clear();
        self.attached.rings().read_tokens(reference, &mut self.span).is_ok()
    }

    fn need_rings(&self, request: Request) -> Result<(), ServeError> {
        if self.attached.is_live() { Ok(()) } else { Err(ServeError::NoRings { kind: request.kind }) }
    }

    /// Cached prefixes; what cannot be read or is refused has none (W-50).
    fn find_match(&mut self, request: Request, asked: MatchReq) -> Result<(), ServeError> {
        self.need_rings(request)?;
        let reference = TokenRef::from(&asked.span);
        let mut answer = MatchRes::default();
        if self.read_span(&reference) {
            let found = self.engine.space_match_ref(asked.space_id, &self.span, &reference, &asked.media_deps);
            if found.is_ok() {
                answer.spaces = matches_of(&*self.engine);
            }
        }
        self.link.reply(request.seq, &Message::MatchRes(answer))
    }

    /// A lease (W-51).
    fn acquire_seed(&mut self, request: Request, asked: SeedAcquire) -> Result<(), ServeError> {
        self.need_rings(request)?;
        let reference = TokenRef::from(&asked.span);
        let lease = match self.read_span(&reference) {
            false => Err(Status::RejectBadRefGeneration),
            true => {
                let (len, class) = (asked.prefix_len, asked.determinism_class);
                self.engine.seed_acquire_ref(&self.span, &reference, len, class)
            }
        };
        let grant = match lease {
            Ok(seed_handle) => {
                let ttl_ticks = self.engine.seed_lease_ticks();
                SeedGrant::Granted { seed_handle, ttl_ms: SEED_TTL_MS, ttl_ticks }
            }
            Err(status) => SeedGrant::Refused { status: status.code() },
        };
        self.link.reply(request.seq, &Message::SeedGrant(grant))
    }
}

/// The last match of an engine, space by space.
fn matches_of<E: Engine + ?Sized>(engine: &E) -> Vec<SpaceMatch> {
    let mut left = engine.match_candidates().iter();
    let of_space = |space: &crate::record::SpaceMatch| {
        let candidates = left.by_ref().take(space.candidates.count as usize).map(Candidate::from).collect();
        SpaceMatch { space_id: space.space_id, candidates }
    };
    engine.match_spaces().iter().map(of_space).collect()
}
