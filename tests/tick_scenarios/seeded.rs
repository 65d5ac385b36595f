//! Lanes that start from cached or adopted state: who may, and what they say (T-21, T-34, T-35, T-77 .. T-81).

use ictus::engine::Engine;
use ictus::executor::ExecutorOptions;
use ictus::record::constant::{admit_status, determinism, tick_status};
use ictus::record::{LaneAdmit, Status};
use ictus::testing::Harness;

use super::cached::*;
use super::engine::under_test_with;
use super::host::*;

fn with_ttl(seed_ttl_ticks: u64) -> Fake {
    let options = ExecutorOptions { seed_ttl_ticks, ..ExecutorOptions::default() };
    Harness::with_engine(under_test_with(options, |_| {}))
}

fn from(lease: u64) -> impl Fn(&mut LaneAdmit) + Copy {
    move |admit| admit.seed_handle = lease
}

/// TS-14 with every entry exported at publication (T-34, T-77); the other half is in the contract.
#[test]
fn ts_14_lane_starts_from_an_export() {
    let mut h = fake(|options| {
        options.descriptor.cache_resident_cells = 1;
        options.descriptor.cache_exported_cells = 64;
    });
    publish(&mut h, &span(0, 64));
    assert_eq!((h.engine.cache_exported_tokens(), cells(&h)), (64, 0));
    assert_eq!(h.engine.match_lengths(&span(0, 65)), [64]);
    let seed = lease(&mut h, &span(0, 65), 64);
    let events = seeded(&mut h, 1, &span(0, 65), seed, 64, 1);
    assert_eq!(events.admit_for(1).map(|result| result.status), Some(admit_status::ADMITTED));
    assert_eq!(h.committed(1).len(), 66);
    let staged = h.prompt(&span(0, 65));
    assert_eq!(no(&mut h, |plan| plan.admit_with(from(seed), 2, staged)), Status::RejectStaleSeed);
}

/// TS-56 (T-21, T-34, S-43).
#[test]
fn ts_56_lease_expires_with_its_ticks() {
    let mut h = with_ttl(1);
    publish(&mut h, &span(0, 64));
    let staged = h.prompt(&span(0, 65));
    let seed = lease(&mut h, &span(0, 65), 64);
    ok(&mut h, |plan| plan);
    ok(&mut h, |plan| plan);
    assert_eq!(no(&mut h, |plan| plan.admit_with(from(seed), 1, staged)), Status::RejectStaleSeed);
    // One tick less, and it serves.
    let seed = lease(&mut h, &span(0, 65), 64);
    ok(&mut h, |plan| plan);
    ok(&mut h, |plan| plan.admit_with(from(seed), 1, staged));
}

/// TS-57 (T-34, S-45): a lease is for one admit.
#[test]
fn ts_57_lease_is_consumed_by_one_admit() {
    let mut h = fake(|_| {});
    publish(&mut h, &span(0, 64));
    let staged = h.prompt(&span(0, 65));
    let seed = lease(&mut h, &span(0, 65), 64);
    let status = no(&mut h, |plan| plan.admit_with(from(seed), 1, staged).admit_with(from(seed), 2, staged));
    assert_eq!(status, Status::RejectStaleSeed);
    let events = ok(&mut h, |plan| plan.admit_with(from(seed), 1, staged));
    assert_eq!(events.admit_results[0].status, admit_status::ADMITTED);
    assert_eq!(h.engine.seed_release(seed), Err(Status::UnknownHandle));
    assert_eq!(no(&mut h, |plan| plan.admit_with(from(seed), 2, staged)), Status::RejectStaleSeed);
    assert_eq!(no(&mut h, |plan| plan.admit_with(from(999), 2, staged)), Status::RejectStaleSeed);
}

