//! Engines on the CUDA backend: opening and its refusals, what is taken and given back, faults of the device, the tick contract, schedules.
//!
//! Runs on simulated devices; what can be asked of a machine's device too runs there as well (tests/common/cuda_device.rs).

#![cfg(feature = "cuda")]
#![allow(dead_code, reason = "the shared helpers have more than this file uses")]

#[path = "cuda_engine/again.rs"]
mod again;
#[path = "cuda_engine/ahead.rs"]
mod ahead;
#[path = "common/cuda_device.rs"]
mod cuda_device;
#[path = "cuda_engine/current.rs"]
mod current;
#[path = "common/gguf.rs"]
mod gguf;
#[path = "cuda_engine/graphs.rs"]
mod graphs;
#[path = "common/lora.rs"]
mod lora;
#[path = "cuda_engine/memory.rs"]
mod memory;
#[path = "common/model.rs"]
mod model;
#[path = "common/random.rs"]
mod random;
#[path = "cuda_engine/sections.rs"]
mod sections;
#[path = "cuda_engine/uploads.rs"]
mod uploads;
#[path = "common/weights.rs"]
mod weights;

use cuda_device::{Point, Setting, TestDevice, backend, refused_in_turn, simulated, test_device};
use ictus::backend::{BackendError, KvType};
use ictus::checkpoint::Checkpoint;
use ictus::engine::{Engine, PlanBuilder};
use ictus::executor::Executor;
use ictus::record::Status;
use ictus::ring::{MemoryRings, Rings};
use ictus::runtime::Runtime;
use ictus::testing::schedule::{assert_schedule_invariance, random_requests};
use ictus::testing::{Harness, tick_contract};
use ictus::{Arithmetic, Device, Error, Model, ModelOptions};
use random::Random;

const TINY: &str = "models/ictus-tiny.gguf";
const SMALL: &str = "tests/data/llama-window.gguf";
/// What the driver says: an address was wrong, which loses the context.
const ILLEGAL_ADDRESS: i32 = 700;

fn options() -> ModelOptions {
    ModelOptions {
        device: Device::Cuda,
        threads: 1,
        context_tokens: 64,
        prefill_step_tokens: 32,
        max_lanes: 8,
        ..ModelOptions::default()
    }
}

fn open(name: &str) -> Model {
    Model::open(model::file(name), &options()).expect("it opens")
}

/// Greedy tokens of one lane, one a tick.
fn try_tokens(engine: &mut dyn Engine, prompt: &[u32], count: usize) -> Result<Vec<u32>, Status> {
    let mut rings = MemoryRings::new();
    let staged = rings.stage_prompt(prompt);
    let mut tokens = Vec::new();
    for seq in 1..=count as u64 {
        let plan = PlanBuilder::new(seq).decode(1, 1);
        let plan = if seq == 1 { plan.admit(1, staged).prefill(1, 0, prompt.len() as u32) } else { plan };
        let (plan, arena) = plan.build();
        let emit = engine.tick(&plan, &arena, &mut rings)?.emits[0];
        rings.read_tokens(&emit.token_ref, &mut tokens).expect("the tokens are there");
    }
    Ok(tokens)
}

fn tokens(engine: &mut dyn Engine, prompt: &[u32], count: usize) -> Vec<u32> {
    try_tokens(engine, prompt, count).expect("the plans run")
}

/// Of an engine that was just made.
fn fresh_tokens(name: &str) -> Vec<u32> {
    tokens(&mut *open(name).engine().expect("an engine"), &[1, 2, 3, 4, 5], 5)
}

fn reason(error: Error) -> String {
    match error {
        Error::Backend(BackendError::NoDevice { reason }) => reason,
        other => panic!("not a missing device: {other}"),
    }
}

