//! The CUDA backend on a device: each operation beside what the device's memory allows, then whole steps of a model of about a billion
//! random weights.
//!
//! `cargo bench --all-features --bench cuda` on a machine with a device; one JSON object per line. `of_bandwidth` is the part of the
//! speed that reading and writing every byte once would allow, at the rate that the first line measured; operations of few bytes are bound
//! by their launch instead. Weights are taken in turn from more bytes than the caches of today's devices hold.
//!
//! Without `--bench` (as `cargo test --benches` runs it) the same code runs once, on shapes that a simulated device can bear, and prints no
//! figures.

use std::collections::HashMap;
use std::time::Instant;

use ictus::backend::cuda::CudaBackend;
use ictus::backend::{Arithmetic, AttentionShape, Backend, Gate, KvShape, KvType, Picked, RopeTable, Span};
use ictus::checkpoint::{Family, ModelConfig, RopeConfig, RopePairing, RopeScaling};
use ictus::runtime::{Answers, Feed, Input, ModelRuntime, PagedIdentity, PagedOptions, Runtime, SeqHandle, Want};
use ictus::sample::SampleRequest;
use ictus::tensor::{Bytes, DType, Tensor};
use serde_json::{Value, json};

#[path = "../tests/common/cuda_device.rs"]
#[allow(dead_code, unused_imports, reason = "a bench needs no part of the simulation but the device")]
mod cuda_device;

/// What is measured, and how long.
struct Sizes {
    /// Whether the figures are those of a device.
    is_device: bool,
    /// The model of the whole steps; its shapes are those of the operations.
    model: ModelConfig,
    /// Bytes of weights that products go through in turn.
    weight_bytes: usize,
    /// Elements of the arrays that the bandwidth is measured with.
    stream_elements: usize,
    /// Rows of the operations.
    rows: &'static [usize],
    /// Lanes of decode steps, and the tokens before them.
    lanes: &'static [usize],
    context: usize,
    /// Tokens of a prompt.
    prompt: usize,
    /// A measurement goes on for so long.
    least_seconds: f64,
    steps: usize,
}

/// 16 layers of 2048, as the smallest Llama 3.2 has them.
fn device_sizes() -> Sizes {
    Sizes {
        is_device: true,
        model: model(16, 2048, 8192, [32, 8, 64], 128_256),
        weight_bytes: 512 << 20,
        stream_elements: 64 << 20,
        rows: &[1, 4, 16, 64, 512],
        lanes: &[1, 16, 64],
        context: 4096,
        prompt: 512,
        least_seconds: 0.02,
        steps: 32,
    }
}

fn simulated_sizes() -> Sizes {
    Sizes {
        is_device: false,
        // Heads as tensor cores take them, and a segment that lanes can share.
        model: model(1, 64, 96, [4, 2, 64], 80),
        weight_bytes: 1,
        stream_elements: 1 << 10,
        rows: &[1, 5, 20],
        lanes: &[1, 3],
        context: 270,
        prompt: 18,
        least_seconds: 0.0,
        steps: 1,
    }
}

fn model(layers: usize, hidden: usize, ffn_hidden: usize, heads: [usize; 3], vocab: usize) -> ModelConfig {
    let [n_heads, n_kv_heads, head_dim] = heads;
    ModelConfig {
        family: Family::Llama,
        architecture: "llama".into(),
        layers,
        hidden,
        ffn_hidden,
        n_heads,
        n_kv_heads,
        head_dim,
        vocab,
        context_tokens: 8192,
        norm_epsilon: 1e-5,
        attention_scale: (head_dim as f32).sqrt().recip(),
        rope: RopeConfig {
            pairing: RopePairing::Halves,
            dims: head_dim,
            base: 5e5,
            local_base: None,
            scaling: RopeScaling::None,
        },
        window: None,
    }
}

/// Seconds of one call, and what it costs in bytes and operations.
#[derive(Clone, Copy)]
struct Cost {
    bytes: f64,
    operations: f64,
}

struct Bench {
    sizes: Sizes,
    backend: CudaBackend,
    /// Bytes per second; what [`Bench::bandwidth`] found.
    bandwidth: f64,
}

