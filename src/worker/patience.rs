#![forbid(unsafe_code)]
//! A wait that looks for a short while before it sleeps.
//!
//! To be woken takes tens of microseconds, which is more than a tick of many lanes costs over the link. A side that expects its bytes sooner
//! than that looks for them instead.
//!
//! # Invariants
//! - Between looks the processor is offered to whoever wants it, so a side that looks keeps nobody from answering.
//! - A side looks only behind what it has said, for [`LOOK_FOR`] from then on, and only when the answer before this one came within that time: a
//!   side whose answers take longer has looked in vain once at most, and then sleeps without a timer (W-72). Where steps take milliseconds,
//!   nobody looks, whatever wakes a wait in between.

use std::io;
use std::time::{Duration, Instant};

use rustix::event::PollFd;

use super::socket::poll_until;

/// How long a side looks at most. Two wake-ups and a tick of 256 lanes over a step that is free end within it.
const LOOK_FOR: Duration = Duration::from_micros(250);

/// What the last answer says about the next.
#[derive(Debug, Default)]
pub(super) struct Patience {
    looks: bool,
    /// When this side said what nothing has followed yet.
    said: Option<Instant>,
}

impl Patience {
    /// This side has just said something that an answer may follow soon.
    pub(super) fn expect(&mut self) {
        self.said = Some(Instant::now());
    }

    /// Waits until something holds for one of `waited`; answers whether it does, false when the deadline is over first.
    ///
    /// # Errors
    /// The wait fails.
    pub(super) fn wait(&mut self, waited: &mut [PollFd<'_>], deadline: Option<Instant>) -> io::Result<bool> {
        let until = self.said.filter(|_| self.looks).map(|said| said + LOOK_FOR);
        let came = match until {
            Some(until) => look(waited, deadline.map_or(until, |deadline| deadline.min(until)))?,
            None => false,
        };
        let came = came || poll_until(waited, deadline)?;
        if came && let Some(said) = self.said.take() {
            self.looks = said.elapsed() <= LOOK_FOR;
        }
        Ok(came)
    }
}

/// Looks, once at least where there is time, until then.
fn look(waited: &mut [PollFd<'_>], until: Instant) -> io::Result<bool> {
    loop {
        let now = Instant::now();
        if now >= until {
            return Ok(false);
        }
        if poll_until(waited, Some(now))? {
            return Ok(true);
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
    fn only_a_side_whose_last_answer_came_soon_looks() {
        let (ours, theirs) = pair().expect("a pair");
        let mut patience = Patience::default();
        let wait = |patience: &mut Patience, limit| {
            let mut waited = [PollFd::from_borrowed_fd(ours.as_fd(), PollFlags::IN)];
            patience.wait(&mut waited, Some(Instant::now() + limit)).expect("a wait")
        };
        rustix::io::write(&theirs, b"x").expect("sent");
        assert!(wait(&mut patience, LONG) && !patience.looks, "nothing was asked");
        // Said long ago: whether the machine is busy or not, the answer came late.
        patience.said = Some(Instant::now() - LONG);
        assert!(wait(&mut patience, LONG) && !patience.looks, "an answer came late");
        // Said in a time to come: whether the machine is busy or not, the answer came soon.
        patience.said = Some(Instant::now() + 1000 * LONG);
        assert!(wait(&mut patience, LONG) && patience.looks, "an answer came soon");
        assert!(patience.said.is_none(), "what comes behind it is no answer");
        assert!(wait(&mut patience, LONG) && patience.looks, "it says nothing");
        rustix::io::read(&ours, &mut [0]).expect("taken");
        patience.expect();
        for _ in 0..3 {
            assert!(!wait(&mut patience, LONG) && patience.said.is_some(), "the deadline of a wait is no answer");
        }
        rustix::io::write(&theirs, b"x").expect("sent");
        assert!(wait(&mut patience, LONG) && !patience.looks, "three waits for one answer are one long wait");
    }

    #[test]
    fn wait_answers_the_same_whether_it_looks_or_not() {
        let (ours, theirs) = pair().expect("a pair");
        let wait = |looks, limit: Option<Duration>| {
            let mut patience = Patience { looks, said: Some(Instant::now()) };
            let mut waited = [PollFd::from_borrowed_fd(ours.as_fd(), PollFlags::IN)];
            patience.wait(&mut waited, limit.map(|limit| Instant::now() + limit)).expect("a wait")
        };
        for looks in [false, true] {
            assert!(!wait(looks, Some(Duration::ZERO)), "nothing came, looks: {looks}");
            assert!(!wait(looks, Some(LONG)), "nothing came for long, looks: {looks}");
            rustix::io::write(&theirs, b"x").expect("sent");
            assert!(wait(looks, None) && wait(looks, Some(Duration::ZERO)), "a byte is there, looks: {looks}");
            rustix::io::read(&ours, &mut [0]).expect("taken");
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    std::thread::sleep(LONG);
                    rustix::io::write(&theirs, b"x").expect("sent");
                });
                assert!(wait(looks, None), "a byte came behind the looks, looks: {looks}");
            });
            rustix::io::read(&ours, &mut [0]).expect("taken");
        }
        drop(theirs);
        assert!(wait(false, None) && wait(true, None), "the other side has gone");
    }
}
