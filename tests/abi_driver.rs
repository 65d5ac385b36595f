//! Drivers through the C functions: every bad argument gets its status, twice, and leaves no trace; what a request says is what it says
//! in Rust.

#![allow(clippy::multiple_unsafe_ops_per_block, reason = "a test calls C functions in a row, all for one reason")]

use std::ffi::{CString, c_char};
use std::ptr::{null, null_mut};

use ictus::abi::constant::{driver_event, driver_finish, driver_flag, driver_progress};
use ictus::abi::*;
use ictus::driver::{Driver, DriverOptions, EventKind, Request};
use ictus::engine::PlanBuilder;
use ictus::executor::Executor;
use ictus::record::view::Plain;
use ictus::record::{LaneLogprob, Status};
use ictus::runtime::FakeRuntime;

fn fake() -> ModelHandle {
    adopt_engine(Box::new(Executor::new(FakeRuntime::default())))
}

fn tiny() -> ModelHandle {
    let path = CString::new(concat!(env!("CARGO_MANIFEST_DIR"), "/models/ictus-tiny.gguf")).expect("a path");
    let mut model = null_mut();
    // SAFETY: the path is a text, NULL is all defaults, and the handle a local.
    assert_eq!(unsafe { ictus_model_open(path.as_ptr(), null(), null_mut(), 0, &raw mut model) }, 0);
    model
}

fn choices(flags: u32) -> DriverChoices {
    DriverChoices { struct_size: size_of::<DriverChoices>() as u64, flags, max_lanes: 8, ..DriverChoices::zeroed() }
}

fn create(model: ModelHandle, flags: u32) -> DriverNumber {
    let (choices, mut driver) = (choices(flags), null_mut());
    // SAFETY: the pointers are to locals.
    assert_eq!(unsafe { ictus_driver_create(model, &raw const choices, &raw mut driver) }, 0);
    driver
}

fn destroy(driver: DriverNumber, model: ModelHandle) {
    // SAFETY: handles are numbers.
    unsafe {
        assert_eq!(ictus_driver_destroy(driver), 0);
        assert_eq!(status(ictus_driver_destroy(driver)), Status::UnknownHandle);
        assert_eq!(ictus_model_free(model), 0);
    }
}

fn status(code: i32) -> Status {
    Status::from_code(code).expect("a status of the table")
}

/// The call answers with the status, and does so again.
#[track_caller]
fn twice(expected: Status, mut call: impl FnMut() -> i32) {
    for _ in 0..2 {
        assert_eq!(status(call()), expected);
    }
}

const PROMPT: [u32; 3] = [10, 20, 30];

fn asked() -> DriverRequest {
    DriverRequest {
        struct_size: size_of::<DriverRequest>() as u64,
        prompt_tokens: PROMPT.as_ptr(),
        n_prompt_tokens: 3,
        max_tokens: 4,
        ..DriverRequest::zeroed()
    }
}

fn submit(driver: DriverNumber, source: &DriverRequest) -> Result<u64, Status> {
    let mut id = 0;
    // SAFETY: the record and what it names are alive during the call.
    match unsafe { ictus_driver_submit(driver, source, &raw mut id) } {
        0 => Ok(id),
        code => Err(status(code)),
    }
}

#[derive(Debug, Default, PartialEq)]
struct Said {
    tokens: Vec<u32>,
    text: String,
    logprobs: usize,
    finish: u32,
    events: Vec<u32>,
}

