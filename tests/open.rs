//! Opening a model: what is planned is what is taken, every refusal is typed, engines do not meet.

#![allow(dead_code, reason = "the shared helpers have more than this file uses")]

#[path = "common/model.rs"]
mod model;

use std::ops::ControlFlow;

use ictus::backend::{BackendError, KvType};
use ictus::engine::{Engine, PlanBuilder};
use ictus::ring::{MemoryRings, Rings};
use ictus::{Arithmetic, Device, Error, InstructionSet, Model, ModelOptions, Progress};
use model::file;

const TINY: &str = "models/ictus-tiny.gguf";

fn options() -> ModelOptions {
    ModelOptions { threads: 1, context_tokens: 256, ..ModelOptions::default() }
}

/// Greedy tokens of one lane, one a tick.
fn tokens(engine: &mut dyn Engine, prompt: &[u32], count: usize) -> Vec<u32> {
    let mut rings = MemoryRings::new();
    let staged = rings.stage_prompt(prompt);
    let mut tokens = Vec::new();
    for seq in 1..=count as u64 {
        let plan = PlanBuilder::new(seq).decode(1, 1);
        let plan = if seq == 1 { plan.admit(1, staged).prefill(1, 0, prompt.len() as u32) } else { plan };
        let (plan, arena) = plan.build();
        let emit = engine.tick(&plan, &arena, &mut rings).expect("the plan runs").emits[0];
        rings.read_tokens(&emit.token_ref, &mut tokens).expect("the tokens are there");
    }
    tokens
}

#[test]
fn two_engines_of_different_models_tick_from_two_threads_at_once() {
    let models = [TINY, "tests/data/gemma3.gguf"].map(|name| Model::open(file(name), &options()).expect("it opens"));
    let prompt = [1, 2, 3, 4, 5];
    let alone = models.each_ref().map(|model| tokens(&mut *model.engine().expect("an engine"), &prompt, 24));
    for _ in 0..8 {
        std::thread::scope(|scope| {
            for (model, alone) in models.iter().zip(&alone) {
                scope.spawn(move || {
                    let mut engine = model.engine().expect("an engine");
                    assert_eq!(&tokens(&mut *engine, &prompt, 24), alone);
                });
            }
        });
    }
}

#[test]
fn engines_of_one_model_do_not_see_each_other() {
    let model = Model::open(file(TINY), &options()).expect("it opens");
    let (mut one, mut two) = (model.engine().expect("an engine"), model.engine().expect("an engine"));
    let first = tokens(&mut *one, &[7, 8, 9], 12);
    assert_eq!(tokens(&mut *two, &[7, 8, 9], 12), first);
    let held = |engine: &dyn Engine| engine.last_events().expect("ticked").record.mem.pool_blocks_used;
    assert_eq!((held(&*one), held(&*two)), (1, 1));
}

#[test]
fn plan_is_what_an_engine_counts() {
    for kv_type in [KvType::F32, KvType::F16] {
        let options = ModelOptions { kv_type: Some(kv_type), pool_tokens: 1000, ..options() };
        let plan = Model::plan(file(TINY), &options).expect("it can be planned");
        let model = Model::open(file(TINY), &options).expect("it opens");
        assert_eq!(model.memory_plan().expect("it fits"), plan);
        let mut engine = model.engine().expect("an engine");
        let before = tokens(&mut *engine, &[1, 2, 3], 2);
        assert_eq!(before.len(), 2);
        let mem = engine.last_events().expect("ticked").record.mem;
        // 1000 tokens are 63 pages of 16, all of the same size.
        assert_eq!(mem.pool_blocks_total, 63);
        assert_eq!(plan.kv_pool_bytes % 63, 0);
        assert_eq!(mem.allocated_bytes, plan.kv_pool_bytes / 63 * mem.pool_blocks_used);
        let weights = std::fs::metadata(file(TINY)).expect("the file").len();
        assert!(plan.weights_bytes > weights / 2 && plan.weights_bytes <= weights + weights / 25);
        assert_eq!(plan.total_bytes(), plan.weights_bytes + plan.allocated_bytes());
    }
}

