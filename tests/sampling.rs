//! Picking tokens (T-112 .. T-122): RS-25 .. RS-28, and random rows against naive versions.
//!
//! Two references. One sorts the whole list in f32, as the contract is written: the tokens must be identical (RS-27). The other
//! computes everything in f64: it must name the same token unless the draw falls within rounding of a boundary.

#[path = "common/random.rs"]
#[allow(dead_code, reason = "this file uses a part of it")]
mod random;

use ictus::record::SamplingParams;
use ictus::record::view::Plain;
use ictus::sample::{
    Cuts, PENALTY_WINDOW, Penalty, SampleError, SampleRequest, Scratch, argmax, draw, logprobs, pick, probabilities,
    uniform,
};
use random::Random;

const INF: f32 = f32::INFINITY;
const NAN: f32 = f32::NAN;

/// Logits whose probabilities at temperature 1 are these.
fn logits(probabilities: &[f64]) -> Vec<f32> {
    probabilities.iter().map(|p| p.ln() as f32).collect()
}

fn drawn(row: &[f32], cuts: Cuts, u: f64) -> u32 {
    draw(row, 1.0, cuts, u, &mut Scratch::new())
}

/// RS-25 (T-115).
#[test]
fn argmax_takes_the_lowest_of_the_best() {
    let cases: [(&[f32], u32); 12] = [
        (&[1.0, 3.0, 3.0, 2.0], 1),
        (&[0.0, -0.0], 0),
        (&[-0.0, 0.0], 0),
        (&[1.0, NAN, 2.0], 2),
        (&[NAN, 5.0, 9.0], 0),
        (&[1.0, INF, INF], 1),
        (&[-INF, -1e30, -INF], 1),
        (&[-INF, -INF], 0),
        (&[-INF, NAN], 0),
        (&[NAN], 0),
        (&[], 0),
        (&[-3.0], 0),
    ];
    for (row, best) in cases {
        assert_eq!(argmax(row), best, "{row:?}");
    }
    // At every place of a row longer than a block of lanes, and doubled.
    for len in [15, 16, 17, 33, 100] {
        for at in 0..len {
            let mut row = vec![-1.0; len];
            row[at] = 4.0;
            row[len - 1] = 4.0;
            assert_eq!(argmax(&row), at as u32);
        }
    }
}

/// RS-26 (T-117, T-118).
#[test]
fn cuts_and_the_walk_end_where_the_contract_says() {
    // Top-k 1 is greedy at any temperature.
    let row = [0.1, 0.9, 0.3, 0.9];
    for temperature in [0.01, 1.0, 100.0] {
        for u in [0.0, 0.5, 0.999_999_999] {
            let cuts = Cuts { top_k: 1, ..Cuts::OFF };
            assert_eq!(draw(&row, temperature, cuts, u, &mut Scratch::new()), 1);
        }
    }
    // .4/.3/.3 with top-k 2: the second survives a nucleus of .5, but not one of .39.
    let row = logits(&[0.4, 0.3, 0.3]);
    let cuts = |top_p| Cuts { top_k: 2, top_p, min_p: 0.0 };
    assert_eq!(drawn(&row, cuts(0.5), 0.9), 1);
    assert_eq!(drawn(&row, cuts(0.39), 0.9), 0);
    // A nucleus of nothing keeps the best.
    let cuts = Cuts { top_p: 0.0, ..Cuts::OFF };
    assert_eq!(drawn(&logits(&[0.2, 0.5, 0.3]), cuts, 0.99), 1);
    // u just below 1 is 1.0 in f32: the last token with mass.
    let u = uniform(0).max(1.0 - f64::EPSILON / 2.0);
    assert_eq!(u as f32, 1.0);
    assert_eq!(drawn(&[1.0, 2.0, -INF, 0.0, -1e9], Cuts::OFF, u), 3);
    // A flat row of 4000.
    assert!(drawn(&[0.25; 4000], Cuts::OFF, 0.9999) >= 3990);
    // No mass.
    for row in [&[][..], &[NAN, NAN], &[-INF, -INF], &[INF, 1.0]] {
        assert_eq!(drawn(row, Cuts::OFF, 0.7), 0, "{row:?}");
        assert_eq!(drawn(row, Cuts { top_k: 3, min_p: 0.1, top_p: 0.5 }, 0.7), 0, "{row:?}");
    }
    // Min-p keeps at least the best, whatever it asks.
    assert_eq!(drawn(&logits(&[0.2, 0.5, 0.3]), Cuts { min_p: 7.0, ..Cuts::OFF }, 0.9), 1);
    assert_eq!(drawn(&logits(&[0.2, 0.5, 0.3]), Cuts { min_p: 0.59, ..Cuts::OFF }, 0.99), 2);
    assert_eq!(drawn(&logits(&[0.2, 0.5, 0.3]), Cuts { min_p: 0.61, ..Cuts::OFF }, 0.99), 1);
}

