#![forbid(unsafe_code)]
//! The first scenarios of the tick contract, for any engine (TS-1 .. TS-15).
//!
//! Each function takes a maker of harnesses around fresh engines of one kind. It asks of the engine a vocabulary above 64
//! ids, a context of at least 256 tokens, pages that divide 64 tokens, and room for four lanes of 128 tokens.

use super::{EngineInspect, Events, Harness, StageRings};
use crate::record::constant::misc::ALL_SPACES;
use crate::record::constant::{admit_status, fault, finish, sampling, shed_kind, tick_flag, tick_status};
use crate::record::{LaneAdmit, Status};

/// Runs every scenario.
pub fn run_all<E: EngineInspect, R: StageRings>(mut make: impl FnMut() -> Harness<E, R>) {
    one_plan_admits_prefills_and_decodes(&mut make);
    fresh_engines_answer_alike(&mut make);
    plan_numbers_ascend(&mut make);
    refusals_name_their_reason_and_a_good_plan_still_runs(&mut make);
    recycled_prompt_is_refused(&mut make);
    draining_engine_decodes_but_admits_nothing(&mut make);
    replayed_tail_continues_where_it_was_cut(&mut make);
    host_lane_trades_rows_for_tokens(&mut make);
    host_lane_is_granted_one_token(&mut make);
    only_host_lanes_take_commits(&mut make);
    prefill_stops_at_the_budget(&mut make);
    prefill_goes_on_where_the_lane_stands(&mut make);
    faulted_lane_leaves_its_neighbour_alone(&mut make);
    lane_starts_from_a_published_prompt(&mut make);
    events_echo_the_plan_number(&mut make);
}

/// An admit that draws at a temperature.
fn sampled(admit: &mut LaneAdmit) {
    admit.sampling = sampling::GPU_GUMBEL;
    admit.params.temperature = 0.9;
    admit.params.top_p = 0.95;
    admit.params.top_k = 40;
}

/// An admit whose tokens the host picks.
fn host(admit: &mut LaneAdmit) {
    admit.sampling = sampling::HOST;
}

#[track_caller]
fn expect_ok(events: &Events) {
    assert_eq!(events.tick_status, tick_status::OK, "{events:?}");
}

/// TS-1 (T-89): one plan admits, prefills and decodes.
pub fn one_plan_admits_prefills_and_decodes<E: EngineInspect, R: StageRings>(make: &mut impl FnMut() -> Harness<E, R>) {
    let mut h = make();
    let prompt = h.prompt(&[1, 2, 3, 4]);
    let plan = h.plan().admit(7, prompt).prefill(7, 0, 4).decode(7, 3);
    let events = h.tick_ok(plan);
    expect_ok(&events);
    assert_eq!(
        events.admit_for(7).map(|result| (result.status, result.reject_code)),
        Some((admit_status::ADMITTED, 0))
    );
    let tokens = h.tokens_of(&events, 7);
    assert_eq!(tokens.len(), 3);
    assert_eq!(events.emit_for(7).map(|emit| emit.finish), Some(finish::NONE));
    let mut committed = vec![1, 2, 3, 4];
    committed.extend(tokens);
    assert_eq!(h.committed(7), committed);
}

/// TS-2 (T-119): two fresh engines answer the same plan with the same tokens.
pub fn fresh_engines_answer_alike<E: EngineInspect, R: StageRings>(make: &mut impl FnMut() -> Harness<E, R>) {
    for change in [|_: &mut LaneAdmit| {}, sampled] {
        let mut run = || {
            let mut h = make();
            let prompt = h.prompt(&[1, 2, 3, 4]);
            let plan = h.plan().admit_with(change, 7, prompt).prefill(7, 0, 4).decode(7, 6);
            let events = h.tick_ok(plan);
            h.tokens_of(&events, 7)
        };
        let first = run();
        assert_eq!(first.len(), 6);
        assert_eq!(first, run());
    }
}

/// TS-3 (T-18): a plan number is accepted once.
pub fn plan_numbers_ascend<E: EngineInspect, R: StageRings>(make: &mut impl FnMut() -> Harness<E, R>) {
    let mut h = make();
    let plan = h.plan();
    h.tick_ok(plan.clone());
    assert_eq!(h.refused(plan), Status::RejectIllegalCombination);
}

