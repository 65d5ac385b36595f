#![forbid(unsafe_code)]
//! The books of one core: what there is, who has how much of it, and the epochs. Pure: no lock, no thread, no waker.
//!
//! ```text
//!   max     what can be installed                    used = measured + claimed
//!   total   what is installed                        measured: what the pool says of itself, restated at the end of a submission
//!   free    total - used (+ evictable)               claimed:  what was promised, and is in no pool yet
//!                                                    quarantined: used for ever; total and max are told without it
//! ```
//!
//! # Invariants
//! - An operation checks all that could refuse it before it changes anything.
//! - An epoch advances by one when an operation can make a blocked demand satisfiable, and never otherwise (X-21).

use std::num::NonZeroU64;

use super::demand::{Demand, Settlement};
use super::domain::{DOMAINS, Domain, NOTHING, Units, domains_of, set_of};
use super::refusal::{Bad, Blocked, Lack, Refusal, Remedy, Shortfall};
use super::ticket::{Receipt, Ticket};

#[derive(Clone, Debug)]
pub(super) struct Book {
    pub(super) core: NonZeroU64,
    pub(super) total: Units,
    pub(super) max: Units,
    pub(super) measured: Units,
    pub(super) claimed: Units,
    pub(super) quarantined: Units,
    /// Pages among the measured ones that only cached state holds which may be evicted.
    pub(super) evictable: u64,
    pub(super) epochs: Units,
    pub(super) released: u64,
    pub(super) resized: u64,
    /// Operations whose owner was in doubt (X-28).
    pub(super) faults: u64,
    pub(super) closed: bool,
    /// Claims that are upper bounds and go back at the end of a submission.
    pub(super) provisional: Units,
    /// Domains that somebody was refused while there were such claims, as a set.
    pub(super) pressed: u8,
    /// Domains whose epoch advanced in the operation at hand.
    pub(super) moved: u8,
}

impl Book {
    pub(super) fn new(core: NonZeroU64, total: Units, max: Units) -> Self {
        Self {
            core,
            total,
            max,
            measured: NOTHING,
            claimed: NOTHING,
            quarantined: NOTHING,
            evictable: 0,
            epochs: [1; DOMAINS],
            released: 0,
            resized: 0,
            faults: 0,
            closed: false,
            provisional: NOTHING,
            pressed: 0,
            moved: 0,
        }
    }

    pub(super) fn ticket(&self, watch: u8) -> Ticket {
        Ticket::new(self.core, watch, self.epochs, self.released, self.resized)
    }

    pub(super) fn used(&self, domain: Domain) -> u64 {
        let at = domain.index();
        self.measured[at].saturating_add(self.claimed[at])
    }

    /// What is installed and not in quarantine; `u64::MAX` is without bound.
    pub(super) fn total(&self, domain: Domain) -> u64 {
        without(self.total[domain.index()], self.quarantined[domain.index()])
    }

    /// What can be installed, without what is in quarantine (X-20).
    pub(super) fn max(&self, domain: Domain) -> u64 {
        without(self.max[domain.index()], self.quarantined[domain.index()])
    }

    /// What is free, cached pages that may go included unless the free list alone counts.
    pub(super) fn free(&self, domain: Domain, firm: bool) -> u64 {
        let evictable = if domain == Domain::Blocks && !firm { self.evictable } else { 0 };
        let (total, used) = (self.total(domain), self.used(domain));
        match total.checked_sub(used) {
            Some(free) => free.saturating_add(evictable),
            None => evictable.saturating_sub(used - total),
        }
    }

    /// Whether a demand fits; it changes nothing (X-16, X-17).
    ///
    /// # Errors
    /// `Never`, `Blocked`, or `Policy` for a pressure that means nothing here.
    pub(super) fn decide(&self, demand: &Demand, pressure: Remedy) -> Result<(), Refusal> {
        if !matches!(pressure, Remedy::Wait | Remedy::Recompute) {
            return Err(Bad::Policy.into());
        }
        let mut short = Entries::new();
        let mut never = false;
        for domain in Domain::ALL {
            let Some(entry) = self.shortfall(domain, demand) else { continue };
            if entry.lack == Lack::Never && !never {
                // Only the impossible is told of then.
                short = Entries::new();
                never = true;
            }
            if !never || entry.lack == Lack::Never {
                short.push(entry);
            }
        }
        let entries = short.entries();
        if entries.is_empty() {
            return Ok(());
        }
        let grows = entries.iter().any(|entry| entry.lack == Lack::Growth);
        let flight_alone = entries.iter().all(|entry| entry.domain == Domain::Flight);
        let remedy = match (grows, flight_alone) {
            (true, _) => Remedy::Grow,
            (false, true) => Remedy::Quiesce,
            (false, false) => pressure,
        };
        let blocked = Blocked::on(remedy, entries, &self.ticket(0));
        // Waiting for the impossible is waiting for nothing.
        Err(if never {
            Refusal::Never(Blocked { ticket: self.ticket(0), ..blocked })
        } else {
            Refusal::Blocked(blocked)
        })
    }

