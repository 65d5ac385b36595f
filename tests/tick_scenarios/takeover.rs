//! Admits that take their entry over instead of copying from it (T-61 .. T-63, T-69, T-76).

use ictus::engine::Engine;
use ictus::record::constant::{fork_flag, tick_status};
use ictus::record::{LaneAdmit, Status};

use super::cached::*;
use super::host::*;

/// Page 1, a byte per token, so many cells.
fn one_cells(cells_total: u64) -> Fake {
    fake(|options| {
        tokens_are_bytes(options);
        options.descriptor.cells_total = cells_total;
    })
}

fn preferring(truncate_partial: bool) -> Fake {
    fake(|options| {
        tokens_are_bytes(options);
        options.descriptor.cells_total = 64;
        options.descriptor.takeover_preferred = true;
        options.descriptor.truncate_partial = truncate_partial;
    })
}

fn from(lease: u64) -> impl Fn(&mut LaneAdmit) + Copy {
    move |admit| admit.seed_handle = lease
}

/// TS-29 (T-64, T-69).
#[test]
fn ts_29_entry_is_taken_over_when_its_copy_does_not_fit() {
    let mut h = fake(|options| options.descriptor.cells_total = 100);
    publish(&mut h, &span(0, 64));
    let prompt = span(0, 94);
    let (seed, other) = (lease(&mut h, &prompt, 64), lease(&mut h, &prompt, 64));
    let staged = h.prompt(&prompt);
    let admit = |plan: ictus::testing::PlanBuilder| plan.admit_with(from(seed), 1, staged).prefill(1, 64, 30);
    assert_eq!(no(&mut h, admit), Status::NeedsReplan);
    assert_eq!((h.engine.cache_bytes(), h.engine.lane_committed(1)), (64 * 64, None));
    h.engine.seed_release(other).expect("it is live");
    let events = ok(&mut h, admit);
    assert_eq!(losses(&events), [(1, 64 * 64, 64)]);
    assert_eq!((cells(&h), h.engine.cache_bytes()), (93, 0));
    assert_eq!(more(&mut h, 1, 2), greedy_after(&h, &prompt, 2));
    h.engine.audit().expect("the engine is sound");
}

/// TS-49 (T-69, T-76).
#[test]
fn ts_49_takeover_says_what_went() {
    let mut h = one_cells(8);
    publish(&mut h, &span(0, 6));
    let seed = lease(&mut h, &span(0, 7), 6);
    let events = seeded(&mut h, 1, &span(0, 7), seed, 6, 1);
    assert_eq!((events.tick_status, losses(&events)), (tick_status::SHED, vec![(1, 6, 6)]));
    assert_eq!((h.engine.cache_bytes(), cells(&h)), (0, 7));
}

/// TS-50 (T-62, T-63).
#[test]
fn ts_50_runtime_may_prefer_takeovers() {
    for (preferred, leases, cells_then, cached) in [(false, 1, 13, 6), (true, 1, 7, 0), (true, 2, 13, 6)] {
        let mut h = fake(|options| {
            tokens_are_bytes(options);
            options.descriptor.cells_total = 64;
            options.descriptor.takeover_preferred = preferred;
        });
        publish(&mut h, &span(0, 6));
        let seed = (0..leases).map(|_| lease(&mut h, &span(0, 7), 6)).last().expect("one at least");
        let events = seeded(&mut h, 1, &span(0, 7), seed, 6, 1);
        assert_eq!((cells(&h), h.engine.cache_bytes()), (cells_then, cached));
        let expected = if cached == 0 { tick_status::SHED } else { tick_status::OK };
        assert_eq!(events.tick_status, expected, "T-76: a preferred takeover is told as well");
    }
}