/// Reads a request to its end, stepping when there is nothing to read.
fn read(driver: DriverNumber, request: u64, steps: bool) -> Said {
    let mut said = Said::default();
    let (mut tokens, mut text, mut logprobs) = ([0; 8], [0 as c_char; 64], [LaneLogprob::zeroed(); 8]);
    loop {
        let mut event = DriverEvent { struct_size: size_of::<DriverEvent>() as u64, ..DriverEvent::zeroed() };
        // SAFETY: the buffers are as large as is said.
        let code = unsafe {
            let (tokens, text, logprobs) = (tokens.as_mut_ptr(), text.as_mut_ptr(), logprobs.as_mut_ptr());
            ictus_driver_next_event(driver, request, u64::MAX, &raw mut event, tokens, 8, text, 64, logprobs, 8)
        };
        assert_eq!(status(code), Status::Ok);
        if event.kind == driver_event::NONE {
            assert!(steps, "a thread is waited for");
            let mut progress = 9;
            // SAFETY: the pointer is to a local.
            assert_eq!(unsafe { ictus_driver_step(driver, &raw mut progress) }, 0);
            assert_ne!(progress, driver_progress::IDLE, "it is not over");
            continue;
        }
        assert_eq!(event.request, request);
        said.events.push(event.kind);
        said.tokens.extend(&tokens[..event.n_tokens as usize]);
        said.text.extend(text[..event.text_bytes as usize].iter().map(|&byte| byte as u8 as char));
        said.logprobs += event.n_logprobs as usize;
        if event.kind == driver_event::FINISHED {
            said.finish = event.finish;
            assert!(event.answer_tokens >= said.tokens.len() as u64);
            assert!(event.total_ns >= event.first_token_ns || event.first_token_ns == u64::MAX);
            return said;
        }
    }
}

#[test]
fn request_says_in_c_what_it_says_in_rust() {
    for flags in [0, driver_flag::THREAD] {
        let model = fake();
        let driver = create(model, flags);
        let with = DriverRequest { want_logprobs: 3, ..asked() };
        let ids = [submit(driver, &asked()).expect("taken"), submit(driver, &with).expect("taken")];
        assert_eq!(ids, [1, 2]);
        for id in ids {
            let said = read(driver, id, flags == 0);
            assert_eq!(said.tokens, [19927, 17910, 10995, 14421]);
            assert_eq!((said.finish, said.logprobs), (driver_finish::MAX_TOKENS, if id == 2 { 4 } else { 0 }));
            assert_eq!(said.events, [1, 2, 2, 2, 2, 3]);
        }
        destroy(driver, model);
    }
}

#[test]
fn text_with_a_stop_string_says_in_c_what_it_says_in_rust() {
    let model = ictus::Model::open(
        concat!(env!("CARGO_MANIFEST_DIR"), "/models/ictus-tiny.gguf"),
        &ictus::ModelOptions::default(),
    );
    let model = model.expect("it opens");
    let prompt = "Once upon a time";
    let say = |stop_strings: Vec<String>| {
        let engine = model.engine().expect("an engine");
        let rust = Driver::new(engine, DriverOptions::default()).expect("a driver");
        let mut rust = rust.with_tokenizer(model.clone());
        rust.submit(Request { stop_strings, ..Request::text(prompt) }).expect("taken");
        let mut said = Said::default();
        while let Some(event) = rust.poll() {
            if let EventKind::Tokens(piece) = event.kind {
                said.tokens.extend(piece.tokens);
                said.text.push_str(&piece.text);
            }
        }
        said
    };
    let stop: String = say(Vec::new()).text.chars().skip(40).take(7).collect();
    let expected = say(vec![stop.clone()]);
    let model = tiny();
    let driver = create(model, driver_flag::THREAD);
    let c_stop = CString::new(stop.clone()).expect("a text");
    let stops = [c_stop.as_ptr()];
    let source = DriverRequest {
        struct_size: size_of::<DriverRequest>() as u64,
        prompt_text: prompt.as_ptr().cast(),
        prompt_bytes: prompt.len() as u64,
        text_flags: ictus::abi::constant::text_flag::ADD_SPECIAL,
        stop_strings: stops.as_ptr(),
        n_stop_strings: 1,
        ..DriverRequest::zeroed()
    };
    let id = submit(driver, &source).expect("taken");
    let said = read(driver, id, false);
    assert_eq!((said.tokens, said.text.as_str()), (expected.tokens, expected.text.as_str()));
    assert_eq!(said.finish, driver_finish::STOP_STRING);
    assert!(said.text.len() > 20 && !said.text.contains(&stop), "{}", said.text);
    destroy(driver, model);
}

