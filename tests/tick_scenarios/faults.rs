//! Faults: whose they are, and what goes on beside them.

use ictus::record::constant::{admit_status, fault, tick_status};
use ictus::record::{LaneAdmit, Status};
use ictus::ring::MemoryRingShape;
use ictus::runtime::RuntimeError;
use ictus::testing::Events;

use super::host::*;

fn codes(events: &Events) -> Vec<(u64, u32)> {
    // T-134; what was short is told since: pages.
    let detail = |code| if code == fault::OOM_TENTATIVE { 2 } else { 0 };
    assert!(events.faults.iter().all(|fault| fault.detail == detail(fault.code)), "T-134, X-71");
    events.faults.iter().map(|fault| (fault.lane_tag, fault.code)).collect()
}

/// TS-30 (T-132, T-133): a failing decode step takes all its lanes, and leaves room for new ones.
#[test]
fn failing_decode_step_takes_all_its_lanes() {
    let mut h = fake(|_| {});
    admit_whole(&mut h, 1, &[1, 2, 3], plain);
    admit_whole(&mut h, 2, &[4, 5, 6], plain);
    h.engine.primitives_mut().fail_next_step(RuntimeError::Fault(1));
    let events = ok(&mut h, |plan| plan.decode(1, 3).decode(2, 3));
    assert_eq!((events.tick_status, codes(&events)), (tick_status::LANE_ERRORS, vec![(1, 1), (2, 1)]));
    assert!(events.emits.is_empty() && events.logprobs.is_empty());
    assert_eq!((h.engine.lane_committed(1), h.engine.lane_committed(2), cells(&h)), (None, None, 0));
    let staged = h.prompt(&[7, 8]);
    let events =
        ok(&mut h, |plan| plan.retire(1, false).retire(2, true).admit(3, staged).prefill(3, 0, 2).decode(3, 2));
    assert_eq!(events.tick_status, tick_status::OK);
    assert_eq!(h.tokens_of(&events, 3), greedy_after(&h, &[7, 8], 2));
    assert_eq!(no(&mut h, |plan| plan.retire(1, false)), Status::RejectUnknownLane);
    // In a prefill step the admitted lane faults.
    h.engine.primitives_mut().fail_next_step(RuntimeError::Fault(1));
    let staged = h.prompt(&[7, 8]);
    let events = ok(&mut h, |plan| plan.admit(4, staged).prefill(4, 0, 2).decode(4, 2).decode(3, 1));
    assert_eq!(events.admit_for(4).map(|result| result.status), Some(admit_status::ADMITTED));
    assert_eq!(codes(&events), [(4, 1)]);
    assert!(events.emit_for(4).is_none());
    assert_eq!(h.tokens_of(&events, 3), greedy_after(&h, &[7, 8], 3)[2..]);
}

/// TS-31 (T-92, T-132, T-136): capacity in a prefill step is that lane's fault; fatal is the engine's.
#[test]
fn capacity_in_a_step_is_a_lane_fault_and_fatal_ends_the_engine() {
    let mut h = fake(|_| {});
    admit_whole(&mut h, 1, &[1, 2, 3], plain);
    h.engine.primitives_mut().fail_next_step(RuntimeError::Capacity);
    let staged = h.prompt(&[4, 5, 6, 7]);
    let events = ok(&mut h, |plan| plan.decode(1, 2).admit(2, staged).prefill(2, 0, 4));
    assert_eq!(codes(&events), [(2, fault::OOM_TENTATIVE)]);
    assert_eq!(h.tokens_of(&events, 1), greedy_after(&h, &[1, 2, 3], 2));
    assert_eq!(cells(&h), 4);
    let events = ok(&mut h, |plan| plan.retire(2, true));
    assert_eq!((events.tick_status, cells(&h), events.mem.pool_bytes_evictable), (tick_status::OK, 4, 0));
    h.engine.primitives_mut().fail_next_step(RuntimeError::Fatal);
    let plan = h.plan().decode(1, 1);
    assert_eq!(h.tick_err(plan), Status::Fatal);
    let plan = h.plan();
    assert_eq!(h.tick_err(plan), Status::Fatal, "a broken engine stays broken");
}

