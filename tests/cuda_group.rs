//! Several CUDA devices as one backend: the bits of one device, whatever is split over however many; state that moves between engines of any number;
//! devices that are lost, or have no memory.
//!
//! Runs on simulated devices alone: no machine with several was ever there.

#![cfg(feature = "cuda")]
#![allow(dead_code, reason = "the shared helpers have more than this file uses")]

#[path = "common/cuda_device.rs"]
mod cuda_device;
#[path = "common/gguf.rs"]
mod gguf;
#[path = "common/lora.rs"]
mod lora;
#[path = "common/model.rs"]
mod model;
#[path = "common/random.rs"]
mod random;
#[path = "common/weights.rs"]
mod weights;

use std::collections::HashMap;

use cuda_device::{FakeDriver, Point, Setting, backend, simulated};
use ictus::backend::cuda::CudaGroup;
use ictus::backend::{Backend, BackendError, KvType};
use ictus::checkpoint::{Checkpoint, ModelConfig};
use ictus::record::constant::encoding;
use ictus::runtime::{
    Answer, Answers, Feed, Input, ModelRuntime, PagedError, PagedIdentity, PagedOptions, Runtime, SeqHandle, Want,
};
use ictus::sample::SampleRequest;
use ictus::tensor::{DType, Tensor};
use random::Random;

/// What the driver says: no memory is left; an address was wrong, which loses the context.
const OUT_OF_MEMORY: i32 = 2;
const ILLEGAL_ADDRESS: i32 = 700;

fn open(path: &str) -> Checkpoint {
    Checkpoint::open(model::file(path)).expect("the model opens")
}

fn bits(row: &[f32]) -> Vec<u32> {
    row.iter().map(|value| value.to_bits()).collect()
}

fn prompt(len: usize) -> Vec<u32> {
    (0..len as u32).map(|i| 3 + i * 7 % 40).collect()
}

/// Numbers and weights of a model.
struct Weights {
    name: String,
    config: ModelConfig,
    tensors: HashMap<String, Tensor>,
}

impl Weights {
    fn of_file(path: &str) -> Self {
        let checkpoint = open(path);
        let tensors = checkpoint.tensors().map(|(name, tensor)| (name.to_owned(), tensor.clone())).collect();
        Self { name: path.to_owned(), config: checkpoint.config().clone(), tensors }
    }

    /// A model of the files with other heads, whose matrices are random.
    fn with_heads(random: &mut Random, path: &str, n_heads: usize, n_kv_heads: usize) -> Self {
        let Self { name, mut config, mut tensors } = Self::of_file(path);
        (config.n_heads, config.n_kv_heads) = (n_heads, n_kv_heads);
        let (wide, narrow) = (n_heads * config.head_dim, n_kv_heads * config.head_dim);
        for layer in 0..config.layers {
            let shapes = [("q", wide, config.hidden), ("k", narrow, config.hidden), ("v", narrow, config.hidden)];
            for (part, rows, cols) in shapes.into_iter().chain([("output", config.hidden, wide)]) {
                let matrix = format!("blk.{layer}.attn_{part}.weight");
                // Half precision where rows are not whole blocks; scaled, so that nothing runs over.
                let dtype = if part == "output" { DType::F32 } else { tensors[&matrix].dtype };
                let mut tensor = weights::tensor(random, dtype, rows, cols);
                if dtype == DType::F32 {
                    let values: Vec<f32> = weights::decoded(&tensor).iter().map(|x| x / 8.0).collect();
                    tensor = weights::plain(rows, cols, &values);
                }
                tensors.insert(matrix, tensor);
                let bias = format!("blk.{layer}.attn_{part}.bias");
                if tensors.contains_key(&bias) {
                    tensors.insert(bias, weights::plain(1, rows, &weights::values(random, rows)));
                }
            }
        }
        Self { name: format!("{name} with {n_heads}/{n_kv_heads} heads"), config, tensors }
    }

    fn runtime<B: Backend>(&self, backend: B, options: &PagedOptions) -> Result<ModelRuntime<B>, PagedError> {
        ModelRuntime::new(backend, &self.config, &self.tensors, options, PagedIdentity::default())
    }

    fn alone(&self, options: &PagedOptions) -> ModelRuntime<ictus::backend::cuda::CudaBackend> {
        self.runtime(backend(), options).expect("the model loads")
    }

    fn spread(&self, devices: u32, options: &PagedOptions) -> ModelRuntime<CudaGroup> {
        self.runtime(group(devices), options).expect("the model loads")
    }
}

fn group(devices: u32) -> CudaGroup {
    CudaGroup::new(&(0..devices).collect::<Vec<_>>()).expect("the devices are there")
}

/// So many simulated devices.
fn devices(count: u64) -> Option<FakeDriver> {
    let driver = simulated()?;
    driver.set(Setting::Devices, count);
    Some(driver)
}

const TWO_HEADS: [&str; 5] = [
    "tests/data/llama-window.gguf",
    "tests/data/qwen2.gguf",
    "tests/data/qwen3.gguf",
    "tests/data/gemma3.gguf",
    "models/ictus-tiny.gguf",
];

/// Models and how many devices each can be spread over.
fn spreads(random: &mut Random) -> Vec<(Weights, &'static [u32])> {
    let mut all: Vec<(Weights, &'static [u32])> =
        TWO_HEADS.iter().map(|path| (Weights::of_file(path), &[2_u32][..])).collect();
    all.push((Weights::with_heads(random, "tests/data/qwen3.gguf", 4, 4), &[2, 3, 4]));
    all.push((Weights::with_heads(random, "tests/data/qwen2.gguf", 6, 3), &[2, 3]));
    all.push((Weights::with_heads(random, "tests/data/llama-window.gguf", 10, 5), &[3, 4]));
    all
}

/// A prompt in one piece, in chunks of many sizes, then tokens one by one: each row has the bits that one device gives it.
#[test]
fn cuda_group_has_the_bits_of_one_device_in_every_family() {
    let Some(_driver) = devices(4) else { return };
    let mut random = Random::new("cuda group families");
    let prompt = prompt(19);
    for (weights, counts) in spreads(&mut random) {
        for kv_type in [KvType::F32, KvType::F16] {
            let options = model::options(kv_type, 32);
            let rows = |runtime: &mut dyn Runtime| {
                let mut rows = Vec::new();
                let mut answers = Answers::new();
                for positions in [vec![19], vec![7, 1, 1, 10]] {
                    let sequence = runtime.seq_create().expect("a sequence");
                    let mut from = 0;
                    for len in positions {
                        let feed =
                            Feed { sequence, input: Input::Tokens(&prompt[from..from + len]), want: Want::LastRow };
                        runtime.step(&[feed], &mut answers).expect("the step runs");
                        rows.push(bits(answers.row(0).expect("a row")));
                        from += len;
                    }
                }
                rows
            };
            let expected = rows(&mut weights.alone(&options));
            assert!(expected.iter().flatten().all(|&bits| f32::from_bits(bits).is_finite()), "{}", weights.name);
            assert_eq!(expected[0], expected[4], "{}: in chunks", weights.name);
            for &count in counts {
                let got = rows(&mut weights.spread(count, &options));
                assert!(got == expected, "{} on {count} devices, {kv_type:?}", weights.name);
            }
        }
    }
}
