//! Sizing, snapshot, restore, trim: SS-1 .. SS-6, SS-10 .. SS-16, SS-19 .. SS-21, SS-51, SS-54.

use ictus::engine::Engine;
use ictus::identity::content_digest;
use ictus::record::Status;
use ictus::record::constant::{encoding, fork_flag, op_state, taint};
use ictus::transfer::read_header;

use super::mover::*;

/// SS-1: S-61, S-62, S-63, S-64, and S-2 for the unknown space.
#[test]
fn ss_1_sizings_are_checked_and_go_stale() {
    let mut h = host(|_| {});
    let sequence = lane(&mut h, 1, &span(100, 64));
    let sizing = size(&mut h, sequence, 32, encoding::LOSSLESS).expect("63 tokens are held");
    assert_eq!(sizing.bytes, 136 + 32 * 4);
    assert_eq!(size(&mut h, sequence, 63, encoding::LOSSLESS).map(|sizing| sizing.bytes), Ok(136 + 63 * 4));
    assert_eq!(refused(&mut h, |h| size(h, sequence, 64, encoding::LOSSLESS)), Status::RejectBounds);
    decode(&mut h, 1, 1);
    let stale = refused(&mut h, |h| h.engine.space_snapshot(sequence, KV, 32, sizing.bytes, sizing.sizing_gen));
    assert_eq!(stale, Status::StaleSizing);
    let again = size(&mut h, sequence, 32, encoding::LOSSLESS).expect("it can be sized again");
    assert!(again.sizing_gen > sizing.sizing_gen, "S-3: a feeding step advances the generation");
    let short = refused(&mut h, |h| h.engine.space_snapshot(sequence, KV, 32, again.bytes - 1, again.sizing_gen));
    assert_eq!(short, Status::BufferTooSmall);
    assert!(
        h.engine.space_snapshot(sequence, KV, 32, again.bytes, again.sizing_gen).is_ok(),
        "S-64: the sizing survived"
    );
    let unknown = [
        refused(&mut h, |h| h.engine.space_export_size(sequence, 99, range(0, 32), encoding::LOSSLESS)),
        refused(&mut h, |h| h.engine.space_export_size(999, KV, range(0, 32), encoding::LOSSLESS)),
    ];
    assert_eq!(unknown, [Status::UnknownHandle; 2]);
    assert_eq!(refused(&mut h, |h| size(h, sequence, 32, encoding::Q8)), Status::Unsupported);
    assert_eq!(refused(&mut h, |h| h.engine.space_export_size(sequence, KV, range(1, 32), 0)), Status::Unsupported);
    assert_eq!(refused(&mut h, |h| h.engine.space_export_size(sequence, KV, range(16, 8), 0)), Status::Unsupported);
}

/// S-63: a sizing is used up by the export that it was made for.
#[test]
fn sizing_is_used_once() {
    let mut h = host(|_| {});
    let sequence = lane(&mut h, 1, &span(100, 64));
    let sizing = size(&mut h, sequence, 32, encoding::LOSSLESS).expect("it is held");
    assert!(h.engine.space_snapshot(sequence, KV, 32, 4096, sizing.sizing_gen).is_ok());
    let again = refused(&mut h, |h| h.engine.space_snapshot(sequence, KV, 32, 4096, sizing.sizing_gen));
    assert_eq!(again, Status::StaleSizing);
}

