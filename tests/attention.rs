//! Attention of the CPU backend over random problems: against double precision, and its bits against themselves.
//!
//! Sequences share the pages of their beginnings, as forks and cached prefixes do; each has any number of rows in the step. The bits of a
//! row are those that it has alone on one thread: sharing, tiles, cuts by segments and threads must not show.

#![allow(dead_code, reason = "the shared helpers have more than this file uses")]

#[path = "common/random.rs"]
mod random;

use ictus::backend::cpu::{Buffer, CpuBackend, InstructionSet, Pages};
use ictus::backend::{AttentionShape, Backend, KvShape, KvType, Span};
use random::Random;

fn uniform(random: &mut Random, len: usize) -> Vec<f32> {
    (0..len).map(|_| (random.next() >> 40) as f32 / (1 << 23) as f32 - 1.0).collect()
}

fn filled(backend: &CpuBackend, width: usize, values: &[f32]) -> Buffer {
    let mut buffer = backend.buffer(width);
    backend.resize(&mut buffer, values.len() / width).expect("memory");
    backend.write(&mut buffer, 0, values).expect("written");
    buffer
}

/// A sequence in the pool.
struct Sequence {
    table: Vec<u32>,
    /// `[positions, n_kv_heads * head_dim]`, as the pool rounds them.
    keys: Vec<f32>,
    values: Vec<f32>,
    /// Its last rows are fed.
    rows: usize,
    len: usize,
}

struct Problem {
    shape: AttentionShape,
    pool: KvShape,
    sequences: Vec<Sequence>,
    /// `[rows of all sequences, n_heads * head_dim]`
    queries: Vec<f32>,
}

fn shape(random: &mut Random) -> AttentionShape {
    let head_dim = *random.pick(&[1, 7, 8, 16, 20, 32, 64, 64, 80]);
    let (group, n_kv_heads) = (*random.pick(&[1, 2, 3, 3, 4, 5, 7, 8, 25]), random.between(1, 3));
    let window = *random.pick(&[None, None, Some(1), Some(5), Some(256), Some(300), Some(512)]);
    let scale = 1.0 / (head_dim as f32).sqrt();
    AttentionShape { n_heads: group * n_kv_heads, n_kv_heads, head_dim, scale, window }
}

impl Problem {
    /// Sequences that branch off from one another at random pages.
    fn new(random: &mut Random, longest: usize, most_rows: usize) -> Self {
        let shape = shape(random);
        let page_size_tokens = *random.pick(&[1, 4, 5, 8, 16, 16, 16, 32, 48, 64, 256, 512]);
        let element = *random.pick(&[KvType::F16, KvType::F32]);
        let width = shape.n_kv_heads * shape.head_dim;
        let mut pages = 0;
        let mut sequences: Vec<Sequence> = Vec::new();
        for _ in 0..random.between(1, 6) {
            let len = random.between(1, longest);
            let rows = if random.below(3) > 0 { 1 } else { random.between(1, most_rows) }.min(len);
            let (mut table, mut keys, mut values) = (Vec::new(), Vec::new(), Vec::new());
            if !sequences.is_empty() && random.below(4) > 0 {
                let source = random.pick(&sequences);
                // Whole pages that neither feeds rows to.
                let common = (source.len - source.rows).min(len - rows) / page_size_tokens;
                let common = if random.below(2) == 0 { common } else { random.below(common + 1) };
                table.extend_from_slice(&source.table[..common]);
                keys.extend_from_slice(&source.keys[..common * page_size_tokens * width]);
                values.extend_from_slice(&source.values[..common * page_size_tokens * width]);
            }
            let own = len.div_ceil(page_size_tokens) - table.len();
            table.extend(pages..pages + own as u32);
            pages += own as u32;
            let new = len * width - keys.len();
            keys.extend(uniform(random, new));
            values.extend(uniform(random, new));
            sequences.push(Sequence { table, keys, values, rows, len });
        }
        let mut numbers: Vec<u32> = (0..pages + 2).collect();
        random.shuffle(&mut numbers);
        for sequence in &mut sequences {
            sequence.table.iter_mut().for_each(|page| *page = numbers[*page as usize]);
        }
        let rows: usize = sequences.iter().map(|sequence| sequence.rows).sum();
        let mut queries = uniform(random, rows * shape.n_heads * shape.head_dim);
        queries.iter_mut().for_each(|x| *x *= 4.0);
        let AttentionShape { n_kv_heads, head_dim, .. } = shape;
        let pool = KvShape { layers: 2, n_kv_heads, head_dim, page_size_tokens, pages: numbers.len(), element };
        Self { shape, pool, sequences, queries }
    }

    fn describe(&self) -> String {
        let lanes: Vec<(usize, usize)> = self.sequences.iter().map(|one| (one.len, one.rows)).collect();
        format!(
            "{:?} pages of {} {:?} (len, rows) {lanes:?}",
            self.shape, self.pool.page_size_tokens, self.pool.element
        )
    }

