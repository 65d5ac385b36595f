//! What a section brings to the device: everything in one copy, at the same places each time, so that a graph finds it there.
//!
//! ```text
//! pinned   [ half 0 ........ ]  [ half 1 ........ ]      sections take turns, each fills its half from the front
//! device   [ one of the same size ................ ]      in stream order, behind the section before
//! ```
//! # Invariants
//! Pinned bytes are written only when no copy reads them: a half is taken up after the event behind the copies of its last section (P-2),
//! and within a section each byte is given out once.
//!
//! # Limits
//! [`ARENA_BYTES`] a section. Where more is wanted, [`Arena::place`] has none, and the section goes on without a graph.

use super::driver::{At, Driver, Event, Memory, Pinned};
use crate::backend::BackendError;

/// Bytes of a half: block tables of 64 sequences of 64,000 tokens, masks of as many rows over 256,000 tokens, and some room.
pub(super) const ARENA_BYTES: usize = 4 << 20;
/// Places are multiples of this.
const ALIGNMENT_BYTES: usize = 16;

struct Half {
    pinned: Pinned,
    /// Behind all copies of the half's last section.
    left: Event,
    was_left: bool,
}

pub(super) struct Arena {
    halves: [Half; 2],
    device: Memory,
    current: usize,
    /// Bytes that are given out.
    used: usize,
    /// Bytes of them that are on their way to the device, or there.
    brought: usize,
}

impl Arena {
    pub(super) fn new(driver: &Driver) -> Result<Self, BackendError> {
        let half = || Ok(Half { pinned: driver.pinned(ARENA_BYTES)?, left: driver.event()?, was_left: false });
        let halves = [half()?, half()?];
        Ok(Self { halves, device: driver.memory(ARENA_BYTES)?, current: 0, used: 0, brought: 0 })
    }

    /// Takes up the other half, when the copies from it are done.
    pub(super) fn begin(&mut self, driver: &Driver) -> Result<(), BackendError> {
        self.current = 1 - self.current;
        let half = &self.halves[self.current];
        if half.was_left {
            driver.wait_for(&half.left)?;
        }
        (self.used, self.brought) = (0, 0);
        Ok(())
    }

    /// A place for `bytes` bytes: where the host writes them, and where they will lie on the device. None where they do not fit.
    pub(super) fn place(&mut self, bytes: usize) -> Option<(&mut [u8], At<u8>)> {
        let place = self.used;
        let end = place.checked_add(bytes).filter(|&end| end <= ARENA_BYTES)?;
        self.used = end.next_multiple_of(ALIGNMENT_BYTES);
        // SAFETY: no copy reads these bytes: they are given out once in a section, and `begin` waited for the copies of the one before.
        let target = unsafe { self.halves[self.current].pinned.part(place, bytes) };
        Some((target, self.device.at::<u8>().from(place).first(bytes)))
    }

    /// Brings over what was placed since the last time.
    pub(super) fn bring(&mut self, driver: &Driver) -> Result<(), BackendError> {
        let (from, bytes) = (self.brought, self.used - self.brought);
        let to = self.device.at::<u8>().from(from);
        self.brought = self.used;
        // SAFETY: these bytes are not given out again before the event behind this copy was waited for, by `place` and `begin`.
        unsafe { driver.upload(to, &self.halves[self.current].pinned, from, bytes) }
    }

    /// The section is over: its half is free when the copies so far are done.
    pub(super) fn end(&mut self, driver: &Driver) -> Result<(), BackendError> {
        let half = &mut self.halves[self.current];
        half.was_left = true;
        driver.note(&half.left)
    }
}