#[test]
fn cuda_device_that_cannot_be_used_is_refused_with_the_reason() {
    let Some(driver) = simulated() else { return };
    let refusal = |index| {
        let options = ModelOptions { device_index: index, ..options() };
        let opened = Model::open(model::file(SMALL), &options).expect_err("refused");
        let planned = Model::plan(model::file(SMALL), &options).expect_err("refused");
        assert_eq!(opened.to_string(), planned.to_string());
        reason(opened)
    };
    for _ in 0..2 {
        assert!(refusal(3).contains("1 devices, none with number 3"), "{}", refusal(3));
        driver.set(Setting::Capability, 75);
        assert!(refusal(0).contains("7.5, needed are 8.0"), "{}", refusal(0));
        driver.reset();
        driver.set(Setting::Devices, 0);
        assert!(refusal(0).contains("the driver does not start"), "{}", refusal(0));
        driver.reset();
    }
    assert_eq!(driver.statistics().live_contexts, 0);
    assert!(!fresh_tokens(SMALL).is_empty(), "with nothing in the way it opens");
}

/// Fast arithmetic: the plan counts its rounded rows, and a step gets no memory.
#[test]
fn cuda_fast_engines_hold_what_the_plan_says() {
    let Some(driver) = simulated() else { return };
    let fast = ModelOptions { arithmetic: Arithmetic::Fast, ..options() };
    let model = Model::open(model::file(SMALL), &fast).expect("it opens");
    let plan = model.memory_plan().expect("it fits");
    let exact = ModelOptions { kv_type: Some(KvType::F16), ..options() };
    let exact = Model::open(model::file(SMALL), &exact).expect("it opens");
    let more = plan.total_bytes() - exact.memory_plan().expect("it fits").total_bytes();
    let mut engine = model.engine().expect("an engine");
    let statistics = driver.statistics();
    let device_bytes = plan.total_bytes() - plan.table_bytes;
    assert!(
        statistics.live_bytes <= device_bytes && statistics.live_bytes > device_bytes - device_bytes / 20,
        "{} of {device_bytes}",
        statistics.live_bytes
    );
    assert_eq!(tokens(&mut *engine, &[1, 2, 3, 4, 5], 4).len(), 4);
    assert_eq!(driver.statistics().allocations, statistics.allocations, "in a step");
    let fast_bytes = driver.statistics().live_bytes;
    drop(engine);
    let engine = exact.engine().expect("an engine");
    assert_eq!(fast_bytes - driver.statistics().live_bytes, more, "the rounded rows alone");
    drop(engine);
    let left = driver.statistics();
    assert_eq!((left.live_allocations, left.leaked, left.unwritten_reads), (0, 0, 0), "{left:?}");
}

#[test]
fn cuda_engine_picks_the_tokens_of_the_processor_and_names_the_device() {
    let Some(_device) = test_device() else { return };
    for name in [TINY, SMALL] {
        let model = open(name);
        let mut engine = model.engine().expect("an engine");
        let capability = engine.capability_descriptor().expect("there is one").to_owned();
        assert!(capability.contains("\"backend\":\"cuda:0 "), "{capability}");
        let cpu = Model::open(model::file(name), &ModelOptions { device: Device::Cpu, ..options() }).expect("it opens");
        let expected = tokens(&mut *cpu.engine().expect("an engine"), &[1, 2, 3, 4, 5], 8);
        assert_eq!(tokens(&mut *engine, &[1, 2, 3, 4, 5], 8), expected, "{name}");
    }
}

