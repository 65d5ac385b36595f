#![forbid(unsafe_code)]
//! Waiting as a value: a future, a blocking form, and a descriptor to poll.

use std::future::Future;
use std::io::PipeReader;
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use super::refusal::{Bad, Refusal};
use super::shared::Shared;
use super::ticket::Ticket;

/// Waits until a domain that a ticket watches has moved, the core shuts down, or its books are poisoned.
///
/// It grants nothing: whoever it wakes asks the real question again. Single-use; dropping it deregisters at once.
#[derive(Debug)]
#[must_use = "a wait that is dropped waits for nothing"]
pub struct Wait {
    shared: Arc<Shared>,
    /// The registration; none once it has answered.
    place: Option<usize>,
}

impl Wait {
    pub(super) const fn new(shared: Arc<Shared>, place: usize) -> Self {
        Self { shared, place: Some(place) }
    }

    /// The answer, if there is one; else this waker is woken when there is.
    fn ask(&mut self, waker: Waker) -> Option<Result<Ticket, Refusal>> {
        let Some(place) = self.place else { return Some(Err(Bad::Stale.into())) };
        let mut waker = Some(waker);
        let answer = self.shared.waiter(|inner| inner.answer(place, &mut waker));
        if answer.is_some() {
            self.place = None;
        }
        answer
    }

    /// Blocks this thread until there is news; answers a fresh ticket, or none when the time is over first.
    ///
    /// # Errors
    /// `Closed`, `Poisoned`.
    pub fn block(mut self, timeout: Option<Duration>) -> Result<Option<Ticket>, Refusal> {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let parked = Arc::new(Parked { thread: std::thread::current(), woken: AtomicBool::new(false) });
        loop {
            parked.woken.store(false, Ordering::Release);
            if let Some(answer) = self.ask(Waker::from(Arc::clone(&parked))) {
                return answer.map(Some);
            }
            while !parked.woken.load(Ordering::Acquire) {
                match deadline.map(|deadline| deadline.saturating_duration_since(Instant::now())) {
                    None => std::thread::park(),
                    Some(Duration::ZERO) => return Ok(None),
                    Some(left) => std::thread::park_timeout(left),
                }
            }
        }
    }

    /// A descriptor that becomes readable when there is news, for hosts with an event loop of their own.
    ///
    /// # Errors
    /// The system has no descriptor left.
    pub fn descriptor(mut self) -> std::io::Result<WaitDescriptor> {
        let (reader, writer) = std::io::pipe()?;
        // Closing the writing end wakes: nothing is written, so nobody can be hit by a signal for a reader that is gone.
        let bell = Arc::new(Bell(Mutex::new(Some(writer))));
        let waker = Waker::from(bell);
        let early = self.ask(waker.clone());
        if early.is_some() {
            waker.wake();
        }
        Ok(WaitDescriptor { wait: self, reader, early })
    }
}

impl Future for Wait {
    type Output = Result<Ticket, Refusal>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.ask(context.waker().clone()) {
            Some(answer) => Poll::Ready(answer),
            None => Poll::Pending,
        }
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        if let Some(place) = self.place.take() {
            drop(self.shared.waiter(|inner| inner.forget(place)));
        }
    }
}

/// A thread that is parked, or about to be.
struct Parked {
    thread: Thread,
    woken: AtomicBool,
}

impl Wake for Parked {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.woken.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

/// The writing end of a pipe, closed to wake.
struct Bell(Mutex<Option<std::io::PipeWriter>>);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        drop(self.0.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
}

/// A wait with a descriptor that `poll` and its kin report (readable, or hung up) when there is news.
///
/// # Limits
/// A process that is forked without another program inherits the writing end, and with it delays the news until it ends.
#[derive(Debug)]
pub struct WaitDescriptor {
    wait: Wait,
    reader: PipeReader,
    early: Option<Result<Ticket, Refusal>>,
}

impl WaitDescriptor {
    /// The news, if there are any: a fresh ticket.
    ///
    /// # Errors
    /// `Closed`, `Poisoned`; `Stale` once it has answered.
    pub fn take(&mut self) -> Result<Option<Ticket>, Refusal> {
        if let Some(answer) = self.early.take() {
            return answer.map(Some);
        }
        let Some(place) = self.wait.place else { return Err(Bad::Stale.into()) };
        let answer = self.wait.shared.waiter(|inner| inner.look(place));
        if answer.is_some() {
            self.wait.place = None;
        }
        answer.transpose()
    }
}

impl AsFd for WaitDescriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.reader.as_fd()
    }
}