/// TS-4 (T-12 .. T-19, T-3): structural refusals, and a good plan after them.
pub fn refusals_name_their_reason_and_a_good_plan_still_runs<E: EngineInspect, R: StageRings>(
    make: &mut impl FnMut() -> Harness<E, R>,
) {
    let mut h = make();
    let prompt = h.prompt(&[1, 2, 3]);
    let plan = h.plan().admit(1, prompt).admit(1, prompt);
    assert_eq!(h.refused(plan), Status::RejectDuplicateLane);
    let plan = h.plan().admit(1, prompt).retire(1, false);
    assert_eq!(h.refused(plan), Status::RejectIllegalCombination);
    let plan = h.plan().commit(99, 1, 1);
    assert_eq!(h.refused(plan), Status::RejectUnknownLane);
    let plan = h.plan().decode(98, 1);
    assert_eq!(h.refused(plan), Status::RejectUnknownLane);
    let plan = h.plan().max_decode_lanes(1000);
    assert_eq!(h.refused(plan), Status::RejectBudget);
    let plan = h.plan().admit(1, prompt).prefill(1, 0, 3).decode(1, 1);
    let events = h.tick_ok(plan);
    expect_ok(&events);
    assert_eq!(h.tokens_of(&events, 1).len(), 1);
}

/// TS-5 (T-25): a prompt whose slot carries another generation.
pub fn recycled_prompt_is_refused<E: EngineInspect, R: StageRings>(make: &mut impl FnMut() -> Harness<E, R>) {
    let mut h = make();
    let mut prompt = h.prompt(&[1, 2, 3]);
    prompt.generation += 7;
    let plan = h.plan().admit(1, prompt).prefill(1, 0, 3);
    assert_eq!(h.refused(plan), Status::RejectBadRefGeneration);
    assert_eq!(h.engine.lane_committed(1), None);
}

/// TS-6 (T-20): draining refuses admits and nothing else.
pub fn draining_engine_decodes_but_admits_nothing<E: EngineInspect, R: StageRings>(
    make: &mut impl FnMut() -> Harness<E, R>,
) {
    let mut h = make();
    let prompt = h.prompt(&[1, 2, 3]);
    let plan = h.plan().flags(tick_flag::DRAIN).admit(1, prompt).prefill(1, 0, 3);
    assert_eq!(h.refused(plan), Status::RejectIllegalCombination);
    let plan = h.plan().admit(1, prompt).prefill(1, 0, 3);
    h.tick_ok(plan);
    let plan = h.plan().flags(tick_flag::DRAIN).decode(1, 1);
    let events = h.tick_ok(plan);
    assert_eq!(h.tokens_of(&events, 1).len(), 1);
}

/// TS-7 (T-29, T-48, T-98, T-99): a lane resumed with its newest tokens as tail goes on as if it had never stopped.
pub fn replayed_tail_continues_where_it_was_cut<E: EngineInspect, R: StageRings>(
    make: &mut impl FnMut() -> Harness<E, R>,
) {
    let start = [5, 6, 7, 8, 9, 10];
    let at_base = |base: u64, replay: u32| {
        move |admit: &mut LaneAdmit| {
            sampled(admit);
            admit.rng_counter_base = base;
            admit.decode_replay = replay;
        }
    };
    let mut h = make();
    let prompt = h.prompt(&start);
    let plan = h.plan().admit_with(at_base(1006, 0), 1, prompt).prefill(1, 0, 6).decode(1, 8);
    let events = h.tick_ok(plan);
    let whole = h.tokens_of(&events, 1);
    let resumed: Vec<u32> = start.iter().chain(&whole[..5]).copied().collect();

    let mut h = make();
    let prompt = h.prompt(&resumed);
    let plan = h.plan().admit_with(at_base(1011, 5), 1, prompt).prefill(1, 0, 7);
    assert_eq!(h.refused(plan), Status::RejectBounds);
    let plan = h.plan().admit_with(at_base(1011, 11), 1, prompt);
    assert_eq!(h.refused(plan), Status::RejectBounds);
    let plan = h.plan().admit_with(at_base(1011, 5), 1, prompt).prefill(1, 0, 6).decode(1, 8);
    let events = h.tick_ok(plan);
    assert_eq!(h.tokens_of(&events, 1), whole[5..]);

    let mut h = make();
    let prompt = h.prompt(&resumed);
    let plan = h.plan().admit_with(at_base(1011, 5), 1, prompt).prefill(1, 0, 6).decode(1, 3);
    let events = h.tick_ok(plan);
    assert_eq!(h.tokens_of(&events, 1).len(), 0);
    let plan = h.plan().decode(1, 2);
    let events = h.tick_ok(plan);
    assert_eq!(h.tokens_of(&events, 1).len(), 0);
    let plan = h.plan().decode(1, 3);
    let events = h.tick_ok(plan);
    assert_eq!(h.tokens_of(&events, 1), whole[5..]);
}

