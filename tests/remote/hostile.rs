//! Workers that lie: whatever they send, the host says so in time and goes on.
//!
//! The worker here is a thread at the other end of the sockets, which speaks byte by byte what a real one never would.

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ictus::record::Status;
use ictus::testing::Harness;
use ictus::worker::client::{LinkError, Peer, RemoteEngine, RemoteOptions, WorkerGone};
use ictus::worker::frame::{FrameReader, FrameWriter};
use ictus::worker::message::{Message, kind};
use ictus::worker::payload::{
    HelloAck, LaneEmit, Limits, RingAck, RingKind, RingSpec, SpaceDesc, TickEmit, TickEvents, TickResult, TokenRef,
};
use ictus::worker::socket::{pair, receive_descriptor};

use crate::random::Random;

const SHORT: Duration = Duration::from_millis(300);

fn hasty() -> RemoteOptions {
    RemoteOptions {
        start_timeout: Some(SHORT),
        tick_timeout: Some(SHORT),
        request_timeout: Some(SHORT),
        restarts: 0,
        ..RemoteOptions::default()
    }
}

/// The worker's end: what it hears, what it says.
struct Liar {
    frames: UnixStream,
    descriptors: std::os::fd::OwnedFd,
    reader: FrameReader,
    writer: FrameWriter,
}

impl Liar {
    /// The next message's number and `seq`; none once the host has left.
    fn hear(&mut self) -> Option<(u16, u64)> {
        let mut piece = [0; 4096];
        loop {
            if let Some(frame) = self.reader.next().expect("the host speaks well") {
                return Some((frame.kind, frame.seq));
            }
            match self.frames.read(&mut piece) {
                Ok(count) if count > 0 => self.reader.push(&piece[..count]),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                _ => return None,
            }
        }
    }

    fn say(&mut self, correlation: u64, message: &Message) {
        let mut out = Vec::new();
        self.writer.write(correlation, message, &mut out).expect("it fits");
        let _ = self.frames.write_all(&out);
    }

    /// Shakes hands as a good worker does.
    fn shake_hands(&mut self) {
        while let Some((heard, seq)) = self.hear() {
            match heard {
                kind::HELLO => self.say(seq, &Message::HelloAck(ack())),
                kind::RING_ATTACH => {
                    let (tag, _) = receive_descriptor(self.descriptors.as_fd(), SHORT).expect("a ring");
                    self.say(seq, &Message::RingAck(RingAck { ring_id: tag as u32, generation_base: 1 }));
                }
                kind::CONTROL_ATTACH => {
                    receive_descriptor(self.descriptors.as_fd(), SHORT).expect("the words");
                    self.say(seq, &Message::ControlAck(64));
                    return;
                }
                other => panic!("{other:#x} in a handshake"),
            }
        }
    }
}

fn spec(ring_id: u32, kind: RingKind) -> RingSpec {
    RingSpec { ring_id, kind, slot_bytes: 2064, slots: 8 }
}

fn ack() -> HelloAck {
    let ring_specs = vec![spec(1, RingKind::Tokens), spec(2, RingKind::Tokens), spec(3, RingKind::Logits)];
    HelloAck {
        chosen: 8,
        capabilities: "{}".into(),
        spaces: vec![SpaceDesc {
            space_id: 1,
            name: "a name that is longer than a record can hold".into(),
            ..SpaceDesc::default()
        }],
        limits: Limits { max_frame: 1 << 24, op_window: 16, ring_specs },
        ..HelloAck::default()
    }
}

/// A host whose workers all follow `script`.
fn start(
    script: impl Fn(&mut Liar) + Send + Sync + 'static,
    options: RemoteOptions,
) -> Result<RemoteEngine, WorkerGone> {
    let script = Arc::new(script);
    // Sockets of threads that ended stay open until the host has looked.
    let kept = Arc::new(Mutex::new(Vec::new()));
    let launch = move || {
        let (frames, their_frames) = pair()?;
        let (descriptors, their_descriptors) = pair()?;
        let (script, kept) = (Arc::clone(&script), Arc::clone(&kept));
        std::thread::spawn(move || {
            let mut liar = Liar {
                frames: their_frames.into(),
                descriptors: their_descriptors,
                reader: FrameReader::new(),
                writer: FrameWriter::new(8),
            };
            script(&mut liar);
            kept.lock().expect("whole").push(liar);
        });
        Ok(Peer { frames, descriptors, process: None })
    };
    RemoteEngine::start(launch, options)
}

