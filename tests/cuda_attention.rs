//! Attention of the CUDA backend, in both arithmetics: rows that are split by position, segments that several sequences share, rows that are walked. Whoever
//! computes a row, beside whomever, its bits are those of its sequence alone.
//!
//! Runs on simulated devices, or on the machine's: tests/common/cuda_device.rs. The kernels one by one: tests/cuda/attention.rs.

#![cfg(feature = "cuda")]
#![allow(dead_code, reason = "the shared helpers have more than this file uses")]

#[path = "common/cuda_device.rs"]
mod cuda_device;
#[path = "common/model.rs"]
mod model;
#[path = "common/random.rs"]
mod random;

use std::collections::HashMap;

use cuda_device::{TestDevice, backend, test_device};
use ictus::backend::cuda::CudaBackend;
use ictus::backend::{Arithmetic, AttentionShape, Backend, KvShape, KvType, Span};
use ictus::checkpoint::{Checkpoint, Family, ModelConfig, RopeConfig, RopePairing, RopeScaling};
use ictus::runtime::{Answers, Feed, Input, ModelRuntime, PagedIdentity, Runtime, SeqHandle, Want};
use ictus::tensor::{Bytes, DType, Tensor};
use random::Random;

const SEGMENT: usize = 256;

fn bits(row: &[f32]) -> Vec<u32> {
    row.iter().map(|value| value.to_bits()).collect()
}

/// Kernels that ran so far; none on a machine's device.
fn launches(device: &TestDevice) -> Option<u64> {
    match device {
        TestDevice::Simulated(driver) => Some(driver.statistics().launches),
        TestDevice::Machine(_) => None,
    }
}

/// Rows of one sequence.
#[derive(Clone, Copy, Debug)]
struct Rows {
    rows: usize,
    start: usize,
    /// Tokens that it has in the pages of the first sequence.
    shared: usize,
}

/// A pool with some sequences in it, and queries for their rows.
struct Case<'b> {
    backend: &'b CudaBackend,
    pages: <CudaBackend as Backend>::Pages,
    shape: AttentionShape,
    rows: Vec<Rows>,
    tables: Vec<Vec<u32>>,
    queries: Vec<f32>,
}

impl<'b> Case<'b> {
    fn new(
        random: &mut Random,
        backend: &'b CudaBackend,
        shape: AttentionShape,
        element: KvType,
        page_size_tokens: usize,
        rows: &[Rows],
    ) -> Self {
        let pages_of = |r: &Rows| (r.start + r.rows).div_ceil(page_size_tokens);
        let kv = KvShape {
            layers: 1,
            n_kv_heads: shape.n_kv_heads,
            head_dim: shape.head_dim,
            page_size_tokens,
            pages: rows.iter().map(pages_of).sum(),
            element,
        };
        let mut pages = backend.pages(&kv).expect("memory");
        let mut free: Vec<u32> = (0..kv.pages as u32).collect();
        random.shuffle(&mut free);
        let mut tables: Vec<Vec<u32>> = Vec::new();
        for r in rows {
            let shared = tables.first().map_or(0, |_| r.shared / page_size_tokens);
            let mut table: Vec<u32> = tables.first().map_or(Vec::new(), |first| first[..shared].to_vec());
            while table.len() < pages_of(r) {
                table.push(free.pop().expect("pages enough"));
            }
            let written = shared * page_size_tokens..r.start + r.rows;
            let mut bytes = Vec::new();
            for _ in 0..written.len() * kv.token_elements() {
                let value = number(random);
                match element {
                    KvType::F16 => bytes.extend(half::f16::from_f32(value).to_le_bytes()),
                    KvType::F32 => bytes.extend(value.to_le_bytes()),
                }
            }
            backend.write_tokens(&mut pages, &table, written, &bytes).expect("the device is well");
            tables.push(table);
        }
        let count: usize = rows.iter().map(|r| r.rows).sum();
        let queries = (0..count * shape.n_heads * shape.head_dim).map(|_| 2.0 * number(random)).collect();
        Self { backend, pages, shape, rows: rows.to_vec(), tables, queries }
    }

    fn width(&self) -> usize {
        self.shape.n_heads * self.shape.head_dim
    }

