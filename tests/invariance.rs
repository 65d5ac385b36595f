//! Promise 1 over real models: whatever the schedule, the bits are the same.
//!
//! At the level of the runtime, rows: a few token lists, some with a common beginning, are run alone, one token per step,
//! which gives a row for every position. Then random schedules run them again: lanes come and go, feeds are of any length
//! and in any order, prefill beside decode, beginnings are copied from other lanes, sequences are cut and grow again; pages,
//! parts of a step and threads are of any number. Every row that comes back must have the bits of the first run.
//!
//! At the level of the engine, tokens, log-probabilities and rows of requests of every kind, under random plans.

#![allow(dead_code, reason = "the shared helpers have more than this file uses")]

#[path = "common/model.rs"]
mod model;
#[path = "common/models.rs"]
mod models;
#[path = "common/naive.rs"]
mod naive;
#[path = "common/random.rs"]
mod random;

use std::path::Path;

use ictus::backend::cpu::CpuBackend;
use ictus::backend::{Backend, KvType};
use ictus::checkpoint::Checkpoint;
use ictus::engine::{Engine, StrategyBuilder};
use ictus::executor::Executor;
use ictus::runtime::{Answer, Answers, Feed, Input, PagedOptions, Runtime, SeqHandle, Want};
use ictus::sample::{SampleRequest, argmax};
use ictus::testing::schedule::{Counts, assert_schedule_invariance, drafted, random_requests};
use naive::Naive;
use random::Random;

/// Token lists, and the bits of the row after each of their tokens.
struct Truth {
    lists: Vec<Vec<u32>>,
    rows: Vec<Vec<Vec<u32>>>,
}

fn bits(row: &[f32]) -> Vec<u32> {
    row.iter().map(|x| x.to_bits()).collect()
}

/// Lists of up to `longest` tokens; half of them begin as another one does.
fn lists(random: &mut Random, vocab: usize, longest: usize) -> Vec<Vec<u32>> {
    let mut lists: Vec<Vec<u32>> = Vec::new();
    for index in 0..random.between(2, 5) {
        let mut list = Vec::new();
        if index > 0 && random.below(2) == 0 {
            let other = random.pick(&lists).clone();
            list.extend_from_slice(&other[..random.between(1, other.len())]);
        }
        let len = random.between(1, longest);
        while list.len() < len {
            list.push(random.below(vocab) as u32);
        }
        lists.push(list);
    }
    lists
}

fn truth<B: Backend>(backend: B, checkpoint: &Checkpoint, kv_type: KvType, lists: Vec<Vec<u32>>) -> Truth {
    let longest = lists.iter().map(Vec::len).max().expect("a list");
    let mut runtime = model::runtime(backend, checkpoint, &model::options(kv_type, longest));
    let rows = lists
        .iter()
        .map(|list| {
            let every: Vec<usize> = (0..list.len()).collect();
            model::rows_at(&mut runtime, list, &every).iter().map(|row| bits(row)).collect()
        })
        .collect();
    Truth { lists, rows }
}

/// A sequence that is somewhere on a list.
#[derive(Clone, Copy)]
struct Lane {
    sequence: SeqHandle,
    list: usize,
    len: usize,
}

/// What a feed of a lane wants, by number: nothing, the last row, every row, a token.
struct Planned {
    lane: usize,
    take: usize,
    want: usize,
}

