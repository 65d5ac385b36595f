//! Threads that a host lends, from Rust and from C: the same bits as on the engine's own, and no harm from a host that breaks the rules.

#![allow(clippy::multiple_unsafe_ops_per_block, reason = "a test calls C functions in a row, all for one reason")]
#![allow(dead_code, reason = "the shared helpers have more than this file uses")]

#[path = "common/model.rs"]
mod model;

use std::ffi::{CString, c_void};
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};

use ictus::abi::{ModelHandle, OpenOptions, ictus_embed, ictus_model_free, ictus_model_open};
use ictus::engine::{Engine, PlanBuilder};
use ictus::record::Status;
use ictus::record::view::Plain;
use ictus::ring::{MemoryRings, Rings};
use ictus::{HostThreads, Model, ModelOptions};
use model::file;

const TINY: &str = "models/ictus-tiny.gguf";
const PROMPT: u32 = 200;

fn open(threads: u32, host_threads: Option<HostThreads>) -> Box<dyn Engine + Send> {
    let options = ModelOptions { threads, host_threads, context_tokens: 256, ..ModelOptions::default() };
    Model::open(file(TINY), &options).expect("it opens").engine().expect("an engine")
}

/// Tokens of one lane behind a prompt, one a tick.
fn run(engine: &mut dyn Engine, count: u64) -> Result<Vec<u32>, Status> {
    let mut rings = MemoryRings::new();
    let prompt: Vec<u32> = (1..=PROMPT).collect();
    let staged = rings.stage_prompt(&prompt);
    let mut tokens = Vec::new();
    for seq in 1..=count {
        let plan = PlanBuilder::new(seq).prefill_budget(u32::MAX).decode(1, 1);
        let plan = if seq == 1 { plan.admit(1, staged).prefill(1, 0, PROMPT) } else { plan };
        let (plan, arena) = plan.build();
        let emit = engine.tick(&plan, &arena, &mut rings)?.emits[0];
        rings.read_tokens(&emit.token_ref, &mut tokens).expect("the tokens are there");
    }
    Ok(tokens)
}

#[test]
fn whose_threads_compute_changes_no_token() {
    let expected = run(&mut *open(1, None), 8).expect("it runs");
    assert_eq!(run(&mut *open(3, None), 8).as_ref(), Ok(&expected));
    for threads in [1, 2, 5] {
        let asked = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&asked);
        let host = HostThreads::new(move |calls, call| {
            counted.fetch_add(calls, Ordering::Relaxed);
            assert!(calls <= threads);
            std::thread::scope(|scope| {
                // The last ones first, and one on this thread.
                (1..calls).rev().for_each(|index| drop(scope.spawn(move || call(index))));
                call(0);
            });
        });
        let mut engine = open(threads as u32, Some(host));
        assert_eq!(run(&mut *engine, 8).as_ref(), Ok(&expected), "{threads} threads of the host");
        assert!(asked.load(Ordering::Relaxed) > 0, "the host was asked");
    }
}

#[test]
fn host_that_breaks_a_rule_ends_the_engine_and_nothing_else() {
    let hosts: [(&str, HostThreads); 4] = [
        ("leaves calls out", HostThreads::new(|_, _| {})),
        ("calls twice", HostThreads::new(|calls, call| (0..calls).chain(0..calls).for_each(call))),
        ("calls what there is not", HostThreads::new(|calls, call| (0..calls + 1).for_each(call))),
        ("panics", HostThreads::new(|_, _| panic!("the host has a bad day"))),
    ];
    for (name, host) in hosts {
        let mut engine = open(2, Some(host));
        for _ in 0..2 {
            assert_eq!(run(&mut *engine, 1), Err(Status::Fatal), "a host that {name}");
        }
    }
    run(&mut *open(2, None), 1).expect("other engines go on");
}

/// What a C host does with its calls, and what it remembers.
#[derive(Default)]
struct CHost {
    behaviour: AtomicU32,
    asked: AtomicU32,
    call: AtomicPtr<c_void>,
    job: AtomicPtr<c_void>,
}

const WELL: u32 = 0;
const NONE: u32 = 1;
const TWICE: u32 = 2;

type Call = unsafe extern "C" fn(job: *mut c_void, index: u32);

