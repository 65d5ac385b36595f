//! Who owns a sequence: lanes, the host, entries; forks, adoption, freeing (state.md, sections 1 to 3).

use ictus::engine::Engine;
use ictus::record::Status;
use ictus::record::constant::{fork_flag, space_id};

#[allow(unused_imports, reason = "a trait of the runtime, where that is in this process")]
use ictus::runtime::Runtime;

use super::cached::*;
use super::host::*;

/// SS-4 without its trims (S-10, S-11): a child holds what the parent's sequence holds, not what is pending.
#[test]
fn ss_4_fork_holds_the_tokens_of_its_parent() {
    for flags in [0, fork_flag::EAGER, fork_flag::PRIVATE] {
        let mut h = fake(|_| {});
        admit_whole(&mut h, 1, &span(0, 64), plain);
        let parent = sequence(&h, 1);
        let child = h.engine.seq_fork(parent, flags).expect("there is room");
        assert_eq!(h.engine.primitives().contents(child), Some(&span(0, 63)[..]));
        assert_eq!(h.engine.live_sequences(), 2);
        // S-15: copies are immediate, whatever EAGER says; the parent goes on alone.
        assert_eq!(more(&mut h, 1, 4), greedy_after(&h, &span(0, 64), 4));
        assert_eq!(h.engine.primitives().contents(child), Some(&span(0, 63)[..]));
        let grandchild = h.engine.seq_fork(child, flags).expect("a bare one is known too");
        assert_eq!(h.engine.primitives().contents(grandchild), Some(&span(0, 63)[..]));
        h.engine.audit().expect("the engine is sound");
        assert_eq!([h.engine.free_sequence(child), h.engine.free_sequence(grandchild)], [Ok(()); 2]);
        assert_eq!(h.engine.live_sequences(), 1);
    }
}

/// S-1, S-2, S-10: an entry in the pool can be forked, an exported one or a handle of nobody cannot.
#[test]
fn only_known_sequences_are_forked() {
    let mut h = fake(pool(8, 64));
    admit_whole(&mut h, 1, &span(0, 6), plain);
    let first = sequence(&h, 1);
    ok(&mut h, |plan| plan.retire(1, true));
    let child = h.engine.seq_fork(first, 0).expect("the entry is in the pool");
    assert_eq!(h.engine.primitives().contents(child), Some(&span(0, 6)[..]));
    h.engine.free_sequence(child).expect("it is bare");
    publish(&mut h, &span(10, 16));
    for _ in 0..2 {
        assert_eq!(h.engine.seq_fork(first, 0), Err(Status::UnknownHandle), "its entry is exported");
        assert_eq!(h.engine.seq_fork(999, 0), Err(Status::UnknownHandle));
    }
}

/// S-12: a copy that fails leaves no child.
#[test]
fn failed_fork_leaves_no_child() {
    let mut h = fake(|options| options.descriptor.cells_total = 10);
    admit_whole(&mut h, 1, &span(0, 8), plain);
    let parent = sequence(&h, 1);
    for _ in 0..2 {
        assert_eq!(h.engine.seq_fork(parent, 0), Err(Status::NeedsReplan), "R-3: the pool is full");
        assert_eq!((h.engine.live_sequences(), cells(&h)), (1, 7));
    }
}

