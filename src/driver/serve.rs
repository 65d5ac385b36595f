#![forbid(unsafe_code)]
//! A driver on a thread of its own.
//!
//! ```text
//!   DriverHandle --submit, cancel--> mailbox --> thread: step, step, ... --> outbox --> TokenStream
//! ```
//! The thread takes what is in the mailbox before each step, and sleeps on it while there is nothing to do: an idle driver costs
//! nothing. Requests are checked, and their prompts encoded, on the thread that submits them.
//!
//! # Invariants
//! - Every stream gets its last event, also when the driver is stopped, its engine breaks, or a panic ends the thread.
//! - No lock is held while the engine runs.

use core::task::{Context, Poll};
use core::time::Duration;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use super::clock::Clock;
use super::event::{Event, EventKind, Failure, Finish};
use super::outbox::{Next, Outbox, Wanted};
use super::request::{Checked, Limits, Request, RequestId, SubmitError};
use super::scheduler::Progress;
use super::source::EngineSource;
use super::stepped::Driver;

/// How long a driver rests whose engine is held by others.
const STALLED_PAUSE: Duration = Duration::from_millis(1);

/// What the thread is told.
enum Command {
    Submit(RequestId, Box<Checked>, Duration),
    Cancel(RequestId),
}

#[derive(Default)]
struct Mailbox {
    commands: Vec<Command>,
    /// Submissions among the commands.
    submitted: usize,
    /// Requests that waited for a lane after the last step.
    waiting: usize,
    /// The driver shall end.
    stop: bool,
    /// Nobody reads the mailbox any more.
    ended: bool,
}

/// What the thread and the handles share.
struct Shared {
    mailbox: Mutex<Mailbox>,
    called: Condvar,
    outbox: Outbox,
    limits: Limits,
    queue_limit: usize,
    last_id: AtomicU64,
    clock: Arc<dyn Clock>,
}

impl core::fmt::Debug for Shared {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Shared").field("last_id", &self.last_id).finish_non_exhaustive()
    }
}

impl Shared {
    fn mailbox(&self) -> MutexGuard<'_, Mailbox> {
        // A push and a take are whole.
        self.mailbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn submit(&self, request: Request) -> Result<RequestId, SubmitError> {
        let checked = Box::new(self.limits.check(request)?);
        let submitted = self.clock.now();
        let mut mailbox = self.mailbox();
        if mailbox.ended || mailbox.stop {
            return Err(SubmitError::Closed);
        }
        if mailbox.waiting + mailbox.submitted >= self.queue_limit {
            return Err(SubmitError::QueueFull { limit: self.queue_limit });
        }
        // Numbered under the lock, so that numbers are in the order of the queue.
        let id = RequestId(self.last_id.fetch_add(1, Ordering::Relaxed) + 1);
        self.outbox.open(id);
        mailbox.submitted += 1;
        mailbox.commands.push(Command::Submit(id, checked, submitted));
        drop(mailbox);
        self.called.notify_one();
        Ok(id)
    }

    fn cancel(&self, id: RequestId) -> bool {
        if !self.outbox.knows(id) {
            return false;
        }
        self.tell(Command::Cancel(id));
        true
    }

    fn tell(&self, command: Command) {
        let mut mailbox = self.mailbox();
        if !mailbox.ended {
            mailbox.commands.push(command);
        }
        drop(mailbox);
        self.called.notify_one();
    }
}

/// Ends all streams when the thread ends, however it ends.
struct EndOfThread<'s>(&'s Shared);

impl Drop for EndOfThread<'_> {
    fn drop(&mut self) {
        let mut mailbox = self.0.mailbox();
        mailbox.ended = true;
        mailbox.commands.clear();
        drop(mailbox);
        // After an orderly end there is no open stream left but those of requests that came too late.
        let failure = if std::thread::panicking() { Failure::EngineFatal } else { Failure::Closed };
        self.0.outbox.end_all(&Finish::Failed(failure));
    }
}

impl<E: EngineSource> Driver<E> {
    /// Steps until it is told to stop.
    fn run(&mut self, shared: &Shared) {
        let _end = EndOfThread(shared);
        let mut progress = Progress::Worked;
        loop {
            let (commands, stop) = wait_for_work(shared, progress);
            for command in commands {
                match command {
                    Command::Submit(id, checked, submitted) => self.scheduler.enqueue(id, *checked, submitted),
                    Command::Cancel(id) => {
                        self.cancel(id);
                    }
                }
            }
            if stop {
                self.scheduler.end_all(&Finish::Failed(Failure::Closed));
            }
            progress = self.step();
            let mut mailbox = shared.mailbox();
            mailbox.waiting = self.waiting();
            mailbox.ended |= self.scheduler.broken;
            drop(mailbox);
            shared.outbox.put(self.scheduler.events.drain(..));
            if stop && (self.is_idle() || progress != Progress::Worked) {
                return;
            }
        }
    }
}

