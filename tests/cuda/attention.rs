//! Paged attention: decode by segments and merge, prefill, and that both are one.

use half::f16;

use crate::random::Random;
use crate::simulator::{Arg, Device, Memory, device};
use crate::weights::{bits, values};

const SEGMENT: usize = 256;

/// One sequence's rows of a step: how many, and from which position on.
#[derive(Clone, Copy, Debug)]
struct Rows {
    rows: usize,
    start: usize,
}

#[derive(Clone, Copy, Debug)]
struct Shape {
    heads: usize,
    kv_heads: usize,
    dim: usize,
    page_size: usize,
    window: usize,
    half: bool,
}

/// Sequences with random keys and values at all positions up to their last one, in mixed pages of a pool.
struct Case {
    shape: Shape,
    rows: Vec<Rows>,
    width: usize,
    table: Vec<u32>,
    /// Where in the pool a key or a value begins; nothing else is written on the device.
    cells: Vec<usize>,
    pool: Vec<f32>,
    queries: Vec<f32>,
}

impl Case {
    fn new(random: &mut Random, shape: Shape, rows: &[Rows]) -> Self {
        let Shape { heads, kv_heads, dim, page_size, half, .. } = shape;
        let width = rows.iter().map(|r| (r.start + r.rows).div_ceil(page_size)).max().expect("rows") + 1;
        let mut table: Vec<u32> = (0..(rows.len() * width) as u32).collect();
        random.shuffle(&mut table);
        let mut pool = vec![f32::NAN; rows.len() * width * kv_heads * 2 * page_size * dim];
        let mut cells = Vec::new();
        for (span, r) in rows.iter().enumerate() {
            for position in 0..r.start + r.rows {
                let page = table[span * width + position / page_size] as usize;
                for part in 0..2 * kv_heads {
                    let at = ((page * kv_heads * 2 + part) * page_size + position % page_size) * dim;
                    cells.push(at);
                    for (to, value) in pool[at..at + dim].iter_mut().zip(values(random, dim)) {
                        *to = if half { f16::from_f32(value).to_f32() } else { value };
                    }
                }
            }
        }
        let count: usize = rows.iter().map(|r| r.rows).sum();
        let queries = values(random, count * heads * dim).iter().map(|x| x * 3.0).collect();
        Self { shape, rows: rows.to_vec(), width, table, cells, pool, queries }
    }

    fn scale(&self) -> f32 {
        1.0 / (self.shape.dim as f32).sqrt()
    }

    fn upload(&self, device: &mut Device) -> [Memory; 4] {
        let queries = device.upload(&self.queries);
        let (dim, half) = (self.shape.dim, self.shape.half);
        let pool = if half { device.room::<u16>(self.pool.len()) } else { device.room::<f32>(self.pool.len()) };
        for &at in &self.cells {
            let values = &self.pool[at..at + dim];
            if half {
                let halves: Vec<u16> = values.iter().map(|&x| f16::from_f32(x).to_bits()).collect();
                device.write(pool.from(2 * at), &halves);
            } else {
                device.write(pool.from(4 * at), values);
            }
        }
        let mut first = 0;
        let spans: Vec<u32> = self
            .rows
            .iter()
            .flat_map(|r| {
                first += r.rows;
                [first - r.rows, r.rows, r.start].map(|n| n as u32)
            })
            .collect();
        [queries, pool, device.upload(&self.table), device.upload(&spans)]
    }

    fn sizes(&self) -> [Arg; 7] {
        let Shape { heads, kv_heads, dim, page_size, window, .. } = self.shape;
        let [heads, kv_heads, dim, page_size, width, window] =
            [heads, kv_heads, dim, page_size, self.width, window].map(|n| Arg::U32(n as u32));
        [heads, kv_heads, dim, page_size, width, window, Arg::F32(self.scale())]
    }

    fn kernel(&self, kind: &str) -> String {
        format!("ictus_attention_{kind}_{}", if self.shape.half { "f16" } else { "f32" })
    }