/// SS-7 (S-30, S-31, S-32).
#[test]
fn ss_7_adopted_sequence_is_claimed_until_its_lease_ends() {
    let mut h = fake(|_| {});
    let tokens = span(0, 16);
    let child = bare(&mut h, &tokens, 0);
    assert_eq!(h.engine.seed_adopt(child, &tokens[..15]), Err(Status::OutOfBoundary));
    assert_eq!(h.engine.seed_adopt(child, &[]), Err(Status::OutOfBoundary));
    let first = h.engine.seed_adopt(child, &tokens).expect("it is bare");
    for _ in 0..2 {
        assert_eq!(h.engine.seed_adopt(child, &tokens), Err(Status::Busy));
        assert_eq!(h.engine.free_sequence(child), Err(Status::Busy));
        assert_eq!(h.engine.publish_sequence(child, &tokens), Err(Status::Busy));
    }
    h.engine.audit().expect("the engine is sound");
    assert_eq!(h.engine.seed_release(first), Ok(()));
    assert_eq!(h.engine.seed_release(first), Err(Status::UnknownHandle));
    let second = h.engine.seed_adopt(child, &tokens).expect("the claim was lifted");
    assert!(second > first);
    h.engine.seed_release(second).expect("it is live");
    assert_eq!(h.engine.free_sequence(child), Ok(()));
    assert_eq!(h.engine.live_sequences(), 0);
}

/// S-32, S-43, T-21: the claim of an adopt lease ends with its time, the sequence does not.
#[test]
fn expired_adopt_lease_lifts_its_claim() {
    if super::engine::lacks("answer to a release") {
        return;
    }
    let mut h = fake(|_| {});
    let child = bare(&mut h, &span(0, 16), 0);
    let lease = h.engine.seed_adopt(child, &span(0, 16)).expect("it is bare");
    for _ in 0..64 {
        ok(&mut h, |plan| plan);
        assert_eq!(h.engine.free_sequence(child), Err(Status::Busy));
    }
    ok(&mut h, |plan| plan);
    assert_eq!(h.engine.seed_release(lease), Err(Status::UnknownHandle), "S-44");
    ok(&mut h, |plan| plan);
    assert_eq!(h.engine.free_sequence(child), Ok(()));
}

/// SS-8 (S-34, T-35): a seed that covers the whole prompt is cut by a token.
#[test]
fn ss_8_adopted_seed_may_cover_the_whole_prompt() {
    let tokens = span(0, 16);
    let adopted = |h: &mut Fake| {
        let child = bare(h, &tokens, 0);
        (child, h.engine.seed_adopt(child, &tokens).expect("it is bare"))
    };
    let mut h = fake(|_| {});
    let (child, lease) = adopted(&mut h);
    seeded(&mut h, 1, &tokens, lease, 16, 1);
    assert_eq!((sequence(&h, 1), h.committed(1).len()), (child, 17), "S-33: the sequence itself");

    let mut h = fake(|options| options.descriptor.truncate_partial = false);
    let (child, lease) = adopted(&mut h);
    let staged = h.prompt(&tokens);
    let status = no(&mut h, |plan| plan.admit_with(|admit| admit.seed_handle = lease, 1, staged).decode(1, 1));
    assert_eq!(status, Status::RejectIllegalCombination);
    seeded(&mut h, 1, &beyond(&tokens)[..17], lease, 16, 1);
    assert_eq!(sequence(&h, 1), child);
}

/// SS-9 (S-21, S-33, T-67): an adopted sequence needs no slot.
#[test]
fn ss_9_one_slot_is_enough_for_a_lane_on_an_adopted_sequence() {
    let mut h = fake(|options| options.descriptor.max_seqs = 1);
    let first = h.engine.create_sequence().expect("there is a slot");
    for _ in 0..2 {
        assert_eq!(h.engine.create_sequence(), Err(Status::NeedsReplan));
    }
    h.engine.primitives_mut().seq_import(first, &[7, 0, 0, 0, 8, 0, 0, 0]).expect("the pool has room");
    let lease = h.engine.seed_adopt(first, &[7, 8]).expect("it is bare");
    seeded(&mut h, 1, &[7, 8, 9], lease, 2, 2);
    assert_eq!((sequence(&h, 1), h.engine.live_sequences()), (first, 1));
}

