//! A host that cuts short what it lends, in every phase: nobody dies of it, and what it touches ends the link (W-34, W-37, W-74).
//!
//! The worker of these tests is a thread of this very process: a SIGBUS would end them all.

use std::sync::Arc;
use std::time::Duration;

use ictus::executor::Executor;
use ictus::record::constant::sampling;
use ictus::runtime::{FakeOptions, FakeRuntime};
use ictus::worker::message::Message;
use ictus::worker::payload::*;
use ictus::worker::server::ServeError;
use rustix::fs::MemfdFlags;

use crate::fuzz::checks::Object;
use crate::host::{Host, admit, decode};

/// Objects that nobody can seal, as the reference host passes them.
const UNSEALED: MemfdFlags = MemfdFlags::empty();
/// Which object is which.
const PROMPTS: usize = 0;
const EMITS: usize = 1;
const ROWS: usize = 2;
const CONTROL: usize = 3;

/// A host over objects that it can cut.
fn loose() -> (Host, Vec<Arc<Object>>) {
    let mut host = Host::of_fake();
    let objects = host.start_over(UNSEALED);
    (host, objects)
}

fn text(len: u32) -> Vec<u32> {
    (0..len).map(|n| 3 + n * 7 % 250).collect()
}

/// A plan that admits a lane whose host draws, and asks a row of it.
fn row_plan(host: &mut Host, lane_tag: u64) -> Plan {
    let mut plan = host.first_plan(lane_tag, &text(8), 1);
    plan.admits[0].sampling = sampling::HOST;
    plan
}

/// The link ends for the object of this index.
#[track_caller]
fn cut_is_told(host: Host, index: usize) {
    let expected = if index == CONTROL { "control segment" } else { "ring" };
    match host.end() {
        Err(ServeError::Cut { what }) => assert_eq!(what, expected),
        other => panic!("{other:?}"),
    }
}

/// Spec W "Beyond", sealed objects: unsealed ones must be accepted; by position, everything is as it is in a mapping.
#[test]
fn objects_that_cannot_be_sealed_serve_as_others_do() {
    let (mut host, objects) = loose();
    let mut sealed = Host::ready();
    // Longer than what goes at once, and shorter.
    for (lane, len) in [(1, 1), (2, 700), (3, 1500)] {
        assert_eq!(host.run(lane, &text(len), 40), sealed.run(lane, &text(len), 40), "{len} tokens");
    }
    let rows = [&mut host, &mut sealed].map(|host| {
        let plan = row_plan(host, 4);
        let events = host.tick(plan);
        host.row(&events.emits[0].logits_row).into_iter().map(f32::to_bits).collect::<Vec<_>>()
    });
    assert_eq!(rows[0], rows[1]);
    host.retire(2, true);
    sealed.retire(2, true);
    let matched = [&mut host, &mut sealed].map(|host| {
        let span = host.prompt(&text(700));
        host.matches(span)
    });
    assert_eq!(matched[0], matched[1]);
    assert!(!matched[0][0].candidates.is_empty());
    host.control.as_ref().expect("attached").set_yield(true);
    let plan = host.first_plan(9, &text(20), 64);
    let events = host.tick(plan);
    assert!(host.tokens_of(&events, 9).len() < 64, "the word is read by position, too");
    assert!(objects.iter().all(|object| object.cut(0)), "they could have been cut all the time");
    drop(host.close());
}

/// An object that can be sealed is, by whoever maps it: its owner cannot cut it any more.
#[test]
fn object_that_can_be_sealed_cannot_be_cut() {
    let mut host = Host::of_fake();
    let objects = host.start_over(MemfdFlags::ALLOW_SEALING);
    assert!(objects.iter().all(|object| !object.cut(0) && !object.cut(63)));
    assert_eq!(host.run(1, &text(30), 5).len(), 5);
    assert!(host.close().is_ok());
}

