//! What goes from the host to the device for one operation: lists of rows, tokens, pages; rows themselves.
//!
//! ```text
//! pinned   [ half 0 ........ ][ half 1 ........ ]     filled from the front; a full half gets an event and the other is taken up,
//! device   [ half 0 ........ ][ half 1 ........ ]     after its own event
//! ```
//! # Invariants
//! - Pinned bytes are written only when no copy reads them: bytes ahead of `used` were last read before the event of this half, which was
//!   waited for when the half was taken up (P-2).
//! - A list on the device is for the next launch: the copy that overwrites it comes later in the same stream.
//!
//! # Limits
//! A list fits a half; [`Staging::reserve`] makes halves large enough, so a step gets no memory.

use super::driver::{At, Driver, Event, Memory, Pinned};
use crate::backend::BackendError;

/// Bytes of a half, at least.
pub(super) const HALF_BYTES: usize = 1 << 20;
/// Places of lists are multiples of this.
const ALIGNMENT_BYTES: usize = 16;

struct Half {
    pinned: Pinned,
    device: Memory,
    /// Behind all copies of the half, once it was left.
    left: Event,
    was_left: bool,
}

pub(super) struct Staging {
    halves: [Half; 2],
    /// Which one is filled.
    current: usize,
    /// Bytes of it that are taken.
    used: usize,
}

impl Staging {
    pub(super) fn new(driver: &Driver, half_bytes: usize) -> Result<Self, BackendError> {
        let half = || {
            Ok(Half {
                pinned: driver.pinned(half_bytes)?,
                device: driver.memory(half_bytes)?,
                left: driver.event()?,
                was_left: false,
            })
        };
        Ok(Self { halves: [half()?, half()?], current: 0, used: 0 })
    }

    /// Makes lists of up to `bytes` bytes fit.
    pub(super) fn reserve(&mut self, driver: &Driver, bytes: usize) -> Result<(), BackendError> {
        if bytes > self.half_bytes() {
            *self = Self::new(driver, bytes.next_multiple_of(HALF_BYTES))?;
        }
        Ok(())
    }

    fn half_bytes(&self) -> usize {
        self.halves[0].pinned.len()
    }

    /// A place for `bytes` bytes in the current half, taking up the other one where they do not fit.
    fn place(&mut self, driver: &Driver, bytes: usize) -> Result<usize, BackendError> {
        if bytes > self.half_bytes() {
            return Err(BackendError::Device { reason: format!("a list of {bytes} bytes is too long") });
        }
        if self.used + bytes > self.half_bytes() {
            let left = &mut self.halves[self.current];
            driver.note(&left.left)?;
            left.was_left = true;
            self.current = 1 - self.current;
            let taken = &self.halves[self.current];
            if taken.was_left {
                driver.wait_for(&taken.left)?;
            }
            self.used = 0;
        }
        let place = self.used;
        self.used = (place + bytes).next_multiple_of(ALIGNMENT_BYTES).min(self.half_bytes());
        Ok(place)
    }

    /// Puts bytes into the pinned memory; answers where.
    fn put(&mut self, driver: &Driver, bytes: &[u8]) -> Result<usize, BackendError> {
        let place = self.place(driver, bytes.len())?;
        let half = &mut self.halves[self.current];
        // SAFETY: no copy reads these bytes: `place` gives each out once, until the event behind all copies of the half was waited for.
        let target = unsafe { half.pinned.part(place, bytes.len()) };
        target.copy_from_slice(bytes);
        Ok(place)
    }

    /// A list for the next launch.
    pub(super) fn list(&mut self, driver: &Driver, words: &[u32]) -> Result<At<u32>, BackendError> {
        let bytes: &[u8] = bytemuck::cast_slice(words);
        let place = self.put(driver, bytes)?;
        let half = &self.halves[self.current];
        let to = half.device.at::<u8>().from(place).first(bytes.len());
        // SAFETY: these bytes are not written again before the event behind this copy was waited for, by `place`.
        unsafe { driver.upload(to, &half.pinned, place, bytes.len()) }?;
        Ok(to.cast())
    }

    /// Copies bytes to a place on the device, piece by piece.
    pub(super) fn fill(&mut self, driver: &Driver, to: At<u8>, bytes: &[u8]) -> Result<(), BackendError> {
        let step = self.half_bytes();
        for (piece, bytes) in bytes.chunks(step).enumerate() {
            let place = self.put(driver, bytes)?;
            let half = &self.halves[self.current];
            // SAFETY: as above.
            unsafe { driver.upload(to.from(piece * step), &half.pinned, place, bytes.len()) }?;
        }
        Ok(())
    }
}