/// TS-58 (T-21): what a lease held is evictable again after it.
#[test]
fn ts_58_expired_lease_pins_nothing() {
    let mut h = with_ttl(1);
    publish(&mut h, &span(0, 64));
    lease(&mut h, &span(0, 65), 64);
    assert_eq!(h.engine.cache_evict(u64::MAX, 0, u64::MAX, u64::MAX), Ok(0), "pinned");
    (0..3).for_each(|_| drop(ok(&mut h, |plan| plan)));
    assert_eq!(h.engine.cache_evict(u64::MAX, 0, u64::MAX, u64::MAX), Ok(64 * 64));
}

/// T-21, T-3: a plan that is refused after its header sweeps expired leases all the same, and changes nothing else.
#[test]
fn refused_plan_sweeps_expired_leases() {
    let mut h = with_ttl(1);
    publish(&mut h, &span(0, 64));
    lease(&mut h, &span(0, 65), 64);
    ok(&mut h, |plan| plan);
    ok(&mut h, |plan| plan);
    assert_eq!(no(&mut h, |plan| plan.max_decode_lanes(999)), Status::RejectBudget, "T-19 comes before T-21");
    assert_eq!(h.engine.cache_evict(u64::MAX, 0, u64::MAX, u64::MAX), Ok(0), "still pinned");
    assert_eq!(no(&mut h, |plan| plan.retire(5, false)), Status::RejectUnknownLane);
    assert_eq!(h.engine.cache_evict(u64::MAX, 0, u64::MAX, u64::MAX), Ok(64 * 64));
}

/// TS-68 (T-61, T-78): a seed of the whole prompt leaves its last token to be fed.
#[test]
fn ts_68_seed_of_the_whole_prompt_feeds_one_token() {
    let mut h = fake(|_| {});
    let prompt = span(0, 64);
    publish(&mut h, &prompt);
    let seed = lease(&mut h, &prompt, 64);
    let before = feed_count(&h);
    seeded(&mut h, 1, &prompt, seed, 64, 1);
    assert_eq!(feeds(&h, before), [(1, true)]);
    assert_eq!(h.committed(1).len(), 65);
}

/// TS-69 (T-34, S-45).
#[test]
fn ts_69_class_and_prompt_must_be_those_of_the_lease() {
    let mut h = fake(|_| {});
    publish(&mut h, &span(0, 64));
    let seed = h.engine.seed_acquire(&span(0, 65), 64, determinism::DETERMINISTIC).expect("no taint");
    let deterministic = move |admit: &mut LaneAdmit| {
        admit.seed_handle = seed;
        admit.determinism_class = determinism::DETERMINISTIC;
    };
    let (staged, other) = (h.prompt(&span(0, 65)), h.prompt(&span(1, 66)));
    let short = h.prompt(&span(0, 63));
    assert_eq!(no(&mut h, |plan| plan.admit_with(from(seed), 1, staged)), Status::RejectStaleSeed);
    assert_eq!(no(&mut h, |plan| plan.admit_with(deterministic, 1, other)), Status::RejectStaleSeed);
    assert_eq!(no(&mut h, |plan| plan.admit_with(deterministic, 1, short)), Status::RejectStaleSeed);
    let events = ok(&mut h, |plan| plan.admit_with(deterministic, 1, staged).prefill(1, 64, 1).decode(1, 2));
    assert_eq!(h.tokens_of(&events, 1), greedy_after(&h, &span(0, 65), 2));
}

/// T-34: leases on adopted sequences are BEST_EFFORT.
#[test]
fn adopt_lease_serves_best_effort_lanes_only() {
    let mut h = fake(|_| {});
    let child = bare(&mut h, &span(0, 16), 0);
    let seed = h.engine.seed_adopt(child, &span(0, 16)).expect("it is bare");
    let staged = h.prompt(&span(0, 20));
    let deterministic = move |admit: &mut LaneAdmit| {
        admit.seed_handle = seed;
        admit.determinism_class = determinism::DETERMINISTIC;
    };
    assert_eq!(no(&mut h, |plan| plan.admit_with(deterministic, 1, staged)), Status::RejectStaleSeed);
    seeded(&mut h, 1, &span(0, 20), seed, 16, 2);
}

