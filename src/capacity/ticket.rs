#![forbid(unsafe_code)]
//! What was seen of the epochs, and what an operation moved.

use std::num::NonZeroU64;

use super::domain::{Domain, Units, domains_of};
use super::refusal::{Bad, Refusal};

/// An observation of the epochs of one core; a ticket *watches* a set of domains.
///
/// Data without authority: a copy of it can claim, free and retry nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket {
    core: NonZeroU64,
    watch: u8,
    seen: Units,
    released: u64,
    resized: u64,
}

impl Ticket {
    pub(super) const fn new(core: NonZeroU64, watch: u8, seen: Units, released: u64, resized: u64) -> Self {
        Self { core, watch, seen, released, resized }
    }

    /// A ticket that came back from outside, as its parts.
    ///
    /// # Errors
    /// `Bounds` for core 0 or a set with unknown domains.
    pub fn from_parts(core: u64, watch: u8, seen: Units, released: u64, resized: u64) -> Result<Self, Refusal> {
        let core = NonZeroU64::new(core).filter(|_| watch & !super::domain::EVERY == 0).ok_or(Bad::Bounds)?;
        Ok(Self { core, watch, seen, released, resized })
    }

    /// The coordinator that it is of.
    pub const fn core(&self) -> NonZeroU64 {
        self.core
    }

    /// The domains that it watches, as a set of [`Domain::bit`].
    pub const fn watches(&self) -> u8 {
        self.watch
    }

    /// The epoch that was seen.
    pub const fn seen(&self, domain: Domain) -> u64 {
        self.seen[domain.index()]
    }

    /// All epochs that were seen.
    pub const fn epochs(&self) -> &Units {
        &self.seen
    }

    /// Operations that had freed something; for audits only.
    pub const fn released(&self) -> u64 {
        self.released
    }

    /// Publications of totals until then; for audits, and for the proof that something grew.
    pub const fn resized(&self) -> u64 {
        self.resized
    }

    /// The same observation, watching other domains.
    pub const fn watching(self, watch: u8) -> Self {
        Self { watch: watch & super::domain::EVERY, ..self }
    }

    /// Watches what either watches; of each domain the older observation counts, so that news for either owner wakes.
    ///
    /// # Errors
    /// `Foreign` when they are of different coordinators.
    pub fn union(a: &Self, b: &Self) -> Result<Self, Refusal> {
        if a.core != b.core {
            return Err(Bad::Foreign.into());
        }
        let mut union = Self { watch: a.watch | b.watch, ..*a };
        for domain in Domain::ALL {
            let of = |ticket: &Self| (ticket.watch & domain.bit() != 0).then_some(ticket.seen(domain));
            union.seen[domain.index()] = match (of(a), of(b)) {
                (Some(seen), None) | (None, Some(seen)) => seen,
                _ => a.seen(domain).min(b.seen(domain)),
            };
        }
        union.released = a.released.min(b.released);
        union.resized = a.resized.min(b.resized);
        Ok(union)
    }

    /// Whether a watched epoch has advanced beyond what was seen. All are read before the answer.
    pub(super) fn changed(&self, epochs: &Units) -> Result<bool, Bad> {
        let mut ahead = false;
        for domain in domains_of(self.watch) {
            match epochs[domain.index()].cmp(&self.seen(domain)) {
                std::cmp::Ordering::Less => return Err(Bad::Regressed),
                std::cmp::Ordering::Equal => {}
                std::cmp::Ordering::Greater => ahead = true,
            }
        }
        Ok(ahead)
    }
}

/// What an operation gave back, and what it took or installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Receipt {
    /// Units that are free now and were not before.
    pub freed: Units,
    /// Units that were claimed, or installed.
    pub gained: Units,
    /// A sequence that was closed had begun to decode.
    pub decoding: bool,
    /// Something is still held, and comes free later.
    pub pending: bool,
    /// The epochs afterwards; watches the domains that were moved.
    pub at: Ticket,
}
