//! Bad requests, faults and engines that say no: one request's trouble is that request's.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use ictus::driver::{
    Driver, DriverError, DriverOptions, Failure, Finish, Grammar, Progress, Request, RequestId, SubmitError,
};
use ictus::record::Status;
use ictus::record::constant::fault;
use ictus::runtime::RuntimeError;

use super::alone::{Transcript, alone, check};
use super::meddler::Meddler;
use super::pressure::check_empty;
use super::{fake, here};

fn options() -> DriverOptions {
    DriverOptions { max_lanes: 8, tick_tokens: 32, ..DriverOptions::default() }
}

fn request(first: u32) -> Request {
    Request { max_tokens: 12, ignore_eos: true, ..Request::tokens((first..first + 20).collect::<Vec<_>>()) }
}

fn alone_of(request: &Request) -> super::alone::Answer {
    alone(&mut here(|_| {}), request)
}

/// T-27, T-36: what the driver cannot know, the engine says; the neighbours do not notice.
#[test]
fn request_that_the_engine_refuses_ends_alone() {
    let mut driver = Driver::new(fake(|_| {}), options()).expect("a driver");
    let good: Vec<Request> = (0..5).map(request).collect();
    let ids: Vec<RequestId> = good[..3].iter().map(|good| driver.submit(good.clone()).expect("taken")).collect();
    let foreign = driver.submit(Request::tokens([1, 64])).expect("the driver does not know the vocabulary");
    let long = driver.submit(Request::tokens([1; 201])).expect("nor the context");
    let more: Vec<RequestId> = good[3..].iter().map(|good| driver.submit(good.clone()).expect("taken")).collect();
    let grammar = Request { grammar: Grammar::Schema("{}".to_owned()), ..request(1) };
    let grammar = driver.submit(grammar).expect("taken");
    let mut transcript = Transcript::default();
    transcript.drain(&mut driver);
    for (id, good) in ids.iter().chain(&more).zip(&good) {
        check(&transcript.answers[id], &alone_of(good));
    }
    let failed = |failure| Some(Finish::Failed(failure));
    assert_eq!(transcript.answers[&foreign].finish, failed(Failure::Rejected(Status::RejectBounds)));
    assert_eq!(transcript.answers[&long].finish, failed(Failure::Rejected(Status::RejectBudget)));
    assert!(
        matches!(transcript.answers[&grammar].finish, Some(Finish::Failed(Failure::Grammar(_)))),
        "the fake lists no vocabulary: {:?}",
        transcript.answers[&grammar]
    );
    check_empty(&mut driver.close().0);
}

#[test]
fn request_that_fits_nowhere_ends_and_the_others_go_on() {
    let small = fake(|options| options.descriptor.cells_total = 64);
    let mut driver = Driver::new(small, options()).expect("a driver");
    let good = [request(0), request(9)];
    let ids = good.clone().map(|good| driver.submit(good).expect("taken"));
    let large = driver.submit(Request { max_tokens: 3, ..Request::tokens([7; 100]) }).expect("taken");
    let endless = Request { max_tokens: 150, ignore_eos: true, ..request(3) };
    let late = driver.submit(endless.clone()).expect("taken");
    let mut transcript = Transcript::default();
    transcript.drain(&mut driver);
    for (id, good) in ids.iter().zip(&good) {
        check(&transcript.answers[id], &alone_of(good));
    }
    assert_eq!(transcript.answers[&large].finish, Some(Finish::Failed(Failure::NoRoom)));
    let late = &transcript.answers[&late];
    assert_eq!(late.finish, Some(Finish::Failed(Failure::NoRoom)), "it outgrows the pool");
    assert!(alone_of(&endless).tokens.starts_with(&late.tokens) && late.tokens.len() >= 40, "{late:?}");
    check_empty(&mut driver.close().0);
}

