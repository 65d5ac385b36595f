//! The threads of a backend: a fixed number of its own, the caller's included, or those that a host lends.
//!
//! [`Threads::run`] hands out task numbers in ascending order to whoever is free. [`Crew`] holds the job; who takes part in it differs:
//! ```text
//! own     the caller and workers, who look for a job for a moment and then sleep        Threads, Workers
//! host    what the host's parallel-for calls; the caller does what they leave           HostThreads
//! ```
//! # Invariants
//! - A job waits for tasks that somebody has begun, never for a thread that has none: one that sleeps, or that the system does not
//!   schedule, holds nobody up.
//! - Which thread runs a task changes nothing of its result: tasks write places of their own.
//! - No more workers are awake than there are processors beside the caller's: more threads than processors only take turns.
//!
//! # Limits
//! A worker without work looks [`SPINS`] times, gives its processor away [`YIELDS`] times, then sleeps until the next job: less than a
//! tenth of a millisecond. No thread is bound to a processor.

mod crew;
mod host;
#[cfg(test)]
mod tests;

pub use host::HostThreads;
pub(crate) use host::Lent;

use core::cell::Cell;
use core::hint::spin_loop;
use core::marker::PhantomData;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use self::crew::Crew;

/// Rounds of looking before a thread gives its processor away.
const SPINS: u32 = 400;
/// Times it does so before it sleeps.
const YIELDS: u32 = 60;

/// The threads. Not `Sync`: jobs come one after another, and a task cannot start one.
pub(super) struct Threads {
    who: Who,
    one_caller: PhantomData<Cell<()>>,
}

enum Who {
    Own { shared: Arc<Workers>, handles: Vec<JoinHandle<()>> },
    Host { host: HostThreads, lent: Arc<Lent> },
}

/// What the workers share.
struct Workers {
    crew: Crew,
    sleepers: AtomicUsize,
    sleeping: Vec<AtomicBool>,
    stop: AtomicBool,
    /// Most workers that are woken.
    most_awake: usize,
}

impl Threads {
    /// `count` threads, the caller being one of them, or as many as the system starts; at least one.
    pub(super) fn new(count: usize) -> Self {
        let processors = thread::available_parallelism().map_or(1, usize::from);
        Self::with_most_awake(count, processors.saturating_sub(1))
    }

    fn with_most_awake(count: usize, most_awake: usize) -> Self {
        let others = count.saturating_sub(1);
        let shared = Arc::new(Workers {
            crew: Crew::new(),
            sleepers: AtomicUsize::new(0),
            sleeping: (0..others).map(|_| AtomicBool::new(false)).collect(),
            stop: AtomicBool::new(false),
            most_awake,
        });
        let mut handles = Vec::with_capacity(others);
        for index in 0..others {
            let shared = Arc::clone(&shared);
            let builder = thread::Builder::new().name(format!("ictus-cpu-{index}"));
            match builder.spawn(move || shared.serve(index)) {
                Ok(handle) => handles.push(handle),
                Err(_) => break,
            }
        }
        Self { who: Who::Own { shared, handles }, one_caller: PhantomData }
    }

    /// The threads of a host, `count` at a time.
    pub(super) fn of_host(count: usize, host: HostThreads) -> Self {
        let lent = Arc::new(Lent::new(count.max(1)));
        Self { who: Who::Host { host, lent }, one_caller: PhantomData }
    }

    /// How many participants there may be, the caller included.
    pub(super) fn count(&self) -> usize {
        match &self.who {
            Who::Own { handles, .. } => handles.len() + 1,
            Who::Host { lent, .. } => lent.calls() + 1,
        }
    }

    /// How many work at a time: no more of our own threads than there are processors. Work is cut for so many: in smaller parts, more would
    /// be lost at the edges of parts, and nobody more would take them.
    pub(super) fn working(&self) -> usize {
        match &self.who {
            Who::Own { shared, handles } => handles.len().min(shared.most_awake) + 1,
            Who::Host { .. } => self.count(),
        }
    }