/// TS-48 (T-136), each way a step can be fatal. The switch that ends the process is not offered.
#[test]
fn fatal_runtime_is_a_fatal_tick_in_every_phase() {
    let fatal = |h: &mut Fake, build: &dyn Fn(ictus::testing::PlanBuilder) -> ictus::testing::PlanBuilder| {
        h.engine.primitives_mut().fail_next_step(RuntimeError::Fatal);
        let plan = build(h.plan());
        assert_eq!(h.tick_err(plan), Status::Fatal);
    };
    let mut h = fake(|_| {});
    let staged = h.prompt(&[1, 2, 3]);
    fatal(&mut h, &|plan| plan.admit(1, staged).prefill(1, 0, 3));
    let mut h = fake(|_| {});
    admit_whole(&mut h, 1, &[1, 2, 3], plain);
    fatal(&mut h, &|plan| plan.decode(1, 1));
    let mut h = fake(|_| {});
    start(&mut h, 1, &[1, 2, 3, 4], 1, |admit| admit.decode_replay = 3);
    fatal(&mut h, &|plan| plan.decode(1, 1));
}

/// T-132: what each error of a primitive makes of its lanes.
#[test]
fn primitive_errors_have_their_codes() {
    let errors = [
        (RuntimeError::Fault(3), 3),
        (RuntimeError::Fault(77), 77),
        (RuntimeError::Capacity, fault::OOM_TENTATIVE),
        (RuntimeError::Unsupported, fault::INTERNAL),
        (RuntimeError::UnknownSeq, fault::INTERNAL),
        (RuntimeError::OutOfBoundary, fault::INTERNAL),
    ];
    for (error, code) in errors {
        let mut h = fake(|_| {});
        admit_whole(&mut h, 1, &[1, 2, 3], plain);
        h.engine.primitives_mut().fail_next_step(error);
        let events = ok(&mut h, |plan| plan.decode(1, 1));
        assert_eq!(codes(&events), [(1, code)], "{error:?}");
        ok(&mut h, |plan| plan.retire(1, false));
    }
}

/// TS-55 (T-141): an emit that the ring cannot hold is its lane's fault.
#[test]
fn emit_larger_than_its_slot_faults_its_lane() {
    let mut h = fake_with_rings(MemoryRingShape { emit_tokens: 4, ..MemoryRingShape::default() }, |_| {});
    admit_whole(&mut h, 1, &[1, 2, 3], plain);
    admit_whole(&mut h, 2, &[4, 5, 6], plain);
    let events = ok(&mut h, |plan| plan.decode(1, 8).decode(2, 2));
    assert_eq!((events.tick_status, codes(&events)), (tick_status::LANE_ERRORS, vec![(1, fault::REF_SPAN_OOB)]));
    assert!(events.emit_for(1).is_none());
    assert_eq!(h.tokens_of(&events, 2), greedy_after(&h, &[4, 5, 6], 2));
    assert_eq!(h.engine.lane_committed(1), None);
    ok(&mut h, |plan| plan.retire(1, false).retire(2, false));
    assert_eq!(cells(&h), 0);
}

/// E-35: so is a row that the logits ring cannot hold.
#[test]
fn row_larger_than_its_slot_faults_its_lane() {
    let shape = MemoryRingShape { row_logits: 63, ..MemoryRingShape::default() };
    let mut h = fake_with_rings(shape, small);
    admit_whole(&mut h, 1, &[1, 2, 3], by_host);
    admit_whole(&mut h, 2, &[4, 5, 6], plain);
    let events = ok(&mut h, |plan| plan.decode(1, 1).decode(2, 1));
    assert_eq!(codes(&events), [(1, fault::REF_SPAN_OOB)]);
    assert_eq!(h.tokens_of(&events, 2), greedy_after(&h, &[4, 5, 6], 1));
}

/// TS-74 (T-24, T-77): a faulted tag is free to be admitted, retired or not.
#[test]
fn faulted_tag_may_be_admitted_again() {
    let mut h = fake(|_| {});
    for retire_first in [false, true] {
        admit_whole(&mut h, 1, &[1, 2, 3], plain);
        h.engine.inject_fault(1, 6);
        assert_eq!(codes(&ok(&mut h, |plan| plan.decode(1, 1))), [(1, 6)]);
        if retire_first {
            ok(&mut h, |plan| plan.retire(1, false));
        }
        assert_eq!(start(&mut h, 1, &[9, 8], 2, plain), greedy_after(&h, &[9, 8], 2));
        ok(&mut h, |plan| plan.retire(1, false));
        assert_eq!(no(&mut h, |plan| plan.retire(1, false)), Status::RejectUnknownLane);
    }
}

