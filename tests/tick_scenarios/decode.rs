//! Decode: rounds, finishes, yields, and who picks.

use ictus::record::constant::{finish, tick_status};
use ictus::record::{LaneAdmit, Status};
use ictus::runtime::SamplingSupport;

use super::host::*;

/// The greedy vector of R-31, through the engine.
#[test]
fn greedy_tokens_are_the_published_ones() {
    let mut h = fake(|_| {});
    let tokens = start(&mut h, 1, &[10, 20, 30], 8, plain);
    assert_eq!(tokens, [19927, 17910, 10995, 14421, 15192, 3993, 2816, 8225]);
}

/// TS-16 (T-119): a continuation draws what the whole lane would have drawn.
#[test]
fn continuation_draws_at_the_next_positions() {
    let prompt = [3, 1, 4, 1, 5];
    let mut whole = fake(|_| {});
    let tokens = start(&mut whole, 1, &prompt, 8, sampled(1003));
    assert_eq!(tokens.len(), 8);
    let mut resumed = fake(|_| {});
    let longer: Vec<u32> = prompt.iter().chain(&tokens[..4]).copied().collect();
    assert_eq!(start(&mut resumed, 1, &longer, 4, sampled(1007)), tokens[4..]);
    // At a temperature where the draw decides.
    let mut whole = fake(small);
    let tokens = start(&mut whole, 1, &prompt, 24, hot(1003));
    assert_eq!(tokens, drawn_after(&whole, &prompt, 1003, 24, HOT));
    assert_ne!(tokens, greedy_after(&whole, &prompt, 24));
    for cut in [1, 7, 23] {
        let mut resumed = fake(small);
        let longer: Vec<u32> = prompt.iter().chain(&tokens[..cut]).copied().collect();
        assert_eq!(start(&mut resumed, 1, &longer, 24 - cut as u16, hot(1003 + cut as u64)), tokens[cut..]);
    }
}

/// TS-77 (T-119): positions wrap.
#[test]
fn positions_wrap_around() {
    let mut h = fake(small);
    let tokens = start(&mut h, 1, &[5, 6, 7], 3, hot(u64::MAX));
    assert_eq!(tokens, drawn_after(&h, &[5, 6, 7], u64::MAX, 3, HOT));
    let mut resumed = fake(small);
    assert_eq!(start(&mut resumed, 1, &[5, 6, 7, tokens[0]], 2, hot(0)), tokens[1..]);
}

