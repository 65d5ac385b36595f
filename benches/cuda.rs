//! The CUDA backend on a device: each operation beside what the device's memory allows, then whole steps of a model of about a billion
//! random weights.
//!
//! `cargo bench --all-features --bench cuda` on a machine with a device; one JSON object per line. `of_bandwidth` is the part of the
//! speed that reading and writing every byte once would allow, at the rate that the first line measured; operations of few bytes are bound
//! by their launch instead. Weights are taken in turn from more bytes than the caches of today's devices hold.
//!
//! Without `--bench` (as `cargo test --benches` runs it) the same code runs once, on shapes that a simulated device can bear, and prints no
//! figures; then every kernel must have run (`cuda/kernels_run.rs`), so none is added without a measurement, or a reason why it has none.
//!
//! | file | what |
//! |---|---|
//! | `cuda/rows.rs`, `pages.rs`, `picks.rs`, `products.rs`, `attention.rs` | operations one by one |
//! | `cuda/steps.rs` | whole steps, with and without graphs |
//! | `cuda/kernels_run.rs` | which kernels the operations have launched |

use std::time::Instant;

use ictus::backend::cuda::CudaBackend;
use ictus::backend::{Arithmetic, Backend, KvShape, KvType};
use ictus::checkpoint::{Family, ModelConfig, RopeConfig, RopePairing, RopeScaling};
use ictus::tensor::{Bytes, DType, Tensor};
use serde_json::{Value, json};

#[path = "cuda/attention.rs"]
mod attention;
#[path = "../tests/common/cuda_device.rs"]
#[allow(
    dead_code,
    unused_imports,
    reason = "a bench needs no part of the simulation but the device and what ran there"
)]
mod cuda_device;
#[path = "cuda/kernels_run.rs"]
mod kernels_run;
#[path = "cuda/pages.rs"]
mod pages;
#[path = "cuda/picks.rs"]
mod picks;
#[path = "cuda/products.rs"]
mod products;
#[path = "cuda/rows.rs"]
mod rows;
#[path = "cuda/steps.rs"]
mod steps;

/// Positions of a page.
const PAGE: usize = 16;

type Buffer = <CudaBackend as Backend>::Buffer;

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
        // For each kernel of a product a number of rows that chooses it, as among those of a device.
        rows: &[1, 4, 9, 20, 70],
        lanes: &[1, 3],
        context: 270,
        prompt: 18,
        least_seconds: 0.0,
        // Launched, captured, launched again as a graph.
        steps: 3,
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

impl Cost {
    /// Of what is bound by its bytes.
    fn bytes(bytes: usize) -> Self {
        Self { bytes: bytes as f64, operations: 0.0 }
    }
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

    fn rows(&self, rows: usize, width: usize) -> Buffer {
        self.rows_of(rows, width, number)
    }

    fn rows_of(&self, rows: usize, width: usize, value: impl Fn(usize) -> f32) -> Buffer {
        let mut buffer = self.backend.buffer(width);
        self.backend.resize(&mut buffer, rows).expect("memory");
        let values: Vec<f32> = (0..rows * width).map(value).collect();
        self.backend.write(&mut buffer, 0, &values).expect("the device is well");
        buffer
    }

    /// What `measure` does on a backend of fast arithmetic.
    fn in_fast(&mut self, measure: impl FnOnce(&Self)) {
        let exact = std::mem::replace(&mut self.backend, backend_in(Arithmetic::Fast));
        measure(self);
        self.backend = exact;
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

    /// The pool of all layers, with so many pages.
    fn pool(&self, pages: usize, element: KvType) -> KvShape {
        let ModelConfig { layers, n_kv_heads, head_dim, .. } = self.sizes.model;
        KvShape { layers, n_kv_heads, head_dim, page_size_tokens: PAGE, pages, element }
    }
}

fn backend_in(arithmetic: Arithmetic) -> CudaBackend {
    cuda_device::backend().with_arithmetic(arithmetic)
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
    let Some(device) = cuda_device::test_device() else { return };
    let sizes = if is_bench { device_sizes() } else { simulated_sizes() };
    let mut bench = Bench { sizes, backend: cuda_device::backend(), bandwidth: 1.0 };
    bench.bandwidth();
    bench.embeddings();
    bench.row_operations();
    bench.row_moves();
    bench.pages();
    bench.picks();
    bench.in_fast(Bench::rounded_rows);
    bench.products();
    bench.attention();
    // The operations above, each by itself; what only a step launches is not measured yet.
    kernels_run::all_were(&device);
    steps::steps(&bench, Arithmetic::Exact);
    steps::steps(&bench, Arithmetic::Fast);
    if !is_bench {
        println!("everything ran once, on {}; for figures: cargo bench", bench.backend.info().name);
    }
    bench.say("kernels", json!({ "form": bench.backend.kernels().to_string() }));
}
