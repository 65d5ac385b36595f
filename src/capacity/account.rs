#![forbid(unsafe_code)]
//! Bytes of one device, counted for all cores that share it.
//!
//! The host makes an account and hands it to its cores; there is none for the process. Whoever gives bytes back, or departs and by
//! that raises what the others may use, moves the Device epoch of all.
//!
//! # Invariants
//! - The sum of all claims is at most the smallest ceiling that a live core has declared.
//! - The lock of an account is taken last, and no other lock is taken under it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::refusal::{Bad, Refusal};
use super::shared::Shared;

/// The device memory that several cores share.
#[derive(Clone, Debug)]
pub struct DeviceAccount(Arc<Mutex<Books>>);

#[derive(Debug)]
struct Books {
    capacity: u64,
    /// Bytes that attempts to grow have claimed, and may return unused.
    growing: u64,
    /// Somebody was refused while there were such bytes, and has to hear when they come back.
    pressed: bool,
    members: Vec<Member>,
}

#[derive(Debug)]
struct Member {
    core: u64,
    ceiling: u64,
    claimed: u64,
    shared: Weak<Shared>,
}

/// What an account says at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Level {
    pub(super) capacity: u64,
    pub(super) usable: u64,
    pub(super) claimed: u64,
}

impl DeviceAccount {
    /// An account of a device with so many bytes, and no cores.
    pub fn new(capacity: u64) -> Self {
        Self(Arc::new(Mutex::new(Books { capacity, growing: 0, pressed: false, members: Vec::new() })))
    }

    /// Bytes that all cores have claimed.
    pub fn claimed(&self) -> u64 {
        self.level().claimed
    }

    /// Bytes that the cores may claim together: the smallest ceiling of a live core.
    pub fn usable(&self) -> u64 {
        self.level().usable
    }

    /// Every change below is a few assignments that cannot panic half way, so the books of a panicked thread are whole.
    fn lock(&self) -> MutexGuard<'_, Books> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn level(&self) -> Level {
        self.lock().level()
    }

    /// A core joins, with its ceiling and with what it holds already.
    pub(super) fn join(&self, core: u64, ceiling: u64, claimed: u64, shared: Weak<Shared>) -> Result<(), Refusal> {
        let mut books = self.lock();
        let usable = books.level().usable.min(ceiling);
        let sum = books.level().claimed.checked_add(claimed).ok_or(Bad::Bounds)?;
        if sum > usable {
            return Err(Bad::Bounds.into());
        }
        books.members.push(Member { core, ceiling, claimed, shared });
        Ok(())
    }

    /// Claims bytes for a core that tries to grow, or says what there is.
    pub(super) fn claim(&self, core: u64, bytes: u64) -> Result<(), Level> {
        let mut books = self.lock();
        let level = books.level();
        let fits = level.claimed.checked_add(bytes).is_some_and(|sum| sum <= level.usable);
        let member = books.members.iter_mut().find(|member| member.core == core);
        if let Some(member) = member.filter(|_| fits) {
            member.claimed += bytes;
            books.growing = books.growing.saturating_add(bytes);
            return Ok(());
        }
        books.pressed |= books.growing > 0;
        Err(level)
    }

    /// An attempt to grow ends: its bytes stay claimed.
    pub(super) fn keep(&self, bytes: u64) {
        self.lock().stop_growing(bytes);
    }

    /// An attempt to grow ends without its bytes; answers the cores to tell, none when nobody has missed them.
    pub(super) fn give_up(&self, core: u64, bytes: u64) -> Option<Vec<Arc<Shared>>> {
        let mut books = self.lock();
        let pressed = books.pressed;
        books.stop_growing(bytes);
        books.take_back(core, bytes);
        pressed.then(|| books.others(core))
    }

    /// Takes bytes of a core back; answers the cores to tell.
    pub(super) fn release(&self, core: u64, bytes: u64) -> Vec<Arc<Shared>> {
        let mut books = self.lock();
        books.take_back(core, bytes);
        books.others(core)
    }

    /// A core departs with all its claims; answers the cores to tell, none when nothing came free for them.
    pub(super) fn depart(&self, core: u64) -> Vec<Arc<Shared>> {
        let mut books = self.lock();
        let before = books.level();
        books.members.retain(|member| member.core != core);
        let after = books.level();
        let more = after.claimed < before.claimed || after.usable > before.usable;
        if more { books.others(core) } else { Vec::new() }
    }
}

impl Books {
    fn level(&self) -> Level {
        let usable = self.members.iter().fold(self.capacity, |usable, member| usable.min(member.ceiling));
        let claimed = self.members.iter().fold(0, |sum: u64, member| sum.saturating_add(member.claimed));
        Level { capacity: self.capacity, usable, claimed }
    }

    fn take_back(&mut self, core: u64, bytes: u64) {
        if let Some(member) = self.members.iter_mut().find(|member| member.core == core) {
            member.claimed = member.claimed.saturating_sub(bytes);
        }
    }

    fn stop_growing(&mut self, bytes: u64) {
        self.growing = self.growing.saturating_sub(bytes);
        self.pressed &= self.growing > 0;
    }

    fn others(&self, core: u64) -> Vec<Arc<Shared>> {
        self.members.iter().filter(|member| member.core != core).filter_map(|member| member.shared.upgrade()).collect()
    }
}
