//! Picking a token, per size of vocabulary: what each part of a pick costs beside the row it reads.
//!
//! Every case first picks by sorting the whole list, or by the plainest loop, and asserts that the timed code names the same
//! token.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use ictus::sample::{
    Cuts, Penalty, SampleRequest, Scratch, argmax, draw, logprobs, pick, probabilities, row_is_finite, uniform,
};

/// Vocabularies of the models at hand: SmolLM2, Qwen, Gemma.
const VOCABULARIES: [usize; 3] = [49_152, 151_936, 262_144];

/// A row as models write them: noise, a slope of likely tokens, one that is ahead.
fn row(n: usize) -> Vec<f32> {
    (0..n as u64)
        .map(|i| {
            let noise = (uniform(i) + uniform(i ^ 0xABCD) + uniform(i ^ 0x1234_5678)) as f32 * 4.0 - 6.0;
            noise + if i % 997 == 0 { 9.0 } else { 0.0 }
        })
        .collect()
}

/// T-116 .. T-118 over the fully sorted list, top-k and top-p only.
fn sorted_draw(row: &[f32], temperature: f32, top_k: usize, top_p: f32, u: f64) -> u32 {
    let mut p = Vec::new();
    probabilities(row, temperature, &mut p);
    let mut list: Vec<(f32, u32)> = p.into_iter().zip(0..).collect();
    list.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    let mut cut = false;
    if top_k != 0 {
        list.truncate(top_k);
        cut = true;
    }
    if top_p < 1.0 {
        let mut mass = 0.0;
        let head = list.iter().position(|&(p, _)| {
            mass += p;
            mass >= top_p
        });
        if let Some(head) = head.filter(|&head| head + 1 < list.len()) {
            list.truncate(head + 1);
            cut = true;
        }
    }
    let total = if cut { list.iter().fold(0.0, |sum, &(p, _)| sum + p) } else { 1.0 };
    let mut target = u as f32 * total;
    for &(p, id) in &list {
        if target < p {
            return id;
        }
        target -= p;
    }
    list.last().map_or(0, |&(_, id)| id)
}

fn parts(criterion: &mut Criterion) {
    for n in VOCABULARIES {
        let row = row(n);
        let mut group = criterion.benchmark_group("part");
        group.throughput(Throughput::Bytes(4 * n as u64));
        let plainest = (0..n).fold(0, |best, i| if row[i] > row[best] { i } else { best });
        assert_eq!(argmax(&row), plainest as u32);
        group.bench_function(BenchmarkId::new("argmax", n), |b| b.iter(|| argmax(black_box(&row))));
        assert!(row_is_finite(&row));
        group.bench_function(BenchmarkId::new("row_is_finite", n), |b| b.iter(|| row_is_finite(black_box(&row))));
        let mut out = Vec::new();
        probabilities(&row, 0.8, &mut out);
        let mass: f64 = out.iter().map(|&p| f64::from(p)).sum();
        assert!((mass - 1.0).abs() < 1e-4, "{mass}");
        group.bench_function(BenchmarkId::new("probabilities", n), |b| {
            b.iter(|| probabilities(black_box(&row), 0.8, &mut out));
        });
        let best = logprobs(&row, plainest as u32, 5);
        assert_eq!(best.top_ids[0], plainest as u32);
        group.bench_function(BenchmarkId::new("logprobs_5", n), |b| {
            b.iter(|| logprobs(black_box(&row), plainest as u32, 5));
        });
        group.finish();
    }
}

fn draws(criterion: &mut Criterion) {
    let cases = [
        ("no_cut", Cuts::OFF),
        ("top_k_40", Cuts { top_k: 40, ..Cuts::OFF }),
        ("top_p_95", Cuts { top_p: 0.95, ..Cuts::OFF }),
        ("top_k_40_top_p_95", Cuts { top_k: 40, top_p: 0.95, min_p: 0.0 }),
    ];
    for n in VOCABULARIES {
        let row = row(n);
        let mut group = criterion.benchmark_group("draw");
        let mut scratch = Scratch::new();
        for (name, cuts) in cases {
            for position in 0..8 {
                let u = uniform(position);
                let sorted = sorted_draw(&row, 0.8, cuts.top_k as usize, cuts.top_p, u);
                assert_eq!(draw(&row, 0.8, cuts, u, &mut scratch), sorted, "{name} {n} at {position}");
            }
            let mut position = 0;
            group.bench_function(BenchmarkId::new(name, n), |b| {
                b.iter(|| {
                    position += 1;
                    draw(black_box(&row), 0.8, cuts, uniform(position), &mut scratch)
                });
            });
        }
        group.finish();
    }
}

fn whole_picks(criterion: &mut Criterion) {
    let n = VOCABULARIES[1];
    let row = row(n);
    let window: Vec<u32> = (0..64).map(|i| i * 997 % n as u32).collect();
    let penalty = Penalty { repeat: 1.1, presence: 0.1, frequency: 0.1, window: &window, exempt: &[1, 2] };
    let bias = [(5, 1.0), (7, -1.0)];
    let plain = SampleRequest::default();
    let chat = SampleRequest { temperature: 0.7, top_k: 40, top_p: 0.95, min_p: 0.05, position: 9, ..plain };
    let everything = SampleRequest { penalty: Some(penalty), bias: &bias, logprobs: Some(5), ..chat };
    let mut group = criterion.benchmark_group("pick");
    let mut scratch = Scratch::new();
    let mut shaped = row.clone();
    for (name, request) in [("greedy", plain), ("chat", chat), ("everything", everything)] {
        let first = pick(&mut row.clone(), &request, &mut scratch).expect("the row is finite");
        group.bench_function(BenchmarkId::new(name, n), |b| {
            b.iter(|| {
                shaped.copy_from_slice(&row);
                let again = pick(&mut shaped, &request, &mut scratch);
                assert_eq!(again, Ok(first));
            });
        });
    }
    group.finish();
}

criterion_group!(benches, parts, draws, whole_picks);
criterion_main!(benches);
