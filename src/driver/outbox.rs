#![forbid(unsafe_code)]
//! Events on their way from the thread that drives to the threads that read: one stream per request.
//!
//! # Invariants
//! - A stream is there from submission until its last event is taken, or its reader gives it up.
//! - `ready` lists each stream that has an event, by when its first one came.

use core::task::{Context, Poll, Waker};
use core::time::Duration;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::event::{Event, EventKind, Finish, Stats};
use super::request::RequestId;

/// What a reader gets.
#[derive(Clone, Debug, PartialEq)]
pub enum Next {
    /// An event.
    Event(Event),
    /// None came in time.
    TimedOut,
    /// The last one was taken before, or there is no such request.
    Ended,
}

/// Whose events a reader wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// Those of one request.
    Of(RequestId),
    /// Those of any; the one that waits longest first.
    Any,
}

#[derive(Debug, Default)]
struct Stream {
    /// With the moments at which they came.
    events: VecDeque<(u64, Event)>,
    waker: Option<Waker>,
}

#[derive(Debug, Default)]
struct Inner {
    streams: HashMap<RequestId, Stream>,
    ready: BTreeSet<(u64, RequestId)>,
    moment: u64,
}

/// The streams of a driver.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    inner: Mutex<Inner>,
    arrived: Condvar,
}

impl Inner {
    fn push(&mut self, event: Event) {
        let id = event.request;
        // Nobody reads it any more.
        let Some(stream) = self.streams.get_mut(&id) else { return };
        self.moment += 1;
        if stream.events.is_empty() {
            self.ready.insert((self.moment, id));
        }
        stream.events.push_back((self.moment, event));
        if let Some(waker) = stream.waker.take() {
            waker.wake();
        }
    }

    /// The next event that is wanted, if `accept` takes it. None when there is none; `Ended` when none will come.
    fn take(&mut self, wanted: Wanted, accept: &mut dyn FnMut(&Event) -> bool) -> Option<Next> {
        let id = match wanted {
            Wanted::Of(id) => id,
            Wanted::Any => match self.ready.first() {
                Some(&(_, id)) => id,
                None => return self.streams.is_empty().then_some(Next::Ended),
            },
        };
        let Some(stream) = self.streams.get_mut(&id) else { return Some(Next::Ended) };
        let (moment, event) = stream.events.front()?;
        if !accept(event) {
            return Some(Next::TimedOut);
        }
        self.ready.remove(&(*moment, id));
        let (_, event) = stream.events.pop_front()?;
        if let Some((moment, _)) = stream.events.front() {
            self.ready.insert((*moment, id));
        }
        if matches!(event.kind, EventKind::Finished { .. }) {
            self.streams.remove(&id);
        }
        Some(Next::Event(event))
    }
}

impl Outbox {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Every change below is whole when a panic could strike.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes room for the events of a request.
    pub(crate) fn open(&self, id: RequestId) {
        self.lock().streams.insert(id, Stream::default());
    }

    /// Drops what is there of a request, and all that comes.
    pub(crate) fn forget(&self, id: RequestId) {
        let mut inner = self.lock();
        if let Some(stream) = inner.streams.remove(&id)
            && let Some((moment, _)) = stream.events.front()
        {
            inner.ready.remove(&(*moment, id));
        }
        drop(inner);
        // Who waits for any event may wait for nothing now.
        self.arrived.notify_all();
    }

    /// Whether there is a stream of this request.
    pub(crate) fn knows(&self, id: RequestId) -> bool {
        self.lock().streams.contains_key(&id)
    }

    /// Hands events over and wakes their readers.
    pub(crate) fn put(&self, events: impl IntoIterator<Item = Event>) {
        let mut events = events.into_iter().peekable();
        if events.peek().is_none() {
            return;
        }
        let mut inner = self.lock();
        events.for_each(|event| inner.push(event));
        drop(inner);
        self.arrived.notify_all();
    }