/// W-34, W-37: cut between the announcement and the look at it.
#[test]
fn object_that_is_cut_before_it_is_passed_is_refused() {
    for flags in [UNSEALED, MemfdFlags::ALLOW_SEALING] {
        for index in 0..3 {
            let mut host = Host::of_fake();
            host.hello();
            let spec = host.specs[index].clone();
            let object = Object::new(64 + (spec.slots * spec.slot_bytes) as usize, flags);
            host.announce(&spec);
            assert!(object.cut(200));
            host.pass_descriptor(spec.ring_id.into(), object.descriptor());
            let error = host.refused();
            assert!(matches!(error, ServeError::Attach { what: "ring", .. }), "{error}");
        }
    }
}

/// Cut while nothing runs: a worker that does not touch it serves on; the tick that does ends the link, and sends no result.
#[test]
fn object_that_is_cut_between_ticks_ends_the_link_when_it_is_touched() {
    for left in [0, 64, 80] {
        for index in [PROMPTS, EMITS, ROWS, CONTROL] {
            if index == CONTROL && left >= 64 {
                continue;
            }
            let (mut host, objects) = loose();
            host.run(1, &text(30), 3);
            assert!(objects[index].cut(left));
            host.ping();
            let plan = match index {
                PROMPTS => {
                    // A slot that was written before; the host's own end is cut as well.
                    let mut plan = host.plan();
                    let prompt = TokenRef { ring_id: 1, index: 0, count: 30, generation: 1 };
                    plan.admits = vec![admit(2, prompt)];
                    plan
                }
                ROWS => row_plan(&mut host, 2),
                _ => {
                    let mut plan = host.plan();
                    plan.decodes = vec![decode(1, 4)];
                    plan
                }
            };
            host.send(&Message::TickSubmit(plan));
            assert_eq!(host.receive(), None, "no result, {index} cut to {left}");
            cut_is_told(host, index);
        }
    }
}

/// As any span that cannot be read (W-50, W-51, W-61); then the link ends.
#[test]
fn span_in_a_ring_that_is_cut_is_answered_as_unreadable_and_ends_the_link() {
    for question in 0..3 {
        let (mut host, objects) = loose();
        host.run(1, &text(30), 3);
        host.retire(1, true);
        let span = host.prompt(&text(30));
        let SyncOk::CreateSequence { sequence } = host.sync(SyncRequest::CreateSequence) else { panic!("one") };
        assert!(objects[PROMPTS].cut(64));
        match question {
            0 => assert!(host.matches(span).is_empty()),
            1 => assert_eq!(host.acquire(span, 16), SeedGrant::Refused { status: -103 }),
            _ => {
                let publish = SyncRequest::PublishSequence { sequence, span };
                assert_eq!(host.sync_result(publish), SyncResult::Err { status: -103 });
            }
        }
        assert_eq!(host.receive(), None);
        cut_is_told(host, PROMPTS);
    }
}

/// Cut from another thread while a tick runs, once tokens of it have come.
#[test]
fn object_that_is_cut_inside_a_tick_ends_the_link_with_it() {
    for index in [EMITS, CONTROL] {
        let options = FakeOptions { step_delay: Duration::from_millis(1), ..FakeOptions::default() };
        let mut host = Host::of(move || Box::new(Executor::new(FakeRuntime::new(options))));
        let objects = host.start_over(UNSEALED);
        let mut plan = host.first_plan(1, &text(20), 200);
        plan.flags = ictus::record::constant::tick_flag::PARTIAL_EMITS;
        host.send(&Message::TickSubmit(plan));
        assert!(matches!(host.receive(), Some((0, Message::TickEmit(_)))), "the tick runs");
        assert!(objects[index].cut(0));
        while let Some((correlation, message)) = host.receive() {
            assert!(correlation == 0 && matches!(message, Message::TickEmit(_)), "no result: {message:?}");
        }
        cut_is_told(host, index);
    }
}