/// TS-8 (T-52, T-53, T-43, T-106): rows out, tokens in, each under its own nonce.
pub fn host_lane_trades_rows_for_tokens<E: EngineInspect, R: StageRings>(make: &mut impl FnMut() -> Harness<E, R>) {
    let mut h = make();
    let prompt = h.prompt(&[1, 2, 3]);
    let plan = h.plan().admit_with(host, 1, prompt).prefill(1, 0, 3).decode(1, 1);
    let events = h.tick_ok(plan);
    let emit = events.emits[0];
    let nonce = emit.logits_row.generation;
    assert_eq!(emit.n_tokens, 0);
    assert_ne!(nonce, 0);
    let mut row = Vec::new();
    assert_eq!(h.rings.read_logits_row(&emit.logits_row, &mut row), Ok(()));
    assert!(!row.is_empty());
    let plan = h.plan().decode(1, 1);
    assert_eq!(h.refused(plan), Status::RejectHostRules);
    let plan = h.plan().commit(1, 9, nonce + 1).decode(1, 1);
    assert_eq!(h.refused(plan), Status::RejectStaleNonce);
    let plan = h.plan().commit(1, 9, nonce).decode(1, 1);
    let events = h.tick_ok(plan);
    assert_eq!(h.committed(1), [1, 2, 3, 9]);
    let next = events.emits[0].logits_row.generation;
    assert!(next != 0 && next != nonce);
}

/// TS-9 (T-14).
pub fn host_lane_is_granted_one_token<E: EngineInspect, R: StageRings>(make: &mut impl FnMut() -> Harness<E, R>) {
    let mut h = make();
    let prompt = h.prompt(&[1, 2, 3]);
    let plan = h.plan().admit_with(host, 1, prompt).prefill(1, 0, 3).decode(1, 4);
    assert_eq!(h.refused(plan), Status::RejectHostRules);
}

/// TS-10 (T-41).
pub fn only_host_lanes_take_commits<E: EngineInspect, R: StageRings>(make: &mut impl FnMut() -> Harness<E, R>) {
    let mut h = make();
    let prompt = h.prompt(&[1, 2, 3]);
    let plan = h.plan().admit(1, prompt).prefill(1, 0, 3).decode(1, 1);
    h.tick_ok(plan);
    let plan = h.plan().commit(1, 5, 1);
    assert_eq!(h.refused(plan), Status::RejectIllegalCombination);
}

/// TS-11 (T-54, T-84): what the budget cuts is reported, and may not be decoded over.
pub fn prefill_stops_at_the_budget<E: EngineInspect, R: StageRings>(make: &mut impl FnMut() -> Harness<E, R>) {
    let mut h = make();
    let tokens: Vec<u32> = (0..100).map(|i| i % 50).collect();
    let prompt = h.prompt(&tokens);
    let plan = h.plan().prefill_budget(10).admit(1, prompt).prefill(1, 0, 100).decode(1, 1);
    assert_eq!(h.refused(plan), Status::RejectIllegalCombination);
    let plan = h.plan().prefill_budget(10).admit(1, prompt).prefill(1, 0, 100);
    let events = h.tick_ok(plan);
    assert_eq!((events.tick_status, events.shed_chunks), (tick_status::SHED, 1));
    let shed: Vec<_> = events.shed_entries.iter().map(|e| (e.lane_tag, e.kind, e.bytes, e.tokens)).collect();
    assert_eq!(shed, [(1, shed_kind::PREFILL_CHUNK, 0, 90)]);
    assert_eq!(h.committed(1), tokens[..10]);
    let plan = h.plan().prefill(1, 10, 90).decode(1, 1);
    let events = h.tick_ok(plan);
    expect_ok(&events);
    assert_eq!(h.tokens_of(&events, 1).len(), 1);
}

