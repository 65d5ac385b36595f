//! Schedule invariance of the executor: random schedules of the same requests give the same bits (promise 1).
//!
//! The fake runtime's tokens are a hash of everything its sequences hold, so a lane that was fed one wrong token, or one too
//! few, differs at once.

#[path = "common/random.rs"]
#[expect(dead_code, reason = "not every test needs every kind of random number")]
mod random;

use ictus::executor::Executor;
use ictus::runtime::{FakeOptions, FakeRuntime, SamplingSupport};
use ictus::testing::schedule::{assert_schedule_invariance, random_requests, run_alone};
use random::Random;

const VOCAB: u32 = 64;

/// Runs rounds of requests over fakes with these options.
fn invariant(test: &str, rounds: usize, change: impl Fn(&mut FakeOptions) + Copy) {
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
    for _ in 0..rounds {
        let requests = random_requests(8, VOCAB, 40, 30, &mut below);
        assert_schedule_invariance(make, &requests, 6, 5, &mut below);
    }
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