impl Bench {
    fn say(&self, test: &str, fields: Value) {
        if !self.sizes.is_device {
            return;
        }
        let mut line = json!({ "engine": "ictus", "device": self.backend.info().name, "test": test });
        if let (Value::Object(line), Value::Object(fields)) = (&mut line, fields) {
            line.extend(fields);
        }
        println!("{line}");
    }

    /// Median of five: seconds of one call of `operation`, which is called until `least_seconds` are over.
    fn seconds(&self, mut operation: impl FnMut(&CudaBackend, usize)) -> f64 {
        let mut batch = |calls: usize| {
            let started = Instant::now();
            (0..calls).for_each(|call| operation(&self.backend, call));
            self.backend.health().expect("the device is well");
            started.elapsed().as_secs_f64()
        };
        batch(1);
        let once = batch(1).max(1e-7);
        let calls = (self.sizes.least_seconds / once).ceil().clamp(1.0, 1e4) as usize;
        let mut runs: Vec<f64> =
            (0..if self.sizes.is_device { 5 } else { 1 }).map(|_| batch(calls) / calls as f64).collect();
        runs.sort_by(f64::total_cmp);
        runs[runs.len() / 2]
    }

    fn measure(&self, test: &str, shape: Value, cost: Cost, operation: impl FnMut(&CudaBackend, usize)) {
        let seconds = self.seconds(operation);
        let mut fields = json!({
            "us": round(seconds * 1e6),
            "gb_s": round(cost.bytes / seconds / 1e9),
            "of_bandwidth": round(cost.bytes / seconds / self.bandwidth),
        });
        if cost.operations > 0.0 {
            fields["tflop_s"] = round(cost.operations / seconds / 1e12).into();
        }
        if let (Value::Object(fields), Value::Object(shape)) = (&mut fields, shape) {
            fields.extend(shape);
        }
        self.say(test, fields);
    }

    fn rows(&self, rows: usize, width: usize) -> <CudaBackend as Backend>::Buffer {
        let mut buffer = self.backend.buffer(width);
        self.backend.resize(&mut buffer, rows).expect("memory");
        let values: Vec<f32> = (0..rows * width).map(number).collect();
        self.backend.write(&mut buffer, 0, &values).expect("the device is well");
        buffer
    }

    /// Reads two arrays and writes one.
    fn bandwidth(&mut self) {
        let width = 1024;
        let rows = self.sizes.stream_elements / width;
        let (mut x, y) = (self.rows(rows, width), self.rows(rows, width));
        let seconds = self.seconds(|backend, _| backend.add(&mut x, &y));
        self.bandwidth = (12 * rows * width) as f64 / seconds;
        self.say("bandwidth", json!({ "gb_s": round(self.bandwidth / 1e9) }));
    }

    fn row_operations(&self) {
        let ModelConfig { hidden, ffn_hidden, n_heads, head_dim, vocab, .. } = self.sizes.model;
        let ones = self.backend.vector(&floats(1, hidden)).expect("a vector");
        let table = self.backend.matrix(&weights(DType::BF16, vocab, hidden)).expect("a matrix");
        for &rows in self.sizes.rows {
            let row_bytes =
                |width: usize, arrays: usize| Cost { bytes: (4 * rows * width * arrays) as f64, operations: 0.0 };
            let shape = |width: usize| json!({ "rows": rows, "width": width });
            let (mut x, y) = (self.rows(rows, hidden), self.rows(rows, hidden));
            let mut out = self.rows(rows, hidden);
            let tokens: Vec<u32> = (0..rows).map(|row| (row * 997 % vocab) as u32).collect();
            let cost = Cost { bytes: (6 * rows * hidden) as f64, operations: 0.0 };
            self.measure("embed", shape(hidden), cost, |backend, _| backend.embed(&table, &tokens, 1.0, &mut out));
            self.measure("rms_norm", shape(hidden), row_bytes(hidden, 2), |backend, _| {
                backend.rms_norm(&x, &ones, 1e-5, &mut out);
            });
            self.measure("add_rms_norm", shape(hidden), row_bytes(hidden, 4), |backend, _| {
                backend.add_rms_norm(&mut x, &y, &ones, 1e-5, &mut out);
            });
            let (mut gate, up) = (self.rows(rows, ffn_hidden), self.rows(rows, ffn_hidden));
            self.measure("gate", shape(ffn_hidden), row_bytes(ffn_hidden, 3), |backend, _| {
                backend.gate(&mut gate, &up, Gate::Silu);
            });
            let mut queries = self.rows(rows, n_heads * head_dim);
            let angles = self.angles(rows);
            self.measure("rope", shape(n_heads * head_dim), row_bytes(n_heads * head_dim, 2), |backend, _| {
                backend.rope(&mut queries, head_dim, RopePairing::Halves, &angles);
            });
        }
    }