/// TS-12 (T-47).
pub fn prefill_goes_on_where_the_lane_stands<E: EngineInspect, R: StageRings>(
    make: &mut impl FnMut() -> Harness<E, R>,
) {
    let mut h = make();
    let prompt = h.prompt(&[1, 2, 3, 4]);
    let plan = h.plan().admit(1, prompt).prefill(1, 0, 2);
    h.tick_ok(plan);
    let plan = h.plan().prefill(1, 3, 1);
    assert_eq!(h.refused(plan), Status::RejectIllegalCombination);
    let plan = h.plan().prefill(1, 2, 2);
    expect_ok(&h.tick_ok(plan));
}

/// TS-13 (T-96, T-133, T-71): one lane's fault is one lane's.
pub fn faulted_lane_leaves_its_neighbour_alone<E: EngineInspect, R: StageRings>(
    make: &mut impl FnMut() -> Harness<E, R>,
) {
    let mut h = make();
    let (one, two) = (h.prompt(&[1, 2, 3]), h.prompt(&[4, 5, 6]));
    let plan = h.plan().admit(1, one).prefill(1, 0, 3).admit(2, two).prefill(2, 0, 3);
    h.tick_ok(plan);
    h.engine.inject_fault(1, fault::INTERNAL);
    let plan = h.plan().decode(1, 2).decode(2, 2);
    let events = h.tick_ok(plan);
    assert_eq!(events.tick_status, tick_status::LANE_ERRORS);
    let faults: Vec<_> = events.faults.iter().map(|f| (f.lane_tag, f.code, f.detail)).collect();
    assert_eq!(faults, [(1, fault::INTERNAL, 0)]);
    assert!(events.emit_for(1).is_none());
    assert_eq!(h.tokens_of(&events, 2).len(), 2);
    assert_eq!(h.engine.lane_committed(1), None);
    let plan = h.plan().decode(1, 1);
    assert_eq!(h.refused(plan), Status::RejectUnknownLane);
    let plan = h.plan().retire(1, true).decode(2, 1);
    let events = h.tick_ok(plan);
    expect_ok(&events);
    assert_eq!(h.tokens_of(&events, 2).len(), 1);
    let plan = h.plan().retire(1, false);
    assert_eq!(h.refused(plan), Status::RejectUnknownLane);
}

/// TS-14 (T-34, T-77, S-40): what one lane leaves another starts from, once per lease, with the tokens of a cold lane.
pub fn lane_starts_from_a_published_prompt<E: EngineInspect, R: StageRings>(make: &mut impl FnMut() -> Harness<E, R>) {
    let prompt: Vec<u32> = (0..65).map(|token| token % 60).collect();
    let mut cold = make();
    let staged = cold.prompt(&prompt);
    let plan = cold.plan().admit(3, staged).prefill(3, 0, 65).decode(3, 1);
    let events = cold.tick_ok(plan);
    let expected = cold.tokens_of(&events, 3);

    let mut h = make();
    let staged = h.prompt(&prompt[..64]);
    let plan = h.plan().admit(1, staged).prefill(1, 0, 64);
    h.tick_ok(plan);
    let plan = h.plan().retire(1, true);
    h.tick_ok(plan);
    let matched = h.engine.space_match(ALL_SPACES, &prompt, &[]).map(|result| result.spaces.count);
    assert_eq!(matched, Ok(1), "one space");
    let lengths: Vec<u64> = h.engine.match_candidates().iter().map(|candidate| candidate.prefix_len).collect();
    assert_eq!(lengths, [64]);
    let lease = h.engine.seed_acquire(&prompt, 64, 0);
    let Ok(lease) = lease else { panic!("the seed is offered and not served: {lease:?}") };
    let staged = h.prompt(&prompt);
    let plan = h.plan().admit_with(|admit| admit.seed_handle = lease, 2, staged).prefill(2, 64, 1).decode(2, 1);
    let events = h.tick_ok(plan);
    assert_eq!(events.admit_for(2).map(|result| result.status), Some(admit_status::ADMITTED));
    assert_eq!(h.tokens_of(&events, 2), expected);
    assert_eq!(h.committed(2).len(), 66);
    let plan = h.plan().admit_with(|admit| admit.seed_handle = lease, 4, staged);
    assert_eq!(h.refused(plan), Status::RejectStaleSeed, "the lease was consumed");
}

/// TS-15 (T-147).
pub fn events_echo_the_plan_number<E: EngineInspect, R: StageRings>(make: &mut impl FnMut() -> Harness<E, R>) {
    let mut h = make();
    for number in [1, 2] {
        let plan = h.plan();
        assert_eq!(h.tick_ok(plan).plan_seq, number);
    }
}