/// T-118: without a cut the target is u itself, with one it is u of what is kept.
#[test]
fn target_is_a_share_of_what_is_kept() {
    let row = logits(&[0.5, 0.25, 0.125, 0.125]);
    assert_eq!(drawn(&row, Cuts::OFF, 0.6), 1);
    assert_eq!(drawn(&row, Cuts { top_k: 2, ..Cuts::OFF }, 0.6), 0, "0.6 of 0.75 is 0.45");
    assert_eq!(drawn(&row, Cuts { top_k: 2, ..Cuts::OFF }, 0.7), 1, "0.7 of 0.75 is 0.525");
    assert_eq!(drawn(&row, Cuts { top_p: 0.75, ..Cuts::OFF }, 0.6), 0);
}

/// RS-28 (T-122).
#[test]
fn logprobs_are_normalised_and_ranked() {
    let even = logprobs(&[0.0, 0.0], 1, 2);
    assert!((even.logprob - 0.5f32.ln()).abs() < 1e-7);
    assert_eq!((even.n_top, even.top_ids[..2].to_vec()), (2, vec![0, 1]));
    let ranked = logprobs(&[1.0, 5.0, 3.0, 5.0, 0.5], 4, 3);
    assert_eq!((ranked.n_top, ranked.top_ids[..3].to_vec()), (3, vec![1, 3, 2]));
    assert_eq!(ranked.top_logprobs[0], ranked.top_logprobs[1]);
    assert!((ranked.top_logprobs[0] - ranked.logprob - 4.5).abs() < 1e-5);
    assert_eq!((ranked.top_ids[3], ranked.top_logprobs[3]), (0, 0.0));
    // More than there are, and more than twenty.
    assert_eq!(logprobs(&[1.0, 2.0], 0, 9).n_top, 2);
    let many: Vec<f32> = (0..100).map(|i| i as f32).collect();
    let record = logprobs(&many, 3, 77);
    assert_eq!(record.n_top, 20);
    assert_eq!(record.top_ids.to_vec(), (80..100).rev().collect::<Vec<u32>>());
    // Rows that only a mask or a bias can make.
    let masked = logprobs(&[-INF, 2.0, -INF], 1, 3);
    assert_eq!((masked.logprob, masked.top_ids[..3].to_vec()), (0.0, vec![1, 0, 2]));
    assert_eq!(masked.top_logprobs[1], -INF);
    assert_eq!(logprobs(&[NAN, 2.0], 0, 2).logprob, -INF);
    assert_eq!(logprobs(&[NAN, 2.0], 1, 2).n_top, 1);
    assert_eq!(logprobs(&[-INF], 0, 0).logprob, -INF);
    assert_eq!(logprobs(&[], 0, 5).n_top, 0);
    assert_eq!(logprobs(&[INF, 1.0], 0, 1).logprob, 0.0);
    assert_eq!(logprobs(&[INF, 1.0], 1, 1).logprob, -INF);
}

/// T-112: mask, bias, penalties, in this order, then log-probabilities before temperature, then the pick.
#[test]
fn steps_apply_in_their_order() {
    let row = [4.0, 3.0, 2.0, 1.0];
    let masked = SampleRequest { mask: Some(&[0b1110]), ..SampleRequest::default() };
    let run = |request: &SampleRequest<'_>| pick(&mut row.clone(), request, &mut Scratch::new());
    assert_eq!(run(&masked).map(|pick| pick.token), Ok(1));
    // A bias cannot bring a masked token back.
    let biased = SampleRequest { bias: &[(0, 1e30), (3, 9.0)], ..masked };
    assert_eq!(run(&biased).map(|pick| pick.token), Ok(3));
    // 10 / 6 is less than 3 / 1: the penalty sees the bias.
    let penalty = Penalty { repeat: 6.0, presence: 0.0, frequency: 0.0, window: &[3], exempt: &[] };
    let penalised = SampleRequest { penalty: Some(penalty), ..biased };
    assert_eq!(run(&penalised).map(|pick| pick.token), Ok(1));
    let record = |temperature| {
        let request = SampleRequest { logprobs: Some(2), temperature, top_k: 1, ..penalised };
        run(&request).map(|pick| pick.logprobs).expect("something is allowed")
    };
    assert_eq!(record(0.0), record(9.0));
    let expected = logprobs(&[-INF, 3.0, 2.0, 10.0 / 6.0], 1, 2);
    assert_eq!(record(0.0), Some(expected));
    assert_eq!(run(&SampleRequest { mask: Some(&[0b1_0000]), ..masked }), Err(SampleError::NothingAllowed));
}

