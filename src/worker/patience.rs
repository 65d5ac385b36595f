#![forbid(unsafe_code)]
//! A wait that looks for a short while before it sleeps.
//!
//! To be woken takes tens of microseconds, which is more than a tick of many lanes costs over the link. A side that expects its bytes sooner
//! than that looks for them instead.
//!
//! # Invariants
//! - Between looks the processor is offered to whoever wants it, so a side that looks keeps nobody from answering.
//! - A side looks only when its wait before this one ended within [`LOOK_FOR`]: one that waits long has looked in vain once at most, and then
//!   sleeps without a timer (W-72). Where steps take milliseconds, nobody looks.

use std::io;
use std::time::{Duration, Instant};

use rustix::event::PollFd;

use super::socket::poll_until;

/// How long a side looks at most. Two wake-ups and a tick of 256 lanes over a step that is free end within it.
const LOOK_FOR: Duration = Duration::from_micros(250);

/// What the last wait says about the next.
#[derive(Debug, Default)]
pub(super) struct Patience {
    looks: bool,
}

impl Patience {
    /// Waits until something holds for one of `waited`; answers whether it does, false when the deadline is over first.
    ///
    /// # Errors
    /// The wait fails.
    pub(super) fn wait(&mut self, waited: &mut [PollFd<'_>], deadline: Option<Instant>) -> io::Result<bool> {
        let started = Instant::now();
        let came = (self.looks && look(waited, started, deadline)?) || poll_until(waited, deadline)?;
        self.learn(came, started.elapsed());
        Ok(came)
    }

    /// Takes note of a wait that took so long. One that ended by its deadline says nothing: it would have gone on.
    fn learn(&mut self, came: bool, took: Duration) {
        match came {
            true => self.looks = took <= LOOK_FOR,
            false => self.looks &= took <= LOOK_FOR,
        }
    }
}

/// Looks for at most [`LOOK_FOR`], and not beyond the deadline.
fn look(waited: &mut [PollFd<'_>], started: Instant, deadline: Option<Instant>) -> io::Result<bool> {
    let until = started + LOOK_FOR;
    let until = deadline.map_or(until, |deadline| deadline.min(until));
    loop {
        let now = Instant::now();
        if poll_until(waited, Some(now))? {
            return Ok(true);
        }
        if now >= until {
            return Ok(false);
        }
        std::thread::yield_now();
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use rustix::event::PollFlags;

    use super::*;
    use crate::worker::socket::pair;

    const LONG: Duration = Duration::from_millis(3);

    /// W-72: looking ends by itself.
    #[test]
    fn only_a_side_whose_last_wait_was_short_looks() {
        let mut patience = Patience::default();
        let after = |patience: &mut Patience, came, took| {
            patience.learn(came, took);
            patience.looks
        };
        assert!(!patience.looks, "nothing is known at first");
        assert!(after(&mut patience, true, LOOK_FOR));
        assert!(!after(&mut patience, true, LONG));
        assert!(!after(&mut patience, false, LOOK_FOR), "a deadline that came soon is no answer that did");
        assert!(after(&mut patience, true, Duration::ZERO));
        assert!(after(&mut patience, false, Duration::ZERO), "nor is it a long wait");
        assert!(!after(&mut patience, false, LONG));
    }

    #[test]
    fn wait_answers_the_same_whether_it_looks_or_not() {
        let (ours, theirs) = pair().expect("a pair");
        for looks in [false, true] {
            let wait = |limit: Option<Duration>| {
                let mut patience = Patience { looks };
                let mut waited = [PollFd::from_borrowed_fd(ours.as_fd(), PollFlags::IN)];
                patience.wait(&mut waited, limit.map(|limit| Instant::now() + limit)).expect("a wait")
            };
            assert!(!wait(Some(Duration::ZERO)), "nothing came, looks: {looks}");
            assert!(!wait(Some(LONG)), "nothing came for long, looks: {looks}");
            rustix::io::write(&theirs, b"x").expect("sent");
            assert!(wait(None) && wait(Some(Duration::ZERO)), "a byte is there, looks: {looks}");
            rustix::io::read(&ours, &mut [0]).expect("taken");
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    std::thread::sleep(LONG);
                    rustix::io::write(&theirs, b"x").expect("sent");
                });
                assert!(wait(None), "a byte came behind the looks, looks: {looks}");
            });
            rustix::io::read(&ours, &mut [0]).expect("taken");
        }
        drop(theirs);
        for looks in [false, true] {
            let mut waited = [PollFd::from_borrowed_fd(ours.as_fd(), PollFlags::IN)];
            assert!(
                Patience { looks }.wait(&mut waited, None).expect("a wait"),
                "the other side has gone, looks: {looks}"
            );
        }
    }
}
