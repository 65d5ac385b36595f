//! Greeting, attaching, and everything that ends a link (WS-5 .. WS-9, WS-20, WS-21).

use std::time::{Duration, Instant};

use ictus::ring::SharedRing;
use ictus::worker::memory::SharedMemory;
use ictus::worker::message::{Message, kind};
use ictus::worker::payload::*;
use ictus::worker::server::{End, ServeError, ServerOptions, WorkerServer};
use ictus::worker::socket::{DescriptorError, pair};

use crate::host::{CONTROL_TAG, DESCRIPTOR_LIMIT, Host, offer};
use crate::{ends_within_a_second, raw_frame};

/// W-21, W-23.
#[test]
fn ws_5_highest_common_version_is_chosen() {
    for (lowest, highest) in [(8, 8), (1, 20), (8, 9), (0, 8)] {
        let mut host = Host::of_fake();
        let Message::HelloAck(ack) = host.ask(&offer(lowest, highest)) else { panic!("an ack") };
        assert_eq!((ack.chosen, ack.engine_bundle_hash, ack.strategies.len()), (8, [0; 32], 0));
        assert_eq!((ack.limits.max_frame, ack.limits.op_window), (1 << 24, 16));
        let rings: Vec<(u32, u32, u32)> =
            ack.limits.ring_specs.iter().map(|spec| (spec.ring_id, spec.slot_bytes, spec.slots)).collect();
        assert_eq!(rings, [(1, 16 + 4 * 4096, 64), (2, 4112, 256), (3, 16 + 4 * 32_000, 8)], "W-30");
        assert_eq!(ack.spaces.len(), 1);
        assert_eq!(ack.spaces[0].space_id, 1);
        let capabilities: serde_json::Value = serde_json::from_str(&ack.capabilities).expect("JSON");
        assert_eq!(capabilities["runtime"]["id"], "fake");
    }
    for (lowest, highest) in [(9, 12), (1, 7), (8, 3)] {
        let mut host = Host::of_fake();
        host.send(&offer(lowest, highest));
        let error = host.refused();
        assert!(matches!(error, ServeError::NoCommonVersion { .. }), "{lowest} to {highest}: {error}");
    }
}

/// W-24.
#[test]
fn ws_5_second_greeting_gets_the_same_answer_and_changes_nothing() {
    let mut host = Host::ready();
    let first = host.run(7, &[1, 2, 3], 4);
    let ack = host.hello();
    assert_eq!(ack, host.hello());
    let mut undisturbed = Host::ready();
    assert_eq!(undisturbed.run(7, &[1, 2, 3], 4), first);
    assert_eq!(host.go_on(7, 4), undisturbed.go_on(7, 4));
}

/// W-20, W-22, W-15.
#[test]
fn ws_6_what_is_out_of_order_ends_the_link() {
    for message in [Message::Ping(Load::default()), Message::DrainReq, Message::Telemetry(vec![])] {
        let mut host = Host::of_fake();
        host.send(&message);
        assert!(matches!(host.refused(), ServeError::NoHello { .. }), "{message:?}");
    }
    let mut host = Host::of_fake();
    host.hello();
    host.send_raw(&raw_frame(7, kind::DRAIN_REQ, 2, 0, 0, &[]));
    assert!(matches!(host.refused(), ServeError::Version { got: 7 }));
    let from_workers = [
        Message::TickResult(TickResult::Rejected { status: -1 }),
        Message::Drained,
        Message::Pong(Load::default()),
        Message::TickEmit(TickEmit::default()),
    ];
    for message in from_workers {
        let mut host = Host::of_fake();
        host.hello();
        host.send(&message);
        assert!(matches!(host.refused(), ServeError::Unhandled { .. }), "{message:?}");
    }
    let mut host = Host::of_fake();
    host.send_raw(&raw_frame(99, kind::HELLO, 1, 0, 0, &[8, 8, 0, 0]));
    assert!(
        matches!(host.receive(), Some((1, Message::HelloAck(_)))),
        "W-20: the version of HELLO's frame is nobody's business"
    );
}