#[test]
fn every_refusal_is_typed_and_can_be_met_again() {
    let missing = || Model::open(file("models/none.gguf"), &options());
    // No machine has as many.
    let far = || ModelOptions { device: Device::Cuda, device_index: u32::MAX, ..options() };
    let cuda = || Model::open(file(TINY), &far());
    let threads = || Model::open(file(TINY), &ModelOptions { threads: 1000, ..options() });
    let context = || Model::open(file(TINY), &ModelOptions { context_tokens: 1 << 30, ..options() });
    for _ in 0..2 {
        assert!(matches!(missing(), Err(Error::Checkpoint(_))));
        assert!(matches!(cuda(), Err(Error::Backend(BackendError::NoDevice { reason })) if !reason.is_empty()));
        assert!(matches!(Model::plan(file(TINY), &far()), Err(Error::Backend(BackendError::NoDevice { .. }))));
        assert!(matches!(threads(), Err(Error::Options(error)) if error.name == "threads"));
        assert!(matches!(context(), Err(Error::Options(error)) if error.name == "context_tokens"));
    }
}

/// Log-probabilities of greedy tokens, as bits.
fn logprobs(engine: &mut dyn Engine, prompt: &[u32], count: u64) -> Vec<u32> {
    let mut rings = MemoryRings::new();
    let staged = rings.stage_prompt(prompt);
    let mut bits = Vec::new();
    for seq in 1..=count {
        let plan = PlanBuilder::new(seq).decode(1, 1);
        let plan = match seq {
            1 => plan.admit_with(|admit| admit.want_logprobs = 1, 1, staged).prefill(1, 0, prompt.len() as u32),
            _ => plan,
        };
        let (plan, arena) = plan.build();
        let events = engine.tick(&plan, &arena, &mut rings).expect("the plan runs");
        bits.extend(events.logprobs.iter().map(|record| record.logprob.to_bits()));
    }
    assert_eq!(bits.len() as u64, count);
    bits
}

/// The sets round in two ways: the portable one products and sums apart, all others together.
#[test]
fn chosen_instruction_set_computes_and_one_that_is_not_there_is_refused() {
    for arithmetic in [Arithmetic::Exact, Arithmetic::Fast] {
        let with = |instruction_set| ModelOptions { instruction_set, arithmetic, ..options() };
        let bits = |set| {
            let mut engine = Model::open(file(TINY), &with(set)).expect("it opens").engine().expect("an engine");
            let descriptor = engine.capability_descriptor().expect("it has one").to_owned();
            (logprobs(&mut *engine, &[1, 2, 3, 4, 5, 6, 7], 12), descriptor)
        };
        let (best, portable) = (bits(None), bits(Some(InstructionSet::Portable)));
        assert_eq!(best, bits(Some(InstructionSet::best())));
        for &set in InstructionSet::ALL {
            let backend = format!("\"backend\":\"cpu {}\"", set.name());
            if !set.is_available() {
                let refused = |error: Error| matches!(&error, Error::Backend(BackendError::NoDevice { reason }) if reason.contains(set.name()));
                assert!(Model::open(file(TINY), &with(Some(set))).is_err_and(refused), "{}", set.name());
                assert!(Model::plan(file(TINY), &with(Some(set))).is_err_and(refused), "{}", set.name());
                continue;
            }
            let (found, descriptor) = bits(Some(set));
            assert!(descriptor.contains(&backend), "{descriptor}");
            if set == InstructionSet::Portable {
                assert_eq!(found, portable.0);
            } else {
                assert_eq!(found, best.0, "{}", set.name());
                assert_ne!(found, portable.0, "{} rounds once where the portable set rounds twice", set.name());
            }
        }
    }
}

#[test]
fn progress_rises_to_all_bytes_and_can_break_off() {
    let mut seen = Vec::new();
    let mut record = |progress: Progress| {
        seen.push(progress);
        ControlFlow::Continue(())
    };
    Model::open_with_progress(file(TINY), &options(), &mut record).expect("it opens");
    let last = seen.last().expect("something was told");
    assert!(last.total_bytes > 0 && last.done_bytes == last.total_bytes);
    assert!(seen.windows(2).all(|pair| pair[0].done_bytes <= pair[1].done_bytes));
    for calls in 1..=seen.len() {
        let mut left = calls;
        let mut stop = |_: Progress| {
            left -= 1;
            if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        assert!(matches!(Model::open_with_progress(file(TINY), &options(), &mut stop), Err(Error::Cancelled)));
    }
}

#[test]
fn thread_count_and_page_size_change_no_token() {
    let open = |options| Model::open(file(TINY), &options).expect("it opens").engine().expect("an engine");
    let expected = tokens(&mut *open(options()), &[1, 2, 3, 4, 5, 6, 7], 40);
    for threads in [2, 3] {
        for page_size_tokens in [1, 4, 64] {
            let mut engine = open(ModelOptions { threads, page_size_tokens, ..options() });
            assert_eq!(tokens(&mut *engine, &[1, 2, 3, 4, 5, 6, 7], 40), expected, "{threads} {page_size_tokens}");
        }
    }
}
