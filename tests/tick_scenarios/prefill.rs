//! Prefill: steps, budgets, yields, the rate, and replayed tails.

use core::time::Duration;

use ictus::record::constant::{finish, shed_kind, tick_status};
use ictus::record::{LaneAdmit, Status};
use ictus::runtime::FakeOptions;

use super::host::*;

fn steps_of_512(options: &mut FakeOptions) {
    options.descriptor.prefill_step_tokens = 512;
}

fn replaying(tail: u32) -> impl Fn(&mut LaneAdmit) + Copy {
    move |admit| admit.decode_replay = tail
}

/// TS-17 (T-48, T-54, T-98, T-99): which feeds a tail makes, and which of them asks for a row.
#[test]
fn replayed_tail_is_fed_token_by_token_and_asks_once() {
    let prompt = span(20, 30);
    let mut h = fake(|_| {});
    let staged = h.prompt(&prompt);
    let admitted = |plan: ictus::testing::PlanBuilder| plan.admit_with(replaying(4), 1, staged);
    assert_eq!(no(&mut h, |plan| admitted(plan).prefill(1, 0, 7)), Status::RejectBounds);
    assert_eq!(no(&mut h, |plan| admitted(plan).prefill(1, 0, 5).decode(1, 1)), Status::RejectIllegalCombination);
    assert_eq!(feed_count(&h), 0, "a refused plan feeds nothing");
    let events = ok(&mut h, |plan| admitted(plan).prefill(1, 0, 6).decode(1, 6));
    assert_eq!(h.tokens_of(&events, 1), greedy_after(&h, &prompt, 2));
    let one = (1, false);
    assert_eq!(feeds(&h, 0), [(6, false), one, one, one, (1, true), (1, true)]);

    let mut h = fake(|_| {});
    let staged = h.prompt(&prompt);
    let events = ok(&mut h, |plan| plan.admit_with(replaying(4), 1, staged).prefill(1, 0, 6).decode(1, 4));
    assert_eq!(h.tokens_of(&events, 1).len(), 0);
    assert_eq!(feeds(&h, 0), [(6, false), one, one, one]);
    assert_eq!(h.committed(1), prompt, "the last tail token is held, not lost");
    assert_eq!(more(&mut h, 1, 1), greedy_after(&h, &prompt, 1));
    assert_eq!(feeds(&h, 4), [(1, true)]);
}

/// T-99: pacing the tail over ticks, in every way, yields the same tokens, drawn ones too (T-101).
#[test]
fn pace_of_a_replay_does_not_change_the_tokens() {
    let prompt = span(1, 11);
    let change = |admit: &mut LaneAdmit| {
        hot(500)(admit);
        admit.decode_replay = 4;
    };
    let expected = drawn_after(&fake(small), &prompt, 500, 6, HOT);
    for grants in [vec![10], vec![4, 6], vec![1; 10], vec![2, 1, 5, 2], vec![5, 5], vec![0, 3, 0, 7]] {
        let mut h = fake(small);
        let mut tokens = start(&mut h, 1, &prompt, grants[0], change);
        for &grant in &grants[1..] {
            tokens.extend(more(&mut h, 1, grant));
        }
        assert_eq!(tokens, expected, "grants {grants:?}");
    }
}

/// TS-70 (T-100, T-101): a yield during a replay undoes the pass that was queued.
#[test]
fn yield_during_a_replay_keeps_the_rest_of_the_tail() {
    let prompt = span(40, 50);
    let mut h = fake(|_| {});
    h.rings.set_yield(true);
    assert_eq!(start(&mut h, 1, &prompt, 6, replaying(4)).len(), 0);
    assert_eq!(h.committed(1), prompt[..7]);
    assert_eq!(feeds(&h, 0), [(6, false), (1, false)], "one tail token was fed");
    h.rings.set_yield(false);
    assert_eq!(more(&mut h, 1, 5), greedy_after(&h, &prompt, 2));
}

