//! A decode step of the model runtime allocates nothing, whatever is wanted of its rows and on however many threads.
//!
//! The global allocator of this test counts what any thread asks for, and this file holds one test, so nobody else's
//! allocations are counted.

#![allow(dead_code, reason = "the shared helpers have more than this file uses")]

#[path = "common/model.rs"]
mod model;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

use ictus::backend::KvType;
use ictus::backend::cpu::CpuBackend;
use ictus::checkpoint::Checkpoint;
use ictus::runtime::{Answer, Answers, Feed, Input, PagedOptions, Runtime, SeqHandle, Want};
use ictus::sample::{Penalty, SampleRequest};

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call is passed on to the system's allocator unchanged; counting touches no memory it hands out.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise, passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise, passed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise, passed on.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise, passed on.
        unsafe { System.realloc(pointer, layout, new_size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

const PROMPT: [u32; 24] = [7; 24];
const LANES: usize = 6;

/// Greedy, drawn, penalised with log-probabilities, a row for the host, and again.
fn wanted<'a>(lane: usize, position: u64, window: &'a [u32]) -> Want<'a> {
    let greedy = SampleRequest::default();
    let drawn = SampleRequest { temperature: 0.8, top_p: 0.95, top_k: 40, position, ..greedy };
    let penalty = Penalty { repeat: 1.2, presence: 0.1, frequency: 0.1, window, exempt: &[] };
    match lane % 4 {
        0 => Want::Token(greedy),
        1 => Want::Token(drawn),
        2 => Want::Token(SampleRequest { penalty: Some(penalty), logprobs: Some(20), ..drawn }),
        _ => Want::LastRow,
    }
}

fn step(
    runtime: &mut dyn Runtime,
    sequences: &[SeqHandle],
    tokens: &mut [[u32; 1]; LANES],
    answers: &mut Answers,
    at: u64,
) {
    let window = PROMPT;
    let before = *tokens;
    let feed = |lane: usize| Feed {
        sequence: sequences[lane],
        input: Input::Tokens(&before[lane]),
        want: wanted(lane, at, &window),
    };
    let feeds: [Feed<'_>; LANES] = std::array::from_fn(feed);
    runtime.step(&feeds, answers).expect("the pool is large enough");
    for (token, answer) in tokens.iter_mut().zip(answers.as_slice()) {
        if let Answer::Picked(pick) = answer {
            *token = [pick.token];
        }
    }
}

#[test]
fn decode_steps_allocate_nothing() {
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    drop(std::hint::black_box(vec![1u8; 100]));
    assert_eq!(ALLOCATIONS.load(Ordering::Relaxed) - before, 1, "the counter counts");

    for file in ["models/ictus-tiny.gguf", "tests/data/gemma3.gguf"] {
        let checkpoint = Checkpoint::open(model::file(file)).expect("the model opens");
        for threads in [1, 3] {
            let options = PagedOptions {
                kv_type: KvType::F32,
                page_size_tokens: 16,
                pool_pages: 128,
                context_tokens: 256,
                max_lanes: LANES as u32,
                prefill_step_tokens: 64,
                pass_rows: 0,
                cache_resident_tokens: 0,
                cache_exported_tokens: 0,
            };
            let mut runtime = model::runtime(CpuBackend::new(threads), &checkpoint, &options);
            let sequences: Vec<SeqHandle> = (0..LANES).map(|_| runtime.seq_create().expect("a slot")).collect();
            let mut answers = Answers::new();
            for &sequence in &sequences {
                let feed = Feed { sequence, input: Input::Tokens(&PROMPT), want: Want::Nothing };
                runtime.step(&[feed], &mut answers).expect("the pool is large enough");
            }
            let mut tokens = [[3]; LANES];
            // A table of pages doubles when it holds 4, at 64 tokens, and when it holds 8, at 128: counted are 70 to 120.
            for at in 0..46 {
                step(&mut runtime, &sequences, &mut tokens, &mut answers, at);
            }
            let before = ALLOCATIONS.load(Ordering::Relaxed);
            for at in 46..96 {
                step(&mut runtime, &sequences, &mut tokens, &mut answers, at);
            }
            assert_eq!(ALLOCATIONS.load(Ordering::Relaxed) - before, 0, "{file} on {threads} threads");
        }
    }
}
