//! What must hold for any bytes: one function per target, each panics when it does not.
//!
//! The fuzz targets of this folder call them with what libFuzzer makes up, and `tests/worker/fuzz.rs` with the committed corpus and bounded
//! mutations of it, on any compiler.
//!
//! | target | bytes are | must hold |
//! |---|---|---|
//! | `frames` | a stream, in pieces | the same frames in any pieces; W-1 .. W-6 |
//! | `messages` | the number of a message, its payload | what is read is written back to the same value; W-10 .. W-14 |
//! | `segments` | shared memory: a ring, control words, an envelope | nothing outside is read, whatever the headers say |
//! | `worker` | what a host sends, behind a greeting and rings of its own or not, which it may cut short | the worker answers or ends its link (W-74) |
//! | `host` | what a worker sends | the host answers or says that the worker is gone |

use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use ictus::engine::{Engine, PlanBuilder};
use ictus::executor::Executor;
use ictus::record::RingDesc;
use ictus::record::constant::{ring_kind, ring_role};
use ictus::ring::{ByPosition, ControlWords, MemoryRings, SharedRing, Store, segment_bytes};
use ictus::runtime::FakeRuntime;
use ictus::worker::client::{Peer, RemoteEngine, RemoteOptions};
use ictus::worker::frame::{FrameReader, FrameWriter, VERSION};
use ictus::worker::memory::SharedMemory;
use ictus::worker::message::{KINDS, Message, kind};
use ictus::worker::payload::{Hello, HelloAck, Limits, RingAck, RingAttach, RingKind, RingSpec, Role, Versions};
use ictus::worker::server::{ServerOptions, WorkerServer};
use ictus::worker::socket::{pair, receive_descriptor, send_descriptor};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::{pread, pwrite};

/// What must hold for some bytes.
pub type Check = fn(&[u8]);

/// Name of a target, and its function.
pub const TARGETS: &[(&str, Check)] =
    &[("frames", frames), ("messages", messages), ("segments", segments), ("worker", worker), ("host", host)];

/// What a reader gives of a stream that comes in pieces of this size.
fn read_in_pieces(stream: &[u8], piece: usize) -> (Vec<String>, String) {
    let (mut reader, mut found) = (FrameReader::new(), Vec::new());
    for piece in stream.chunks(piece) {
        reader.push(piece);
        loop {
            match reader.next() {
                Ok(Some(frame)) => found.push(format!("{frame:?}")),
                Ok(None) => break,
                Err(error) => return (found, error.to_string()),
            }
        }
    }
    let end = reader.finish().map_or_else(|error| error.to_string(), |()| "whole".to_owned());
    (found, end)
}

/// The first byte says how large the pieces are.
pub fn frames(data: &[u8]) {
    let Some((&piece, stream)) = data.split_first() else { return };
    let whole = read_in_pieces(stream, stream.len().max(1));
    assert_eq!(read_in_pieces(stream, usize::from(piece).max(1)), whole);
}

/// The first byte says which message.
pub fn messages(data: &[u8]) {
    let Some((&number, payload)) = data.split_first() else { return };
    let number = KINDS[usize::from(number) % KINDS.len()];
    let Some(Ok(message)) = Message::decode(number, payload) else { return };
    let mut written = Vec::new();
    message.encode(&mut written);
    let again = Message::decode(number, &written).expect("a known number").expect("what was written can be read");
    // Floats may be no numbers, which equal nothing.
    assert_eq!(format!("{again:?}"), format!("{message:?}"));
    let mut twice = Vec::new();
    again.encode(&mut twice);
    assert_eq!(twice, written, "one value has one form");
}

/// A memory object that is reached by position, and may be cut short.
#[derive(Debug)]
pub struct Object {
    object: OwnedFd,
    len: usize,
}

impl Object {
    /// Zeroes. Without `ALLOW_SEALING` nobody can keep it from being cut.
    pub fn new(len: usize, flags: MemfdFlags) -> Arc<Self> {
        let object = memfd_create("fuzz", flags | MemfdFlags::CLOEXEC).expect("an object");
        ftruncate(&object, len as u64).expect("sized");
        Arc::new(Self { object, len })
    }