/// # Safety
/// `user` is a `CHost`.
unsafe extern "C" fn parallel(user: *mut c_void, calls: u32, call: Option<Call>, job: *mut c_void) {
    // SAFETY: by the promise of the caller.
    let host = unsafe { &*user.cast::<CHost>() };
    let call = call.expect("there is one");
    host.asked.fetch_add(calls, Ordering::Relaxed);
    host.call.store(call as *mut c_void, Ordering::Relaxed);
    host.job.store(job, Ordering::Relaxed);
    let job = job as usize;
    // SAFETY: the job is what the engine gave, and the engine lives.
    let one = |index: u32| unsafe { call(job as *mut c_void, index) };
    match host.behaviour.load(Ordering::Relaxed) {
        NONE => {}
        TWICE => (0..calls).chain(0..calls).for_each(one),
        _ => std::thread::scope(|scope| (0..calls).for_each(|index| drop(scope.spawn(move || one(index))))),
    }
}

fn open_c(options: &OpenOptions) -> ModelHandle {
    let path = CString::new(file(TINY).to_str().expect("UTF-8")).expect("no NUL");
    let mut model = null_mut();
    // SAFETY: the pointers are a text, options with their size, and a local.
    let status = unsafe { ictus_model_open(path.as_ptr(), options, null_mut(), 0, &raw mut model) };
    assert_eq!(status, 0);
    model
}

fn options(host: &CHost) -> OpenOptions {
    OpenOptions {
        struct_size: size_of::<OpenOptions>() as u64,
        threads: 3,
        context_tokens: 256,
        on_parallel: Some(parallel),
        parallel_user: (&raw const *host).cast_mut().cast(),
        ..OpenOptions::zeroed()
    }
}

/// The vector of a text, or the status.
fn embed(model: ModelHandle) -> Result<Vec<f32>, i32> {
    let tokens: Vec<u32> = (1..=PROMPT).collect();
    let (mut vector, mut count) = (vec![0f32; 4096], 0u64);
    // SAFETY: lists with their lengths, and a local.
    let status =
        unsafe { ictus_embed(model, tokens.as_ptr(), tokens.len() as u64, vector.as_mut_ptr(), 4096, &raw mut count) };
    vector.truncate(count as usize);
    if status == 0 { Ok(vector) } else { Err(status) }
}

fn free(model: ModelHandle) {
    // SAFETY: a handle is a number.
    assert_eq!(unsafe { ictus_model_free(model) }, 0);
}

#[test]
fn threads_of_a_c_host_give_the_same_bits_and_older_options_know_none() {
    let host = CHost::default();
    let plain = open_c(&OpenOptions { on_parallel: None, ..options(&host) });
    let expected = embed(plain).expect("it embeds");
    assert!(!expected.is_empty() && expected.iter().any(|&x| x != 0.0));
    assert_eq!(host.asked.load(Ordering::Relaxed), 0);
    let lent = open_c(&options(&host));
    assert_eq!(embed(lent).as_ref(), Ok(&expected));
    let asked = host.asked.load(Ordering::Relaxed);
    assert!(asked > 0);
    // A writer of the time before there was a parallel-for.
    let older = open_c(&OpenOptions { struct_size: 104, ..options(&host) });
    assert_eq!(embed(older).as_ref(), Ok(&expected));
    assert_eq!(host.asked.load(Ordering::Relaxed), asked, "what lies behind its size is not read");
    [plain, lent, older].into_iter().for_each(free);
}

#[test]
fn c_host_that_breaks_a_rule_gets_a_fatal_status() {
    for behaviour in [NONE, TWICE] {
        let host = CHost::default();
        let model = open_c(&options(&host));
        embed(model).expect("it begins well");
        host.behaviour.store(behaviour, Ordering::Relaxed);
        for _ in 0..2 {
            assert_eq!(embed(model).map(|_| ()), Err(Status::Fatal.code()), "{behaviour}");
        }
        free(model);
    }
}

#[test]
fn call_kept_by_a_c_host_touches_nothing_and_is_told() {
    let host = CHost { behaviour: AtomicU32::new(WELL), ..CHost::default() };
    let model = open_c(&options(&host));
    embed(model).expect("it embeds");
    let (call, job) = (host.call.load(Ordering::Relaxed), host.job.load(Ordering::Relaxed));
    // SAFETY: it was made from such a function in `parallel`.
    let call = unsafe { std::mem::transmute::<*mut c_void, Call>(call) };
    for index in [0, 2, 3, u32::MAX] {
        // SAFETY: the model lives.
        unsafe { call(job, index) };
    }
    assert_eq!(embed(model).map(|_| ()), Err(Status::Fatal.code()));
    free(model);
}
