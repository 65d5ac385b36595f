#![forbid(unsafe_code)]
//! One attempt to grow, between the bytes that it has taken and what it publishes.

use super::domain::{Domain, Units};
use super::ledger::{Ledger, tell};
use super::refusal::Refusal;
use super::ticket::Receipt;

/// Device bytes for an attempt to grow. Dropped, it gives them back: totals and epochs are as before, but where somebody was refused
/// these very bytes in between, who is told then.
#[derive(Debug)]
#[must_use = "dropped, the bytes go back"]
pub struct Growing {
    ledger: Ledger,
    bytes: u64,
    /// The bytes have found an owner.
    settled: bool,
}

impl Growing {
    pub(super) const fn new(ledger: Ledger, bytes: u64) -> Self {
        Self { ledger, bytes, settled: false }
    }

    /// Bytes that are held.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Publishes what was installed with the bytes: all totals at once, one step of each epoch, one of `resized` in all.
    /// [`Ticket::resized`](super::Ticket::resized) of the receipt proves the growth.
    ///
    /// # Errors
    /// `Bounds` above what can be installed, `Exhausted`, `Poisoned`; nothing was published, and the bytes go back.
    pub fn publish(mut self, gained: &Units) -> Result<Receipt, Refusal> {
        let bytes = self.bytes;
        let shared = self.ledger.shared();
        let receipt = shared.with(|inner| {
            let receipt = inner.book.install(gained)?;
            inner.stop_growing(bytes);
            shared.account.keep(bytes);
            Ok(receipt)
        })?;
        self.settled = true;
        Ok(receipt)
    }

    /// Keeps the bytes claimed for ever: what was allocated cannot be proven unused.
    pub fn quarantine(mut self) {
        let bytes = self.bytes;
        let shared = self.ledger.shared();
        // Poisoned books change no more; the bytes stay claimed there too.
        let _ = shared.with(|inner| {
            inner.stop_growing(bytes);
            inner.quarantined_bytes = inner.quarantined_bytes.saturating_add(bytes);
            shared.account.keep(bytes);
            Ok(())
        });
        self.settled = true;
    }
}

impl Drop for Growing {
    fn drop(&mut self) {
        if self.settled {
            return;
        }
        let bytes = self.bytes;
        let shared = self.ledger.shared();
        let mut others = None;
        // Poisoned books change no more; whoever waits has been told.
        let _ = shared.with(|inner| {
            let budget = inner.pressed;
            inner.stop_growing(bytes);
            let claimed = &mut inner.book.claimed[Domain::Budget.index()];
            *claimed = claimed.saturating_sub(bytes);
            others = shared.account.give_up(inner.book.core.get(), bytes);
            let mut moved = if budget { Domain::Budget.bit() } else { 0 };
            moved |= if others.is_some() { Domain::Device.bit() } else { 0 };
            if inner.book.check_epochs(moved).is_ok() {
                inner.book.advance(moved);
            }
            Ok(())
        });
        tell(others.unwrap_or_default());
    }
}
