//! Leaving the pool: exports, what they cost, what covers what, shortages (S-53, S-56, S-57, S-60).

use ictus::engine::Engine;
use ictus::record::Status;
use ictus::record::constant::{cache_class, tick_status};

use super::cached::*;
use super::host::*;

/// Four prompts of six tokens.
fn four() -> [Vec<u32>; 4] {
    [0, 100, 200, 300].map(|from| span(from, from + 6))
}

fn offered(h: &Fake, keys: &[Vec<u32>]) -> Vec<Vec<u64>> {
    keys.iter().map(|key| h.engine.match_lengths(&beyond(key))).collect()
}

/// SS-31 (S-57, S-56).
#[test]
fn ss_31_resting_cells_stay_within_their_bound() {
    let mut h = fake(pool(8, 64));
    for key in &four() {
        assert_eq!(losses(&publish(&mut h, key)), [], "moving to an export is no loss (T-143)");
    }
    let before = h.engine.primitives().idle_cells().len();
    start(&mut h, 1, &span(400, 403), 4, plain);
    let beside = &h.engine.primitives().idle_cells()[before..];
    assert_eq!(beside.len(), 4);
    assert!(beside.iter().all(|&cells| cells <= 8), "{beside:?}");
    assert_eq!(offered(&h, &four()), vec![vec![6]; 4]);
    assert_eq!((h.engine.cache_bytes(), h.engine.cache_exported_tokens()), (6, 18));
}

/// SS-32 (T-77): a lane starts from an export, whole or in part.
#[test]
fn ss_32_lanes_start_from_exports() {
    let [old, new, ..] = four();
    let mut h = fake(pool(8, 64));
    publish(&mut h, &old);
    publish(&mut h, &new);
    assert_eq!(h.engine.cache_exported_tokens(), 6);
    let prompt = beyond(&old);
    let seed = lease(&mut h, &prompt, 6);
    seeded(&mut h, 1, &prompt, seed, 6, 3);
    assert_eq!((cells(&h), h.engine.cache_exported_tokens()), (6 + 6 + 2 + 2, 6));
    ok(&mut h, |plan| plan.retire(1, false));
    let branch = beyond(&old[..4]);
    let seed = lease(&mut h, &branch, 4);
    seeded(&mut h, 2, &branch, seed, 4, 2);
    assert_eq!((cells(&h), h.engine.cache_exported_tokens()), (6 + 4 + 2 + 1, 6));
}

/// SS-33 (T-64, T-65): an import brings the whole entry in before it is cut.
#[test]
fn ss_33_imports_are_planned_for() {
    let [old, new, ..] = four();
    let branch = beyond(&old[..4]);
    let mut h = fake(|options| {
        pool(1, 64)(options);
        options.descriptor.cells_total = 8;
        options.descriptor.max_seq_len = 8;
    });
    publish(&mut h, &old);
    assert_eq!(cells(&h), 0);
    let seed = lease(&mut h, &branch, 4);
    seeded(&mut h, 1, &branch, seed, 4, 2);
    assert_eq!(cells(&h), 7);

    let mut h = fake(|options| {
        pool(8, 64)(options);
        options.descriptor.cells_total = 12;
    });
    publish(&mut h, &old);
    publish(&mut h, &new);
    let seed = lease(&mut h, &branch, 4);
    let events = seeded(&mut h, 1, &branch, seed, 4, 1);
    assert_eq!((events.tick_status, h.engine.cache_exported_tokens()), (tick_status::OK, 12));
    assert_eq!(offered(&h, &[old.clone(), new]), vec![vec![6]; 2]);

    let mut h = fake(|options| {
        pool(1, 64)(options);
        options.descriptor.cells_total = 7;
    });
    publish(&mut h, &old);
    admit_whole(&mut h, 7, &span(500, 507), plain);
    assert_eq!(cells(&h), 6);
    let seed = lease(&mut h, &branch, 4);
    let staged = h.prompt(&branch);
    let status =
        no(&mut h, |plan| plan.admit_with(|admit| admit.seed_handle = seed, 1, staged).prefill(1, 4, 2).decode(1, 1));
    assert_eq!((status, cells(&h), h.engine.cache_exported_tokens()), (Status::NeedsReplan, 6, 6));
}

