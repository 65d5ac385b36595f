#![forbid(unsafe_code)]
//! One bounded attempt to grow (X-29 .. X-33).
//!
//! What can grow is the workspace: the memory that rows of a batch lie in. The pool of pages is made with its runtime, in one extent.
//!
//! # Limits
//! Reclaiming idle memory first finds nothing here: the only arena is the one to be grown, which is not taken from the demand that
//! needs it, and the pool has no extent that could go alone.

use std::sync::atomic::Ordering;

use super::core::Shared;
use crate::capacity::{Blocked, Domain, NOTHING, Receipt, Refusal, Remedy};
use crate::runtime::Runtime;

impl<R: Runtime> Shared<R> {
    pub(super) fn grow_once(&self, blocked: &Blocked) -> Result<Receipt, Refusal> {
        let seen = self.capacity.now();
        let missing = self.ledger.missing(blocked)?;
        if missing == NOTHING {
            // Somebody else has grown it, which its ticket shows. Where it does not, the evidence is not ours: whoever is told to try again then
            // would do so for ever.
            if !self.capacity.changed(&blocked.ticket)? {
                self.counters.doubts.fetch_add(1, Ordering::Relaxed);
                return Err(Refusal::Blocked(Blocked::on(Remedy::Wait, blocked.shortfalls(), &seen)));
            }
            return Ok(Receipt { freed: NOTHING, gained: NOTHING, decoding: false, pending: false, at: seen });
        }
        let bytes = missing[Domain::Workspace.index()];
        let others = Domain::ALL.iter().any(|&domain| domain != Domain::Workspace && missing[domain.index()] > 0);
        if others {
            // Nobody can install these; what is short comes back by being freed, or not at all.
            return Err(Refusal::Blocked(Blocked::on(Remedy::Wait, blocked.shortfalls(), &seen)));
        }
        let growing = self.ledger.take_bytes(bytes, blocked)?;
        let total = self.ledger.total(Domain::Workspace).saturating_add(bytes);
        let installed = {
            let mut turn = self.submission.enter();
            turn.workshop.answers.try_reserve_bytes(total)
        };
        if !installed {
            // Dropped, the attempt gives its bytes back.
            drop(growing);
            return Err(Refusal::Blocked(Blocked::on(Remedy::Wait, blocked.shortfalls(), &seen)));
        }
        let receipt = growing.publish(&missing)?;
        self.counters.growths.fetch_add(1, Ordering::Relaxed);
        Ok(receipt)
    }
}