    /// The same, for a ring or control words.
    pub fn store(self: &Arc<Self>) -> Store {
        Store::Positioned(Arc::clone(self) as Arc<dyn ByPosition>)
    }

    /// What is passed.
    pub fn descriptor(&self) -> &OwnedFd {
        &self.object
    }

    /// Takes all but the first bytes away; false when somebody has sealed it.
    pub fn cut(&self, len: u64) -> bool {
        ftruncate(&self.object, len).is_ok()
    }
}

impl ByPosition for Object {
    fn len_bytes(&self) -> usize {
        self.len
    }
    fn read(&self, offset: usize, out: &mut [u8]) -> bool {
        pread(&self.object, &mut *out, offset as u64).is_ok_and(|count| count == out.len())
    }
    fn write(&self, offset: usize, bytes: &[u8]) -> bool {
        pwrite(&self.object, bytes, offset as u64).is_ok_and(|count| count == bytes.len())
    }
}

/// The memory is the data; its shape and what is asked of it are in the first bytes. Mapped or by position, it says the same.
pub fn segments(data: &[u8]) {
    let number =
        |at: usize| data.get(at..at + 4).map_or(0, |bytes| bytes.iter().fold(0u32, |n, &b| n << 8 | u32::from(b)));
    let (id, slots, slot_bytes, index) = (number(0) % 5, number(4), number(8), number(12));
    let Some(bytes) = data.get(16..).filter(|bytes| !bytes.is_empty()) else { return };
    let memory = SharedMemory::create("fuzz", bytes.len()).expect("memory");
    assert!(memory.copy_in(0, bytes));
    let object = Object::new(bytes.len().next_multiple_of(8), MemfdFlags::empty());
    assert!(object.write(0, bytes));
    let words = ControlWords::open(memory.mapping()).map(|words| (words.yield_requested(), words.latency_wanted()));
    let again = ControlWords::open(object.store()).map(|words| (words.yield_requested(), words.latency_wanted()));
    assert_eq!(words, again);
    let _ = ictus::transfer::read_header(bytes);
    let desc = RingDesc {
        struct_size: size_of::<RingDesc>() as u64,
        ring_id: id,
        kind: if id == 3 { ring_kind::LOGITS } else { ring_kind::TOKENS },
        role: if id == 1 { ring_role::ENGINE_READS } else { ring_role::ENGINE_WRITES },
        slots,
        slot_bytes,
        _pad0: 0,
        base: memory.mapping().base(),
        len: bytes.len() as u64,
    };
    let opened = (SharedRing::open(&desc, memory.mapping()), SharedRing::open(&desc, object.store()));
    let (mut ring, mut other) = match opened {
        (Ok(ring), Ok(other)) => (ring, other),
        (ring, other) => return assert_eq!(ring.err(), other.err()),
    };
    let generation = bytes.get(64..72).map_or(0, |bytes| u64::from_le_bytes(bytes.try_into().expect("eight bytes")));
    for generation in [generation, 1, u64::MAX] {
        let (mut read, mut same): (Vec<u32>, Vec<u32>) = (Vec::new(), Vec::new());
        let result = ring.read(index, generation, None, &mut read);
        assert_eq!((other.read(index, generation, None, &mut same), &same), (result, &read));
        assert!(4 * read.len() <= ring.payload_bytes());
        let mut counted: Vec<u32> = Vec::new();
        let count = read.len() as u32;
        let _ = ring.read(index, generation, Some(count), &mut counted);
    }
    assert_eq!(other.write(&[1u32, 2, 3]), ring.write(&[1u32, 2, 3]));
    // An object that is cut refuses.
    assert!(object.cut(9));
    assert!(other.read(index, 1, None, &mut Vec::<u32>::new()).is_err());
}