    /// A pool with all keys and values in layer 1, and junk elsewhere.
    fn fill(&self, backend: &CpuBackend) -> Pages {
        let mut pages = backend.pages(&self.pool).expect("a pool");
        let width = self.pool.n_kv_heads * self.pool.head_dim;
        let tokens = self.pool.pages * self.pool.page_size_tokens;
        let junk = filled(backend, width, &vec![f32::NAN; tokens * width]);
        let all: Vec<u32> = (0..self.pool.pages as u32).collect();
        let span = Span { first_row: 0, rows: tokens, start: 0, block_table: &all };
        backend.kv_write(&mut pages, 1, &junk, &junk, &[span]);
        for sequence in &self.sequences {
            let (keys, values) = (filled(backend, width, &sequence.keys), filled(backend, width, &sequence.values));
            let span = Span { first_row: 0, rows: sequence.len, start: 0, block_table: &sequence.table };
            backend.kv_write(&mut pages, 1, &keys, &values, &[span]);
        }
        pages
    }

    /// All sequences in one operation.
    fn together(&self, backend: &CpuBackend, pages: &Pages) -> Vec<f32> {
        let mut first_row = 0;
        let spans = self.sequences.iter().map(|sequence| {
            first_row += sequence.rows;
            let start = sequence.len - sequence.rows;
            Span { first_row: first_row - sequence.rows, rows: sequence.rows, start, block_table: &sequence.table }
        });
        let spans: Vec<Span<'_>> = spans.collect();
        self.attend(backend, pages, &self.queries, &spans)
    }

    /// Each row in an operation of its own.
    fn alone(&self, backend: &CpuBackend, pages: &Pages) -> Vec<f32> {
        let mut rows = self.queries.chunks(self.shape.n_heads * self.shape.head_dim);
        let mut out = Vec::new();
        for sequence in &self.sequences {
            for (start, row) in (sequence.len - sequence.rows..sequence.len).zip(&mut rows) {
                let span = Span { first_row: 0, rows: 1, start, block_table: &sequence.table };
                out.extend(self.attend(backend, pages, row, &[span]));
            }
        }
        out
    }