/// TS-51 (T-63): a branch copies, a continuation takes over.
#[test]
fn ts_51_branches_copy_and_continuations_take_over() {
    let mut h = preferring(true);
    let prompt = span(0, 8);
    let reply = start(&mut h, 1, &prompt, 1, plain);
    ok(&mut h, |plan| plan.retire(1, true));
    assert_eq!(h.engine.cache_bytes(), 9);
    let branch = beyond(&prompt[..6]);
    for lane in [2, 3] {
        let seed = lease(&mut h, &branch, 6);
        seeded(&mut h, lane, &branch, seed, 6, 2);
        assert_eq!(h.engine.cache_bytes(), 9);
    }
    let next = [&prompt[..], &reply, &[77]].concat();
    let seed = lease(&mut h, &next, 9);
    let events = seeded(&mut h, 4, &next, seed, 9, 2);
    assert_eq!((losses(&events), h.engine.cache_bytes()), (vec![(4, 9, 9)], 0));
}

/// TS-52 (T-62, S-15): a copy made for others is not taken from them.
#[test]
fn ts_52_published_fork_is_taken_over_only_if_private() {
    for (flags, cached) in [(0, 6), (fork_flag::PRIVATE, 0)] {
        let mut h = preferring(false);
        let child = bare(&mut h, &span(0, 6), flags);
        h.engine.publish_sequence(child, &span(0, 6)).expect("it holds them");
        let prompt = beyond(&span(0, 6));
        let follow = |h: &mut Fake, lane: u64| {
            let seed = lease(h, &prompt, 6);
            let staged = h.prompt(&prompt);
            ok(h, |plan| plan.admit_with(from(seed), lane, staged).prefill(lane, 6, 2));
            assert_eq!(more(h, lane, 3), greedy_after(h, &prompt, 3));
        };
        follow(&mut h, 1);
        assert_eq!(h.engine.cache_bytes(), cached);
        if cached > 0 {
            follow(&mut h, 2);
            assert_eq!(h.engine.cache_bytes(), cached, "it seeds again");
        }
    }
}

/// TS-53 (T-69, T-76): a forced takeover may cut its entry.
#[test]
fn ts_53_forced_takeover_cuts_to_the_seed() {
    let mut h = one_cells(8);
    publish(&mut h, &span(0, 6));
    let prompt = beyond(&span(0, 4));
    let (seed, other) = (lease(&mut h, &prompt, 4), lease(&mut h, &prompt, 4));
    let staged = h.prompt(&prompt);
    let status = no(&mut h, |plan| plan.admit_with(from(seed), 1, staged).prefill(1, 4, 2).decode(1, 1));
    assert_eq!((status, cells(&h)), (Status::NeedsReplan, 6));
    h.engine.seed_release(other).expect("it is live");
    let events = seeded(&mut h, 1, &prompt, seed, 4, 1);
    assert_eq!((losses(&events), cells(&h)), (vec![(1, 6, 6)], 6));
}

/// TS-54 (T-69): one takes over, the other copies.
#[test]
fn ts_54_takeover_makes_room_for_a_copy() {
    let mut h = one_cells(16);
    publish(&mut h, &span(0, 4));
    publish(&mut h, &span(20, 30));
    let (small, large) = (beyond(&span(0, 4)), beyond(&span(20, 22)));
    let (first, _held) = (lease(&mut h, &small, 4), lease(&mut h, &small, 4));
    let second = lease(&mut h, &large, 2);
    let refs = [h.prompt(&small), h.prompt(&large)];
    let events = ok(&mut h, |plan| plan.admit_with(from(first), 1, refs[0]).admit_with(from(second), 2, refs[1]));
    assert_eq!(losses(&events), [(2, 10, 10)]);
    assert_eq!((cells(&h), h.engine.cache_bytes()), (10, 4));
    h.engine.audit().expect("the engine is sound");
}

/// T-67, T-69: a takeover needs no slot.
#[test]
fn forced_takeover_makes_do_without_a_slot() {
    let mut h = fake(|options| {
        tokens_are_bytes(options);
        options.descriptor.max_seqs = 1;
    });
    publish(&mut h, &span(0, 6));
    let seed = lease(&mut h, &span(0, 7), 6);
    let events = seeded(&mut h, 1, &span(0, 7), seed, 6, 1);
    assert_eq!((losses(&events), h.engine.live_sequences()), (vec![(1, 6, 6)], 1));
}
