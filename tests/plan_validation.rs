//! Every refusal of a plan (T-10 .. T-67): its status, that it leaves no trace, and that the repaired plan then runs.
//!
//! Each case starts from the same engine: lanes in every state that a rule asks about. The bad plan is tried twice; the digest of
//! the engine, the rings and the events of the tick before must not change (T-3). Then the good plan runs under the same number
//! (T-18).

use std::collections::BTreeSet;

use ictus::engine::{Engine, PlanBuilder};
use ictus::executor::Executor;
use ictus::record::constant::{ring_id, sampling, tick_flag};
use ictus::record::view::Unbounded;
use ictus::record::{Array, LaneAdmit, LaneRetire, RecordArena, Status, TickPlan, TokenRef};
use ictus::runtime::{FakeRuntime, Runtime};
use ictus::testing::{EngineInspect, Harness, StageRings, digest_of_debug};

/// Lanes of the prepared engine.
const GREEDY: u64 = 1;
/// A HOST lane with a row pending.
const PENDING: u64 = 2;
/// A HOST lane that was prefilled and has no row.
const QUIET: u64 = 3;
/// Prefilled to 4 of 10 tokens.
const PARTIAL: u64 = 4;
/// Faulted and not yet retired.
const FAULTED: u64 = 5;
/// Ended by the context.
const FINISHED: u64 = 6;
/// Never admitted.
const NOBODY: u64 = 99;

const VOCAB: u32 = 64;
const CONTEXT: u64 = 24;
/// What all lanes together hold, and a little more.
const CELLS: u64 = 80;
const SLOTS: u32 = 6;

type Fake = Harness<Executor<FakeRuntime>>;

/// References that the cases speak of.
struct Stage {
    h: Fake,
    prompt: TokenRef,
    nonce: u64,
    bias: u32,
}

fn by_host(admit: &mut LaneAdmit) {
    admit.sampling = sampling::HOST;
}

fn stage() -> Stage {
    let fake = FakeRuntime::with(|options| {
        options.descriptor.vocab_size = VOCAB;
        options.descriptor.max_seq_len = CONTEXT;
        options.descriptor.cells_total = CELLS;
        options.descriptor.max_seqs = SLOTS;
        options.end_ids = vec![63];
    });
    let mut h = Harness::with_engine(Executor::new(fake));
    let refs = [&[1, 2, 3][..], &[4, 5], &[6, 7], &[8; 10], &[9, 10], &[11; 23]].map(|tokens| h.prompt(tokens));
    let plan = h.plan().admit(GREEDY, refs[0]).admit_with(by_host, PENDING, refs[1]);
    let plan = plan.admit_with(by_host, QUIET, refs[2]).admit(PARTIAL, refs[3]);
    let plan = plan.admit(FAULTED, refs[4]).admit(FINISHED, refs[5]);
    let plan = plan.prefill(GREEDY, 0, 3).prefill(PENDING, 0, 2).prefill(QUIET, 0, 2);
    let plan = plan.prefill(PARTIAL, 0, 4).prefill(FAULTED, 0, 2).prefill(FINISHED, 0, 23);
    let events = h.tick_ok(plan.decode(GREEDY, 2).decode(PENDING, 1).decode(FINISHED, 5));
    let nonce = events.emit_for(PENDING).map_or(0, |emit| emit.logits_row.generation);
    assert_ne!(nonce, 0);
    h.engine.inject_fault(FAULTED, 5);
    let plan = h.plan().decode(FAULTED, 1).decode(GREEDY, 2);
    h.tick_ok(plan);
    let prompt = h.prompt(&[20, 21, 22, 23]);
    let bias = h.engine.logit_bias_create(&[3], &[1.0]).expect("bias is offered");
    Stage { h, prompt, nonce, bias }
}

type Build = fn(&Stage, PlanBuilder) -> PlanBuilder;

/// A refusal: the rule, the status, the bad plan, and the good one.
struct Case {
    rule: &'static str,
    status: Status,
    bad: Build,
    good: Build,
}

macro_rules! cases {
    ($($rule:literal $status:ident { $bad:expr } { $good:expr })*) => {
        &[$(Case { rule: $rule, status: Status::$status, bad: $bad, good: $good }),*]
    };
}

/// Admits tag 50 with a change.
fn admit(s: &Stage, plan: PlanBuilder, change: impl FnOnce(&mut LaneAdmit)) -> PlanBuilder {
    plan.retire(FINISHED, false).admit_with(change, 50, s.prompt)
}

