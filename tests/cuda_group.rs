//! Several CUDA devices as one backend: the bits of one device, whatever is split over however many; state that moves between engines of any number;
//! devices that are lost, or have no memory.
//!
//! Runs on simulated devices alone: no machine with several was ever there.

#![cfg(feature = "cuda")]
#![allow(dead_code, reason = "the shared helpers have more than this file uses")]

#[path = "cuda_group/ahead.rs"]
mod ahead;
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
#[path = "cuda_group/sections.rs"]
mod sections;
#[path = "common/weights.rs"]
mod weights;

use std::collections::HashMap;

use cuda_device::{FakeDriver, Point, Setting, backend, refused_in_turn, simulated};
use cudarc::driver::CudaContext;
use ictus::backend::cuda::{CudaBackend, CudaGroup};
use ictus::backend::{Arithmetic, Backend, BackendError, KvType};
use ictus::checkpoint::{Checkpoint, ModelConfig};
use ictus::engine::{Engine, PlanBuilder, StageOutput};
use ictus::executor::Executor;
use ictus::facade::CoreOptions;
use ictus::record::Status;
use ictus::record::constant::encoding;
use ictus::ring::{MemoryRings, Rings};
use ictus::runtime::{
    Answer, Answers, Feed, Input, ModelRuntime, PagedError, PagedIdentity, PagedOptions, Runtime, Want,
};
use ictus::sample::SampleRequest;
use ictus::tensor::{DType, Tensor};
use ictus::testing::schedule::{assert_schedule_invariance, random_requests, run_alone};
use ictus::{Device, Error, Model, ModelOptions};
use lora::Lora;
use random::Random;

const SMALL: &str = "tests/data/llama-window.gguf";

/// What the driver says: an address was wrong, which loses the context.
const ILLEGAL_ADDRESS: i32 = 700;

fn open(path: &str) -> Checkpoint {
    Checkpoint::open(model::file(path)).expect("the model opens")
}

fn bits(row: &[f32]) -> Vec<u32> {
    row.iter().map(|value| value.to_bits()).collect()
}

