#![forbid(unsafe_code)]
//! The books under their lock, and those who wait for them to move.
//!
//! Every operation is one hold of the lock. What it moved wakes those who watch it: their wakers are collected under the lock and
//! called after it.
//!
//! # Invariants
//! - A waiter compares with its own observation after it is registered, under the same lock that publications take: nothing that moves
//!   in between is lost.
//! - A panic under the lock poisons: every later operation is refused, every waiter wakes with it, and the level stays readable.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use super::account::DeviceAccount;
use super::book::Book;
use super::domain::{DOMAINS, Domain, domains_of};
use super::memory::Memory;
use super::refusal::{Bad, Refusal};
use super::ticket::Ticket;

/// One coordinator.
#[derive(Debug)]
pub(super) struct Shared {
    inner: Mutex<Inner>,
    pub(super) account: DeviceAccount,
    pub(super) block_bytes: u64,
    pub(super) static_bytes: u64,
}

/// What the lock guards.
#[derive(Debug)]
pub(super) struct Inner {
    pub(super) book: Book,
    waiters: Vec<Option<Waiter>>,
    vacant: Vec<usize>,
    /// Waiters that are not ready yet, by the domains that they watch.
    watching: [u32; DOMAINS],
    poisoned: bool,
    /// Bytes that attempts to grow have claimed and not published.
    pub(super) growing: u64,
    /// Somebody was refused bytes of the budget that such an attempt held, and has to hear when they come back unused.
    pub(super) pressed: bool,
    /// Bytes in quarantine beside the units that are.
    pub(super) quarantined_bytes: u64,
}

/// Somebody who waits.
#[derive(Debug)]
struct Waiter {
    ticket: Ticket,
    waker: Option<Waker>,
    ready: Option<Result<Ticket, Refusal>>,
}

/// Those whom operations have made ready; woken when this is dropped, which is after all locks.
#[must_use = "who was collected wants to be woken"]
#[derive(Debug, Default)]
pub struct Woken(Vec<Waker>);

impl Woken {
    /// Wakes them.
    pub fn wake(self) {}

    /// Nobody has to be woken.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn add(&mut self, mut more: Self) {
        if self.0.is_empty() {
            std::mem::swap(&mut self.0, &mut more.0);
        } else {
            self.0.append(&mut more.0);
        }
    }
}

impl Drop for Woken {
    fn drop(&mut self) {
        for waker in self.0.drain(..) {
            // A waker that panics keeps nobody else asleep, and must not end the process while another panic unwinds.
            let _ = catch_unwind(AssertUnwindSafe(|| waker.wake()));
        }
    }
}

/// The lock, held. A panic while it is poisons the coordinator and wakes everybody.
struct Held<'s> {
    inner: MutexGuard<'s, Inner>,
    woken: &'s mut Woken,
    /// Whether the operation came to its end.
    whole: bool,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if !self.whole {
            self.inner.poisoned = true;
            let all = self.inner.finish_all(Bad::Poisoned);
            self.woken.0.extend(all);
        }
    }
}

impl Shared {
    pub(super) fn new(book: Book, account: DeviceAccount, block_bytes: u64, static_bytes: u64) -> Self {
        let inner = Inner {
            book,
            waiters: Vec::new(),
            vacant: Vec::new(),
            watching: [0; DOMAINS],
            poisoned: false,
            growing: 0,
            pressed: false,
            quarantined_bytes: 0,
        };
        Self { inner: Mutex::new(inner), account, block_bytes, static_bytes }
    }

    /// One operation: under one hold of the lock, its waiters woken after it.
    pub(super) fn with<T>(&self, operate: impl FnOnce(&mut Inner) -> Result<T, Refusal>) -> Result<T, Refusal> {
        let (answer, _woken) = self.collect(operate);
        answer
    }

    /// As [`with`](Self::with); who has to be woken is the caller's to wake, by dropping them.
    pub(super) fn collect<T>(
        &self,
        operate: impl FnOnce(&mut Inner) -> Result<T, Refusal>,
    ) -> (Result<T, Refusal>, Woken) {
        let mut woken = Woken::default();
        let mut faults = 0;
        let answer = {
            let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
            if inner.poisoned {
                return (Err(Bad::Poisoned.into()), woken);
            }
            let mut held = Held { inner, woken: &mut woken, whole: false };
            let before = held.inner.book.faults;
            let answer = operate(&mut held.inner);
            faults += held.inner.book.faults - before;
            held.whole = true;
            let moved = std::mem::take(&mut held.inner.book.moved);
            if moved != 0 && domains_of(moved).any(|domain| held.inner.watching[domain.index()] > 0) {
                held.inner.finish_changed(held.woken);
            }
            answer
        };
        debug_assert!(faults == 0, "units were given back that nobody had claimed");
        (answer, woken)
    }