/// TS-18 (T-110): who picks, and how a neighbour picks, changes nothing.
#[test]
fn neighbour_and_picking_side_change_no_token() {
    let (one, two) = ([1, 2, 3], [7, 8, 9]);
    let log = |admit: &mut LaneAdmit| admit.want_logprobs = 3;
    let neighbours: [Change<'_>; 3] = [&plain, &hot(9), &log];
    for support in SUPPORTS {
        for (which, change) in neighbours.iter().enumerate() {
            let mut h = fake(|options| {
                small(options);
                options.descriptor.sampling = support;
            });
            let (a, b) = (h.prompt(&one), h.prompt(&two));
            let events = ok(&mut h, |plan| {
                let plan = plan.admit(1, a).admit_with(change, 2, b).prefill(1, 0, 3).prefill(2, 0, 3);
                plan.decode(1, 6).decode(2, 6)
            });
            assert_eq!(h.tokens_of(&events, 1), greedy_after(&h, &one, 6), "{support:?} {which}");
            let second = if which == 1 { drawn_after(&h, &two, 9, 6, HOT) } else { greedy_after(&h, &two, 6) };
            assert_eq!(h.tokens_of(&events, 2), second, "{support:?} {which}");
        }
    }
}

/// TS-26 (T-108, T-36): the context ends a lane, and a longer prompt is over the budget.
#[test]
fn context_ends_a_lane_with_length() {
    let mut h = fake(|options| options.descriptor.max_seq_len = 6);
    let staged = h.prompt(&[1, 2, 3]);
    let events = ok(&mut h, |plan| plan.admit(1, staged).prefill(1, 0, 3).decode(1, 10));
    assert_eq!(h.tokens_of(&events, 1), greedy_after(&h, &[1, 2, 3], 3));
    assert_eq!(events.emits[0].finish, finish::LENGTH);
    let staged = h.prompt(&span(0, 7));
    assert_eq!(no(&mut h, |plan| plan.admit(2, staged).prefill(2, 0, 7)), Status::RejectBudget);
}

/// TS-27 (T-108): the end token is emitted and ends the lane, unless the lane ignores it.
#[test]
fn end_token_is_emitted_and_finishes() {
    for support in SUPPORTS {
        for (flags, count, ended) in [(0, 1, finish::EOS), (1, 4, finish::NONE)] {
            let mut h = fake(|options| options.descriptor.sampling = support);
            admit_whole(&mut h, 1, &[1, 2, 3], |admit| admit.params.flags = flags);
            let sequence = sequence(&h, 1);
            h.engine.primitives_mut().script(sequence, &[31999]);
            let events = ok(&mut h, |plan| plan.decode(1, 4));
            let tokens = h.tokens_of(&events, 1);
            assert_eq!((tokens[0], tokens.len(), events.emits[0].finish), (31999, count, ended));
            assert_eq!(h.committed(1).len(), 3 + count);
        }
    }
}

/// T-108: EOS is tested before LENGTH, and LENGTH before the grant.
#[test]
fn finish_tests_have_an_order() {
    let mut h = fake(|options| options.descriptor.max_seq_len = 4);
    admit_whole(&mut h, 1, &[1, 2, 3], |admit| admit.params.flags = 0);
    let sequence = sequence(&h, 1);
    h.engine.primitives_mut().script(sequence, &[31999]);
    assert_eq!(ok(&mut h, |plan| plan.decode(1, 1)).emits[0].finish, finish::EOS);
    admit_whole(&mut h, 2, &[1, 2, 3], plain);
    assert_eq!(ok(&mut h, |plan| plan.decode(2, 1)).emits[0].finish, finish::LENGTH);
}

/// TS-36 (T-109): a yield ends the tick after a round, and changes when tokens come, never which.
#[test]
fn yield_ends_a_decode_after_one_round() {
    let mut h = fake(|_| {});
    let mut tokens = start(&mut h, 1, &[1, 2, 3], 16, plain);
    for tick in 1..4 {
        h.rings.set_yield(tick == 1);
        let events = ok(&mut h, |plan| plan.decode(1, 16));
        let made = h.tokens_of(&events, 1);
        assert_eq!(made.len(), if tick == 1 { 1 } else { 16 });
        assert_eq!((events.tick_status, events.emits[0].finish), (tick_status::OK, finish::NONE));
        tokens.extend(made);
    }
    assert_eq!(tokens, greedy_after(&h, &[1, 2, 3], 49));
}

/// T-109: every yielding tick makes a round of progress for every lane.
#[test]
fn yielding_ticks_still_make_progress() {
    let mut h = fake(small);
    h.rings.set_yield(true);
    let (a, b) = (h.prompt(&[1, 2, 3]), h.prompt(&[4, 5]));
    let mut tokens = [Vec::new(), Vec::new()];
    let mut events = ok(&mut h, |plan| {
        let plan = plan.admit(1, a).admit_with(hot(7), 2, b).prefill(1, 0, 3).prefill(2, 0, 2);
        plan.decode(1, 9).decode(2, 9)
    });
    for _ in 0..5 {
        for (lane, tokens) in [1, 2].into_iter().zip(&mut tokens) {
            let made = h.tokens_of(&events, lane);
            assert_eq!(made.len(), 1);
            tokens.extend(made);
        }
        events = ok(&mut h, |plan| plan.decode(2, 9).decode(1, 9));
    }
    assert_eq!(tokens[0], greedy_after(&h, &[1, 2, 3], 5));
    assert_eq!(tokens[1], drawn_after(&h, &[4, 5], 7, 5, HOT));
}

/// TS-40 (T-36, T-106): a prompt that fills the context is admitted and makes nothing.
#[test]
fn prompt_that_fills_the_context_finishes_at_once() {
    let quiet = SamplingSupport::default();
    let argmax = SamplingSupport { greedy: true, ..quiet };
    let modes: [(Change<'_>, SamplingSupport); 4] =
        [(&plain, argmax), (&plain, quiet), (&sampled(1), quiet), (&by_host, argmax)];
    for (change, support) in modes {
        for apart in [false, true] {
            let mut h = fake(|options| {
                options.descriptor.max_seq_len = 4;
                options.descriptor.sampling = support;
            });
            let staged = h.prompt(&[1, 2, 3, 4]);
            let events = if apart {
                admit_whole(&mut h, 1, &[1, 2, 3, 4], change);
                ok(&mut h, |plan| plan.decode(1, 1))
            } else {
                ok(&mut h, |plan| plan.admit_with(change, 1, staged).prefill(1, 0, 4).decode(1, 1))
            };
            let emit = events.emits[0];
            assert_eq!((emit.n_tokens, emit.finish, emit.logits_row.generation), (0, finish::LENGTH, 0));
            assert_eq!(h.committed(1), [1, 2, 3, 4]);
            assert_eq!(no(&mut h, |plan| plan.decode(1, 1)), Status::RejectIllegalCombination);
        }
    }
}

/// TS-60 (T-51, T-13).
#[test]
fn finished_lane_refuses_decode_and_a_leaving_one_prefill() {
    let mut h = fake(|options| options.descriptor.max_seq_len = 4);
    assert_eq!(start(&mut h, 1, &[1, 2, 3], 5, plain).len(), 1);
    assert_eq!(no(&mut h, |plan| plan.decode(1, 1)), Status::RejectIllegalCombination);
    let staged = h.prompt(&[1, 2, 3]);
    ok(&mut h, |plan| plan.admit(2, staged).prefill(2, 0, 1));
    assert_eq!(no(&mut h, |plan| plan.prefill(2, 1, 2).retire(2, false)), Status::RejectIllegalCombination);
    ok(&mut h, |plan| plan.retire(1, false).retire(2, true));
    assert_eq!(cells(&h), 0);
}

/// TS-61 (T-36, T-106): a host at the edge of the context.
#[test]
fn engine_serves_on_at_the_edge_of_the_context() {
    let mut h = fake(|options| options.descriptor.max_seq_len = 48);
    for (lane, len, made) in [(1, 48, 0), (2, 47, 1), (3, 47, 1), (4, 48, 0), (5, 40, 8)] {
        let staged = h.prompt(&span(0, len));
        let events = ok(&mut h, |plan| plan.admit(lane, staged).prefill(lane, 0, len).decode(lane, 8));
        assert_eq!(h.tokens_of(&events, lane), greedy_after(&h, &span(0, len), made));
        assert_eq!(events.emits[0].finish, finish::LENGTH);
        ok(&mut h, |plan| plan.retire(lane, false));
    }
}

/// TS-64 (T-55, T-140).
#[test]
fn grant_of_nothing_emits_a_readable_empty_span() {
    let mut h = fake(|_| {});
    admit_whole(&mut h, 1, &[1, 2, 3], plain);
    let before = feed_count(&h);
    let events = ok(&mut h, |plan| plan.decode(1, 0));
    let emit = events.emits[0];
    assert_eq!((emit.n_tokens, emit.token_ref.count, emit.finish), (0, 0, finish::NONE));
    assert_ne!(emit.token_ref.generation, 0);
    assert_eq!(h.tokens_of(&events, 1).len(), 0);
    assert_eq!(feed_count(&h), before);
    assert_eq!(more(&mut h, 1, 1), greedy_after(&h, &[1, 2, 3], 1));
}

/// T-89, T-55: a prefill that completes beside a grant of 0 holds its last token back.
#[test]
fn completing_prefill_with_a_grant_of_nothing_holds_back() {
    let mut h = fake(|_| {});
    assert_eq!(start(&mut h, 1, &[1, 2, 3, 4], 0, plain).len(), 0);
    assert_eq!(feeds(&h, 0), [(3, false)]);
    assert_eq!(more(&mut h, 1, 2), greedy_after(&h, &[1, 2, 3, 4], 2));
}

/// TS-63 (T-18).
#[test]
fn refused_number_may_be_used_again() {
    let mut h = fake(|_| {});
    let staged = h.prompt(&[1, 2, 3]);
    let plan = h.plan().admit(1, staged).prefill(1, 0, 3);
    assert_eq!(h.refused(plan.clone().decode(9, 1)), Status::RejectUnknownLane);
    assert_eq!(h.tick_ok(plan.decode(1, 1)).plan_seq, 1);
}

/// T-104: lanes at different points share rounds, and each stops where it must.
#[test]
fn lanes_of_different_grants_leave_the_rounds_one_by_one() {
    let mut h = fake(|options| options.descriptor.max_seq_len = 12);
    let prompts = [span(0, 3), span(10, 20), span(30, 31), span(40, 46)];
    let refs = [0, 1, 2, 3].map(|i: usize| h.prompt(&prompts[i]));
    let events = ok(&mut h, |mut plan| {
        for (lane, (prompt, staged)) in prompts.iter().zip(refs).enumerate() {
            plan = plan.admit(lane as u64, staged).prefill(lane as u64, 0, prompt.len() as u32);
        }
        plan.decode(3, 4).decode(0, 1).decode(1, 9).decode(2, 7)
    });
    for (lane, made, end) in [(0, 1, finish::NONE), (1, 2, finish::LENGTH), (2, 7, finish::NONE), (3, 4, finish::NONE)]
    {
        assert_eq!(h.tokens_of(&events, lane), greedy_after(&h, &prompts[lane as usize], made));
        assert_eq!(events.emit_for(lane).map(|emit| emit.finish), Some(end));
    }
    let order: Vec<_> = events.emits.iter().map(|emit| emit.lane_tag).collect();
    assert_eq!(order, [3, 0, 1, 2], "emits come in plan order (T-140)");
}

/// E-1: between ticks the sequence is one token short exactly when an input is pending.
#[test]
fn sequence_holds_the_committed_tokens_less_the_pending_one() {
    let mut h = fake(|_| {});
    let check = |h: &Fake, short: usize| {
        let committed = h.committed(1);
        let held = h.engine.primitives().contents(sequence(h, 1)).expect("it exists").to_vec();
        assert_eq!(held, committed[..committed.len() - short]);
    };
    let staged = h.prompt(&span(0, 10));
    ok(&mut h, |plan| plan.admit(1, staged).prefill(1, 0, 4));
    check(&h, 0);
    ok(&mut h, |plan| plan.prefill(1, 4, 6));
    check(&h, 1);
    ok(&mut h, |plan| plan.decode(1, 3));
    check(&h, 1);
    assert_eq!(h.engine.lane_committed(1).map(|tokens| tokens.len()), Some(13));
}