/// SS-2: S-65, S-75, S-85 .. S-87, S-89, S-30, S-33, T-144.
#[test]
fn ss_2_snapshot_is_restored_adopted_and_continued() {
    let mut h = host(|_| {});
    let prompt = span(100, 70);
    let first = lane(&mut h, 1, &prompt[..64]);
    let sizing = size(&mut h, first, 48, encoding::LOSSLESS).expect("it is held");
    let op = h.engine.space_snapshot(first, KV, 48, sizing.bytes, sizing.sizing_gen).expect("it is submitted");
    assert_eq!((op, state(&h, op), poll(&h, op).bytes_moved), (1, DONE, sizing.bytes));
    let sealed = h.engine.take_op_output(op).expect("the bytes");
    assert_eq!((sealed.len() as u64, h.engine.take_op_output(op)), (sizing.bytes, None));
    let events = empty_tick(&mut h);
    assert_eq!(
        events.op_completions.iter().map(|done| (done.op, done.state)).collect::<Vec<_>>(),
        [(1, op_state::DONE)]
    );
    assert!(empty_tick(&mut h).op_completions.is_empty(), "S-89: told once");

    let header = read_header(&sealed).expect("a header");
    assert_eq!(header.provenance_digest, content_digest(&prompt[..48]));
    assert_eq!(header.compat_identity, h.engine.compat_identity(), "S-80");
    assert_eq!((header.range.start, header.range.end, header.encoding, header.checksum_kind), (0, 48, 0, 2));

    let bare = h.engine.create_sequence().expect("a slot");
    let op = h.engine.space_restore(bare, KV, &sealed).expect("it is submitted");
    assert_eq!((state(&h, op), poll(&h, op).bytes_moved), (DONE, sizing.bytes - 136), "S-75");
    assert_eq!(h.engine.take_op_output(op), Some(Vec::new()), "S-75: an import's output is empty");
    assert_eq!(contents(&h, bare), prompt[..48]);
    let lease = h.engine.seed_adopt(bare, &prompt[..48]).expect("it is bare");
    let staged = h.prompt(&prompt);
    let plan = h.plan().admit_with(|admit| admit.seed_handle = lease, 2, staged).prefill(2, 48, 22).decode(2, 1);
    let events = h.tick_ok(plan);
    assert_eq!(h.tokens_of(&events, 2), greedy_after(&h, &prompt, 1));
    assert_eq!((h.engine.lane_sequence(2), h.committed(2).len()), (Some(bare), 71));
    assert_eq!(refused(&mut h, |h| h.engine.free_sequence(bare)), Status::UnknownHandle);
}

/// SS-3: S-72, S-73.
#[test]
fn ss_3_damaged_foreign_and_cut_envelopes_are_refused() {
    let mut h = host(|_| {});
    let sequence = lane(&mut h, 1, &span(100, 64));
    let good = export(&mut h, sequence, 16);
    let mut other = host(|options| options.descriptor.weights_identity = [7; 32]);
    let elsewhere = lane(&mut other, 1, &span(100, 64));
    let foreign = export(&mut other, elsewhere, 16);
    let bare = h.engine.create_sequence().expect("a slot");
    let mut flipped = good.clone();
    *flipped.last_mut().expect("a payload") ^= 1;
    for (space, sealed, expected) in [
        (KV, &flipped[..], Status::Checksum),
        (KV, &good[..64], Status::EnvelopeMismatch),
        (2, &good[..], Status::UnknownHandle),
        (KV, &foreign[..], Status::IdentityMismatch),
    ] {
        assert_eq!(refused(&mut h, |h| h.engine.space_restore(bare, space, sealed)), expected);
        assert_eq!(contents(&h, bare), Vec::<u32>::new());
    }
    assert_eq!(refused(&mut h, |h| h.engine.space_restore(sequence, KV, &good)), Status::UnknownHandle, "a lane's");
    assert_eq!(refused(&mut h, |h| h.engine.space_restore(999, KV, &good)), Status::UnknownHandle);
    let op = h.engine.space_restore(bare, KV, &good).expect("it is submitted");
    assert_eq!((state(&h, op), contents(&h, bare)), (DONE, span(100, 16)));
    assert_eq!(refused(&mut h, |h| h.engine.space_restore(bare, KV, &good)), Status::Busy, "S-73: it is not empty");
}

/// SS-4: S-10, S-68.
#[test]
fn ss_4_trim_is_for_bare_sequences() {
    let mut h = host(|_| {});
    let sequence = lane(&mut h, 1, &span(100, 64));
    assert_eq!(refused(&mut h, |h| h.engine.space_trim(sequence, KV, 10)), Status::Busy);
    let child = h.engine.seq_fork(sequence, fork_flag::PRIVATE).expect("a slot");
    assert_eq!(contents(&h, child), span(100, 63));
    assert_eq!(h.engine.space_trim(child, KV, 10), Ok(()));
    assert_eq!(contents(&h, child), span(100, 10));
    assert_eq!(refused(&mut h, |h| h.engine.space_trim(child, KV, 999)), Status::RejectBounds);
    assert_eq!(refused(&mut h, |h| h.engine.space_trim(999, KV, 1)), Status::UnknownHandle);
    assert_eq!(refused(&mut h, |h| h.engine.space_trim(child, 9, 1)), Status::UnknownHandle);
    assert_eq!(h.engine.free_sequence(child), Ok(()));
}

