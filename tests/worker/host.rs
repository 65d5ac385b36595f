//! A host that speaks to a worker byte by byte, and lets a test do what no host should.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use ictus::engine::Engine;
use ictus::executor::Executor;
use ictus::record::constant::ring_id;
use ictus::ring::{ControlWords, SharedRing, segment_bytes};
use ictus::runtime::FakeRuntime;
use ictus::worker::frame::{FrameReader, FrameWriter, VERSION};
use ictus::worker::memory::SharedMemory;
use ictus::worker::message::Message;
use ictus::worker::payload::*;
use ictus::worker::server::{End, ServeError, ServerOptions, WorkerServer};
use ictus::worker::socket::{pair, send_descriptor, send_descriptors};
use rustix::fs::MemfdFlags;

use crate::fuzz::checks::Object;

/// Longer than anything takes that is not stuck.
pub const PATIENCE: Duration = Duration::from_secs(60);
pub const CONTROL_TAG: u64 = 0xC0;
/// How long servers on a thread of the tests wait for a descriptor.
pub const DESCRIPTOR_LIMIT: Duration = Duration::from_millis(300);

pub struct Host {
    frames: UnixStream,
    descriptors: Option<OwnedFd>,
    reader: FrameReader,
    writer: FrameWriter,
    /// What came without being asked for since it was last taken, in order.
    pub unasked: Vec<Message>,
    pub specs: Vec<RingSpec>,
    prompts: Option<SharedRing>,
    emits: Option<SharedRing>,
    rows: Option<SharedRing>,
    pub control: Option<ControlWords>,
    pub next_plan: u64,
    server: Option<JoinHandle<Result<End, ServeError>>>,
}

impl Host {
    /// The host's ends of the two streams of a worker.
    pub fn over(frames: OwnedFd, descriptors: OwnedFd) -> Self {
        let frames = UnixStream::from(frames);
        frames.set_read_timeout(Some(PATIENCE)).expect("a limit");
        Self {
            frames,
            descriptors: Some(descriptors),
            reader: FrameReader::new(),
            writer: FrameWriter::new(VERSION),
            unasked: Vec::new(),
            specs: Vec::new(),
            prompts: None,
            emits: None,
            rows: None,
            control: None,
            next_plan: 1,
            server: None,
        }
    }

