//! Who plays a program: the devices of a backend, one or several, each with its stream, its kernels and its arena.
//!
//! ```text
//!                one program, in the order in which it was noted
//! device 0       launch  launch  push to 1  note  join 1  launch ...
//! device 1       launch          push to 0  note  join 0  launch ...
//! ```
//! Each operation says whose it is. A device's operations run in its stream, in order; between devices only a note and a join behind it order anything.
//! Played one by one they go to their streams. Captured, they become one graph, as the driver takes in whatever stream waits for an event of a capture:
//!
//! ```text
//! device 0   begin | note --------> play ... join all ------------| end: a graph of all streams' work
//! device 1             join 0 ----> play ... note
//!
//! launch     device 0 joins all others, the graph runs in its stream, all others join it: it stands where the program would stand in each stream
//! ```
//! # Invariants
//! - A device joins only what was noted before in the same program, so a capture waits for nothing outside of it.
//! - All work of a capture is joined to the first device's stream before it ends.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::arena::{Arena, arena_bytes};
use super::driver::{At, Driver, Event, Graph};
use super::graphs::Graphs;
use super::launch::Launcher;
use super::program::{Op, Operation, Program};
use crate::backend::BackendError;

/// A device of a backend.
pub(super) struct Player {
    pub(super) launcher: Launcher,
    /// What a section brings to it.
    pub(super) arena: Mutex<Arena>,
    /// How far its stream's work goes, for others that join it.
    noted: Event,
}

/// The devices of a backend, and what they do together.
pub(super) struct Players {
    /// Programs that were seen, and their graphs. They go before the kernels that they name, which the players have.
    pub(super) graphs: Mutex<Graphs>,
    pub(super) program: Arc<Program>,
    players: Vec<Player>,
}

/// What a mutex holds; a thread that panicked with it left nothing half done that the next section would not make anew.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Players {
    /// At least one.
    pub(super) fn new(drivers: Vec<Driver>) -> Result<Self, BackendError> {
        let program = Arc::<Program>::default();
        let player = |(member, driver): (usize, Driver)| {
            let arena = Mutex::new(Arena::new(&driver, arena_bytes(0, 0))?);
            let noted = driver.event()?;
            Ok(Player { launcher: Launcher::new(driver, program.clone(), member), arena, noted })
        };
        let players = drivers.into_iter().enumerate().map(player).collect::<Result<_, _>>()?;
        Ok(Self { graphs: Mutex::default(), program, players })
    }

    pub(super) fn player(&self, member: usize) -> &Player {
        &self.players[member]
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Player> {
        self.players.iter()
    }

    fn driver(&self, member: usize) -> &Driver {
        &self.players[member].launcher.driver
    }

    fn others(&self) -> core::ops::Range<usize> {
        1..self.players.len()
    }

    /// Waits until all of them have done all of their work, also those behind one that failed.
    pub(super) fn finish(&self) -> Result<(), BackendError> {
        self.all().map(|player| player.launcher.driver.finish()).fold(Ok(()), Result::and)
    }

    /// Copies from one device to another in the order of the first one's stream, or notes it.
    ///
    /// # Safety
    /// - The target is memory of `other` that lives until this is done, and nothing that `other` has to do reads or writes it before it joins what `member`
    ///   notes behind it.
    pub(super) unsafe fn push(
        &self,
        member: usize,
        other: usize,
        to: At<u8>,
        from: At<u8>,
    ) -> Result<(), BackendError> {
        // SAFETY: as the caller promises.
        unsafe { self.note_or_do(Operation { member, op: Op::Push { other, to, from } }) }
    }

    /// Notes how far a device's work goes.
    pub(super) fn note(&self, member: usize) -> Result<(), BackendError> {
        // SAFETY: it names no memory.
        unsafe { self.note_or_do(Operation { member, op: Op::Note }) }
    }

    /// Has the work of a device that comes next wait for what another one noted last.
    pub(super) fn join(&self, member: usize, other: usize) -> Result<(), BackendError> {
        // SAFETY: it names no memory.
        unsafe { self.note_or_do(Operation { member, op: Op::Join { other } }) }
    }

    /// # Safety
    /// - As [`Players::play`], now or when the section is settled.
    unsafe fn note_or_do(&self, operation: Operation) -> Result<(), BackendError> {
        if self.program.note(operation) {
            return Ok(());
        }
        // SAFETY: as the caller promises.
        unsafe { self.do_one(&operation) }
    }

    /// # Safety
    /// - As [`Players::play`].
    unsafe fn do_one(&self, &Operation { member, ref op }: &Operation) -> Result<(), BackendError> {
        let Player { launcher, noted, .. } = &self.players[member];
        match *op {
            // SAFETY: it was noted after the checks of a launch; the memory is live, as the caller promises.
            Op::Launch(ref launch) => unsafe { launcher.start(launch) },
            Op::Copy { to, from, bytes } => launcher.driver.copy(to, from, bytes),
            // SAFETY: who noted it promised that of the target.
            Op::Push { other, to, from } => unsafe { launcher.driver.push(self.driver(other), to, from) },
            Op::Note => launcher.driver.note(noted),
            Op::Join { other } => launcher.driver.join(&self.players[other].noted),
        }
    }

    /// Does what was noted, one after another.
    ///
    /// # Safety
    /// - The memory that it names is live.
    pub(super) unsafe fn play(&self, operations: &[Operation]) -> Result<(), BackendError> {
        // SAFETY: as the caller promises.
        operations.iter().try_for_each(|operation| unsafe { self.do_one(operation) })
    }

    /// Makes one graph of what was noted; it runs nothing.
    ///
    /// # Errors
    /// As [`Driver::capture`].
    ///
    /// # Safety
    /// - The memory that it names is live whenever the graph is launched.
    pub(super) unsafe fn capture(&self, operations: &[Operation]) -> Result<Graph, BackendError> {
        self.driver(0).capture(|| {
            self.fork()?;
            // SAFETY: as the caller promises. What is captured runs when the graph does.
            unsafe { self.play(operations) }?;
            self.join_all()
        })
    }

    /// Launches a graph in the place of what it was captured from, in every stream. False where it was not launched.
    pub(super) fn replay(&self, graph: &Graph) -> Result<bool, BackendError> {
        self.join_all()?;
        let is_launched = self.driver(0).replay(graph).is_ok();
        if is_launched {
            self.fork()?;
        }
        Ok(is_launched)
    }

    /// All others wait for the first device.
    fn fork(&self) -> Result<(), BackendError> {
        if self.players.len() > 1 {
            self.driver(0).note(&self.players[0].noted)?;
        }
        self.others().try_for_each(|other| self.driver(other).join(&self.players[0].noted))
    }

    /// The first device waits for all others.
    fn join_all(&self) -> Result<(), BackendError> {
        for other in self.others() {
            let noted = &self.players[other].noted;
            self.driver(other).note(noted)?;
            self.driver(0).join(noted)?;
        }
        Ok(())
    }
}