/// SS-35 (S-56): the least export goes for a new one; leased ones stay; what exceeds the budget is not exported.
#[test]
fn ss_35_exports_have_a_budget() {
    let mut h = fake(pool(6, 12));
    let [a, b, c, d] = four();
    for key in [&a, &b, &c] {
        assert_eq!(losses(&publish(&mut h, key)), []);
    }
    let events = publish(&mut h, &d);
    assert_eq!((events.tick_status, losses(&events)), (tick_status::SHED, vec![(0, 0, 6)]));
    assert_eq!(offered(&h, &four()), [vec![], vec![6], vec![6], vec![6]]);

    let mut h = fake(pool(6, 12));
    for key in [&a, &b, &c] {
        publish(&mut h, key);
    }
    lease(&mut h, &beyond(&a), 6);
    assert_eq!(losses(&publish(&mut h, &d)), [(0, 0, 6)]);
    assert_eq!(offered(&h, &four()), [vec![6], vec![], vec![6], vec![6]]);

    let mut h = fake(pool(6, 4));
    publish(&mut h, &a);
    assert_eq!(losses(&publish(&mut h, &b)), [(0, 6, 6)]);
    assert_eq!(h.engine.cache_exported_tokens(), 0);
}

/// SS-36 (S-52, S-56): a shared prefix is worth more than what comes later.
#[test]
fn ss_36_shared_export_outlives_later_ones() {
    let mut h = fake(pool(1, 12));
    let [a, b, c, _] = four();
    publish(&mut h, &a);
    seed_and_drop(&mut h, &beyond(&a), 6);
    seed_and_drop(&mut h, &beyond(&a), 6);
    assert_eq!(losses(&publish(&mut h, &b)), []);
    assert_eq!(losses(&publish(&mut h, &c)), [(0, 0, 6)]);
    assert_eq!(offered(&h, &[a, b, c]), [vec![6], vec![], vec![6]]);
}

/// SS-37 (S-56): without a budget leaving is eviction.
#[test]
fn ss_37_without_exports_the_excess_is_evicted() {
    let mut h = fake(pool(8, 0));
    let [a, b, c, _] = four();
    assert_eq!(losses(&publish(&mut h, &a)), []);
    assert_eq!(losses(&publish(&mut h, &b)), [(0, 6, 6)]);
    assert_eq!(losses(&publish(&mut h, &c)), [(0, 6, 6)]);
    assert_eq!(offered(&h, &[a, b, c]), [vec![], vec![], vec![6]]);
}

/// SS-38 (S-53, S-57): turns of a conversation cover the turns before.
#[test]
fn ss_38_longer_turns_cover_shorter_ones() {
    let mut h = fake(pool(10, 64));
    publish(&mut h, &span(0, 6));
    assert_eq!(losses(&turn(&mut h, &span(0, 9), 6)), []);
    assert_eq!((cells(&h), h.engine.cache_bytes()), (9, 15), "two entries share six cells");
    let mut lost = losses(&turn(&mut h, &span(0, 12), 9));
    lost.sort_unstable();
    assert_eq!(lost, [(0, 6, 6), (0, 9, 9)]);
    assert_eq!((cells(&h), h.engine.cache_exported_tokens()), (0, 12));
    assert_eq!(h.engine.match_lengths(&beyond(&span(0, 12))), [12]);
    let branch = beyond(&span(0, 6));
    let seed = lease(&mut h, &branch, 6);
    seeded(&mut h, 1, &branch, seed, 6, 3);
}

/// SS-39 (S-53): an export that another serves nearly as well goes.
#[test]
fn ss_39_export_covered_up_to_an_eighth_goes() {
    let mut h = fake(pool(1, 64));
    let old = span(0, 16);
    publish(&mut h, &old);
    let new = [&old[..15], &[90, 91, 92]].concat();
    assert_eq!(losses(&publish(&mut h, &new)), [(0, 0, 16)]);
    assert_eq!(h.engine.cache_exported_tokens(), 18);
    assert_eq!(h.engine.match_lengths(&beyond(&old)), [15]);
    let half = [&new[..8], &span(200, 208)[..]].concat();
    assert_eq!(losses(&publish(&mut h, &half)), []);
    assert_eq!(h.engine.cache_exported_tokens(), 34);
}

/// SS-40 (S-53, S-51): an entry of which it is no real part does not cover it.
#[test]
fn ss_40_much_longer_entry_covers_nothing() {
    let mut h = fake(pool(1, 64));
    publish(&mut h, &span(0, 6));
    publish(&mut h, &span(0, 56));
    assert_eq!(h.engine.cache_exported_tokens(), 62);
    assert_eq!(h.engine.match_lengths(&beyond(&span(0, 6))), [6]);
}

/// SS-42 (T-79): a failed import is computed again, and the export is gone.
#[test]
fn ss_42_failed_import_is_recomputed() {
    let mut h = fake(pool(8, 64));
    let [old, new, ..] = four();
    publish(&mut h, &old);
    publish(&mut h, &new);
    let prompt = beyond(&old);
    let seed = lease(&mut h, &prompt, 6);
    h.engine.primitives_mut().poison_next_import();
    let events = seeded(&mut h, 1, &prompt, seed, 6, 3);
    assert_eq!((events.tick_status, losses(&events)), (tick_status::SHED, vec![(1, 0, 6)]));
    assert_eq!((offered(&h, &[old]), h.engine.cache_exported_tokens()), (vec![vec![]], 0));
}