/// A row of the model that is not finite is refused before anything is applied to it.
#[test]
fn row_that_is_not_finite_is_refused() {
    for bad in [NAN, INF, -INF] {
        for temperature in [0.0, 1.0] {
            let request = SampleRequest { temperature, mask: Some(&[0b1]), ..SampleRequest::default() };
            assert_eq!(pick(&mut [1.0, bad], &request, &mut Scratch::new()), Err(SampleError::NotFinite));
        }
    }
}

/// T-115: a temperature that is not above 0 picks greedily.
#[test]
fn no_temperature_is_greedy() {
    for temperature in [0.0, -0.0, -1.0, NAN, -INF] {
        let request = SampleRequest { temperature, position: 5, ..SampleRequest::default() };
        assert_eq!(pick(&mut [1.0, 2.0], &request, &mut Scratch::new()).map(|pick| pick.token), Ok(1));
    }
}

/// A number in [0, 1).
fn unit(random: &mut Random) -> f64 {
    (random.next() >> 11) as f64 / (1u64 << 53) as f64
}

/// One random question.
struct Case {
    row: Vec<f32>,
    temperature: f32,
    cuts: Cuts,
    u: f64,
}

fn case(random: &mut Random) -> Case {
    let n = *random.pick(&[1, 2, 15, 16, 17, 63, 64, 200, 1000, 5000]);
    let shape = random.below(5);
    let spread = [0.01, 1.0, 4.0, 30.0][random.below(4)];
    let row = (0..n)
        .map(|i| match shape {
            // Noise; noise with ties; a slope; one peak; partly masked.
            0 => (unit(random) as f32 - 0.5) * spread,
            1 => (random.below(4) as f32) * spread,
            2 => -(i as f32) * spread / 100.0,
            3 => {
                if i == n / 2 {
                    12.0
                } else {
                    unit(random) as f32
                }
            }
            _ => {
                if random.below(3) == 0 {
                    -INF
                } else {
                    unit(random) as f32 * spread
                }
            }
        })
        .collect();
    let cuts = Cuts {
        top_k: *random.pick(&[0, 0, 1, 2, 5, 40, 200, 100_000]),
        min_p: *random.pick(&[0.0, 0.0, 0.02, 0.5, 1.0, 1e-30]),
        top_p: *random.pick(&[1.0, 1.0, 0.95, 0.5, 0.1, 0.0, 2.0]),
    };
    let u = if random.below(8) == 0 { 1.0 - f64::EPSILON / 2.0 } else { unit(random) };
    Case { row, temperature: *random.pick(&[0.1, 0.7, 1.0, 1.5, 8.0]), cuts, u }
}

/// T-116 .. T-118 as they are written: sort everything, cut, walk.
fn fully_sorted(case: &Case) -> u32 {
    let mut p = Vec::new();
    probabilities(&case.row, case.temperature, &mut p);
    let mut list: Vec<(f32, u32)> = p.iter().copied().zip(0..).collect();
    if list.iter().all(|&(p, _)| p == 0.0) {
        return 0;
    }
    list.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    let whole = list.len();
    let mut cut = false;
    if case.cuts.top_k != 0 {
        list.truncate((case.cuts.top_k as usize).clamp(1, whole));
        cut = true;
    }
    if case.cuts.min_p > 0.0 {
        let (least, before) = (case.cuts.min_p * list[0].0, list.len());
        let kept = list.iter().take_while(|&&(p, _)| p >= least).count();
        list.truncate(kept.max(1));
        cut |= list.len() < before;
    }
    if case.cuts.top_p < 1.0 {
        let (mut mass, before) = (0.0f32, list.len());
        let reached = list.iter().position(|&(p, _)| {
            mass += p;
            mass >= case.cuts.top_p
        });
        list.truncate(reached.map_or(before, |at| at + 1));
        cut |= list.len() < before;
    }
    let total = if cut { list.iter().fold(0.0f32, |sum, &(p, _)| sum + p) } else { 1.0 };
    let mut target = case.u as f32 * total;
    for &(p, id) in &list {
        if target < p {
            return id;
        }
        target -= p;
    }
    list.iter().rev().find(|&&(p, _)| p > 0.0).unwrap_or(&list[0]).1
}

