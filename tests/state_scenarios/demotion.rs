//! Demoting and promoting: S-91, SS-59, SS-60.

use ictus::engine::Engine;
use ictus::record::Status;
use ictus::record::constant::{determinism, encoding, op_state, taint};

use super::mover::*;

fn lossy() -> Host {
    host(|options| options.descriptor.export_encodings = vec![encoding::LOSSLESS, encoding::Q8, encoding::Q4])
}

/// SS-59: S-91, S-94, S-67.
#[test]
fn ss_59_lossy_demotion_taints_once_it_is_promoted() {
    let mut h = lossy();
    let sequence = lane(&mut h, 1, &span(100, 65));
    let op = demote(&mut h, sequence, 0, 32, encoding::Q8).expect("whole pages");
    let sealed = finish(&mut h, op);
    assert_eq!(taint_of(&sealed), taint::QUANTIZED_DEMOTION, "S-67: the exported bytes are tainted");
    let whole = lane(&mut h, 2, &span(100, 65));
    assert_eq!(taint_of(&export(&mut h, whole, 64)), 0);
    let op = h.engine.space_promote(sequence, KV, range(0, 32), &sealed).expect("its own range");
    assert_eq!(h.engine.take_op_output(op), Some(Vec::new()));
    assert_eq!(taint_of(&export(&mut h, sequence, 64)), taint::QUANTIZED_DEMOTION, "it is sticky");
    let plan = h.plan().retire(1, true).retire(2, false);
    h.tick_ok(plan);
    assert_eq!(
        refused(&mut h, |h| h.engine.seed_acquire(&span(100, 65), 64, determinism::DETERMINISTIC)),
        Status::SeedUnservable
    );
    assert!(h.engine.seed_acquire(&span(100, 65), 64, determinism::BEST_EFFORT).is_ok());
    let moved = export(&mut h, sequence, 64);
    let mut elsewhere = lossy();
    let restored = restore(&mut elsewhere, &moved);
    assert_eq!(taint_of(&export(&mut elsewhere, restored, 64)), taint::QUANTIZED_DEMOTION);
}

/// SS-60, S-91.
#[test]
fn ss_60_promotion_fills_exactly_what_was_demoted() {
    let mut h = slow_host(64, |_| {});
    let (one, two) = (lane(&mut h, 1, &span(100, 65)), lane(&mut h, 2, &span(100, 65)));
    let before = cells(&h);
    let op = demote(&mut h, one, 0, 32, encoding::LOSSLESS).expect("whole pages");
    assert_eq!((state(&h, op).0, cells(&h)), (op_state::RUNNING, before), "memory is freed only when it completes");
    let sealed = finish(&mut h, op);
    assert_eq!((cells(&h), contents(&h, one).len()), (before - 32, 64));
    for again in [range(0, 16), range(0, 32), range(16, 32), range(0, 64)] {
        let sizing = h.engine.space_export_size(one, KV, again, 0).expect("a size is a size");
        let refusal = refused(&mut h, |h| h.engine.space_demote(one, KV, again, 0, sizing.bytes, sizing.sizing_gen));
        assert_eq!(refusal, Status::RejectBounds);
    }
    for (sequence, wrong) in [(two, range(0, 32)), (one, range(0, 16)), (one, range(16, 32)), (one, range(32, 64))] {
        assert_eq!(refused(&mut h, |h| h.engine.space_promote(sequence, KV, wrong, &sealed)), Status::RejectBounds);
    }
    let op = h.engine.space_promote(one, KV, range(0, 32), &sealed).expect("its own range");
    assert_eq!((state(&h, op).0, cells(&h)), (op_state::RUNNING, before));
    finish(&mut h, op);
    assert_eq!((cells(&h), contents(&h, one)), (before, span(100, 64)));
    assert_eq!(taint_of(&export(&mut h, one, 64)), 0);
    assert_eq!(decode(&mut h, 1, 3).1, greedy_after(&h, &span(100, 65), 3));
    h.engine.audit().expect("the engine is whole");
}