#[test]
fn every_bad_driver_is_refused() {
    let model = fake();
    let good = choices(0);
    let mut driver = null_mut();
    let make = |model, choices: *const DriverChoices, driver| {
        // SAFETY: the pointers are NULL, misaligned, or to locals.
        twice_value(|| unsafe { ictus_driver_create(model, choices, driver) })
    };
    assert_eq!(make(null_mut(), &raw const good, &raw mut driver), Status::UnknownHandle);
    assert_eq!(make(model, &raw const good, null_mut()), Status::RejectBadStruct);
    let off = (&raw mut driver).wrapping_byte_add(1);
    assert_eq!(make(model, &raw const good, off), Status::RejectBadAlignment);
    let bad = |change: fn(&mut DriverChoices)| {
        let mut choices = choices(0);
        change(&mut choices);
        choices
    };
    for (expected, choices) in [
        (Status::RejectBadStruct, bad(|choices| choices.struct_size = 71)),
        (Status::RejectBounds, bad(|choices| choices.flags = 2)),
        (Status::RejectBounds, bad(|choices| choices.max_lanes = 4097)),
        (Status::RejectBounds, bad(|choices| choices.tick_tokens = (1 << 20) + 1)),
        (Status::RejectBounds, bad(|choices| choices.decode_tokens = 4097)),
        (Status::RejectBounds, bad(|choices| choices.replay_tokens = 4097)),
    ] {
        assert_eq!(make(model, &raw const choices, &raw mut driver), expected);
    }
    assert!(driver.is_null(), "nothing was written");
    // NULL is all defaults; a second driver finds the model taken, and so does a tick.
    // SAFETY: the pointers are NULL or to locals.
    unsafe {
        assert_eq!(ictus_driver_create(model, null(), &raw mut driver), 0);
        let mut second = null_mut();
        twice(Status::Busy, || ictus_driver_create(model, null(), &raw mut second));
        let (plan, _arena) = PlanBuilder::new(u64::MAX).build();
        let mut events = null();
        twice(Status::Busy, || ictus_tick(model, &raw const plan, &raw mut events));
        assert_eq!(ictus_driver_destroy(driver), 0);
        assert_eq!(ictus_tick(model, &raw const plan, &raw mut events), 0, "the host may tick again");
        assert_eq!(ictus_model_free(model), 0);
    }
}

/// The answer of a call that gives the same one twice.
#[track_caller]
fn twice_value(mut call: impl FnMut() -> i32) -> Status {
    let (first, second) = (status(call()), status(call()));
    assert_eq!(first, second);
    first
}