/// Runs one random schedule to its end and compares every row; answers how many there were.
fn run(random: &mut Random, runtime: &mut impl Runtime, truth: &Truth) -> usize {
    let mut lanes: Vec<Lane> = Vec::new();
    let mut compared = 0;
    let mut done = 0;
    while done < truth.lists.len() * 2 {
        disturb(random, runtime, truth, &mut lanes);
        let mut order: Vec<usize> = (0..lanes.len()).collect();
        random.shuffle(&mut order);
        order.truncate(random.between(1, lanes.len()));
        let mut plan = Vec::new();
        for lane in order {
            let left = truth.lists[lanes[lane].list].len() - lanes[lane].len;
            if left == 0 {
                continue;
            }
            let take = if random.below(2) == 0 { 1 } else { random.between(1, left) };
            let want = random.below(4);
            plan.push(Planned { lane, take: if want == 2 { take.min(8) } else { take }, want });
        }
        compared += step(runtime, truth, &mut lanes, &plan);
        lanes.retain(|lane| {
            let finished = lane.len == truth.lists[lane.list].len() && random.below(2) == 0;
            if finished {
                runtime.seq_free(lane.sequence);
                done += 1;
            }
            !finished
        });
    }
    lanes.iter().for_each(|lane| runtime.seq_free(lane.sequence));
    assert_eq!(runtime.mem_counters().cells_used, 0, "every page came back");
    compared
}

/// Admits a lane, perhaps on a copied beginning, or cuts one.
fn disturb(random: &mut Random, runtime: &mut impl Runtime, truth: &Truth, lanes: &mut Vec<Lane>) {
    if lanes.is_empty() || (lanes.len() < 6 && random.below(3) == 0) {
        let list = random.below(truth.lists.len());
        let mut lane = Lane { sequence: runtime.seq_create().expect("a sequence"), list, len: 0 };
        if !lanes.is_empty() && random.below(3) > 0 {
            let source = *random.pick(lanes);
            let both = truth.lists[list].iter().zip(&truth.lists[source.list]);
            let common = both.take_while(|(a, b)| a == b).count().min(source.len);
            lane.len = random.below(common + 1);
            runtime.seq_copy(source.sequence, lane.sequence, lane.len as u64).expect("the source has it");
        }
        lanes.push(lane);
    }
    if random.below(5) == 0 {
        let at = random.below(lanes.len());
        let lane = &mut lanes[at];
        lane.len = random.below(lane.len + 1);
        runtime.seq_truncate(lane.sequence, lane.len as u64).expect("it is that long");
    }
}

fn step(runtime: &mut impl Runtime, truth: &Truth, lanes: &mut [Lane], plan: &[Planned]) -> usize {
    let feeds: Vec<Feed<'_>> = plan
        .iter()
        .map(|planned| {
            let lane = lanes[planned.lane];
            let tokens = &truth.lists[lane.list][lane.len..lane.len + planned.take];
            let want = match planned.want {
                0 => Want::Nothing,
                1 => Want::LastRow,
                2 => Want::EveryRow,
                _ => Want::Token(SampleRequest::default()),
            };
            Feed { sequence: lane.sequence, input: Input::Tokens(tokens), want }
        })
        .collect();
    let mut answers = Answers::new();
    runtime.step(&feeds, &mut answers).expect("the step runs");
    assert_eq!(answers.as_slice().len(), plan.len(), "one answer per feed");
    let mut compared = 0;
    for (planned, answer) in plan.iter().zip(answers.as_slice()) {
        let lane = &mut lanes[planned.lane];
        let rows = &truth.rows[lane.list][lane.len..lane.len + planned.take];
        lane.len += planned.take;
        match *answer {
            Answer::Nothing => assert_eq!(planned.want, 0),
            Answer::Rows { first, count } => {
                assert_eq!(count, if planned.want == 2 { planned.take } else { 1 });
                for (i, expected) in rows[rows.len() - count..].iter().enumerate() {
                    let row = answers.row(first + i).expect("it was answered");
                    assert_eq!(&bits(row), expected, "list {}, {} tokens", lane.list, lane.len);
                    compared += 1;
                }
            }
            Answer::Picked(pick) => {
                let row: Vec<f32> = rows[rows.len() - 1].iter().map(|&x| f32::from_bits(x)).collect();
                assert_eq!(pick.token, argmax(&row));
            }
            Answer::Fault(code) => panic!("fault {code}"),
            Answer::Again => panic!("the step was not begun"),
        }
        assert_eq!(runtime.seq_len(lane.sequence), lane.len as u64);
    }
    compared
}