    fn attend(&self, backend: &CpuBackend, pages: &Pages, queries: &[f32], spans: &[Span<'_>]) -> Vec<f32> {
        let width = self.shape.n_heads * self.shape.head_dim;
        let queries = filled(backend, width, queries);
        // What the output held must not matter.
        let mut out =
            filled(backend, width, &vec![f32::NAN; spans.iter().map(|span| span.rows).sum::<usize>() * width]);
        backend.attention(&queries, pages, 1, &self.shape, spans, &mut out);
        let mut values = vec![0.0; spans.iter().map(|span| span.rows).sum::<usize>() * width];
        backend.read(&out, 0, &mut values).expect("read");
        values
    }

    /// In double precision, and how far single precision may be off.
    fn exact(&self) -> Vec<(f64, f64)> {
        let AttentionShape { n_heads, n_kv_heads, head_dim, scale, window } = self.shape;
        let width = n_kv_heads * head_dim;
        let round = |x: f32| match self.pool.element {
            KvType::F16 => half::f16::from_f32(x).to_f64(),
            KvType::F32 => f64::from(x),
        };
        let mut out = Vec::new();
        let mut rows = self.queries.chunks(n_heads * head_dim);
        for sequence in &self.sequences {
            for (position, row) in (sequence.len - sequence.rows..sequence.len).zip(&mut rows) {
                let first = window.map_or(0, |window| (position + 1).saturating_sub(window));
                for (head, query) in row.chunks(head_dim).enumerate() {
                    let at = |position: usize| position * width + head / (n_heads / n_kv_heads) * head_dim;
                    let scores: Vec<f64> = (first..=position)
                        .map(|position| {
                            let key = &sequence.keys[at(position)..][..head_dim];
                            let products = query.iter().zip(key).map(|(&q, &k)| f64::from(q) * round(k));
                            products.sum::<f64>() * f64::from(scale)
                        })
                        .collect();
                    let most = scores.iter().fold(f64::NEG_INFINITY, |most, &score| most.max(score));
                    let weights: Vec<f64> = scores.iter().map(|score| (score - most).exp()).collect();
                    let sum: f64 = weights.iter().sum();
                    for dim in 0..head_dim {
                        let values = (first..=position).map(|position| round(sequence.values[at(position) + dim]));
                        let value: f64 = values.zip(&weights).map(|(value, weight)| value * weight).sum();
                        out.push((value / sum, 1e-6 * (2.0 + (head_dim as f64).sqrt())));
                    }
                }
            }
        }
        out
    }
}

fn backends(threads: usize) -> Vec<CpuBackend> {
    let all = InstructionSet::ALL.iter();
    all.filter_map(|&set| {
        let backend = CpuBackend::with_instruction_set(threads, set);
        if backend.is_err() {
            println!("skipped: this processor has no {}", set.name());
        }
        backend.ok()
    })
    .collect()
}

#[test]
fn attention_is_near_double_precision_over_random_problems() {
    let mut random = Random::new("attention, exact");
    for _ in 0..40 {
        let problem = Problem::new(&mut random, 700, 20);
        let exact = problem.exact();
        for backend in backends(2) {
            let got = problem.together(&backend, &problem.fill(&backend));
            for (index, (&got, &(exact, bound))) in got.iter().zip(&exact).enumerate() {
                let error = (f64::from(got) - exact).abs();
                let name = backend.instruction_set().name();
                assert!(error <= bound, "{name} {} [{index}]: {got} instead of {exact}", problem.describe());
            }
        }
    }
}

/// Promise 1: a row's bits are its own.
#[test]
fn rows_have_the_bits_that_they_have_alone_whoever_shares_their_pages() {
    let mut random = Random::new("attention, shared pages");
    for _ in 0..40 {
        let problem = Problem::new(&mut random, 1500, 40);
        for one in backends(1) {
            let pages = problem.fill(&one);
            let alone = problem.alone(&one, &pages);
            let bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect::<Vec<u32>>();
            for threads in [1, 2, 3] {
                let set = one.instruction_set();
                let many = CpuBackend::with_instruction_set(threads, set).expect("it is there");
                // Twice: what is kept from operation to operation must not matter.
                let pages = problem.fill(&many);
                for _ in 0..2 {
                    let got = problem.together(&many, &pages);
                    let first = got.iter().zip(&alone).position(|(got, alone)| got.to_bits() != alone.to_bits());
                    assert!(bits(&got) == bits(&alone), "{} {threads} {first:?} {}", set.name(), problem.describe());
                }
                assert!(got_rows_alone(&problem, &many, &pages) == bits(&alone), "{} {threads} alone", set.name());
            }
        }
    }
}

/// Rows one by one on several threads: each is cut by segments.
fn got_rows_alone(problem: &Problem, backend: &CpuBackend, pages: &Pages) -> Vec<u32> {
    problem.alone(backend, pages).iter().map(|x| x.to_bits()).collect()
}

/// Outside the pool tokens lie in order, whatever the pages: what leaves one pool is what went in, and another pool takes it.
#[test]
fn tokens_that_move_to_other_pages_are_the_same_tokens() {
    let mut random = Random::new("attention, moved tokens");
    for _ in 0..20 {
        let problem = Problem::new(&mut random, 600, 20);
        let KvShape { n_kv_heads, head_dim, element, layers, .. } = problem.pool;
        let backend = CpuBackend::new(2);
        let pages = problem.fill(&backend);
        let page_size_tokens = *random.pick(&[1, 3, 8, 16, 64, 256]);
        let longest = problem.sequences.iter().map(|sequence| sequence.len).max().expect("a sequence");
        let count = longest.div_ceil(page_size_tokens);
        let other = KvShape { page_size_tokens, pages: count, ..problem.pool };
        let mut moved = backend.pages(&other).expect("a pool");
        let mut table: Vec<u32> = (0..count as u32).collect();
        random.shuffle(&mut table);
        let token_bytes = other.token_elements() * element.bytes();
        for sequence in &problem.sequences {
            let mut bytes = vec![0; sequence.len * token_bytes];
            // In two parts, cut anywhere.
            let cut = random.below(sequence.len + 1);
            let (first, second) = bytes.split_at_mut(cut * token_bytes);
            backend.read_tokens(&pages, &sequence.table, 0..cut, first).expect("read");
            backend.read_tokens(&pages, &sequence.table, cut..sequence.len, second).expect("read");
            let width = n_kv_heads * head_dim;
            for (position, token) in bytes.chunks(token_bytes).enumerate() {
                // Layer 1 was written; layer 0 was not.
                let (none, token) = token.split_at(token_bytes / layers);
                assert!(none.iter().all(|&byte| byte == 0));
                for (index, head) in token.chunks(token.len() / n_kv_heads).enumerate() {
                    let expected = [&sequence.keys, &sequence.values]
                        .into_iter()
                        .flat_map(|from| &from[position * width + index * head_dim..][..head_dim]);
                    let expected: Vec<u8> = match element {
                        KvType::F32 => expected.flat_map(|x| x.to_le_bytes()).collect(),
                        KvType::F16 => expected.flat_map(|&x| half::f16::from_f32(x).to_le_bytes()).collect(),
                    };
                    assert!(head == expected, "{} token {position} head {index}", problem.describe());
                }
            }
            backend.write_tokens(&mut moved, &table, 0..sequence.len, &bytes).expect("written");
            let mut again = vec![0; bytes.len()];
            backend.read_tokens(&moved, &table, 0..sequence.len, &mut again).expect("read");
            assert!(again == bytes, "{} moved to pages of {page_size_tokens}", problem.describe());
        }
    }
}
