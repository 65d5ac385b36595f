//! A tick in the steady state allocates nothing over the link: on the worker's side, from the frame to the reply, nor on the host's.
//!
//! The global allocator of this test counts, per role: the worker is a thread of this process, the host is the test. This file holds one
//! test, so nobody else's allocations are counted.
#![cfg(all(feature = "worker", target_os = "linux"))]

use core::ffi::c_void;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use ictus::engine::Engine;
use ictus::executor::Executor;
use ictus::record::LaneAdmit;
use ictus::record::constant::{sampling, tick_flag};
use ictus::testing::{FreeRuntime, Harness};
use ictus::worker::client::{Peer, RemoteEngine, RemoteOptions};
use ictus::worker::server::{ServerOptions, WorkerServer};
use ictus::worker::socket::pair;

const HOST: usize = 1;
const WORKER: usize = 2;

struct Counting;

static CALLS: [AtomicU64; 3] = [const { AtomicU64::new(0) }; 3];
static BYTES: [AtomicU64; 3] = [const { AtomicU64::new(0) }; 3];

thread_local! {
    static ROLE: Cell<usize> = const { Cell::new(0) };
}

fn count(bytes: usize) {
    let role = ROLE.try_with(Cell::get).unwrap_or(0);
    CALLS[role].fetch_add(1, Ordering::SeqCst);
    BYTES[role].fetch_add(bytes as u64, Ordering::SeqCst);
}

// SAFETY: every call is passed on to the system's allocator unchanged; counting touches no memory it hands out, and allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller's promise, passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise, passed on.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count(new_size);
        // SAFETY: the caller's promise, passed on.
        unsafe { System.realloc(pointer, layout, new_size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Allocations of host and worker since the program began.
fn calls() -> [u64; 2] {
    [HOST, WORKER].map(|role| CALLS[role].load(Ordering::SeqCst))
}

fn since(before: [u64; 2]) -> [u64; 2] {
    let now = calls();
    [now[0] - before[0], now[1] - before[1]]
}

/// A worker on a thread of this process.
fn remote() -> RemoteEngine {
    let launch = || {
        let (frames, their_frames) = pair()?;
        let (descriptors, their_descriptors) = pair()?;
        std::thread::spawn(move || {
            ROLE.set(WORKER);
            let engine = Box::new(Executor::new(FreeRuntime::new(64)));
            let served =
                WorkerServer::new(engine, ServerOptions::new(8192, 64), their_frames, their_descriptors).serve();
            served.expect("the host goes in good order");
        });
        Ok(Peer { frames, descriptors, process: None })
    };
    RemoteEngine::start(launch, RemoteOptions::default()).expect("started")
}

/// Hears tokens and forgets them.
unsafe extern "C" fn hear(_: *mut c_void, _: u64, _: *const u32, _: u32) {}

/// Allocations of 48 decode ticks with so many lanes of every kind, after they have warmed up.
fn decoding(lanes: u64, flags: u32) -> [u64; 2] {
    let kinds: [fn(&mut LaneAdmit); 4] = [
        |_| {},
        |admit| {
            admit.sampling = sampling::GPU_GUMBEL;
            admit.params.temperature = 0.9;
        },
        |admit| admit.params.repeat_penalty = 1.3,
        |admit| admit.want_logprobs = 4,
    ];
    let mut host = Harness::with_engine(remote()).with_max_decode_lanes(lanes as u32);
    for (tag, kind) in (1..=lanes).zip(kinds.into_iter().cycle()) {
        let prompt = host.prompt(&[1, 2, 3, 4, 5]);
        let plan = host.plan().admit_with(kind, tag, prompt).prefill(tag, 0, 5);
        host.tick_ok(plan);
    }
    let plan = (1..=lanes).fold(host.plan(), |plan, lane| plan.decode(lane, 2)).flags(flags);
    let plan = if flags == 0 { plan } else { plan.partial_emit(hear, core::ptr::null_mut()) };
    let (mut plan, arena) = plan.build();
    let mut before = calls();
    // What the host knows of a lane lies in a list that doubles at 160 and at 320 tokens: the ticks counted run from 169 to 265.
    for tick in 0..130 {
        if tick == 82 {
            before = calls();
        }
        plan.plan_seq += 1;
        let events = host.engine.tick(&plan, &arena, &mut host.rings).expect("the plan is good");
        assert_eq!(events.emits.len() as u64, lanes);
        assert!(events.emits.iter().all(|emit| emit.n_tokens == 2));
    }
    since(before)
}

/// Bytes that host and worker take for the admission of one more prompt of so many tokens, in tokens.
fn admission(len: u32) -> [u64; 2] {
    let mut host = Harness::with_engine(remote());
    let prompt: Vec<u32> = (0..len).map(|n| n % 64).collect();
    let mut taken = [0; 2];
    for tag in 1..6 {
        let staged = host.prompt(&prompt);
        let plan = host.plan().admit(tag, staged).prefill(tag, 0, 1);
        let (plan, arena) = plan.build();
        let before = [HOST, WORKER].map(|role| BYTES[role].load(Ordering::SeqCst));
        host.engine.tick(&plan, &arena, &mut host.rings).expect("the plan is good");
        taken = [0, 1].map(|at| (BYTES[[HOST, WORKER][at]].load(Ordering::SeqCst) - before[at]) / 4);
    }
    taken
}

#[test]
fn decoding_ticks_allocate_nothing_on_either_side() {
    ROLE.set(HOST);
    // The counter counts: a list that grows is seen.
    let before = calls();
    drop(std::hint::black_box(vec![1u8; 100]));
    assert_eq!(since(before), [1, 0]);

    for (lanes, flags) in [(1, 0), (64, 0), (4, tick_flag::PARTIAL_EMITS)] {
        let counted = decoding(lanes, flags);
        assert_eq!(counted, [0, 0], "host and worker, {lanes} lanes, flags {flags}");
    }

    // A prompt is read once out of the ring, straight into the list that is looked at, and is the lane's from then on.
    let [host, worker] = admission(4000);
    println!("a prompt of 4000 tokens: the host takes {host} tokens of memory, the worker {worker}");
    assert!(
        worker < 2 * 4000 + 1000,
        "the lane's own list, which has room for an answer as long, and nothing beside it: {worker}"
    );
    assert!(host < 4000 + 1000, "what the lane can begin again from: {host}");
}
