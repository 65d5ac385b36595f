//! The model runtime's side of the contract: what it refuses, what it counts, what it plans.

#![allow(dead_code, reason = "the shared helpers have more than this file uses")]

#[path = "common/model.rs"]
mod model;
#[path = "common/naive.rs"]
mod naive;

use std::sync::atomic::{AtomicUsize, Ordering};

use ictus::backend::cpu::CpuBackend;
use ictus::backend::{BackendError, KvType};
use ictus::checkpoint::Checkpoint;
use ictus::model::TensorSource;
use ictus::record::constant::fault;
use ictus::runtime::{
    Answer, Answers, Feed, Input, LazyVocabulary, MemCounters, MemoryPlan, ModelRuntime, PagedError, PagedIdentity,
    PagedOptions, Runtime, RuntimeError, SamplingDefaults, SeqHandle, SharedWeights, Vocabulary, Want,
};
use ictus::sample::{SampleRequest, argmax};
use ictus::tensor::Tensor;
use naive::Naive;

fn tiny() -> Checkpoint {
    Checkpoint::open(model::file("tests/data/llama-window.gguf")).expect("the model opens")
}

/// Eight pages of four tokens.
const SMALL: PagedOptions = PagedOptions {
    kv_type: KvType::F32,
    page_size_tokens: 4,
    pool_pages: 8,
    context_tokens: 24,
    max_lanes: 4,
    prefill_step_tokens: 16,
    pass_rows: 0,
    cache_resident_tokens: 0,
    cache_exported_tokens: 0,
};

fn small() -> ModelRuntime<Naive> {
    model::runtime(Naive::default(), &tiny(), &SMALL)
}

fn feed<'a>(sequence: SeqHandle, tokens: &'a [u32], want: Want<'a>) -> Feed<'a> {
    Feed { sequence, input: Input::Tokens(tokens), want }
}

/// All that can be seen of sequences without running them.
fn state(runtime: &ModelRuntime<Naive>, sequences: &[SeqHandle]) -> (Vec<(u64, Vec<u32>)>, MemCounters) {
    let table = |&sequence: &SeqHandle| {
        let pages = runtime.sequences().table(sequence).map_or(Vec::new(), |table| table.pages().to_vec());
        (runtime.seq_len(sequence), pages)
    };
    (sequences.iter().map(table).collect(), runtime.mem_counters())
}

