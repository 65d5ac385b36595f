//! Lanes with adapters: whom an admit gives one, what is cached under it, and the same bits under every plan.

#![allow(dead_code, reason = "the shared helpers have more than this file uses")]

#[path = "common/gguf.rs"]
mod gguf;
#[path = "common/lora.rs"]
mod lora;
#[path = "common/model.rs"]
mod model;
#[path = "common/random.rs"]
mod random;

use ictus::backend::KvType;
use ictus::backend::cpu::CpuBackend;
use ictus::checkpoint::Checkpoint;
use ictus::engine::{Engine, PlanBuilder};
use ictus::executor::Executor;
use ictus::record::{RecordArena, Status, TickPlan, TokenRef};
use ictus::ring::{MemoryRings, Rings};
use ictus::runtime::{FakeRuntime, PagedOptions};
use ictus::testing::schedule::{assert_schedule_invariance, random_requests};
use lora::Lora;
use random::Random;

const ONE: &str = "fake:one";
const TWO: &str = "fake:two";

/// An engine whose adapters are names.
fn fake() -> Executor<FakeRuntime> {
    Executor::new(FakeRuntime::with(|options| {
        options.descriptor.workloads.adapters = true;
        options.descriptor.page_size_tokens = 1;
        options.descriptor.copy_shares_cells = true;
    }))
}

/// An engine and its rings, with plans that number themselves.
struct Host {
    engine: Executor<FakeRuntime>,
    rings: MemoryRings,
    next: u64,
}

impl Host {
    fn new() -> Self {
        Self { engine: fake(), rings: MemoryRings::new(), next: 1 }
    }

    fn plan(&mut self) -> PlanBuilder {
        self.next += 1;
        PlanBuilder::new(self.next - 1)
    }

    fn tick(&mut self, (plan, memory): (TickPlan, RecordArena)) -> Result<Vec<TokenRef>, Status> {
        let refs = self.engine.tick(&plan, &memory, &mut self.rings)?.emits.iter().map(|emit| emit.token_ref).collect();
        self.engine.audit().expect("the engine is sound");
        Ok(refs)
    }

    /// Admits a lane with a prompt and decodes one token.
    fn first_token(&mut self, tag: u64, prompt: &[u32], seed: u64) -> Result<u32, Status> {
        let staged = self.rings.stage_prompt(prompt);
        let plan = self
            .plan()
            .admit_with(|admit| admit.seed_handle = seed, tag, staged)
            .prefill(
                tag,
                if seed == 0 { 0 } else { prompt.len() as u32 - 1 },
                if seed == 0 { prompt.len() as u32 } else { 1 },
            )
            .decode(tag, 1)
            .build();
        let emits = self.tick(plan)?;
        let mut tokens = Vec::new();
        self.rings.read_tokens(&emits[0], &mut tokens).expect("it was emitted");
        Ok(tokens[0])
    }

    fn retire(&mut self, tag: u64, publish: bool) {
        let plan = self.plan().retire(tag, publish).build();
        self.tick(plan).expect("a retire");
    }
}

#[test]
fn word_for_a_tag_is_taken_by_its_next_admit() {
    let mut host = Host::new();
    let prompt = [5, 6, 7];
    let alone = host.engine.primitives().token_for(&prompt);
    let adapted = host.engine.primitives().token_for_adapted(&FakeRuntime::adapter_digest(ONE), &prompt);
    assert_ne!(alone, adapted);
    let one = host.engine.adapter_load(ONE).expect("it loads");
    assert_eq!(host.engine.adapter_digest(one), Some(FakeRuntime::adapter_digest(ONE)));
    host.engine.adapter_bind(1, one).expect("it is loaded");
    assert_eq!(host.first_token(2, &prompt, 0), Ok(alone), "another tag");

    // A plan that is refused uses no word up.
    let staged = host.rings.stage_prompt(&prompt);
    let (plan, memory) = host.plan().admit(1, staged).admit(1, staged).build();
    let before = host.engine.state_digest();
    for _ in 0..2 {
        assert_eq!(host.engine.tick(&plan, &memory, &mut host.rings).err(), Some(Status::RejectDuplicateLane));
        assert_eq!(host.engine.state_digest(), before);
    }
    assert_eq!(host.first_token(1, &prompt, 0), Ok(adapted));
    host.retire(1, false);
    assert_eq!(host.first_token(1, &prompt, 0), Ok(alone), "the word was used up");
    host.retire(1, false);
    host.engine.adapter_bind(1, one).expect("it is loaded");
    host.engine.adapter_bind(1, 0).expect("0 is always legal");
    assert_eq!(host.first_token(1, &prompt, 0), Ok(alone), "the word was taken back");
}