/// Greets a worker and attaches all that there is, without waiting for an answer: the objects, and what was sent.
fn attach_all(specs: &[RingSpec], descriptors: &OwnedFd, flags: MemfdFlags) -> (Vec<Arc<Object>>, Vec<u8>) {
    let (mut writer, mut out, mut objects) = (FrameWriter::new(VERSION), Vec::new(), Vec::new());
    let versions = Versions { lowest: VERSION, highest: VERSION };
    let mut say = |message: &Message| {
        writer.write(0, message, &mut out).expect("it fits");
    };
    say(&Message::Hello(Hello { versions, role: Role::NodeAgent, auth: Vec::new() }));
    for spec in specs {
        let object = Object::new(segment_bytes(spec.slots, spec.slot_bytes).expect("a shape"), flags);
        let ring = SharedRing::lay_out(spec.ring_id, spec.slots, spec.slot_bytes, object.store());
        let mut ring = ring.expect("a ring");
        // The references of the vectors name the third slot.
        for first in [1u32, 5, 9] {
            if spec.ring_id == 1 {
                ring.write(&[first, first + 1, first + 2, first + 3]).expect("a prompt");
            }
        }
        send_descriptor(descriptors.as_fd(), spec.ring_id.into(), object.descriptor().as_fd()).expect("sent");
        say(&Message::RingAttach(RingAttach { ring_id: spec.ring_id, layout: spec.clone() }));
        objects.push(object);
    }
    let object = Object::new(64, flags);
    ControlWords::lay_out(object.store()).expect("words");
    send_descriptor(descriptors.as_fd(), 0xC0, object.descriptor().as_fd()).expect("sent");
    say(&Message::ControlAttach(64));
    objects.push(object);
    (objects, out)
}

/// The first byte says whether the host begins well (1), over objects that cannot be sealed (2), and cuts them when it has said all (4); the
/// rest is what it says before it goes.
pub fn worker(data: &[u8]) {
    let Some((&how, said)) = data.split_first() else { return };
    let (frames, their_frames) = pair().expect("a pair");
    let (descriptors, their_descriptors) = pair().expect("a pair");
    let mut options = ServerOptions::new(256, 64);
    options.descriptor_limit = Duration::from_millis(1);
    let flags = if how & 2 == 0 { MemfdFlags::ALLOW_SEALING } else { MemfdFlags::empty() };
    let begins = (how & 1 != 0).then(|| attach_all(&options.ring_specs(), &descriptors, flags));
    let (objects, greeting) = begins.unwrap_or_default();
    let server = std::thread::spawn(move || {
        let engine = Box::new(Executor::new(FakeRuntime::with(|options| options.record = false)));
        // Whatever comes ends in an end or in an error.
        let _ = WorkerServer::new(engine, options, their_frames, their_descriptors).serve();
    });
    let mut stream = UnixStream::from(frames);
    let mut heard = stream.try_clone().expect("a second end");
    // What it answers is read, or it would wait for room.
    let listener = std::thread::spawn(move || {
        let _ = heard.read_to_end(&mut Vec::new());
    });
    let _ = stream.write_all(&greeting);
    let _ = stream.write_all(said);
    if how & 4 != 0 {
        for object in &objects {
            // One that the worker has sealed stays whole.
            let _ = object.cut(0);
        }
    }
    let _ = stream.shutdown(std::net::Shutdown::Write);
    server.join().expect("a worker does not panic");
    drop(descriptors);
    drop(stream);
    listener.join().expect("all was heard");
}

/// Rings of a small worker.
fn specs() -> Vec<RingSpec> {
    let spec = |ring_id, kind| RingSpec { ring_id, kind, slot_bytes: 144, slots: 4 };
    vec![spec(1, RingKind::Tokens), spec(2, RingKind::Tokens), spec(3, RingKind::Logits)]
}

/// Writes what the events of the vectors refer to into a ring of the host.
fn say_something(id: u32, object: OwnedFd) {
    let Some(spec) = specs().into_iter().find(|spec| spec.ring_id == id && id != 1) else { return };
    let bytes = segment_bytes(spec.slots, spec.slot_bytes).expect("a shape");
    let memory = SharedMemory::map(object, bytes).expect("a host seals what it makes");
    let desc = RingDesc {
        struct_size: size_of::<RingDesc>() as u64,
        ring_id: id,
        kind: if id == 3 { ring_kind::LOGITS } else { ring_kind::TOKENS },
        role: ring_role::ENGINE_WRITES,
        slots: spec.slots,
        slot_bytes: spec.slot_bytes,
        _pad0: 0,
        base: memory.mapping().base(),
        len: bytes as u64,
    };
    let mut ring = SharedRing::open(&desc, memory.mapping()).expect("the host's header");
    for _ in 0..2 {
        ring.write(&[11u32, 12, 13]).expect("it fits");
    }
}