    /// Reads; also when poisoned.
    pub(super) fn read<T>(&self, look: impl FnOnce(&Inner) -> T) -> T {
        look(&self.inner.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Work on a registration: also when poisoned, and it moves nothing.
    pub(super) fn waiter<T>(&self, work: impl FnOnce(&mut Inner) -> T) -> T {
        work(&mut self.inner.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Nothing is admitted any more, and everybody who waits learns of it.
    pub(super) fn close(&self) {
        let mut woken = Woken::default();
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.book.closed = true;
        woken.0 = inner.finish_all(Bad::Closed);
        drop(inner);
        drop(woken);
    }

    /// The level of memory, from one hold of the lock.
    pub(super) fn memory(&self) -> Memory {
        self.read(|inner| {
            let account = self.account.level();
            let book = &inner.book;
            let bounded = book.total[Domain::Blocks.index()] != u64::MAX;
            let arena = match book.total(Domain::Workspace) {
                u64::MAX => book.used(Domain::Workspace),
                bytes => bytes,
            };
            let arena_free = arena.saturating_sub(book.used(Domain::Workspace));
            let blocks = |count: u64| count.saturating_mul(self.block_bytes);
            let used = book.used(Domain::Blocks);
            let blocks_total = book.total(Domain::Blocks);
            let installed = if bounded { blocks_total } else { used };
            let blocks_free = blocks_total.saturating_sub(used);
            let unused = if bounded { blocks_free } else { 0 };
            let quarantined = blocks(book.quarantined[Domain::Blocks.index()])
                .saturating_add(book.quarantined[Domain::Workspace.index()])
                .saturating_add(inner.quarantined_bytes);
            let resident = blocks(installed).saturating_add(arena);
            let claimed = book.claimed[Domain::Budget.index()];
            // A pool without bound is claimed as it is used.
            let own_claimed = if bounded { claimed } else { claimed.saturating_add(blocks(used)) };
            Memory {
                capacity: account.capacity,
                usable: account.usable,
                device_claimed: account.claimed.max(own_claimed),
                own_claimed,
                static_bytes: self.static_bytes,
                resident,
                resident_free: blocks(unused).saturating_add(arena_free),
                growing: inner.growing,
                quarantined,
                block_size: self.block_bytes,
                blocks_total,
                blocks_free,
                blocks_evictable: book.evictable.min(blocks_total - blocks_free),
            }
        })
    }
}

impl Inner {
    /// Registers a waiter, then compares with what it has seen: one that is behind is ready at once.
    pub(super) fn register(&mut self, ticket: Ticket) -> Result<usize, Refusal> {
        if ticket.core() != self.book.core {
            return Err(Bad::Foreign.into());
        }
        if ticket.watches() == 0 {
            return Err(Bad::Policy.into());
        }
        let changed = ticket.changed(&self.book.epochs)?;
        let ready = match (self.book.closed, changed) {
            (true, _) => Some(Err(Bad::Closed.into())),
            (false, true) => Some(Ok(self.book.ticket(ticket.watches()))),
            (false, false) => None,
        };
        if ready.is_none() {
            self.watch(&ticket, true);
        }
        let waiter = Some(Waiter { ticket, waker: None, ready });
        let place = self.vacant.pop().filter(|&place| place < self.waiters.len());
        Ok(match place {
            Some(place) => {
                self.waiters[place] = waiter;
                place
            }
            None => {
                self.waiters.push(waiter);
                self.waiters.len() - 1
            }
        })
    }

    /// The answer of a waiter, which is deregistered with it; else the waker is kept, and the one before given back: dropping it may run
    /// code of its owner.
    pub(super) fn answer(&mut self, place: usize, waker: &mut Option<Waker>) -> Option<Result<Ticket, Refusal>> {
        let slot = self.waiters.get_mut(place)?;
        let waiter = slot.as_mut()?;
        if waiter.ready.is_none() {
            std::mem::swap(&mut waiter.waker, waker);
            return None;
        }
        self.look(place)
    }

    /// The answer of a waiter, which is deregistered with it.
    pub(super) fn look(&mut self, place: usize) -> Option<Result<Ticket, Refusal>> {
        let slot = self.waiters.get_mut(place)?;
        let ready = slot.as_ref()?.ready?;
        *slot = None;
        self.vacant.push(place);
        Some(ready)
    }

    /// Forgets a waiter, whose waker is handed over: dropping it may run code of its owner.
    pub(super) fn forget(&mut self, place: usize) -> Option<Waker> {
        let waiter = self.waiters.get_mut(place)?.take()?;
        if waiter.ready.is_none() {
            self.watch(&waiter.ticket, false);
        }
        self.vacant.push(place);
        waiter.waker
    }

    /// Places for waiters, taken or not.
    #[cfg(test)]
    pub(super) fn places(&self) -> usize {
        self.waiters.len()
    }

    /// Waiters that are registered.
    pub(super) fn waiters(&self) -> usize {
        self.waiters.len() - self.vacant.len()
    }

    /// An attempt to grow ends.
    pub(super) fn stop_growing(&mut self, bytes: u64) {
        self.growing = self.growing.saturating_sub(bytes);
        self.pressed &= self.growing > 0;
    }

    fn watch(&mut self, ticket: &Ticket, on: bool) {
        for domain in domains_of(ticket.watches()) {
            let count = &mut self.watching[domain.index()];
            *count = if on { count.saturating_add(1) } else { count.saturating_sub(1) };
        }
    }

    /// Everybody whose epochs have advanced is ready.
    fn finish_changed(&mut self, woken: &mut Woken) {
        for place in 0..self.waiters.len() {
            let Some(Some(waiter)) = self.waiters.get_mut(place) else { continue };
            if waiter.ready.is_some() || waiter.ticket.changed(&self.book.epochs) != Ok(true) {
                continue;
            }
            waiter.ready = Some(Ok(self.book.ticket(waiter.ticket.watches())));
            woken.0.extend(waiter.waker.take());
            let ticket = waiter.ticket;
            self.watch(&ticket, false);
        }
    }

    /// Everybody is ready, with this.
    fn finish_all(&mut self, why: Bad) -> Vec<Waker> {
        self.watching = [0; DOMAINS];
        let waiting = self.waiters.iter_mut().flatten().filter(|waiter| waiter.ready.is_none());
        waiting
            .filter_map(|waiter| {
                waiter.ready = Some(Err(why.into()));
                waiter.waker.take()
            })
            .collect()
    }
}
