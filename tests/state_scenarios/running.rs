//! Operations that take several slices: S-90, SS-57, SS-58.

use ictus::engine::Engine;
use ictus::record::Status;
use ictus::record::constant::op_state;

use super::mover::*;

/// Sixteen tokens of the fake are 64 bytes: an export of 48 is three slices.
const SLICE: u64 = 64;

/// SS-57, S-90, T-144: what a running operation refuses, and how it ends.
#[test]
fn ss_57_running_operation_locks_its_sequence() {
    let mut h = slow_host(SLICE, |_| {});
    let sequence = lane(&mut h, 1, &span(100, 64));
    let other = lane(&mut h, 2, &span(500, 20));
    let op = snapshot(&mut h, sequence, 32);
    assert_eq!((state(&h, op), poll(&h, op).bytes_moved), ((op_state::RUNNING, None), 64));
    assert_eq!(h.engine.take_op_output(op), None, "nothing before it is done");
    for locked in [
        {
            let plan = h.plan().decode(1, 1);
            h.refused(plan)
        },
        {
            let plan = h.plan().retire(1, false);
            h.refused(plan)
        },
        {
            let plan = h.plan().retire(1, true);
            h.refused(plan)
        },
    ] {
        assert_eq!(locked, Status::RejectTransferLocked);
    }
    let sizing = size(&mut h, sequence, 48, 0).expect("sizing reads nothing");
    let busy = [
        refused(&mut h, |h| h.engine.space_snapshot(sequence, KV, 48, sizing.bytes, sizing.sizing_gen)),
        refused(&mut h, |h| h.engine.space_demote(sequence, KV, range(0, 48), 0, sizing.bytes, sizing.sizing_gen)),
        refused(&mut h, |h| h.engine.seq_fork(sequence, 0)),
        refused(&mut h, |h| h.engine.space_trim(sequence, KV, 10)),
    ];
    assert_eq!(busy, [Status::Busy; 4]);
    assert!(h.engine.seq_fork(other, 0).is_ok(), "the lock is the sequence's own");
    h.engine.pump();
    assert_eq!((state(&h, op), poll(&h, op).bytes_moved), (DONE, 136 + 128));
    let (events, _) = decode(&mut h, 1, 1);
    assert_eq!(
        events.op_completions.iter().map(|done| (done.op, done.state)).collect::<Vec<_>>(),
        [(op, op_state::DONE)]
    );
    assert!(h.engine.seq_fork(sequence, 0).is_ok());
    assert_eq!(h.engine.take_op_output(op).map(|bytes| bytes.len()), Some(136 + 128));
}

/// S-90: each accepted tick moves one slice; a refused one moves nothing.
#[test]
fn accepted_ticks_carry_operations_along() {
    let mut h = slow_host(SLICE, |_| {});
    let sequence = lane(&mut h, 1, &span(100, 64));
    lane(&mut h, 2, &span(500, 20));
    let op = snapshot(&mut h, sequence, 63);
    let mut moved = vec![poll(&h, op).bytes_moved];
    let mut told = Vec::new();
    while poll(&h, op).state != op_state::DONE {
        let plan = h.plan().decode(1, 1);
        assert_eq!(h.refused(plan), Status::RejectTransferLocked);
        assert_eq!(poll(&h, op).bytes_moved, *moved.last().expect("one"));
        let (events, _) = decode(&mut h, 2, 1);
        told.extend(events.op_completions.iter().map(|done| done.op));
        moved.push(poll(&h, op).bytes_moved);
    }
    assert_eq!(moved, [64, 128, 192, 136 + 252], "one slice a tick, and bytes moved never fall");
    assert_eq!(told, [op], "the tick that finishes it tells of it");
    let sealed = h.engine.take_op_output(op).expect("it is done");
    let mut whole = host(|_| {});
    let there = lane(&mut whole, 1, &span(100, 64));
    assert_eq!(sealed, export(&mut whole, there, 63), "slices are the same bytes as one piece");
}

/// SS-58: S-90, S-88.
#[test]
fn ss_58_cancelled_operation_gives_its_claim_back() {
    let mut h = slow_host(SLICE, |_| {});
    let sequence = lane(&mut h, 1, &span(100, 64));
    let sealed = export(&mut h, sequence, 48);
    empty_tick(&mut h);
    let op = snapshot(&mut h, sequence, 48);
    assert_eq!((h.engine.op_cancel(op), state(&h, op)), (Ok(()), (op_state::CANCELLED, None)));
    assert_eq!(h.engine.take_op_output(op), None);
    assert!(h.engine.seq_fork(sequence, 0).is_ok(), "the claim is free");
    let (events, _) = decode(&mut h, 1, 1);
    assert_eq!(
        events.op_completions.iter().map(|done| (done.op, done.state)).collect::<Vec<_>>(),
        [(op, op_state::CANCELLED)]
    );
    assert_eq!((h.engine.op_cancel(op), state(&h, op).0), (Ok(()), op_state::CANCELLED), "it stays cancelled");

    let before = cells(&h);
    let bare = h.engine.create_sequence().expect("a slot");
    let op = h.engine.space_restore(bare, KV, &sealed).expect("it is submitted");
    assert_eq!(state(&h, op).0, op_state::RUNNING);
    assert_eq!(h.engine.op_cancel(op), Ok(()));
    assert_eq!((contents(&h, bare), cells(&h)), (vec![], before), "a cancelled import leaves an empty sequence");
    let op = h.engine.space_restore(bare, KV, &sealed).expect("it is free again");
    finish(&mut h, op);
    assert_eq!((h.engine.op_cancel(op), state(&h, op)), (Ok(()), DONE));
    assert_eq!(contents(&h, bare), span(100, 48));
    h.engine.audit().expect("the engine is whole");
}