#[test]
fn every_bad_request_is_refused_and_the_driver_goes_on() {
    let (zero, nan, word) = ([0u32], [f32::NAN], CString::new("{}").expect("a text"));
    let not_utf8 = [0xffu8, 0xfe, 0];
    let bad = |change: &dyn Fn(&mut DriverRequest)| {
        let mut request = asked();
        change(&mut request);
        request
    };
    let stops = [null::<c_char>()];
    let cases: Vec<(&str, Status, DriverRequest)> = vec![
        ("short", Status::RejectBadStruct, bad(&|request| request.struct_size = 199)),
        ("no prompt", Status::RejectBadStruct, bad(&|request| request.prompt_tokens = null())),
        ("two prompts", Status::RejectBadStruct, bad(&|request| request.prompt_text = word.as_ptr())),
        ("empty", Status::RejectIllegalCombination, bad(&|request| request.n_prompt_tokens = 0)),
        ("huge", Status::RejectBounds, bad(&|request| request.n_prompt_tokens = u64::MAX)),
        (
            "off",
            Status::RejectBadAlignment,
            bad(&|request| request.prompt_tokens = PROMPT.as_ptr().wrapping_byte_add(1)),
        ),
        (
            "no tokenizer",
            Status::Unsupported,
            bad(&|request| {
                (request.prompt_tokens, request.prompt_text, request.prompt_bytes) = (null(), word.as_ptr(), 2);
            }),
        ),
        (
            "not UTF-8",
            Status::RejectBadStruct,
            bad(&|request| {
                (request.prompt_tokens, request.prompt_text, request.prompt_bytes) =
                    (null(), not_utf8.as_ptr().cast(), 2);
            }),
        ),
        ("flags", Status::RejectBounds, bad(&|request| request.flags = 4)),
        ("text flags", Status::RejectBounds, bad(&|request| request.text_flags = 8)),
        ("sampling flags", Status::RejectBounds, bad(&|request| request.params.flags = 2)),
        ("priority", Status::RejectBounds, bad(&|request| request.priority = 32768)),
        ("logprobs", Status::RejectBounds, bad(&|request| request.want_logprobs = 22)),
        ("logprobs", Status::RejectBounds, bad(&|request| request.want_logprobs = 256 + 3)),
        ("temperature", Status::RejectBounds, bad(&|request| request.params.temperature = f32::NAN)),
        ("top_p", Status::RejectBounds, bad(&|request| request.params.top_p = -0.5)),
        ("min_p", Status::RejectBounds, bad(&|request| request.params.min_p = 2.0)),
        ("penalty", Status::RejectBounds, bad(&|request| request.params.freq_penalty = f32::INFINITY)),
        ("NULL bias", Status::RejectBadStruct, bad(&|request| request.n_bias = 1)),
        (
            "NaN bias",
            Status::RejectBounds,
            bad(&|request| {
                (request.bias_tokens, request.bias_values, request.n_bias) = (zero.as_ptr(), nan.as_ptr(), 1);
            }),
        ),
        ("NULL stops", Status::RejectBadStruct, bad(&|request| request.n_stop_strings = 1)),
        (
            "NULL stop",
            Status::RejectBadStruct,
            bad(&|request| {
                (request.stop_strings, request.n_stop_strings) = (stops.as_ptr(), 1);
            }),
        ),
        ("NULL stop tokens", Status::RejectBadStruct, bad(&|request| request.n_stop_tokens = 1)),
        (
            "two grammars",
            Status::RejectBadStruct,
            bad(&|request| {
                (request.grammar_schema, request.grammar_handle) = (word.as_ptr(), 1);
            }),
        ),
    ];
    for flags in [0, driver_flag::THREAD] {
        let model = fake();
        let driver = create(model, flags);
        for (name, expected, request) in &cases {
            for _ in 0..2 {
                assert_eq!(submit(driver, request), Err(*expected), "{name}");
            }
        }
        // SAFETY: the pointers are NULL or to locals.
        unsafe {
            let good = asked();
            twice(Status::RejectBadStruct, || ictus_driver_submit(driver, &raw const good, null_mut()));
            twice(Status::RejectBadStruct, || ictus_driver_submit(driver, null(), null_mut()));
            twice(Status::UnknownHandle, || ictus_driver_submit(null_mut(), &raw const good, null_mut()));
            twice(Status::UnknownHandle, || ictus_driver_cancel(driver, 1));
            twice(Status::UnknownHandle, || ictus_driver_cancel(null_mut(), 1));
            twice(Status::UnknownHandle, || ictus_driver_step(null_mut(), null_mut()));
            twice(Status::RejectBadStruct, || ictus_driver_step(driver, null_mut()));
            let mut progress = 9;
            if flags == driver_flag::THREAD {
                twice(Status::Unsupported, || ictus_driver_step(driver, &raw mut progress));
            }
            // A model's handle is no driver's, and the other way round.
            twice(Status::UnknownHandle, || ictus_driver_cancel(model.cast(), 1));
            twice(Status::UnknownHandle, || ictus_model_free(driver.cast()));
        }
        assert_eq!(submit(driver, &asked()), Ok(1), "refused requests took no number");
        assert_eq!(read(driver, 1, flags == 0).tokens.len(), 4);
        destroy(driver, model);
    }
}