/// SS-17 (S-33, T-64): an adopted sequence is charged no cells.
#[test]
fn ss_17_adoption_charges_no_copy() {
    let mut h = fake(|options| options.descriptor.cells_total = 32);
    let child = bare(&mut h, &span(0, 16), 0);
    let lease = h.engine.seed_adopt(child, &span(0, 16)).expect("it is bare");
    assert_eq!(cells(&h), 16);
    let staged = h.prompt(&beyond(&span(0, 16))[..17]);
    ok(&mut h, |plan| plan.admit_with(|admit| admit.seed_handle = lease, 1, staged).prefill(1, 16, 1).decode(1, 1));
    assert_eq!(cells(&h), 17);
    // The lane's own growth is charged: 15 more cells, and no 16th.
    assert_eq!(no(&mut h, |plan| plan.decode(1, 16)), Status::NeedsReplan);
    ok(&mut h, |plan| plan.decode(1, 15));
}

/// SS-53 (S-22, S-30).
#[test]
fn ss_53_only_bare_sequences_are_freed_and_adopted() {
    let mut h = fake(|_| {});
    let child = h.engine.create_sequence().expect("there is room");
    assert_eq!(h.engine.free_sequence(child), Ok(()));
    admit_whole(&mut h, 1, &span(0, 5), plain);
    let lane = sequence(&h, 1);
    for _ in 0..2 {
        assert_eq!(h.engine.free_sequence(child), Err(Status::UnknownHandle));
        assert_eq!(h.engine.free_sequence(lane), Err(Status::UnknownHandle));
        assert_eq!(h.engine.seed_adopt(lane, &span(0, 4)), Err(Status::UnknownHandle));
        assert_eq!(h.engine.publish_sequence(lane, &span(0, 4)), Err(Status::UnknownHandle));
    }
    assert_eq!(more(&mut h, 1, 2), greedy_after(&h, &span(0, 5), 2));
}

/// SS-29 (S-20, S-21): the older entry leaves for a slot, the leased one stays.
#[test]
fn ss_29_a_new_sequence_takes_the_slot_of_a_resting_entry() {
    let mut h = fake(|options| {
        tokens_are_bytes(options);
        options.descriptor.max_seqs = 2;
    });
    publish(&mut h, &[1, 2, 3]);
    publish(&mut h, &[4, 5, 6]);
    lease(&mut h, &[4, 5, 6], 3);
    h.engine.create_sequence().expect("the older entry leaves");
    assert_eq!((h.engine.cache_bytes(), h.engine.live_sequences()), (3, 2));
    assert_eq!(h.engine.seed_acquire(&[1, 2, 3], 3, 0), Err(Status::SeedUnservable));
    for _ in 0..2 {
        assert_eq!(h.engine.create_sequence(), Err(Status::NeedsReplan), "nothing is left to leave");
    }
    // Beyond S-21: the loss is in the next report.
    let events = ok(&mut h, |plan| plan);
    assert_eq!(losses(&events), [(0, 3, 3)]);
    let events = ok(&mut h, |plan| plan);
    assert_eq!(losses(&events), [], "once");
}

/// S-21: the entry that is forked is not the one that leaves for its copy.
#[test]
fn forked_entry_does_not_leave_for_its_own_copy() {
    let mut h = fake(|options| {
        tokens_are_bytes(options);
        options.descriptor.max_seqs = 2;
    });
    admit_whole(&mut h, 1, &[1, 2, 3], plain);
    let oldest = sequence(&h, 1);
    ok(&mut h, |plan| plan.retire(1, true));
    publish(&mut h, &[4, 5, 6]);
    let child = h.engine.seq_fork(oldest, 0).expect("the other entry leaves");
    assert_eq!(h.engine.primitives().contents(child), Some(&[1, 2, 3][..]));
    assert!(h.engine.match_lengths(&[4, 5, 6, 7]).is_empty());
    assert_eq!(h.engine.seq_fork(oldest, 0), Err(Status::NeedsReplan), "it alone could leave");
    assert_eq!(h.engine.match_lengths(&[1, 2, 3, 4]), [3]);
}

