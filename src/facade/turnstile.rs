#![forbid(unsafe_code)]
//! Who submits next: one at a time, in order of arrival.

use std::ops::{Deref, DerefMut};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

/// A value that one thread at a time gets, first come, first served.
#[derive(Debug)]
pub(super) struct Turnstile<T> {
    line: Mutex<Line>,
    moved: Condvar,
    inside: Mutex<T>,
}

/// Numbers that were drawn, and the one whose turn it is.
#[derive(Debug, Default)]
struct Line {
    drawn: u64,
    turn: u64,
    /// Who has the turn.
    holder: Option<ThreadId>,
}

impl<T> Turnstile<T> {
    pub(super) fn new(value: T) -> Self {
        Self { line: Mutex::default(), moved: Condvar::new(), inside: Mutex::new(value) }
    }

    /// Waits for a turn.
    pub(super) fn enter(&self) -> Turn<'_, T> {
        let mut line = lock(&self.line);
        let mine = line.drawn;
        line.drawn += 1;
        while line.turn != mine {
            line = self.moved.wait(line).unwrap_or_else(PoisonError::into_inner);
        }
        line.holder = Some(std::thread::current().id());
        drop(line);
        Turn { stile: self, inside: Some(lock(&self.inside)) }
    }

    /// Whether this thread has the turn: it would wait for itself.
    pub(super) fn is_entered_here(&self) -> bool {
        lock(&self.line).holder == Some(std::thread::current().id())
    }

    /// A turn, if nobody has one or waits for one.
    pub(super) fn try_enter(&self) -> Option<Turn<'_, T>> {
        let mut line = lock(&self.line);
        if line.drawn != line.turn {
            return None;
        }
        line.drawn += 1;
        line.holder = Some(std::thread::current().id());
        drop(line);
        Some(Turn { stile: self, inside: Some(lock(&self.inside)) })
    }
}

/// What is behind it after a panic is as whole as the panic left it: the executor calls itself broken then, on its own account.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A turn; the next in line comes when it ends.
#[derive(Debug)]
pub(super) struct Turn<'t, T> {
    stile: &'t Turnstile<T>,
    /// Some until it is dropped.
    inside: Option<MutexGuard<'t, T>>,
}

impl<T> Deref for Turn<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        match &self.inside {
            Some(inside) => inside,
            None => unreachable!("a turn has its value until it is dropped"),
        }
    }
}

impl<T> DerefMut for Turn<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        match &mut self.inside {
            Some(inside) => inside,
            None => unreachable!("a turn has its value until it is dropped"),
        }
    }
}

impl<T> Drop for Turn<'_, T> {
    fn drop(&mut self) {
        self.inside = None;
        let mut line = lock(&self.stile.line);
        line.turn += 1;
        line.holder = None;
        if line.drawn != line.turn {
            self.stile.moved.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn turns_come_in_order_of_arrival() {
        let stile = Arc::new(Turnstile::new(Vec::new()));
        let first = stile.enter();
        assert!(stile.try_enter().is_none() && stile.is_entered_here());
        let mut threads = Vec::new();
        for number in 0..8 {
            let waiting = Arc::clone(&stile);
            threads.push(std::thread::spawn(move || waiting.enter().push(number)));
            while lock(&stile.line).drawn != number + 2 {
                std::thread::yield_now();
            }
        }
        drop(first);
        threads.into_iter().for_each(|thread| thread.join().expect("it ends"));
        assert_eq!(*stile.enter(), (0..8).collect::<Vec<u64>>());
        assert!(stile.try_enter().is_some() && !stile.is_entered_here());
    }
}