    /// A token of each lane from rows of the whole vocabulary: the best one, a draw as most hosts ask for it, and with log-probabilities. What comes back is
    /// waited for.
    fn picks(&self) {
        let vocab = self.sizes.model.vocab;
        // A pool brings the scratch.
        let _pool = self.backend.pages(&self.pool(1, KvType::F16)).expect("memory");
        let draw = SampleRequest { temperature: 0.8, top_p: 0.95, ..SampleRequest::default() };
        let said = SampleRequest { logprobs: Some(20), ..SampleRequest::default() };
        for &lanes in self.sizes.lanes {
            let mut logits = self.rows(lanes, vocab);
            let mut out = vec![Picked::NotServed; lanes];
            let cost = Cost { bytes: (4 * lanes * vocab) as f64, operations: 0.0 };
            for (how, request) in [("greedy", SampleRequest::default()), ("draw", draw), ("logprobs", said)] {
                let shape = json!({ "how": how, "lanes": lanes, "vocab": vocab });
                self.measure("pick", shape, cost, |backend, call| {
                    let request = SampleRequest { position: call as u64, ..request };
                    backend.pick_rows(&mut logits, &vec![Some(&request); lanes], &mut out).expect("the device is well");
                });
            }
        }
    }

    /// The pool of all layers, with so many pages.
    fn pool(&self, pages: usize, element: KvType) -> KvShape {
        let ModelConfig { layers, n_kv_heads, head_dim, .. } = self.sizes.model;
        KvShape { layers, n_kv_heads, head_dim, page_size_tokens: 16, pages, element }
    }

    /// Keys and values on their way into pages, pages to other pages, and rows to other rows.
    fn moves(&self) {
        let ModelConfig { hidden, n_kv_heads, head_dim, layers, .. } = self.sizes.model;
        let width = n_kv_heads * head_dim;
        for &rows in self.sizes.rows {
            let tokens = rows.next_multiple_of(16);
            let shape = self.pool(2 * tokens / 16, KvType::F16);
            let mut pages = self.backend.pages(&shape).expect("memory");
            let table: Vec<u32> = (0..tokens as u32 / 16).collect();
            let spans = [Span { first_row: 0, rows, start: 0, block_table: &table }];
            let (keys, values) = (self.rows(rows, width), self.rows(rows, width));
            let cost = Cost { bytes: (2 * rows * width * (4 + 2)) as f64, operations: 0.0 };
            self.measure("kv_write", json!({ "rows": rows, "width": width }), cost, |backend, _| {
                backend.kv_write(&mut pages, 0, &keys, &values, &spans);
            });
            let copies: Vec<(u32, u32)> = table.iter().map(|&page| (page, page + table.len() as u32)).collect();
            let bytes = 2 * copies.len() * 16 * 2 * width * layers * shape.element.bytes();
            let cost = Cost { bytes: bytes as f64, operations: 0.0 };
            self.measure("copy_pages", json!({ "pages": copies.len() }), cost, |backend, _| {
                backend.copy_pages(&mut pages, &copies);
            });
            let (x, mut out) = (self.rows(rows, hidden), self.rows(rows, hidden));
            let list: Vec<usize> = (0..rows).rev().collect();
            let cost = Cost { bytes: (8 * rows * hidden) as f64, operations: 0.0 };
            self.measure("gather_rows", json!({ "rows": rows, "width": hidden }), cost, |backend, _| {
                backend.gather_rows(&x, &list, &mut out);
            });
        }
    }