/// Takes what is in the mailbox. While there is nothing to do, it waits.
fn wait_for_work(shared: &Shared, progress: Progress) -> (Vec<Command>, bool) {
    let mut mailbox = shared.mailbox();
    loop {
        if progress == Progress::Worked || !mailbox.commands.is_empty() || mailbox.stop {
            mailbox.submitted = 0;
            // Until the step tells the true number: all that were submitted wait.
            let commands = std::mem::take(&mut mailbox.commands);
            let submitted = commands.iter().filter(|command| matches!(command, Command::Submit(..))).count();
            mailbox.waiting += submitted;
            return (commands, mailbox.stop);
        }
        if progress == Progress::Stalled {
            mailbox = shared.called.wait_timeout(mailbox, STALLED_PAUSE).unwrap_or_else(PoisonError::into_inner).0;
            if mailbox.commands.is_empty() {
                return (Vec::new(), mailbox.stop);
            }
        } else {
            mailbox = shared.called.wait(mailbox).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// A driver on its thread. Dropping it ends all requests and waits for the thread.
#[derive(Debug)]
pub struct Server<E> {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<E>>,
}

impl<E: EngineSource + Send + 'static> Driver<E> {
    /// Moves the driver to a thread of its own.
    ///
    /// Requests that are here already go on; their events are dropped, for they have no stream.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn serve(mut self) -> io::Result<Server<E>> {
        let shared = Arc::new(Shared {
            mailbox: Mutex::default(),
            called: Condvar::new(),
            outbox: Outbox::default(),
            limits: self.scheduler.limits.clone(),
            queue_limit: self.scheduler.options.queue_limit,
            last_id: AtomicU64::new(self.last_id),
            clock: Arc::clone(&self.scheduler.clock),
        });
        let of_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("ictus-driver".to_owned()).spawn(move || {
            self.run(&of_thread);
            self.engine
        })?;
        Ok(Server { shared, thread: Some(thread) })
    }
}

impl<E> Server<E> {
    /// A handle for any thread.
    pub fn handle(&self) -> DriverHandle {
        DriverHandle { shared: Arc::clone(&self.shared) }
    }

    /// Ends all requests ([`Failure::Closed`]), waits for the thread, and gives the engine back; none when a panic ended the thread.
    pub fn stop(mut self) -> Option<E> {
        self.end()
    }

    fn end(&mut self) -> Option<E> {
        let thread = self.thread.take()?;
        self.shared.mailbox().stop = true;
        self.shared.called.notify_one();
        thread.join().ok()
    }
}

impl<E> Drop for Server<E> {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

/// Submits requests to a driver on a thread. Cheap to clone; clones are the same driver.
#[derive(Clone, Debug)]
pub struct DriverHandle {
    shared: Arc<Shared>,
}

impl DriverHandle {
    /// Takes a request over and gives the stream of its events.
    ///
    /// # Errors
    /// What is wrong with it, that too many wait, or that the driver has ended. Nothing is kept.
    pub fn submit(&self, request: Request) -> Result<TokenStream, SubmitError> {
        let id = self.shared.submit(request)?;
        Ok(TokenStream { shared: Arc::clone(&self.shared), id, ended: false })
    }

    /// As [`DriverHandle::submit`], the events to be read with [`DriverHandle::outbox`].
    pub(crate) fn submit_detached(&self, request: Request) -> Result<RequestId, SubmitError> {
        self.shared.submit(request)
    }

    /// Ends a request. Answers whether it was there; tokens that are on their way still come.
    pub fn cancel(&self, request: RequestId) -> bool {
        self.shared.cancel(request)
    }

    /// The events of a request, or of any.
    pub(crate) fn outbox(&self) -> &Outbox {
        &self.shared.outbox
    }
}

/// The events of one request, in order. Dropping it before the last one cancels the request.
///
/// It is a blocking iterator; [`TokenStream::next_within`] waits for a limited time, and [`TokenStream::next_event`] is a future for any
/// executor.
#[derive(Debug)]
pub struct TokenStream {
    shared: Arc<Shared>,
    id: RequestId,
    ended: bool,
}

impl TokenStream {
    /// The request.
    pub fn id(&self) -> RequestId {
        self.id
    }

    /// Ends the request; the stream goes on to its last event.
    pub fn cancel(&self) {
        self.shared.cancel(self.id);
    }

    /// The next event, if it comes in time.
    pub fn next_within(&mut self, timeout: Duration) -> Next {
        self.next_until(Some(timeout))
    }

    /// As a future: the next event, none after the last one.
    pub fn next_event(&mut self) -> impl Future<Output = Option<Event>> + '_ {
        core::future::poll_fn(|context| self.poll_next(context))
    }

    /// As a stream of an executor polls it: the next event, none after the last one.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Event>> {
        let polled = self.shared.outbox.poll_next(self.id, context);
        if let Poll::Ready(next) = &polled {
            self.ended |= next.as_ref().is_none_or(is_last);
        }
        polled
    }

    fn next_until(&mut self, timeout: Option<Duration>) -> Next {
        let next = self.shared.outbox.next_if(Wanted::Of(self.id), timeout, &mut |_| true);
        self.ended |= match &next {
            Next::Event(event) => is_last(event),
            Next::TimedOut => false,
            Next::Ended => true,
        };
        next
    }
}

fn is_last(event: &Event) -> bool {
    matches!(event.kind, EventKind::Finished { .. })
}

impl Iterator for TokenStream {
    type Item = Event;

    /// Waits for the next event; none after the last one.
    fn next(&mut self) -> Option<Event> {
        match self.next_until(None) {
            Next::Event(event) => Some(event),
            Next::TimedOut | Next::Ended => None,
        }
    }
}

impl Drop for TokenStream {
    fn drop(&mut self) {
        if !self.ended {
            self.shared.cancel(self.id);
            self.shared.outbox.forget(self.id);
        }
    }
}