    /// A server of this engine on a thread of its own.
    pub fn of<E: Engine + ?Sized + 'static>(make: impl FnOnce() -> Box<E> + Send + 'static) -> Self {
        let (host_frames, frames) = pair().expect("a pair");
        let (host_descriptors, descriptors) = pair().expect("a pair");
        let mut options = ServerOptions::new(4096, 32_000);
        options.descriptor_limit = DESCRIPTOR_LIMIT;
        let serve = move || WorkerServer::new(make(), options, frames, descriptors).serve();
        let mut host = Self::over(host_frames, host_descriptors);
        host.server = Some(std::thread::spawn(serve));
        host
    }

    /// A server of an executor over the fake runtime.
    pub fn of_fake() -> Self {
        Self::of(|| Box::new(Executor::new(FakeRuntime::default())))
    }

    /// The same, greeted, with rings and control words.
    pub fn ready() -> Self {
        let mut host = Self::of_fake();
        host.start();
        host
    }

    /// As the reference host starts (W-90).
    pub fn start(&mut self) -> HelloAck {
        let ack = self.hello();
        for index in 0..self.specs.len() {
            self.attach(index);
        }
        self.attach_control();
        ack
    }

    pub fn hello(&mut self) -> HelloAck {
        let Message::HelloAck(ack) = self.ask(&offer(8, 8)) else { panic!("HELLO is answered with its ack") };
        self.specs = ack.limits.ring_specs.clone();
        ack
    }

    /// Makes the ring with this index in the list and attaches it.
    pub fn attach(&mut self, index: usize) {
        let spec = self.specs[index].clone();
        let memory = self.ring_memory(&spec);
        let ring = SharedRing::lay_out(spec.ring_id, spec.slots, spec.slot_bytes, memory.mapping()).expect("a ring");
        let ack = self.attach_memory(&spec, spec.ring_id.into(), &memory);
        assert_eq!(ack, Message::RingAck(RingAck { ring_id: spec.ring_id, generation_base: 1 }));
        self.keep(ring);
    }

    fn keep(&mut self, ring: SharedRing) {
        match ring.id() {
            ring_id::TOKENS_IN => self.prompts = Some(ring),
            ring_id::TOKENS_OUT => self.emits = Some(ring),
            _ => self.rows = Some(ring),
        }
    }

    /// As [`Host::start`], over objects of these flags, which the host may cut: the three rings in order, and the control words.
    pub fn start_over(&mut self, flags: MemfdFlags) -> Vec<Arc<Object>> {
        self.hello();
        let mut objects = Vec::new();
        for spec in self.specs.clone() {
            let object = Object::new(segment_bytes(spec.slots, spec.slot_bytes).expect("a shape"), flags);
            let ring = SharedRing::lay_out(spec.ring_id, spec.slots, spec.slot_bytes, object.store()).expect("a ring");
            self.keep(ring);
            let seq = self.announce(&spec);
            self.pass_descriptor(spec.ring_id.into(), object.descriptor());
            assert_eq!(self.reply_to(seq), Message::RingAck(RingAck { ring_id: spec.ring_id, generation_base: 1 }));
            objects.push(object);
        }
        let object = Object::new(64, flags);
        self.control = Some(ControlWords::lay_out(object.store()).expect("words"));
        let seq = self.send(&Message::ControlAttach(64));
        self.pass_descriptor(CONTROL_TAG, object.descriptor());
        assert_eq!(self.reply_to(seq), Message::ControlAck(64));
        objects.push(object);
        objects
    }

    /// Says that a ring comes; answers the number of the message.
    pub fn announce(&mut self, spec: &RingSpec) -> u64 {
        self.send(&Message::RingAttach(RingAttach { ring_id: spec.ring_id, layout: spec.clone() }))
    }

    pub fn ring_memory(&self, spec: &RingSpec) -> SharedMemory {
        SharedMemory::create("ring", segment_bytes(spec.slots, spec.slot_bytes).expect("a shape")).expect("memory")
    }

    fn attach_memory(&mut self, spec: &RingSpec, tag: u64, memory: &SharedMemory) -> Message {
        let seq = self.announce(spec);
        self.pass(tag, memory);
        self.reply_to(seq)
    }

    pub fn attach_control(&mut self) {
        let memory = SharedMemory::create("control", 64).expect("memory");
        self.control = Some(ControlWords::lay_out(memory.mapping()).expect("words"));
        let seq = self.send(&Message::ControlAttach(64));
        self.pass(CONTROL_TAG, &memory);
        assert_eq!(self.reply_to(seq), Message::ControlAck(64));
    }

    /// A buffer of this many bytes that the worker knows by this number.
    pub fn buffer(&mut self, id: u64, bytes: usize) -> SharedMemory {
        let memory = SharedMemory::create("buffer", bytes).expect("memory");
        self.send(&Message::BufAttach(BufAttach { buf_id: id, len: bytes as u64, generation: 1 }));
        self.pass(id, &memory);
        memory
    }

    pub fn pass(&self, tag: u64, memory: &SharedMemory) {
        let channel = self.descriptors.as_ref().expect("the channel is open");
        // A worker that refused the announcement has closed its end.
        let _ = send_descriptor(channel.as_fd(), tag, memory.descriptor());
    }

    /// As [`Host::pass`], for an object of another kind.
    pub fn pass_descriptor(&self, tag: u64, object: &OwnedFd) {
        let channel = self.descriptors.as_ref().expect("the channel is open");
        send_descriptor(channel.as_fd(), tag, object.as_fd()).expect("the worker listens");
    }

    /// Passes any data with any number of descriptors.
    pub fn pass_raw(&self, data: &[u8], memories: &[&SharedMemory]) {
        let channel = self.descriptors.as_ref().expect("the channel is open");
        let descriptors: Vec<_> = memories.iter().map(|memory| memory.descriptor()).collect();
        let _ = send_descriptors(channel.as_fd(), data, &descriptors);
    }

    pub fn close_descriptors(&mut self) {
        self.descriptors = None;
    }

    pub fn send(&mut self, message: &Message) -> u64 {
        let mut bytes = Vec::new();
        let seq = self.writer.write(0, message, &mut bytes).expect("it fits a frame");
        self.send_raw(&bytes);
        seq
    }

    /// Sends several messages with one write: the worker has them all before it looks at the first.
    pub fn send_together(&mut self, messages: &[Message]) -> Vec<u64> {
        let mut bytes = Vec::new();
        let mut write = |message| self.writer.write(0, message, &mut bytes).expect("it fits a frame");
        let numbers = messages.iter().map(&mut write).collect();
        self.send_raw(&bytes);
        numbers
    }

    pub fn send_raw(&mut self, bytes: &[u8]) {
        self.frames.write_all(bytes).expect("the worker reads");
    }

    /// As [`Host::send_raw`], to a worker that may have given up.
    pub fn try_send_raw(&mut self, bytes: &[u8]) -> bool {
        self.frames.write_all(bytes).is_ok()
    }

    /// Waits for the reply; what comes unasked before it is kept.
    pub fn reply_to(&mut self, seq: u64) -> Message {
        loop {
            match self.receive() {
                Some((0, message)) => self.unasked.push(message),
                Some((correlation, message)) => {
                    assert_eq!(correlation, seq, "replies come in order: {message:?}");
                    return message;
                }
                None => panic!("the worker has gone, {:?}", self.server.take().map(JoinHandle::join)),
            }
        }
    }

    pub fn ask(&mut self, message: &Message) -> Message {
        let seq = self.send(message);
        self.reply_to(seq)
    }

    /// The next frame's correlation and message; none when the worker closed the stream.
    pub fn receive(&mut self) -> Option<(u64, Message)> {
        loop {
            if let Some(frame) = self.reader.next().expect("a worker writes sound frames") {
                assert_eq!(frame.version, VERSION);
                let message = Message::decode(frame.kind, frame.payload).expect("a known type");
                return Some((frame.correlation, message.expect("a sound payload")));
            }
            match self.frames.read(self.reader.room(1 << 16)) {
                Ok(0) => return None,
                Ok(count) => self.reader.filled(count),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("no frame in {PATIENCE:?}: {error}"),
            }
        }
    }

    /// The worker sends nothing more and ends the link with an error.
    #[track_caller]
    pub fn refused(mut self) -> ServeError {
        assert_eq!(self.receive(), None, "no reply to what ends the link");
        match self.join() {
            Err(error) => error,
            Ok(end) => panic!("the link ended well: {end:?}"),
        }
    }

    /// Sends nothing more; what was sent is still answered.
    pub fn stop_sending(&self) {
        // The worker may have closed its end.
        let _ = self.frames.shutdown(std::net::Shutdown::Write);
    }

    /// How many frames come until the worker closes the stream.
    pub fn drain_replies(&mut self) -> usize {
        let mut replies = 0;
        while self.receive().is_some() {
            replies += 1;
        }
        replies
    }

    /// How the server ended, once it has.
    pub fn end(mut self) -> Result<End, ServeError> {
        self.join()
    }

    /// Closes the stream and says how the server ended.
    pub fn close(mut self) -> Result<End, ServeError> {
        self.frames.shutdown(std::net::Shutdown::Both).expect("the stream is open");
        self.join()
    }

    fn join(&mut self) -> Result<End, ServeError> {
        self.server.take().expect("a server of this process").join().expect("a server does not panic")
    }

    /// Writes a prompt and names it.
    pub fn prompt(&mut self, tokens: &[u32]) -> TokenRef {
        let ring = self.prompts.as_mut().expect("attached");
        let (index, generation) = ring.write(tokens).expect("it fits");
        TokenRef { ring_id: ring_id::TOKENS_IN, index, count: tokens.len() as u32, generation }
    }

    /// The tokens that a reference of the worker names.
    pub fn tokens(&self, reference: &TokenRef) -> Vec<u32> {
        assert_eq!(reference.ring_id, ring_id::TOKENS_OUT);
        let mut tokens = Vec::new();
        let ring = self.emits.as_ref().expect("attached");
        ring.read(reference.index, reference.generation, Some(reference.count), &mut tokens).expect("it is there");
        tokens
    }

    /// A row that a reference of the worker names.
    pub fn row(&self, reference: &RingRef) -> Vec<f32> {
        let mut row = Vec::new();
        let ring = self.rows.as_ref().expect("attached");
        ring.read(reference.index, reference.generation, None, &mut row).expect("it is there");
        row
    }

    /// An empty plan with the next number.
    pub fn plan(&mut self) -> Plan {
        let plan_seq = self.next_plan;
        self.next_plan += 1;
        Plan { plan_seq, prefill_token_budget: 4096, max_decode_lanes: 8, shed_policy: everything(), ..Plan::default() }
    }

    /// Runs a plan that must be accepted.
    #[track_caller]
    pub fn tick(&mut self, plan: Plan) -> TickEvents {
        match self.ask(&Message::TickSubmit(plan)) {
            Message::TickResult(TickResult::Events(events)) => events,
            other => panic!("events were expected: {other:?}"),
        }
    }

    /// Admits a lane, runs its prompt and grants tokens, in one plan; answers the tokens.
    #[track_caller]
    pub fn run(&mut self, lane_tag: u64, prompt: &[u32], grant: u16) -> Vec<u32> {
        let plan = self.first_plan(lane_tag, prompt, grant);
        let events = self.tick(plan);
        self.tokens_of(&events, lane_tag)
    }

    /// The plan that starts a lane.
    pub fn first_plan(&mut self, lane_tag: u64, prompt: &[u32], grant: u16) -> Plan {
        let mut plan = self.plan();
        plan.admits = vec![admit(lane_tag, self.prompt(prompt))];
        plan.prefills = vec![LanePrefill { lane_tag, token_offset: 0, token_count: prompt.len() as u32 }];
        plan.decodes = vec![decode(lane_tag, grant)];
        plan
    }

    /// Grants tokens.
    #[track_caller]
    pub fn go_on(&mut self, lane_tag: u64, grant: u16) -> Vec<u32> {
        let mut plan = self.plan();
        plan.decodes = vec![decode(lane_tag, grant)];
        let events = self.tick(plan);
        self.tokens_of(&events, lane_tag)
    }

    pub fn retire(&mut self, lane_tag: u64, publish_to_cache: bool) {
        let mut plan = self.plan();
        plan.retires = vec![LaneRetire { lane_tag, publish_to_cache }];
        self.tick(plan);
    }

    #[track_caller]
    pub fn tokens_of(&self, events: &TickEvents, lane_tag: u64) -> Vec<u32> {
        let emit = events.emits.iter().find(|emit| emit.lane_tag == lane_tag);
        let emit = emit.unwrap_or_else(|| panic!("lane {lane_tag} has no emit: {events:?}"));
        self.tokens(&emit.token_ref)
    }

    /// A question that is answered at once, and must be.
    #[track_caller]
    pub fn sync(&mut self, request: SyncRequest) -> SyncOk {
        match self.sync_result(request) {
            SyncResult::Ok(answer) => answer,
            SyncResult::Err { status } => panic!("refused with {status}"),
        }
    }

    pub fn sync_result(&mut self, request: SyncRequest) -> SyncResult {
        match self.ask(&Message::StateSyncReq(request)) {
            Message::StateSyncRes(result) => result,
            other => panic!("another reply: {other:?}"),
        }
    }

    pub fn submit(&mut self, op: StateOp) -> OpAccepted {
        match self.ask(&Message::StateOpSubmit(op)) {
            Message::StateOpAccepted(accepted) => accepted,
            other => panic!("another reply: {other:?}"),
        }
    }

    /// Waits until an operation is told to have ended.
    pub fn done(&mut self, op: u64) -> OpComplete {
        loop {
            let found =
                self.unasked.iter().position(|message| matches!(message, Message::StateOpDone(done) if done.op == op));
            if let Some(at) = found {
                let Message::StateOpDone(done) = self.unasked.remove(at) else { unreachable!("it was just found") };
                return done;
            }
            match self.receive() {
                Some((0, message)) => self.unasked.push(message),
                other => panic!("only the end of an operation is due: {other:?}"),
            }
        }
    }

    pub fn ping(&mut self) -> Load {
        match self.ask(&Message::Ping(Load::default())) {
            Message::Pong(load) => load,
            other => panic!("another reply: {other:?}"),
        }
    }

    pub fn matches(&mut self, span: TokenRef) -> Vec<SpaceMatch> {
        let request = MatchReq { space_id: u32::MAX, span, media_deps: vec![] };
        match self.ask(&Message::MatchReq(request)) {
            Message::MatchRes(answer) => answer.spaces,
            other => panic!("another reply: {other:?}"),
        }
    }

    pub fn acquire(&mut self, span: TokenRef, prefix_len: u64) -> SeedGrant {
        let request = SeedAcquire { span, prefix_len, determinism_class: 0 };
        match self.ask(&Message::SeedAcquire(request)) {
            Message::SeedGrant(grant) => grant,
            other => panic!("another reply: {other:?}"),
        }
    }
}

/// HELLO of a host that speaks these versions.
pub fn offer(lowest: u16, highest: u16) -> Message {
    Message::Hello(Hello { versions: Versions { lowest, highest }, role: Role::NodeAgent, auth: vec![] })
}

/// Everything in the cache may go.
pub fn everything() -> Shed {
    Shed {
        victim_lanes: vec![],
        evictable_cache_classes: u64::MAX,
        protected_quota_bytes: 0,
        max_evict_bytes: u64::MAX,
    }
}

/// A greedy lane that stops at no end token.
pub fn admit(lane_tag: u64, prompt: TokenRef) -> LaneAdmit {
    LaneAdmit { lane_tag, prompt, params: Sampling { flags: 1, ..Sampling::default() }, ..LaneAdmit::default() }
}

pub fn decode(lane_tag: u64, max_new_tokens: u16) -> LaneDecode {
    LaneDecode { lane_tag, max_new_tokens, overshoot: 0 }
}
