//! Paged attention: by segments and merge, with segments that several sequences share, walking, and that all are one.

use half::f16;

use crate::random::Random;
use crate::simulator::{Arg, Device, Memory, device};
use crate::weights::{bits, values};

const SEGMENT: usize = 256;

/// One sequence's rows of a step: how many, and from which position on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rows {
    pub(crate) rows: usize,
    pub(crate) start: usize,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) dim: usize,
    pub(crate) page_size: usize,
    pub(crate) window: usize,
    /// Pages of f16.
    pub(crate) half: bool,
    /// On tensor cores, of f16 pages only.
    pub(crate) fast: bool,
}

/// Sequences with random keys and values at all positions up to their last one, in mixed pages of a pool.
pub(crate) struct Case {
    pub(crate) shape: Shape,
    pub(crate) rows: Vec<Rows>,
    pub(crate) width: usize,
    pub(crate) table: Vec<u32>,
    /// Where in the pool a key or a value begins; nothing else is written on the device.
    pub(crate) cells: Vec<usize>,
    pub(crate) pool: Vec<f32>,
    pub(crate) queries: Vec<f32>,
    /// Whole segments that begin each sequence in the pages of the first one.
    pub(crate) shared: Vec<usize>,
}

/// What a launch of split rows works on: members, and behind them those of tasks; parts; tasks (kernels/split.cuh).
#[derive(Default)]
pub(crate) struct Lists {
    pub(crate) members: Vec<[u32; 3]>,
    pub(crate) parts: Vec<[u32; 2]>,
    pub(crate) tasks: Vec<[u32; 4]>,
    /// Of the members, each row once.
    pub(crate) rows: usize,
    pub(crate) slots: usize,
}

impl Case {
    pub(crate) fn new(random: &mut Random, shape: Shape, rows: &[Rows]) -> Self {
        Self::sharing(random, shape, rows, &vec![0; rows.len()])
    }

