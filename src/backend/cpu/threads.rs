//! A small pool of threads for one operation after another.
//!
//! The caller publishes an operation of `parts` independent parts; it and the workers claim part after part until none is left.
//! Workers wait for the next operation with a short spin, since operations follow each other within microseconds, and then sleep: an idle
//! pool uses no processor.
//!
//! # Invariants
//! - [`Pool::run`] returns only when every part has run and no worker holds the operation any more.
//! - Which thread runs a part is not determined, so parts must not depend on it; results never do, because a part writes only its own
//!   outputs.
//! - A panic in a part reaches the caller after the others have finished.

use std::cell::Cell;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// Turns of the spin before a worker sleeps: some tens of microseconds.
const SPINS: u32 = 3000;

/// An operation whose lifetime was erased; see [`Pool::run`].
#[derive(Clone, Copy)]
struct Operation(*const (dyn Fn(usize) + Sync));

// SAFETY: the pointer is only followed while `Pool::run` keeps the closure borrowed, and the closure is `Sync`.
unsafe impl Send for Operation {}

struct State {
    /// Counts operations; a worker has seen all up to its own number.
    number: usize,
    operation: Option<Operation>,
    parts: usize,
    sleepers: usize,
    stopping: bool,
}

struct Shared {
    state: Mutex<State>,
    wake: Condvar,
    /// Mirrors `State::number`, for spinning without the lock.
    number: AtomicUsize,
    /// The next part to claim.
    next: AtomicUsize,
    /// Workers that have not finished the current operation.
    busy: AtomicUsize,
    panicked: AtomicBool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing under the lock can panic, so a poisoned state is a whole one.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The caller's thread and its workers. Not `Sync`: operations come from one thread at a time.
pub(super) struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    one_caller: PhantomData<Cell<()>>,
}

impl Pool {
    /// A pool of `threads` threads, the caller's among them. Where the system refuses a thread there are fewer.
    pub(super) fn new(threads: usize) -> Self {
        let state = State { number: 0, operation: None, parts: 0, sleepers: 0, stopping: false };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            wake: Condvar::new(),
            number: AtomicUsize::new(0),
            next: AtomicUsize::new(0),
            busy: AtomicUsize::new(0),
            panicked: AtomicBool::new(false),
        });
        let spawn = |index| {
            let shared = Arc::clone(&shared);
            std::thread::Builder::new().name(format!("ictus-cpu-{index}")).spawn(move || work(&shared)).ok()
        };
        let workers = (1..threads.max(1)).map_while(spawn).collect();
        Self { shared, workers, one_caller: PhantomData }
    }

    /// Number of threads.
    pub(super) fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Runs `operation(part)` once for every part below `parts`.
    pub(super) fn run(&self, parts: usize, operation: &(dyn Fn(usize) + Sync)) {
        if self.workers.is_empty() || parts <= 1 {
            return (0..parts).for_each(operation);
        }
        // SAFETY: only the lifetime changes. The pointer is followed by `claim_all` alone, and this function does not return,
        // nor unwind, before `busy` says that every worker is done with it.
        let erased = Operation(unsafe {
            core::mem::transmute::<*const (dyn Fn(usize) + Sync + '_), *const (dyn Fn(usize) + Sync + 'static)>(
                operation,
            )
        });
        self.publish(erased, parts);
        let own = catch_unwind(AssertUnwindSafe(|| claim_all(&self.shared, erased, parts)));
        let mut turns = 0u32;
        while self.shared.busy.load(Ordering::Acquire) > 0 {
            turns += 1;
            // A worker may have lost its processor: leave it ours.
            if turns > SPINS { std::thread::yield_now() } else { std::hint::spin_loop() }
        }
        let theirs = self.shared.panicked.swap(false, Ordering::Relaxed);
        if let Err(panic) = own {
            resume_unwind(panic);
        }
        assert!(!theirs, "a part of an operation panicked in a worker");
    }

    fn publish(&self, operation: Operation, parts: usize) {
        let shared = &self.shared;
        shared.next.store(0, Ordering::Relaxed);
        shared.busy.store(self.workers.len(), Ordering::Relaxed);
        let mut state = shared.lock();
        state.operation = Some(operation);
        state.parts = parts;
        state.number = state.number.wrapping_add(1);
        shared.number.store(state.number, Ordering::Release);
        if state.sleepers > 0 {
            shared.wake.notify_all();
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.lock().stopping = true;
        self.shared.number.fetch_add(1, Ordering::Release);
        self.shared.wake.notify_all();
        for worker in self.workers.drain(..) {
            // A worker catches every panic, so joining cannot fail.
            let _ = worker.join();
        }
    }
}

fn claim_all(shared: &Shared, operation: Operation, parts: usize) {
    // SAFETY: `Pool::run` keeps the closure alive until this thread has said that it is done.
    let operation = unsafe { &*operation.0 };
    loop {
        let part = shared.next.fetch_add(1, Ordering::Relaxed);
        if part >= parts {
            return;
        }
        operation(part);
    }
}

/// The life of a worker.
fn work(shared: &Shared) {
    let mut seen = 0;
    while let Some((number, operation, parts)) = await_operation(shared, seen) {
        seen = number;
        if catch_unwind(AssertUnwindSafe(|| claim_all(shared, operation, parts))).is_err() {
            shared.panicked.store(true, Ordering::Relaxed);
        }
        shared.busy.fetch_sub(1, Ordering::Release);
    }
}

/// The operation after number `seen`; none when the pool is dropped.
fn await_operation(shared: &Shared, seen: usize) -> Option<(usize, Operation, usize)> {
    for _ in 0..SPINS {
        if shared.number.load(Ordering::Acquire) != seen {
            break;
        }
        std::hint::spin_loop();
    }
    let mut state = shared.lock();
    loop {
        if state.stopping {
            return None;
        }
        if let (true, Some(operation)) = (state.number != seen, state.operation) {
            return Some((state.number, operation, state.parts));
        }
        state.sleepers += 1;
        state = shared.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
        state.sleepers -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_runs_once_for_any_number_of_threads() {
        for threads in [1, 2, 3, 5] {
            let pool = Pool::new(threads);
            for parts in [0, 1, 2, 7, 100] {
                let counts: Vec<AtomicUsize> = (0..parts).map(|_| AtomicUsize::new(0)).collect();
                pool.run(parts, &|part| {
                    counts[part].fetch_add(1, Ordering::Relaxed);
                });
                assert!(
                    counts.iter().all(|count| count.load(Ordering::Relaxed) == 1),
                    "{threads} threads, {parts} parts"
                );
            }
        }
    }

    #[test]
    fn pool_that_slept_wakes_for_the_next_operation() {
        let pool = Pool::new(3);
        let sum = AtomicUsize::new(0);
        for _ in 0..3 {
            std::thread::sleep(std::time::Duration::from_millis(5));
            pool.run(10, &|part| {
                sum.fetch_add(part, Ordering::Relaxed);
            });
        }
        assert_eq!(sum.into_inner(), 3 * 45);
    }

    #[test]
    fn panic_in_a_part_reaches_the_caller_and_the_pool_goes_on() {
        let pool = Pool::new(2);
        for _ in 0..2 {
            let panicked = catch_unwind(AssertUnwindSafe(|| {
                pool.run(50, &|part| assert!(part != 20, "planted"));
            }));
            assert!(panicked.is_err());
        }
        let ran = AtomicUsize::new(0);
        pool.run(8, &|_| {
            ran.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(ran.into_inner(), 8);
    }
}
