//! An engine in a process of its own through the C functions: opened with one field more, and the calls after it as they were.

#![allow(clippy::multiple_unsafe_ops_per_block, reason = "a test calls C functions in a row, all for one reason")]

use std::ffi::{CString, c_char};
use std::ptr::{null, null_mut};

use ictus::abi::*;
use ictus::engine::PlanBuilder;
use ictus::record::view::Plain;
use ictus::record::{LaneAdmit, LaneEmit, Status, TickEvents, TokenRef};

use crate::recovery::kill;

const PROMPT: [u32; 6] = [1, 20, 300, 4, 50, 60];

fn path() -> CString {
    CString::new(crate::tiny().to_str().expect("UTF-8")).expect("no NUL")
}

fn worker() -> Option<CString> {
    let program = option_env!("CARGO_BIN_EXE_ictus-worker");
    if program.is_none() {
        println!("skipped: a worker from C: the program is not built");
    }
    program.map(|program| CString::new(program).expect("no NUL"))
}

/// A model opened so, or the status and what was said.
fn open(options: &OpenOptions) -> Result<ModelHandle, (Status, String)> {
    let (path, mut model, mut text) = (path(), null_mut(), [0 as c_char; 512]);
    // SAFETY: texts, options with their size, a buffer with its length, and a local.
    let status = unsafe { ictus_model_open(path.as_ptr(), options, text.as_mut_ptr(), 512, &raw mut model) };
    if status == 0 {
        // SAFETY: NULL is all defaults.
        assert_eq!(unsafe { ictus_model_rings_create(model, null()) }, 0);
        return Ok(model);
    }
    Err((Status::from_code(status).expect("a status"), words(&text)))
}

fn words(text: &[c_char]) -> String {
    let bytes = text.iter().map(|&byte| byte as u8).take_while(|&byte| byte != 0).collect();
    String::from_utf8(bytes).expect("UTF-8")
}

fn last_error(model: ModelHandle) -> String {
    let (mut text, mut bytes) = ([0 as c_char; 512], 0u64);
    // SAFETY: 512 bytes are there.
    assert_eq!(unsafe { ictus_model_last_error(model, text.as_mut_ptr(), 512, &raw mut bytes) }, 0);
    words(&text)
}

fn free(model: ModelHandle) {
    // SAFETY: a handle is a number.
    assert_eq!(unsafe { ictus_model_free(model) }, 0);
}

/// `context` is how a test knows the process of its worker.
fn options(context: u32, worker: Option<&CString>) -> OpenOptions {
    OpenOptions {
        struct_size: size_of::<OpenOptions>() as u64,
        threads: 1,
        context_tokens: context,
        worker: worker.map_or(null(), |worker| worker.as_ptr()),
        ..OpenOptions::zeroed()
    }
}

/// The process whose line has this context.
fn worker_of(context: u32) -> u32 {
    let wanted = format!("--max-context\0{context}\0");
    let found = std::fs::read_dir("/proc").expect("the processes").flatten().find_map(|entry| {
        let line = std::fs::read(entry.path().join("cmdline")).ok()?;
        let here = String::from_utf8_lossy(&line).contains(&wanted);
        here.then(|| entry.file_name().to_str().and_then(|name| name.parse().ok())).flatten()
    });
    found.expect("the worker runs")
}

/// One tick with a grant of four tokens.
fn tick(model: ModelHandle, seq: u64) -> Result<Vec<u32>, Status> {
    let mut plan = PlanBuilder::new(seq).decode(1, 4);
    if seq == 1 {
        let mut staged = TokenRef::zeroed();
        // SAFETY: a list with its length, and a local.
        assert_eq!(unsafe { ictus_model_stage_prompt(model, PROMPT.as_ptr(), 6, &raw mut staged) }, 0);
        let sampled = |admit: &mut LaneAdmit| {
            admit.sampling = 1;
            admit.params.temperature = 0.9;
            admit.rng_counter_base = 77;
        };
        plan = plan.admit_with(sampled, 1, staged).prefill(1, 0, 6);
    }
    let (plan, _memory) = plan.build();
    let mut events: *const TickEvents = null();
    // SAFETY: the plan's arrays live in the arena above.
    let status = unsafe { ictus_tick(model, &raw const plan, &raw mut events) };
    if status != 0 {
        return Err(Status::from_code(status).expect("a status"));
    }
    // SAFETY: the events stay until the next tick.
    let emits = unsafe { (*events).emits };
    assert_eq!(emits.count, 1);
    // SAFETY: there is one.
    let emit = unsafe { *emits.data.cast::<LaneEmit>() };
    let (mut tokens, mut count) = ([0u32; 64], 0u64);
    // SAFETY: a buffer with its length, and a local.
    let read =
        unsafe { ictus_model_read_tokens(model, &raw const emit.token_ref, tokens.as_mut_ptr(), 64, &raw mut count) };
    assert_eq!(read, 0);
    Ok(tokens[..count as usize].to_vec())
}