#[test]
fn default_adapter_is_that_of_lanes_without_a_word() {
    let mut host = Host::new();
    let prompt = [5, 6, 7];
    let token = |host: &Host, path: &str| {
        host.engine.primitives().token_for_adapted(&FakeRuntime::adapter_digest(path), &prompt)
    };
    assert_eq!((host.engine.lora_id(), host.engine.lora_unload()), (None, Err(Status::UnknownHandle)));
    host.engine.lora_load(ONE).expect("it loads");
    assert_eq!(host.engine.lora_id(), Some(FakeRuntime::adapter_digest(ONE)));
    assert_eq!(host.first_token(1, &prompt, 0), Ok(token(&host, ONE)));
    let two = host.engine.adapter_load(TWO).expect("it loads");
    host.engine.adapter_bind(2, two).expect("it is loaded");
    assert_eq!(host.first_token(2, &prompt, 0), Ok(token(&host, TWO)), "a word is stronger");
    assert_eq!(host.engine.lora_load("nowhere"), Err(Status::UnknownHandle));
    assert!(host.engine.adapter_refusal().is_some_and(|reason| reason.contains("nowhere")));
    assert_eq!(host.engine.lora_id(), Some(FakeRuntime::adapter_digest(ONE)), "the default before stays");
    host.engine.lora_load(TWO).expect("it loads");
    assert_eq!(host.engine.adapter_refusal(), None);
    assert_eq!(host.first_token(3, &prompt, 0), Ok(token(&host, TWO)));
    host.engine.lora_unload().expect("there is one");
    assert_eq!(host.first_token(4, &prompt, 0), Ok(host.engine.primitives().token_for(&prompt)));
    host.engine.adapter_unload(two).expect("it was loaded twice");
    assert_eq!(host.engine.adapter_unload(two), Err(Status::UnknownHandle));
}

#[test]
fn unknown_adapters_are_refused_twice_and_leave_no_trace() {
    let mut host = Host::new();
    let one = host.engine.adapter_load(ONE).expect("it loads");
    let bare = host.engine.create_sequence().expect("a sequence");
    host.engine.adapter_unload(one).expect("it is loaded");
    let before = host.engine.state_digest();
    for _ in 0..2 {
        for unknown in [one, 77, u64::MAX] {
            assert_eq!(host.engine.adapter_bind(1, unknown), Err(Status::UnknownHandle));
            assert_eq!(host.engine.adapter_unload(unknown), Err(Status::UnknownHandle));
            assert_eq!(host.engine.sequence_adapt(bare, unknown), Err(Status::UnknownHandle));
            assert_eq!(host.engine.seed_acquire_adapted(&[1], 1, 0, unknown), Err(Status::UnknownHandle));
            assert!(host.engine.space_match_adapted(1, &[1], &[], unknown).is_err());
            assert_eq!(host.engine.adapter_digest(unknown), None);
        }
        assert_eq!(host.engine.sequence_adapt(99, 0), Err(Status::UnknownHandle));
        assert_eq!(host.engine.adapter_load("nowhere"), Err(Status::UnknownHandle));
        assert_eq!(host.engine.state_digest(), before);
    }
    let mut without = Executor::new(FakeRuntime::default());
    for _ in 0..2 {
        assert_eq!(without.adapter_load(ONE), Err(Status::Unsupported));
        assert_eq!(without.adapter_bind(1, 0), Err(Status::Unsupported));
        assert_eq!(without.adapter_unload(1), Err(Status::Unsupported));
        assert_eq!(without.lora_load(ONE), Err(Status::Unsupported));
        assert_eq!(without.embed(&[1]), Err(Status::Unsupported));
        assert_eq!((without.n_layers(), without.forward_stage(&[1], 0, 0, None)), (0, Err(Status::Unsupported)));
    }
}

/// T-34: state of one adapter serves lanes of that adapter alone, and is found under it alone.
#[test]
fn cached_state_serves_lanes_of_its_adapter_alone() {
    let mut host = Host::new();
    let one = host.engine.adapter_load(ONE).expect("it loads");
    let two = host.engine.adapter_load(TWO).expect("it loads");
    let prompt = [5, 6, 7, 8];
    host.engine.adapter_bind(1, one).expect("it is loaded");
    host.first_token(1, &prompt, 0).expect("a token");
    host.retire(1, true);
    let span = [5, 6, 7, 8, 9];
    let longest = |host: &mut Host, adapter| {
        host.engine.space_match_adapted(1, &span, &[], adapter).expect("a match");
        host.engine.match_candidates().first().map_or(0, |candidate| candidate.prefix_len)
    };
    assert_eq!([0, one, two].map(|adapter| longest(&mut host, adapter)), [0, 4, 0]);
    assert_eq!(host.engine.seed_acquire(&span, 4, 0), Err(Status::SeedUnservable));
    assert_eq!(host.engine.seed_acquire_adapted(&span, 4, 0, two), Err(Status::SeedUnservable));
    let lease = host.engine.seed_acquire_adapted(&span, 4, 0, one).expect("it is cached");
    for (tag, adapter) in [(2, 0), (3, two)] {
        host.engine.adapter_bind(tag, adapter).expect("it is loaded");
        let before = host.engine.state_digest();
        for _ in 0..2 {
            assert_eq!(host.first_token(tag, &span, lease), Err(Status::RejectStaleSeed), "tag {tag}");
            assert_eq!(host.engine.state_digest(), before);
        }
    }
    host.engine.adapter_bind(4, one).expect("it is loaded");
    let expected = host.engine.primitives().token_for_adapted(&FakeRuntime::adapter_digest(ONE), &span);
    assert_eq!(host.first_token(4, &span, lease), Ok(expected));
}