    /// How one domain is short of a demand, the strongest first.
    fn shortfall(&self, domain: Domain, demand: &Demand) -> Option<Shortfall> {
        let at = domain.index();
        let (claim, fit) = (demand.claim[at], demand.fit[at].max(demand.claim[at]));
        if fit == 0 {
            return None;
        }
        let (total, max) = (self.total(domain), self.max(domain));
        // What comes back first pays for what was promised of it.
        let evictable = if domain == Domain::Blocks && !demand.firm { self.evictable } else { 0 };
        let room = total.saturating_add(evictable).saturating_add(demand.returns[at]);
        let free = room.saturating_sub(self.used(domain)).min(total);
        let entry = |lack, need| Some(Shortfall { domain, lack, need, free, total, max });
        match () {
            () if fit > max => entry(Lack::Never, fit),
            () if fit > total => entry(Lack::Growth, fit),
            () if claim > free => entry(Lack::Now, claim),
            () if fit > free => entry(Lack::Fit, fit),
            () => None,
        }
    }

    /// Takes a demand that fits (X-16). What the operation itself gives back is not taken twice.
    ///
    /// # Errors
    /// As [`decide`](Self::decide); `Exhausted`.
    pub(super) fn claim(&mut self, demand: &Demand, pressure: Remedy) -> Result<Units, Refusal> {
        self.decide(demand, pressure)?;
        let mut after = self.claimed;
        let mut taken = NOTHING;
        for at in 0..DOMAINS {
            taken[at] = demand.claim[at].saturating_sub(demand.returns[at]);
            after[at] = after[at].checked_add(taken[at]).ok_or(Bad::Exhausted)?;
        }
        self.claimed = after;
        if demand.provisional {
            // At most what is claimed.
            self.provisional = std::array::from_fn(|at| self.provisional[at].saturating_add(taken[at]));
        }
        Ok(taken)
    }

    /// Notes a refusal: whoever got it hears of provisional claims that come back unused.
    pub(super) fn note_refusal(&mut self, refusal: &Refusal) {
        if let Refusal::Blocked(blocked) = refusal {
            self.pressed |= blocked.ticket.watches() & set_of(&self.provisional);
        }
    }

    /// Gives claims back. Of a domain where less is claimed nothing is freed (X-28).
    ///
    /// # Errors
    /// `Exhausted`.
    pub(super) fn release(&mut self, units: &Units) -> Result<Receipt, Refusal> {
        self.retire(units, &NOTHING)
    }

    /// Gives claims back, and counts measured units as free; of each domain one step for both.
    ///
    /// # Errors
    /// `Exhausted`.
    pub(super) fn retire(&mut self, claimed: &Units, measured: &Units) -> Result<Receipt, Refusal> {
        self.check_epochs(set_of(claimed) | set_of(measured))?;
        let mut freed = self.take_claims(claimed);
        for (at, &count) in measured.iter().enumerate() {
            if self.measured[at] < count {
                self.faults += 1;
                continue;
            }
            freed[at] = freed[at].saturating_add(count);
            self.measured[at] -= count;
        }
        self.evictable = self.evictable.min(self.measured[Domain::Blocks.index()]);
        Ok(self.freed(freed, set_of(&freed)))
    }

    /// Restates what the pool says, and returns claims.
    ///
    /// # Errors
    /// `Exhausted`.
    pub(super) fn settle(&mut self, settlement: &Settlement) -> Result<Receipt, Refusal> {
        // Of the domains that could advance, not only of those that do: it must be known before anything changes.
        let mut could = settlement.freed | set_of(&settlement.back);
        for domain in Domain::ALL {
            let restated = settlement.measured[domain.index()].is_some();
            could |= if restated { domain.bit() } else { 0 };
        }
        self.check_epochs(could)?;
        let mut moved = settlement.freed;
        let mut freed = NOTHING;
        let before: Units = std::array::from_fn(|at| self.measured[at].saturating_add(self.claimed[at]));
        self.take_claims(&settlement.back);
        for domain in Domain::ALL {
            let at = domain.index();
            let held = self.measured[at];
            if let Some(measured) = settlement.measured[at] {
                self.measured[at] = measured;
            }
            let spare =
                self.provisional[at] > 0 && self.provisional[at] >= settlement.back[at] && self.measured[at] >= held;
            self.provisional[at] = self.provisional[at].saturating_sub(settlement.back[at]);
            freed[at] = before[at].saturating_sub(self.used(domain));
            let news = freed[at] > 0 && (!spare || self.pressed & domain.bit() != 0);
            moved |= if news { domain.bit() } else { 0 };
        }
        self.pressed &= set_of(&self.provisional);
        if let Some(evictable) = settlement.evictable {
            moved |= if evictable > self.evictable { Domain::Blocks.bit() } else { 0 };
            self.evictable = evictable.min(self.measured[Domain::Blocks.index()]);
        }
        Ok(self.freed(freed, moved))
    }