const CASES: &[Case] = cases! {
    // Structure.
    "T-12 admits" RejectDuplicateLane
        { |s, p| p.retire(GREEDY, false).retire(PARTIAL, false).admit(50, s.prompt).admit(50, s.prompt) }
        { |s, p| p.retire(GREEDY, false).retire(PARTIAL, false).admit(50, s.prompt).admit(51, s.prompt) }
    "T-12 commits" RejectDuplicateLane
        { |s, p| p.commit(PENDING, 1, s.nonce).commit(PENDING, 1, s.nonce) }
        { |s, p| p.commit(PENDING, 1, s.nonce) }
    "T-12 prefills" RejectDuplicateLane
        { |_, p| p.prefill(PARTIAL, 4, 1).prefill(PARTIAL, 5, 1) }
        { |_, p| p.prefill(PARTIAL, 4, 2) }
    "T-12 decodes" RejectDuplicateLane
        { |_, p| p.decode(GREEDY, 1).decode(GREEDY, 1) }
        { |_, p| p.decode(GREEDY, 2) }
    "T-12 retires" RejectDuplicateLane
        { |_, p| p.retire(GREEDY, false).retire(GREEDY, true) }
        { |_, p| p.retire(GREEDY, true) }
    "T-13 admit and retire" RejectIllegalCombination
        { |s, p| p.admit(FAULTED, s.prompt).retire(FAULTED, false) }
        { |s, p| p.admit(FAULTED, s.prompt).retire(FINISHED, false) }
    "T-13 admit and commit" RejectIllegalCombination
        { |s, p| p.admit(50, s.prompt).commit(50, 1, s.nonce) }
        { |s, p| p.retire(GREEDY, false).admit(50, s.prompt).commit(PENDING, 1, s.nonce) }
    "T-13 commit and retire" RejectIllegalCombination
        { |s, p| p.commit(PENDING, 1, s.nonce).retire(PENDING, false) }
        { |s, p| p.commit(PENDING, 1, s.nonce).retire(QUIET, false) }
    "T-13 decode and retire" RejectIllegalCombination
        { |_, p| p.decode(GREEDY, 1).retire(GREEDY, false) }
        { |_, p| p.decode(GREEDY, 1).retire(PENDING, false) }
    "T-13 prefill and retire" RejectIllegalCombination
        { |_, p| p.prefill(PARTIAL, 4, 1).retire(PARTIAL, false) }
        { |_, p| p.prefill(PARTIAL, 4, 1).retire(PENDING, false) }
    "T-14" RejectHostRules
        { |s, p| admit(s, p, by_host).prefill(50, 0, 4).decode(50, 2) }
        { |s, p| admit(s, p, by_host).prefill(50, 0, 4).decode(50, 1) }
    "T-14 none" RejectHostRules
        { |s, p| admit(s, p, by_host).prefill(50, 0, 4).decode(50, 0) }
        { |s, p| admit(s, p, by_host).prefill(50, 0, 4) }
    "T-15" RejectBudget
        { |_, p| p.max_decode_lanes(1).decode(GREEDY, 1).decode(QUIET, 1) }
        { |_, p| p.max_decode_lanes(2).decode(GREEDY, 1).decode(QUIET, 1) }
    // The plan.
    "T-19" RejectBudget
        { |_, p| p.max_decode_lanes(9) }
        { |_, p| p.max_decode_lanes(8) }
    "T-20" RejectIllegalCombination
        { |s, p| admit(s, p, |_| {}).flags(tick_flag::DRAIN) }
        { |s, p| p.flags(tick_flag::DRAIN).decode(GREEDY, 1).commit(PENDING, 1, s.nonce).prefill(PARTIAL, 4, 1).retire(QUIET, false) }
    // Admits.
    "T-24" RejectIllegalCombination
        { |s, p| p.retire(FINISHED, false).admit(GREEDY, s.prompt) }
        { |s, p| p.retire(FINISHED, false).admit(FAULTED, s.prompt) }
    "T-25 generation" RejectBadRefGeneration
        { |s, p| admit(s, p, |a| a.prompt.generation += 1) }
        { |s, p| admit(s, p, |_| {}) }
    "T-25 never written" RejectBadRefGeneration
        { |s, p| admit(s, p, |a| (a.prompt.index, a.prompt.generation) = (60, 0)) }
        { |s, p| admit(s, p, |_| {}) }
    "T-25 ring" RejectBounds
        { |s, p| admit(s, p, |a| a.prompt.ring_id = 9) }
        { |s, p| admit(s, p, |_| {}) }
    "T-25 logits ring" RejectBounds
        { |s, p| admit(s, p, |a| a.prompt.ring_id = ring_id::LOGITS) }
        { |s, p| admit(s, p, |_| {}) }
    "T-25 slot" RejectBounds
        { |s, p| admit(s, p, |a| a.prompt.index = 64) }
        { |s, p| admit(s, p, |_| {}) }
    "T-25 count" RejectBounds
        { |s, p| admit(s, p, |a| a.prompt.count += 1) }
        { |s, p| admit(s, p, |_| {}) }
    "T-28" RejectIllegalCombination
        { |s, p| admit(s, p, |a| a.sampling = 3) }
        { |s, p| admit(s, p, |a| a.sampling = 2) }
    "T-29" RejectBounds
        { |s, p| admit(s, p, |a| a.decode_replay = 4) }
        { |s, p| admit(s, p, |a| a.decode_replay = 3).prefill(50, 0, 1) }
    "T-30" RejectIllegalCombination
        { |s, p| admit(s, p, |a| a.strategy_slot = 9) }
        { |s, p| admit(s, p, |a| a.strategy_slot = 0) }
    "T-31" RejectIllegalCombination
        { |s, p| admit(s, p, |a| a.grammar_handle = 1) }
        { |s, p| admit(s, p, |_| {}) }
    "T-32" RejectIllegalCombination
        { |s, p| admit(s, p, |a| a.grammar_replay = 1) }
        { |s, p| admit(s, p, |_| {}) }
    "T-33" RejectIllegalCombination
        { |s, p| admit(s, p, |a| a.logit_bias_handle = s.bias + 1) }
        { |s, p| admit(s, p, |a| a.logit_bias_handle = s.bias) }
    "T-34" RejectStaleSeed
        { |s, p| admit(s, p, |a| a.seed_handle = 1) }
        { |s, p| admit(s, p, |_| {}) }
    // Commits.
    "T-40" RejectUnknownLane
        { |s, p| p.commit(NOBODY, 1, s.nonce) }
        { |s, p| p.commit(PENDING, 1, s.nonce) }
    "T-40 faulted" RejectUnknownLane
        { |s, p| p.commit(FAULTED, 1, s.nonce) }
        { |s, p| p.commit(PENDING, 1, s.nonce).retire(FAULTED, false) }
    "T-41" RejectIllegalCombination
        { |s, p| p.commit(GREEDY, 1, s.nonce) }
        { |s, p| p.commit(PENDING, 1, s.nonce) }
    "T-42" RejectHostRules
        { |_, p| p.commit(QUIET, 1, 1) }
        { |_, p| p.decode(QUIET, 1) }
    "T-43" RejectStaleNonce
        { |s, p| p.commit(PENDING, 1, s.nonce + 1) }
        { |s, p| p.commit(PENDING, 1, s.nonce) }
    "T-43 zero" RejectStaleNonce
        { |_, p| p.commit(PENDING, 1, 0) }
        { |s, p| p.commit(PENDING, 1, s.nonce) }
    "T-44" RejectBounds
        { |s, p| p.commit(PENDING, VOCAB, s.nonce) }
        { |s, p| p.commit(PENDING, VOCAB - 1, s.nonce) }
    // Prefills.
    "T-46" RejectUnknownLane
        { |_, p| p.prefill(NOBODY, 0, 1) }
        { |_, p| p.prefill(PARTIAL, 4, 1) }
    "T-46 faulted" RejectUnknownLane
        { |_, p| p.prefill(FAULTED, 2, 0) }
        { |_, p| p.prefill(PARTIAL, 4, 0) }
    "T-47" RejectIllegalCombination
        { |_, p| p.prefill(PARTIAL, 5, 1) }
        { |_, p| p.prefill(PARTIAL, 4, 1) }
    "T-47 again" RejectIllegalCombination
        { |_, p| p.prefill(PARTIAL, 0, 4) }
        { |_, p| p.prefill(PARTIAL, 4, 6) }
    "T-48" RejectBounds
        { |_, p| p.prefill(PARTIAL, 4, 7) }
        { |_, p| p.prefill(PARTIAL, 4, 6) }
    "T-48 wraps" RejectBounds
        { |_, p| p.prefill(PARTIAL, 4, u32::MAX) }
        { |_, p| p.prefill(PARTIAL, 4, 6) }
    "T-48 replay" RejectBounds
        { |s, p| admit(s, p, |a| a.decode_replay = 2).prefill(50, 0, 3) }
        { |s, p| admit(s, p, |a| a.decode_replay = 2).prefill(50, 0, 2) }
    // Decodes.
    "T-50" RejectUnknownLane
        { |_, p| p.decode(NOBODY, 1) }
        { |_, p| p.decode(GREEDY, 1) }
    "T-50 faulted" RejectUnknownLane
        { |_, p| p.decode(FAULTED, 1) }
        { |_, p| p.decode(GREEDY, 1) }
    "T-51" RejectIllegalCombination
        { |_, p| p.decode(FINISHED, 1) }
        { |_, p| p.decode(GREEDY, 1) }
    "T-51 none" RejectIllegalCombination
        { |_, p| p.decode(FINISHED, 0) }
        { |_, p| p.decode(GREEDY, 0) }
    "T-52" RejectHostRules
        { |_, p| p.decode(QUIET, 2) }
        { |_, p| p.decode(QUIET, 1) }
    "T-52 none" RejectHostRules
        { |_, p| p.decode(QUIET, 0) }
        { |_, p| p.decode(QUIET, 1) }
    "T-53" RejectHostRules
        { |_, p| p.decode(PENDING, 1) }
        { |s, p| p.decode(PENDING, 1).commit(PENDING, 1, s.nonce) }
    "T-54" RejectIllegalCombination
        { |_, p| p.decode(PARTIAL, 1) }
        { |_, p| p.decode(PARTIAL, 1).prefill(PARTIAL, 4, 6) }
    "T-54 short" RejectIllegalCombination
        { |_, p| p.decode(PARTIAL, 1).prefill(PARTIAL, 4, 5) }
        { |_, p| p.prefill(PARTIAL, 4, 5) }
    "T-54 cut by the budget" RejectIllegalCombination
        { |_, p| p.decode(PARTIAL, 1).prefill(PARTIAL, 4, 6).prefill_budget(5) }
        { |_, p| p.decode(PARTIAL, 1).prefill(PARTIAL, 4, 6).prefill_budget(6) }
    "T-54 cut by another's chunk" RejectIllegalCombination
        { |s, p| admit(s, p, |_| {}).prefill(50, 0, 4).prefill(PARTIAL, 4, 6).decode(PARTIAL, 1).prefill_budget(9) }
        { |s, p| admit(s, p, |_| {}).prefill(PARTIAL, 4, 6).prefill(50, 0, 4).decode(PARTIAL, 1).prefill_budget(9) }
    "T-54 not prefilled" RejectIllegalCombination
        { |s, p| admit(s, p, |_| {}).decode(50, 1) }
        { |s, p| admit(s, p, |_| {}).decode(50, 1).prefill(50, 0, 4) }
    // Retires.
    "T-58" RejectUnknownLane
        { |_, p| p.retire(NOBODY, false) }
        { |_, p| p.retire(FAULTED, false) }
    // Slots.
    "T-67" NeedsReplan
        { |s, p| p.admit(50, s.prompt).admit(51, s.prompt).prefill(50, 0, 4) }
        { |s, p| p.retire(GREEDY, false).retire(QUIET, false).admit(50, s.prompt).admit(51, s.prompt).prefill(50, 0, 4) }
};