/// A fork carries the adapter of its parent into the lane that adopts it.
#[test]
fn forks_inherit_the_adapter() {
    let mut host = Host::new();
    let one = host.engine.adapter_load(ONE).expect("it loads");
    let prompt = [5, 6, 7, 8];
    host.engine.adapter_bind(1, one).expect("it is loaded");
    host.first_token(1, &prompt, 0).expect("a token");
    let parent = host.engine.lane_sequence(1).expect("it lives");
    let child = host.engine.seq_fork(parent, 0).expect("a fork");
    let lease = host.engine.seed_adopt(child, &prompt).expect("it holds them");
    let span = [5, 6, 7, 8, 9];
    assert_eq!(host.first_token(2, &span, lease), Err(Status::RejectStaleSeed), "a lane of the model alone");
    host.engine.adapter_bind(2, one).expect("it is loaded");
    // The lane outlives the adapter's last load.
    host.engine.adapter_unload(one).expect("it is loaded");
    assert_eq!(host.engine.adapter_digest(one), Some(FakeRuntime::adapter_digest(ONE)), "its sequences have it");
    let one = host.engine.adapter_load(ONE).expect("it loads");
    host.engine.adapter_bind(2, one).expect("it is loaded");
    let expected = host.engine.primitives().token_for_adapted(&FakeRuntime::adapter_digest(ONE), &span);
    assert_eq!(host.first_token(2, &span, lease), Ok(expected));
}

const FAMILIES: [&str; 6] = [
    "tests/data/llama-rope-scaled.gguf",
    "tests/data/llama-window.gguf",
    "tests/data/qwen2.gguf",
    "tests/data/qwen3.gguf",
    "tests/data/gemma3.gguf",
    "models/ictus-tiny.gguf",
];

/// Promise 1 with adapters: lanes of several adapters and of none in one batch, under random plans.
#[test]
fn lanes_with_adapters_answer_the_same_bits_under_every_plan() {
    let mut random = Random::new("plans with adapters");
    for path in FAMILIES {
        let checkpoint = Checkpoint::open(model::file(path)).expect("the model opens");
        let folder = tempfile::tempdir().expect("a folder");
        let mut paths = vec![None];
        for (number, rank) in [2, 8, 8].into_iter().enumerate() {
            let matrices: &[usize] = if number == 0 { &[0, 2] } else { &[0, 1, 2, 3, 4, 5, 6] };
            let lora = Lora::random(&mut random, checkpoint.config(), rank, matrices);
            let path = lora.write_peft(&folder.path().join(number.to_string()));
            paths.push(Some(path.to_str().expect("UTF-8").to_owned()));
        }
        let mut engines = Random::from_key(random.next());
        let kv_type = [KvType::F32, KvType::F16][random.below(2)];
        let vocab = checkpoint.config().vocab as u32;
        let mut requests = random_requests(8, vocab, 24, 10, &mut |bound| random.below(bound));
        for (number, request) in requests.iter_mut().enumerate() {
            request.adapter = paths[number % paths.len()].clone();
        }
        let make = || {
            let page_size_tokens = *engines.pick(&[1, 4, 16]);
            let options = PagedOptions {
                kv_type,
                page_size_tokens,
                pool_pages: engines.between(64, 256).div_ceil(page_size_tokens),
                context_tokens: 64,
                max_lanes: 8,
                prefill_step_tokens: *engines.pick(&[0, 5, 512]),
                pass_rows: *engines.pick(&[0, 8, 13]),
                ..model::options(kv_type, 64)
            };
            Executor::new(model::runtime(CpuBackend::new(engines.between(1, 3)), &checkpoint, &options))
        };
        assert_schedule_invariance(make, &requests, 3, 6, &mut |bound| random.below(bound));
        println!("{path}: {} requests", requests.len());
    }
}

/// The same on the fake, with many more plans.
#[test]
fn names_as_adapters_give_the_same_tokens_under_every_plan() {
    let mut random = Random::new("plans with named adapters");
    for _ in 0..20 {
        let mut requests = random_requests(8, 500, 24, 10, &mut |bound| random.below(bound));
        for request in &mut requests {
            request.adapter = [None, Some(ONE), Some(TWO)][random.below(3)].map(str::to_owned);
        }
        let make = || {
            Executor::new(FakeRuntime::with(|options| {
                options.descriptor.workloads.adapters = true;
                options.descriptor.vocab_size = 512;
            }))
        };
        assert_schedule_invariance(make, &requests, 3, 6, &mut |bound| random.below(bound));
    }
}