    /// Attention of some of the sequences in one operation; the rows of each.
    fn run(&self, sequences: &[usize]) -> Vec<Vec<u32>> {
        let mut queries: Vec<f32> = Vec::new();
        let mut spans = Vec::new();
        for &sequence in sequences {
            let first: usize = self.rows[..sequence].iter().map(|r| r.rows).sum();
            let Rows { rows, start, .. } = self.rows[sequence];
            let first_row = queries.len() / self.width();
            spans.push(Span { first_row, rows, start, block_table: &self.tables[sequence] });
            queries.extend(&self.queries[first * self.width()..(first + rows) * self.width()]);
        }
        let buffer = |values: &[f32]| {
            let mut buffer = self.backend.buffer(self.width());
            self.backend.resize(&mut buffer, values.len() / self.width()).expect("memory");
            self.backend.write(&mut buffer, 0, values).expect("the device is well");
            buffer
        };
        let (x, mut out) = (buffer(&queries), buffer(&vec![0.0; queries.len()]));
        self.backend.attention(&x, &self.pages, 0, &self.shape, &spans, &mut out);
        let mut values = vec![0.0; queries.len()];
        self.backend.read(&out, 0, &mut values).expect("the device is well");
        let row = |span: &Span<'_>| bits(&values[span.first_row * self.width()..][..span.rows * self.width()]);
        spans.iter().map(row).collect()
    }
}

fn number(random: &mut Random) -> f32 {
    (random.next() >> 40) as f32 / (1 << 23) as f32 - 1.0
}

fn shape(n_heads: usize, n_kv_heads: usize, head_dim: usize, window: Option<usize>) -> AttentionShape {
    AttentionShape { n_heads, n_kv_heads, head_dim, scale: (head_dim as f32).sqrt().recip(), window }
}

/// Sequences in any company: some of them in one operation, in any order, give the rows of each alone.
fn check(random: &mut Random, case: &Case<'_>, what: &str) {
    let alone: Vec<Vec<u32>> = (0..case.rows.len()).map(|sequence| case.run(&[sequence]).remove(0)).collect();
    for _ in 0..3 {
        let mut sequences: Vec<usize> = (0..case.rows.len()).collect();
        random.shuffle(&mut sequences);
        sequences.truncate(random.between(2, sequences.len()));
        let together = case.run(&sequences);
        for (row, &sequence) in together.iter().zip(&sequences) {
            assert!(*row == alone[sequence], "{what}: {sequence} of {sequences:?}, {:?}", case.rows);
        }
    }
}

/// A pool's first sequence, and some that share its pages: few rows are split, many are walked.
fn company(random: &mut Random) -> Vec<Rows> {
    let mut rows = vec![Rows { rows: 1, start: random.between(600, 700), shared: 0 }];
    for _ in 0..random.between(3, 6) {
        let shared = random.between(0, 600);
        let count = *random.pick(&[1, 1, 1, 3, 12]);
        rows.push(Rows { rows: count, start: shared + random.below(100), shared });
    }
    rows
}

/// Promise 1 over pages that sequences share, in shapes of every kind: windows, short and long rows, prefixes that end inside of a page or segment.
#[test]
fn cuda_attention_of_a_sequence_has_the_same_bits_beside_any_that_share_its_pages() {
    let Some(_device) = test_device() else { return };
    let mut random = Random::new("attention in company");
    let shapes = [
        (shape(4, 1, 16, None), KvType::F16, 16),
        (shape(6, 2, 24, Some(300)), KvType::F32, 8),
        (shape(5, 5, 8, None), KvType::F32, 5),
        (shape(8, 2, 40, Some(40)), KvType::F16, 32),
    ];
    for (shape, element, page_size) in shapes {
        let backend = backend();
        let rows = company(&mut random);
        let case = Case::new(&mut random, &backend, shape, element, page_size, &rows);
        check(&mut random, &case, &format!("{shape:?} {element:?}"));
    }
}

/// The same on tensor cores, whose bits are others; and where they serve neither the pages nor the heads, the bits of exact arithmetic.
#[test]
fn cuda_fast_attention_of_a_sequence_has_the_same_bits_beside_any_that_share_its_pages() {
    let Some(_device) = test_device() else { return };
    let mut random = Random::new("fast attention in company");
    let shapes = [
        (shape(8, 2, 64, None), KvType::F16, 16, true),
        (shape(3, 1, 96, Some(300)), KvType::F16, 8, true),
        (shape(5, 1, 128, Some(40)), KvType::F16, 16, true),
        (shape(2, 1, 256, None), KvType::F16, 32, true),
        (shape(2, 2, 64, None), KvType::F32, 16, false),
        (shape(4, 2, 32, None), KvType::F16, 16, false),
    ];
    for (shape, element, page_size, is_fast) in shapes {
        let [fast, exact] = [Arithmetic::Fast, Arithmetic::Exact].map(|how| backend().with_arithmetic(how));
        let rows = company(&mut random);
        let key = random.key();
        let case = Case::new(&mut Random::from_key(key), &fast, shape, element, page_size, &rows);
        check(&mut random, &case, &format!("{shape:?} {element:?}"));
        let other = Case::new(&mut Random::from_key(key), &exact, shape, element, page_size, &rows);
        assert_eq!(case.run(&[0]) != other.run(&[0]), is_fast, "{shape:?} {element:?}");
    }
}