/// S-74, S-90: nobody sees a sequence that is half restored.
#[test]
fn import_is_seen_by_nobody_before_it_is_whole() {
    let mut h = slow_host(SLICE, |_| {});
    let sequence = lane(&mut h, 1, &span(100, 64));
    let sealed = export(&mut h, sequence, 48);
    let bare = h.engine.create_sequence().expect("a slot");
    let mut lent = sealed.clone();
    let op = h.engine.space_restore(bare, KV, &lent).expect("it is submitted");
    lent.fill(0xEE);
    let busy = [
        refused(&mut h, |h| h.engine.seq_fork(bare, 0)),
        refused(&mut h, |h| h.engine.seed_adopt(bare, &span(100, 48))),
        refused(&mut h, |h| h.engine.publish_sequence(bare, &span(100, 48))),
        refused(&mut h, |h| h.engine.space_trim(bare, KV, 0)),
        refused(&mut h, |h| h.engine.free_sequence(bare)),
        refused(&mut h, |h| h.engine.space_restore(bare, KV, &sealed)),
    ];
    assert_eq!(busy, [Status::Busy; 6]);
    finish(&mut h, op);
    assert_eq!(contents(&h, bare), span(100, 48), "the source was the host's again after the call");
    assert!(h.engine.seed_adopt(bare, &span(100, 48)).is_ok());
}

/// S-90: an adopted sequence that is being exported is not admitted until that is over.
#[test]
fn adopted_sequence_on_its_way_out_is_not_admitted() {
    let mut h = slow_host(SLICE, |_| {});
    let sequence = lane(&mut h, 1, &span(100, 64));
    let sealed = export(&mut h, sequence, 48);
    let bare = restore(&mut h, &sealed);
    let lease = h.engine.seed_adopt(bare, &span(100, 48)).expect("it is bare");
    let op = snapshot(&mut h, bare, 48);
    let staged = h.prompt(&span(100, 60));
    let plan = h.plan().admit_with(|admit| admit.seed_handle = lease, 2, staged).prefill(2, 48, 12);
    assert_eq!(h.refused(plan), Status::RejectTransferLocked);
    assert_eq!(finish(&mut h, op), sealed);
    let plan = h.plan().admit_with(|admit| admit.seed_handle = lease, 2, staged).prefill(2, 48, 12).decode(2, 1);
    let events = h.tick_ok(plan);
    assert_eq!(h.tokens_of(&events, 2), greedy_after(&h, &span(100, 60), 1));
}

/// S-90, S-85: with slices of nothing a submission moves nothing and each pump one token; the oldest operation goes first.
#[test]
fn operations_run_in_the_order_they_came() {
    let mut h = slow_host(0, |_| {});
    let (one, two) = (lane(&mut h, 1, &span(100, 64)), lane(&mut h, 2, &span(500, 64)));
    let (first, second) = (snapshot(&mut h, one, 3), snapshot(&mut h, two, 2));
    let states = |h: &Host| [first, second].map(|op| (poll(h, op).state, poll(h, op).bytes_moved));
    assert_eq!(states(&h), [(op_state::PENDING, 0), (op_state::PENDING, 0)]);
    let mut seen = Vec::new();
    for _ in 0..5 {
        h.engine.pump();
        seen.push(states(&h));
    }
    let (running, done) = (op_state::RUNNING, op_state::DONE);
    let waiting = (op_state::PENDING, 0);
    let (sealed, bare) = (h.engine.take_op_output(first).expect("it is done"), h.engine.create_sequence());
    let op = h.engine.space_restore(bare.expect("a slot"), KV, &sealed).expect("it is submitted");
    assert_eq!((poll(&h, op).state, poll(&h, op).bytes_moved), waiting, "an import that moved nothing is pending too");
    h.engine.pump();
    assert_eq!((poll(&h, op).state, poll(&h, op).bytes_moved), (running, 4));
    assert_eq!(
        seen,
        [
            [(running, 4), waiting],
            [(running, 8), waiting],
            [(done, 148), waiting],
            [(done, 148), (running, 4)],
            [(done, 148), (done, 144)],
        ]
    );
}

/// S-97: operations that are over are forgotten in time.
#[test]
fn operations_that_are_over_are_forgotten() {
    if super::engine::lacks("worker that says what its host forgets: a host knows more of them") {
        return;
    }
    let mut h = host(|_| {});
    let sequence = lane(&mut h, 1, &span(100, 64));
    let first = snapshot(&mut h, sequence, 16);
    h.engine.take_op_output(first).expect("it is done");
    for _ in 0..300 {
        let op = snapshot(&mut h, sequence, 16);
        h.engine.take_op_output(op).expect("it is done");
        empty_tick(&mut h);
    }
    assert_eq!(h.engine.op_poll(first).err(), Some(Status::UnknownHandle));
}