/// TS-35 (T-91): a yield ends the prefill between steps, and the rest can be planned again.
#[test]
fn yield_ends_a_prefill_after_one_step() {
    let prompt = span(0, 2048);
    let mut h = fake(steps_of_512);
    h.rings.set_yield(true);
    let staged = h.prompt(&prompt);
    let events = ok(&mut h, |plan| plan.admit(1, staged).prefill(1, 0, 2048).decode(1, 8));
    assert_eq!((events.tick_status, events.shed_chunks), (tick_status::SHED, 1));
    let entry = events.shed_entries[0];
    assert_eq!((entry.lane_tag, entry.kind, entry.bytes, entry.tokens), (1, shed_kind::PREFILL_CHUNK, 0, 1536));
    assert_eq!(h.committed(1), prompt[..512]);
    let emit = events.emit_for(1).expect("a lane that was cut short still has its emit");
    assert_eq!((emit.n_tokens, emit.finish), (0, finish::NONE));
    assert_eq!(h.rings_tokens(&emit.token_ref).len(), 0);
    h.rings.set_yield(false);
    let events = ok(&mut h, |plan| plan.prefill(1, 512, 1536).decode(1, 8));
    assert_eq!(events.tick_status, tick_status::OK);
    assert_eq!(h.tokens_of(&events, 1), greedy_after(&h, &prompt, 8));
}

/// T-91: every lane with work that did not run is reported with its remainder.
#[test]
fn yield_reports_each_lane_that_was_cut() {
    let mut h = fake(steps_of_512);
    h.rings.set_yield(true);
    let (one, two) = (h.prompt(&span(0, 700)), h.prompt(&span(0, 90)));
    let events = ok(&mut h, |plan| plan.admit(1, one).admit(2, two).prefill(1, 0, 700).prefill(2, 0, 90));
    let cut: Vec<_> = events.shed_entries.iter().map(|entry| (entry.lane_tag, entry.tokens)).collect();
    assert_eq!((events.shed_chunks, cut), (2, vec![(1, 188), (2, 90)]));
    assert_eq!((h.committed(1).len(), h.committed(2).len()), (512, 0));
}

/// TS-75 (T-85, T-88, T-89): lanes pack into steps, and the last token of a prompt is held back.
#[test]
fn prefills_pack_into_steps() {
    let mut h = fake(steps_of_512);
    let (one, two) = (h.prompt(&span(0, 300)), h.prompt(&span(0, 400)));
    ok(&mut h, |plan| plan.admit(1, one).admit(2, two).prefill(1, 0, 300).prefill(2, 0, 400));
    let fed: Vec<_> = h.engine.primitives().feeds().iter().map(|feed| (feed.step, feed.len, feed.wants_row)).collect();
    assert_eq!(fed, [(0, 299, false), (0, 212, false), (1, 187, false)]);
    assert_eq!((h.committed(1).len(), h.committed(2).len()), (300, 400));
    let events = ok(&mut h, |plan| plan.decode(1, 2).decode(2, 2));
    assert_eq!(h.tokens_of(&events, 1), greedy_after(&h, &span(0, 300), 2));
    assert_eq!(h.tokens_of(&events, 2), greedy_after(&h, &span(0, 400), 2));
}

/// T-85: without a step size all prefill work of a tick is one step.
#[test]
fn prefill_without_a_step_size_is_one_step() {
    let mut h = fake(|_| {});
    let (one, two) = (h.prompt(&span(0, 1500)), h.prompt(&span(0, 1200)));
    let events =
        ok(&mut h, |plan| plan.admit(1, one).admit(2, two).prefill(1, 0, 1500).prefill(2, 0, 1200).decode(2, 1));
    let fed: Vec<_> = h.engine.primitives().feeds().iter().map(|feed| (feed.step, feed.len, feed.wants_row)).collect();
    assert_eq!(fed, [(0, 1499, false), (0, 1200, true)]);
    assert_eq!(h.tokens_of(&events, 2), greedy_after(&h, &span(0, 1200), 1), "the prefill's row gave the token");
}

/// T-89: a held-back token that is the only one runs no step.
#[test]
fn prompt_of_one_token_is_held_back_whole() {
    let mut h = fake(|_| {});
    admit_whole(&mut h, 1, &[9], plain);
    assert_eq!((feed_count(&h), h.committed(1)), (0, vec![9]));
    assert_eq!(more(&mut h, 1, 2), greedy_after(&h, &[9], 2));
    assert_eq!(feeds(&h, 0), [(1, true), (1, true)]);
}

/// T-90: on a head-only runtime the first token costs a decode step, and is the same.
#[test]
fn head_only_runtime_holds_the_last_prompt_token_back() {
    let mut h = fake(|options| options.descriptor.truncate_partial = false);
    let prompt = span(0, 20);
    assert_eq!(start(&mut h, 1, &prompt, 3, plain), greedy_after(&h, &prompt, 3));
    assert_eq!(feeds(&h, 0), [(19, false), (1, true), (1, true), (1, true)]);
}