    fn chunks(&self) -> usize {
        let most = self.rows.iter().map(|r| r.rows).max().expect("rows");
        (most * self.shape.heads / self.shape.kv_heads).div_ceil(8)
    }

    fn prefill(&self, device: &mut Device) -> Vec<f32> {
        let memory = self.upload(device);
        let out = device.room::<f32>(self.queries.len());
        let mut arguments: Vec<Arg> = vec![out.into()];
        arguments.extend(memory.map(Arg::from));
        arguments.extend(self.sizes());
        device.launch(&self.kernel("prefill"), [self.chunks(), self.shape.kv_heads, self.rows.len()], &arguments);
        device.read(out)
    }

    fn decode(&self, device: &mut Device) -> Vec<f32> {
        let memory = self.upload(device);
        let last = self.rows.iter().map(|r| r.start + r.rows).max().expect("rows");
        let segments = last.div_ceil(SEGMENT) + 1; // one more than anybody needs
        let pairs = self.queries.len() / self.shape.dim;
        let (partial, states) =
            (device.room::<f32>(pairs * segments * self.shape.dim), device.room::<f32>(pairs * segments * 2));
        let out = device.room::<f32>(self.queries.len());
        let mut arguments: Vec<Arg> = vec![partial.into(), states.into()];
        arguments.extend(memory.map(Arg::from));
        arguments.push(Arg::U32(segments as u32));
        arguments.extend(self.sizes());
        let grid = [segments, self.shape.kv_heads * self.chunks(), self.rows.len()];
        device.launch(&self.kernel("decode"), grid, &arguments);
        let arguments =
            [out.into(), partial.into(), states.into(), Arg::U32(segments as u32), Arg::U32(self.shape.dim as u32)];
        let rows = pairs / self.shape.heads;
        device.launch("ictus_attention_merge", [self.shape.heads, rows, 1], &arguments);
        device.read(out)
    }

    /// Plain softmax in double precision.
    fn exact(&self) -> Vec<f64> {
        let Shape { heads, kv_heads, dim, page_size, window, .. } = self.shape;
        let mut out = Vec::new();
        for (span, r) in self.rows.iter().enumerate() {
            for position in r.start..r.start + r.rows {
                let from = if window == 0 { 0 } else { (position + 1).saturating_sub(window) };
                for head in 0..heads {
                    let query = &self.queries[out.len()..out.len() + dim];
                    let element = |p: usize, part: usize, d: usize| {
                        let page = self.table[span * self.width + p / page_size] as usize;
                        let part = 2 * (head / (heads / kv_heads)) + part;
                        f64::from(self.pool[((page * kv_heads * 2 + part) * page_size + p % page_size) * dim + d])
                    };
                    let score = |p| (0..dim).map(|d| f64::from(query[d]) * element(p, 0, d)).sum::<f64>();
                    let scores: Vec<f64> = (from..=position).map(|p| score(p) * f64::from(self.scale())).collect();
                    let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                    let weights: Vec<f64> = scores.iter().map(|score| (score - most).exp()).collect();
                    let sum: f64 = weights.iter().sum();
                    for d in 0..dim {
                        let terms = weights.iter().zip(from..).map(|(weight, p)| weight * element(p, 1, d));
                        out.push(terms.sum::<f64>() / sum);
                    }
                }
            }
        }
        out
    }
}

fn shapes() -> [(Shape, Vec<Rows>); 5] {
    let shape = |heads, kv_heads, dim, page_size, window, half| Shape { heads, kv_heads, dim, page_size, window, half };
    let rows = |list: &[(usize, usize)]| list.iter().map(|&(rows, start)| Rows { rows, start }).collect();
    [
        (shape(1, 1, 8, 16, 0, false), rows(&[(1, 0), (3, 0)])),
        // Segments end at 256: rows on both sides, and a chunk that crosses it.
        (shape(6, 2, 24, 16, 0, true), rows(&[(1, 255), (1, 256), (5, 253), (2, 40)])),
        // More pairs than a block takes, pages of an odd size.
        (shape(9, 1, 64, 5, 0, false), rows(&[(2, 300)])),
        // A window shorter than a segment, that begins inside one and leaves whole segments out.
        (shape(4, 2, 32, 16, 50, true), rows(&[(4, 298), (1, 10), (1, 530)])),
        // Heads wider than the block has threads.
        (shape(2, 1, 256, 16, 7, false), rows(&[(2, 5)])),
    ]
}

