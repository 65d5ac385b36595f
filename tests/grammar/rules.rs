//! Rules of grammars that no scenario pins: faults, other shaping, yields, log-probabilities.

use ictus::engine::Engine;
use ictus::record::constant::{fault, finish, sampling, sampling_flag, tick_status};
use ictus::record::{LaneAdmit, Status};
#[allow(unused_imports, reason = "a trait of the runtime, where that is in this process")]
use ictus::runtime::Runtime;

use super::scenarios::{COMPACT, SPACED, with_grammar};
use super::words::*;

/// T-134, T-135, T-133, R-65: a token that the grammar refuses faults its lane after the round, with code 1; the neighbours of the round
/// are as they would have been alone, and the grammar is free again.
#[test]
fn refused_token_faults_its_lane_after_the_round() {
    for support in SUPPORTS {
        let alone = {
            let mut h = engine(support);
            admit(&mut h, 9, &[4, 5], &[], |_| {});
            decode(&mut h, 9, 6).0
        };
        let mut h = engine(support);
        let grammar = h.engine.grammar_create(COMPACT).expect("it compiles");
        let change = |admit: &mut LaneAdmit| {
            admit.grammar_handle = grammar;
            admit.params.repeat_penalty = -1.0;
        };
        // With a repeat penalty of -1 a masked logit of a seen token becomes the greatest of all.
        admit(&mut h, 1, &[u32::from(b'z'), 2, 3], &[], change);
        admit(&mut h, 9, &[4, 5], &[], |_| {});
        let events = ok(&mut h, |plan| plan.decode(1, 6).decode(9, 6));
        assert_eq!(events.tick_status, tick_status::LANE_ERRORS);
        let faults: Vec<(u64, u32, u64)> = events.faults.iter().map(|f| (f.lane_tag, f.code, f.detail)).collect();
        assert_eq!(faults, [(1, fault::GRAMMAR_OVERFLOW, 0)]);
        assert!(events.emit_for(1).is_none());
        assert_eq!(h.tokens_of(&events, 9), alone, "the neighbour says what it says alone");
        assert_eq!(no(&mut h, |plan| plan.decode(1, 1)), Status::RejectUnknownLane);
        admit(&mut h, 1, &[1, 2], &[], with_grammar(grammar));
        assert_eq!(decode(&mut h, 1, 64).1, finish::GRAMMAR, "the grammar was returned at the fault");
        assert_eq!(h.engine.grammar_free(grammar), Ok(()));
    }
}

/// R-64, T-134: a mask without a token is a fault of code 1. A schema can ask for a letter that no token has.
#[test]
fn empty_mask_faults_its_lane() {
    if super::engine::lacks("message for grammars of other notations") {
        return;
    }
    for support in SUPPORTS {
        let mut h = engine_with(support, |options| {
            let vocabulary = options.vocabulary.as_mut().expect("it has one");
            // No token has this letter any more.
            for token in &mut vocabulary.tokens {
                if token.contains(&b'q') {
                    *token = Box::from([]);
                }
            }
        });
        let grammar = h.engine.grammar_create_regex("ab?q").expect("it compiles");
        admit(&mut h, 1, &[1, 2, 3], &encode("ab"), with_grammar(grammar));
        admit(&mut h, 2, &[1, 2, 3], &[], |_| {});
        let events = ok(&mut h, |plan| plan.decode(1, 8).decode(2, 3));
        let faults: Vec<(u64, u32)> = events.faults.iter().map(|fault| (fault.lane_tag, fault.code)).collect();
        assert_eq!(faults, [(1, fault::GRAMMAR_OVERFLOW)]);
        assert_eq!(events.emit_for(2).map(|emit| emit.n_tokens), Some(3));
        assert!(h.engine.grammar_free(grammar).is_ok());
    }
}