fn check(case: &Case) {
    let mut s = stage();
    let number = s.h.next_seq;
    let runtime = digest_of_debug(s.h.engine.primitives());
    let plan = (case.bad)(&s, PlanBuilder::new(number));
    assert_eq!(s.h.refused(plan), case.status, "{}", case.rule);
    assert_eq!(digest_of_debug(s.h.engine.primitives()), runtime, "{}: the runtime was asked, not told", case.rule);
    let plan = (case.good)(&s, PlanBuilder::new(number));
    match s.h.tick(plan) {
        Ok(events) => assert!(events.faults.is_empty(), "{}: {events:?}", case.rule),
        Err(status) => panic!("{}: the repaired plan is refused: {status}", case.rule),
    }
}

#[test]
fn refused_plans_leave_no_trace_and_their_repairs_run() {
    for case in CASES {
        check(case);
    }
}

/// T-26, T-27, T-36: prompts that a case cannot take from the shared stage.
#[test]
fn prompts_that_cannot_be_run_are_refused() {
    let long = [1; CONTEXT as usize + 1];
    let prompts: [(&[u32], Status); 4] = [
        (&[], Status::RejectIllegalCombination),
        (&[1, VOCAB, 2], Status::RejectBounds),
        (&[u32::MAX], Status::RejectBounds),
        (&long, Status::RejectBudget),
    ];
    for (tokens, expected) in prompts {
        let mut s = stage();
        let staged = s.h.prompt(tokens);
        let plan = s.h.plan().retire(FINISHED, false).admit(50, staged);
        assert_eq!(s.h.refused(plan), expected, "{tokens:?}");
        assert_eq!(s.h.engine.lane_committed(50), None);
    }
    let mut s = stage();
    let staged = s.h.prompt(&long[1..]);
    let plan = s.h.plan().retire(FINISHED, false).admit(50, staged).prefill(50, 0, CONTEXT as u32);
    s.h.tick_ok(plan);
}