/// RS-27 (T-117): looking at the head of the list names the same token as sorting all of it.
#[test]
fn head_selection_matches_the_full_sort() {
    let mut random = Random::new("head_selection_matches_the_full_sort");
    let mut scratch = Scratch::new();
    for _ in 0..20_000 {
        let case = case(&mut random);
        let token = draw(&case.row, case.temperature, case.cuts, case.u, &mut scratch);
        let Case { row, temperature, cuts, u } = &case;
        assert_eq!(token, fully_sorted(&case), "{} logits, t {temperature}, {cuts:?}, u {u}", row.len());
    }
}

/// T-116: rows and temperatures at the ends of the format, where a product is no number or infinite.
#[test]
fn extreme_temperatures_draw_as_the_full_sort_does() {
    let rows: [&[f32]; 7] = [
        &[0.0, -1.0, 2.0],
        &[0.0, -1.0, -2.0],
        &[-3.0, -1.0, -2.0],
        &[-0.0, 0.0],
        &[f32::MAX, 1.0, f32::MIN],
        &[-INF, 0.0, 1e-40],
        &[NAN, 1.0, -INF, 1.0],
    ];
    for row in rows {
        for temperature in [f32::from_bits(1), 1e-38, 1e-20, 1e20, f32::MAX, INF] {
            for (top_k, u) in [(0, 0.0), (0, 0.6), (2, 0.99)] {
                let case = Case { row: row.to_vec(), temperature, cuts: Cuts { top_k, ..Cuts::OFF }, u };
                let token = draw(row, temperature, case.cuts, u, &mut Scratch::new());
                assert_eq!(token, fully_sorted(&case), "{row:?}, t {temperature:e}, {top_k}, u {u}");
            }
        }
    }
}

/// The same in f64, with the mass of each token; none when the answer hangs on the last bits.
fn in_double_precision(case: &Case) -> Option<u32> {
    // How far a boundary moves when every sum is in f32: a few steps of the format for each of the terms.
    const CLOSE: f64 = 2e-4;
    let best = case.row.iter().copied().fold(-INF, f32::max);
    let scaled = |x: f32| (f64::from(x) - f64::from(best)) / f64::from(case.temperature);
    let weights: Vec<f64> = case.row.iter().map(|&x| scaled(x).exp()).collect();
    let sum: f64 = weights.iter().sum();
    let mut list: Vec<(f64, u32)> = weights.iter().map(|w| w / sum).zip(0..).collect();
    list.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    let whole = list.clone();
    if case.cuts.top_k != 0 {
        // The cut may fall between two tokens that f32 cannot tell apart.
        let k = (case.cuts.top_k as usize).clamp(1, list.len());
        if k < list.len() && list[k - 1].0 != list[k].0 && list[k - 1].0 - list[k].0 < CLOSE * list[k].0 {
            return None;
        }
        list.truncate(k);
    }
    if case.cuts.min_p > 0.0 {
        let least = f64::from(case.cuts.min_p) * list[0].0;
        if list.iter().any(|&(p, _)| (p - least).abs() < CLOSE * least) {
            return None;
        }
        let kept = list.iter().take_while(|&&(p, _)| p >= least).count();
        list.truncate(kept.max(1));
    }
    if case.cuts.top_p < 1.0 {
        let mut mass = 0.0;
        let mut kept = list.len();
        for (index, &(p, _)) in list.iter().enumerate() {
            mass += p;
            if (mass - f64::from(case.cuts.top_p)).abs() < CLOSE {
                return None;
            }
            if mass >= f64::from(case.cuts.top_p) {
                kept = index + 1;
                break;
            }
        }
        list.truncate(kept);
    }
    let total: f64 = list.iter().map(|&(p, _)| p).sum();
    let target = case.u * total;
    let mut mass = 0.0;
    for (index, &(p, id)) in list.iter().enumerate() {
        mass += p;
        if (mass - target).abs() < CLOSE {
            return None;
        }
        if target < mass {
            // A neighbour in the whole order that f32 cannot tell apart may stand here as well.
            let near = |other: Option<&(f64, u32)>| other.is_some_and(|o| o.0 != p && (o.0 - p).abs() < CLOSE * p);
            let before = index.checked_sub(1).and_then(|before| whole.get(before));
            return if near(before) || near(whole.get(index + 1)) { None } else { Some(id) };
        }
    }
    None
}

