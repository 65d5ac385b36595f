//! Bias, penalties and log-probabilities, through the engine.

use ictus::engine::Engine;
use ictus::record::constant::sampling;
use ictus::record::{LaneAdmit, Status};
use ictus::runtime::Vocabulary;
use ictus::testing::top_margin;

use super::host::*;

fn bias(h: &mut Fake, tokens: &[i32], addends: &[f32]) -> u32 {
    h.engine.logit_bias_create(tokens, addends).expect("bias is offered")
}

/// The sampled vectors of R-31: vocabulary 64, end token ignored, after [5, 6, 7], base 42.
#[test]
fn sampled_tokens_are_the_published_ones() {
    let plain_draw = |admit: &mut LaneAdmit| {
        admit.params.temperature = 8.0;
        admit.params.top_p = 1.0;
    };
    let shaped_draw = |admit: &mut LaneAdmit| {
        admit.params.temperature = 8.0;
        admit.params.top_p = 0.9;
        admit.params.min_p = 0.02;
        admit.params.top_k = 50;
        admit.params.repeat_penalty = 1.3;
        admit.params.presence_penalty = 0.2;
        admit.params.freq_penalty = 0.1;
    };
    let vectors: [(Change<'_>, [u32; 12]); 2] = [
        (&plain_draw, [2, 4, 34, 58, 47, 35, 51, 52, 28, 55, 56, 63]),
        (&shaped_draw, [23, 54, 6, 26, 6, 36, 60, 44, 34, 4, 34, 45]),
    ];
    for support in SUPPORTS {
        for (change, published) in vectors {
            for grants in [vec![12], vec![1; 12], vec![5, 7]] {
                let mut h = fake(|options| {
                    small(options);
                    options.descriptor.sampling = support;
                });
                let draw = |admit: &mut LaneAdmit| {
                    admit.sampling = sampling::GPU_GUMBEL;
                    admit.rng_counter_base = 42;
                    change(admit);
                };
                let mut tokens = start(&mut h, 1, &[5, 6, 7], grants[0], draw);
                for &grant in &grants[1..] {
                    tokens.extend(more(&mut h, 1, grant));
                }
                assert_eq!(tokens, published, "{support:?} {grants:?}");
            }
        }
    }
}

/// The log-probability vector of R-31, and the margin of E-52.
#[test]
fn logprob_record_is_the_published_one() {
    // The published digits come from a log-sum-exp in f32, whose step near 10 is 9.5e-7.
    const TOLERANCE: f32 = 5e-7;
    for support in SUPPORTS {
        let mut h = fake(|options| {
            small(options);
            options.descriptor.sampling = support;
        });
        let staged = h.prompt(&[5, 6, 7]);
        let events = ok(&mut h, |plan| {
            plan.admit_with(|admit| admit.want_logprobs = 4, 1, staged).prefill(1, 0, 3).decode(1, 1)
        });
        let record = events.logprobs[0];
        assert!((record.logprob - -0.0029449).abs() < TOLERANCE, "{}", record.logprob);
        assert_eq!((record.n_top, &record.top_ids[..3]), (3, &[7, 21, 28][..]));
        assert_eq!(record.top_logprobs[0], record.logprob);
        assert!(record.top_ids[3..].iter().all(|&id| id == 0));
        assert!(top_margin(&record) > 9.0);
    }
}

/// T-115: mode GPU_GREEDY is greedy at any temperature, GPU_GUMBEL is at none.
#[test]
fn greedy_mode_and_no_temperature_are_greedy() {
    for (mode, temperature) in [(sampling::GPU_GREEDY, 8.0), (sampling::GPU_GUMBEL, 0.0), (sampling::GPU_GUMBEL, -1.0)]
    {
        let mut h = fake(small);
        let tokens = start(&mut h, 1, &[5, 6, 7], 8, |admit| {
            admit.sampling = mode;
            admit.params.temperature = temperature;
            admit.params.top_p = 1.0;
        });
        assert_eq!(tokens, greedy_after(&h, &[5, 6, 7], 8), "{mode} {temperature}");
    }
}

/// TS-20 (T-122).
#[test]
fn every_emitted_token_has_its_logprob() {
    let mut h = fake(|_| {});
    let staged = h.prompt(&[1, 2, 3]);
    let events =
        ok(&mut h, |plan| plan.admit_with(|admit| admit.want_logprobs = 1, 7, staged).prefill(7, 0, 3).decode(7, 3));
    let records = events.logprobs_for(7);
    assert_eq!((records.len(), events.logprobs.len()), (3, 3));
    assert!(records.iter().all(|record| record.logprob <= 0.0 && record.logprob > -50.0));
    assert_eq!(ok(&mut h, |plan| plan.decode(7, 2)).logprobs.len(), 2);
    assert_eq!(ok(&mut h, |plan| plan).logprobs.len(), 0);
}

/// TS-21 (T-122).
#[test]
fn alternatives_are_one_fewer_than_asked_and_at_most_twenty() {
    for (wanted, alternatives) in
        [(0, None), (1, Some(0)), (4, Some(3)), (21, Some(20)), (25, Some(20)), (255, Some(20))]
    {
        let mut h = fake(|_| {});
        let staged = h.prompt(&[1, 2, 3]);
        let events = ok(&mut h, |plan| {
            plan.admit_with(|admit| admit.want_logprobs = wanted, 1, staged).prefill(1, 0, 3).decode(1, 1)
        });
        assert_eq!(events.logprobs.first().map(|record| record.n_top), alternatives, "asked for {wanted}");
    }
}

/// TS-62 (T-105, T-140): emits follow the plan, log-probabilities the rounds in ascending tag.
#[test]
fn logprobs_follow_the_rounds() {
    let mut h = fake(|_| {});
    let (a, b) = (h.prompt(&[1, 2, 3]), h.prompt(&[4, 5, 6]));
    let log = |admit: &mut LaneAdmit| admit.want_logprobs = 1;
    let events = ok(&mut h, |plan| {
        let plan = plan.admit_with(log, 9, a).admit_with(log, 4, b).prefill(9, 0, 3).prefill(4, 0, 3);
        plan.decode(9, 2).decode(4, 2)
    });
    assert_eq!(events.emits.iter().map(|emit| emit.lane_tag).collect::<Vec<_>>(), [9, 4]);
    assert_eq!(events.logprobs.iter().map(|record| record.lane_tag).collect::<Vec<_>>(), [4, 9, 4, 9]);
}

/// TS-22 (T-112, T-33, E-12): a bias decides, its handle is freed once, and a lane keeps its copy.
#[test]
fn bias_decides_and_outlives_its_handle() {
    let mut h = fake(|_| {});
    let handle = bias(&mut h, &[5], &[100.0]);
    assert!(handle >= 1);
    let tokens = start(&mut h, 1, &[1, 2, 3], 2, |admit| admit.logit_bias_handle = handle);
    assert_eq!(tokens, [5, 5]);
    assert_eq!(h.engine.logit_bias_free(handle), Ok(()));
    assert_eq!(h.engine.logit_bias_free(handle), Err(Status::UnknownHandle));
    assert_eq!(more(&mut h, 1, 2), [5, 5]);
    let staged = h.prompt(&[1, 2, 3]);
    for gone in [handle, 99] {
        let status = no(&mut h, |plan| plan.admit_with(|admit| admit.logit_bias_handle = gone, 2, staged));
        assert_eq!(status, Status::RejectIllegalCombination);
    }
    assert!(bias(&mut h, &[5], &[1.0]) > handle, "handles ascend and are never reused");
}

/// E-12: a list is zipped to the shorter side, drops foreign ids, and adds an id twice that is listed twice.
#[test]
fn bias_lists_are_taken_as_published() {
    for (tokens, addends, expected) in [
        (&[7, 7][..], &[6.0, 6.0][..], true),
        (&[7, 7], &[6.0], false),
        (&[7], &[12.0, 99.0], true),
        (&[-1, 64, i32::MAX, 7], &[50.0, 50.0, 50.0, 12.0], true),
        (&[], &[], false),
    ] {
        let mut h = fake(small);
        let handle = bias(&mut h, tokens, addends);
        let token = start(&mut h, 1, &[1, 2], 1, |admit| admit.logit_bias_handle = handle)[0];
        let best = greedy_after(&h, &[1, 2], 1)[0];
        assert_ne!(best, 7);
        assert_eq!(token, if expected { 7 } else { best }, "{tokens:?} {addends:?}");
    }
}

/// A bias of 18 on `token` and a repeat penalty: which token is the first?
fn biased_first(h: &mut Fake, prompt: &[u32], token: u32, repeat: f32) -> u32 {
    let handle = bias(h, &[token as i32], &[18.0]);
    let shape = |admit: &mut LaneAdmit| {
        admit.logit_bias_handle = handle;
        admit.params.repeat_penalty = repeat;
    };
    start(h, u64::from(handle), prompt, 1, shape)[0]
}

/// TS-23 (T-112, T-113): bias comes before the penalty.
#[test]
fn bias_comes_before_the_penalty() {
    let mut h = fake(|_| {});
    let prompt = [1, 2, 3];
    let best = greedy_after(&h, &prompt, 1)[0];
    assert_eq!(biased_first(&mut h, &prompt, 2, 2.0), best);
    assert_eq!(biased_first(&mut h, &prompt, 2, 1.0), 2);
    assert_eq!(biased_first(&mut h, &prompt, 2, 0.0), 2, "0 means 1");
}

/// TS-24 (T-114): special and end tokens are exempt, where a vocabulary says which they are.
#[test]
fn special_tokens_are_exempt_from_penalties() {
    let prompt = [1, 2, 3];
    let listed = |special: &[u32], end_ids: &[u32]| Vocabulary {
        tokens: vec![],
        special: special.iter().map(|&id| (format!("<{id}>"), id)).collect(),
        end_ids: end_ids.to_vec(),
    };
    let cases = [
        (Some(listed(&[9, 2], &[])), true),
        (Some(listed(&[], &[2])), true),
        (Some(listed(&[9], &[31999])), false),
        (None, false),
    ];
    for (vocabulary, exempt) in cases {
        let name = format!("{vocabulary:?}");
        let mut h = fake(|options| options.vocabulary = vocabulary);
        let best = greedy_after(&h, &prompt, 1)[0];
        assert_eq!(biased_first(&mut h, &prompt, 2, 2.0), if exempt { 2 } else { best }, "{name}");
    }
}

/// TS-72 (T-113): the window is the last 64 committed tokens.
#[test]
fn penalties_look_back_on_sixty_four_tokens() {
    for (len, penalised) in [(64, true), (65, false)] {
        let mut h = fake(|_| {});
        let prompt = span(100, 100 + len);
        let best = greedy_after(&h, &prompt, 1)[0];
        assert_eq!(biased_first(&mut h, &prompt, 100, 2.0), if penalised { best } else { 100 });
    }
}

/// T-113: the window moves with the tokens that are made.
#[test]
fn penalties_count_the_tokens_just_made() {
    let mut h = fake(small);
    let handle = bias(&mut h, &[7], &[30.0]);
    let tokens = start(&mut h, 1, &[1, 2], 4, |admit| {
        admit.logit_bias_handle = handle;
        // Each 7 costs 9: 30, 21, 12, then 3 is below the model's 10.
        admit.params.freq_penalty = 9.0;
    });
    assert_eq!(tokens[..3], [7, 7, 7]);
    assert_eq!(tokens[3], greedy_after(&h, &[1, 2, 7, 7, 7], 1)[0]);
}

/// T-122, T-112: log-probabilities are those of the shaped row, before temperature.
#[test]
fn logprobs_see_bias_but_not_temperature() {
    let first = |temperature: f32, addend: f32| {
        let mut h = fake(small);
        let handle = bias(&mut h, &[7], &[addend]);
        let staged = h.prompt(&[1, 2]);
        let shape = |admit: &mut LaneAdmit| {
            admit.sampling = sampling::GPU_GUMBEL;
            admit.params.temperature = temperature;
            admit.params.top_p = 0.0;
            admit.logit_bias_handle = handle;
            admit.want_logprobs = 3;
        };
        ok(&mut h, |plan| plan.admit_with(shape, 1, staged).prefill(1, 0, 2).decode(1, 1)).logprobs[0]
    };
    let (cold, warm) = (first(0.0, 30.0), first(5.0, 30.0));
    assert_eq!(format!("{cold:?}"), format!("{warm:?}"));
    assert_eq!(cold.top_ids[0], 7);
    assert!(cold.logprob > -1e-6 && first(0.0, 0.0).logprob < -1e-3);
}