/// T-112: mask, then bias, then penalties, and log-probabilities of what they leave: what is not allowed has none.
#[test]
fn masks_go_with_bias_penalties_and_logprobs() {
    let mut said = Vec::new();
    for support in SUPPORTS {
        let mut h = engine(support);
        let grammar = h.engine.grammar_create(r#"{"enum": ["ok", "oklahoma", "other"]}"#).expect("it compiles");
        let bias = h.engine.logit_bias_create(&[i32::from(b'z'), i32::from(b't')], &[1000.0, 50.0]).expect("offered");
        let change = |admit: &mut LaneAdmit| {
            admit.grammar_handle = grammar;
            admit.logit_bias_handle = bias;
            admit.want_logprobs = 4;
            admit.params.presence_penalty = 0.5;
            admit.params.freq_penalty = 0.25;
            admit.sampling = sampling::GPU_GUMBEL;
            admit.params.temperature = 0.7;
            admit.params.top_p = 0.9;
            admit.rng_counter_base = 77;
        };
        admit(&mut h, 1, &[1, 2, 3], &encode("\"o"), change);
        let events = ok(&mut h, |plan| plan.decode(1, 40));
        let tokens = h.tokens_of(&events, 1);
        assert_eq!(text(&tokens), "\"other\"", "the bias chooses among what is allowed");
        assert_eq!(events.logprobs.len(), tokens.len());
        assert!(events.logprobs.iter().all(|record| record.logprob.is_finite() && record.logprob <= 0.0));
        let forced = &events.logprobs[3];
        assert_eq!(forced.logprob, 0.0, "one token is allowed, and has all the probability");
        said.push((tokens, events.logprobs.iter().map(|record| record.logprob.to_bits()).collect::<Vec<_>>()));
    }
    assert!(said.windows(2).all(|pair| pair[0] == pair[1]), "whoever picks, the same bits");
}

/// R-66, T-109, T-119: grants, yields and resumption change when tokens come, never which.
#[test]
fn pace_and_resumption_never_change_a_constrained_text() {
    let schema = r#"{"type": "object", "properties": {"a": {"type": "string", "maxLength": 12}, "b": {"type": "array",
        "items": {"type": "integer", "minimum": 0, "maximum": 99}, "maxItems": 4}}, "required": ["a", "b"]}"#;
    let hot = |admit: &mut LaneAdmit| {
        admit.sampling = sampling::GPU_GUMBEL;
        admit.params.temperature = 6.0;
        admit.params.top_p = 1.0;
        admit.rng_counter_base = 5000;
    };
    let mut whole = Vec::new();
    for support in SUPPORTS {
        for grant in [300u16, 1, 7] {
            let mut h = engine(support);
            let grammar = h.engine.grammar_create(schema).expect("it compiles");
            let change = |admit: &mut LaneAdmit| {
                hot(admit);
                admit.grammar_handle = grammar;
            };
            admit(&mut h, 1, &[1, 2, 3], &[], change);
            let mut tokens = Vec::new();
            loop {
                h.rings.set_yield(tokens.len() % 3 == 1);
                let (more, finished) = decode(&mut h, 1, grant);
                tokens.extend(more);
                if finished != finish::NONE {
                    assert_eq!(finished, finish::GRAMMAR);
                    break;
                }
            }
            serde_json::from_str::<serde_json::Value>(&text(&tokens)).expect("valid JSON");
            whole.push(tokens.clone());
            // Preempted after every third token, and resumed with its tokens as a tail.
            ok(&mut h, |plan| plan.retire(1, false));
            h.rings.set_yield(false);
            for cut in (1..tokens.len()).step_by(3) {
                let known: Vec<u32> = [1, 2, 3].iter().chain(&tokens[..cut]).copied().collect();
                let resume = |admit: &mut LaneAdmit| {
                    change(admit);
                    admit.rng_counter_base += cut as u64;
                    admit.grammar_replay = cut as u32;
                    admit.decode_replay = cut as u32;
                };
                admit(&mut h, 2, &known, &[], resume);
                let (rest, _) = decode(&mut h, 2, 400);
                assert_eq!(rest, tokens[cut..], "resumed after {cut}");
                ok(&mut h, |plan| plan.retire(2, false));
            }
        }
    }
    assert!(whole.windows(2).all(|pair| pair[0] == pair[1]));
}