/// SS-5: S-66, S-65.
#[test]
fn ss_5_head_only_state_is_cut_and_exported_whole() {
    let mut h = host(head_only);
    let sequence = lane(&mut h, 1, &span(100, 64));
    let child = h.engine.seq_fork(sequence, fork_flag::PRIVATE).expect("a slot");
    assert_eq!(refused(&mut h, |h| h.engine.space_trim(child, KV, 10)), Status::OutOfBoundary);
    assert_eq!(h.engine.space_trim(child, KV, 63), Ok(()));
    let boundaries = [40, 63].map(|cap| h.engine.space_snapshot_boundary(child, KV, cap));
    assert_eq!(boundaries, [Ok(0), Ok(63)]);
    let sizing = size(&mut h, child, 63, encoding::LOSSLESS).expect("the head");
    let early = refused(&mut h, |h| h.engine.space_snapshot(child, KV, 40, 9999, sizing.sizing_gen));
    assert_eq!(early, Status::OutOfBoundary);
    let op = h.engine.space_snapshot(child, KV, 63, sizing.bytes, sizing.sizing_gen).expect("the head");
    assert_eq!(state(&h, op), DONE);
}

/// SS-6 as far as it is not the baseline's refusal of promotion: S-67, S-86, S-88, S-85.
#[test]
fn ss_6_cancelling_what_is_done_changes_nothing() {
    let mut h = host(|_| {});
    let sequence = lane(&mut h, 1, &span(100, 64));
    let op = demote(&mut h, sequence, 0, 16, encoding::LOSSLESS).expect("whole pages");
    assert_eq!(state(&h, op), DONE);
    assert_eq!((h.engine.op_cancel(op), state(&h, op)), (Ok(()), DONE));
    assert!(h.engine.take_op_output(op).is_some(), "and its output is still there");
    for unknown in [0, 2, 9999] {
        assert_eq!(h.engine.op_poll(unknown).err(), Some(Status::UnknownHandle));
        assert_eq!(refused(&mut h, |h| h.engine.op_cancel(unknown)), Status::UnknownHandle);
        assert_eq!(h.engine.take_op_output(unknown), None);
    }
}

/// SS-10, S-74: an envelope longer than the context becomes an operation, and fails.
#[test]
fn ss_10_envelope_past_the_context_fails() {
    let mut from = host(|_| {});
    let sequence = lane(&mut from, 1, &span(100, 70));
    let (long, short) = (export(&mut from, sequence, 65), export(&mut from, sequence, 16));
    let mut h = host(|options| options.descriptor.max_seq_len = 64);
    let bare = h.engine.create_sequence().expect("a slot");
    let op = h.engine.space_restore(bare, KV, &long).expect("S-74: an operation always exists");
    assert_eq!((state(&h, op), contents(&h, bare)), (failed(Status::RejectBounds), vec![]));
    let op = h.engine.space_restore(bare, KV, &short).expect("it is submitted");
    assert_eq!((state(&h, op), contents(&h, bare)), (DONE, span(100, 16)));
    let told = empty_tick(&mut h).op_completions;
    assert_eq!(told.iter().map(|done| done.state).collect::<Vec<_>>(), [op_state::FAILED, op_state::DONE]);
    assert_eq!(told[0].error, Status::RejectBounds.code() as u32);
}

/// SS-11, S-74: a payload of another length than the envelope says.
#[test]
fn ss_11_envelope_that_claims_another_length_fails() {
    let mut h = host(head_only);
    let sequence = lane(&mut h, 1, &span(100, 9));
    let good = export(&mut h, sequence, 8);
    let bare = h.engine.create_sequence().expect("a slot");
    for (claimed, expected) in [
        (10, failed(Status::EnvelopeMismatch)),
        (7, failed(Status::EnvelopeMismatch)),
        (0, failed(Status::RejectBounds)),
        (u64::MAX, failed(Status::RejectBounds)),
    ] {
        let op = h.engine.space_restore(bare, KV, &ending_at(&good, claimed)).expect("it is submitted");
        assert_eq!((state(&h, op), contents(&h, bare)), (expected, vec![]), "claims {claimed}");
    }
    let op = h.engine.space_restore(bare, KV, &good).expect("it is submitted");
    assert_eq!((state(&h, op), contents(&h, bare)), (DONE, span(100, 8)));
}

/// SS-12, S-62.
#[test]
fn ss_12_two_sizings_of_one_generation_both_serve() {
    let mut h = host(|_| {});
    let sequence = lane(&mut h, 1, &span(100, 64));
    let sizings = [32, 48].map(|end| size(&mut h, sequence, end, encoding::LOSSLESS).expect("it is held"));
    assert_eq!(sizings[0].sizing_gen, sizings[1].sizing_gen);
    for (end, sizing) in [(32, sizings[0]), (48, sizings[1])] {
        let op = h.engine.space_snapshot(sequence, KV, end, sizing.bytes, sizing.sizing_gen).expect("it was sized");
        assert_eq!(state(&h, op), DONE);
    }
}