/// S-91: an adapter that is unloaded while the lane that has it is demoted stays with the lane, and so the range can come back.
#[test]
fn range_of_an_unloaded_adapter_is_promoted() {
    if super::engine::lacks("message for adapters of single lanes") {
        return;
    }
    let mut h = host(|options| options.descriptor.workloads.adapters = true);
    let adapter = h.engine.adapter_load("fake:one").expect("adapters are offered");
    h.engine.adapter_bind(1, adapter).expect("it is loaded");
    h.engine.adapter_bind(2, adapter).expect("it is loaded");
    let (sequence, other) = (lane(&mut h, 1, &span(100, 65)), lane(&mut h, 2, &span(100, 65)));
    let op = demote(&mut h, sequence, 0, 32, encoding::LOSSLESS).expect("whole pages");
    let sealed = finish(&mut h, op);
    h.engine.adapter_unload(adapter).expect("it was loaded once");
    let bare = h.engine.create_sequence().expect("a slot");
    let foreign = refused(&mut h, |h| h.engine.space_restore(bare, KV, &sealed));
    assert_eq!(foreign, Status::IdentityMismatch, "no new sequence gets it");
    let op = h.engine.space_promote(sequence, KV, range(0, 32), &sealed).expect("its own range");
    assert_eq!(state(&h, op), DONE);
    assert_eq!(contents(&h, sequence), contents(&h, other));
    assert_eq!(decode(&mut h, 1, 3).1, decode(&mut h, 2, 3).1);
}

/// S-91: what a sequence with a demoted range cannot do, and what it can.
#[test]
fn sequence_with_a_hole_rests_until_it_is_promoted() {
    let mut h = host(|_| {});
    let sequence = lane(&mut h, 1, &span(100, 65));
    let op = demote(&mut h, sequence, 16, 32, encoding::LOSSLESS).expect("a page past 0");
    let sealed = finish(&mut h, op);
    assert_eq!(contents(&h, sequence).len(), 64, "the valid length stays");
    for plan in [h.plan().decode(1, 1), h.plan().retire(1, true)] {
        assert_eq!(h.refused(plan), Status::RejectTransferLocked);
    }
    assert_eq!(refused(&mut h, |h| h.engine.seq_fork(sequence, 0)), Status::Busy);
    assert_eq!(h.engine.space_snapshot_boundary(sequence, KV, 64), Ok(16));
    let sizing = size(&mut h, sequence, 64, 0).expect("a size is a size");
    assert_eq!(
        refused(&mut h, |h| h.engine.space_snapshot(sequence, KV, 64, 9999, sizing.sizing_gen)),
        Status::OutOfBoundary
    );
    assert_eq!(export(&mut h, sequence, 16).len(), 136 + 64, "what lies before it can be exported");
    let op = demote(&mut h, sequence, 48, 64, encoding::LOSSLESS).expect("another range, up to the end");
    let second = finish(&mut h, op);
    for (start, sealed) in [(48, &second), (16, &sealed)] {
        let op = h.engine.space_promote(sequence, KV, range(start, start + 16), sealed).expect("its own range");
        assert_eq!(state(&h, op), DONE);
    }
    assert_eq!(decode(&mut h, 1, 1).1, greedy_after(&h, &span(100, 65), 1));

    let op = demote(&mut h, sequence, 0, 16, encoding::LOSSLESS).expect("whole pages");
    finish(&mut h, op);
    let used = cells(&h);
    let plan = h.plan().retire(1, false);
    h.tick_ok(plan);
    assert_eq!((used, cells(&h)), (49, 0), "it may be retired without its range");
}

/// S-67, S-91: ranges are whole pages, and of sequences that are the host's or a lane's.
#[test]
fn ranges_that_cannot_be_demoted_are_refused() {
    let mut h = host(|_| {});
    let sequence = lane(&mut h, 1, &span(100, 65));
    let mut refusal = |start, end| refused(&mut h, |h| demote_unsized(h, sequence, start, end));
    assert_eq!(refusal(1, 16), Status::Unsupported);
    assert_eq!(refusal(0, 17), Status::OutOfBoundary);
    assert_eq!([refusal(0, 65), refusal(16, 16)], [Status::RejectBounds; 2]);
    assert_eq!(refusal(0, 16), Status::StaleSizing);
    let plan = h.plan().retire(1, true);
    h.tick_ok(plan);
    assert_eq!(refused(&mut h, |h| demote_unsized(h, sequence, 0, 16)), Status::Busy, "an entry of the cache");
    assert_eq!(refused(&mut h, |h| h.engine.space_promote(sequence, KV, range(0, 16), &[])), Status::EnvelopeMismatch);
}

fn demote_unsized(h: &mut Host, sequence: u64, start: u64, end: u64) -> Result<u64, Status> {
    h.engine.space_demote(sequence, KV, range(start, end), 0, 9999, 1)
}