/// Segments in shared pages are a launch of their own, and only those.
#[test]
fn cuda_attention_reads_shared_segments_in_a_launch_of_their_own() {
    let Some(device) = test_device() else { return };
    let mut random = Random::new("shared launches");
    let backend = backend();
    let rows: Vec<Rows> = [(530, 0), (515, 512), (700, 512), (300, 200)]
        .iter()
        .map(|&(start, shared)| Rows { rows: 1, start, shared })
        .collect();
    let case = Case::new(&mut random, &backend, shape(4, 2, 16, None), KvType::F16, 16, &rows);
    let count = |sequences: &[usize]| {
        // What was asked for before has run.
        backend.health().expect("the device is well");
        let before = launches(&device)?;
        case.run(sequences);
        Some(launches(&device)? - before)
    };
    let Some(alone) = count(&[0]) else {
        println!("skipped: counting launches needs simulated devices");
        return;
    };
    // Segments and a merge.
    assert_eq!(alone, 2);
    assert_eq!(count(&[0, 1]), Some(3), "two segments in common");
    assert_eq!(count(&[2, 0, 1]), Some(3));
    assert_eq!(count(&[0, 3]), Some(2), "less than a segment in common");
}

/// Lanes over one prompt: a step of all of them, which reads the prompt's segments once, gives each the row that it has alone.
#[test]
fn cuda_lanes_over_one_prefix_have_the_bits_of_each_alone() {
    const LANES: usize = 5;
    let Some(device) = test_device() else { return };
    let prompt: Vec<u32> = (0..SEGMENT as u32 + 24).map(|i| 3 + i * 7 % 40).collect();
    for (name, kv_type) in [("llama-rope-scaled", KvType::F16), ("llama-window", KvType::F32)] {
        let path = model::file(format!("tests/data/{name}.gguf"));
        let checkpoint = Checkpoint::open(path).expect("the model opens");
        let layers = checkpoint.config().layers as u64;
        let mut runtime = model::runtime(backend(), &checkpoint, &model::options(kv_type, 320));
        let source = runtime.seq_create().expect("a sequence");
        model::last_row(&mut runtime, source, &prompt);
        let mut forks = || -> Vec<SeqHandle> {
            let fork = |runtime: &mut dyn Runtime| {
                let fork = runtime.seq_create().expect("a sequence");
                runtime.seq_copy(source, fork, SEGMENT as u64 + 16).expect("the source has it");
                fork
            };
            (0..LANES).map(|_| fork(&mut runtime)).collect()
        };
        let (together, alone) = (forks(), forks());
        let tokens: Vec<[u32; 1]> = (0..LANES as u32).map(|lane| [5 + lane]).collect();
        let mut step = |lanes: &[SeqHandle], tokens: &[[u32; 1]]| -> (Vec<Vec<u32>>, Option<u64>) {
            let feed = |i: usize| Feed { sequence: lanes[i], input: Input::Tokens(&tokens[i]), want: Want::LastRow };
            let feeds: Vec<Feed<'_>> = (0..lanes.len()).map(feed).collect();
            // Steps end with nothing left to run.
            let before = launches(&device);
            let mut answers = Answers::new();
            runtime.step(&feeds, &mut answers).expect("the step runs");
            let ran = launches(&device).zip(before).map(|(after, before)| after - before);
            ((0..lanes.len()).map(|row| bits(answers.row(row).expect("a row"))).collect(), ran)
        };
        let (rows, ran) = step(&together, &tokens);
        for (lane, row) in rows.iter().enumerate() {
            let (own, ran_alone) = step(&alone[lane..=lane], &tokens[lane..=lane]);
            assert!(own[0] == *row, "{name}: lane {lane}");
            assert_eq!(ran, ran_alone.map(|ran| ran + layers), "{name}: one launch a layer for what is shared");
        }
        assert!(rows.windows(2).all(|pair| pair[0] != pair[1]), "{name}: each lane has a row of its own");
    }
}

/// Two layers with heads of 64 dimensions, which tensor cores serve.
fn config() -> ModelConfig {
    ModelConfig {
        family: Family::Llama,
        architecture: "llama".into(),
        layers: 2,
        hidden: 64,
        ffn_hidden: 32,
        n_heads: 4,
        n_kv_heads: 2,
        head_dim: 64,
        vocab: 48,
        context_tokens: 512,
        norm_epsilon: 1e-5,
        attention_scale: 0.125,
        rope: RopeConfig {
            pairing: RopePairing::Halves,
            dims: 64,
            base: 1e4,
            local_base: None,
            scaling: RopeScaling::None,
        },
        window: None,
    }
}