/// W-12, W-35, W-44, W-50.
#[test]
fn ws_6_payload_errors_and_calls_before_the_rings_end_the_link() {
    let mut host = Host::of_fake();
    host.hello();
    host.send_raw(&raw_frame(8, kind::SEED_RELEASE, 2, 0, 0, &[0x80]));
    assert!(matches!(host.refused(), ServeError::Payload { kind: kind::SEED_RELEASE, .. }));
    let span = TokenRef { ring_id: 1, index: 0, count: 1, generation: 1 };
    let early = [
        Message::TickSubmit(Plan::default()),
        Message::MatchReq(MatchReq { space_id: 1, span: span.clone(), media_deps: vec![] }),
        Message::SeedAcquire(SeedAcquire { span, prefix_len: 1, determinism_class: 0 }),
    ];
    for message in early {
        let mut host = Host::of_fake();
        host.hello();
        // Two rings are not all of them.
        host.attach(0);
        host.attach(1);
        host.send(&message);
        assert!(matches!(host.refused(), ServeError::NoRings { .. }), "{message:?}");
    }
}

/// Greets, then announces a ring with this layout and passes what `pass` passes.
fn attach_refused(change: impl FnOnce(&mut RingSpec, &mut u32), pass: impl FnOnce(&Host, &RingSpec)) -> ServeError {
    let mut host = Host::of_fake();
    host.hello();
    let offered = host.specs[0].clone();
    let (mut layout, mut ring_id) = (offered.clone(), offered.ring_id);
    change(&mut layout, &mut ring_id);
    host.send(&Message::RingAttach(RingAttach { ring_id, layout }));
    pass(&host, &offered);
    host.refused()
}

/// Memory with the header of a ring, which `spoil` may change.
fn ring(host: &Host, spec: &RingSpec, bytes: usize, spoil: impl FnOnce(&SharedMemory)) -> SharedMemory {
    let memory = SharedMemory::create("ring", bytes).expect("memory");
    let words = [0x4252_5452_494E_4731u64.to_le_bytes().to_vec(), spec.ring_id.to_le_bytes().to_vec()];
    let rest = [spec.slot_bytes.to_le_bytes(), spec.slots.to_le_bytes()].concat();
    assert!(memory.copy_in(0, &[words.concat(), rest].concat()));
    spoil(&memory);
    let _ = host;
    memory
}

fn ring_bytes(spec: &RingSpec) -> usize {
    64 + spec.slots as usize * spec.slot_bytes as usize
}

/// W-33, W-34.
#[test]
fn ws_7_ring_that_is_not_as_offered_ends_the_link() {
    let good = |host: &Host, spec: &RingSpec| {
        let memory = ring(host, spec, ring_bytes(spec), |_| {});
        host.pass(spec.ring_id.into(), &memory);
    };
    let attach = |error: ServeError| assert!(matches!(error, ServeError::Attach { .. }), "{error}");
    attach(attach_refused(|_, id| *id = 4, good));
    attach(attach_refused(|layout, _| layout.slots += 1, good));
    attach(attach_refused(|layout, _| layout.slot_bytes -= 8, good));
    attach(attach_refused(|layout, _| layout.kind = RingKind::Logits, good));
    attach(attach_refused(|layout, _| layout.ring_id = 2, good));
    attach(attach_refused(|_, _| {}, |host, spec| host.pass(2, &ring(host, spec, ring_bytes(spec), |_| {}))));
    attach(attach_refused(|_, _| {}, |host, spec| host.pass(1, &ring(host, spec, ring_bytes(spec) - 1, |_| {}))));
    for at in [0, 8, 12, 16] {
        let error = attach_refused(
            |_, _| {},
            |host, spec| {
                let spoilt = ring(host, spec, ring_bytes(spec), |memory| assert!(memory.copy_in(at, &[0x77])));
                host.pass(1, &spoilt);
            },
        );
        assert!(matches!(error, ServeError::Layout { .. }), "byte {at} of the header: {error}");
    }
}

/// W-33.
#[test]
fn ws_7_anything_but_one_descriptor_with_its_tag_ends_the_link() {
    type Pass = fn(&Host, &RingSpec);
    let passes: [(&str, Pass); 5] = [
        ("two", |host, spec| {
            let memory = ring(host, spec, ring_bytes(spec), |_| {});
            host.pass_raw(&1u64.to_le_bytes(), &[&memory, &memory]);
        }),
        ("more than are looked at", |host, spec| {
            let memory = ring(host, spec, ring_bytes(spec), |_| {});
            host.pass_raw(&1u64.to_le_bytes(), &[&memory; 8]);
        }),
        ("none", |host, _| host.pass_raw(&1u64.to_le_bytes(), &[])),
        ("a short tag", |host, spec| host.pass_raw(&[1, 0, 0], &[&ring(host, spec, ring_bytes(spec), |_| {})])),
        ("nothing, in time", |_, _| {}),
    ];
    for (what, pass) in passes {
        let error = attach_refused(|_, _| {}, pass);
        assert!(matches!(error, ServeError::Descriptor { .. }), "{what}: {error}");
    }
}