/// How the start ends with such a worker; it must be in time.
fn refused(script: impl Fn(&mut Liar) + Send + Sync + 'static) -> LinkError {
    let began = Instant::now();
    let gone = start(script, hasty()).expect_err("no host takes this worker");
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    gone.cause
}

#[test]
fn handshake_that_is_wrong_is_refused() {
    let answer = |ack: HelloAck| {
        refused(move |liar| {
            while let Some((heard, seq)) = liar.hear() {
                match heard {
                    kind::HELLO => liar.say(seq, &Message::HelloAck(ack.clone())),
                    _ => liar.say(seq, &Message::RingAck(RingAck { ring_id: 9, generation_base: 7 })),
                }
            }
        })
    };
    assert!(matches!(refused(|_| {}), LinkError::TimedOut), "mute");
    assert!(matches!(refused(|liar| drop(liar.frames.shutdown(std::net::Shutdown::Both))), LinkError::Closed));
    assert!(matches!(answer(HelloAck { chosen: 7, ..ack() }), LinkError::Version { got: 7 }));
    let rings = |ring_specs| HelloAck { limits: Limits { ring_specs, ..ack().limits }, ..ack() };
    let whole = ack().limits.ring_specs;
    let mut cases = vec![vec![], whole[..2].to_vec(), vec![whole[0].clone(); 3]];
    for change in [
        |spec: &mut RingSpec| spec.ring_id = 4,
        |spec: &mut RingSpec| spec.kind = RingKind::Logits,
        |spec: &mut RingSpec| spec.slot_bytes = 12,
        |spec: &mut RingSpec| spec.slot_bytes = 2063,
        |spec: &mut RingSpec| spec.slots = 0,
        |spec: &mut RingSpec| (spec.slots, spec.slot_bytes) = (u32::MAX, u32::MAX - 7),
    ] {
        let mut specs = whole.clone();
        change(&mut specs[0]);
        cases.push(specs);
    }
    for case in cases {
        let shown = format!("{case:?}");
        assert!(matches!(answer(rings(case)), LinkError::Protocol(_)), "{shown}");
    }
    assert!(matches!(answer(ack()), LinkError::Protocol(_)), "the acknowledgement of another ring");
}

