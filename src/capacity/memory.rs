#![forbid(unsafe_code)]
//! The level of memory, and what must hold of it (X-57).
//!
//! ```text
//!   capacity of the device
//!   |-- usable: what the cores of an account may claim together
//!   |     |-- claimed by all cores
//!   |     |     |-- claimed by this core
//!   |     |           |-- static: weights, tables     |-- resident: pool and arenas     |-- quarantined     |-- growing
//!   |     |                                                 |-- free                     (what is left: not accounted for yet)
//! ```

use super::refusal::{Bad, Refusal};

/// Memory at one moment: bytes, but for the four that count pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Bytes that the device has.
    pub capacity: u64,
    /// Bytes that may be claimed.
    pub usable: u64,
    /// Bytes that all cores of the account have claimed.
    pub device_claimed: u64,
    /// Bytes that this core has claimed.
    pub own_claimed: u64,
    /// Bytes that never change: weights, tables.
    pub static_bytes: u64,
    /// Bytes of the pool and of arenas.
    pub resident: u64,
    /// Bytes of those that nobody uses.
    pub resident_free: u64,
    /// Bytes that an attempt to grow has claimed and not published yet; takes part in no inequality.
    pub growing: u64,
    /// Bytes that are never handed out again.
    pub quarantined: u64,
    /// Bytes of a page.
    pub block_size: u64,
    /// Pages that are installed, without those in quarantine.
    pub blocks_total: u64,
    /// Pages on the free list.
    pub blocks_free: u64,
    /// Pages that only cached state holds which may be evicted.
    pub blocks_evictable: u64,
}

impl Memory {
    /// Checks what must always hold.
    ///
    /// # Errors
    /// `Bounds`.
    pub fn check(&self) -> Result<(), Refusal> {
        let parts = self.static_bytes.checked_add(self.resident).and_then(|sum| sum.checked_add(self.quarantined));
        let blocks = self.blocks_free.checked_add(self.blocks_evictable);
        let holds = self.usable <= self.capacity
            && self.device_claimed <= self.usable
            && self.own_claimed <= self.device_claimed
            && self.resident_free <= self.resident
            && parts.is_some_and(|parts| parts <= self.own_claimed)
            && blocks.is_some_and(|blocks| blocks <= self.blocks_total);
        if holds { Ok(()) } else { Err(Bad::Bounds.into()) }
    }

    /// Bytes that could be used now: those nobody has claimed, and the free ones of this core.
    pub const fn available(&self) -> u64 {
        self.usable.saturating_sub(self.device_claimed).saturating_add(self.resident_free)
    }

    /// Bytes that could not.
    pub const fn used(&self) -> u64 {
        self.usable.saturating_sub(self.available())
    }

    /// Bytes of the pool and of arenas that somebody uses.
    pub const fn in_use(&self) -> u64 {
        self.resident.saturating_sub(self.resident_free)
    }
}
