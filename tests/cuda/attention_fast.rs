//! Paged attention on tensor cores: its distance from double precision, and that a row has the same bits by any way.

use crate::attention::{Case, Rows, Shape};
use crate::random::Random;
use crate::simulator::device;
use crate::weights::bits;

const SEGMENT: usize = 256;

fn shape(heads: usize, kv_heads: usize, dim: usize, page_size: usize, window: usize) -> Shape {
    Shape { heads, kv_heads, dim, page_size, window, half: true, fast: true }
}

fn shapes() -> Vec<(Shape, Vec<Rows>)> {
    let rows = |list: &[(usize, usize)]| list.iter().map(|&(rows, start)| Rows { rows, start }).collect();
    vec![
        // Segments end at 256: rows on both sides, and a chunk that crosses it; pages of an odd size; nobody before.
        (shape(3, 1, 64, 16, 0), rows(&[(1, 255), (1, 256), (5, 253), (2, 40), (1, 0)])),
        (shape(2, 2, 96, 5, 0), rows(&[(3, 300), (2, 30)])),
        // More pairs than a block takes.
        (shape(8, 2, 64, 16, 0), rows(&[(17, 249)])),
        (shape(9, 1, 128, 32, 0), rows(&[(8, 10)])),
        // A window shorter than a tile, that begins inside of one and leaves whole segments out; one that is longer.
        (shape(4, 2, 128, 16, 21), rows(&[(4, 298), (1, 10), (1, 530)])),
        (shape(2, 1, 64, 16, 270), rows(&[(6, 520)])),
        (shape(6, 2, 256, 16, 0), rows(&[(12, 250)])),
        (shape(2, 1, 256, 8, 40), rows(&[(2, 5), (1, 280)])),
        // More segments than a merge reads at once.
        (shape(1, 1, 64, 64, 0), rows(&[(1, 2310)])),
    ]
}

/// How far a row's output may be from `exact`, by what is rounded: queries and weights to f16, sums to f32.
///
/// A score (in units of e) is off by its queries, 2^-11 of each product and below 2^-25 where they are tiny, and by its sum: a tensor core may cut off
/// 2^-23 of the largest partial sum at each of `dim` products. Weights are off by that, by the exponential and by the factors of tiles and segments that they
/// went through. In the numerator they are rounded again, 2^-11 or 2^-25 of the largest.
struct Bound {
    /// Relative, of a weight.
    weight: f64,
    positions: f64,
}

impl Bound {
    fn new(shape: &Shape, products: f64, keys: f64, positions: usize) -> Self {
        let half = 2_f64.powi(-11);
        let single = 2_f64.powi(-23);
        let score = products * (half + (shape.dim as f64 + 4.0) * single) + keys * 2_f64.powi(-25);
        let steps = (positions / 16 + 4) as f64;
        Self {
            weight: (score + 2.0 * products * single).exp() - 1.0 + 8.0 * steps * single,
            positions: positions as f64,
        }
    }

    /// Of an output, of which `values` is the mean of the absolute values by weight, and `all` their sum without weights.
    fn of(&self, exact: f64, values: f64, all: f64) -> f64 {
        let numerator = values * (self.weight + 2_f64.powi(-11) + self.positions * 2_f64.powi(-22));
        (numerator + all * 2_f64.powi(-25) + exact.abs() * self.weight) / (1.0 - self.weight)
    }
}

/// Each output with its bound: plain softmax in double precision.
fn exact(case: &Case) -> Vec<(f64, f64)> {
    let Shape { heads, kv_heads, dim, page_size, window, .. } = case.shape;
    let mut out = Vec::new();
    for (span, r) in case.rows.iter().enumerate() {
        for position in r.start..r.start + r.rows {
            let seen = if window == 0 { 0 } else { (position + 1).saturating_sub(window) }..position + 1;
            for head in 0..heads {
                let query = &case.queries[out.len()..][..dim];
                let cell = |p: usize, part: usize| {
                    let page = case.table[span * case.width + p / page_size] as usize;
                    let part = 2 * (head / (heads / kv_heads)) + part;
                    &case.pool[((page * kv_heads * 2 + part) * page_size + p % page_size) * dim..][..dim]
                };
                let scale = f64::from(case.scale());
                let products =
                    |p: usize| query.iter().zip(cell(p, 0)).map(|(&q, &k)| f64::from(q) * f64::from(k) * scale);
                let scores: Vec<f64> = seen.clone().map(|p| products(p).sum()).collect();
                let most_products = seen.clone().map(|p| products(p).map(f64::abs).sum::<f64>()).fold(0.0, f64::max);
                let most_keys = seen.clone().map(|p| cell(p, 0).iter().map(|k| f64::from(k.abs())).sum::<f64>());
                let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let weights: Vec<f64> = scores.iter().map(|score| (score - most).exp()).collect();
                let sum: f64 = weights.iter().sum();
                let bound = Bound::new(&case.shape, most_products, most_keys.fold(0.0, f64::max), seen.len());
                for d in 0..dim {
                    let values: Vec<f64> = seen.clone().map(|p| f64::from(cell(p, 1)[d])).collect();
                    let mean = |f: fn(f64) -> f64| {
                        weights.iter().zip(&values).map(|(weight, &value)| weight / sum * f(value)).sum::<f64>()
                    };
                    let exact = mean(|value| value);
                    let all = values.iter().map(|value| value.abs()).sum::<f64>();
                    out.push((exact, bound.of(exact, mean(f64::abs), all)));
                }
            }
        }
    }
    out
}