/// T-18.
#[test]
fn plan_numbers_only_ascend() {
    let mut s = stage();
    let last = s.h.next_seq - 1;
    for number in [0, 1, last] {
        assert_eq!(s.h.refused(PlanBuilder::new(number).decode(GREEDY, 1)), Status::RejectIllegalCombination);
    }
    s.h.tick_ok(PlanBuilder::new(last + 1000));
    assert_eq!(s.h.refused(PlanBuilder::new(last + 999)), Status::RejectIllegalCombination);
    s.h.tick_ok(PlanBuilder::new(u64::MAX));
    assert_eq!(s.h.refused(PlanBuilder::new(u64::MAX)), Status::RejectIllegalCombination);
    // T-147: the first plan may carry any number, 0 too.
    for number in [0, 7, u64::MAX] {
        let mut h = Harness::with_engine(Executor::new(FakeRuntime::default()));
        assert_eq!(h.tick_ok(PlanBuilder::new(number)).plan_seq, number);
    }
}

/// T-66: the pool, filled to its last cell.
#[test]
fn demand_past_the_pool_needs_replanning() {
    let mut s = stage();
    // The lanes hold 6 + 2 + 1 + 4 + 23 cells, one input pending where a token was made or held back.
    let held = s.h.engine.primitives().mem_counters().cells_used;
    let free = CELLS - held;
    assert_eq!(held, 36);
    let first = s.h.prompt(&[1; 24]);
    let second = s.h.prompt(&[2; 20]);
    let plan = PlanBuilder::new(s.h.next_seq).retire(QUIET, false).admit(50, first).prefill(50, 0, 24);
    s.h.next_seq += 1;
    s.h.tick_ok(plan);
    let left = free + 1 - 23;
    assert_eq!(left, 22);
    let plan = |grant| {
        move |p: PlanBuilder| {
            p.retire(PENDING, false).admit(51, second).prefill(51, 0, 20).decode(51, 4).decode(GREEDY, grant)
        }
    };
    // 20 + 4 for the new lane, one for a lane that leaves two behind.
    let build = plan(1);
    let bad = build(s.h.plan());
    assert_eq!(s.h.refused(bad), Status::NeedsReplan);
    let build = plan(0);
    let good = build(s.h.plan());
    let events = s.h.tick_ok(good);
    assert_eq!(s.h.tokens_of(&events, 51).len(), 4);
}