    /// As [`Case::new`], where sequence `i` has its first `shared[i]` segments in the pages of sequence 0.
    pub(crate) fn sharing(random: &mut Random, shape: Shape, rows: &[Rows], shared: &[usize]) -> Self {
        let Shape { heads, kv_heads, dim, page_size, half, .. } = shape;
        let width = rows.iter().map(|r| (r.start + r.rows).div_ceil(page_size)).max().expect("rows") + 1;
        let mut table: Vec<u32> = (0..(rows.len() * width) as u32).collect();
        random.shuffle(&mut table);
        let in_common = |span: usize| shared[span] * SEGMENT / page_size;
        for span in 1..rows.len() {
            table.copy_within(0..in_common(span), span * width);
        }
        let mut pool = vec![f32::NAN; rows.len() * width * kv_heads * 2 * page_size * dim];
        let mut cells = Vec::new();
        for (span, r) in rows.iter().enumerate() {
            let own = if span == 0 { 0 } else { in_common(span) * page_size };
            for position in own..r.start + r.rows {
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
        Self { shape, rows: rows.to_vec(), width, table, cells, pool, queries, shared: shared.to_vec() }
    }

    pub(crate) fn scale(&self) -> f32 {
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

    fn sizes(&self) -> Vec<Arg> {
        let Shape { heads, kv_heads, dim, page_size, window, fast, .. } = self.shape;
        let mut sizes = vec![heads, kv_heads, dim, page_size, self.width, window];
        if fast {
            sizes.remove(2);
        }
        let sizes = sizes.into_iter().map(|n| Arg::U32(n as u32));
        sizes.chain([Arg::F32(self.scale())]).collect()
    }

    fn kernel(&self, kind: &str) -> String {
        match self.shape {
            Shape { fast: true, dim, .. } => format!("ictus_attention_fast_{kind}_{dim}"),
            Shape { half: true, .. } => format!("ictus_attention_{kind}_f16"),
            _ => format!("ictus_attention_{kind}_f32"),
        }
    }

    /// Blocks that the pairs of the longest sequence fill.
    fn chunks(&self, pairs: usize) -> usize {
        let most = self.rows.iter().map(|r| r.rows).max().expect("rows");
        (most * self.shape.heads / self.shape.kv_heads).div_ceil(pairs)
    }

    pub(crate) fn prefill(&self, device: &mut Device) -> Vec<f32> {
        let memory = self.upload(device);
        let out = device.room::<f32>(self.queries.len());
        let mut arguments: Vec<Arg> = vec![out.into()];
        arguments.extend(memory.map(Arg::from));
        arguments.push(Arg::Null);
        arguments.extend(self.sizes());
        let pairs = match self.shape {
            Shape { fast: false, .. } => 8,
            Shape { dim: 256, .. } => 32,
            _ => 64,
        };
        device.launch(&self.kernel("prefill"), [self.chunks(pairs), self.shape.kv_heads, self.rows.len()], &arguments);
        device.read(out)
    }

    /// Row `i` of a sequence alone, with its own table.
    pub(crate) fn row(&self, span: usize, i: usize) -> Self {
        let before: usize = self.rows[..span].iter().map(|r| r.rows).sum();
        let width = self.shape.heads * self.shape.dim;
        Self {
            shape: self.shape,
            rows: vec![Rows { rows: 1, start: self.rows[span].start + i }],
            width: self.width,
            table: self.table[span * self.width..][..self.width].to_vec(),
            cells: self.cells.clone(),
            pool: self.pool.clone(),
            queries: self.queries[(before + i) * width..][..width].to_vec(),
            shared: vec![0],
        }
    }

    /// Members of all rows, and no task.
    pub(crate) fn lists(&self) -> Lists {
        let mut lists = Lists::default();
        for r in &self.rows {
            lists.parts.push([lists.rows as u32, 0]);
            for position in r.start..r.start + r.rows {
                lists.members.push([lists.rows, position, lists.slots].map(|n| n as u32));
                lists.rows += 1;
                lists.slots += position / SEGMENT + 1;
            }
        }
        lists
    }

    /// Some of the segments that sequences share as tasks, of any of those that have them.
    pub(crate) fn grouped(&self, random: &mut Random) -> Lists {
        let mut lists = self.lists();
        let given: Vec<usize> = self.shared.iter().map(|&segments| random.between(0, segments)).collect();
        for segment in 0..given.iter().copied().max().expect("sequences") {
            let mut spans: Vec<usize> = (0..given.len()).filter(|&span| segment < given[span]).collect();
            random.shuffle(&mut spans);
            let mut rest = &spans[..];
            while !rest.is_empty() {
                let (group, behind) = rest.split_at(random.between(1, rest.len()));
                let first = lists.members.len();
                for &span in group {
                    let own = lists.parts[span][0] as usize;
                    lists.members.extend_from_within(own..own + self.rows[span].rows);
                }
                let count = lists.members.len() - first;
                lists.tasks.push([segment, *random.pick(group), first, count].map(|n| n as u32));
                rest = behind;
            }
        }
        for (part, given) in lists.parts.iter_mut().zip(given) {
            part[1] = given as u32;
        }
        lists
    }

    pub(crate) fn decode(&self, device: &mut Device) -> Vec<f32> {
        self.split(device, &self.lists())
    }

    pub(crate) fn split(&self, device: &mut Device, lists: &Lists) -> Vec<f32> {
        let memory = self.upload(device);
        let Shape { heads, kv_heads, dim, .. } = self.shape;
        let partial = device.room::<f32>(lists.slots * heads * dim);
        let states = device.room::<f32>(lists.slots * heads * 2);
        let out = device.room::<f32>(self.queries.len());
        let members = device.upload(lists.members.as_flattened());
        let parts = device.upload(lists.parts.as_flattened());
        let [queries, pool, table, spans] = memory.map(Arg::from);
        if let Some(most) = lists.tasks.iter().map(|task| task[3] as usize).max() {
            let tasks = device.upload(lists.tasks.as_flattened());
            let chunks = (most * heads / kv_heads).div_ceil(16);
            let mut arguments = vec![partial.into(), states.into(), queries, pool, table, tasks.into(), members.into()];
            arguments.push(Arg::U32(chunks as u32));
            arguments.extend(self.sizes());
            device.launch(&self.kernel("shared"), [lists.tasks.len() * chunks, kv_heads, 1], &arguments);
        }
        let mut arguments =
            vec![partial.into(), states.into(), queries, pool, table, spans, parts.into(), members.into()];
        arguments.extend(self.sizes());
        let segments = self.rows.iter().map(|r| (r.start + r.rows).div_ceil(SEGMENT)).max().expect("rows");
        // One more than anybody needs.
        let chunks = self.chunks(if self.shape.fast { 16 } else { 8 });
        let grid = [segments + 1, kv_heads * chunks, self.rows.len()];
        device.launch(&self.kernel("decode"), grid, &arguments);
        let window = Arg::U32(self.shape.window as u32);
        let arguments = [out.into(), partial.into(), states.into(), members.into(), Arg::U32(dim as u32), window];
        let merge = if self.shape.fast { "ictus_attention_fast_merge" } else { "ictus_attention_merge" };
        device.launch(merge, [heads, lists.rows, 1], &arguments);
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

fn shapes() -> [(Shape, Vec<Rows>); 6] {
    let shape = |heads, kv_heads, dim, page_size, window, half| {
        let fast = false;
        Shape { heads, kv_heads, dim, page_size, window, half, fast }
    };
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
        // More segments than a merge reads at once.
        (shape(2, 1, 8, 64, 0, false), rows(&[(1, 2600)])),
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
                let alone = case.row(span, i);
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

/// Segments that sequences have in the same pages, computed once for any of them: the bits of each for itself, windows and odd shapes included.
#[test]
fn cuda_attention_over_shared_pages_has_the_bits_of_each_row_alone() {
    let Some(mut device) = device() else { return };
    let mut random = Random::new("shared attention");
    let shapes = [
        // As many pairs as a block takes; more; an odd number of them over two blocks.
        (4, 1, 16, 16, 0, true),
        (10, 2, 24, 8, 0, false),
        (9, 3, 64, 16, 0, true),
        (6, 6, 8, 4, 300, false),
        (14, 2, 40, 16, 700, true),
    ];
    for (heads, kv_heads, dim, page_size, window, half) in shapes {
        let shape = Shape { heads, kv_heads, dim, page_size, window, half, fast: false };
        let lanes = random.between(2, 7);
        let mut rows = vec![Rows { rows: random.between(1, 3), start: random.between(512, 560) }];
        let mut shared = vec![2];
        for _ in 1..lanes {
            let segments = random.between(0, 2);
            rows.push(Rows { rows: random.between(1, 3), start: segments * SEGMENT + random.between(0, 300) });
            shared.push(segments);
        }
        let case = Case::sharing(&mut random, shape, &rows, &shared);
        let expected = bits(&case.decode(&mut device));
        assert_eq!(bits(&case.prefill(&mut device)), expected, "{shape:?}: walking");
        for _ in 0..3 {
            let lists = case.grouped(&mut random);
            assert!(bits(&case.split(&mut device, &lists)) == expected, "{shape:?} {rows:?} {:?}", lists.tasks);
        }
        let lists = case.grouped(&mut random);
        let grouped = device.in_every_schedule(|device| bits(&case.split(device, &lists)));
        assert!(grouped == expected, "{shape:?}");
    }
}

/// A shared segment is read through one block table for all rows of a task: those of the others may say anything.
#[test]
fn cuda_attention_reads_shared_pages_once_for_all_rows_of_a_task() {
    let Some(mut device) = device() else { return };
    let mut random = Random::new("shared reads");
    let shape = Shape { heads: 4, kv_heads: 2, dim: 16, page_size: 16, window: 0, half: true, fast: false };
    let rows = [Rows { rows: 1, start: 600 }, Rows { rows: 1, start: 515 }, Rows { rows: 1, start: 700 }];
    let mut case = Case::sharing(&mut random, shape, &rows, &[2, 2, 2]);
    let expected = bits(&case.decode(&mut device));
    let mut lists = case.lists();
    lists.tasks = vec![[0, 0, 0, 3], [1, 0, 0, 3]];
    lists.parts.iter_mut().for_each(|part| part[1] = 2);
    // No such pages: whoever looks there reads past the pool.
    for span in 1..3 {
        case.table[span * case.width..][..32].fill(u32::MAX);
    }
    assert!(bits(&case.split(&mut device, &lists)) == expected);
    // The same without tasks for the third sequence finds them.
    lists.tasks.iter_mut().for_each(|task| task[3] = 2);
    lists.parts[2][1] = 0;
    let failed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| case.split(&mut device, &lists)));
    let text = *failed.expect_err("a page that is not there").downcast::<String>().expect("a text");
    assert!(text.contains("out of bounds"), "{text}");
}

/// What a row does not see cannot reach it, whatever it is: NaN of later positions, of other pages, of positions before the window.
#[test]
fn cuda_attention_reads_nothing_that_a_row_does_not_see() {
    let Some(mut device) = device() else { return };
    let mut random = Random::new("attention unseen");
    for window in [0, 9] {
        let shape = Shape { heads: 4, kv_heads: 2, dim: 16, page_size: 16, window, half: false, fast: false };
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