/// T-116 .. T-118 against the same in double precision.
#[test]
fn draws_match_double_precision() {
    let mut random = Random::new("draws_match_double_precision");
    let mut compared = 0;
    for _ in 0..20_000 {
        let case = case(&mut random);
        let Some(expected) = in_double_precision(&case) else { continue };
        compared += 1;
        let Case { row, temperature, cuts, u } = &case;
        let token = draw(row, *temperature, *cuts, *u, &mut Scratch::new());
        assert_eq!(token, expected, "{} logits, t {temperature}, {cuts:?}, u {u}", row.len());
    }
    println!("{compared} of 20000 draws were far enough from every boundary");
    assert!(compared > 4_000, "only {compared} draws were compared");
}

/// T-113 against a version that counts in a map.
#[test]
fn penalties_match_a_plain_count() {
    let mut random = Random::new("penalties_match_a_plain_count");
    for _ in 0..2_000 {
        let n = 1 + random.below(50);
        let row: Vec<f32> = (0..n).map(|_| (unit(&mut random) as f32 - 0.5) * 8.0).collect();
        let tokens: Vec<u32> = (0..random.below(150)).map(|_| random.below(60) as u32).collect();
        let exempt: Vec<u32> = (0..60).filter(|_| random.below(6) == 0).collect();
        let mut params = SamplingParams::zeroed();
        params.repeat_penalty = *random.pick(&[0.0, 1.0, 1.3, 0.5]);
        params.presence_penalty = *random.pick(&[0.0, 0.25, -0.5]);
        params.freq_penalty = *random.pick(&[0.0, 0.125, -1.0]);
        let mut expected = row.clone();
        let recent = &tokens[tokens.len().saturating_sub(PENALTY_WINDOW)..];
        for id in 0..n as u32 {
            let count = recent.iter().filter(|&&token| token == id).count();
            if count == 0 || exempt.contains(&id) {
                continue;
            }
            let repeat = if params.repeat_penalty == 0.0 { 1.0 } else { params.repeat_penalty };
            let logit = &mut expected[id as usize];
            *logit = if *logit > 0.0 { *logit / repeat } else { *logit * repeat };
            *logit -= params.presence_penalty + params.freq_penalty * count as f32;
        }
        let mut shaped = row;
        if let Some(penalty) = Penalty::of(&params, &tokens, &exempt) {
            penalty.apply(&mut shaped);
        }
        assert_eq!(shaped, expected, "{params:?}");
    }
}

/// T-122 against the same in double precision.
#[test]
fn logprobs_match_double_precision() {
    const BOUND: f64 = 1e-5;
    let mut random = Random::new("logprobs_match_double_precision");
    for _ in 0..500 {
        let case = case(&mut random);
        let best = case.row.iter().copied().fold(-INF, f32::max);
        if best == -INF {
            continue;
        }
        let sum: f64 = case.row.iter().map(|&x| (f64::from(x) - f64::from(best)).exp()).sum();
        let exact = |x: f32| f64::from(x) - f64::from(best) - sum.ln();
        let token = random.below(case.row.len()) as u32;
        let record = logprobs(&case.row, token, 20);
        let mut ids: Vec<u32> = (0..case.row.len() as u32).collect();
        ids.sort_by(|&a, &b| case.row[b as usize].total_cmp(&case.row[a as usize]).then(a.cmp(&b)));
        ids.truncate(20);
        assert_eq!(record.top_ids[..record.n_top as usize], ids);
        let close = |logprob: f32, id: u32| {
            let exact = exact(case.row[id as usize]);
            f64::from(logprob) == exact || (f64::from(logprob) - exact).abs() < BOUND * exact.abs().max(1.0)
        };
        assert!(close(record.logprob, token));
        assert!(ids.iter().zip(record.top_logprobs).all(|(&id, logprob)| close(logprob, id)));
    }
}