/// Tokens from all over a vocabulary.
fn prompt(len: usize) -> Vec<u32> {
    (0..len as u32).map(|i| 3 + i * 61 % 280).collect()
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

    fn alone(&self, options: &PagedOptions) -> ModelRuntime<CudaBackend> {
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
    let prompt = prompt(11);
    for (at, (weights, counts)) in spreads(&mut random).into_iter().enumerate() {
        let options = model::options([KvType::F32, KvType::F16][at % 2], 16);
        let rows = |runtime: &mut dyn Runtime| {
            let mut rows = Vec::new();
            let mut answers = Answers::new();
            for lengths in [&[11][..], &[5, 1, 1, 4]] {
                let sequence = runtime.seq_create().expect("a sequence");
                let mut from = 0;
                for len in lengths {
                    let feed = Feed { sequence, input: Input::Tokens(&prompt[from..from + len]), want: Want::LastRow };
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
            assert!(got == expected, "{} on {count} devices", weights.name);
        }
    }
}

/// The same of fast arithmetic: each device rounds the same whole rows.
#[test]
fn cuda_group_has_the_bits_of_one_device_in_fast_arithmetic() {
    let Some(_driver) = devices(2) else { return };
    let options = model::options(KvType::F16, 32);
    for path in [SMALL, "tests/data/qwen3.gguf"] {
        let weights = Weights::of_file(path);
        let row = |runtime: &mut dyn Runtime| {
            let sequence = runtime.seq_create().expect("a sequence");
            let (tokens, mut answers) = (prompt(19), Answers::new());
            let feed = Feed { sequence, input: Input::Tokens(&tokens), want: Want::LastRow };
            runtime.step(&[feed], &mut answers).expect("the step runs");
            bits(answers.row(0).expect("a row"))
        };
        let one = backend().with_arithmetic(Arithmetic::Fast);
        let two = group(2).with_arithmetic(Arithmetic::Fast);
        let expected = row(&mut weights.runtime(one, &options).expect("the model loads"));
        assert_eq!(row(&mut weights.runtime(two, &options).expect("the model loads")), expected, "{path}");
        assert_ne!(row(&mut weights.alone(&options)), expected, "{path}: exact arithmetic has other bits");
    }
}

/// Rows longer than a half of the staging, and prompts of several parts, go over in several rounds.
#[test]
fn cuda_group_collects_long_walks_in_rounds() {
    let Some(_driver) = devices(2) else { return };
    let mut weights = Weights::of_file("tests/data/llama-rope-scaled.gguf");
    // Of one layer, with a feed-forward section of which a half of the staging holds fewer rows than there are.
    weights.config.layers = 1;
    (weights.config.n_heads, weights.config.n_kv_heads, weights.config.head_dim) = (2, 2, 16);
    let mut random = Random::new("cuda group rounds");
    let (ffn, hidden) = (1 << 17, weights.config.hidden);
    weights.config.ffn_hidden = ffn;
    for (name, rows, cols) in [
        ("attn_k", 32, hidden),
        ("attn_v", 32, hidden),
        ("ffn_gate", ffn, hidden),
        ("ffn_up", ffn, hidden),
        ("ffn_down", hidden, ffn),
    ] {
        let values = weights::values(&mut random, rows * cols).iter().map(|x| x / 16.0).collect::<Vec<_>>();
        weights.tensors.insert(format!("blk.0.{name}.weight"), weights::plain(rows, cols, &values));
    }
    let options = PagedOptions { prefill_step_tokens: 16, ..model::options(KvType::F32, 16) };
    let row = |runtime: &mut dyn Runtime| {
        let mut answers = Answers::new();
        let sequence = runtime.seq_create().expect("a sequence");
        let feed = Feed { sequence, input: Input::Tokens(&prompt(9)), want: Want::LastRow };
        runtime.step(&[feed], &mut answers).expect("the step runs");
        bits(answers.row(0).expect("a row"))
    };
    assert_eq!(row(&mut weights.spread(2, &options)), row(&mut weights.alone(&options)));
}

/// Whoever picks, and whatever is done to a row before, the tokens are those of one device; hidden states are too.
#[test]
fn cuda_group_picks_the_tokens_of_one_device() {
    let Some(_driver) = devices(3) else { return };
    let mut random = Random::new("cuda group picks");
    let weights = Weights::with_heads(&mut random, "tests/data/qwen2.gguf", 6, 3);
    let mask: Vec<u32> = (0..9).map(|word| 0x5A5A_5A5A ^ word).collect();
    let greedy = SampleRequest::default();
    let drawn = SampleRequest { temperature: 0.8, top_k: 40, top_p: 0.95, position: 7, ..greedy };
    let requests = [
        greedy,
        drawn,
        SampleRequest { bias: &[(5, 100.0)], ..drawn },
        SampleRequest { mask: Some(&mask), ..greedy },
        SampleRequest { logprobs: Some(3), ..drawn },
    ];
    let options = model::options(KvType::F32, 64);
    let (mut alone, mut spread) = (weights.alone(&options), weights.spread(3, &options));
    for plain in [true, false] {
        let wants = |i: usize| match i {
            _ if plain => Want::Token(requests[i % 2]),
            1 => Want::EveryRow,
            3 => Want::LastRow,
            _ => Want::Token(requests[i]),
        };
        assert_eq!(tokens_of(&mut spread, &wants), tokens_of(&mut alone, &wants), "plain: {plain}");
    }
}

/// One step over five sequences, and what each is answered.
fn tokens_of<'r>(runtime: &mut dyn Runtime, wants: &dyn Fn(usize) -> Want<'r>) -> (Vec<Answer>, Vec<Vec<u32>>) {
    let prompts: Vec<Vec<u32>> = (0..5).map(|i| prompt(2 + i)).collect();
    let sequences: Vec<_> = prompts.iter().map(|_| runtime.seq_create().expect("a sequence")).collect();
    let feed = |i: usize| Feed { sequence: sequences[i], input: Input::Tokens(&prompts[i]), want: wants(i) };
    let feeds: Vec<Feed<'_>> = (0..5).map(feed).collect();
    let mut answers = Answers::new();
    runtime.step(&feeds, &mut answers).expect("the step runs");
    sequences.into_iter().for_each(|sequence| runtime.seq_free(sequence));
    let rows = (0..8).map_while(|row| answers.row(row).map(bits)).collect();
    (answers.as_slice().to_vec(), rows)
}

/// Promise 1 for whole requests: alone on one device, alone on several, in random schedules on several.
#[test]
fn cuda_group_requests_have_the_same_bits_in_any_schedule_and_on_one_device() {
    let Some(_driver) = devices(2) else { return };
    let weights = Weights::of_file(SMALL);
    let mut random = Random::new("cuda group schedules");
    let mut below = |bound: usize| random.below(bound);
    let requests = random_requests(3, weights.config.vocab as u32, 10, 5, &mut below);
    let options = model::options(KvType::F16, 64);
    let make = || Executor::new(weights.spread(2, &options));
    for request in &requests {
        let alone = run_alone(Executor::new(weights.alone(&options)), request);
        assert!(run_alone(make(), request) == alone, "on two devices and on one");
    }
    let counts = assert_schedule_invariance(make, &requests, 2, 3, &mut below);
    println!("{counts:?}");
}

/// state that leaves several devices is what leaves one, and goes on wherever it enters; forks copy what they share.
#[test]
fn cuda_group_state_is_that_of_one_device() {
    let Some(_driver) = devices(4) else { return };
    let mut random = Random::new("cuda group state");
    let weights = Weights::with_heads(&mut random, "tests/data/llama-window.gguf", 10, 5);
    for kv_type in [KvType::F32, KvType::F16] {
        let options = model::options(kv_type, 32);
        let small = PagedOptions { page_size_tokens: 4, pool_pages: 64, ..options };
        let mut alone = weights.alone(&options);
        let source = alone.seq_create().expect("a sequence");
        model::last_row(&mut alone, source, &prompt(21));
        let forms = [encoding::LOSSLESS, encoding::Q8];
        let payloads = forms.map(|form| alone.seq_export(source, 19, form).expect("it is offered"));
        alone.seq_truncate(source, 19).expect("it can be cut");
        let expected = bits(&model::last_row(&mut alone, source, &[5, 6]));
        let mut spread = weights.spread(3, &options);
        let source = spread.seq_create().expect("a sequence");
        model::last_row(&mut spread, source, &prompt(21));
        let exported = forms.map(|form| spread.seq_export(source, 19, form).expect("it is offered"));
        assert!(exported == payloads, "{kv_type:?}: out of three devices");
        // A fork writes into the page that it shares, and so does its source.
        spread.seq_truncate(source, 19).expect("it can be cut");
        let fork = spread.seq_create().expect("a sequence");
        spread.seq_copy(source, fork, 19).expect("the source has it");
        model::last_row(&mut spread, fork, &[250, 251]);
        assert_eq!(bits(&model::last_row(&mut spread, source, &[5, 6])), expected, "{kv_type:?}: the source");
        // Into other pages, on another number of devices, elsewhere in the pool.
        let mut other = weights.spread(4, &small);
        let _elsewhere = model::rows_at(&mut other, &prompt(7), &[6]);
        for (payload, form) in payloads.iter().zip(forms) {
            let target = other.seq_create().expect("a sequence");
            if form == encoding::LOSSLESS {
                assert_eq!(other.seq_import(target, payload), Ok(19));
                assert!(other.seq_export(target, 19, form).as_ref() == Ok(payload), "{kv_type:?}: into four devices");
                assert_eq!(bits(&model::last_row(&mut other, target, &[5, 6])), expected, "{kv_type:?}");
            }
        }
    }
}

/// Adapters are spread as what they change, in one step with a sequence that carries none.
#[test]
fn cuda_group_adapters_have_the_bits_of_one_device() {
    let Some(_driver) = devices(3) else { return };
    let mut random = Random::new("cuda group adapters");
    let weights = Weights::with_heads(&mut random, "tests/data/qwen3.gguf", 6, 3);
    let options = model::options(KvType::F32, 16);
    // Between its factors are fewer columns than there are devices.
    let lora = Lora::random(&mut random, &weights.config, 2, &[0, 1, 2, 3, 4, 5, 6]);
    let folder = tempfile::tempdir().expect("a folder");
    let path = lora.write_peft(folder.path());
    let rows = |runtime: &mut dyn Runtime| {
        let loaded = runtime.adapter_load(&path).expect("the adapter fits");
        let ids = prompt(7);
        let sequences = [0, loaded.handle].map(|adapter| {
            let sequence = runtime.seq_create().expect("a sequence");
            runtime.seq_adapt(sequence, adapter).expect("an empty sequence takes an adapter");
            sequence
        });
        let feeds = sequences.map(|sequence| Feed { sequence, input: Input::Tokens(&ids), want: Want::LastRow });
        let mut answers = Answers::new();
        runtime.step(&feeds, &mut answers).expect("the step runs");
        [0, 1].map(|row| bits(answers.row(row).expect("a row")))
    };
    let expected = rows(&mut weights.alone(&options));
    assert_ne!(expected[0], expected[1], "the adapter does something");
    for count in [2, 3] {
        assert!(rows(&mut weights.spread(count, &options)) == expected, "on {count} devices");
    }
}

/// What cannot be spread, or is no group, is refused with the reason, twice.
#[test]
fn cuda_group_refuses_what_cannot_be_spread() {
    let Some(driver) = devices(4) else { return };
    let weights = Weights::of_file(SMALL);
    for _ in 0..2 {
        let refused = weights.runtime(group(3), &model::options(KvType::F32, 16)).err().expect("two heads");
        assert!(refused.to_string().contains("cannot be spread over 3 devices"), "{refused}");
        let opened = Model::open(model::file(SMALL), &options(0b1011)).expect_err("two heads");
        assert_eq!(opened.to_string(), "2 key and value heads cannot be spread over 3 devices");
        let planned = Model::plan(model::file(SMALL), &options(0b1011)).expect_err("two heads");
        assert_eq!(planned.to_string(), opened.to_string());
        for (indices, reason) in
            [(&[0, 1, 0][..], "device 0 is named twice"), (&[], "no device"), (&[0, 7], "none with number 7")]
        {
            let Err(BackendError::NoDevice { reason: said }) = CudaGroup::new(indices) else { panic!("{indices:?}") };
            assert!(said.contains(reason), "{said}");
        }
        let missing = Model::open(model::file(SMALL), &options(0b10_0001)).expect_err("there are four");
        assert!(matches!(missing, Error::Backend(BackendError::NoDevice { .. })), "{missing}");
    }
    assert_eq!(driver.statistics().live_contexts, 0);
}

/// Devices of two generations might have two kinds of bits: whoever names both is refused before anything is made, twice, and each goes by itself.
#[test]
fn cuda_group_refuses_devices_of_different_generations() {
    let Some(driver) = devices(3) else { return };
    driver.set(Setting::LastCapability, 80);
    let refusal = "device 0 (simulated device 0) has compute capability 9.0, device 2 (simulated device 2) has compute capability 8.0: devices of \
                   different generations do not work as one";
    let refused = BackendError::NoDevice { reason: refusal.to_owned() };
    for _ in 0..2 {
        assert_eq!(CudaGroup::new(&[0, 1, 2]).err(), Some(refused.clone()));
        let opened = Model::open(model::file(SMALL), &options(0b101)).expect_err("two generations");
        let planned = Model::plan(model::file(SMALL), &options(0b101)).expect_err("two generations");
        assert_eq!([opened.to_string(), planned.to_string()], [refused.to_string(), refused.to_string()]);
        assert_eq!(driver.statistics().live_contexts, 0);
    }
    let row = |backend: CudaBackend| {
        let mut runtime = Weights::of_file(SMALL).runtime(backend, &model::options(KvType::F32, 16)).expect("it loads");
        let sequence = runtime.seq_create().expect("a sequence");
        bits(&model::last_row(&mut runtime, sequence, &prompt(5)))
    };
    assert_eq!(row(CudaBackend::new(2).expect("a device")), row(backend()));
    drop(Weights::of_file(SMALL).spread(2, &model::options(KvType::F32, 16)));
}

/// Engines on the devices of a mask; 0 is device 0 alone.
fn options(device_mask: u64) -> ModelOptions {
    ModelOptions {
        device: Device::Cuda,
        device_mask,
        threads: 1,
        context_tokens: 64,
        prefill_step_tokens: 32,
        max_lanes: 8,
        ..ModelOptions::default()
    }
}

fn opened(device_mask: u64) -> Model {
    Model::open(model::file(SMALL), &options(device_mask)).expect("it opens")
}

/// Greedy tokens of one lane, one a tick; `after` is told of each tick.
fn try_tokens(engine: &mut dyn Engine, count: usize, mut after: impl FnMut()) -> Result<Vec<u32>, Status> {
    let mut rings = MemoryRings::new();
    let prompt = prompt(5);
    let staged = rings.stage_prompt(&prompt);
    let mut tokens = Vec::new();
    for seq in 1..=count as u64 {
        let plan = PlanBuilder::new(seq).decode(1, 1);
        let plan = if seq == 1 { plan.admit(1, staged).prefill(1, 0, prompt.len() as u32) } else { plan };
        let (plan, arena) = plan.build();
        let emit = engine.tick(&plan, &arena, &mut rings)?.emits[0];
        rings.read_tokens(&emit.token_ref, &mut tokens).expect("the tokens are there");
        after();
    }
    Ok(tokens)
}

fn tokens(engine: &mut dyn Engine) -> Vec<u32> {
    try_tokens(engine, 5, || ()).expect("the plans run")
}

fn fresh_tokens(device_mask: u64) -> Vec<u32> {
    tokens(&mut *opened(device_mask).engine().expect("an engine"))
}

/// A core, and a draft model, on several devices; one with too few heads drafts on the first of them.
#[test]
fn cuda_group_serves_cores_and_drafts() {
    let Some(_driver) = devices(2) else { return };
    let model = opened(0b11);
    for _ in 0..2 {
        let refused =
            [opened(0).cuda_group_core(CoreOptions::default()).err(), model.core(CoreOptions::default()).err()];
        assert!(refused.iter().all(|error| matches!(error, Some(Error::Backend(BackendError::NoDevice { .. })))));
        let refused = model.cuda_core(CoreOptions::default()).err();
        assert!(matches!(refused, Some(Error::Backend(BackendError::NoDevice { .. }))), "{refused:?}");
    }
    let core = model.cuda_group_core(CoreOptions::default()).expect("a core");
    let mut engine = core.tick_host().expect("nobody else ticks");
    assert_eq!(tokens(&mut engine), fresh_tokens(0));
    let before = [0, 1].map(taken);
    let one_head = model::file("tests/data/llama-rope-scaled.gguf");
    assert!(Model::open(&one_head, &options(0b11)).is_err(), "it has one head");
    let drafter = model.drafter(&one_head).expect("of the same vocabulary");
    let after = [0, 1].map(taken);
    assert!(after[0] > before[0] && after[1] == before[1], "{before:?}, {after:?}");
    drop(drafter);
    let _drafter = model.drafter(model::file(SMALL)).expect("itself");
    let after = [0, 1].map(taken);
    assert!(after[0] > before[0] && after[1] > before[1], "{before:?}, {after:?}");
}

/// Bytes that are taken on a device.
fn taken(index: usize) -> u64 {
    let context = CudaContext::new(index).expect("the device");
    let (free, total) = context.mem_get_info().expect("sizes");
    (total - free) as u64
}

/// What each device takes is what its plan says; the capability descriptor names all; nothing is left behind.
#[test]
fn cuda_group_takes_what_is_planned_on_each_device_and_gives_it_back() {
    let Some(driver) = devices(4) else { return };
    let expected = fresh_tokens(0);
    let model = opened(0b1010);
    assert_eq!((model.device(), model.device_indices()), (Device::Cuda, &[1, 3][..]));
    let plans = model.device_plans().expect("they fit");
    let whole = model.memory_plan().expect("it fits");
    assert_eq!(plans.iter().map(|plan| plan.total_bytes()).sum::<u64>(), whole.total_bytes());
    let mut engine = model.engine().expect("an engine");
    let capability = engine.capability_descriptor().expect("there is one").to_owned();
    assert!(
        capability.contains("\"backend\":\"cuda:1,3 simulated device 1 sm_90 + simulated device 3 sm_90, kernels as "),
        "{capability}"
    );
    for (plan, index) in plans.iter().zip([1, 3]) {
        let (planned, taken) = (plan.total_bytes() - plan.table_bytes, taken(index));
        println!("device {index}: {taken} of {planned}");
        assert!(taken <= planned + planned / 50 && taken > planned - planned / 20, "{index}: {taken} of {planned}");
    }
    assert_eq!((taken(0), taken(2)), (0, 0), "nobody else's");
    let mut second = model.engine().expect("an engine over the same weights");
    drop(model);
    assert_eq!(tokens(&mut *engine), expected);
    drop(engine);
    assert_eq!(tokens(&mut *second), expected, "whose weights they were is gone");
    drop(second);
    let left = driver.statistics();
    assert_eq!((left.live_allocations, left.live_host_allocations), (0, 0), "{left:?}");
    assert_eq!((left.live_streams, left.live_events, left.live_modules, left.live_contexts), (0, 0, 0, 0), "{left:?}");
    assert_eq!((left.leaked, left.unwritten_reads), (0, 0), "{left:?}: {}", driver.error_text());
}

/// In the steady state no tick gets memory. The host waits for a second device where it waits for the first: before the walk, until its last block tables
/// were copied, and at the end. What is in between is joined by events.
#[test]
fn cuda_group_joins_by_events_and_gets_no_memory() {
    let Some(driver) = devices(2) else { return };
    let waits = |mask: u64| {
        let mut engine = opened(mask).engine().expect("an engine");
        let (mut before, mut seen) = (driver.statistics(), Vec::new());
        try_tokens(&mut *engine, 6, || {
            let now = driver.statistics();
            assert_eq!(
                (now.allocations, now.live_host_allocations),
                (before.allocations, before.live_host_allocations)
            );
            assert_eq!(now.live_events, before.live_events);
            seen.push([now.synchronisations - before.synchronisations, now.launches - before.launches]);
            before = now;
        })
        .expect("the plans run");
        assert!(seen[2..].iter().all(|tick| *tick == seen[2]), "{seen:?}");
        seen[2]
    };
    let ([alone, _], [spread, launches]) = (waits(0), waits(0b11));
    println!("a tick waits {alone} times on one device, {spread} times on two, which launch {launches} kernels");
    // Each device's own work is waited for in the end.
    assert_eq!(spread, alone + 1);
}

/// Memory that cannot be had, whichever it is and on whichever device: a typed refusal, nothing is kept.
#[test]
fn cuda_group_out_of_memory_is_refused_and_leaves_nothing() {
    let Some(driver) = devices(2) else { return };
    let model = opened(0b11);
    for point in [Point::Alloc, Point::HostAlloc] {
        let refused = refused_in_turn(&driver, point, || model.engine());
        assert!(refused >= 10, "{point:?} was met {refused} times");
    }
    // One device that is full: what the other one gave is given back.
    let context = CudaContext::new(1).expect("the device");
    let stream = context.new_stream().expect("a stream");
    let room = context.mem_get_info().expect("sizes").0 - (1 << 20);
    // SAFETY: nobody reads it.
    let _full = unsafe { stream.alloc::<u8>(room) }.expect("memory");
    for _ in 0..2 {
        assert!(model.engine().err().expect("1 MiB is too little").to_string().contains("out of memory"));
        assert_eq!(taken(0), 0);
    }
}

/// A device that fails under a tick ends the whole engine, and nobody else.
#[test]
fn cuda_group_ends_with_any_of_its_devices() {
    let Some(driver) = devices(3) else { return };
    let expected = fresh_tokens(0);
    for point in [Point::Run, Point::Launch, Point::Copy, Point::Sync] {
        // Both devices, and what goes between them.
        for nth in [1, 2, 9, 24] {
            let model = opened(0b11);
            let mut engine = model.engine().expect("an engine");
            driver.inject(point, nth, ILLEGAL_ADDRESS);
            let ended = try_tokens(&mut *engine, 12, || ());
            driver.inject(point, 0, 0);
            assert_eq!(ended, Err(Status::Fatal), "{point:?} {nth}");
            let (plan, arena) = PlanBuilder::new(100).decode(1, 1).build();
            let again = engine.tick(&plan, &arena, &mut MemoryRings::new()).map(|_| ());
            assert_eq!(again, Err(Status::Fatal), "{point:?} {nth}: it stays so");
            drop(engine);
            assert_eq!(driver.statistics().live_contexts, 0, "{point:?} {nth}");
            if nth == 9 {
                assert_eq!(fresh_tokens(0b11), expected, "{point:?}: another engine on the same devices");
            }
        }
    }
}

/// Nothing rests on the order in which the driver does what it may do in any order, nor on devices that reach each other.
#[test]
fn cuda_group_tokens_do_not_depend_on_the_driver_s_order_or_on_peers() {
    let Some(driver) = devices(2) else { return };
    let expected = fresh_tokens(0);
    let orders = (1..=6).map(|seed| (Setting::Seed, seed));
    for (setting, value) in orders.chain([(Setting::Order, 1), (Setting::Strict, 1), (Setting::Peers, 0)]) {
        driver.reset();
        driver.set(Setting::Devices, 2);
        if matches!(setting, Setting::Seed) {
            driver.set(Setting::Order, 2);
        }
        driver.set(setting, value);
        assert_eq!(fresh_tokens(0b11), expected, "{setting:?} {value}");
        let statistics = driver.statistics();
        assert_eq!(statistics.unwritten_reads, 0, "{setting:?} {value}: {}", driver.error_text());
    }
}

/// E-11: stages of a model on different devices of one process, the last one on two, hand over the token of the whole.
#[test]
fn cuda_stages_on_different_devices_compose() {
    let Some(_driver) = devices(4) else { return };
    let path = model::file("tests/data/qwen3.gguf");
    let engine = |options: &ModelOptions| Model::open(&path, options).expect("it opens").engine().expect("an engine");
    let on = |index| engine(&ModelOptions { device_index: index, ..options(0) });
    let mut engines = [on(0), on(1), engine(&options(0b1100))];
    let tokens = prompt(9);
    let layers = engines[0].n_layers();
    let whole = engines[0].forward_stage(&tokens, 0, layers, None).expect("all layers");
    assert!(matches!(whole, StageOutput::Token(_)));
    for first in 0..=layers {
        for second in first..=layers {
            let mut stream: Option<Vec<u8>> = None;
            let mut last = None;
            for (engine, (from, to)) in engines.iter_mut().zip([(0, first), (first, second), (second, layers)]) {
                if from == layers && stream.is_none() {
                    continue;
                }
                match engine.forward_stage(&tokens, from, to, stream.as_deref()).expect("a stage") {
                    StageOutput::Hidden(bytes) => stream = Some(bytes),
                    token => (last, stream) = (Some(token), None),
                }
            }
            assert_eq!(last.as_ref(), Some(&whole), "0..{first}..{second}..{layers}");
        }
    }
}
