//! Schedule invariance of the executor: random schedules of the same requests give the same bits (promise 1).
//!
//! The fake runtime's tokens are a hash of everything its sequences hold, so a lane that was fed one wrong token, or one too
//! few, differs at once.

#[path = "common/random.rs"]
#[expect(dead_code, reason = "not every test needs every kind of random number")]
mod random;

use ictus::engine::{Engine, StrategyBuilder};
use ictus::executor::Executor;
use ictus::runtime::{CopyModel, FakeOptions, FakeRuntime, SamplingSupport};
use ictus::testing::schedule::{Counts, assert_schedule_invariance, drafted, random_requests, run_alone};
use random::Random;

const VOCAB: u32 = 64;

/// Runs rounds of requests over fakes with these options.
fn invariant(test: &str, rounds: usize, change: impl Fn(&mut FakeOptions) + Copy) -> Counts {
    let mut random = Random::new(test);
    let mut below = |bound: usize| random.below(bound);
    let make = || {
        Executor::new(FakeRuntime::with(|options| {
            options.descriptor.vocab_size = VOCAB;
            options.end_ids = vec![VOCAB - 1, 7];
            options.descriptor.max_seq_len = 60;
            change(options);
        }))
    };
    let mut counts = Counts::default();
    for _ in 0..rounds {
        let requests = random_requests(8, VOCAB, 40, 30, &mut below);
        counts += assert_schedule_invariance(make, &requests, 6, 5, &mut below);
    }
    counts
}

#[test]
fn any_schedule_gives_the_same_bits() {
    invariant("any_schedule_gives_the_same_bits", 12, |_| {});
}

#[test]
fn short_prefill_steps_and_yields_between_them_change_nothing() {
    invariant("short_prefill_steps", 12, |options| options.descriptor.prefill_step_tokens = 7);
}

#[test]
fn state_that_cuts_only_at_its_head_changes_nothing() {
    invariant("head_only", 12, |options| options.descriptor.truncate_partial = false);
}

#[test]
fn pool_too_small_for_all_makes_lanes_wait_and_changes_nothing() {
    invariant("small_pool", 12, |options| options.descriptor.cells_total = 100);
}

#[test]
fn slots_too_few_for_all_make_lanes_wait_and_change_nothing() {
    invariant("few_slots", 12, |options| options.descriptor.max_seqs = 3);
}

/// A name, what it changes of the fake, and whether states are imported.
type Case<'a> = (&'a str, &'a dyn Fn(&mut FakeOptions), bool);

/// T-77 .. T-81, S-33: where a lane's state comes from changes nothing: the pool, copied or shared, an export, a fork, a takeover.
#[test]
fn cached_starts_change_nothing() {
    let pages = |page: u32| {
        move |options: &mut FakeOptions| {
            options.descriptor.page_size_tokens = page;
            options.descriptor.seed_min_tokens = u64::from(page) * 2;
        }
    };
    let cases: [Case<'_>; 6] = [
        ("copies", &pages(4), false),
        (
            "shared, exported",
            &|options| {
                pages(1)(options);
                options.descriptor.copy_shares_cells = true;
                options.descriptor.cache_resident_cells = 20;
                options.descriptor.cache_exported_cells = 150;
            },
            true,
        ),
        (
            "taken over",
            &|options| {
                pages(1)(options);
                options.descriptor.takeover_preferred = true;
                options.descriptor.cells_total = 300;
            },
            false,
        ),
        (
            "tight",
            &|options| {
                pages(2)(options);
                options.descriptor.cells_total = 130;
                options.descriptor.max_seqs = 7;
                options.descriptor.cache_exported_cells = 80;
            },
            true,
        ),
        (
            "head only",
            &|options| {
                pages(1)(options);
                options.descriptor.truncate_partial = false;
                options.descriptor.copy_shares_cells = true;
                options.descriptor.cache_resident_cells = 60;
                options.descriptor.cache_exported_cells = 60;
            },
            true,
        ),
        (
            "head only, taken over",
            &|options| {
                pages(1)(options);
                options.descriptor.truncate_partial = false;
                options.descriptor.takeover_preferred = true;
                options.descriptor.cells_total = 200;
            },
            false,
        ),
    ];
    for (name, change, exports) in cases {
        let counts = invariant(name, 10, change);
        println!("{name}: {counts:?}");
        assert!(counts.seeded > 4 && counts.adopted > 2 && counts.restored > 0, "{name}: {counts:?}");
        assert_eq!(counts.imported > 0, exports, "{name}: {counts:?}");
    }
}

