//! HOST lanes: rows out, tokens in.

use ictus::engine::Engine;
use ictus::record::constant::finish;
use ictus::record::{LaneAdmit, RingRef, Status};
use ictus::ring::Rings;
use ictus::testing::Events;

use super::host::*;

#[track_caller]
fn row(h: &Fake, reference: &RingRef) -> Vec<f32> {
    let mut row = Vec::new();
    h.rings.read_logits_row(reference, &mut row).expect("the row is readable");
    row
}

#[track_caller]
fn nonce(events: &Events, lane: u64) -> u64 {
    events.emit_for(lane).expect("the lane has an emit").logits_row.generation
}

/// TS-39 (T-106, T-41, T-51): rows until the context is full, then LENGTH.
#[test]
fn host_lane_ends_with_the_context() {
    let mut h = fake(|options| options.descriptor.max_seq_len = 6);
    let staged = h.prompt(&[1, 2, 3, 4]);
    let events = ok(&mut h, |plan| plan.admit_with(by_host, 1, staged).prefill(1, 0, 4).decode(1, 1));
    assert_eq!(row(&h, &events.emits[0].logits_row), h.engine.primitives().row_for(&[1, 2, 3, 4]));
    let first = nonce(&events, 1);
    let events = ok(&mut h, |plan| plan.commit(1, 50, first).decode(1, 1));
    assert_eq!(row(&h, &events.emits[0].logits_row), h.engine.primitives().row_for(&[1, 2, 3, 4, 50]));
    let second = nonce(&events, 1);
    let events = ok(&mut h, |plan| plan.commit(1, 60, second).decode(1, 1));
    let emit = events.emits[0];
    assert_eq!((emit.finish, emit.n_tokens, emit.logits_row.generation), (finish::LENGTH, 0, 0));
    assert_eq!(h.committed(1), [1, 2, 3, 4, 50, 60]);
    assert_eq!(no(&mut h, |plan| plan.decode(1, 1)), Status::RejectIllegalCombination);
    assert_eq!(no(&mut h, |plan| plan.commit(1, 1, second)), Status::RejectIllegalCombination);
}

/// TS-66 (T-42, T-75): a commit needs a row; it may come without a decode.
#[test]
fn commit_needs_a_pending_row_and_no_decode() {
    let mut h = fake(|_| {});
    admit_whole(&mut h, 1, &[1, 2, 3], by_host);
    assert_eq!(no(&mut h, |plan| plan.commit(1, 5, 1)), Status::RejectHostRules);
    let events = ok(&mut h, |plan| plan.decode(1, 1));
    let first = nonce(&events, 1);
    let events = ok(&mut h, |plan| plan.commit(1, 5, first));
    assert!(events.emits.is_empty());
    assert_eq!(h.committed(1), [1, 2, 3, 5]);
    assert_eq!(no(&mut h, |plan| plan.commit(1, 5, first)), Status::RejectHostRules);
    let events = ok(&mut h, |plan| plan.decode(1, 1));
    assert_eq!(row(&h, &events.emits[0].logits_row), h.engine.primitives().row_for(&[1, 2, 3, 5]));
    assert_ne!(nonce(&events, 1), first);
}

/// TS-78 (T-106, T-140): each HOST lane has its own raw row, and a greedy lane beside them notices nothing.
#[test]
fn host_lanes_and_a_greedy_lane_share_a_tick() {
    for support in SUPPORTS {
        let mut h = fake(|options| {
            small(options);
            options.descriptor.sampling = support;
        });
        // Bias and penalties are not applied to what a host sees.
        let bias = h.engine.logit_bias_create(&[5], &[40.0]).expect("bias is offered");
        let shaped = |admit: &mut LaneAdmit| {
            by_host(admit);
            admit.logit_bias_handle = bias;
            admit.params.repeat_penalty = 3.0;
        };
        let (a, b, c) = (h.prompt(&[1, 2]), h.prompt(&[3, 4]), h.prompt(&[5, 6]));
        let events = ok(&mut h, |plan| {
            let plan = plan.admit_with(shaped, 3, a).admit_with(by_host, 1, b).admit(2, c);
            plan.prefill(3, 0, 2).prefill(1, 0, 2).prefill(2, 0, 2).decode(3, 1).decode(2, 4).decode(1, 1)
        });
        let lanes: Vec<_> = events.emits.iter().map(|emit| emit.lane_tag).collect();
        assert_eq!(lanes, [3, 2, 1]);
        assert_ne!(nonce(&events, 3), nonce(&events, 1));
        let raw = |list: &[u32]| h.engine.primitives().row_for(list);
        assert_eq!(row(&h, &events.emits[0].logits_row), raw(&[1, 2]));
        assert_eq!(row(&h, &events.emits[2].logits_row), raw(&[3, 4]));
        assert_eq!(h.tokens_of(&events, 2), greedy_after(&h, &[5, 6], 4));
        let of_host = events.emits[0];
        assert_eq!((of_host.n_tokens, of_host.token_ref.ring_id, of_host.token_ref.generation), (0, 0, 0));
        assert_eq!(events.emits[1].logits_row.generation, 0);
    }
}

/// T-120: a committed token moves the counter on as a drawn one would; a pending row survives ticks that do not touch its lane.
#[test]
fn pending_row_waits_for_its_commit() {
    let mut h = fake(|_| {});
    let staged = h.prompt(&[1, 2, 3]);
    let events = ok(&mut h, |plan| plan.admit_with(by_host, 1, staged).prefill(1, 0, 3).decode(1, 1));
    let first = nonce(&events, 1);
    start(&mut h, 2, &[8, 9], 3, plain);
    assert_eq!(more(&mut h, 2, 3).len(), 3);
    assert_eq!(no(&mut h, |plan| plan.decode(1, 1).decode(2, 1)), Status::RejectHostRules);
    ok(&mut h, |plan| plan.commit(1, 4, first).decode(2, 1));
    assert_eq!(h.committed(1), [1, 2, 3, 4]);
    ok(&mut h, |plan| plan.retire(1, false).retire(2, false));
    assert_eq!(cells(&h), 0);
}

/// A host that commits what a greedy lane would have picked gets the greedy lane's text.
#[test]
fn host_that_picks_the_best_token_writes_the_greedy_text() {
    let mut h = fake(|_| {});
    let staged = h.prompt(&[10, 20, 30]);
    let mut events = ok(&mut h, |plan| plan.admit_with(by_host, 1, staged).prefill(1, 0, 3).decode(1, 1));
    for _ in 0..8 {
        let reference = events.emits[0].logits_row;
        let token = ictus::sample::argmax(&row(&h, &reference));
        events = ok(&mut h, |plan| plan.commit(1, token, reference.generation).decode(1, 1));
    }
    assert_eq!(h.committed(1)[3..], greedy_after(&h, &[10, 20, 30], 8));
}