/// W-95: six ticks, and the worker is killed before some of them.
fn story(model: ModelHandle, mut before: impl FnMut(u64)) -> Vec<u32> {
    (1..=6)
        .flat_map(|seq| {
            before(seq);
            tick(model, seq).unwrap_or_else(|status| panic!("{status}: {}", last_error(model)))
        })
        .collect()
}

#[test]
fn model_opened_with_a_worker_has_the_tokens_of_one_in_process_also_when_that_is_killed() {
    let Some(worker) = worker() else { return };
    let here = open(&options(301, None)).expect("opened");
    let expected = story(here, |_| {});
    assert_eq!(expected.len(), 24);
    let there = open(&options(301, Some(&worker))).expect("opened");
    assert_eq!(story(there, |_| {}), expected);
    let killed = open(&options(302, Some(&worker))).expect("opened");
    assert_eq!(
        story(killed, |seq| if seq % 2 == 0 {
            kill(worker_of(302))
        }),
        expected
    );
    // What is the model's is answered here, and is the same.
    let spaces = |model: ModelHandle| {
        let mut spaces = ictus::record::Array::EMPTY;
        // SAFETY: a local.
        assert_eq!(unsafe { ictus_state_spaces(model, &raw mut spaces) }, 0);
        // SAFETY: the engine's, which has one space.
        format!("{:?}", unsafe { *spaces.data.cast::<ictus::record::StateSpaceDesc>() })
    };
    assert_eq!(spaces(there), spaces(here));
    let descriptor = |model: ModelHandle| {
        // SAFETY: a handle is a number.
        let text = unsafe { ictus_capability_descriptor(model) };
        // SAFETY: a text of the model.
        unsafe { std::ffi::CStr::from_ptr(text) }.to_str().expect("UTF-8").to_owned()
    };
    assert_eq!(descriptor(there), descriptor(here));
    // What the link has no message for says so.
    let file = CString::new("/tmp/ictus-no-trace.json").expect("no NUL");
    let mut adapter = 0u64;
    for _ in 0..2 {
        // SAFETY: texts and a local.
        let answers = unsafe {
            [ictus_timeline_start(there, file.as_ptr()), ictus_adapter_load(there, file.as_ptr(), &raw mut adapter)]
        };
        assert_eq!(answers.map(Status::from_code), [Some(Status::Unsupported); 2]);
    }
    [here, there, killed].into_iter().for_each(free);
    let gone = std::panic::catch_unwind(|| worker_of(302));
    assert!(gone.is_err(), "the worker ends with its model");
}

#[test]
fn worker_that_is_not_replaced_ends_the_model_with_the_reason() {
    let Some(worker) = worker() else { return };
    let never = OpenOptions { worker_restarts: constant::NO_RESTARTS, ..options(303, Some(&worker)) };
    let model = open(&never).expect("opened");
    tick(model, 1).expect("accepted");
    kill(worker_of(303));
    for _ in 0..2 {
        assert_eq!(tick(model, 2), Err(Status::Fatal));
        assert!(last_error(model).contains("signal 9"), "{}", last_error(model));
    }
    free(model);
}

#[test]
fn worker_that_cannot_be_had_is_refused_with_the_reason() {
    let named = |name: &str| CString::new(name).expect("no NUL");
    let (nowhere, no_worker) = (named("/nonexistent/worker"), named("/bin/false"));
    for _ in 0..2 {
        let (status, said) = open(&options(304, Some(&nowhere))).expect_err("there is none");
        assert_eq!(status, Status::UnknownHandle);
        assert!(said.contains("no worker program") && said.contains("/nonexistent/worker"), "{said}");
        let (status, said) = open(&options(304, Some(&no_worker))).expect_err("it serves nobody");
        assert_eq!(status, Status::Fatal);
        assert!(said.contains("exit code 1"), "{said}");
    }
    // A writer of the time before there were workers: what lies behind its size is not read.
    let older = open(&OpenOptions { struct_size: 176, ..options(304, Some(&nowhere)) }).expect("in process");
    free(older);
    // Threads of the host cannot compute in another process.
    unsafe extern "C" fn parallel(
        _: *mut std::ffi::c_void,
        _: u32,
        _: Option<unsafe extern "C" fn(*mut std::ffi::c_void, u32)>,
        _: *mut std::ffi::c_void,
    ) {
    }
    let lent = OpenOptions { on_parallel: Some(parallel), ..options(304, Some(&no_worker)) };
    let (status, said) = open(&lent).expect_err("not in a worker");
    assert_eq!(status, Status::Unsupported);
    assert!(said.contains("host_threads"), "{said}");
}