/// T-79: another lease keeps the export.
#[test]
fn failed_import_leaves_what_another_lease_holds() {
    let mut h = fake(pool(1, 64));
    let key = span(0, 6);
    publish(&mut h, &key);
    let prompt = beyond(&key);
    let (seed, other) = (lease(&mut h, &prompt, 6), lease(&mut h, &prompt, 4));
    h.engine.primitives_mut().poison_next_import();
    let events = seeded(&mut h, 1, &prompt, seed, 6, 3);
    assert_eq!((losses(&events), h.engine.cache_exported_tokens()), (vec![], 6));
    seeded(&mut h, 2, &prompt, other, 4, 3);
}

/// SS-43 (S-55, S-56): within a tick and between ticks alike.
#[test]
fn ss_43_evicted_entries_are_exported() {
    let [old, new, ..] = four();
    let filled = || {
        let mut h = fake(|options| {
            pool(12, 64)(options);
            options.descriptor.cells_total = 16;
        });
        publish(&mut h, &old);
        publish(&mut h, &new);
        h
    };
    let mut h = filled();
    let staged = h.prompt(&span(400, 408));
    let events = ok(&mut h, |plan| plan.admit(1, staged).prefill(1, 0, 8));
    assert_eq!((events.tick_status, h.engine.cache_exported_tokens()), (tick_status::OK, 6));
    assert_eq!(offered(&h, &[old.clone(), new.clone()]), vec![vec![6]; 2]);
    let mut h = filled();
    assert_eq!(h.engine.cache_evict(cache_class::RESIDENT, 0, u64::MAX, 6), Ok(6));
    assert_eq!((h.engine.cache_exported_tokens(), cells(&h)), (6, 6));
    assert_eq!(offered(&h, &[old.clone(), new.clone()]), vec![vec![6]; 2]);
}

/// SS-44 (S-60): after a shortage of host memory leaving means eviction, for 64 ticks.
#[test]
fn ss_44_shortage_drops_exports_and_makes_no_new_ones() {
    let mut h = fake(pool(6, 64));
    let [a, b, c, d] = four();
    publish(&mut h, &a);
    publish(&mut h, &b);
    assert_eq!((h.engine.cache_bytes(), h.engine.cache_exported_tokens()), (6, 6));
    assert_eq!(h.engine.cache_evict(cache_class::RESIDENT, 0, u64::MAX, 6), Ok(6));
    assert_eq!(h.engine.cache_exported_tokens(), 12);
    assert_eq!(h.engine.cache_evict(cache_class::HOST_EXPORT, 0, u64::MAX, 6), Ok(0));
    assert_eq!((h.engine.cache_exported_tokens(), offered(&h, &[a, b])), (0, vec![vec![], vec![]]));
    publish(&mut h, &c);
    assert_eq!(losses(&publish(&mut h, &d)), [(0, 6, 6)]);
    assert_eq!(h.engine.cache_exported_tokens(), 0);
    // The four ticks of the two publications are over; the shortage lasts through the 64th.
    (4..62).for_each(|_| drop(ok(&mut h, |plan| plan)));
    assert_eq!(losses(&publish(&mut h, &c)), [(0, 6, 6)], "ticks 63 and 64");
    let events = publish(&mut h, &d);
    assert_eq!((losses(&events), h.engine.cache_exported_tokens()), (vec![], 6), "over");
}

/// SS-45 (S-56, T-67): slots are made by exporting, too.
#[test]
fn ss_45_slot_of_an_exported_entry_is_free() {
    let [old, new, ..] = four();
    for exports in [64, 0] {
        let mut h = fake(|options| {
            tokens_are_bytes(options);
            options.descriptor.max_seqs = 2;
            options.descriptor.takeover_preferred = true;
            options.descriptor.cache_exported_cells = exports;
        });
        publish(&mut h, &old);
        publish(&mut h, &new);
        let staged = h.prompt(&span(400, 404));
        let events = ok(&mut h, |plan| plan.admit(1, staged).prefill(1, 0, 4).decode(1, 1));
        ok(&mut h, |plan| plan.retire(1, false));
        if exports == 0 {
            assert_eq!((losses(&events), offered(&h, std::slice::from_ref(&old))), (vec![(0, 6, 6)], vec![vec![]]));
            continue;
        }
        assert_eq!((events.tick_status, h.engine.cache_exported_tokens()), (tick_status::OK, 6));
        let prompt = beyond(&old);
        let seed = lease(&mut h, &prompt, 6);
        seeded(&mut h, 2, &prompt, seed, 6, 3);
    }
}

