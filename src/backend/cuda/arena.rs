//! What a section brings to the device: everything in one copy, at the same places each time, so that a graph finds it there.
//!
//! ```text
//! pinned   [ front | half 0 ........ ]  [ front | half 1 ........ ]      sections take turns, each fills its half
//! device   [ front | one of the same size ........................ ]      in stream order, behind the section before
//! ```
//! The front is for what precedes some of the steps that are alike, so that nothing behind it has another place in those.
//!
//! # Invariants
//! Pinned bytes are written only when no copy reads them: a half is taken up after the event behind the copies of its last section (P-2),
//! and within a section each byte is given out once.
//!
//! # Limits
//! As many bytes a section as it was made for ([`arena_bytes`]). Where more is wanted, [`Arena::place`] has none, and the section goes on plainly.

use super::driver::{At, Driver, Event, Memory, Pinned};
use crate::backend::BackendError;

/// Bytes of a half beside angles: block tables of 64 sequences of 64,000 tokens, masks of as many rows over 256,000 tokens, and some room.
const LIST_BYTES: usize = 4 << 20;
/// Ways of turning that a family has angles of, at most.
const TURNS: usize = 2;
/// Bytes of a half, at most.
const MOST_BYTES: usize = 32 << 20;
/// Bytes of the front.
const FRONT_BYTES: usize = 4 << 10;

/// Bytes of a half for walks of so many rows with heads of so many dimensions, which have an angle each at most.
pub(super) fn arena_bytes(rows: usize, head_dim: usize) -> usize {
    let angles = rows.saturating_mul(head_dim).saturating_mul(TURNS * size_of::<f32>());
    LIST_BYTES.saturating_add(angles).min(MOST_BYTES).next_multiple_of(ALIGNMENT_BYTES)
}

/// Places are multiples of this.
const ALIGNMENT_BYTES: usize = 16;

struct Half {
    pinned: Pinned,
    /// Behind the last copy from it, once there was one.
    copied: Event,
    was_copied: bool,
}

pub(super) struct Arena {
    halves: [Half; 2],
    device: Memory,
    current: usize,
    /// Bytes that are given out.
    used: usize,
    /// Bytes of them that are on their way to the device, or there.
    brought: usize,
    /// Whether the front was given out, which happens once in a section.
    front_taken: bool,
}

impl Arena {
    pub(super) fn new(driver: &Driver, bytes: usize) -> Result<Self, BackendError> {
        let half = || Ok(Half { pinned: driver.pinned(bytes)?, copied: driver.event()?, was_copied: false });
        let halves = [half()?, half()?];
        Ok(Self { halves, device: driver.memory(bytes)?, current: 0, used: 0, brought: 0, front_taken: false })
    }

    /// Whether a section may bring so many bytes.
    pub(super) fn holds(&self, bytes: usize) -> bool {
        bytes <= self.device.bytes()
    }

    /// Takes up the other half, when the copies from it are done.
    pub(super) fn begin(&mut self, driver: &Driver) -> Result<(), BackendError> {
        self.current = 1 - self.current;
        let half = &self.halves[self.current];
        if half.was_copied && !driver.has_passed(&half.copied)? {
            driver.wait_for(&half.copied)?;
        }
        (self.used, self.brought, self.front_taken) = (FRONT_BYTES, FRONT_BYTES, false);
        Ok(())
    }

    /// The front, as [`Arena::place`]: once, and before any other place of the section is asked for.
    pub(super) fn place_in_front(&mut self, bytes: usize) -> Option<(&mut [u8], At<u8>)> {
        if self.front_taken || (self.used, self.brought) != (FRONT_BYTES, FRONT_BYTES) || bytes > FRONT_BYTES {
            return None;
        }
        (self.brought, self.front_taken) = (0, true);
        Some(self.at(0, bytes))
    }

    /// A place for `bytes` bytes: where the host writes them, and where they will lie on the device. None where they do not fit.
    pub(super) fn place(&mut self, bytes: usize) -> Option<(&mut [u8], At<u8>)> {
        let place = self.used;
        let end = place.checked_add(bytes).filter(|&end| end <= self.device.bytes())?;
        self.used = end.next_multiple_of(ALIGNMENT_BYTES);
        Some(self.at(place, bytes))
    }

    /// Bytes that were just given out.
    fn at(&mut self, place: usize, bytes: usize) -> (&mut [u8], At<u8>) {
        // SAFETY: no copy reads these bytes: they are given out once in a section, and `begin` waited for the copies of the one before.
        let target = unsafe { self.halves[self.current].pinned.part(place, bytes) };
        (target, self.device.at::<u8>().from(place).first(bytes))
    }

    /// Brings over what was placed since the last time.
    pub(super) fn bring(&mut self, driver: &Driver) -> Result<(), BackendError> {
        let (from, bytes) = (self.brought, self.used - self.brought);
        let to = self.device.at::<u8>().from(from);
        if bytes == 0 {
            return Ok(());
        }
        self.brought = self.used;
        let half = &mut self.halves[self.current];
        // SAFETY: these bytes are not given out again before the event behind this copy was waited for, by `place` and `begin`.
        unsafe { driver.upload(to, &half.pinned, from, bytes) }?;
        half.was_copied = true;
        driver.note(&half.copied)
    }
}