/// SS-47 (S-21, S-50).
#[test]
fn ss_47_slots_come_from_entries_that_are_exported() {
    let mut h = fake(|options| {
        pool(64, 64)(options);
        options.descriptor.max_seqs = 2;
    });
    publish(&mut h, &span(0, 6));
    publish(&mut h, &span(10, 16));
    h.engine.create_sequence().expect("the older entry is exported");
    assert_eq!((h.engine.live_sequences(), h.engine.cache_exported_tokens()), (2, 6));
    for key in [span(0, 6), span(10, 16)] {
        assert_eq!(h.engine.match_lengths(&beyond(&key)), [6]);
    }

    let mut h = fake(pool(4, 64));
    admit_whole(&mut h, 1, &span(0, 6), plain);
    let parent = sequence(&h, 1);
    let child = h.engine.seq_fork(parent, 0).expect("there is room");
    h.engine.publish_sequence(child, &span(0, 5)).expect("it holds them");
    ok(&mut h, |plan| plan.retire(1, false));
    assert_eq!((cells(&h), h.engine.cache_exported_tokens()), (0, 5));
    assert_eq!(h.engine.match_lengths(&beyond(&span(0, 5))), [5]);
}

/// SS-22 (S-50): what a head-only runtime publishes it publishes whole.
#[test]
fn ss_22_head_only_runtime_publishes_all_that_is_held() {
    let mut h = fake(|options| options.descriptor.truncate_partial = false);
    let child = bare(&mut h, &span(0, 16), 0);
    for _ in 0..2 {
        assert_eq!(h.engine.publish_sequence(child, &span(0, 8)), Err(Status::OutOfBoundary));
        assert_eq!(h.engine.publish_sequence(child, &span(0, 17)), Err(Status::OutOfBoundary));
    }
    assert_eq!(h.engine.primitives().contents(child), Some(&span(0, 16)[..]));
    assert_eq!(h.engine.publish_sequence(child, &span(0, 16)), Ok(()));
    assert_eq!(h.engine.match_lengths(&beyond(&span(0, 16))), [16]);
    assert_eq!(h.engine.free_sequence(child), Err(Status::UnknownHandle), "consumed");
}

/// SS-27 (S-48, S-50, T-73): keys are whole pages.
#[test]
fn ss_27_published_state_is_cut_to_whole_pages() {
    let mut h = fake(|_| {});
    publish(&mut h, &span(0, 40));
    assert_eq!((h.engine.cache_bytes(), cells(&h)), (32 * 64, 32));
    let child = bare(&mut h, &span(100, 137), 0);
    h.engine.publish_sequence(child, &span(100, 137)).expect("it holds them");
    assert_eq!((h.engine.cache_bytes(), cells(&h)), (2 * 32 * 64, 64));
    assert_eq!(h.engine.match_lengths(&span(0, 64)), [32]);
    assert_eq!(h.engine.match_lengths(&span(100, 150)), [32]);
    // Less than a page is freed.
    let short = bare(&mut h, &span(200, 215), 0);
    h.engine.publish_sequence(short, &span(200, 215)).expect("it holds them");
    publish(&mut h, &span(300, 315));
    assert_eq!((h.engine.cache_bytes(), cells(&h), h.engine.live_sequences()), (2 * 32 * 64, 64, 2));
}

/// S-2: the one space.
#[test]
fn there_is_one_space_and_it_has_a_prefix_cache() {
    let mut h = fake(|_| {});
    let [space] = h.engine.state_spaces() else { panic!("one space") };
    assert_eq!((space.space_id, space.kind, space.version_tag), (space_id::KV, 1, 1));
    assert_eq!((space.bytes_per_token, space.page_size_tokens, space.fork_cost_class), (64, 16, 0));
    let name: Vec<u8> = space.name.iter().take_while(|&&byte| byte != 0).map(|&byte| byte as u8).collect();
    assert_eq!(name, b"kv.full");
    assert_eq!(space.flags & ictus::record::constant::space_flag::NO_PREFIX_CACHE, 0);
    assert_eq!(h.engine.space_match(2, &[1], &[]).err(), Some(Status::UnknownHandle));
}