/// Random options under which nothing may change.
fn any_options(random: &mut Random, kv_type: KvType, longest: usize) -> PagedOptions {
    let page_size_tokens = *random.pick(&[1, 2, 4, 8, 16, 32]);
    PagedOptions {
        kv_type,
        page_size_tokens,
        pool_pages: 8 * longest.div_ceil(page_size_tokens),
        context_tokens: longest,
        max_lanes: 8,
        prefill_step_tokens: 512,
        pass_rows: *random.pick(&[0, 8, 9, 13, 40]),
        cache_resident_tokens: 0,
        cache_exported_tokens: 0,
    }
}

fn schedules_agree<B: Backend>(
    random: &mut Random,
    path: impl AsRef<Path>,
    longest: usize,
    count: usize,
    backend: impl Fn(usize) -> B,
) {
    let checkpoint = Checkpoint::open(model::file(path)).expect("the model opens");
    for kv_type in [KvType::F32, KvType::F16] {
        let lists = lists(random, checkpoint.config().vocab, longest);
        let truth = truth(backend(1), &checkpoint, kv_type, lists);
        let mut compared = 0;
        for _ in 0..count {
            let threads = random.between(1, 3);
            let options = any_options(random, kv_type, longest);
            let mut runtime = model::runtime(backend(threads), &checkpoint, &options);
            compared += run(random, &mut runtime, &truth);
        }
        println!("{} {kv_type:?}: {compared} rows compared", checkpoint.name());
        assert!(compared > 0, "a schedule asks for rows");
    }
}

/// Requests under random plans of an engine over the model; pools and pages of any size, some too small for all lanes at once.
fn plans_agree<B: Backend>(random: &mut Random, path: impl AsRef<Path>, rounds: usize, backend: impl Fn(usize) -> B) {
    let checkpoint = Checkpoint::open(model::file(path)).expect("the model opens");
    let vocab = checkpoint.config().vocab as u32;
    for _ in 0..rounds {
        let mut engines = Random::from_key(random.next());
        let mut below = |bound: usize| random.below(bound);
        let kv_type = [KvType::F32, KvType::F16][below(2)];
        let requests = random_requests(7, vocab, 24, 12, &mut below);
        let make = || {
            let threads = engines.between(1, 3);
            let mut options = any_options(&mut engines, kv_type, 64);
            options.prefill_step_tokens = *engines.pick(&[0, 5, 512]);
            options.pool_pages = engines.between(64, 256).div_ceil(options.page_size_tokens);
            Executor::new(model::runtime(backend(threads), &checkpoint, &options))
        };
        assert_schedule_invariance(make, &requests, 3, 5, &mut below);
    }
}

/// As [`plans_agree`], with caches of any size, in pages that do not divide the common beginnings of the prompts; exports among them.
fn cached_starts_agree<B: Backend>(
    random: &mut Random,
    path: impl AsRef<Path>,
    backend: impl Fn(usize) -> B,
) -> Counts {
    let checkpoint = Checkpoint::open(model::file(path)).expect("the model opens");
    let vocab = checkpoint.config().vocab as u32;
    let mut engines = Random::from_key(random.next());
    let mut below = |bound: usize| random.below(bound);
    let kv_type = [KvType::F32, KvType::F16][below(2)];
    let requests = random_requests(7, vocab, 24, 16, &mut below);
    let make = || {
        let mut options = any_options(&mut engines, kv_type, 64);
        options.page_size_tokens = *engines.pick(&[1, 2, 4, 8]);
        options.pool_pages = engines.between(96, 256).div_ceil(options.page_size_tokens);
        options.cache_resident_tokens = *engines.pick(&[0, 8, 24]);
        options.cache_exported_tokens = *engines.pick(&[0, 40, 1000]);
        let threads = engines.between(1, 3);
        Executor::new(model::runtime(backend(threads), &checkpoint, &options))
    };
    assert_schedule_invariance(make, &requests, 16, 5, &mut below)
}