    fn angles(&self, rows: usize) -> <CudaBackend as Backend>::Buffer {
        let dims = self.sizes.model.rope.dims;
        let frequencies = (0..dims / 2).map(|i| 5e5_f64.powf(-2.0 * i as f64 / dims as f64)).collect();
        let mut angles = self.rows(rows, dims);
        let span = Span { first_row: 0, rows, start: 0, block_table: &[] };
        self.backend.angles(&RopeTable { frequencies, pairing: RopePairing::Halves }, &[span], &mut angles);
        angles
    }

    /// The widest product of a layer, in every element type: exact, and in fast arithmetic where the type has one.
    fn products(&mut self) {
        self.products_in(Arithmetic::Exact);
        let exact = std::mem::replace(&mut self.backend, backend_in(Arithmetic::Fast));
        self.products_in(Arithmetic::Fast);
        self.backend = exact;
    }

    fn products_in(&self, arithmetic: Arithmetic) {
        let ModelConfig { hidden, ffn_hidden, .. } = self.sizes.model;
        let is_fast = arithmetic == Arithmetic::Fast;
        for &dtype in DType::ALL.iter().filter(|&&dtype| !is_fast || dtype != DType::F32) {
            let cols = hidden.next_multiple_of(dtype.unit_values());
            let tensor = weights(dtype, ffn_hidden, cols);
            let turns = self.sizes.weight_bytes.div_ceil(tensor.data.len());
            let all: Vec<_> = (0..turns).map(|_| self.backend.matrix(&tensor).expect("a matrix")).collect();
            for &rows in self.sizes.rows {
                let x = self.rows(rows, cols);
                let mut out = self.rows(rows, ffn_hidden);
                let cost = Cost {
                    bytes: (tensor.data.len() + 4 * rows * (cols + ffn_hidden)) as f64,
                    operations: (2 * rows * cols * ffn_hidden) as f64,
                };
                let shape =
                    json!({ "type": format!("{dtype:?}"), "rows": rows, "outputs": ffn_hidden, "inputs": cols });
                self.measure(if is_fast { "linear_fast" } else { "linear" }, shape, cost, |backend, call| {
                    backend.linear(&x, &all[call % turns], None, &mut out);
                });
            }
        }
    }

    /// Attention: exact, and on tensor cores.
    fn attention(&mut self) {
        self.attention_over(&[KvType::F16, KvType::F32]);
        let exact = std::mem::replace(&mut self.backend, backend_in(Arithmetic::Fast));
        self.attention_over(&[KvType::F16]);
        self.backend = exact;
    }

