//! The contract of the executor, over the link.

use ictus::engine::Engine;
use ictus::record::TokenRange;
use ictus::record::constant::{encoding, op_state};
use ictus::testing::{Harness, tick_contract};

use crate::probe::Inspected;
use crate::remote;

/// TS-1 .. TS-15 (WS-10): the scenarios that every engine has to pass, each on a worker of its own.
#[test]
fn remote_engine_passes_the_tick_contract() {
    tick_contract::run_all(|| Harness::with_engine(Inspected::new(remote("fake"), false)));
}

/// Over a ring of the host that holds little, an emit that does not fit faults its lane alone (T-141).
#[test]
fn emit_that_the_ring_of_the_host_cannot_hold_faults_its_lane() {
    use ictus::ring::{MemoryRingShape, MemoryRings};
    let shape = MemoryRingShape { emit_tokens: 4, ..MemoryRingShape::default() };
    let mut host =
        Harness::with_engine_and_rings(Inspected::new(remote("fake"), false), MemoryRings::with_shape(shape));
    let prompt = host.prompt(&[1, 2, 3]);
    let plan =
        host.plan().admit(1, prompt).admit(2, prompt).prefill(1, 0, 3).prefill(2, 0, 3).decode(1, 8).decode(2, 2);
    let events = host.tick_ok(plan);
    assert_eq!(events.fault_for(1).map(|fault| fault.code), Some(2));
    assert!(events.emit_for(1).is_none());
    assert_eq!(host.tokens_of(&events, 2).len(), 2);
    let plan = host.plan().decode(2, 1);
    assert_eq!(host.tick_ok(plan).emits.len(), 1);
    let plan = host.plan().admit(1, prompt).prefill(1, 0, 3).decode(1, 1);
    assert_eq!(host.tick_ok(plan).emits.len(), 1, "the tag is free in the worker too");
}

/// A publishing lane, a match, a seed and what it brings: as in process (WS-13).
#[test]
fn seeded_lane_emits_what_a_cold_one_does() {
    let mut host = Harness::with_engine(remote("fake"));
    let tokens: Vec<u32> = (1..=65).collect();
    let prompt = host.prompt(&tokens);
    let plan = host.plan().admit(1, prompt).prefill(1, 0, 65).decode(1, 4);
    let events = host.tick_ok(plan);
    let cold = host.tokens_of(&events, 1);
    let plan = host.plan().retire(1, true);
    host.tick_ok(plan);
    let result = host.engine.space_match(1, &tokens, &[]).expect("matched");
    assert_eq!(result.spaces.count, 1);
    assert_eq!(host.engine.match_candidates().first().map(|candidate| candidate.prefix_len), Some(64));
    let lease = host.engine.seed_acquire(&tokens, 64, 0).expect("a lease");
    let prompt = host.prompt(&tokens);
    let plan = host.plan().admit_with(|admit| admit.seed_handle = lease, 2, prompt).prefill(2, 64, 1).decode(2, 4);
    let events = host.tick_ok(plan);
    assert_eq!(host.tokens_of(&events, 2), cold);
    assert!(host.engine.seed_release(lease).is_err(), "consumed");
}

/// A snapshot is taken over the link, and restored and adopted in another worker (WS-15).
#[test]
fn parked_lane_goes_on_in_another_worker() {
    let mut host = Harness::with_engine(remote("fake"));
    let prompt = host.prompt(&(1..=20).collect::<Vec<u32>>());
    let plan = host.plan().admit(1, prompt).prefill(1, 0, 20).decode(1, 30);
    let events = host.tick_ok(plan);
    let mut known: Vec<u32> = (1..=20).collect();
    known.extend(host.tokens_of(&events, 1));
    let sequence = host.engine.lane_sequence(1).expect("live");
    let boundary = host.engine.space_snapshot_boundary(sequence, 1, known.len() as u64 - 1).expect("a boundary");
    assert_eq!(boundary, 48);
    let range = TokenRange { start: 0, end: boundary };
    let size = host.engine.space_export_size(sequence, 1, range, encoding::LOSSLESS).expect("a size");
    let op = host.engine.space_snapshot(sequence, 1, boundary, size.bytes, size.sizing_gen).expect("an operation");
    while host.engine.op_poll(op).expect("known").state < op_state::DONE {
        host.engine.pump();
    }
    let sealed = host.engine.take_op_output(op).expect("sealed bytes");
    assert_eq!(sealed.len() as u64, size.bytes);
    assert!(host.engine.take_op_output(op).is_none(), "once");
    let plan = host.plan().decode(1, 6);
    let events = host.tick_ok(plan);
    let expected = host.tokens_of(&events, 1);
    drop(host);

    let mut host = Harness::with_engine(remote("fake"));
    let bare = host.engine.create_sequence().expect("a sequence");
    let mut spoiled = sealed.clone();
    *spoiled.last_mut().expect("bytes") ^= 1;
    assert!(host.engine.space_restore(bare, 1, &spoiled).is_err(), "WS-16: a flipped byte");
    assert!(host.engine.space_restore(bare, 1, &sealed[..135]).is_err(), "WS-16: 135 bytes");
    let op = host.engine.space_restore(bare, 1, &sealed).expect("an operation");
    while host.engine.op_poll(op).expect("known").state < op_state::DONE {
        host.engine.pump();
    }
    assert_eq!(host.engine.op_poll(op).expect("known").state, op_state::DONE);
    let lease = host.engine.seed_adopt(bare, &known[..48]).expect("a lease");
    let prompt = host.prompt(&known);
    let plan = host.plan().admit_with(|admit| admit.seed_handle = lease, 5, prompt).prefill(5, 48, 2).decode(5, 6);
    let events = host.tick_ok(plan);
    assert_eq!(host.tokens_of(&events, 5), expected);
}

/// W-23, W-70: what the worker says of itself, and how it goes.
#[test]
fn worker_tells_its_spaces_and_goes_when_it_is_left() {
    let engine = remote("fake");
    assert_eq!(engine.state_spaces().len(), 1);
    assert_eq!(engine.state_spaces()[0].page_size_tokens, 16);
    assert!(engine.capability_descriptor().is_some_and(|text| text.contains("\"limits\"")));
    assert!(engine.process_id().is_some());
    assert_eq!(engine.close().and_then(|status| status.code()), Some(0));
}

/// An engine may move between threads.
#[test]
fn remote_engine_is_send() {
    fn check<T: Send>() {}
    check::<ictus::worker::client::RemoteEngine>();
}