#[test]
fn event_that_does_not_fit_stays() {
    let model = fake();
    let driver = create(model, driver_flag::THREAD);
    let id = submit(driver, &DriverRequest { want_logprobs: 1, ..asked() }).expect("taken");
    let next = |event: &mut DriverEvent, tokens: &mut [u32], logprobs: &mut [LaneLogprob]| {
        event.struct_size = size_of::<DriverEvent>() as u64;
        let (n_tokens, n_logprobs) = (tokens.len() as u64, logprobs.len() as u64);
        let (tokens, logprobs) = (tokens.as_mut_ptr(), logprobs.as_mut_ptr());
        // SAFETY: the buffers are as large as is said.
        status(unsafe {
            ictus_driver_next_event(driver, id, u64::MAX, event, tokens, n_tokens, null_mut(), 0, logprobs, n_logprobs)
        })
    };
    let (mut event, mut tokens, mut logprobs) = (DriverEvent::zeroed(), [7u32; 2], [LaneLogprob::zeroed(); 2]);
    assert_eq!(next(&mut event, &mut [], &mut []), Status::Ok);
    assert_eq!(event.kind, driver_event::STARTED);
    for _ in 0..2 {
        assert_eq!(next(&mut event, &mut [], &mut logprobs), Status::BufferTooSmall);
        assert_eq!((event.kind, event.n_tokens, event.n_logprobs, event.text_bytes), (driver_event::TOKENS, 1, 1, 0));
        assert_eq!(next(&mut event, &mut tokens, &mut []), Status::BufferTooSmall);
    }
    assert_eq!(next(&mut event, &mut tokens, &mut logprobs), Status::Ok);
    assert_eq!(tokens, [19927, 7]);
    // SAFETY: the pointers are NULL, misaligned, or to locals.
    unsafe {
        let call = |event, tokens, capacity| {
            ictus_driver_next_event(driver, id, 0, event, tokens, capacity, null_mut(), 0, null_mut(), 0)
        };
        twice(Status::RejectBadStruct, || call(null_mut(), null_mut(), 0));
        twice(Status::RejectBadStruct, || call(&raw mut event, null_mut(), 1));
        twice(Status::RejectBounds, || call(&raw mut event, tokens.as_mut_ptr(), u64::MAX));
        let mut short = DriverEvent { struct_size: 143, ..event };
        twice(Status::RejectBadStruct, || call(&raw mut short, null_mut(), 0));
        twice(Status::UnknownHandle, || {
            ictus_driver_next_event(driver, 99, 0, &raw mut event, null_mut(), 0, null_mut(), 0, null_mut(), 0)
        });
    }
    let rest = read(driver, id, false);
    assert_eq!(rest.tokens, [17910, 10995, 14421], "nothing was lost");
    // Its last event was read, and it was the only request.
    for request in [id, 0] {
        let mut event = DriverEvent { struct_size: 144, ..DriverEvent::zeroed() };
        // SAFETY: the pointer is to a local.
        twice(Status::UnknownHandle, || unsafe {
            ictus_driver_next_event(driver, request, 0, &raw mut event, null_mut(), 0, null_mut(), 0, null_mut(), 0)
        });
    }
    destroy(driver, model);
}