/// T-125, T-127, T-128, T-129: drafts on and off, right ones and wrong ones, give the same bits and leave no cell behind.
#[test]
fn drafts_change_nothing() {
    let mut random = Random::new("drafts_change_nothing");
    let mut below = |bound: usize| random.below(bound);
    let pools = [0, 100];
    let (mut proposed, mut accepted) = (0, 0);
    for _ in 0..12 {
        let served = below(16);
        let [greedy, draws, shaping, logprobs] = [1, 2, 4, 8].map(|bit| served & bit != 0);
        let config = format!("throughput_gate={},max_draft={},yield_rounds=6,gate_reprobe=3", below(2), 1 + below(7));
        let (miss_every, cells_total) = (below(5), pools[below(2)]);
        let make = || {
            let mut engine = Executor::new(FakeRuntime::with(|options| {
                options.descriptor.vocab_size = VOCAB;
                options.end_ids = vec![VOCAB - 1, 7];
                options.descriptor.max_seq_len = 60;
                options.descriptor.verify_rows = true;
                options.descriptor.sampling = SamplingSupport { greedy, draws, shaping, logprobs };
                options.descriptor.cells_total = cells_total;
                options.copy_model = Some(CopyModel { miss_every });
            }));
            let (registration, memory) = StrategyBuilder::new("prompt-lookup").config(&config).build();
            engine.strategy_register(&registration, &memory).expect("the runtime verifies drafts");
            engine
        };
        let requests = drafted(random_requests(8, VOCAB, 40, 30, &mut below), 1);
        let drafts = assert_schedule_invariance(make, &requests, 6, 5, &mut below);
        proposed += drafts.proposed;
        accepted += drafts.accepted;
    }
    assert!(accepted > 100 && proposed > accepted + 100, "some are right and some are not: {accepted} of {proposed}");
}

#[test]
fn who_picks_the_tokens_changes_nothing() {
    let mut random = Random::new("who_picks_the_tokens_changes_nothing");
    let mut below = |bound: usize| random.below(bound);
    let requests = random_requests(12, VOCAB, 40, 30, &mut below);
    let transcripts = |sampling: SamplingSupport| {
        let make = || {
            Executor::new(FakeRuntime::with(|options| {
                options.descriptor.vocab_size = VOCAB;
                options.descriptor.sampling = sampling;
            }))
        };
        requests.iter().map(|request| run_alone(make(), request)).collect::<Vec<_>>()
    };
    let by_row = transcripts(SamplingSupport::default());
    for bits in 1..16 {
        let [greedy, draws, shaping, logprobs] = [1, 2, 4, 8].map(|bit| bits & bit != 0);
        let by_runtime = transcripts(SamplingSupport { greedy, draws, shaping, logprobs });
        assert_eq!(by_runtime, by_row, "R-20, T-110: {greedy} {draws} {shaping} {logprobs}");
    }
}

#[test]
fn other_bits_are_noticed() {
    // The comparison can fail: a longer prompt gives another answer.
    let mut random = Random::new("other_bits_are_noticed");
    let mut below = |bound: usize| random.below(bound);
    let make = || Executor::new(FakeRuntime::with(|options| options.descriptor.vocab_size = VOCAB));
    for mut request in random_requests(6, VOCAB, 40, 30, &mut below) {
        // A strong bias picks its token whatever the prompt.
        request.bias.clear();
        let before = run_alone(make(), &request);
        let mut longer = request.clone();
        longer.prompt.push(1);
        longer.tokens = 12;
        let again = ictus::testing::schedule::Request { tokens: 12, ..request };
        assert_ne!(run_alone(make(), &longer), run_alone(make(), &again));
        assert!(!before.tokens.is_empty());
    }
}