#[test]
fn cuda_fast_attention_is_as_far_from_double_as_rounding_explains() {
    let Some(mut device) = device() else { return };
    let mut random = Random::new("fast attention");
    for (shape, rows) in shapes() {
        let case = Case::new(&mut random, shape, &rows);
        let exact = exact(&case);
        let got = case.decode(&mut device);
        assert_eq!(bits(&case.prefill(&mut device)), bits(&got), "{shape:?}: walking");
        let (mut most, mut squares) = (0.0_f64, 0.0);
        for (i, (&got, &(exact, bound))) in got.iter().zip(&exact).enumerate() {
            let error = (f64::from(got) - exact).abs();
            assert!(error <= bound, "{shape:?} [{i}]: {got} instead of {exact}, off by {error:e} and not {bound:e}");
            most = most.max(error / bound);
            squares += error * error;
        }
        let mean = (squares / exact.len() as f64).sqrt();
        println!("{shape:?}: {:.1} % of the bound at most, root mean square {mean:.1e}", 100.0 * most);
        // Values below 1 and errors of 2^-12 on average that mostly cancel.
        assert!(mean < 2e-4, "{shape:?}: {mean:e}");
    }
}

/// Promise 1: a row has the same bits alone, in a chunk, beside others, by either kernel, in every schedule.
#[test]
fn cuda_fast_attention_of_a_row_has_the_same_bits_however_it_is_run() {
    let Some(mut device) = device() else { return };
    let mut random = Random::new("fast attention bits");
    for (shape, rows) in shapes() {
        let case = Case::new(&mut random, shape, &rows);
        let together = bits(&case.prefill(&mut device));
        assert!(bits(&case.decode(&mut device)) == together, "{shape:?}: by segments");
        let width = shape.heads * shape.dim;
        let mut first = 0;
        for (span, r) in rows.iter().enumerate() {
            // The first, the last and any: alone by either kernel.
            for i in [0, r.rows - 1, random.below(r.rows)] {
                let alone = case.row(span, i);
                let expected = &together[(first + i) * width..][..width];
                assert!(bits(&alone.decode(&mut device)) == expected, "{shape:?}: row {i} of {r:?} alone");
                assert!(bits(&alone.prefill(&mut device)) == expected, "{shape:?}: row {i} of {r:?} alone, walking");
            }
            first += r.rows;
        }
    }
    for index in [0, 7] {
        let (shape, rows) = shapes().swap_remove(index);
        let case = Case::new(&mut random, shape, &rows[..2]);
        let prefill = device.in_every_schedule(|device| bits(&case.prefill(device)));
        assert!(device.in_every_schedule(|device| bits(&case.decode(device))) == prefill);
    }
}

/// Segments that sequences have in the same pages, computed once for any of them: the bits of each for itself.
#[test]
fn cuda_fast_attention_over_shared_pages_has_the_bits_of_each_row_alone() {
    let Some(mut device) = device() else { return };
    let mut random = Random::new("fast shared attention");
    for shape in [shape(4, 1, 64, 16, 0), shape(6, 2, 96, 8, 300), shape(5, 1, 128, 16, 0), shape(2, 1, 256, 16, 520)] {
        let mut rows = vec![Rows { rows: 1, start: random.between(512, 560) }];
        let mut shared = vec![2];
        for _ in 0..random.between(2, 5) {
            let segments = random.between(0, 2);
            rows.push(Rows { rows: random.between(1, 3), start: segments * SEGMENT + random.between(0, 200) });
            shared.push(segments);
        }
        let case = Case::sharing(&mut random, shape, &rows, &shared);
        let expected = bits(&case.decode(&mut device));
        assert!(bits(&case.prefill(&mut device)) == expected, "{shape:?}: walking");
        let lists = case.grouped(&mut random);
        let grouped = device.in_every_schedule(|device| bits(&case.split(device, &lists)));
        assert!(grouped == expected, "{shape:?} {rows:?} {:?}", lists.tasks);
    }
}

/// What a row does not see cannot reach it, whatever it is: NaN and infinities of later positions, of other pages, of positions before the window. A row that
/// sees some is NaN.
#[test]
fn cuda_fast_attention_reads_nothing_that_a_row_does_not_see() {
    let Some(mut device) = device() else { return };
    let mut random = Random::new("fast attention unseen");
    for (dim, window) in [(64, 0), (64, 9), (96, 9), (128, 0), (256, 9)] {
        let shape = shape(4, 2, dim, 16, window);
        let mut case = Case::new(&mut random, shape, &[Rows { rows: 6, start: 250 }]);
        let before = case.decode(&mut device);
        let mut poison = |position: usize, parts: &[usize], value: f32, dims: std::ops::Range<usize>| {
            let page = case.table[position / 16] as usize;
            for part in parts {
                let at = ((page * 4 + part) * 16 + position % 16) * dim;
                case.pool[at..][dims.clone()].fill(value);
            }
        };
        if window > 0 {
            // Nobody sees it; it lies in a tile that others are looked up in.
            poison(240, &[0, 2], f32::NAN, 0..dim);
            poison(240, &[1, 3], f32::INFINITY, 0..dim);
        }
        // Only the last row sees these: a value that is infinite in one dimension, and a key that is NaN.
        poison(255, &[1], f32::NEG_INFINITY, dim - 1..dim);
        poison(255, &[2], f32::NAN, 3..4);
        let after = [case.decode(&mut device), case.prefill(&mut device)];
        assert_eq!(bits(&after[0]), bits(&after[1]));
        let seen = 5 * 4 * dim;
        assert_eq!(bits(&before[..seen]), bits(&after[0][..seen]), "rows before the last");
        assert!(after[0][seen..].iter().all(|value| value.is_nan()), "what is no number and seen stays none");
    }
}