#[test]
fn cuda_engines_share_weights_and_leave_nothing_behind() {
    let Some(driver) = simulated() else { return };
    let expected = fresh_tokens(SMALL);
    let model = open(SMALL);
    let plan = model.memory_plan().expect("it fits");
    let mut one = model.engine().expect("an engine");
    let alone = driver.statistics().live_bytes;
    let device_bytes = plan.total_bytes() - plan.table_bytes;
    assert!(alone <= device_bytes && alone > device_bytes - device_bytes / 20, "{alone} of {device_bytes}");
    let mut two = model.engine().expect("an engine");
    let both = driver.statistics().live_bytes;
    assert!(both - alone < alone - plan.weights_bytes / 2, "the second one has the weights of the first");
    // Two threads, one device.
    std::thread::scope(|scope| {
        for engine in [&mut one, &mut two] {
            scope.spawn(|| assert_eq!(tokens(&mut **engine, &[1, 2, 3, 4, 5], 5), expected));
        }
    });
    // Whose weights they were is gone first.
    drop(one);
    let mut three = model.engine().expect("an engine");
    drop(two);
    assert_eq!(tokens(&mut *three, &[1, 2, 3, 4, 5], 5), expected);
    drop(three);
    let left = driver.statistics();
    assert_eq!((left.live_allocations, left.live_host_allocations), (0, 0), "{left:?}");
    assert_eq!((left.live_streams, left.live_events, left.live_modules, left.live_contexts), (0, 0, 0, 0), "{left:?}");
    assert_eq!((left.leaked, left.unwritten_reads), (0, 0), "{left:?}: {}", driver.error_text());
}

/// No memory is got once the lanes run, and each tick brings as much to the device, however long sequences grow within a page.
#[test]
fn cuda_ticks_in_the_steady_state_get_no_memory() {
    let Some(driver) = simulated() else { return };
    let mut engine = open(SMALL).engine().expect("an engine");
    let mut rings = MemoryRings::new();
    let staged = rings.stage_prompt(&[1, 2, 3]);
    let mut seen = Vec::new();
    for seq in 1..=8 {
        let plan = PlanBuilder::new(seq).decode(1, 1);
        let plan = if seq == 1 { plan.admit(1, staged).prefill(1, 0, 3) } else { plan };
        let (plan, arena) = plan.build();
        let before = driver.statistics();
        engine.tick(&plan, &arena, &mut rings).expect("the plan runs");
        let after = driver.statistics();
        seen.push((
            after.allocations - before.allocations,
            after.live_host_allocations - before.live_host_allocations,
            after.live_events - before.live_events,
            after.launches - before.launches,
            after.copies - before.copies,
        ));
    }
    println!("launches and copies of a tick: {}, {}", seen[7].3, seen[7].4);
    assert!(seen.iter().all(|tick| (tick.0, tick.1, tick.2) == (0, 0, 0)), "{seen:?}");
    assert!(seen[1..].iter().all(|tick| *tick == seen[1]), "{seen:?}");
}

/// Memory that cannot be had, whichever it is: a typed refusal, nothing is kept, and the next engine is made.
#[test]
fn cuda_out_of_memory_is_refused_and_leaves_nothing() {
    let Some(driver) = simulated() else { return };
    let model = open(SMALL);
    for point in [Point::Alloc, Point::HostAlloc] {
        let refused = refused_in_turn(&driver, point, || model.engine());
        assert!(refused >= 5, "{point:?} was met {refused} times");
    }
    driver.set(Setting::Memory, 1 << 20);
    for _ in 0..2 {
        assert!(model.engine().err().expect("1 MiB is too little").to_string().contains("out of memory"));
    }
}

/// A device that fails under a tick: the tick says so, every later one does, and another engine works when the lost one is gone.
#[test]
fn cuda_fault_of_the_device_ends_the_engine_and_nobody_else() {
    let Some(driver) = simulated() else { return };
    let expected = fresh_tokens(SMALL);
    for point in [Point::Run, Point::Launch, Point::Copy, Point::Sync] {
        for nth in [1, 7] {
            let model = open(SMALL);
            let mut engine = model.engine().expect("an engine");
            driver.inject(point, nth, ILLEGAL_ADDRESS);
            let ended = try_tokens(&mut *engine, &[1, 2, 3, 4, 5], 5);
            driver.inject(point, 0, 0);
            assert_eq!(ended, Err(Status::Fatal), "{point:?} {nth}");
            let (plan, arena) = PlanBuilder::new(100).decode(1, 1).build();
            let again = engine.tick(&plan, &arena, &mut MemoryRings::new()).map(|_| ());
            assert_eq!(again, Err(Status::Fatal), "{point:?} {nth}: it stays so");
            drop(engine);
            assert_eq!(driver.statistics().live_contexts, 0, "{point:?} {nth}");
            let mut next = model.engine().expect("another engine of the same model");
            assert_eq!(tokens(&mut *next, &[1, 2, 3, 4, 5], 5), expected, "{point:?} {nth}");
        }
    }
}