    /// Takes claimed and measured units out of circulation (X-28, X-63).
    ///
    /// # Errors
    /// `Bounds` when so much is not there.
    pub(super) fn quarantine(&mut self, claimed: &Units, measured: &Units) -> Result<(), Refusal> {
        if (0..DOMAINS).any(|at| self.claimed[at] < claimed[at] || self.measured[at] < measured[at]) {
            return Err(Bad::Bounds.into());
        }
        for (at, (&claimed, &measured)) in claimed.iter().zip(measured).enumerate() {
            self.claimed[at] -= claimed;
            self.measured[at] -= measured;
            self.quarantined[at] = self.quarantined[at].saturating_add(claimed).saturating_add(measured);
        }
        self.evictable = self.evictable.min(self.measured[Domain::Blocks.index()]);
        Ok(())
    }

    /// Brings units back into circulation.
    ///
    /// # Errors
    /// `Bounds` when so much is not in quarantine; `Exhausted`.
    pub(super) fn lift(&mut self, units: &Units) -> Result<Receipt, Refusal> {
        if (0..DOMAINS).any(|at| self.quarantined[at] < units[at]) {
            return Err(Bad::Bounds.into());
        }
        self.check_epochs(set_of(units))?;
        for (at, &count) in units.iter().enumerate() {
            self.quarantined[at] -= count;
        }
        Ok(self.freed(*units, set_of(units)))
    }

    /// Raises totals, all at once (X-30).
    ///
    /// # Errors
    /// `Bounds` above a maximum; `Exhausted`. Nothing changed.
    pub(super) fn install(&mut self, gained: &Units) -> Result<Receipt, Refusal> {
        let grown = set_of(gained);
        self.check_epochs(grown)?;
        let resized = self.resized.checked_add(1).ok_or(Bad::Exhausted)?;
        let mut total = self.total;
        for at in 0..DOMAINS {
            total[at] = total[at].checked_add(gained[at]).filter(|&sum| sum <= self.max[at]).ok_or(Bad::Bounds)?;
        }
        self.total = total;
        if grown != 0 {
            self.resized = resized;
        }
        self.advance(grown);
        Ok(Receipt { gained: *gained, ..self.receipt(NOTHING, grown) })
    }

    /// Lowers totals: no epoch moves (X-21).
    ///
    /// # Errors
    /// `Bounds` when more than is free would go.
    pub(super) fn shrink(&mut self, units: &Units) -> Result<(), Refusal> {
        let too_much = |domain: &Domain| units[domain.index()] > self.free(*domain, true);
        if Domain::ALL.iter().any(too_much) {
            return Err(Bad::Bounds.into());
        }
        for (at, &count) in units.iter().enumerate() {
            self.total[at] -= count;
        }
        Ok(())
    }

    /// One step of the epoch of each of these domains.
    pub(super) fn advance(&mut self, domains: u8) {
        for domain in domains_of(domains) {
            // Whoever changes something has checked that it can be counted.
            self.epochs[domain.index()] = self.epochs[domain.index()].saturating_add(1);
        }
        self.moved |= domains;
    }

    /// Refuses what could not be counted.
    pub(super) fn check_epochs(&self, domains: u8) -> Result<(), Refusal> {
        let spent = domains_of(domains).any(|domain| self.epochs[domain.index()] == u64::MAX);
        if spent || self.released == u64::MAX { Err(Bad::Exhausted.into()) } else { Ok(()) }
    }

    /// Takes claims back where they are certain; the others go to quarantine.
    fn take_claims(&mut self, units: &Units) -> Units {
        let mut freed = NOTHING;
        for at in 0..DOMAINS {
            if self.claimed[at] < units[at] {
                self.faults += 1;
                self.quarantined[at] = self.quarantined[at].saturating_add(self.claimed[at]);
                self.claimed[at] = 0;
                continue;
            }
            self.claimed[at] -= units[at];
            freed[at] = units[at];
        }
        freed
    }

    fn freed(&mut self, freed: Units, moved: u8) -> Receipt {
        if moved != 0 {
            self.released += 1;
        }
        self.advance(moved);
        self.receipt(freed, moved)
    }

    fn receipt(&self, freed: Units, watch: u8) -> Receipt {
        Receipt { freed, gained: NOTHING, decoding: false, pending: false, at: self.ticket(watch) }
    }
}

/// At most one entry per domain.
struct Entries {
    entries: [Shortfall; DOMAINS],
    n: usize,
}

impl Entries {
    fn new() -> Self {
        Self { entries: [Shortfall::UNUSED; DOMAINS], n: 0 }
    }

    fn push(&mut self, entry: Shortfall) {
        if let Some(place) = self.entries.get_mut(self.n) {
            *place = entry;
            self.n += 1;
        }
    }

    fn entries(&self) -> &[Shortfall] {
        self.entries.get(..self.n).unwrap_or(&self.entries)
    }
}

/// What is left of a bound; none stays none.
fn without(bound: u64, quarantined: u64) -> u64 {
    if bound == u64::MAX { bound } else { bound.saturating_sub(quarantined) }
}