/// After a good handshake, a tick is answered with something wrong.
#[test]
fn tick_that_is_answered_wrongly_ends_the_worker_and_not_the_host() {
    fn emit(ring_id: u32, generation: u64, lane_tag: u64) -> Message {
        let token_ref = TokenRef { ring_id, index: 3, count: 1, generation };
        let emit = LaneEmit { lane_tag, token_ref, n_tokens: 1, ..LaneEmit::default() };
        let admit_results = vec![Default::default()];
        Message::TickResult(TickResult::Events(TickEvents {
            emits: vec![emit],
            admit_results,
            ..TickEvents::default()
        }))
    }
    type Answer = fn(&mut Liar, u64);
    let answers: &[(&str, Answer)] = &[
        ("nothing", |_, _| {}),
        ("the end", |liar, _| drop(liar.frames.shutdown(std::net::Shutdown::Both))),
        ("half a frame, then the end", |liar, _| {
            let _ = liar.frames.write_all(&[25, 0, 0, 0, 8, 0]);
            drop(liar.frames.shutdown(std::net::Shutdown::Both));
        }),
        ("a length that is too large", |liar, _| drop(liar.frames.write_all(&[255; 64]))),
        ("another kind", |liar, seq| liar.say(seq, &Message::ControlAck(1))),
        ("a reply to nothing", |liar, seq| liar.say(seq + 1000, &Message::TickResult(TickResult::default()))),
        ("a message that only a host sends", |liar, _| liar.say(0, &Message::DrainReq)),
        ("an emit of a ring that is none", |liar, seq| liar.say(seq, &emit(77, 1, 1))),
        ("an emit that was never written", |liar, seq| liar.say(seq, &emit(2, 5, 1))),
        ("an emit of another lane", |liar, seq| liar.say(seq, &emit(2, 5, 9))),
        ("too few results", |liar, seq| {
            liar.say(seq, &Message::TickResult(TickResult::Events(TickEvents::default())));
        }),
        ("another version", |liar, seq| {
            liar.writer.set_version(9);
            liar.say(seq, &Message::TickResult(TickResult::default()));
        }),
        ("tokens for ever", |liar, _| {
            let emit = Message::TickEmit(TickEmit { lane_tag: 1, tokens: vec![1; 100] });
            let mut out = Vec::new();
            for _ in 0..100 {
                liar.writer.write(0, &emit, &mut out).expect("it fits");
            }
            while liar.frames.write_all(&out).is_ok() {}
        }),
        ("a fatal engine", |liar, seq| {
            liar.say(seq, &Message::TickResult(TickResult::Rejected { status: -1 }));
        }),
        ("a status that is none", |liar, seq| {
            liar.say(seq, &Message::TickResult(TickResult::Rejected { status: 12345 }));
        }),
    ];
    for &(name, answer) in answers {
        let script = move |liar: &mut Liar| {
            liar.shake_hands();
            while let Some((heard, seq)) = liar.hear() {
                if heard == kind::TICK_SUBMIT {
                    answer(liar, seq);
                }
            }
        };
        let engine = start(script, hasty()).unwrap_or_else(|gone| panic!("{name}: {gone}"));
        let mut host = Harness::with_engine(engine);
        let prompt = host.prompt(&[1, 2, 3]);
        let began = Instant::now();
        let plan = host.plan().admit(1, prompt).prefill(1, 0, 3).decode(1, 1);
        assert_eq!(host.tick_err(plan), Status::Fatal, "{name}");
        assert!(began.elapsed() < Duration::from_secs(20), "{name}: {:?}", began.elapsed());
        assert!(host.engine.gone().is_some(), "{name}");
        assert!(host.engine.lane_tokens(1).is_none(), "{name}: nothing was admitted");
    }
}

/// W-74, seen from the host: garbage behind a good handshake, in any form.
#[test]
fn garbage_never_brings_the_host_down() {
    let mut random = Random::new("garbage_never_brings_the_host_down");
    for _ in 0..60 {
        let key = random.next();
        let script = move |liar: &mut Liar| {
            liar.shake_hands();
            let mut random = Random::from_key(key);
            while let Some((_, seq)) = liar.hear() {
                let mut bytes: Vec<u8> = (0..random.below(300)).map(|_| random.next() as u8).collect();
                if random.below(4) > 0 {
                    // A frame that is right but for its payload.
                    let body = bytes.split_off(bytes.len() / 2);
                    let mut frame = Vec::new();
                    frame.extend((21 + body.len() as u32).to_le_bytes());
                    frame.extend(8u16.to_le_bytes());
                    let kind = *random.pick(&[0x0006u16, 0x0008, 0x000A, 0x000D, 0x000E, 0x0013, 0x001D]);
                    frame.extend(kind.to_le_bytes());
                    frame.extend(1u64.to_le_bytes());
                    frame.extend((if random.below(2) == 0 { seq } else { 0 }).to_le_bytes());
                    frame.push(0);
                    frame.extend(body);
                    bytes = frame;
                }
                let _ = liar.frames.write_all(&bytes);
                let _ = liar.frames.shutdown(std::net::Shutdown::Write);
            }
        };
        let engine = start(script, hasty()).expect("a good handshake");
        let mut host = Harness::with_engine(engine);
        let prompt = host.prompt(&[1, 2, 3]);
        let plan = host.plan().admit(1, prompt).prefill(1, 0, 3).decode(1, 1);
        let (plan, memory) = plan.build();
        // Bytes at random may even be a refusal; what matters is that there is an answer.
        let _ = host.tick_record(&plan, &memory);
        use ictus::engine::Engine;
        let _ = host.engine.space_match(1, &[1, 2], &[]).map(|_| ());
        let _ = host.engine.seed_acquire(&[1, 2], 1, 0);
        let _ = host.engine.create_sequence();
        let _ = host.engine.close();
    }
}