/// SS-13: S-5, S-75.
#[test]
fn ss_13_taint_goes_with_the_state() {
    let mut h = host(|_| {});
    let sequence = lane(&mut h, 1, &span(100, 64));
    let clean = export(&mut h, sequence, 16);
    let stained = restore(&mut h, &tainted(&clean, taint::DECOMPOSITION));
    let fork = h.engine.seq_fork(stained, 0).expect("a slot");
    let exports = [stained, fork].map(|sequence| taint_of(&export(&mut h, sequence, 16)));
    assert_eq!(exports, [taint::DECOMPOSITION; 2]);
    let plain = restore(&mut h, &clean);
    assert_eq!(taint_of(&export(&mut h, plain, 16)), 0);
}

/// SS-14, S-68: a published sequence rests; it is not cut.
#[test]
fn ss_14_published_sequences_are_not_trimmed() {
    let mut h = host(|_| {});
    let sequence = lane(&mut h, 1, &span(100, 65));
    let plan = h.plan().retire(1, true);
    h.tick_ok(plan);
    assert_eq!(refused(&mut h, |h| h.engine.space_trim(sequence, KV, 16)), Status::Busy);
    assert_eq!(taint_of(&export(&mut h, sequence, 16)), 0, "but it can be exported (S-2)");
}

/// SS-15, S-66.
#[test]
fn ss_15_boundaries_are_pages_or_the_head() {
    let mut h = host(|_| {});
    let sequence = lane(&mut h, 1, &span(100, 64));
    assert_eq!([39, 100].map(|cap| h.engine.space_snapshot_boundary(sequence, KV, cap)), [Ok(32), Ok(48)]);
    assert_eq!(h.engine.space_snapshot_boundary(99, KV, 1), Err(Status::UnknownHandle));
    assert_eq!(h.engine.space_snapshot_boundary(sequence, 9, 1), Err(Status::UnknownHandle));
    let mut h = host(head_only);
    let sequence = lane(&mut h, 1, &span(100, 64));
    assert_eq!([100, 39].map(|cap| h.engine.space_snapshot_boundary(sequence, KV, cap)), [Ok(63), Ok(0)]);
}

/// SS-16: S-11, S-81.
#[test]
fn ss_16_fork_knows_the_tokens_of_its_parent() {
    let mut h = host(|_| {});
    let sequence = lane(&mut h, 1, &span(100, 64));
    let fork = h.engine.seq_fork(sequence, 0).expect("a slot");
    let header = read_header(&export(&mut h, fork, 32)).expect("a header");
    assert_eq!(header.provenance_digest, content_digest(&span(100, 32)));
}

/// SS-18: S-46, S-5.
#[test]
fn ss_18_match_says_the_taint_of_what_was_restored() {
    let mut h = host(|_| {});
    let sequence = lane(&mut h, 1, &span(100, 64));
    let stained = tainted(&export(&mut h, sequence, 16), taint::DECOMPOSITION);
    let bare = restore(&mut h, &stained);
    h.engine.publish_sequence(bare, &span(100, 16)).expect("it is bare");
    h.engine.space_match(KV, &span(100, 17), &[]).expect("a known space");
    let candidates: Vec<_> =
        h.engine.match_candidates().iter().map(|found| (found.prefix_len, found.taint_bits)).collect();
    assert_eq!(candidates, [(16, taint::DECOMPOSITION)]);
}

/// SS-19: S-75, S-4.
#[test]
fn ss_19_restoring_forgets_taint_and_declared_tokens() {
    let mut h = host(|_| {});
    let (one, two) = (lane(&mut h, 1, &span(100, 64)), lane(&mut h, 2, &span(500, 64)));
    let stained = tainted(&export(&mut h, one, 16), taint::QUANTIZED_DEMOTION);
    let bare = restore(&mut h, &stained);
    let lease = h.engine.seed_adopt(bare, &span(100, 16)).expect("it is bare");
    h.engine.seed_release(lease).expect("it is leased");
    assert_eq!(
        read_header(&export(&mut h, bare, 16)).expect("a header").provenance_digest,
        content_digest(&span(100, 16))
    );
    h.engine.space_trim(bare, KV, 0).expect("it is bare");
    let clean = export(&mut h, two, 16);
    let op = h.engine.space_restore(bare, KV, &clean).expect("it is empty");
    assert_eq!(state(&h, op), DONE);
    let header = read_header(&export(&mut h, bare, 16)).expect("a header");
    assert_eq!((header.taint_bits, header.provenance_digest), (0, [0; 32]), "nobody said what the tokens are");
    assert_eq!(contents(&h, bare), span(500, 16));
}