/// As [`plans_agree`], with prompt lookup on in the random plans and off in the run that they are compared with.
fn drafts_agree<B: Backend>(random: &mut Random, path: impl AsRef<Path>, backend: impl Fn(usize) -> B) -> Counts {
    let checkpoint = Checkpoint::open(model::file(path)).expect("the model opens");
    let vocab = checkpoint.config().vocab as u32;
    let mut engines = Random::from_key(random.next());
    let mut below = |bound: usize| random.below(bound);
    let kv_type = [KvType::F32, KvType::F16][below(2)];
    let requests = drafted(random_requests(7, vocab, 24, 24, &mut below), 1);
    let make = || {
        let mut options = any_options(&mut engines, kv_type, 64);
        options.pool_pages = engines.between(64, 256).div_ceil(options.page_size_tokens);
        let threads = engines.between(1, 3);
        let mut engine = Executor::new(model::runtime(backend(threads), &checkpoint, &options));
        let (registration, memory) =
            StrategyBuilder::new("prompt-lookup").config("throughput_gate=0,max_draft=7").build();
        engine.strategy_register(&registration, &memory).expect("the runtime verifies drafts");
        engine
    };
    assert_schedule_invariance(make, &requests, 4, 5, &mut below)
}

/// One model per family, with quantised weights of every kind among them.
const FAMILIES: [&str; 5] = [
    "tests/data/llama-rope-scaled.gguf",
    "tests/data/llama-window.gguf",
    "tests/data/qwen2.gguf",
    "tests/data/qwen3.gguf",
    "tests/data/gemma3.gguf",
];

/// Each of them in exact and in fast arithmetic.
fn families() -> impl Iterator<Item = (&'static str, fn(usize) -> CpuBackend)> {
    FAMILIES.into_iter().flat_map(|path| model::PROCESSORS.map(|backend| (path, backend)))
}

/// equality, not closeness.
#[test]
fn processor_answers_the_same_bits_under_every_schedule() {
    let mut random = Random::new("schedules, processor");
    for (path, backend) in families() {
        schedules_agree(&mut random, path, 40, 2, backend);
    }
}

#[test]
fn engine_on_the_processor_answers_the_same_bits_under_every_plan() {
    let mut random = Random::new("plans, processor");
    for (path, backend) in families() {
        plans_agree(&mut random, path, 1, backend);
    }
}

/// T-77, T-78, S-33, S-96: lanes that start from shared pages, from exports and on adopted forks say what cold ones say, on every
/// family.
#[test]
fn cached_starts_change_no_bit_of_any_family() {
    let mut random = Random::new("cached starts, processor");
    let mut counts = Counts::default();
    for (path, backend) in families() {
        counts += cached_starts_agree(&mut random, path, backend);
    }
    println!("{counts:?}");
    assert!(counts.seeded > 20 && counts.imported > 2 && counts.adopted > 4 && counts.restored > 0, "{counts:?}");
}

/// T-127: drafts on and off give the same bits, on every family.
#[test]
fn drafts_change_no_bit_of_any_family() {
    let mut random = Random::new("drafts, processor");
    let (mut proposed, mut accepted) = (0, 0);
    for (path, backend) in families() {
        let drafts = drafts_agree(&mut random, path, backend);
        println!("{path}: {drafts:?}");
        proposed += drafts.proposed;
        accepted += drafts.accepted;
    }
    assert!(accepted > 0 && proposed > accepted, "some drafts are right and some are not: {accepted} of {proposed}");
}

#[test]
fn smollm2_answers_the_same_bits_under_some_schedules() {
    let mut random = Random::new("schedules, SmolLM2");
    if let Some(path) = models::find(models::SMOLLM2) {
        for backend in model::PROCESSORS {
            schedules_agree(&mut random, &path, 24, 1, backend);
        }
    }
}

/// So that a failure above tells kernels from bookkeeping.
#[test]
fn naive_backend_answers_the_same_bits_under_every_schedule_and_plan() {
    let mut random = Random::new("schedules and plans, naive");
    for path in ["tests/data/gemma3.gguf", "tests/data/llama-window.gguf"] {
        schedules_agree(&mut random, path, 40, 2, |_| Naive::default());
        plans_agree(&mut random, path, 1, |_| Naive::default());
    }
}