    /// Ends every stream that has not ended.
    pub(crate) fn end_all(&self, finish: &Finish) {
        let mut inner = self.lock();
        let over = |stream: &Stream| {
            stream.events.back().is_some_and(|(_, event)| matches!(event.kind, EventKind::Finished { .. }))
        };
        let open: Vec<RequestId> =
            inner.streams.iter().filter(|(_, stream)| !over(stream)).map(|(&id, _)| id).collect();
        for request in open {
            inner
                .push(Event { request, kind: EventKind::Finished { finish: finish.clone(), stats: Stats::default() } });
        }
        drop(inner);
        self.arrived.notify_all();
    }

    /// The next event that is wanted, if `accept` takes it; else it stays, and the answer is as if none had come.
    ///
    /// Waits for `timeout`, or without end.
    pub(crate) fn next_if(
        &self,
        wanted: Wanted,
        timeout: Option<Duration>,
        accept: &mut dyn FnMut(&Event) -> bool,
    ) -> Next {
        // A time that no clock reaches is no limit.
        let until = timeout.map(|timeout| Instant::now().checked_add(timeout)).unwrap_or(None);
        let limited = timeout.is_some() && until.is_some();
        let mut inner = self.lock();
        loop {
            if let Some(next) = inner.take(wanted, accept) {
                return next;
            }
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            inner = match left {
                Some(left) if limited && left.is_zero() => return Next::TimedOut,
                Some(left) if limited => {
                    self.arrived.wait_timeout(inner, left).unwrap_or_else(PoisonError::into_inner).0
                }
                _ => self.arrived.wait(inner).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    /// As [`Outbox::next_if`] for an executor of futures: when there is none, the task is woken once one comes.
    pub(crate) fn poll_next(&self, id: RequestId, context: &mut Context<'_>) -> Poll<Option<Event>> {
        let mut inner = self.lock();
        match inner.take(Wanted::Of(id), &mut |_| true) {
            Some(Next::Event(event)) => Poll::Ready(Some(event)),
            Some(_) => Poll::Ready(None),
            None => {
                if let Some(stream) = inner.streams.get_mut(&id) {
                    stream.waker = Some(context.waker().clone());
                }
                Poll::Pending
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(request: u64, token: u32) -> Event {
        let piece = super::super::event::Piece { tokens: vec![token], ..Default::default() };
        Event { request: RequestId(request), kind: EventKind::Tokens(piece) }
    }

    fn any(outbox: &Outbox) -> Next {
        outbox.next_if(Wanted::Any, Some(Duration::ZERO), &mut |_| true)
    }

    #[test]
    fn events_come_in_order_by_request_and_by_age() {
        let outbox = Outbox::default();
        assert_eq!(any(&outbox), Next::Ended, "nobody asked for anything");
        outbox.open(RequestId(1));
        outbox.open(RequestId(2));
        assert_eq!(any(&outbox), Next::TimedOut);
        outbox.put([token(2, 7), token(1, 8), token(2, 9), token(3, 1)]);
        assert_eq!(any(&outbox), Next::Event(token(2, 7)));
        assert_eq!(any(&outbox), Next::Event(token(1, 8)));
        let of = |id| outbox.next_if(Wanted::Of(RequestId(id)), Some(Duration::ZERO), &mut |_| true);
        assert_eq!(outbox.next_if(Wanted::Any, None, &mut |_| false), Next::TimedOut, "it is not taken");
        assert_eq!(of(2), Next::Event(token(2, 9)));
        assert_eq!(of(2), Next::TimedOut);
        assert_eq!(of(3), Next::Ended, "never opened");
        outbox.end_all(&Finish::Cancelled);
        outbox.end_all(&Finish::EndToken);
        assert!(matches!(
            of(2),
            Next::Event(Event { kind: EventKind::Finished { finish: Finish::Cancelled, .. }, .. })
        ));
        assert_eq!(of(2), Next::Ended);
        outbox.forget(RequestId(1));
        assert_eq!(any(&outbox), Next::Ended);
    }
}
