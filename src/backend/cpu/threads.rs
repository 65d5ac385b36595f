//! The threads of a backend: a fixed number, the caller's included.
//!
//! [`Threads::run`] hands out task numbers in ascending order to whoever is free. One word holds the state of a job:
//! ```text
//!  63 .. 32      31     30 .. 0
//! [generation] [open] [workers inside]
//! ```
//! The caller publishes a job by storing a new generation, open, nobody inside. A worker that sees it joins by adding one,
//! works until there are no tasks, and leaves. The caller works as well, closes the job, and waits until nobody is inside; a worker
//! that comes later finds it closed. So a job never waits for a thread that sleeps.
//!
//! # Invariants
//! - The job is written only while the word is closed with nobody inside, and read only by those inside.
//! - Which thread runs a task changes nothing of its result: tasks write places of their own.
//!
//! # Limits
//! A worker without work looks for [`SPINS`] rounds (tens of microseconds), then sleeps until the next job.

use core::any::Any;
use core::cell::{Cell, UnsafeCell};
use core::hint::spin_loop;
use core::marker::PhantomData;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle, Thread};

const OPEN: u64 = 1 << 31;
const INSIDE: u64 = OPEN - 1;
/// Rounds of looking before a thread sleeps.
const SPINS: u32 = 2000;

/// What the threads share for one job.
struct Job {
    /// The closure, and how to call it with a participant and a task.
    data: *const (),
    call: unsafe fn(*const (), usize, usize),
    tasks: usize,
    /// Who waits for the end.
    caller: Option<Thread>,
}

struct State {
    word: AtomicU64,
    job: UnsafeCell<Job>,
    next_task: AtomicUsize,
    caller_sleeps: AtomicBool,
    stop: AtomicBool,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    sleeping: Vec<AtomicBool>,
}

// SAFETY: the only part that is not safe to share is `job`:
// - it is written by the caller alone, while the word is closed with nobody inside;
// - it is read by the caller and by workers inside, who entered by a compare-exchange that acquired the store which opened the job;
// - `data` points to a closure that is `Sync`, and is used inside the job only, which ends before the closure's borrow does.
unsafe impl Sync for State {}
// SAFETY: as for `Sync`; nothing in it belongs to a certain thread.
unsafe impl Send for State {}

/// The threads. Not `Sync`: jobs come one after another, and a task cannot start one.
pub(super) struct Threads {
    state: Arc<State>,
    workers: Vec<JoinHandle<()>>,
    one_caller: PhantomData<Cell<()>>,
}

impl Threads {
    /// `count` threads, the caller being one of them, or as many as the system starts; at least one.
    pub(super) fn new(count: usize) -> Self {
        unsafe fn nothing(_: *const (), _: usize, _: usize) {}
        let others = count.saturating_sub(1);
        let state = Arc::new(State {
            word: AtomicU64::new(0),
            job: UnsafeCell::new(Job { data: core::ptr::null(), call: nothing, tasks: 0, caller: None }),
            next_task: AtomicUsize::new(0),
            caller_sleeps: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            panic: Mutex::new(None),
            sleeping: (0..others).map(|_| AtomicBool::new(false)).collect(),
        });
        let mut threads = Self { state, workers: Vec::with_capacity(others), one_caller: PhantomData };
        for index in 0..others {
            let state = Arc::clone(&threads.state);
            let builder = thread::Builder::new().name(format!("ictus-cpu-{index}"));
            match builder.spawn(move || state.work(index)) {
                Ok(worker) => threads.workers.push(worker),
                Err(_) => break,
            }
        }
        threads
    }