/// T-133: until its mark is gone a faulted tag is known to retire alone.
#[test]
fn faulted_tag_is_unknown_to_all_but_retire() {
    let mut h = fake(|_| {});
    admit_whole(&mut h, 1, &[1, 2, 3], by_host);
    h.engine.inject_fault(1, 5);
    ok(&mut h, |plan| plan.decode(1, 1));
    assert_eq!(no(&mut h, |plan| plan.decode(1, 1)), Status::RejectUnknownLane);
    assert_eq!(no(&mut h, |plan| plan.prefill(1, 3, 0)), Status::RejectUnknownLane);
    assert_eq!(no(&mut h, |plan| plan.commit(1, 1, 1)), Status::RejectUnknownLane);
    ok(&mut h, |plan| plan);
    ok(&mut h, |plan| plan.retire(1, true));
}

/// T-96: an injected fault strikes at the next decode record, whatever it grants, and not before.
#[test]
fn injected_fault_waits_for_a_decode_record() {
    let mut h = fake(|_| {});
    let staged = h.prompt(&[1, 2, 3, 4]);
    ok(&mut h, |plan| plan.admit(1, staged).prefill(1, 0, 2));
    h.engine.inject_fault(1, 3);
    assert_eq!(ok(&mut h, |plan| plan.prefill(1, 2, 2)).tick_status, tick_status::OK);
    assert_eq!(codes(&ok(&mut h, |plan| plan.decode(1, 0))), [(1, 3)]);
}

/// A model's row that is not finite is the fault of its lane, in every mode, and of no other.
#[test]
fn row_that_is_not_finite_faults_its_lane_alone() {
    let log = |admit: &mut LaneAdmit| admit.want_logprobs = 2;
    let penalised = |admit: &mut LaneAdmit| admit.params.repeat_penalty = 1.5;
    let modes: [(&str, Change<'_>); 5] =
        [("greedy", &plain), ("drawn", &hot(5)), ("logprobs", &log), ("penalties", &penalised), ("host", &by_host)];
    for support in SUPPORTS {
        for (mode, change) in modes {
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                for prefill_row in [false, true] {
                    let mut h = fake(|options| {
                        small(options);
                        options.descriptor.sampling = support;
                    });
                    let (a, b) = (h.prompt(&[1, 2, 3]), h.prompt(&[4, 5, 6]));
                    let first = if prefill_row { 2 } else { 3 };
                    ok(&mut h, |plan| {
                        let plan = plan.admit_with(change, 1, a).admit_with(hot(9), 2, b);
                        plan.prefill(1, 0, first).prefill(2, 0, first)
                    });
                    let sequence = sequence(&h, 1);
                    h.engine.primitives_mut().plant_row(sequence, &[0.0, 1.0, bad]);
                    let events = ok(&mut h, |plan| {
                        let plan = plan.prefill(1, first, 3 - first).prefill(2, first, 3 - first);
                        plan.decode(1, 1).decode(2, 3)
                    });
                    let what = format!("{support:?} {mode} {bad} {prefill_row}");
                    assert_eq!(codes(&events), [(1, fault::INTERNAL)], "{what}");
                    assert!(events.emit_for(1).is_none() && events.logprobs_for(1).is_empty(), "{what}");
                    assert_eq!(h.tokens_of(&events, 2), drawn_after(&h, &[4, 5, 6], 9, 3, HOT), "{what}");
                    assert_eq!(cells(&h), 5, "{what}");
                }
            }
        }
    }
}

/// T-142: a fault outweighs what was shed; both are told.
#[test]
fn fault_outweighs_shed_in_the_status() {
    let mut h = fake(|_| {});
    admit_whole(&mut h, 1, &[1, 2, 3], plain);
    h.engine.inject_fault(1, 4);
    let staged = h.prompt(&span(0, 30));
    let events = ok(&mut h, |plan| plan.prefill_budget(10).decode(1, 1).admit(2, staged).prefill(2, 0, 30));
    assert_eq!((events.tick_status, events.shed_chunks), (tick_status::LANE_ERRORS, 1));
}

/// T-135: the rounds of a tick go on without a lane that faulted in one of them.
#[test]
fn later_rounds_run_without_the_faulted_lane() {
    let mut h = fake(small);
    admit_whole(&mut h, 1, &[1, 2, 3], plain);
    admit_whole(&mut h, 2, &[4, 5, 6], plain);
    let sequence = sequence(&h, 1);
    let row = h.engine.primitives().row_for(&[1, 2, 3]);
    h.engine.primitives_mut().plant_row(sequence, &row);
    h.engine.primitives_mut().plant_row(sequence, &[f32::NAN]);
    let events = ok(&mut h, |plan| plan.decode(1, 6).decode(2, 6));
    assert_eq!(codes(&events), [(1, fault::INTERNAL)]);
    assert_eq!(h.tokens_of(&events, 2), greedy_after(&h, &[4, 5, 6], 6));
}