/// Weights for it; the embedding is the output layer too.
fn tensors(random: &mut Random, config: &ModelConfig) -> HashMap<String, Tensor> {
    let ModelConfig { layers, hidden, ffn_hidden, n_heads, n_kv_heads, head_dim, vocab, .. } = *config;
    let mut tensor = |rows: usize, cols: usize, size: f32| {
        let values: Vec<f32> = (0..rows * cols).map(|_| size * number(random)).collect();
        Tensor { dtype: DType::F32, rows, cols, data: Bytes::from_f32(&values) }
    };
    let mut all = HashMap::from([
        ("token_embd.weight".to_owned(), tensor(vocab, hidden, 1.0)),
        ("output_norm.weight".to_owned(), tensor(1, hidden, 1.0)),
    ]);
    for layer in 0..layers {
        let parts = [
            ("attn_q", n_heads * head_dim, hidden, 0.5),
            ("attn_k", n_kv_heads * head_dim, hidden, 0.5),
            ("attn_v", n_kv_heads * head_dim, hidden, 0.3),
            ("attn_output", hidden, n_heads * head_dim, 0.2),
            ("ffn_gate", ffn_hidden, hidden, 0.2),
            ("ffn_up", ffn_hidden, hidden, 0.2),
            ("ffn_down", hidden, ffn_hidden, 0.2),
            ("attn_norm", 1, hidden, 1.0),
            ("ffn_norm", 1, hidden, 1.0),
        ];
        for (name, rows, cols, size) in parts {
            all.insert(format!("blk.{layer}.{name}.weight"), tensor(rows, cols, size));
        }
    }
    all
}

/// Promise 1 for whole steps of fast arithmetic: a prompt in one piece, in chunks, token by token, beside others that share its pages, has the same bits;
/// they are not those of exact arithmetic, and near them.
#[test]
fn cuda_fast_steps_have_the_same_bits_in_chunks_and_in_company() {
    let Some(_device) = test_device() else { return };
    let mut random = Random::new("fast steps");
    let config = config();
    let tensors = tensors(&mut random, &config);
    let options = model::options(KvType::F16, 320);
    let runtime = |arithmetic: Arithmetic| {
        let backend = backend().with_arithmetic(arithmetic);
        ModelRuntime::new(backend, &config, &tensors, &options, PagedIdentity::default()).expect("the model loads")
    };
    let mut fast = runtime(Arithmetic::Fast);
    let prompt: Vec<u32> = (0..SEGMENT as u32 + 9).map(|i| 3 + i * 7 % 40).collect();
    let last = prompt.len() - 1;
    let whole = model::rows_at(&mut fast, &prompt, &[last]).remove(0);
    let cuts = [random.between(1, 100), random.between(101, 255), 256, 257, last - 1, last];
    assert_eq!(bits(&model::rows_at(&mut fast, &prompt, &cuts)[5]), bits(&whole), "in chunks {cuts:?}");
    // Others with the same first segment, one of them with many rows of its own, in the step of the last token.
    let sequence = fast.seq_create().expect("a sequence");
    model::last_row(&mut fast, sequence, &prompt[..last]);
    let others = [(); 2].map(|()| {
        let other = fast.seq_create().expect("a sequence");
        fast.seq_copy(sequence, other, SEGMENT as u64).expect("the source has it");
        other
    });
    let rows: Vec<u32> = (5..25).collect();
    let inputs = [(others[0], &rows[..1]), (sequence, &prompt[last..]), (others[1], &rows[..])];
    let feeds = inputs.map(|(sequence, tokens)| Feed { sequence, input: Input::Tokens(tokens), want: Want::LastRow });
    let mut answers = Answers::new();
    fast.step(&feeds, &mut answers).expect("the step runs");
    assert_eq!(bits(answers.row(1).expect("a row")), bits(&whole), "in company");
    let exact: Vec<f64> = model::rows_at(&mut runtime(Arithmetic::Exact), &prompt, &[last])[0]
        .iter()
        .map(|&logit| f64::from(logit))
        .collect();
    let difference = model::max_difference(&whole, &exact);
    let most = exact.iter().fold(0.0_f64, |most, logit| most.max(logit.abs()));
    println!("difference {difference:.1e} of {most:.1}");
    // Queries and weights are rounded to 2^-11 in two layers.
    assert!(difference > 0.0 && difference < most / 256.0, "{difference:e} of {most}");
}
