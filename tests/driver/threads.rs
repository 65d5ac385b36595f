//! The driver on a thread of its own.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use ictus::driver::{
    Driver, DriverOptions, EngineSource, EventKind, Failure, Finish, Next, Request, Server, SubmitError,
};
use ictus::engine::Engine;
use ictus::record::Status;

use super::alone::{Transcript, alone, check};
use super::engine::Under;
use super::meddler::Meddler;
use super::pressure::check_empty;
use super::{fake, here};

fn request(number: u32) -> Request {
    let prompt: Vec<u32> = (0..10 + number % 13).map(|at| (at * number + 3) % 60).collect();
    Request { max_tokens: 5 + u64::from(number % 7), ignore_eos: true, ..Request::tokens(prompt) }
}

fn endless() -> Request {
    Request { max_tokens: u64::MAX, ..request(1) }
}

/// An engine that takes answers of any length, slow enough to be caught in the middle.
fn patient() -> Under {
    fake(|options| {
        options.descriptor.max_seq_len = 1 << 40;
        options.step_delay = Duration::from_micros(200);
    })
}

fn serve<E: Engine + Send + 'static>(engine: E, options: DriverOptions) -> Server<E> {
    Driver::new(engine, options).expect("a driver").serve().expect("a thread")
}

#[test]
fn many_threads_submit_and_each_reads_its_own_answers() {
    let server = serve(fake(|options| options.descriptor.cells_total = 160), DriverOptions::default());
    thread::scope(|scope| {
        for number in 0..8 {
            let handle = server.handle();
            scope.spawn(move || {
                for round in 0..12 {
                    let asked = request(number * 12 + round);
                    let mut stream = handle.submit(asked.clone()).expect("taken");
                    let id = stream.id();
                    let mut transcript = Transcript::default();
                    if round % 3 == 0 {
                        // Some are read with a time limit, some are dropped in the middle.
                        loop {
                            match stream.next_within(Duration::from_millis(50)) {
                                Next::Event(event) => transcript.take(event),
                                Next::TimedOut => continue,
                                Next::Ended => break,
                            }
                        }
                    } else if round % 5 == 4 {
                        stream.next();
                        continue;
                    } else {
                        stream.by_ref().for_each(|event| transcript.take(event));
                    }
                    assert_eq!(stream.next(), None);
                    check(&transcript.answers[&id], &alone(&mut here(|_| {}), &asked));
                }
            });
        }
    });
    check_empty(&mut server.stop().expect("no panic"));
}

#[test]
fn driver_that_is_dropped_ends_every_stream() {
    let server = serve(patient(), DriverOptions { max_lanes: 2, ..DriverOptions::default() });
    let handle = server.handle();
    let streams: Vec<_> = (0..6).map(|_| handle.submit(endless()).expect("taken")).collect();
    let readers: Vec<_> =
        streams.into_iter().map(|stream| thread::spawn(move || stream.last().expect("a last event").kind)).collect();
    thread::sleep(Duration::from_millis(30));
    let mut engine = server.stop().expect("no panic");
    for reader in readers {
        let last = reader.join().expect("no panic");
        assert!(matches!(last, EventKind::Finished { finish: Finish::Failed(Failure::Closed), .. }), "{last:?}");
    }
    assert!(matches!(handle.submit(request(1)), Err(SubmitError::Closed)));
    check_empty(&mut engine);
}

#[test]
fn stream_that_is_dropped_cancels_its_request() {
    let server = serve(patient(), DriverOptions { max_lanes: 1, ..DriverOptions::default() });
    let handle = server.handle();
    let mut first = handle.submit(endless()).expect("taken");
    assert!(first.next().is_some());
    drop(first);
    let second = handle.submit(request(4)).expect("taken");
    let last = second.last().expect("a last event");
    assert!(matches!(last.kind, EventKind::Finished { finish: Finish::MaxTokens, .. }), "the lane was given up");
    let third = handle.submit(endless()).expect("taken");
    third.cancel();
    let last = third.last().expect("a last event");
    assert!(matches!(last.kind, EventKind::Finished { finish: Finish::Cancelled, .. }));
    check_empty(&mut server.stop().expect("no panic"));
}

#[test]
fn queue_of_a_thread_is_bounded() {
    let options = DriverOptions { max_lanes: 1, queue_limit: 2, ..DriverOptions::default() };
    let server = serve(patient(), options);
    let handle = server.handle();
    let mut running = handle.submit(endless()).expect("taken");
    // It says something, so it waits no more.
    while !matches!(running.next().expect("it is running").kind, EventKind::Tokens(_)) {}
    let mut refused = 0;
    let streams: Vec<_> = (0..20).filter_map(|_| handle.submit(endless()).inspect_err(|_| refused += 1).ok()).collect();
    assert_eq!((streams.len(), refused), (2, 18));
}

/// A broken thread tells, and does not hang its readers.
#[test]
fn panic_of_the_engine_ends_every_stream() {
    let mut plans = 0;
    let engine = Meddler::new(fake(|_| {}), move |_, _| {
        plans += 1;
        assert!(plans < 5, "this panic belongs to the test");
        None
    });
    let server = serve(engine, DriverOptions { max_lanes: 8, ..DriverOptions::default() });
    let handle = server.handle();
    let streams: Vec<_> = (0..3).map(|number| handle.submit(endless_like(number)).expect("taken")).collect();
    for stream in streams {
        let last = stream.last().expect("a last event");
        assert!(matches!(last.kind, EventKind::Finished { finish: Finish::Failed(Failure::EngineFatal), .. }));
    }
    assert!(matches!(handle.submit(request(1)), Err(SubmitError::Closed)));
    assert!(server.stop().is_none());
}

fn endless_like(number: u32) -> Request {
    Request { max_tokens: 1000, ..request(number) }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// The smallest executor there is.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return value;
        }
        thread::park();
    }
}

#[test]
fn stream_is_read_by_a_task() {
    let server = serve(patient(), DriverOptions::default());
    let asked = request(9);
    let mut stream = server.handle().submit(asked.clone()).expect("taken");
    let id = stream.id();
    let mut transcript = Transcript::default();
    block_on(async {
        while let Some(event) = stream.next_event().await {
            transcript.take(event);
        }
        assert_eq!(stream.next_event().await, None);
    });
    check(&transcript.answers[&id], &alone(&mut here(|_| {}), &asked));
}

/// An engine that counts how often its driver comes by.
struct Visited(Under, Arc<AtomicU64>);

impl EngineSource for Visited {
    fn with_engine(&mut self, work: &mut dyn FnMut(&mut dyn Engine)) -> Result<(), Status> {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.with_engine(work)
    }
}

/// An idle driver sleeps: its thread does not even look.
#[test]
fn idle_driver_does_nothing_at_all() {
    let visits = Arc::new(AtomicU64::new(0));
    let driver = Driver::new(Visited(fake(|_| {}), Arc::clone(&visits)), DriverOptions::default()).expect("a driver");
    let server = driver.serve().expect("a thread");
    let handle = server.handle();
    handle.submit(request(3)).expect("taken").for_each(drop);
    // The step that finds nothing to do, and the one before it.
    thread::sleep(Duration::from_millis(100));
    let before = visits.load(Ordering::Relaxed);
    thread::sleep(Duration::from_millis(300));
    assert_eq!(visits.load(Ordering::Relaxed), before, "it sleeps");
    handle.submit(request(4)).expect("taken").for_each(drop);
    assert!(visits.load(Ordering::Relaxed) > before, "it wakes up");
}