/// T-35 and its Beyond: on a head-only runtime a seed of the whole prompt is refused, whatever kind of lease it is.
#[test]
fn head_only_lane_cannot_start_from_its_whole_prompt() {
    let mut h = fake(|options| options.descriptor.truncate_partial = false);
    publish(&mut h, &span(0, 64));
    let seed = lease(&mut h, &span(0, 65), 64);
    let staged = h.prompt(&span(0, 64));
    assert_eq!(no(&mut h, |plan| plan.admit_with(from(seed), 1, staged)), Status::RejectIllegalCombination);
    let longer = h.prompt(&span(0, 65));
    ok(&mut h, |plan| plan.admit_with(from(seed), 1, longer).prefill(1, 64, 1));
    assert_eq!(more(&mut h, 1, 3), greedy_after(&h, &span(0, 65), 3));
}

/// T-36 comes after T-34: a stale seed decides before the length of the prompt.
#[test]
fn stale_seed_is_told_before_a_prompt_that_is_too_long() {
    let mut h = fake(|options| options.descriptor.max_seq_len = 64);
    let staged = h.prompt(&span(0, 65));
    assert_eq!(no(&mut h, |plan| plan.admit_with(from(9), 1, staged)), Status::RejectStaleSeed);
    assert_eq!(no(&mut h, |plan| plan.admit(1, staged)), Status::RejectBudget);
}

/// T-47, T-81: prefill starts behind the seed; the seed may reach into a replayed tail.
#[test]
fn seeded_lane_stands_behind_its_seed() {
    let mut h = fake(|_| {});
    publish(&mut h, &span(0, 64));
    let staged = h.prompt(&span(0, 70));
    let seed = lease(&mut h, &span(0, 70), 64);
    assert_eq!(
        no(&mut h, |plan| plan.admit_with(from(seed), 1, staged).prefill(1, 0, 70)),
        Status::RejectIllegalCombination
    );
    ok(&mut h, |plan| plan.admit_with(from(seed), 1, staged).prefill(1, 64, 6));
    assert_eq!(more(&mut h, 1, 2), greedy_after(&h, &span(0, 70), 2));
    // Sixteen tokens to replay, ten of which are in the seed: nothing is left to prefill, and six passes come first.
    let seed = lease(&mut h, &span(0, 70), 64);
    let tail = move |admit: &mut LaneAdmit| {
        admit.seed_handle = seed;
        admit.decode_replay = 16;
    };
    let events = ok(&mut h, |plan| plan.admit_with(tail, 2, staged).decode(2, 8));
    assert_eq!(h.tokens_of(&events, 2), greedy_after(&h, &span(0, 70), 2));
}

/// T-34, S-45: a plan that is refused for room leaves the lease usable.
#[test]
fn refusal_for_room_leaves_the_lease() {
    let mut h = fake(|options| options.descriptor.cells_total = 100);
    publish(&mut h, &span(0, 64));
    admit_whole(&mut h, 9, &span(200, 230), plain);
    let staged = h.prompt(&span(0, 70));
    let seed = lease(&mut h, &span(0, 70), 64);
    let status = no(&mut h, |plan| plan.admit_with(from(seed), 1, staged).prefill(1, 64, 6).decode(9, 5));
    assert_eq!(status, Status::NeedsReplan);
    let events = ok(&mut h, |plan| plan.retire(9, false).admit_with(from(seed), 1, staged).prefill(1, 64, 6));
    assert_eq!(events.tick_status, tick_status::SHED, "T-69: it takes the entry over");
}