/// T-84, T-49: the budget is spent record by record, in plan order.
#[test]
fn budget_is_spent_in_plan_order() {
    let mut h = fake(|_| {});
    let (one, two, three) = (h.prompt(&span(0, 30)), h.prompt(&span(0, 30)), h.prompt(&span(0, 30)));
    let events = ok(&mut h, |plan| {
        let plan = plan.prefill_budget(40).admit(1, one).admit(2, two).admit(3, three);
        plan.prefill(2, 0, 30).prefill(1, 0, 30).prefill(3, 0, 30).decode(2, 1)
    });
    let cut: Vec<_> = events.shed_entries.iter().map(|entry| (entry.lane_tag, entry.tokens)).collect();
    assert_eq!((events.tick_status, events.shed_chunks, cut), (tick_status::SHED, 2, vec![(1, 20), (3, 30)]));
    assert_eq!([1, 2, 3].map(|lane| h.committed(lane).len()), [10, 31, 0]);
    assert_eq!(h.tokens_of(&events, 2), greedy_after(&h, &span(0, 30), 1));
}

/// TS-37 (T-86, T-94): wanted latency shortens the steps by the measured rate.
#[test]
fn wanted_latency_shortens_prefill_steps() {
    for latency in [false, true] {
        let mut h = fake(|options| {
            steps_of_512(options);
            options.step_delay = Duration::from_millis(500);
        });
        admit_whole(&mut h, 1, &span(0, 513), plain);
        h.rings.set_yield(true);
        h.rings.set_latency(latency);
        let staged = h.prompt(&span(1000, 2024));
        let events = ok(&mut h, |plan| plan.admit(2, staged).prefill(2, 0, 1024));
        let step = h.committed(2).len();
        assert_eq!(events.shed_entries[0].tokens as usize, 1024 - step);
        if latency {
            assert!(step > 0 && step < 512 && step.is_multiple_of(128), "a step of {step}");
        } else {
            assert_eq!(step, 512);
        }
    }
}

/// TS-38 (T-87, R-18, R-38): when a row-less step must be complete on return.
#[test]
fn slow_steps_and_wanted_latency_are_waited_out() {
    let waits = |h: &mut Fake, offset: u32| {
        ok(h, |plan| plan.prefill(1, offset, 512));
        h.engine.primitives().last_sync()
    };
    let engine = |delay_ms| {
        let mut h = fake(|options| {
            steps_of_512(options);
            options.step_delay = Duration::from_millis(delay_ms);
        });
        let staged = h.prompt(&span(0, 4000));
        ok(&mut h, |plan| plan.admit(1, staged));
        h
    };
    let mut slow = engine(600);
    assert_eq!(waits(&mut slow, 0), Some(true), "the rate is unknown");
    assert_eq!(waits(&mut slow, 512), Some(true), "a full step takes over half a second");
    let mut quick = engine(10);
    assert_eq!(waits(&mut quick, 0), Some(true), "the rate is unknown");
    assert_eq!(waits(&mut quick, 512), Some(false));
    quick.rings.set_latency(true);
    assert_eq!(waits(&mut quick, 1024), Some(true));
}

/// T-87: a runtime that never splits a prefill is told nothing.
#[test]
fn runtime_without_steps_is_not_told_to_wait() {
    let mut h = fake(|_| {});
    admit_whole(&mut h, 1, &span(0, 300), plain);
    assert_eq!(h.engine.primitives().last_sync(), None);
}

/// T-92: the lanes of a failing step fault, and later steps skip them.
#[test]
fn failing_prefill_step_takes_its_own_lanes() {
    let mut h = fake(steps_of_512);
    h.engine.primitives_mut().fail_next_step(ictus::runtime::RuntimeError::Fault(3));
    let (one, two, three) = (h.prompt(&span(0, 300)), h.prompt(&span(0, 400)), h.prompt(&span(5, 205)));
    let events = ok(&mut h, |plan| {
        let plan = plan.admit(1, one).admit(2, two).admit(3, three);
        plan.prefill(1, 0, 300).prefill(2, 0, 400).prefill(3, 0, 200).decode(3, 2)
    });
    // The first step held lane 1 and the front of lane 2; the rest of lane 2 is skipped.
    let faults: Vec<_> = events.faults.iter().map(|fault| (fault.lane_tag, fault.code)).collect();
    assert_eq!(faults, [(1, 3), (2, 3)]);
    assert_eq!(h.tokens_of(&events, 3), greedy_after(&h, &span(5, 205), 2));
    assert_eq!((h.engine.lane_committed(1), h.engine.lane_committed(2)), (None, None));
    assert_eq!(cells(&h), 201);
}