    /// How many there are, the caller included.
    pub(super) fn count(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `f(participant, task)` for each task below `tasks`, and returns when all are done.
    ///
    /// Participants are numbered below [`Threads::count`]; the caller is 0. No two tasks run at the same time as the same participant.
    ///
    /// # Panics
    /// When a task does, after the others have ended.
    pub(super) fn run<F: Fn(usize, usize) + Sync>(&self, tasks: usize, f: &F) {
        if tasks <= 1 || self.workers.is_empty() {
            (0..tasks).for_each(|task| f(0, task));
            return;
        }
        self.publish(tasks, f);
        let own = catch_unwind(AssertUnwindSafe(|| self.state.tasks(0)));
        self.state.wait_until_left();
        let others = self.state.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(panic) = own.err().or(others) {
            resume_unwind(panic);
        }
    }

    fn publish<F: Fn(usize, usize) + Sync>(&self, tasks: usize, f: &F) {
        /// # Safety
        /// - `data` points to an `F`.
        unsafe fn call<F: Fn(usize, usize)>(data: *const (), participant: usize, task: usize) {
            // SAFETY: by the promise of the caller.
            let f = unsafe { &*data.cast::<F>() };
            f(participant, task);
        }
        let state = &*self.state;
        let job = Job { data: core::ptr::from_ref(f).cast(), call: call::<F>, tasks, caller: Some(thread::current()) };
        // SAFETY: the word is closed and nobody is inside: the last job waited for that, and only this thread opens one (not `Sync`).
        unsafe { *state.job.get() = job };
        state.next_task.store(0, Ordering::Relaxed);
        let generation = (state.word.load(Ordering::Relaxed) >> 32).wrapping_add(1);
        // Sequentially consistent with the load of `sleeping` below: a worker either sees this job before it sleeps, or is seen
        // to sleep.
        state.word.store(generation << 32 | OPEN, Ordering::SeqCst);
        let wanted = (tasks - 1).min(self.workers.len());
        for (worker, sleeping) in self.workers.iter().zip(&state.sleeping).take(wanted) {
            if sleeping.load(Ordering::SeqCst) {
                worker.thread().unpark();
            }
        }
    }
}

impl State {
    /// Runs tasks until there are none. Called by the caller and by workers inside.
    fn tasks(&self, participant: usize) {
        // SAFETY: a shared view of the job, which is not written while the job is open or anybody is inside.
        let Job { data, call, tasks, .. } = unsafe { &*self.job.get() };
        loop {
            let task = self.next_task.fetch_add(1, Ordering::Relaxed);
            if task >= *tasks {
                return;
            }
            // SAFETY: `data` is the closure that `call` was made for; it lives until the job has been left by all.
            unsafe { call(*data, participant, task) };
        }
    }

    /// Closes the job and waits for the workers inside.
    fn wait_until_left(&self) {
        // No task is given out any more, not even after a panic.
        self.next_task.store(usize::MAX / 2, Ordering::Relaxed);
        let mut word = self.word.fetch_and(!OPEN, Ordering::SeqCst);
        let mut spins = 0;
        while word & INSIDE != 0 {
            if spins < SPINS {
                spins += 1;
                spin_loop();
            } else {
                self.caller_sleeps.store(true, Ordering::SeqCst);
                if self.word.load(Ordering::SeqCst) & INSIDE != 0 {
                    thread::park();
                }
            }
            word = self.word.load(Ordering::SeqCst);
        }
        self.caller_sleeps.store(false, Ordering::Relaxed);
    }