/// Nothing rests on the order in which the driver happens to do what it may do in any order.
#[test]
fn cuda_tokens_do_not_depend_on_the_driver_s_order() {
    let Some(driver) = simulated() else { return };
    let expected = fresh_tokens(SMALL);
    for (setting, value) in [(Setting::Order, 1), (Setting::Seed, 1), (Setting::Seed, 2), (Setting::Strict, 1)] {
        driver.reset();
        if matches!(setting, Setting::Seed) {
            driver.set(Setting::Order, 2);
        }
        driver.set(setting, value);
        assert_eq!(fresh_tokens(SMALL), expected, "{setting:?} {value}");
    }
}

/// TS-1 .. TS-15.
#[test]
fn cuda_engine_passes_the_tick_contract() {
    let Some(_device) = test_device() else { return };
    let checkpoint = Checkpoint::open(model::file(SMALL)).expect("the model opens");
    tick_contract::run_all(|| {
        let runtime = model::runtime(backend(), &checkpoint, &model::options(KvType::F32, 128));
        Harness::with_engine(Executor::new(runtime))
    });
}

/// Promise 1 for whole requests: random schedules give the same tokens, log-probabilities and rows.
#[test]
fn cuda_requests_have_the_same_bits_in_any_schedule() {
    let Some(device) = test_device() else { return };
    let checkpoint = Checkpoint::open(model::file(SMALL)).expect("the model opens");
    let mut random = Random::new("cuda schedules");
    let mut below = |bound: usize| random.below(bound);
    let vocab = checkpoint.config().vocab as u32;
    let requests = random_requests(4, vocab, 12, 6, &mut below);
    let make = || Executor::new(model::runtime(backend(), &checkpoint, &model::options(KvType::F16, 64)));
    let counts = assert_schedule_invariance(make, &requests, 2, 3, &mut below);
    println!("{counts:?}");
    if let TestDevice::Simulated(driver) = &device {
        let graphs = driver.statistics().graph_launches;
        println!("{graphs} graphs");
        assert!(graphs > 0, "together requests run in graphs, alone they do not: {graphs}");
    }
}

/// The same of fast arithmetic: products by one row, by few and by many give the same bits.
#[test]
fn cuda_fast_requests_have_the_same_bits_in_any_schedule() {
    let Some(_device) = test_device() else { return };
    let mut random = Random::new("cuda fast schedules");
    let mut below = |bound: usize| random.below(bound);
    for name in [SMALL, "tests/data/qwen2.gguf", "tests/data/qwen3.gguf"] {
        let checkpoint = Checkpoint::open(model::file(name)).expect("the model opens");
        let requests = random_requests(4, checkpoint.config().vocab as u32, 12, 4, &mut below);
        let fast = || backend().with_arithmetic(Arithmetic::Fast);
        let runtime = |backend| model::runtime(backend, &checkpoint, &model::options(KvType::F16, 64));
        let make = || Executor::new(runtime(fast()));
        let counts = assert_schedule_invariance(make, &requests, 1, 2, &mut below);
        // S-80: its state is not that of exact arithmetic.
        let [fast, exact] = [fast(), backend()].map(|backend| runtime(backend).describe().weights_identity);
        assert_ne!(fast, exact);
        println!("{name}: {counts:?}");
    }
}