/// T-10.
#[test]
fn struct_size_decides_first() {
    let mut s = stage();
    for size in [0, 8, 151] {
        let (mut plan, memory) = PlanBuilder::new(0).decode(GREEDY, 1).decode(GREEDY, 1).build();
        plan.struct_size = size;
        assert_eq!(s.h.refused_record(&plan, &memory), Status::RejectBadStruct);
    }
    for size in [152, 168, u64::MAX] {
        let (mut plan, memory) = PlanBuilder::new(s.h.next_seq).decode(GREEDY, 1).build();
        s.h.next_seq += 1;
        plan.struct_size = size;
        s.h.tick_record(&plan, &memory).expect("the size is legal");
    }
}

/// An array of a plan: its name, where it is, and its least stride.
type PlanArray = (&'static str, fn(&mut TickPlan) -> &mut Array, u32);

/// The arrays of a plan, in the order in which they are decoded.
fn arrays() -> [PlanArray; 6] {
    [
        ("admits", |plan| &mut plan.admits, 136),
        ("commits", |plan| &mut plan.commits, 24),
        ("prefills", |plan| &mut plan.prefills, 16),
        ("decodes", |plan| &mut plan.decodes, 16),
        ("retires", |plan| &mut plan.retires, 16),
        ("victims", |plan| &mut plan.shed_policy.victim_lanes, 8),
    ]
}

/// T-11 (A-10 .. ): what is wrong with an array, for each of the six.
#[test]
fn arrays_are_checked_before_they_are_read() {
    let mut arena = RecordArena::new();
    let words = arena.push_records(&[0u64; 64]);
    let at = words.data;
    let off = at.wrapping_byte_add(4);
    let outside = [0u64; 64];
    let outside = Array::over(&outside).data;
    for (name, array, least) in arrays() {
        let bad = [
            (Array { data: core::ptr::null(), count: 0, elem_size: least - 1 }, Status::RejectBadStride),
            (Array { data: at, count: 1, elem_size: least - 1 }, Status::RejectBadStride),
            (Array { data: at, count: 1, elem_size: 0 }, Status::RejectBadStride),
            (Array { data: off, count: 0, elem_size: 0 }, Status::RejectBadAlignment),
            (Array { data: off, count: 1, elem_size: least }, Status::RejectBadAlignment),
            (Array { data: core::ptr::null(), count: 1, elem_size: least }, Status::RejectBounds),
            (Array { data: outside, count: 1, elem_size: least - 1 }, Status::RejectBounds),
            (Array { data: at, count: u32::MAX, elem_size: u32::MAX }, Status::RejectBounds),
            (Array { data: at, count: 1, elem_size: 520 }, Status::RejectBounds),
            (Array { data: outside, count: 1, elem_size: least }, Status::RejectBounds),
            (Array { data: usize::MAX.wrapping_sub(7) as *const _, count: 1, elem_size: least }, Status::RejectBounds),
        ];
        for (broken, expected) in bad {
            let mut s = stage();
            let (mut plan, _) = PlanBuilder::new(s.h.next_seq).build();
            *array(&mut plan) = broken;
            assert_eq!(s.h.refused_record(&plan, &arena), expected, "{name}: {broken:?}");
            *array(&mut plan) = Array { data: at, count: 0, elem_size: least };
            s.h.tick_record(&plan, &arena).expect("an empty array is legal wherever it points");
        }
    }
}

/// the memory of a C caller has no bounds to look at first.
#[test]
fn arrays_of_a_c_caller_are_checked_by_shape() {
    // SAFETY: every array of these plans is empty or refused before it is read.
    let memory = unsafe { Unbounded::new() };
    for (name, array, least) in arrays() {
        let bad = [
            (Array { data: core::ptr::null(), count: 1, elem_size: least - 1 }, Status::RejectBadStride),
            (Array { data: core::ptr::null(), count: 1, elem_size: least }, Status::RejectBadAlignment),
            (Array { data: 12 as *const _, count: 0, elem_size: least }, Status::RejectBadAlignment),
            (Array { data: 8 as *const _, count: u32::MAX, elem_size: u32::MAX }, Status::RejectBounds),
            (Array { data: usize::MAX.wrapping_sub(7) as *const _, count: 1, elem_size: least }, Status::RejectBounds),
        ];
        for (broken, expected) in bad {
            let mut s = stage();
            let (mut plan, _) = PlanBuilder::new(s.h.next_seq).build();
            *array(&mut plan) = broken;
            assert_eq!(s.h.refused_record(&plan, &memory), expected, "{name}: {broken:?}");
            *array(&mut plan) = Array { data: 8 as *const _, count: 0, elem_size: least };
            s.h.tick_record(&plan, &memory).expect("an empty array is legal wherever it points");
        }
    }
}

/// T-11: the arrays are decoded in their order, before any other check.
#[test]
fn first_broken_array_decides() {
    for (first, (name, array, _)) in arrays().into_iter().enumerate() {
        let mut s = stage();
        // Everything after it is broken in another way, and the decodes are duplicates.
        let (mut plan, memory) = PlanBuilder::new(0).decode(GREEDY, 1).decode(GREEDY, 1).build();
        for (_, later, least) in arrays().into_iter().skip(first) {
            *later(&mut plan) = Array { data: core::ptr::null(), count: 1, elem_size: least };
        }
        *array(&mut plan) = Array { data: core::ptr::null(), count: 0, elem_size: 4 };
        assert_eq!(s.h.refused_record(&plan, &memory), Status::RejectBadStride, "{name}");
    }
}

/// larger and shorter records than ours are read by what both know.
#[test]
fn records_of_other_versions_are_read() {
    let mut s = stage();
    let (plan, memory) = s.h.plan().retire(FINISHED, false).admit_with(|a| a.decode_replay = 9, 50, s.prompt).build();
    let mut arena = RecordArena::new();
    // An admit of 136 bytes: what lies behind it is not part of it, and decode_replay counts as 0.
    let admit = plan.admits.elements::<LaneAdmit>(&memory).expect("it was just built").next().expect("one");
    let short = Array { elem_size: 136, ..arena.push_records(&[admit]) };
    let wide: [LaneRetire; 2] = [LaneRetire { lane_tag: FINISHED, publish_to_cache: 0, _pad0: [0; 7] }; 2];
    let wide = Array { count: 1, elem_size: 32, ..arena.push_records(&wide) };
    let plan = TickPlan { admits: short, retires: wide, ..plan };
    s.h.tick_record(&plan, &arena).expect("both are legal");
    assert_eq!(s.h.engine.lane_committed(FINISHED), None);
    let plan = s.h.plan().prefill(50, 0, 4).decode(50, 1);
    s.h.tick_ok(plan);
}

/// T-2: the order of the checks is observable. Each plan breaks two rules; the earlier one decides.
#[test]
fn earlier_rule_decides() {
    let plans: &[(&str, Status, Build)] = &[
        ("T-12 before T-13", Status::RejectDuplicateLane, |_, p| p.retire(1, false).retire(1, false).decode(1, 1)),
        ("T-12: arrays in order", Status::RejectDuplicateLane, |s, p| {
            p.admit(1, s.prompt).retire(1, false).decode(7, 1).decode(7, 1)
        }),
        ("T-13 before T-14", Status::RejectIllegalCombination, |s, p| {
            p.admit_with(by_host, 50, s.prompt).decode(50, 3).retire(50, false)
        }),
        ("T-14 before T-15", Status::RejectHostRules, |s, p| {
            p.admit_with(by_host, 50, s.prompt).decode(50, 3).decode(GREEDY, 1).max_decode_lanes(1)
        }),
        ("T-15 before T-19", Status::RejectBudget, |_, p| p.decode(NOBODY, 1).max_decode_lanes(0)),
        ("T-19 before T-20", Status::RejectBudget, |s, p| {
            p.admit(50, s.prompt).flags(tick_flag::DRAIN).max_decode_lanes(100)
        }),
        ("T-20 before T-24", Status::RejectIllegalCombination, |s, p| {
            p.admit_with(|a| a.prompt.ring_id = 9, 50, s.prompt).flags(tick_flag::DRAIN)
        }),
        ("T-24 before T-25", Status::RejectIllegalCombination, |s, p| {
            p.admit_with(|a| a.prompt.ring_id = 9, GREEDY, s.prompt)
        }),
        ("T-25 before T-28", Status::RejectBounds, |s, p| {
            p.admit_with(|a| (a.prompt.ring_id, a.sampling) = (9, 3), 50, s.prompt)
        }),
        ("T-28 before T-29", Status::RejectIllegalCombination, |s, p| {
            p.admit_with(|a| (a.sampling, a.decode_replay) = (3, 4), 50, s.prompt)
        }),
        ("T-29 before T-30", Status::RejectBounds, |s, p| {
            p.admit_with(|a| (a.decode_replay, a.strategy_slot) = (4, 9), 50, s.prompt)
        }),
        ("T-33 before T-34", Status::RejectIllegalCombination, |s, p| {
            p.admit_with(|a| (a.logit_bias_handle, a.seed_handle) = (77, 5), 50, s.prompt)
        }),
        ("admits record by record", Status::RejectStaleSeed, |s, p| {
            p.admit_with(|a| a.seed_handle = 5, 50, s.prompt).admit(GREEDY, s.prompt)
        }),
        ("admits before commits", Status::RejectStaleSeed, |s, p| {
            p.admit_with(|a| a.seed_handle = 5, 50, s.prompt).commit(NOBODY, 1, 1)
        }),
        ("T-42 before T-44", Status::RejectHostRules, |_, p| p.commit(QUIET, VOCAB, 1)),
        ("T-43 before T-44", Status::RejectStaleNonce, |_, p| p.commit(PENDING, VOCAB, 0)),
        ("commits record by record", Status::RejectBounds, |s, p| {
            p.commit(PENDING, VOCAB, s.nonce).commit(NOBODY, 1, 1)
        }),
        ("commits before prefills", Status::RejectStaleNonce, |_, p| p.commit(PENDING, 1, 0).prefill(NOBODY, 0, 1)),
        ("T-47 before T-48", Status::RejectIllegalCombination, |_, p| p.prefill(PARTIAL, 9, 100)),
        ("prefills before decodes", Status::RejectBounds, |_, p| p.prefill(PARTIAL, 4, 100).decode(NOBODY, 1)),
        ("T-51 before T-52", Status::RejectUnknownLane, |_, p| p.decode(NOBODY, 9).decode(FINISHED, 1)),
        ("T-52 before T-53", Status::RejectHostRules, |_, p| p.decode(PENDING, 2)),
        ("decodes before retires", Status::RejectIllegalCombination, |_, p| {
            p.decode(FINISHED, 1).retire(NOBODY, false)
        }),
        ("validation before capacity", Status::RejectUnknownLane, |s, p| {
            p.admit(50, s.prompt).admit(51, s.prompt).admit(52, s.prompt).retire(NOBODY, false)
        }),
    ];
    for (name, expected, build) in plans {
        let mut s = stage();
        let plan = build(&s, PlanBuilder::new(s.h.next_seq));
        assert_eq!(s.h.refused(plan), *expected, "{name}");
    }
    // T-18 decides before everything about the plan, but after its structure.
    let mut s = stage();
    assert_eq!(s.h.refused(PlanBuilder::new(1).max_decode_lanes(99)), Status::RejectIllegalCombination);
    assert_eq!(s.h.refused(PlanBuilder::new(1).decode(1, 1).decode(1, 1)), Status::RejectDuplicateLane);
}

/// Something that changes an engine.
type Change = fn(&mut Stage);

/// What the refusals above compare would notice anything that a plan, or the host, can change.
#[test]
fn digest_notices_every_change() {
    let changes: [(&str, Change); 12] = [
        ("an empty tick", |s| drop(s.h.tick_ok(PlanBuilder::new(500)))),
        ("a token", |s| drop(s.h.tick_ok(PlanBuilder::new(500).decode(GREEDY, 1)))),
        ("a grant of nothing", |s| drop(s.h.tick_ok(PlanBuilder::new(500).decode(GREEDY, 0)))),
        ("a commit", |s| drop(s.h.tick_ok(PlanBuilder::new(500).commit(PENDING, 1, s.nonce)))),
        ("a row", |s| drop(s.h.tick_ok(PlanBuilder::new(500).decode(QUIET, 1)))),
        ("a chunk", |s| drop(s.h.tick_ok(PlanBuilder::new(500).prefill(PARTIAL, 4, 1)))),
        ("a retire", |s| drop(s.h.tick_ok(PlanBuilder::new(500).retire(FAULTED, false)))),
        ("an admit", |s| drop(s.h.tick_ok(PlanBuilder::new(500).admit(50, s.prompt)))),
        ("an injected fault", |s| EngineInspect::inject_fault(&mut s.h.engine, GREEDY, 3)),
        ("a bias", |s| assert!(s.h.engine.logit_bias_create(&[1], &[1.0]).is_ok())),
        ("a bias less", |s| assert!(s.h.engine.logit_bias_free(s.bias).is_ok())),
        ("a bare sequence", |s| assert!(s.h.engine.create_sequence().is_ok())),
    ];
    for (name, change) in changes {
        let mut s = stage();
        let before = EngineInspect::state_digest(&s.h.engine);
        assert_eq!(EngineInspect::state_digest(&s.h.engine), before, "looking changes nothing");
        change(&mut s);
        assert_ne!(EngineInspect::state_digest(&s.h.engine), before, "{name}");
    }
    let mut s = stage();
    let before = s.h.rings.rings_digest();
    s.h.prompt(&[1]);
    assert_ne!(s.h.rings.rings_digest(), before);
}

/// Every plan rejection that this engine can give is among the cases.
#[test]
fn every_refusal_status_is_covered() {
    let tried: BTreeSet<i32> = CASES.iter().map(|case| case.status.code()).collect();
    // Of arrays and structs, in tests of their own; a transfer lock needs operations that take time.
    let elsewhere =
        [Status::RejectBadStride, Status::RejectBadAlignment, Status::RejectBadStruct, Status::RejectBudget];
    let unreachable = [Status::RejectTransferLocked];
    for (status, name) in ictus::record::STATUSES {
        let covered = tried.contains(&status.code()) || elsewhere.contains(status) || unreachable.contains(status);
        assert!(!status.is_plan_rejection() || covered, "{name} is tried nowhere");
    }
}