/// T-71, T-73: publishing a faulted tag does nothing; a publishing retire with a pending input feeds it.
#[test]
fn publishing_retire_feeds_the_pending_token() {
    let mut h = fake(tokens_are_bytes);
    admit_whole(&mut h, 1, &span(0, 8), plain);
    let before = feed_count(&h);
    ok(&mut h, |plan| plan.retire(1, true));
    assert_eq!(feeds(&h, before), [(1, false)]);
    assert_eq!(h.engine.match_lengths(&beyond(&span(0, 8))), [8]);
    // T-72: a step that fails leaves the token out, and nobody hears of it.
    admit_whole(&mut h, 2, &span(20, 28), plain);
    h.engine.primitives_mut().fail_next_step(ictus::runtime::RuntimeError::Fault(3));
    let events = ok(&mut h, |plan| plan.retire(2, true));
    assert_eq!((events.tick_status, events.faults.len()), (tick_status::OK, 0));
    assert_eq!(h.engine.match_lengths(&beyond(&span(20, 28))), [7]);
    admit_whole(&mut h, 3, &span(40, 48), plain);
    h.engine.inject_fault(3, 1);
    ok(&mut h, |plan| plan.decode(3, 1));
    ok(&mut h, |plan| plan.retire(3, true));
    assert!(h.engine.match_lengths(&beyond(&span(40, 48))).is_empty());
}

/// T-72, Beyond: a broken runtime there is a fatal tick.
#[test]
fn broken_runtime_in_a_publishing_retire_is_fatal() {
    let mut h = fake(|_| {});
    admit_whole(&mut h, 1, &span(0, 64), plain);
    h.engine.primitives_mut().fail_next_step(ictus::runtime::RuntimeError::Fatal);
    let plan = h.plan().retire(1, true);
    assert_eq!(h.tick_err(plan), Status::Fatal);
}

/// TS-34 (T-90): a head-only runtime keeps a copy of the prompt's state, once and only if it is worth it.
#[test]
fn ts_34_head_only_prompts_leave_checkpoints() {
    let prompt = span(0, 200);
    let head_only = |truncate_partial: bool| {
        fake(move |options| {
            tokens_are_bytes(options);
            options.descriptor.truncate_partial = truncate_partial;
        })
    };
    let mut cuttable = head_only(false);
    let tokens = start(&mut cuttable, 1, &prompt, 8, plain);
    let mut h = head_only(true);
    assert_eq!(start(&mut h, 1, &prompt, 8, plain), tokens);
    assert!(h.engine.match_lengths(&prompt).is_empty(), "a cuttable runtime keeps nothing");

    let mut h = cuttable;
    assert_eq!(h.engine.match_lengths(&prompt), [199]);
    assert_eq!(h.engine.match_lengths(&beyond(&prompt)), [199]);
    assert_eq!(h.engine.cache_bytes(), 199);
    let seed = lease(&mut h, &beyond(&prompt), 199);
    let staged = h.prompt(&beyond(&prompt));
    ok(&mut h, |plan| plan.admit_with(from(seed), 2, staged).prefill(2, 199, 3));
    assert_eq!(more(&mut h, 2, 3), greedy_after(&h, &beyond(&prompt), 3));
    start(&mut h, 3, &prompt, 1, plain);
    assert_eq!(
        h.engine.match_lengths(&beyond(&prompt)),
        [201, 199],
        "the extension left its own, the prompt no second one"
    );
    assert_eq!(h.engine.cache_bytes(), 201 + 199);
    start(&mut h, 4, &span(300, 400), 1, plain);
    assert!(h.engine.match_lengths(&beyond(&span(300, 400))).is_empty(), "too short to be worth it");
    h.engine.audit().expect("the engine is sound");
}

/// T-90, section 16: a checkpoint takes only cells that the plan does not need, and is no reason to refuse it.
#[test]
fn checkpoint_takes_spare_cells_only() {
    for (cells_total, kept) in [(206 + 199, 199), (206 + 198, 0)] {
        let mut h = fake(|options| {
            tokens_are_bytes(options);
            options.descriptor.truncate_partial = false;
            options.descriptor.cells_total = cells_total;
        });
        // The demand of the plan is 200 prompt tokens and the grant of 6.
        let staged = h.prompt(&span(0, 200));
        let events = ok(&mut h, |plan| plan.admit(1, staged).prefill(1, 0, 200).decode(1, 6));
        assert_eq!(h.tokens_of(&events, 1), greedy_after(&h, &span(0, 200), 6));
        assert_eq!(h.engine.cache_bytes(), kept, "{cells_total} cells");
    }
}