    /// The life of a worker.
    fn work(&self, index: usize) {
        let mut done = 0;
        while let Some(generation) = self.join(index, done) {
            done = generation;
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| self.tasks(index + 1))) {
                self.next_task.store(usize::MAX / 2, Ordering::Relaxed);
                self.panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(panic);
            }
            self.leave();
        }
    }

    fn leave(&self) {
        // SAFETY: this thread is inside still, so the job is not written.
        let caller = unsafe { (*self.job.get()).caller.clone() };
        let word = self.word.fetch_sub(1, Ordering::SeqCst);
        if word & OPEN == 0 && word & INSIDE == 1 && self.caller_sleeps.load(Ordering::SeqCst) {
            caller.inspect(Thread::unpark);
        }
    }

    /// Waits for an open job of another generation than `done` and enters it; none when the threads stop.
    fn join(&self, index: usize, done: u64) -> Option<u64> {
        let mut spins = 0;
        loop {
            if self.stop.load(Ordering::SeqCst) {
                return None;
            }
            let word = self.word.load(Ordering::SeqCst);
            let generation = word >> 32;
            if word & OPEN != 0 && generation != done {
                let entered = self.word.compare_exchange_weak(word, word + 1, Ordering::SeqCst, Ordering::SeqCst);
                if entered.is_ok() {
                    return Some(generation);
                }
            } else if spins < SPINS {
                spins += 1;
                spin_loop();
            } else {
                self.sleep(index, word);
                spins = 0;
            }
        }
    }

    /// Sleeps unless something has happened since the word was `seen`.
    fn sleep(&self, index: usize, seen: u64) {
        let Some(sleeping) = self.sleeping.get(index) else { return };
        sleeping.store(true, Ordering::SeqCst);
        while self.word.load(Ordering::SeqCst) >> 32 == seen >> 32 && !self.stop.load(Ordering::SeqCst) {
            thread::park();
        }
        sleeping.store(false, Ordering::SeqCst);
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.state.stop.store(true, Ordering::SeqCst);
        for worker in self.workers.drain(..) {
            worker.thread().unpark();
            // A worker catches the panics of its tasks, so it ends in order.
            let _ = worker.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_once_whatever_the_number_of_threads() {
        for count in [0, 1, 2, 3, 8] {
            let threads = Threads::new(count);
            assert_eq!(threads.count(), count.max(1));
            for tasks in [0, 1, 2, 3, 7, 100, 1000] {
                let runs: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
                threads.run(tasks, &|participant: usize, task: usize| {
                    assert!(participant < count.max(1));
                    runs[task].fetch_add(1, Ordering::Relaxed);
                });
                assert!(runs.iter().all(|runs| runs.load(Ordering::Relaxed) == 1), "{count} {tasks}");
            }
        }
    }

    #[test]
    fn no_participant_runs_two_tasks_at_a_time() {
        let threads = Threads::new(4);
        let inside: Vec<AtomicBool> = (0..4).map(|_| AtomicBool::new(false)).collect();
        for _ in 0..200 {
            threads.run(20, &|participant: usize, _: usize| {
                assert!(!inside[participant].swap(true, Ordering::SeqCst));
                spin_loop();
                inside[participant].store(false, Ordering::SeqCst);
            });
        }
    }

    #[test]
    fn jobs_after_a_pause_find_sleeping_threads_again() {
        let threads = Threads::new(3);
        for pause_ms in [0, 1, 20, 0, 20] {
            std::thread::sleep(std::time::Duration::from_millis(pause_ms));
            let done = AtomicUsize::new(0);
            threads.run(3, &|_: usize, _: usize| {
                std::thread::sleep(std::time::Duration::from_millis(2));
                done.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(done.load(Ordering::Relaxed), 3);
        }
    }

    #[test]
    fn a_panic_reaches_the_caller_after_the_others_have_ended() {
        let threads = Threads::new(3);
        for bad in [0, 1, 5, 19] {
            let inside = AtomicUsize::new(0);
            let run = catch_unwind(AssertUnwindSafe(|| {
                threads.run(20, &|_: usize, task: usize| {
                    inside.fetch_add(1, Ordering::SeqCst);
                    std::thread::sleep(std::time::Duration::from_micros(50));
                    inside.fetch_sub(1, Ordering::SeqCst);
                    assert!(task != bad, "task {task}");
                });
            }));
            assert!(run.is_err());
            assert_eq!(inside.load(Ordering::SeqCst), 0, "nobody works on");
            threads.run(20, &|_: usize, _: usize| {});
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn idle_threads_use_no_time() {
        let ticks = || {
            // User and system time of the threads of this name, in ticks of a hundredth of a second.
            let tasks = std::fs::read_dir("/proc/self/task").unwrap();
            let stats = tasks.filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("stat")).ok());
            let mine = stats.filter(|stat| stat.contains("(ictus-cpu-12)"));
            mine.map(|stat| {
                let fields: Vec<u64> = stat
                    .rsplit(')')
                    .next()
                    .unwrap()
                    .split_whitespace()
                    .skip(11)
                    .take(2)
                    .map(|x| x.parse().unwrap())
                    .collect();
                fields[0] + fields[1]
            })
            .sum::<u64>()
        };
        // The thirteenth worker: other tests have fewer.
        let threads = Threads::new(14);
        threads.run(100, &|_: usize, _: usize| spin_loop());
        std::thread::sleep(std::time::Duration::from_millis(50));
        let before = ticks();
        std::thread::sleep(std::time::Duration::from_millis(300));
        assert!(ticks() <= before + 1, "an idle worker works");
    }
}