    /// What the host's parallel-for did that it may not do; none of threads of our own.
    pub(super) fn breach(&self) -> Option<&'static str> {
        match &self.who {
            Who::Own { .. } => None,
            Who::Host { lent, .. } => lent.breach(),
        }
    }

    /// Calls `f(participant, task)` for each task below `tasks`, and returns when all are done.
    ///
    /// Participants are numbered below [`Threads::count`]; the caller is 0. No two tasks run at the same time as the same participant.
    ///
    /// # Panics
    /// When a task does, after the others have ended.
    pub(super) fn run<F: Fn(usize, usize) + Sync>(&self, tasks: usize, f: &F) {
        match &self.who {
            Who::Own { shared, handles } if tasks > 1 && !handles.is_empty() && Crew::takes(tasks) => {
                shared.run(handles, tasks, f);
            }
            Who::Host { host, lent } if tasks > 1 && Crew::takes(tasks) && lent.breach().is_none() => {
                lent.run(host, tasks, f);
            }
            _ => (0..tasks).for_each(|task| f(0, task)),
        }
    }
}

impl Workers {
    fn run<F: Fn(usize, usize) + Sync>(&self, handles: &[JoinHandle<()>], tasks: usize, f: &F) {
        // SAFETY:
        // - `Threads` is not `Sync` and a task has no way to it, so jobs come one after another;
        // - `finish` is called below, before `f` is gone.
        unsafe { self.crew.publish(tasks, f) };
        // A worker either sees the job before it sleeps, or is seen to sleep: both orders are sequentially consistent.
        let sleepers = self.sleepers.load(Ordering::SeqCst);
        if sleepers > 0 {
            let awake = handles.len().saturating_sub(sleepers);
            self.wake(handles, (tasks - 1).min(self.most_awake).saturating_sub(awake));
        }
        let own = self.crew.work(0);
        self.crew.finish(tasks - own);
    }

    #[cold]
    fn wake(&self, handles: &[JoinHandle<()>], count: usize) {
        let asleep = handles.iter().zip(&self.sleeping).filter(|(_, sleeping)| sleeping.load(Ordering::SeqCst));
        asleep.take(count).for_each(|(handle, _)| handle.thread().unpark());
    }

    /// The life of a worker.
    fn serve(&self, index: usize) {
        while self.wait_for_work(index) {
            self.crew.take_part(index + 1);
        }
    }

    /// Waits for a job with tasks that nobody has begun; false when the threads stop.
    fn wait_for_work(&self, index: usize) -> bool {
        let mut patience = Patience::new();
        loop {
            if self.crew.is_open() {
                return true;
            }
            if self.stop.load(Ordering::Relaxed) {
                return false;
            }
            if !patience.spend() {
                self.sleep(index);
                patience = Patience::new();
            }
        }
    }

    /// Sleeps until there is a job, or the end.
    fn sleep(&self, index: usize) {
        let Some(sleeping) = self.sleeping.get(index) else { return };
        sleeping.store(true, Ordering::SeqCst);
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        while !self.crew.is_open() && !self.stop.load(Ordering::SeqCst) {
            thread::park();
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
        sleeping.store(false, Ordering::SeqCst);
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        let Who::Own { shared, handles } = &mut self.who else { return };
        shared.stop.store(true, Ordering::SeqCst);
        for handle in handles.drain(..) {
            handle.thread().unpark();
            // A worker catches the panics of its tasks, so it ends in order.
            let _ = handle.join();
        }
    }
}

/// How long a thread waits awake: it looks, then lets others run in between, then gives up.
struct Patience(u32);

impl Patience {
    fn new() -> Self {
        Self(0)
    }

    /// Spends a moment; false when there is no patience left.
    fn spend(&mut self) -> bool {
        self.0 += 1;
        match self.0 {
            ..=SPINS => spin_loop(),
            // On a processor that others want, this is what lets them finish what is waited for.
            _ if self.0 <= SPINS + YIELDS => thread::yield_now(),
            _ => return false,
        }
        true
    }
}
