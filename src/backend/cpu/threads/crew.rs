//! One job after another: tasks that are claimed one by one, and the count of those that are done.
//!
//! ```text
//!  63 .. 32   31 .. 0
//! [ tasks ] [  next  ]      a claim adds one; it holds if `next` was below `tasks`
//! ```
//! The caller writes the call and stores the word; whoever finds it open claims tasks until there are none, and adds how many it did to
//! `done`, once. The job has ended when all tasks are claimed and done. There is nothing to join or to leave: who comes late claims
//! nothing.
//!
//! # Invariants
//! - The call is read only by who holds a claim, and written only when all claims of the last job are done.
//! - A claimed task is counted in `done`, panics included; tasks that a panic cancels are counted by who cancelled them.
//!
//! # Limits
//! Fewer than 2^31 tasks. A claim that fails adds one as well, which room is left for above `tasks`.

use core::any::Any;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, Thread};

use super::Patience;

/// The job and how far it is. Each line is written by others at other times.
pub(super) struct Crew {
    job: Line<Job>,
    done: Line<Done>,
    /// Who waits for the end, while it sleeps.
    caller: Mutex<Option<Thread>>,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

/// Apart from its neighbours: processors move pairs of lines of 64 bytes.
#[repr(align(128))]
struct Line<T>(T);

struct Job {
    word: AtomicU64,
    call: UnsafeCell<Call>,
}

/// A closure, and how to call it with a participant and a task.
#[derive(Clone, Copy)]
struct Call {
    data: *const (),
    call: unsafe fn(*const (), usize, usize),
}

struct Done {
    tasks: AtomicU32,
    caller_sleeps: AtomicBool,
    /// Whether `panic` holds one.
    panicked: AtomicBool,
}

impl Done {
    fn none() -> Self {
        Self { tasks: AtomicU32::new(0), caller_sleeps: AtomicBool::new(false), panicked: AtomicBool::new(false) }
    }
}

// SAFETY: the only part that is not safe to share is `call`:
// - it is written by `publish` alone, whose caller promises that the last job has ended: all its claims are done;
// - it is read by holders of a claim alone, who acquired the store of the word that came behind the write;
// - `data` points to a closure that is `Sync`, and is used under a claim only, which is done before the closure's borrow ends.
unsafe impl Sync for Crew {}
// SAFETY: as for `Sync`; nothing in it belongs to a certain thread.
unsafe impl Send for Crew {}

/// The task that a claim on this word is for, if it holds.
fn claimed(word: u64) -> Option<usize> {
    let (tasks, next) = (word >> 32, word & u64::from(u32::MAX));
    (next < tasks).then_some(next as usize)
}

impl Crew {
    pub(super) fn new() -> Self {
        unsafe fn nothing(_: *const (), _: usize, _: usize) {}
        let call = Call { data: core::ptr::null(), call: nothing };
        Self {
            job: Line(Job { word: AtomicU64::new(0), call: UnsafeCell::new(call) }),
            done: Line(Done::none()),
            caller: Mutex::new(None),
            panic: Mutex::new(None),
        }
    }

    /// Whether a job may have so many tasks.
    pub(super) fn takes(tasks: usize) -> bool {
        tasks < 1 << 31
    }

    /// Whether there are tasks that nobody has begun.
    pub(super) fn is_open(&self) -> bool {
        claimed(self.job.0.word.load(Ordering::SeqCst)).is_some()
    }

    /// Opens a job of `tasks` calls of `f`.
    ///
    /// # Safety
    /// - The last job has ended: [`Crew::finish`] has returned, or unwound.
    /// - `f` lives until `finish` of this job has.
    /// - [`Crew::takes`] so many tasks.
    pub(super) unsafe fn publish<F: Fn(usize, usize) + Sync>(&self, tasks: usize, f: &F) {
        /// # Safety
        /// - `data` points to an `F`.
        unsafe fn call<F: Fn(usize, usize)>(data: *const (), participant: usize, task: usize) {
            // SAFETY: by the promise of the caller.
            let f = unsafe { &*data.cast::<F>() };
            f(participant, task);
        }
        let Job { word, call: to } = &self.job.0;
        // SAFETY: the last job has ended, so nobody holds a claim, and nobody gets one before the store below.
        unsafe { *to.get() = Call { data: core::ptr::from_ref(f).cast(), call: call::<F> } };
        self.done.0.tasks.store(0, Ordering::Relaxed);
        word.store((tasks as u64) << 32, Ordering::SeqCst);
    }

    /// Does tasks until there are none to begin, and answers how many of the job are done by that.
    pub(super) fn work(&self, participant: usize) -> usize {
        let mut done = 0;
        while self.is_open() {
            let Some(task) = claimed(self.job.0.word.fetch_add(1, Ordering::AcqRel)) else { break };
            // SAFETY: this thread holds a claim that is not done yet, so the call is not written.
            let Call { data, call } = unsafe { *self.job.0.call.get() };
            // SAFETY: `data` is the closure that `call` was made for; it lives until this claim is done, and longer.
            let run = catch_unwind(AssertUnwindSafe(|| unsafe { call(data, participant, task) }));
            done += 1;
            if let Err(panic) = run {
                done += self.cancel();
                self.panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(panic);
                self.done.0.panicked.store(true, Ordering::SeqCst);
            }
        }
        done
    }

    /// As [`Crew::work`], for who is not the caller.
    pub(super) fn take_part(&self, participant: usize) {
        let done = self.work(participant);
        if done == 0 {
            return;
        }
        self.done.0.tasks.fetch_add(done as u32, Ordering::SeqCst);
        if self.done.0.caller_sleeps.load(Ordering::SeqCst) {
            let caller = self.caller.lock().unwrap_or_else(PoisonError::into_inner);
            caller.as_ref().inspect(|caller| caller.unpark());
        }
    }

    /// Takes back the tasks that nobody has begun, and answers how many they were.
    fn cancel(&self) -> usize {
        let word = self.job.0.word.swap(0, Ordering::AcqRel);
        claimed(word).map_or(0, |next| (word >> 32) as usize - next)
    }

    /// Waits until the participants beside the caller have done `tasks` tasks.
    ///
    /// # Panics
    /// When a task did.
    pub(super) fn finish(&self, tasks: usize) {
        let done = || self.done.0.tasks.load(Ordering::SeqCst) as usize >= tasks;
        let mut patience = Patience::new();
        while !done() {
            if !patience.spend() {
                self.sleep(done);
            }
        }
        if self.done.0.panicked.load(Ordering::SeqCst) {
            self.unwind();
        }
    }

    #[cold]
    fn unwind(&self) {
        self.done.0.panicked.store(false, Ordering::SeqCst);
        if let Some(panic) = self.panic.lock().unwrap_or_else(PoisonError::into_inner).take() {
            resume_unwind(panic);
        }
    }

    #[cold]
    fn sleep(&self, done: impl Fn() -> bool) {
        *self.caller.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread::current());
        self.done.0.caller_sleeps.store(true, Ordering::SeqCst);
        while !done() {
            thread::park();
        }
        self.done.0.caller_sleeps.store(false, Ordering::SeqCst);
    }
}