/// T-108: an end token comes before the grammar, the grammar before the length; IGNORE_EOS leaves the grammar.
#[test]
fn finishes_are_tested_in_their_order() {
    for support in SUPPORTS {
        let mut h = engine_with(support, |options| options.descriptor.max_seq_len = 8);
        let grammar = h.engine.grammar_create(r#"{"type": "integer"}"#).expect("it compiles");
        for (flags, expected) in [(0, finish::EOS), (sampling_flag::IGNORE_EOS, finish::GRAMMAR)] {
            let change = |admit: &mut LaneAdmit| {
                admit.grammar_handle = grammar;
                admit.params.flags = flags;
            };
            admit(&mut h, 1, &[1, 2], &[u32::from(b'7'), STOP], change);
            assert_eq!(decode(&mut h, 1, 9), (vec![u32::from(b'7'), STOP], expected));
            ok(&mut h, |plan| plan.retire(1, false));
        }
        // The text is complete with the token that fills the context.
        let word = h.engine.grammar_create(r#"{"const": "a"}"#).expect("it compiles");
        admit(&mut h, 1, &[1, 2, 3, 4, 5], &encode("\"a\""), with_grammar(word));
        assert_eq!(decode(&mut h, 1, 9), (encode("\"a\""), finish::GRAMMAR));
        ok(&mut h, |plan| plan.retire(1, false));
        // The context is full before the text is complete.
        admit(&mut h, 1, &[1, 2, 3, 4, 5, 6], &encode("\"a\""), with_grammar(word));
        assert_eq!(decode(&mut h, 1, 9), (encode("\"a"), finish::LENGTH));
    }
}

/// T-31, T-32, T-33: the grammar's checks come before the bias's and the seed's.
#[test]
fn grammar_is_checked_where_the_order_says() {
    let mut h = engine(SUPPORTS[0]);
    let staged = h.prompt(&[1, 2, 3]);
    let grammar = h.engine.grammar_create(SPACED).expect("it compiles");
    let illegal = Status::RejectIllegalCombination;
    let status = no(&mut h, |plan| {
        plan.admit_with(|admit| (admit.grammar_handle, admit.seed_handle) = (grammar + 1, 7), 1, staged)
    });
    assert_eq!(status, illegal);
    let status = no(&mut h, |plan| {
        plan.admit_with(
            |admit| (admit.grammar_handle, admit.grammar_replay, admit.seed_handle) = (grammar, 3, 7),
            1,
            staged,
        )
    });
    assert_eq!(status, illegal, "control characters are no JSON");
    let status =
        no(&mut h, |plan| plan.admit_with(|admit| (admit.grammar_handle, admit.seed_handle) = (grammar, 7), 1, staged));
    assert_eq!(status, Status::RejectStaleSeed, "the grammar is fine, so the seed decides");
    admit(&mut h, 1, &[1, 2, 3], &[], with_grammar(grammar));
}

/// R-62, T-3: a plan that is refused late has borrowed nothing.
#[test]
fn refused_plan_borrows_nothing() {
    let mut h = engine_with(SUPPORTS[1], |options| options.descriptor.cells_total = 8);
    let grammar = h.engine.grammar_create(COMPACT).expect("it compiles");
    let staged = h.prompt(&[1, 2, 3]);
    let status = no(&mut h, |plan| plan.admit_with(with_grammar(grammar), 1, staged).prefill(1, 0, 3).decode(1, 100));
    assert_eq!(status, Status::NeedsReplan);
    assert_eq!(h.engine.primitives().mem_counters().cells_used, 0);
    ok(&mut h, |plan| plan.admit_with(with_grammar(grammar), 1, staged).prefill(1, 0, 3).decode(1, 2));
}