#[test]
fn cuda_attention_matches_double() {
    let Some(mut device) = device() else { return };
    let mut random = Random::new("attention");
    for (shape, rows) in shapes() {
        let case = Case::new(&mut random, shape, &rows);
        let exact = case.exact();
        for got in [case.decode(&mut device), case.prefill(&mut device)] {
            for (i, (&got, &exact)) in got.iter().zip(&exact).enumerate() {
                let error = (f64::from(got) - exact).abs();
                // Values are below 1; scores below 10 are off by a few units, their weights too.
                assert!(error <= 2e-5, "{shape:?} [{i}]: {got} instead of {exact}");
            }
        }
    }
}

/// Promise: a row has the same bits alone, in a chunk, beside others, by either kernel, in every schedule.
#[test]
fn cuda_attention_of_a_row_has_the_same_bits_however_it_is_run() {
    let Some(mut device) = device() else { return };
    let mut random = Random::new("attention bits");
    for (shape, rows) in shapes() {
        let case = Case::new(&mut random, shape, &rows);
        let together = bits(&case.prefill(&mut device));
        assert_eq!(bits(&case.decode(&mut device)), together, "{shape:?}: by segments");
        let width = shape.heads * shape.dim;
        let (mut row, mut span) = (0, 0);
        for r in &rows {
            for i in 0..r.rows {
                // The row alone, with its own table.
                let alone = Case {
                    shape,
                    rows: vec![Rows { rows: 1, start: r.start + i }],
                    width: case.width,
                    table: case.table[span * case.width..][..case.width].to_vec(),
                    cells: case.cells.clone(),
                    pool: case.pool.clone(),
                    queries: case.queries[row * width..][..width].to_vec(),
                };
                let expected = &together[row * width..][..width];
                assert_eq!(bits(&alone.decode(&mut device)), expected, "{shape:?}: row {row} alone");
                row += 1;
            }
            span += 1;
        }
    }
    let (shape, rows) = shapes()[1].clone();
    let case = Case::new(&mut random, shape, &rows[1..3]);
    let prefill = device.in_every_schedule(|device| bits(&case.prefill(device)));
    assert_eq!(device.in_every_schedule(|device| bits(&case.decode(device))), prefill);
}

/// What a row does not see cannot reach it, whatever it is: NaN of later positions, of other pages, of positions before the window.
#[test]
fn cuda_attention_reads_nothing_that_a_row_does_not_see() {
    let Some(mut device) = device() else { return };
    let mut random = Random::new("attention unseen");
    for window in [0, 9] {
        let shape = Shape { heads: 4, kv_heads: 2, dim: 16, page_size: 16, window, half: false };
        let mut case = Case::new(&mut random, shape, &[Rows { rows: 6, start: 250 }]);
        let before = [case.decode(&mut device), case.prefill(&mut device)];
        // The last position's key and value, which only the last row sees; with a window also position 0.
        for position in [255, 0] {
            if position == 0 && window == 0 {
                continue;
            }
            let page = case.table[position / 16] as usize;
            for part in 0..4 {
                let at = ((page * 4 + part) * 16 + position % 16) * 16;
                case.pool[at..at + 16].fill(if part % 2 == 0 { f32::NAN } else { f32::INFINITY });
            }
        }
        let seen = 5 * 4 * 16;
        for (before, after) in before.iter().zip([case.decode(&mut device), case.prefill(&mut device)]) {
            assert_eq!(bits(&before[..seen]), bits(&after[..seen]), "rows before the last");
            assert!(after[seen..].iter().all(|value| value.is_nan()), "a NaN that is seen stays one");
        }
    }
}