/// S-91: a trim keeps a hole whole or drops it; a bare sequence with a hole is neither adopted nor published.
#[test]
fn bare_sequence_with_a_hole_is_cut_beside_it() {
    let mut h = host(|_| {});
    let parent = lane(&mut h, 1, &span(100, 65));
    let bare = h.engine.seq_fork(parent, 0).expect("a slot");
    let op = demote(&mut h, bare, 16, 32, encoding::LOSSLESS).expect("whole pages");
    let sealed = finish(&mut h, op);
    assert_eq!(refused(&mut h, |h| h.engine.space_trim(bare, KV, 20)), Status::OutOfBoundary);
    assert_eq!(refused(&mut h, |h| h.engine.seed_adopt(bare, &span(100, 64))), Status::Busy);
    assert_eq!(refused(&mut h, |h| h.engine.publish_sequence(bare, &span(100, 64))), Status::Busy);
    h.engine.space_trim(bare, KV, 40).expect("past the hole");
    assert_eq!(refused(&mut h, |h| h.engine.seed_adopt(bare, &span(100, 40))), Status::Busy);
    h.engine.space_trim(bare, KV, 16).expect("before the hole");
    assert!(h.engine.seed_adopt(bare, &span(100, 16)).is_ok(), "the hole went with the cut");
    assert_eq!(refused(&mut h, |h| h.engine.space_promote(bare, KV, range(16, 32), &sealed)), Status::RejectBounds);
    h.engine.audit().expect("the engine is whole");
}

/// S-90, S-91: a demotion or promotion that is cancelled, or fails, is undone.
#[test]
fn cancelled_demotion_and_promotion_are_undone() {
    let mut h = slow_host(64, |_| {});
    let sequence = lane(&mut h, 1, &span(100, 65));
    let before = cells(&h);
    let op = demote(&mut h, sequence, 0, 32, encoding::LOSSLESS).expect("whole pages");
    h.engine.op_cancel(op).expect("it runs");
    assert_eq!((state(&h, op).0, cells(&h)), (op_state::CANCELLED, before));
    let op = demote(&mut h, sequence, 0, 32, encoding::LOSSLESS).expect("nothing was demoted");
    let sealed = finish(&mut h, op);
    let op = h.engine.space_promote(sequence, KV, range(0, 32), &sealed).expect("its own range");
    h.engine.op_cancel(op).expect("it runs");
    assert_eq!((state(&h, op).0, cells(&h)), (op_state::CANCELLED, before - 32), "the range is demoted still");
    h.engine.primitives_mut().poison_next_import();
    let op = h.engine.space_promote(sequence, KV, range(0, 32), &sealed).expect("its own range");
    while state(&h, op).0 == op_state::RUNNING {
        h.engine.pump();
    }
    assert_eq!((state(&h, op), cells(&h)), (failed(Status::Fatal), before - 32));
    let op = h.engine.space_promote(sequence, KV, range(0, 32), &sealed).expect("its own range");
    finish(&mut h, op);
    assert_eq!(contents(&h, sequence), span(100, 64));
    assert_eq!(decode(&mut h, 1, 2).1, greedy_after(&h, &span(100, 65), 2));
}

/// S-91: a promotion finds no room when others have taken it, and can be tried again.
#[test]
fn promotion_without_room_fails_and_can_be_tried_again() {
    let mut h = host(|options| options.descriptor.cells_total = 80);
    let sequence = lane(&mut h, 1, &span(100, 65));
    let op = demote(&mut h, sequence, 0, 32, encoding::LOSSLESS).expect("whole pages");
    let sealed = finish(&mut h, op);
    lane(&mut h, 2, &span(500, 21));
    let op = h.engine.space_promote(sequence, KV, range(0, 32), &sealed).expect("its own range");
    assert_eq!(state(&h, op), failed(Status::NeedsReplan));
    let plan = h.plan().retire(2, false);
    h.tick_ok(plan);
    let op = h.engine.space_promote(sequence, KV, range(0, 32), &sealed).expect("its own range");
    assert_eq!((state(&h, op), contents(&h, sequence)), (DONE, span(100, 64)));
}

/// S-91: a range of other tokens does not come back into this sequence, although its numbers fit.
#[test]
fn range_of_other_tokens_is_not_promoted() {
    let mut h = host(|_| {});
    let (one, two) = (lane(&mut h, 1, &span(100, 65)), lane(&mut h, 2, &span(500, 65)));
    let outputs = [one, two].map(|sequence| {
        let op = demote(&mut h, sequence, 0, 32, encoding::LOSSLESS).expect("whole pages");
        finish(&mut h, op)
    });
    let wrong = refused(&mut h, |h| h.engine.space_promote(one, KV, range(0, 32), &outputs[1]));
    assert_eq!(wrong, Status::IdentityMismatch);
    assert!(h.engine.space_promote(one, KV, range(0, 32), &outputs[0]).is_ok());
}
