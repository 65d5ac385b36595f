//! Partial emits, versions of the plan record, and what the events say beside tokens.

use core::ffi::c_void;

use ictus::record::constant::{exactness, tick_flag, tick_status};
use ictus::testing::PlanBuilder;

use super::host::*;

/// What a callback was told, call by call.
type Heard = Vec<(u64, Vec<u32>)>;

unsafe extern "C" fn listen(user: *mut c_void, lane_tag: u64, tokens: *const u32, n_tokens: u32) {
    // SAFETY: `user` is the `Heard` of the test, which nobody else touches during the tick.
    let heard = unsafe { &mut *user.cast::<Heard>() };
    // SAFETY: A-37: `n_tokens` ids are readable for the call.
    let tokens = unsafe { core::slice::from_raw_parts(tokens, n_tokens as usize) };
    heard.push((lane_tag, tokens.to_vec()));
}

fn listening(plan: PlanBuilder, heard: &mut Heard) -> PlanBuilder {
    plan.partial_emit(listen, core::ptr::from_mut(heard).cast())
}

/// TS-19 (T-107, A-37): one call per token, in order, with the tag.
#[test]
fn callback_hears_each_token_as_it_is_picked() {
    let mut h = fake(|_| {});
    let mut heard = Heard::new();
    let staged = h.prompt(&[1, 2, 3]);
    let plan = listening(h.plan(), &mut heard).flags(tick_flag::PARTIAL_EMITS);
    let events = h.tick_ok(plan.admit(7, staged).prefill(7, 0, 3).decode(7, 5));
    let tokens = h.tokens_of(&events, 7);
    assert_eq!(tokens.len(), 5);
    assert_eq!(heard, tokens.iter().map(|&token| (7, vec![token])).collect::<Heard>());
}

/// T-105: callbacks follow the rounds, in ascending tag within each; HOST lanes and replayed tokens are silent (T-101, T-106).
#[test]
fn callback_follows_the_rounds() {
    let mut h = fake(|_| {});
    let mut heard = Heard::new();
    let refs = [[1, 2, 3], [4, 5, 6], [7, 8, 9]].map(|prompt| h.prompt(&prompt));
    let plan = listening(h.plan(), &mut heard).flags(tick_flag::PARTIAL_EMITS);
    let plan = plan.admit(9, refs[0]).admit_with(|admit| admit.decode_replay = 2, 4, refs[1]);
    let plan = plan.admit_with(by_host, 2, refs[2]).prefill(9, 0, 3).prefill(4, 0, 1).prefill(2, 0, 3);
    h.tick_ok(plan.decode(9, 3).decode(4, 4).decode(2, 1));
    let (nine, four) = (greedy_after(&h, &[1, 2, 3], 3), greedy_after(&h, &[4, 5, 6], 2));
    let expected = [(4, four[0]), (9, nine[0]), (4, four[1]), (9, nine[1]), (9, nine[2])];
    assert_eq!(heard, expected.map(|(lane, token)| (lane, vec![token])));
}

/// TS-73: both the flag and the callback, or nothing.
#[test]
fn flag_or_callback_alone_calls_nobody() {
    for flags in [0, tick_flag::CAPTURE_OK, tick_flag::PARTIAL_EMITS] {
        let mut h = fake(|_| {});
        let mut heard = Heard::new();
        let staged = h.prompt(&[1, 2, 3]);
        let mut plan = h.plan().flags(flags).admit(1, staged).prefill(1, 0, 3).decode(1, 3);
        if flags & tick_flag::PARTIAL_EMITS == 0 {
            plan = listening(plan, &mut heard);
        }
        let events = h.tick_ok(plan);
        assert_eq!(h.tokens_of(&events, 1), greedy_after(&h, &[1, 2, 3], 3));
        assert!(heard.is_empty());
    }
}

/// a plan of 152 bytes ends before the callback, whatever lies behind it.
#[test]
fn short_plan_has_no_callback() {
    let mut h = fake(|_| {});
    let mut heard = Heard::new();
    let staged = h.prompt(&[1, 2, 3]);
    let plan = listening(h.plan(), &mut heard).flags(tick_flag::PARTIAL_EMITS);
    let (mut plan, memory) = plan.admit(1, staged).prefill(1, 0, 3).decode(1, 2).build();
    plan.struct_size = 152;
    let events = h.tick_record(&plan, &memory).expect("a short plan is legal");
    assert_eq!(h.tokens_of(&events, 1).len(), 2);
    assert!(heard.is_empty());
    let next = listening(PlanBuilder::new(9), &mut heard).flags(tick_flag::PARTIAL_EMITS).decode(1, 2);
    let (next, memory) = next.build();
    let longer = ictus::record::TickPlan { struct_size: 168 + 64, ..next };
    h.tick_record(&longer, &memory).expect("a longer plan is legal");
    assert_eq!(heard.len(), 2);
}

/// T-6.
#[test]
fn unknown_flag_bits_are_ignored() {
    let mut h = fake(|_| {});
    let staged = h.prompt(&[1, 2, 3]);
    let flags = !(tick_flag::DRAIN | tick_flag::PARTIAL_EMITS);
    let events = ok(&mut h, |plan| plan.flags(flags).admit(1, staged).prefill(1, 0, 3).decode(1, 2));
    assert_eq!(h.tokens_of(&events, 1), greedy_after(&h, &[1, 2, 3], 2));
}

/// T-82: what an admit without a strategy is granted.
#[test]
fn admit_without_a_strategy_is_granted_invariance() {
    let mut h = fake(|_| {});
    let staged = h.prompt(&[1, 2, 3]);
    let events = ok(&mut h, |plan| plan.admit(5, staged).admit_with(hot(1), 3, staged));
    let lanes: Vec<_> = events.admit_results.iter().map(|result| result.lane_tag).collect();
    assert_eq!(lanes, [5, 3], "in plan order");
    for result in &events.admit_results {
        assert_eq!((result.cert_id, result.granted_class, result.reject_code), (0, exactness::SEED_PATH_INVARIANT, 0));
    }
}

/// T-146: the times add up, and nothing else of the events depends on the clock.
#[test]
fn timings_cover_their_phases() {
    let mut h = fake(|options| options.step_delay = core::time::Duration::from_millis(20));
    let staged = h.prompt(&[1, 2, 3]);
    let events = ok(&mut h, |plan| plan.admit(1, staged).prefill(1, 0, 3).decode(1, 3));
    let timings = events.timings;
    assert!(timings.prefill_ns >= 20_000_000 && timings.decode_ns >= 40_000_000);
    assert!(timings.wall_ns >= timings.prefill_ns + timings.decode_ns);
    assert_eq!((timings.graph_hits, timings.graph_misses), (0, 0));
    let idle = ok(&mut h, |plan| plan);
    assert_eq!((idle.tick_status, idle.emits.len()), (tick_status::OK, 0));
    assert!(idle.timings.wall_ns < 20_000_000);
}

/// T-4, T-143: an empty plan is a tick; nothing is said twice.
#[test]
fn empty_plan_answers_empty_events() {
    let mut h = fake(|_| {});
    let staged = h.prompt(&span(0, 30));
    let events = ok(&mut h, |plan| plan.prefill_budget(10).admit(1, staged).prefill(1, 0, 30));
    assert_eq!(events.shed_entries.len(), 1);
    let events = ok(&mut h, |plan| plan);
    assert_eq!((events.tick_status, events.shed_chunks, events.evictions, events.bytes_evicted), (0, 0, 0, 0));
    assert!(events.shed_entries.is_empty() && events.admit_results.is_empty() && events.op_completions.is_empty());
}