/// W-33: what is announced and never comes ends the link when the limit is over, and not before; what comes late and in time is taken.
#[test]
fn ws_7_descriptor_that_never_comes_ends_the_link_when_the_limit_is_over() {
    assert_eq!(ServerOptions::new(4096, 32_000).descriptor_limit, Duration::from_secs(10));
    let ring = |host: &Host| RingAttach { ring_id: 1, layout: host.specs[0].clone() };
    type Announce<'a> = &'a dyn Fn(&Host) -> Message;
    let announced: [(&str, Announce<'_>); 3] = [
        ("ring", &|host| Message::RingAttach(ring(host))),
        ("control segment", &|_| Message::ControlAttach(64)),
        ("buffer", &|_| Message::BufAttach(BufAttach { buf_id: 5, len: 1000, generation: 1 })),
    ];
    for (named, announce) in announced {
        ends_within_a_second(|| {
            let mut host = Host::of_fake();
            host.hello();
            let start = Instant::now();
            let message = announce(&host);
            host.send(&message);
            // What is asked behind it is not answered either.
            host.send(&Message::Ping(Load::default()));
            let error = host.refused();
            let ServeError::Descriptor { what, error: DescriptorError::TimedOut } = &error else {
                panic!("{named}: {error}")
            };
            assert_eq!(*what, named);
            start.elapsed().checked_sub(DESCRIPTOR_LIMIT).expect("the limit is waited for")
        });
    }
    let mut host = Host::of_fake();
    host.hello();
    let spec = host.specs[0].clone();
    let (seq, memory) = (host.announce(&spec), SharedMemory::create("ring", ring_bytes(&spec)).expect("memory"));
    SharedRing::lay_out(spec.ring_id, spec.slots, spec.slot_bytes, memory.mapping()).expect("a ring");
    std::thread::sleep(DESCRIPTOR_LIMIT / 6);
    host.pass(spec.ring_id.into(), &memory);
    assert_eq!(host.reply_to(seq), Message::RingAck(RingAck { ring_id: spec.ring_id, generation_base: 1 }));
}

/// W-36.
#[test]
fn ws_7_ring_that_is_attached_already_ends_the_link() {
    for all in [false, true] {
        let mut host = Host::of_fake();
        host.hello();
        for index in 0..if all { 3 } else { 1 } {
            host.attach(index);
        }
        let layout = host.specs[0].clone();
        host.send(&Message::RingAttach(RingAttach { ring_id: 1, layout: layout.clone() }));
        let memory = host.ring_memory(&layout);
        host.pass(1, &memory);
        assert!(matches!(host.refused(), ServeError::Attach { .. }));
    }
}

/// W-30, W-31, W-37.
#[test]
fn ws_8_rings_and_control_come_in_any_order() {
    let mut host = Host::of_fake();
    host.hello();
    host.attach_control();
    for index in [2, 0, 1] {
        host.attach(index);
    }
    host.attach_control();
    let mut usual = Host::ready();
    assert_eq!(host.run(7, &[5, 6, 7], 8), usual.run(7, &[5, 6, 7], 8));
}

/// W-37.
#[test]
fn ws_9_bad_control_segments_end_the_link() {
    let magic = 0x3130_4C52_5443_4653u64.to_le_bytes();
    let segment = |bytes, magic: &[u8]| {
        let memory = SharedMemory::create("control", bytes).expect("memory");
        assert!(memory.copy_in(0, magic));
        memory
    };
    let refused = |announced: u32, tag, memory: SharedMemory| {
        let mut host = Host::of_fake();
        host.hello();
        host.send(&Message::ControlAttach(announced));
        host.pass(tag, &memory);
        host.refused()
    };
    assert!(matches!(refused(16, CONTROL_TAG, segment(16, &magic)), ServeError::Attach { .. }), "short");
    assert!(
        matches!(refused(128, CONTROL_TAG, segment(64, &magic)), ServeError::Attach { .. }),
        "shorter than announced"
    );
    assert!(matches!(refused(64, CONTROL_TAG, segment(64, &[])), ServeError::Layout { .. }), "no magic");
    assert!(matches!(refused(64, 1, segment(64, &magic)), ServeError::Attach { .. }), "another tag");
}

/// W-40.
#[test]
fn ws_9_bad_buffers_end_the_link() {
    let refused = |len, tag| {
        let mut host = Host::of_fake();
        host.hello();
        host.send(&Message::BufAttach(BufAttach { buf_id: 5, len, generation: 1 }));
        host.pass(tag, &SharedMemory::create("buffer", 1000).expect("memory"));
        host.refused()
    };
    for (len, tag) in [(1000, 6), (1001, 5), (u64::MAX, 5)] {
        let error = refused(len, tag);
        assert!(matches!(error, ServeError::Attach { .. }), "{len} bytes under {tag}: {error}");
    }
}

/// W-7, W-11.
#[test]
fn ws_20_spare_bytes_late_cancels_and_telemetry_are_nothing() {
    let mut host = Host::of_fake();
    host.hello();
    host.send(&Message::TranscribeCancel);
    host.send_raw(&raw_frame(8, kind::TELEMETRY, 3, 0, 1, &[0xFF; 9]));
    host.send_raw(&raw_frame(8, 0x9000, 4, 0, 1, &[1, 2, 3]));
    host.send(&Message::SeedRelease(77));
    host.send(&Message::OpCancel(77));
    host.send(&Message::BufRelease(77));
    host.send(&Message::BufAlloc(BufAlloc { buf_id: 1, len: 2 }));
    host.send_raw(&raw_frame(8, kind::PING, 40, 0, 0, &[0, 0, 0, 0, 0, 0, 0, 1, 2, 3]));
    assert_eq!(host.receive(), Some((40, Message::Pong(Load::default()))));
}

/// W-70, W-6: within a second.
#[test]
fn ws_21_closed_stream_is_the_normal_end() {
    fn idle(host: &mut Host) {
        host.ping();
    }
    fn live(host: &mut Host) {
        host.run(7, &[1, 2, 3], 4);
    }
    fn inside(host: &mut Host) {
        host.send_raw(&raw_frame(8, kind::PING, 1, 0, 0, &[0; 7])[..20]);
    }
    let ends = |host: fn() -> Host, act: fn(&mut Host), expected: End| {
        ends_within_a_second(|| {
            let mut host = host();
            act(&mut host);
            let start = Instant::now();
            assert_eq!(host.close().expect("a normal end"), expected);
            start.elapsed()
        });
    };
    ends(Host::of_fake, |_| (), End::Closed);
    ends(Host::ready, idle, End::Closed);
    ends(Host::ready, live, End::Closed);
    ends(Host::ready, inside, End::Truncated { left: 20 });
    let mut without = Host::ready();
    without.close_descriptors();
    assert_eq!(without.run(7, &[1, 2, 3], 4).len(), 4, "nothing needs a descriptor");
    without.send(&Message::ControlAttach(64));
    assert!(matches!(without.refused(), ServeError::Descriptor { .. }), "until something does");
}

/// W-8: several requests before anything is read.
#[test]
fn requests_are_answered_in_the_order_they_came() {
    let mut host = Host::ready();
    let mut plan = host.first_plan(7, &[1, 2, 3], 4);
    plan.flags = 0;
    let sent = [
        Message::Ping(Load::default()),
        Message::TickSubmit(plan),
        Message::StateSyncReq(SyncRequest::LaneSequence { lane_tag: 7 }),
        Message::DrainReq,
        Message::Ping(Load::default()),
    ];
    let numbers: Vec<u64> = sent.iter().map(|message| host.send(message)).collect();
    let kinds: Vec<u16> = numbers.into_iter().map(|seq| host.reply_to(seq).kind()).collect();
    assert_eq!(kinds, [kind::PONG, kind::TICK_RESULT, kind::STATE_SYNC_RES, kind::DRAINED, kind::PONG]);
}

/// W-73: the host has gone before it got its answer.
#[test]
fn write_that_fails_is_a_link_error() {
    use std::io::Write;
    let (host, frames) = pair().expect("a pair");
    let (_channel, descriptors) = pair().expect("a pair");
    let mut host = std::os::unix::net::UnixStream::from(host);
    host.write_all(&raw_frame(8, kind::HELLO, 1, 0, 0, &[8, 8, 0, 0])).expect("there is room");
    drop(host);
    let engine = ictus::executor::Executor::new(ictus::runtime::FakeRuntime::default());
    let options = ServerOptions::new(4096, 32_000);
    let ended = WorkerServer::new(Box::new(engine), options, frames, descriptors).serve();
    assert!(matches!(ended, Err(ServeError::Io(_))), "{ended:?}");
}