#[test]
fn driver_outlives_its_model_and_says_that_it_is_gone() {
    for flags in [0, driver_flag::THREAD] {
        let model = fake();
        let driver = create(model, flags);
        let endless = DriverRequest { max_tokens: u64::MAX, ..asked() };
        let id = submit(driver, &endless).expect("taken");
        // SAFETY: handles are numbers.
        assert_eq!(unsafe { ictus_model_free(model) }, 0);
        let said = read(driver, id, flags == 0);
        // It may have come to the end of its context first.
        assert!([driver_finish::FAILED, driver_finish::CONTEXT_FULL].contains(&said.finish), "{said:?}");
        let mut progress = 9;
        // SAFETY: handles are numbers, the pointer is to a local.
        unsafe {
            if flags == 0 {
                assert_eq!(ictus_driver_step(driver, &raw mut progress), 0);
                assert_eq!(progress, driver_progress::IDLE);
                assert_eq!(submit(driver, &asked()), Err(Status::Fatal));
            }
            assert_eq!(ictus_driver_destroy(driver), 0);
        }
    }
}

#[test]
fn reader_of_any_event_gets_all_of_them() {
    let model = fake();
    let driver = create(model, driver_flag::THREAD);
    let ids: Vec<u64> = (0..6).map(|_| submit(driver, &asked()).expect("taken")).collect();
    // SAFETY: handles are numbers.
    assert_eq!(unsafe { ictus_driver_cancel(driver, ids[3]) }, 0);
    let (mut finished, mut tokens) = (Vec::new(), 0);
    loop {
        let mut event = DriverEvent { struct_size: 144, ..DriverEvent::zeroed() };
        let mut buffer = [0; 8];
        // SAFETY: the buffer is as large as is said.
        let code = unsafe {
            let buffer = buffer.as_mut_ptr();
            ictus_driver_next_event(driver, 0, u64::MAX, &raw mut event, buffer, 8, null_mut(), 0, null_mut(), 0)
        };
        if status(code) == Status::UnknownHandle {
            break;
        }
        assert_eq!(status(code), Status::Ok);
        tokens += event.n_tokens;
        if event.kind == driver_event::FINISHED {
            finished.push(event.request);
        }
    }
    finished.sort_unstable();
    assert_eq!(finished, ids);
    assert!((20..=24).contains(&tokens), "five of them said all: {tokens}");
    destroy(driver, model);
}

/// What a callback of the model did to its driver.
struct Callback {
    driver: DriverNumber,
    answers: Vec<Status>,
}

unsafe extern "C" fn meddle(user: *mut std::ffi::c_void, _: u32, _: *const c_char) {
    // SAFETY: the test passes a `Callback` that outlives the model's log, and only this thread uses it meanwhile.
    let callback = unsafe { &mut *user.cast::<Callback>() };
    let mut event = DriverEvent { struct_size: 144, ..DriverEvent::zeroed() };
    // SAFETY: handles are numbers, the pointer is to a local.
    let codes = unsafe {
        let event = &raw mut event;
        let next = |timeout| {
            ictus_driver_next_event(callback.driver, 0, timeout, event, null_mut(), 0, null_mut(), 0, null_mut(), 0)
        };
        [ictus_driver_destroy(callback.driver), next(u64::MAX), ictus_driver_destroy(callback.driver)]
    };
    callback.answers.extend(codes.map(status));
}

/// A callback of the model neither waits for its driver nor ends it: that would be waiting for itself.
/// A-31, E-2.
#[test]
fn callback_of_the_model_cannot_wait_for_its_driver() {
    for flags in [0, driver_flag::THREAD] {
        let model = fake();
        let mut callback = Callback { driver: create(model, flags), answers: Vec::new() };
        // SAFETY: the callback's user outlives the model's log, which ends below.
        unsafe {
            let user = (&raw mut callback).cast();
            assert_eq!(ictus_model_log(model, ictus::abi::constant::log_level::WARN, Some(meddle), user), 0);
            // A refused call is logged from inside the model.
            assert_eq!(status(ictus_seed_release(model, 99)), Status::UnknownHandle);
            assert_eq!(ictus_model_log(model, 0, None, null_mut()), 0);
        }
        assert_eq!(callback.answers, [Status::Busy; 3]);
        let id = submit(callback.driver, &asked()).expect("taken");
        assert_eq!(read(callback.driver, id, flags == 0).tokens.len(), 4);
        destroy(callback.driver, model);
    }
}