    /// One token of each lane over its context, with and without a prefix that all share; one lane's prompt, from nothing and behind cached pages.
    fn attention_over(&self, elements: &[KvType]) {
        let Sizes { lanes, context, prompt, .. } = self.sizes;
        let ModelConfig { n_heads, n_kv_heads, head_dim, attention_scale, .. } = self.sizes.model;
        let most = lanes.iter().copied().max().unwrap_or(1);
        let shape = AttentionShape { n_heads, n_kv_heads, head_dim, scale: attention_scale, window: None };
        for &element in elements {
            let pages_each = (context + prompt).div_ceil(16);
            let pool =
                KvShape { layers: 1, n_kv_heads, head_dim, page_size_tokens: 16, pages: most * pages_each, element };
            let pages = self.backend.pages(&pool).expect("memory");
            let tables: Vec<Vec<u32>> =
                (0..most).map(|lane| (0..pages_each).map(|page| (page * most + lane) as u32).collect()).collect();
            // Whole segments of 256 positions before the last one.
            let prefix = (context - 1) / 256 * 256;
            let over_prefix = |table: &Vec<u32>| [&tables[0][..prefix / 16], &table[prefix / 16..]].concat();
            let shared: Vec<Vec<u32>> = tables.iter().map(over_prefix).collect();
            let mut cases: Vec<(&str, Vec<Span<'_>>, usize)> = Vec::new();
            for &lanes in lanes {
                cases.push(("attention_decode", decode(&tables[..lanes], context - 1), lanes * context));
                if lanes > 1 && prefix > 0 {
                    let held = prefix + lanes * (context - prefix);
                    cases.push(("attention_decode_shared", decode(&shared[..lanes], context - 1), held));
                }
            }
            for start in [0, context] {
                let span = Span { first_row: 0, rows: prompt, start, block_table: &tables[0] };
                cases.push(("attention_prefill", vec![span], start + prompt));
            }
            for (test, spans, held) in cases {
                let rows: usize = spans.iter().map(|span| span.rows).sum();
                let (queries, mut out) = (self.rows(rows, n_heads * head_dim), self.rows(rows, n_heads * head_dim));
                // Of each row the positions up to its own; of each page every position once.
                let seen: usize =
                    spans.iter().map(|span| (span.start + 1..=span.start + span.rows).sum::<usize>()).sum();
                let cost = Cost {
                    bytes: (held * 2 * n_kv_heads * head_dim * element.bytes() + 8 * rows * n_heads * head_dim) as f64,
                    operations: (4 * seen * n_heads * head_dim) as f64,
                };
                let fields = json!({ "kv": format!("{element:?}"), "arithmetic": self.backend.arithmetic().name(),
                    "lanes": spans.len(), "rows": rows, "positions": held });
                self.measure(test, fields, cost, |backend, _| {
                    backend.attention(&queries, &pages, 0, &shape, &spans, &mut out);
                });
            }
        }
    }
}

/// A row of each table's sequence.
fn decode(tables: &[Vec<u32>], start: usize) -> Vec<Span<'_>> {
    tables.iter().enumerate().map(|(first_row, block_table)| Span { first_row, rows: 1, start, block_table }).collect()
}

/// Whole steps: every lane feeds the token that it picked.
fn steps(bench: &Bench, arithmetic: Arithmetic) {
    let &Sizes { ref model, lanes, prompt, steps, .. } = &bench.sizes;
    let tensors = tensors(model);
    let weight_bytes: usize = tensors.values().map(|tensor| tensor.data.len()).sum();
    let most = lanes.iter().copied().max().unwrap_or(1);
    let context_tokens = prompt + 2 * steps + 1;
    let options = PagedOptions {
        kv_type: KvType::F16,
        page_size_tokens: 16,
        pool_pages: (most + 1) * context_tokens.div_ceil(16),
        context_tokens,
        max_lanes: most as u32,
        prefill_step_tokens: prompt as u32,
        pass_rows: 0,
        cache_resident_tokens: 0,
        cache_exported_tokens: 0,
    };
    let mut runtime = ModelRuntime::new(backend_in(arithmetic), model, &tensors, &options, PagedIdentity::default())
        .expect("the model loads");
    drop(tensors);
    let tokens: Vec<u32> = (0..prompt).map(|i| (i * 31 % model.vocab) as u32).collect();
    let sequences: Vec<SeqHandle> = (0..most).map(|_| runtime.seq_create().expect("a sequence")).collect();
    let mut answers = Answers::new();
    let want = || Want::Token(SampleRequest::default());
    let mut prefill_seconds = Vec::new();
    for &sequence in &sequences {
        let started = Instant::now();
        let feed = Feed { sequence, input: Input::Tokens(&tokens), want: want() };
        runtime.step(&[feed], &mut answers).expect("the step runs");
        prefill_seconds.push(started.elapsed().as_secs_f64());
    }
    let seconds = median(&mut prefill_seconds);
    bench.say("pp", json!({ "arithmetic": arithmetic.name(), "n": prompt, "ms": round(seconds * 1e3), "tok_s": round(prompt as f64 / seconds) }));
    for &lanes in lanes {
        // So that each case finds the same positions, what it feeds is cut off again behind it.
        let mut runs: Vec<f64> = (0..steps)
            .map(|step| {
                let token = [(step * 7 % model.vocab) as u32];
                let feeds: Vec<Feed<'_>> = sequences[..lanes]
                    .iter()
                    .map(|&sequence| Feed { sequence, input: Input::Tokens(&token), want: want() })
                    .collect();
                let started = Instant::now();
                runtime.step(&feeds, &mut answers).expect("the step runs");
                started.elapsed().as_secs_f64()
            })
            .collect();
        for &sequence in &sequences[..lanes] {
            runtime.seq_truncate(sequence, prompt as u64).expect("a sequence can be cut");
        }
        let seconds = median(&mut runs);
        bench.say(
            "step",
            json!({ "arithmetic": arithmetic.name(), "lanes": lanes, "positions": prompt, "ms": round(seconds * 1e3), "tok_s": round(lanes as f64 / seconds),
                "of_bandwidth": round(weight_bytes as f64 / seconds / bench.bandwidth) }),
        );
    }
}

