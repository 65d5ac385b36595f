//! A second model that drafts: the executor asks it, and nothing but speed depends on its answers.

#![allow(dead_code, reason = "the shared helpers have more than this file uses")]

#[path = "common/models.rs"]
mod models;
#[path = "common/random.rs"]
mod random;

use ictus::engine::{Engine, PlanBuilder, StrategyBuilder};
use ictus::executor::{DraftModel, Executor};
use ictus::record::Status;
use ictus::record::constant::exactness;
use ictus::ring::{MemoryRings, Rings};
use ictus::runtime::{CopyModel, FakeOptions, FakeRuntime, SamplingSupport};
use ictus::speculate::{DraftModelError, DraftModels, Drafter};
use ictus::testing::schedule::{assert_schedule_invariance, drafted, random_requests};
use ictus::testing::{Harness, register_strategy};
use ictus::{Model, ModelOptions};
use random::Random;

const VOCAB: u32 = 64;

/// Gives fakes as draft models: "like" one that mostly knows what the target will say, "unlike" one that does not.
#[derive(Debug)]
struct Fakes;

impl DraftModels for Fakes {
    fn open(&mut self, path: &str) -> Result<Box<dyn Drafter>, DraftModelError> {
        let miss_every = match path {
            "like" => 0,
            "unlike" => 1,
            _ => return Err(DraftModelError::Open { reason: "no such fake".to_owned() }),
        };
        let fake = FakeRuntime::with(|options| {
            options.descriptor.vocab_size = VOCAB + 8;
            options.descriptor.max_seq_len = 50;
            options.descriptor.max_batch = 3;
            options.descriptor.cells_total = 200;
            options.copy_model = Some(CopyModel { miss_every });
        });
        Ok(Box::new(DraftModel::new(fake, 12_345)))
    }
}

fn engine(config: &str, path: &str, change: impl FnOnce(&mut FakeOptions)) -> Executor<FakeRuntime> {
    let fake = FakeRuntime::with(|options| {
        options.descriptor.vocab_size = VOCAB;
        options.end_ids = vec![VOCAB - 1, 7];
        options.descriptor.max_seq_len = 60;
        options.descriptor.verify_rows = true;
        options.copy_model = Some(CopyModel { miss_every: 5 });
        change(options);
    });
    let mut engine = Executor::new(fake).with_draft_models(Box::new(Fakes));
    let (registration, memory) = StrategyBuilder::new("draft-model").draft_weights(path).config(config).build();
    let grant = engine.strategy_register(&registration, &memory).expect("the model is there");
    assert_eq!((grant.strategy_slot, grant.reserved_bytes), (2, 12_345));
    engine
}

/// T-127: whoever drafts, and however well, the bits are those without drafts.
#[test]
fn drafts_of_a_model_change_nothing() {
    let mut random = Random::new("drafts_of_a_model_change_nothing");
    let mut below = |bound: usize| random.below(bound);
    let (mut proposed, mut accepted) = (0, 0);
    for round in 0..10 {
        let path = ["like", "unlike"][round % 2];
        let config = format!("throughput_gate=0,max_draft={},yield_rounds=6,gate_reprobe=3", 1 + below(7));
        let cells_total = [0, 100][below(2)];
        let make = || {
            engine(&config, path, |options| {
                options.descriptor.cells_total = cells_total;
                options.descriptor.sampling =
                    SamplingSupport { greedy: true, draws: true, shaping: false, logprobs: true };
            })
        };
        let requests = drafted(random_requests(8, VOCAB, 40, 30, &mut below), 2);
        let drafts = assert_schedule_invariance(make, &requests, 4, 5, &mut below);
        proposed += drafts.proposed;
        accepted += drafts.accepted;
    }
    assert!(accepted > 100 && proposed > accepted + 100, "{accepted} of {proposed}");
}

/// T-82: a slot of its own under a certificate of its own; what a lane held is freed with the lane.
#[test]
fn draft_model_has_a_slot_and_forgets_lanes_that_are_gone() {
    let mut h = Harness::with_engine(engine("throughput_gate=0", "like", |_| {}));
    register_strategy(&mut h, &StrategyBuilder::new("prompt-lookup").config("throughput_gate=0")).expect("both");
    let prompts = [(1, 1), (2, 2), (3, 2)];
    for (tag, slot) in prompts {
        let staged = h.prompt(&[1, 2, 3, 4, 5, 6, 1, 2, 3]);
        let plan = h.plan().admit_with(|admit| admit.strategy_slot = slot, tag, staged).prefill(tag, 0, 9);
        let events = h.tick_ok(plan.decode(tag, 9));
        let result = events.admit_for(tag).expect("a result");
        assert_eq!((result.cert_id, result.granted_class), (1, exactness::DISTRIBUTION_EXACT));
        assert!(events.emit_for(tag).is_some_and(|emit| emit.spec.proposed > 0));
    }
    assert_eq!(h.engine.drafter().map(Drafter::lanes), Some(2));
    h.engine.inject_fault(2, 3);
    let plan = h.plan().decode(2, 1);
    h.tick_ok(plan);
    assert_eq!(h.engine.drafter().map(Drafter::lanes), Some(1));
    let plan = h.plan().retire(1, false).retire(3, true);
    h.tick_ok(plan);
    assert_eq!(h.engine.drafter().map(Drafter::lanes), Some(0));
}

