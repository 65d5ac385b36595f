//! Who is served when: priorities, ageing, short prompts beside long ones, deadlines.

use std::time::Duration;

use ictus::driver::{Driver, DriverOptions, EventKind, Finish, ManualClock, Request, RequestId};

use super::alone::Transcript;
use super::engine::Under;
use super::{fake, here};

const SECOND: Duration = Duration::from_secs(1);

fn driver(max_lanes: u32, clock: &ManualClock) -> Driver<Under> {
    let options = DriverOptions { max_lanes, tick_tokens: 64, ageing: 10 * SECOND, ..DriverOptions::default() };
    Driver::with_clock(fake(|options| options.descriptor.max_seq_len = 4000), options, clock.clone()).expect("a driver")
}

fn request(priority: i16, max_tokens: u64) -> Request {
    Request { priority, max_tokens, ignore_eos: true, ..Request::tokens([1, 2, 3]) }
}

/// The requests in the order in which they start.
fn starts(driver: &mut Driver<Under>) -> Vec<RequestId> {
    let mut transcript = Transcript::default();
    let mut started = Vec::new();
    while let Some(event) = driver.poll() {
        if matches!(event.kind, EventKind::Started { .. }) {
            started.push(event.request);
        }
        transcript.take(event);
    }
    started
}

#[test]
fn higher_priority_starts_first_and_equals_by_age() {
    let clock = ManualClock::new();
    let mut driver = driver(1, &clock);
    let ids: Vec<RequestId> =
        [0, 2, 0, 1, 2].map(|priority| driver.submit(request(priority, 2)).expect("taken")).into();
    let order: Vec<u64> = starts(&mut driver).iter().map(|id| id.get()).collect();
    assert_eq!(order, [2, 5, 4, 1, 3]);
    assert_eq!(ids.len(), 5);
}

#[test]
fn higher_priority_takes_the_lane_of_a_lower_one_which_loses_nothing() {
    let clock = ManualClock::new();
    let mut driver = driver(2, &clock);
    let low = [driver.submit(request(0, 40)).expect("taken"), driver.submit(request(0, 40)).expect("taken")];
    for _ in 0..10 {
        driver.step();
    }
    let high = driver.submit(request(1, 4)).expect("taken");
    let equal = driver.submit(request(0, 4)).expect("taken");
    let mut transcript = Transcript::default();
    transcript.drain(&mut driver);
    let stats = |id: RequestId| transcript.answers[&id].stats;
    assert_eq!((stats(low[0]).preemptions, stats(low[1]).preemptions), (0, 1), "the younger one gives way, once");
    assert!(stats(high).queued < stats(equal).queued || stats(high).total <= stats(equal).total);
    let alone = super::alone::alone(&mut here(|options| options.descriptor.max_seq_len = 4000), &request(0, 40));
    for id in low {
        super::alone::check(&transcript.answers[&id], &alone);
    }
}

/// The bound of the ageing: only what comes within ten seconds can overtake by one level.
#[test]
fn flood_of_a_higher_priority_does_not_starve_a_request() {
    let clock = ManualClock::new();
    let mut driver = driver(1, &clock);
    driver.submit(request(1, 3)).expect("taken");
    let low = driver.submit(request(0, 3)).expect("taken");
    let mut transcript = Transcript::default();
    let mut submitted = Vec::new();
    let mut seconds = 0;
    while transcript.finish(low).is_none() {
        // Two come for each one that is served.
        for _ in 0..2 {
            submitted.push((seconds, driver.submit(request(1, 3)).expect("taken")));
        }
        for _ in 0..4 {
            driver.step();
        }
        while let Some(event) = driver.next_event() {
            transcript.take(event);
        }
        clock.advance(SECOND);
        seconds += 1;
        assert!(seconds < 100, "it starves");
    }
    for &(at, id) in &submitted {
        if transcript.answers.get(&id).is_some_and(|said| said.started) {
            assert!(at <= 10, "request {id} of second {at} went before the one of second 0");
        }
    }
    assert!(submitted.iter().any(|&(at, _)| at > 10), "the flood went on past the bound");
}

/// A short prompt gets half of the tick while a long one is under way.
#[test]
fn short_prompt_does_not_wait_for_a_long_one() {
    let clock = ManualClock::new();
    let mut driver = driver(4, &clock);
    let long = driver.submit(Request { max_tokens: 1, ..Request::tokens(vec![1; 3000]) }).expect("taken");
    for _ in 0..3 {
        driver.step();
    }
    let before = driver.ticks();
    let short = driver.submit(Request { max_tokens: 1, ..Request::tokens(vec![2; 60]) }).expect("taken");
    while let Some(event) = driver.poll() {
        if event.request == short && matches!(event.kind, EventKind::Finished { .. }) {
            break;
        }
        assert_ne!(event.request, RequestId::from_number(0));
    }
    assert!(driver.ticks() - before <= 2, "60 tokens at 32 a tick: {} ticks", driver.ticks() - before);
    assert!(driver.cancel(long), "the long one is still at it");
}

#[test]
fn deadline_ends_a_request_wherever_it_is() {
    let clock = ManualClock::new();
    let mut driver = driver(1, &clock);
    let within = |seconds: u64| Request { deadline: Some(Duration::from_secs(seconds)), ..request(0, 1000) };
    let running = driver.submit(within(5)).expect("taken");
    let waiting = driver.submit(within(3)).expect("taken");
    let fine = driver.submit(Request { max_tokens: 2, ..within(100) }).expect("taken");
    let mut transcript = Transcript::default();
    for second in 0..8 {
        for _ in 0..3 {
            driver.step();
        }
        while let Some(event) = driver.next_event() {
            transcript.take(event);
        }
        let over = |id| transcript.finish(id).is_some();
        assert_eq!((over(waiting), over(running)), (second >= 3, second >= 5), "second {second}");
        clock.advance(SECOND);
    }
    transcript.drain(&mut driver);
    for (id, started) in [(running, true), (waiting, false)] {
        let said = &transcript.answers[&id];
        assert_eq!((said.finish.as_ref(), said.started), (Some(&Finish::DeadlineExpired), started));
        assert!(said.stats.total >= Duration::from_secs(3));
    }
    assert_eq!(transcript.finish(fine), Some(&Finish::MaxTokens));
    assert_eq!(transcript.answers[&fine].stats.queued, Some(5 * SECOND));
}