fn backend_in(arithmetic: Arithmetic) -> CudaBackend {
    cuda_device::backend().with_arithmetic(arithmetic)
}

/// Random weights of a whole model, under the names that its family asks for; the embedding is the output layer too.
fn tensors(model: &ModelConfig) -> HashMap<String, Tensor> {
    let ModelConfig { layers, hidden, ffn_hidden, n_heads, n_kv_heads, head_dim, vocab, .. } = *model;
    let mut all = HashMap::from([
        ("token_embd.weight".to_owned(), weights(DType::BF16, vocab, hidden)),
        ("output_norm.weight".to_owned(), floats(1, hidden)),
    ]);
    for layer in 0..layers {
        let matrices = [
            ("attn_q", n_heads * head_dim, hidden),
            ("attn_k", n_kv_heads * head_dim, hidden),
            ("attn_v", n_kv_heads * head_dim, hidden),
            ("attn_output", hidden, n_heads * head_dim),
            ("ffn_gate", ffn_hidden, hidden),
            ("ffn_up", ffn_hidden, hidden),
            ("ffn_down", hidden, ffn_hidden),
        ];
        for (name, rows, cols) in matrices {
            all.insert(format!("blk.{layer}.{name}.weight"), weights(DType::BF16, rows, cols));
        }
        for name in ["attn_norm", "ffn_norm"] {
            all.insert(format!("blk.{layer}.{name}.weight"), floats(1, hidden));
        }
    }
    all
}

/// Bytes whose every 16-bit word is a small number of either sign: good scales wherever they lie, and any integers.
fn weights(dtype: DType, rows: usize, cols: usize) -> Tensor {
    let len = rows * dtype.row_bytes(cols).expect("whole units");
    let high = if dtype == DType::BF16 { [0x3c, 0xbc] } else { [0x20, 0xa0] };
    let word = |i: usize| [(i * 37 % 251) as u8, high[i * 7919 / 13 % 2]];
    let bytes: Vec<u8> = (0..len.div_ceil(2)).flat_map(word).take(len).collect();
    Tensor { dtype, rows, cols, data: Bytes::copy_aligned(&bytes) }
}

fn floats(rows: usize, cols: usize) -> Tensor {
    Tensor { dtype: DType::F32, rows, cols, data: Bytes::from_f32(&vec![1.0; rows * cols]) }
}

fn number(i: usize) -> f32 {
    ((i * 2_654_435_761) >> 8 & 0xffff) as f32 / 32768.0 - 1.0
}

/// To four digits.
fn round(x: f64) -> f64 {
    let scale = 10_f64.powi(3 - x.abs().max(1e-9).log10().floor() as i32);
    (x * scale).round() / scale
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    let is_bench = std::env::args().any(|arg| arg == "--bench");
    if is_bench && let Err(error) = ictus::backend::cuda::device(0) {
        println!("skipped: the CUDA backend on a device: {error}");
        return;
    }
    let Some(_device) = cuda_device::test_device() else { return };
    let sizes = if is_bench { device_sizes() } else { simulated_sizes() };
    let mut bench = Bench { sizes, backend: cuda_device::backend(), bandwidth: 1.0 };
    bench.bandwidth();
    bench.row_operations();
    bench.moves();
    bench.picks();
    bench.products();
    bench.attention();
    steps(&bench, Arithmetic::Exact);
    steps(&bench, Arithmetic::Fast);
    if !is_bench {
        println!("everything ran once, on {}; for figures: cargo bench", bench.backend.info().name);
    }
    bench.say("kernels", json!({ "form": bench.backend.kernels().to_string() }));
}