/// T-132: a lane that ran out of memory in a step comes back, any other fault ends its request.
#[test]
fn fault_for_want_of_memory_is_made_good_and_another_one_is_told() {
    for (error, expected) in [
        (RuntimeError::Capacity, None),
        (RuntimeError::Fault(fault::STRATEGY), Some(Failure::Fault { code: fault::STRATEGY })),
        (RuntimeError::Unsupported, Some(Failure::Fault { code: fault::INTERNAL })),
    ] {
        let mut driver = Driver::new(fake(|_| {}), options()).expect("a driver");
        let asked = [request(0), request(9), request(30)];
        let ids = asked.clone().map(|asked| driver.submit(asked).expect("taken"));
        for _ in 0..6 {
            assert_eq!(driver.step(), Progress::Worked);
        }
        driver.engine_mut().primitives_mut().fail_next_step(error);
        let late = request(2);
        let late_id = driver.submit(late.clone()).expect("taken");
        let mut transcript = Transcript::default();
        transcript.drain(&mut driver);
        let mut struck = 0;
        for (id, asked) in ids.iter().chain([&late_id]).zip(asked.iter().chain([&late])) {
            let said = &transcript.answers[id];
            let failed = said.finish == expected.map(Finish::Failed);
            struck += u32::from(failed || said.stats.preemptions > 0);
            if failed {
                assert!(alone_of(asked).tokens.starts_with(&said.tokens));
            } else {
                check(said, &alone_of(asked));
            }
        }
        assert!(struck > 0, "{error}: somebody was struck");
        check_empty(&mut driver.close().0);
    }
}

/// T-136.
#[test]
fn fatal_engine_ends_everything_once() {
    let mut driver = Driver::new(fake(|_| {}), options()).expect("a driver");
    let ids: Vec<RequestId> = (0..12).map(|at| driver.submit(request(at)).expect("taken")).collect();
    driver.step();
    driver.engine_mut().primitives_mut().fail_next_step(RuntimeError::Fatal);
    let mut transcript = Transcript::default();
    transcript.drain(&mut driver);
    for id in &ids {
        assert_eq!(transcript.answers[id].finish, Some(Finish::Failed(Failure::EngineFatal)));
    }
    for _ in 0..2 {
        assert!(matches!(driver.submit(request(0)), Err(SubmitError::Closed)));
        assert_eq!(driver.step(), Progress::Idle);
    }
}

/// An engine that suddenly disagrees about one lane costs that lane only.
#[test]
fn lane_that_the_engine_refuses_is_found_and_ended() {
    let bad = Arc::new(AtomicU64::new(u64::MAX));
    let seen = Arc::clone(&bad);
    let mut plans = 0;
    let engine = Meddler::new(fake(|_| {}), move |_, decodes| {
        plans += 1;
        if plans == 12 {
            seen.store(decodes[1], Ordering::Relaxed);
        }
        decodes.contains(&seen.load(Ordering::Relaxed)).then_some(Status::RejectIllegalCombination)
    });
    let mut driver = Driver::new(engine, options()).expect("a driver");
    let asked: Vec<Request> = (0..4).map(|at| Request { max_tokens: 40, ..request(at) }).collect();
    let ids: Vec<RequestId> = asked.iter().map(|asked| driver.submit(asked.clone()).expect("taken")).collect();
    let mut transcript = Transcript::default();
    transcript.drain(&mut driver);
    let failed = |id: &&RequestId| {
        transcript.finish(**id) == Some(&Finish::Failed(Failure::Rejected(Status::RejectIllegalCombination)))
    };
    assert_ne!(bad.load(Ordering::Relaxed), u64::MAX, "the refusal came");
    assert_eq!(ids.iter().filter(failed).count(), 1);
    for (id, asked) in ids.iter().zip(&asked).filter(|(id, _)| !failed(id)) {
        check(&transcript.answers[id], &alone_of(asked));
    }
    check_empty(&mut driver.close().0.inner);
}

/// S-90: while an operation holds a lane's state, the driver waits, and nothing ends.
#[test]
fn locked_lane_stalls_the_driver_until_it_is_free() {
    let locked = Arc::new(AtomicBool::new(false));
    let lock = Arc::clone(&locked);
    let engine = Meddler::new(fake(|_| {}), move |_, decodes| {
        (lock.load(Ordering::Relaxed) && !decodes.is_empty()).then_some(Status::RejectTransferLocked)
    });
    let mut driver = Driver::new(engine, options()).expect("a driver");
    let id = driver.submit(request(0)).expect("taken");
    let mut transcript = Transcript::default();
    while !matches!(driver.next_event(), Some(event) if { transcript.take(event.clone()); matches!(event.kind, ictus::driver::EventKind::Tokens(_)) })
    {
        driver.step();
    }
    locked.store(true, Ordering::Relaxed);
    for _ in 0..3 {
        assert_eq!(driver.step(), Progress::Stalled);
    }
    locked.store(false, Ordering::Relaxed);
    transcript.drain(&mut driver);
    check(&transcript.answers[&id], &alone_of(&request(0)));
}