/// SS-20, S-74: an import that fails after it filled the sequence is rolled back.
#[test]
fn ss_20_failed_import_leaves_an_empty_sequence() {
    let mut h = host(|_| {});
    let sequence = lane(&mut h, 1, &span(100, 64));
    let sealed = export(&mut h, sequence, 16);
    let before = cells(&h);
    let bare = h.engine.create_sequence().expect("a slot");
    h.engine.primitives_mut().poison_next_import();
    let op = h.engine.space_restore(bare, KV, &sealed).expect("it is submitted");
    assert_eq!((state(&h, op), contents(&h, bare), cells(&h)), (failed(Status::Fatal), vec![], before));
    let op = h.engine.space_restore(bare, KV, &sealed).expect("it is submitted");
    assert_eq!((state(&h, op), contents(&h, bare)), (DONE, span(100, 16)));
    h.engine.audit().expect("the engine is whole");
}

/// S-74: an import for which the pool has no room fails with the runtime's status.
#[test]
fn import_without_room_fails_and_leaves_nothing() {
    let mut h = host(|options| options.descriptor.cells_total = 80);
    let sequence = lane(&mut h, 1, &span(100, 64));
    let sealed = export(&mut h, sequence, 32);
    let bare = h.engine.create_sequence().expect("a slot");
    let op = h.engine.space_restore(bare, KV, &sealed).expect("S-74: an operation always exists");
    assert_eq!((state(&h, op), contents(&h, bare), cells(&h)), (failed(Status::NeedsReplan), vec![], 63));
}

/// SS-21: S-61, S-65.
#[test]
fn ss_21_nothing_is_no_export() {
    let mut h = host(|_| {});
    let sequence = lane(&mut h, 1, &span(100, 64));
    assert_eq!(refused(&mut h, |h| size(h, sequence, 0, encoding::LOSSLESS)), Status::RejectBounds);
    assert_eq!(refused(&mut h, |h| h.engine.space_snapshot(sequence, KV, 0, 9999, 1)), Status::RejectBounds);
}

/// SS-54: S-5, T-80.
#[test]
fn ss_54_seeded_lane_inherits_the_taint() {
    let mut h = host(|_| {});
    let sequence = lane(&mut h, 1, &span(100, 64));
    let stained = tainted(&export(&mut h, sequence, 16), taint::DECOMPOSITION);
    let bare = restore(&mut h, &stained);
    h.engine.publish_sequence(bare, &span(100, 16)).expect("it is bare");
    let prompt = [span(100, 16), span(900, 8)].concat();
    let lease = h.engine.seed_acquire(&prompt, 16, 0).expect("it is cached");
    let staged = h.prompt(&prompt);
    let plan = h.plan().admit_with(|admit| admit.seed_handle = lease, 2, staged).prefill(2, 16, 8);
    h.tick_ok(plan);
    let seeded = h.engine.lane_sequence(2).expect("it is live");
    assert_eq!(taint_of(&export(&mut h, seeded, 16)), taint::DECOMPOSITION);
}

/// S-70, S-2: what the default engine says of its space, and what its envelopes look like.
#[test]
fn space_and_envelope_are_those_of_the_contract() {
    let mut h = host(|_| {});
    let space = h.engine.state_spaces()[0];
    let name: Vec<u8> = space.name.iter().map(|&c| c as u8).take_while(|&byte| byte != 0).collect();
    assert_eq!((h.engine.state_spaces().len(), name.as_slice()), (1, &b"kv.full"[..]));
    assert_eq!((space.space_id, space.kind, space.version_tag, space.flags), (1, 1, 1, 0));
    assert_eq!((space.bytes_per_token, space.page_size_tokens), (64, 16));
    let sequence = lane(&mut h, 1, &span(100, 64));
    let sealed = export(&mut h, sequence, 20);
    assert_eq!(&sealed[..12], [b"BRTSTATE".as_slice(), &1u32.to_le_bytes()].concat());
    assert!([92..96, 113..116].into_iter().all(|padding| sealed[padding].iter().all(|&byte| byte == 0)));
    assert_eq!(sealed.len(), 136 + 80);
}
