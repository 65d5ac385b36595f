//! Threads that a host lends: its own parallel-for runs the calls of a job.
//!
//! Each call does tasks until there are none, so it does not matter how the host spreads its calls: one thread may run them all, one
//! after another. What a host may not do is counted, per call:
//! ```text
//! IDLE --job--> ARMED --call begins--> RUNNING --call ends--> DONE --job ends--> IDLE       every other step is a breach
//! ```
//! # Invariants
//! - Whatever the host does, every task is done once, and before `run` returns: tasks that nobody begins are the caller's, and those that
//!   were begun are waited for.
//! - After a breach the host is not asked again; the caller works alone, and [`Lent::breach`] says why.

use core::sync::atomic::{AtomicU8, Ordering};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};

use super::crew::Crew;

const IDLE: u8 = 0;
const ARMED: u8 = 1;
const RUNNING: u8 = 2;
const DONE: u8 = 3;

/// Calls that are there at a time, and runs them with `f`.
type Run = dyn Fn(usize, &Arc<Lent>) + Send + Sync;

/// Threads of the host, in place of the engine's own.
///
/// Equal to its clones only.
#[derive(Clone)]
pub struct HostThreads(Arc<Run>);

impl HostThreads {
    /// Threads that `parallel_for(calls, call)` reaches: it calls `call(index)` once for each index below `calls`, on whichever of its
    /// threads, the calling one among them or not, and returns when all these calls have returned.
    ///
    /// It is called several times per layer of a model, on the thread that ticks, with at most as many calls as the model has threads
    /// ([`ModelOptions::threads`](crate::ModelOptions::threads)). A call takes microseconds to milliseconds and does not block. Results do
    /// not depend on who runs it. Leaving a call out, running one twice, returning before they have, or panicking makes the tick fatal.
    ///
    /// ```
    /// let scoped = ictus::HostThreads::new(|calls, call| {
    ///     std::thread::scope(|scope| (0..calls).for_each(|index| drop(scope.spawn(move || call(index)))));
    /// });
    /// let options = ictus::ModelOptions { threads: 2, host_threads: Some(scoped), ..Default::default() };
    /// # let model = ictus::Model::open("models/ictus-tiny.gguf", &options)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn new(parallel_for: impl Fn(usize, &(dyn Fn(usize) + Sync)) + Send + Sync + 'static) -> Self {
        Self::lending(move |calls, lent| parallel_for(calls, &|index| lent.call(index)))
    }

    /// As [`HostThreads::new`], for a host that keeps what it was given: `lent` may be called at any time while somebody holds it.
    pub(crate) fn lending(run: impl Fn(usize, &Arc<Lent>) + Send + Sync + 'static) -> Self {
        Self(Arc::new(run))
    }
}

impl core::fmt::Debug for HostThreads {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("HostThreads")
    }
}

impl PartialEq for HostThreads {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for HostThreads {}

/// The calls that a host is lent, and what it has done with them.
pub(crate) struct Lent {
    crew: Crew,
    calls: Vec<AtomicU8>,
    breach: OnceLock<&'static str>,
}

impl Lent {
    pub(super) fn new(calls: usize) -> Self {
        let calls = (0..calls).map(|_| AtomicU8::new(IDLE)).collect();
        Self { crew: Crew::new(), calls, breach: OnceLock::new() }
    }

    /// Most calls of a job.
    pub(super) fn calls(&self) -> usize {
        self.calls.len()
    }

    /// What the host did first that it may not do.
    pub(super) fn breach(&self) -> Option<&'static str> {
        self.breach.get().copied()
    }

    fn note(&self, breach: &'static str) {
        let _ = self.breach.set(breach);
    }

    /// Runs a job; the host has broken no rule so far. The caller is participant 0, a call the one of its index plus 1.
    pub(super) fn run<F: Fn(usize, usize) + Sync>(self: &Arc<Self>, host: &HostThreads, tasks: usize, f: &F) {
        let calls = self.calls.get(..tasks.min(self.calls.len())).unwrap_or_default();
        calls.iter().for_each(|call| call.store(ARMED, Ordering::Relaxed));
        // SAFETY:
        // - `Threads` is not `Sync` and a task has no way to it, so jobs come one after another;
        // - `finish` is called below, before `f` is gone; nothing in between unwinds.
        unsafe { self.crew.publish(tasks, f) };
        if catch_unwind(AssertUnwindSafe(|| (host.0)(calls.len(), self))).is_err() {
            self.note("the host's parallel-for panicked");
        }
        for call in calls {
            match call.compare_exchange(DONE, IDLE, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => {}
                Err(RUNNING) => self.note("the host's parallel-for returned before a call had"),
                Err(_) => {
                    // The call may begin at this moment, which is as late as after this.
                    let _ = call.compare_exchange(ARMED, IDLE, Ordering::AcqRel, Ordering::Acquire);
                    self.note("the host's parallel-for left a call out");
                }
            }
        }
        let own = self.crew.work(0);
        self.crew.finish(tasks - own);
    }

    /// A call of the host: does tasks until there are none. At any time, from any thread, with any index: what is not allowed does
    /// nothing but be noted.
    pub(crate) fn call(&self, index: usize) {
        let Some(call) = self.calls.get(index) else {
            return self.note("the host's parallel-for made a call that it was not given");
        };
        match call.compare_exchange(ARMED, RUNNING, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => {
                self.crew.take_part(index + 1);
                call.store(DONE, Ordering::Release);
            }
            Err(IDLE) => self.note("the host made a call outside its parallel-for"),
            Err(_) => self.note("the host's parallel-for made a call twice"),
        }
    }
}