#[test]
fn queue_that_is_full_refuses_and_forgets() {
    let options = DriverOptions { max_lanes: 1, queue_limit: 3, ..options() };
    let mut driver = Driver::new(fake(|_| {}), options).expect("a driver");
    let first = driver.submit(request(0)).expect("taken");
    driver.step();
    let ids: Vec<RequestId> = (1..4).map(|at| driver.submit(request(at)).expect("taken")).collect();
    for _ in 0..2 {
        assert!(matches!(driver.submit(request(9)), Err(SubmitError::QueueFull { limit: 3 })));
        assert_eq!((driver.waiting(), driver.running()), (3, 1));
    }
    assert!(driver.cancel(ids[1]) && !driver.cancel(ids[1]), "once");
    let last = driver.submit(request(5)).expect("there is room again");
    assert_eq!(last.get(), 5, "refused requests take no number");
    let mut transcript = Transcript::default();
    transcript.drain(&mut driver);
    assert_eq!(transcript.answers.len(), 5);
    for id in [first, ids[0], ids[2], last] {
        assert_eq!(transcript.answers[&id].finish, Some(Finish::MaxTokens));
    }
    assert!(!driver.cancel(last) && !driver.cancel(RequestId::from_number(77)));
}

#[test]
fn options_and_engines_that_cannot_be_driven_are_refused() {
    let none = DriverOptions { max_lanes: 0, ..options() };
    assert!(matches!(Driver::new(fake(|_| {}), none), Err(DriverError::Options(error)) if error.name == "max_lanes"));
    let fatal = Meddler::new(fake(|_| {}), |_, _| Some(Status::Fatal));
    assert_eq!(Driver::new(fatal, options()).map(drop).expect_err("it is broken"), DriverError::Engine(Status::Fatal));
    let takes_none = Meddler::new(fake(|_| {}), |_, _| Some(Status::RejectBudget));
    assert_eq!(
        Driver::new(takes_none, options()).map(drop).expect_err("no lane"),
        DriverError::Engine(Status::RejectBudget)
    );
    // T-19: the most that the engine takes is found.
    for batch in [1, 2, 7, 33] {
        let engine = fake(|options| options.descriptor.max_batch = batch);
        let driver = Driver::new(engine, DriverOptions { max_lanes: 33, ..options() }).expect("a driver");
        assert_eq!(driver.options().max_lanes, batch);
    }
}

/// An adapter that the engine does not know ends its request, and no word about a tag stays.
#[test]
fn unknown_adapter_ends_its_request() {
    let mut driver = Driver::new(fake(|_| {}), options()).expect("a driver");
    let adapted = driver.submit(Request { adapter: 3, ..request(0) }).expect("taken");
    let good = driver.submit(request(0)).expect("taken");
    let mut transcript = Transcript::default();
    transcript.drain(&mut driver);
    let finish = transcript.finish(adapted);
    assert!(matches!(finish, Some(Finish::Failed(Failure::Adapter(_)))), "{finish:?}");
    check(&transcript.answers[&good], &alone_of(&request(0)));
    check_empty(&mut driver.close().0);
}

/// One handle, one unfinished request.
#[test]
fn grammar_handle_serves_one_request_at_a_time() {
    let mut driver = Driver::new(fake(|_| {}), options()).expect("a driver");
    let with = || Request { grammar: Grammar::Handle(9), ..request(0) };
    let (first, second) = (driver.submit(with()).expect("taken"), driver.submit(with()).expect("taken"));
    let mut transcript = Transcript::default();
    transcript.drain(&mut driver);
    assert_eq!(transcript.finish(second), Some(&Finish::Failed(Failure::GrammarInUse)));
    let unknown = Some(Finish::Failed(Failure::Rejected(Status::RejectIllegalCombination)));
    assert_eq!(transcript.answers[&first].finish, unknown, "T-31: the engine does not know it");
}