/// A worker that shakes hands if `polite`, and then says the data, whatever it is asked.
fn liar(frames: OwnedFd, descriptors: &OwnedFd, polite: bool, data: &[u8]) {
    let mut stream = UnixStream::from(frames);
    let (mut reader, mut writer) = (FrameReader::new(), FrameWriter::new(VERSION));
    let mut left = polite;
    while left {
        let Some((asked, seq)) = hear(&mut stream, &mut reader) else { return };
        let reply = match asked {
            kind::HELLO => Message::HelloAck(HelloAck {
                chosen: VERSION,
                limits: Limits { max_frame: 1 << 24, op_window: 16, ring_specs: specs() },
                ..HelloAck::default()
            }),
            kind::RING_ATTACH | kind::CONTROL_ATTACH => {
                let limit = Duration::from_secs(5);
                let Ok((tag, object)) = receive_descriptor(descriptors.as_fd(), limit) else { return };
                left = asked == kind::RING_ATTACH;
                say_something(tag as u32, object);
                match left {
                    true => Message::RingAck(RingAck { ring_id: tag as u32, generation_base: 1 }),
                    false => Message::ControlAck(64),
                }
            }
            _ => return,
        };
        let mut out = Vec::new();
        writer.write(seq, &reply, &mut out).expect("it fits");
        if stream.write_all(&out).is_err() {
            return;
        }
    }
    let _ = stream.write_all(data);
    // The host is heard out, so that it does not fail for want of room.
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let _ = stream.read_to_end(&mut Vec::new());
}

fn hear(stream: &mut UnixStream, reader: &mut FrameReader) -> Option<(u16, u64)> {
    let mut piece = [0; 4096];
    loop {
        if let Some(frame) = reader.next().ok()? {
            return Some((frame.kind, frame.seq));
        }
        match stream.read(&mut piece) {
            Ok(count) if count > 0 => reader.push(&piece[..count]),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            _ => return None,
        }
    }
}

/// The first byte says whether the worker begins well, and what it is asked; the rest is what it says then.
pub fn host(data: &[u8]) {
    let _ = emits_heard(data);
}

/// As [`host`]; answers how many emits the host has taken.
pub fn emits_heard(data: &[u8]) -> usize {
    let Some((&first, said)) = data.split_first() else { return 0 };
    let (polite, said) = (first & 1 == 0, said.to_vec());
    let launch = move || {
        let (frames, their_frames) = pair()?;
        let (descriptors, their_descriptors) = pair()?;
        let said = said.clone();
        std::thread::spawn(move || liar(their_frames, &their_descriptors, polite, &said));
        Ok(Peer { frames, descriptors, process: None })
    };
    let limit = Some(Duration::from_secs(5));
    let options = RemoteOptions {
        start_timeout: limit,
        tick_timeout: limit,
        request_timeout: limit,
        restarts: 0,
        ..RemoteOptions::default()
    };
    let Ok(mut engine) = RemoteEngine::start(launch, options) else { return 0 };
    let mut rings = MemoryRings::new();
    let prompt = rings.stage_prompt(&[1, 2, 3]);
    let (plan, memory) = PlanBuilder::new(1).admit(7, prompt).prefill(7, 0, 3).decode(7, 4).build();
    // The call for which the data is the answer is chosen by it, too.
    match first >> 1 & 7 {
        0 => drop(engine.space_match(u32::MAX, &[1, 2, 3], &[])),
        1 => drop(engine.seed_acquire(&[1, 2, 3], 2, 0)),
        2 => drop(engine.create_sequence()),
        3 => drop(engine.grammar_create("{}")),
        4 => drop(engine.embed(&[1])),
        5 => engine.pump(),
        _ => drop(engine.tick(&plan, &memory, &mut rings).map(|events| events.emits.len())),
    }
    let _ = engine.gone().map(ToString::to_string);
    engine.last_events().map_or(0, |events| events.emits.len())
}