///
#[test]
fn refused_steps_are_refused_twice_and_move_nothing() {
    let mut runtime = small();
    let mut other = small();
    let (a, b) = (runtime.seq_create().expect("a slot"), runtime.seq_create().expect("a slot"));
    let (c, _) = (other.seq_create().expect("a slot"), other.seq_create().expect("a slot"));
    for (runtime, sequence) in [(&mut runtime, a), (&mut other, c)] {
        model::last_row(runtime, sequence, &[1, 2, 3, 4, 5]);
    }
    let vocab = runtime.describe().vocab_size;
    let outside = [2, vocab];
    let nothing = Want::Nothing;
    let media = Feed { sequence: b, input: Input::Media { handle: 1, offset: 0 }, want: nothing };
    let internal = RuntimeError::Fault(fault::INTERNAL);
    let refusals: [(&[Feed<'_>], RuntimeError); 8] = [
        (&[feed(a, &[1], nothing), feed(b, &[], nothing)], internal),
        (&[feed(a, &[1], nothing), feed(b, &outside, nothing)], internal),
        (&[feed(a, &[1], nothing), media], RuntimeError::Unsupported),
        (&[feed(a, &[1], nothing), feed(99, &[1], nothing)], RuntimeError::UnknownSeq),
        (&[feed(a, &[1], nothing), feed(a, &[1], nothing)], internal),
        (&[feed(a, &[1], nothing), feed(b, &[1; 25], nothing)], RuntimeError::OutOfBoundary),
        (&[feed(a, &[1], nothing), feed(b, &[1; 9], Want::EveryRow)], RuntimeError::Unsupported),
        (&[feed(a, &[1; 12], nothing), feed(b, &[1; 21], nothing)], RuntimeError::Capacity),
    ];
    let before = state(&runtime, &[a, b]);
    let mut answers = Answers::new();
    for (feeds, error) in refusals {
        for _ in 0..2 {
            assert_eq!(runtime.step(feeds, &mut answers), Err(error));
            assert!(answers.as_slice().is_empty(), "no answer beside an error");
            assert_eq!(state(&runtime, &[a, b]), before, "{error:?}");
        }
    }
    assert_eq!(model::last_row(&mut runtime, a, &[6]), model::last_row(&mut other, c, &[6]), "and no key was touched");
}

/// A step that needs six pages, in pools that have none to six of them left.
#[test]
fn step_that_lacks_the_nth_page_moves_nothing() {
    let (full, row) = {
        let mut runtime = small();
        let a = runtime.seq_create().expect("a slot");
        model::last_row(&mut runtime, a, &[1, 2]);
        let full = runtime.mem_counters().cells_used;
        (full, model::last_row(&mut runtime, a, &[3, 4, 5]))
    };
    for pages in 1..=7 {
        let options = PagedOptions { pool_pages: pages, ..SMALL };
        let mut runtime = model::runtime(Naive::default(), &tiny(), &options);
        let (a, b) = (runtime.seq_create().expect("a slot"), runtime.seq_create().expect("a slot"));
        model::last_row(&mut runtime, a, &[1, 2]);
        runtime.seq_copy(a, b, 2).expect("it is held");
        assert_eq!(runtime.mem_counters().cells_used, full, "a copy takes no page");
        // `a` copies the shared page and takes another one; `b` keeps it and takes four.
        let feeds = [feed(a, &[3, 4, 5], Want::LastRow), feed(b, &[3; 18], Want::Nothing)];
        let before = state(&runtime, &[a, b]);
        let mut answers = Answers::new();
        if pages == 7 {
            runtime.step(&feeds, &mut answers).expect("seven pages are enough");
        } else {
            for _ in 0..2 {
                assert_eq!(runtime.step(&feeds, &mut answers), Err(RuntimeError::Capacity), "{pages} pages");
                assert_eq!(state(&runtime, &[a, b]), before);
            }
            runtime.seq_free(b);
            if pages < 2 {
                continue;
            }
            runtime.step(&feeds[..1], &mut answers).expect("two pages are enough for one");
        }
        assert_eq!(answers.row(0), Some(&row[..]), "the row is that of a cold start");
    }
}

///
#[test]
fn counters_follow_pages_exactly() {
    let mut runtime = small();
    let page_bytes = runtime.describe().kv_bytes_per_token * 4;
    let pages = |runtime: &ModelRuntime<Naive>| {
        let counters = runtime.mem_counters();
        assert_eq!((counters.cells_used % 4, counters.cells_total), (0, 32));
        assert_eq!(counters.allocated_bytes, counters.cells_used / 4 * page_bytes);
        counters.cells_used / 4
    };
    let (a, b) = (runtime.seq_create().expect("a slot"), runtime.seq_create().expect("a slot"));
    assert_eq!(pages(&runtime), 0);
    model::last_row(&mut runtime, a, &[1; 6]);
    assert_eq!(pages(&runtime), 2);
    runtime.seq_copy(a, b, 6).expect("it is held");
    assert_eq!((pages(&runtime), runtime.cells_released(&[a]), runtime.cells_released(&[a, b, a])), (2, 0, 8));
    model::last_row(&mut runtime, b, &[1]);
    assert_eq!((pages(&runtime), runtime.cells_released(&[b])), (3, 4), "the partly filled page was copied");
    runtime.seq_truncate(b, 4).expect("it is longer");
    assert_eq!(pages(&runtime), 2);
    runtime.seq_free(a);
    runtime.seq_free(a);
    assert_eq!((pages(&runtime), runtime.seq_len(a), runtime.seq_len(b)), (1, 0, 4));
    runtime.seq_free(b);
    assert_eq!(pages(&runtime), 0);
}

#[test]
fn ten_thousand_sequences_leak_no_page() {
    let mut runtime = small();
    let mut last = 0;
    let long = runtime.seq_create().expect("a slot");
    model::last_row(&mut runtime, long, &[1, 2, 3]);
    let mut answers = Answers::new();
    for round in 0..10_000u32 {
        let sequence = runtime.seq_create().expect("a slot");
        assert!(sequence > last, "handles ascend (R-5)");
        last = sequence;
        runtime.seq_copy(long, sequence, 2).expect("it is held");
        if round.is_multiple_of(100) {
            runtime.step(&[feed(sequence, &[7, 8, 9], Want::Nothing)], &mut answers).expect("the step runs");
        }
        runtime.seq_free(sequence);
    }
    assert_eq!(runtime.mem_counters().cells_used, 4);
    #[cfg(debug_assertions)]
    runtime.sequences().audit().expect("the tables agree");
}

///
#[test]
fn answers_are_one_per_feed_in_feed_order() {
    let mut runtime = small();
    let mut alone = small();
    let lists: [&[u32]; 4] = [&[5, 6], &[7, 8, 9], &[1, 2, 3, 4, 5], &[9]];
    let wants = [Want::Token(SampleRequest::default()), Want::EveryRow, Want::Nothing, Want::LastRow];
    let feeds: Vec<Feed<'_>> = lists
        .iter()
        .zip(wants)
        .map(|(tokens, want)| feed(runtime.seq_create().expect("a slot"), tokens, want))
        .collect();
    let mut answers = Answers::new();
    runtime.step(&feeds, &mut answers).expect("the step runs");
    let row_of = |alone: &mut ModelRuntime<Naive>, tokens: &[u32]| {
        let sequence = alone.seq_create().expect("a slot");
        let row = model::last_row(alone, sequence, tokens);
        alone.seq_free(sequence);
        row
    };
    let [
        Answer::Picked(pick),
        Answer::Rows { first: 0, count: 3 },
        Answer::Nothing,
        Answer::Rows { first: 3, count: 1 },
    ] = answers.as_slice()
    else {
        panic!("{:?}", answers.as_slice())
    };
    assert_eq!(pick.token, argmax(&row_of(&mut alone, lists[0])));
    for len in 1..=3 {
        assert_eq!(answers.row(len - 1), Some(&row_of(&mut alone, &lists[1][..len])[..]));
    }
    assert_eq!(answers.row(3), Some(&row_of(&mut alone, lists[3])[..]));
}

/// a row that nobody wants costs nothing behind the last layer, and in the last layer no more than its keys and values, however
/// the step is cut into parts.
#[test]
fn rows_that_nobody_wants_do_not_reach_the_head() {
    let checkpoint = tiny();
    let config = checkpoint.config();
    let (head, gate_and_up, keys_and_values) = (
        (config.vocab, config.hidden),
        (config.ffn_hidden, config.hidden),
        (config.n_kv_heads * config.head_dim, config.hidden),
    );
    // Rows of the products of a step: of the head, of what follows the queries in all layers, and of keys and values in all layers.
    let rows_of = |backend: &Naive| {
        let rows = backend.take_multiplied();
        let of = |shape| rows.get(&shape).copied().unwrap_or(0);
        (of(head), of(gate_and_up) / 2, of(keys_and_values) / 2)
    };
    let token = || Want::Token(SampleRequest::default());
    let steps: [&[(usize, Want<'_>, usize)]; 7] = [
        &[(20, Want::Nothing, 0)],
        &[(20, Want::LastRow, 1)],
        &[(20, token(), 1)],
        &[(8, Want::EveryRow, 8)],
        &[(1, Want::Nothing, 0)],
        &[(1, token(), 1), (1, token(), 1), (1, Want::Nothing, 0)],
        &[(5, Want::Nothing, 0), (9, Want::LastRow, 1), (3, token(), 1), (4, Want::EveryRow, 4)],
    ];
    // Rows of one part: eight at a time, sixteen, all at once.
    for pass_rows in [8, 16, 32] {
        let backend = Naive::default();
        let mut runtime = model::runtime(backend.clone(), &checkpoint, &PagedOptions { pass_rows, ..SMALL });
        assert_eq!(rows_of(&backend), (0, 0, 0), "loading multiplies nothing");
        for step in steps {
            let sequences: Vec<SeqHandle> = step.iter().map(|_| runtime.seq_create().expect("a slot")).collect();
            let tokens = [3; 20];
            let feeds =
                sequences.iter().zip(step).map(|(&sequence, &(len, want, _))| feed(sequence, &tokens[..len], want));
            let feeds: Vec<Feed<'_>> = feeds.collect();
            runtime.step(&feeds, &mut Answers::new()).expect("the step runs");
            let fed: usize = step.iter().map(|&(len, _, _)| len).sum();
            let wanted: usize = step.iter().map(|&(_, _, wanted)| wanted).sum();
            let expected = (wanted, (config.layers - 1) * fed + wanted, config.layers * fed);
            assert_eq!(rows_of(&backend), expected, "{fed} rows fed, {wanted} wanted, {pass_rows} at once");
            sequences.into_iter().for_each(|sequence| runtime.seq_free(sequence));
        }
    }
}

#[test]
fn plan_says_what_is_allocated() {
    let checkpoint = tiny();
    for kv_type in [KvType::F16, KvType::F32] {
        for (pages, rows) in [(8, 0), (3, 8), (100, 40)] {
            let options = PagedOptions { kv_type, pool_pages: pages, pass_rows: rows, ..SMALL };
            let plan = MemoryPlan::new(checkpoint.config(), &options, checkpoint.tensor_bytes()).expect("it fits");
            let backend = Naive::default();
            let mut runtime = model::runtime(backend.clone(), &checkpoint, &options);
            assert_eq!(backend.bytes(), (plan.kv_pool_bytes, plan.activation_bytes));
            assert_eq!(runtime.plan().allocated_bytes(), plan.allocated_bytes());
            let sequence = runtime.seq_create().expect("a slot");
            let tokens = vec![1; 4 * pages.min(5)];
            model::last_row(&mut runtime, sequence, &tokens);
            assert_eq!(backend.bytes(), (plan.kv_pool_bytes, plan.activation_bytes), "a step asks for nothing more");
            assert_eq!(plan.total_bytes() - plan.allocated_bytes(), checkpoint.tensor_bytes());
        }
    }
    let absurd = PagedOptions { pool_pages: usize::MAX, ..SMALL };
    assert_eq!(MemoryPlan::new(checkpoint.config(), &absurd, 0), None);
}

#[test]
fn runtime_whose_device_failed_in_a_step_is_fatal_from_then_on() {
    let checkpoint = tiny();
    let at_load = checkpoint.tensors().len() as u64 + 13;
    let mut runtime = model::runtime(Naive::failing(at_load + 2), &checkpoint, &SMALL);
    let sequence = runtime.seq_create().expect("a slot");
    model::last_row(&mut runtime, sequence, &[1, 2]);
    let mut answers = Answers::new();
    for _ in 0..2 {
        let step = runtime.step(&[feed(sequence, &[3], Want::LastRow)], &mut answers);
        assert_eq!(step, Err(RuntimeError::Fatal));
    }
}

///
#[test]
fn identity_is_reported_as_given() {
    let checkpoint = tiny();
    let vocabulary = Vocabulary { tokens: vec![b"a".as_slice().into()], ..Vocabulary::default() };
    let identity = PagedIdentity {
        weights_identity: [7; 32],
        backend: "naive".to_owned(),
        end_ids: vec![9, 2],
        sampling_defaults: Some(SamplingDefaults { temperature: Some(0.5), ..SamplingDefaults::default() }),
        vocabulary: Some(LazyVocabulary::new(vec![2, 9], move || vocabulary.clone())),
        embedding: None,
    };
    let options = PagedOptions { page_size_tokens: 0, ..SMALL };
    let runtime =
        ModelRuntime::new(Naive::default(), checkpoint.config(), &checkpoint, &options, identity).expect("it loads");
    let descriptor = runtime.describe();
    assert_eq!((descriptor.weights_identity, &*descriptor.backend), ([7; 32], "naive"));
    assert_eq!((descriptor.page_size_tokens, descriptor.cell_granule_tokens, descriptor.cells_total), (1, 1, 8));
    assert_eq!((&*descriptor.architecture, descriptor.kv_bits, descriptor.max_seq_len), ("llama", 32, 24));
    assert_eq!(descriptor.sampling_defaults.and_then(|defaults| defaults.temperature), Some(0.5));
    assert!(runtime.is_eos(2) && runtime.is_eos(9) && !runtime.is_eos(3));
    assert_eq!(runtime.vocabulary().map(|vocabulary| vocabulary.tokens.len()), Some(1));
}

/// An engine may move to the thread that ticks it.
#[test]
fn runtime_moves_between_threads() {
    fn moves<T: Send>(_: &T) {}
    moves(&small());
}

/// Loading with every request for memory failing in turn.
#[test]
fn load_that_lacks_memory_says_so() {
    let checkpoint = tiny();
    let load = |backend: Naive| {
        ModelRuntime::new(backend, checkpoint.config(), &checkpoint, &SMALL, PagedIdentity::default()).map(|_| ())
    };
    let tensors = checkpoint.tensors().len() as u64;
    for request in 1.. {
        match load(Naive::failing(request)) {
            Err(PagedError::Model(error)) => {
                assert!(request <= tensors && error.to_string().contains("out of memory"), "{error}");
            }
            Err(error) => {
                assert!(request > tensors);
                assert!(matches!(error, PagedError::Backend(BackendError::OutOfMemory { .. })), "{error}");
            }
            Ok(()) => {
                assert_eq!(request, tensors + 14, "12 buffers and the pool");
                break;
            }
        }
    }
}

#[test]
fn missing_and_misshapen_tensors_are_named() {
    let checkpoint = tiny();
    let all: std::collections::HashMap<String, ictus::tensor::Tensor> =
        checkpoint.tensors().map(|(name, tensor)| (name.to_owned(), tensor.clone())).collect();
    for name in all.keys() {
        let mut without = all.clone();
        let tensor = without.remove(name).expect("it is there");
        let load = |tensors: &std::collections::HashMap<String, ictus::tensor::Tensor>| {
            let runtime =
                ModelRuntime::new(Naive::default(), checkpoint.config(), tensors, &SMALL, PagedIdentity::default());
            runtime.map(|_| ()).expect_err("a tensor is wrong").to_string()
        };
        let shape = format!("{} x {}", tensor.rows, tensor.cols);
        assert_eq!(load(&without), format!("tensor {name} is missing, {shape} expected"));
        let rows = tensor.rows + 1;
        without.insert(name.clone(), ictus::tensor::Tensor { rows, ..tensor.clone() });
        assert_eq!(load(&without), format!("tensor {name} is {rows} x {}, {shape} expected", tensor.cols));
    }
}

/// A checkpoint that counts how often it is asked for a tensor.
struct Counting(Checkpoint, AtomicUsize);

impl TensorSource for Counting {
    fn tensor(&self, name: &str) -> Option<&Tensor> {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.tensor(name)
    }

    fn all(&self) -> Vec<&Tensor> {
        self.0.tensors().map(|(_, tensor)| tensor).collect()
    }
}

#[test]
fn weights_are_loaded_once_for_all_runtimes_that_share_them() {
    for backend in model::PROCESSORS {
        let source = Counting(tiny(), AtomicUsize::new(0));
        let weights = SharedWeights::default();
        let runtime = || {
            let config = source.0.config();
            ModelRuntime::sharing(backend(1), config, &source, &SMALL, PagedIdentity::default(), &weights)
                .expect("the model loads")
        };
        let row = |runtime: &mut ModelRuntime<CpuBackend>| {
            let sequence = runtime.seq_create().expect("a slot");
            model::last_row(runtime, sequence, &[1, 2, 3])
        };
        let asked = || source.1.load(Ordering::Relaxed);
        let mut first = runtime();
        let once = asked();
        assert!(once >= source.0.tensors().len());
        let mut second = runtime();
        assert_eq!(asked(), once, "the second one loads nothing");
        let expected = row(&mut first);
        assert_eq!(row(&mut second), expected);
        drop(first);
        assert_eq!(row(&mut second), expected, "the weights stay with who is left");
        let mut third = runtime();
        assert_eq!((asked(), row(&mut third)), (once, expected.clone()));
        drop((second, third));
        assert_eq!(row(&mut runtime()), expected);
        assert_eq!(asked(), 2 * once, "with the last one they were gone");
    }
}