/// a model that does not open refuses the registration, and the one before stays.
#[test]
fn draft_model_that_does_not_open_is_refused() {
    let mut h = Harness::with_engine(engine("", "like", |_| {}));
    let before = h.engine.state_digest();
    for (strategy, reason) in [
        (StrategyBuilder::new("draft-model").draft_weights("nowhere"), "no such fake"),
        (StrategyBuilder::new("draft-model"), ""),
        (StrategyBuilder::new("draft-model").draft_weights("like").kernel_caps(1), "0x1"),
    ] {
        for _ in 0..2 {
            assert_eq!(register_strategy(&mut h, &strategy).map(|_| ()), Err(Status::RegistrationRefused));
            assert_eq!(h.engine.state_digest(), before);
            let said = h.engine.strategy_refusal().expect("it says why");
            assert!(said.contains(reason), "{said}");
        }
    }
    register_strategy(&mut h, &StrategyBuilder::new("draft-model").draft_weights("like")).expect("it opens");
    assert_eq!(h.engine.strategy_refusal(), None);
}

/// Registers a strategy; answers its slot.
fn register(engine: &mut dyn Engine, strategy: &StrategyBuilder) -> Result<u32, Status> {
    let (registration, memory) = strategy.build();
    engine.strategy_register(&registration, &memory).map(|grant| grant.strategy_slot)
}

/// Tokens of a real model after a prompt, with a strategy or without, and what was proposed and accepted.
fn generate(engine: &mut dyn Engine, strategy: Option<&StrategyBuilder>, prompt: &[u32]) -> (Vec<u32>, u32, u32) {
    let slot = strategy.map_or(0, |strategy| register(engine, strategy).expect("granted"));
    let mut rings = MemoryRings::new();
    let staged = rings.stage_prompt(prompt);
    let mut plan = PlanBuilder::new(1).admit_with(|admit| admit.strategy_slot = slot, 1, staged);
    plan = plan.prefill(1, 0, prompt.len() as u32);
    let (mut tokens, mut proposed, mut accepted) = (Vec::new(), 0, 0);
    for seq in 2.. {
        let (record, memory) = plan.build();
        let events = engine.tick(&record, &memory, &mut rings).expect("the plan is good");
        for emit in events.emits {
            proposed += emit.spec.proposed;
            accepted += emit.spec.accepted;
            rings.read_tokens(&emit.token_ref, &mut tokens).expect("just written");
        }
        if tokens.len() >= 48 {
            break;
        }
        plan = PlanBuilder::new(seq).decode(1, 8);
    }
    (tokens, proposed, accepted)
}

/// A model that drafts for itself is always right, and another vocabulary is refused by name.
#[test]
fn real_model_drafts_for_a_model_of_the_same_vocabulary_only() {
    let (Some(smol), Some(gemma)) = (models::find(models::SMOLLM2), models::find(models::GEMMA3)) else { return };
    let options = ModelOptions { context_tokens: 256, pool_tokens: 512, ..ModelOptions::default() };
    let model = Model::open(&smol, &options).expect("the model opens");
    let prompt = model.tokenizer().encode("The months of the year are", Default::default()).expect("text");
    let engine = || model.engine().expect("an engine");
    let (plain, none, _) = generate(&mut *engine(), None, &prompt);
    let itself = StrategyBuilder::new("draft-model").draft_weights(&smol.to_string_lossy()).config("throughput_gate=0");
    let (tokens, proposed, accepted) = generate(&mut *engine(), Some(&itself), &prompt);
    assert_eq!((none, tokens), (0, plain));
    assert!(proposed > 20 && accepted == proposed, "{accepted} of {proposed}");
    let refused = model.drafter(&gemma).err();
    assert!(matches!(refused, Some(DraftModelError::Vocabulary { .. })), "{refused:?}");
    let foreign = StrategyBuilder::new("draft-model").draft_weights(&gemma.to_string_lossy());
    assert_eq!(register(&mut *engine(), &foreign), Err(Status::RegistrationRefused));
    let missing = model.drafter("no-such-file.gguf").err();
    assert!(matches!(missing, Some(DraftModelError::Open { .. })), "{missing:?}");
}