/// SS-46 (S-53): nothing is covered on a head-only runtime.
#[test]
fn ss_46_head_only_entries_are_never_covered() {
    let mut h = fake(|options| {
        pool(8, 64)(options);
        options.descriptor.truncate_partial = false;
    });
    publish(&mut h, &span(0, 6));
    turn(&mut h, &span(0, 8), 6);
    assert_eq!(cells(&h), 8);
    publish(&mut h, &span(100, 106));
    assert_eq!((h.engine.cache_exported_tokens(), h.engine.cache_bytes()), (14, 6));
    let branch = beyond(&span(0, 6));
    assert_eq!(h.engine.match_lengths(&branch), [6]);
    let seed = lease(&mut h, &branch, 6);
    let staged = h.prompt(&branch);
    ok(&mut h, |plan| plan.admit_with(|admit| admit.seed_handle = seed, 1, staged).prefill(1, 6, 2));
    assert_eq!(more(&mut h, 1, 3), greedy_after(&h, &branch, 3));
}

/// S-57: the bound counts cells that nobody else holds: those of a lane's own copy are the lane's.
#[test]
fn cells_shared_with_a_lane_do_not_rest() {
    let mut h = fake(pool(4, 64));
    admit_whole(&mut h, 1, &span(0, 6), plain);
    let parent = sequence(&h, 1);
    let child = h.engine.seq_fork(parent, 0).expect("there is room");
    h.engine.publish_sequence(child, &span(0, 5)).expect("it holds them");
    assert_eq!((h.engine.cache_bytes(), h.engine.cache_exported_tokens()), (5, 0), "the lane holds the same cells");
    ok(&mut h, |plan| plan.retire(1, false));
    assert_eq!((h.engine.cache_bytes(), h.engine.cache_exported_tokens()), (0, 5), "now nobody else does");
}

/// S-99 but for its thread (the copy is made in the tick in which the entry leaves): an entry on its way out is offered after every
/// tick, and a loss is told in the tick in which it happens, not before and not again.
#[test]
fn loss_is_told_when_it_happens() {
    let mut h = fake(pool(6, 12));
    let keys: Vec<Vec<u32>> = (0..6).map(|turn| span(100 * turn, 100 * turn + 6)).collect();
    let mut lost = 0;
    for (turn, key) in keys.iter().enumerate() {
        let events = publish(&mut h, key);
        lost += losses(&events).len();
        let offered = keys.iter().filter(|key| !h.engine.match_lengths(&beyond(key)).is_empty()).count();
        assert_eq!(offered + lost, turn + 1, "what is not offered was told as lost, and nothing else");
        let quiet = ok(&mut h, |plan| plan);
        assert!(losses(&quiet).is_empty(), "it is told once");
    }
    assert_eq!(lost, 3, "one rests in the pool, two lie outside");
}

/// S-57: what a lease kept in the pool goes once the lease has ended. The simulation found that it stayed, because no sequence had gone.
#[test]
fn what_a_lease_kept_goes_with_the_next_tick() {
    let mut h = fake(pool(4, 0));
    admit_whole(&mut h, 1, &span(0, 7), plain);
    let lane = sequence(&h, 1);
    let fork = h.engine.seq_fork(lane, 0).expect("there is room");
    h.engine.publish_sequence(fork, &span(0, 6)).expect("it holds them");
    let lease = lease(&mut h, &span(0, 7), 6);
    assert_eq!(losses(&ok(&mut h, |plan| plan.retire(1, false))), [], "six cells rest, but they are leased");
    assert_eq!(losses(&ok(&mut h, |plan| plan)), []);
    h.engine.seed_release(lease).expect("it is held");
    assert_eq!(losses(&ok(&mut h, |plan| plan)), [(0, 6, 6)]);
}

/// S-57, S-68: what shared its cells with a fork rests alone once the fork is cut. Found as the one above.
#[test]
fn what_a_fork_shared_rests_alone_once_the_fork_is_cut() {
    let mut h = fake(pool(4, 0));
    admit_whole(&mut h, 1, &span(0, 7), plain);
    let lane = sequence(&h, 1);
    let fork = h.engine.seq_fork(lane, 0).expect("there is room");
    assert_eq!(losses(&ok(&mut h, |plan| plan.retire(1, true))), [], "the fork holds six of the seven cells as well");
    h.engine.space_trim(fork, 1, 0).expect("it is bare");
    assert_eq!(losses(&ok(&mut h, |plan| plan)), [(0, 7, 7)]);
}
