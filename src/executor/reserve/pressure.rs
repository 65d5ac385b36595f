#![forbid(unsafe_code)]
//! The reserve stage and the coordinator: what others have claimed, what a plan claims, and why one does not fit.

use super::Room;
use super::demand::Demand;
use crate::capacity::{Blocked, Demand as Claim, Domain, Lack, NOTHING, Refusal, Remedy, Shortfall, Units};
use crate::executor::state::State;
use crate::prefix::EntryId;
use crate::runtime::Runtime;
use crate::speculate::DRAFT_MAX;

/// What others of the core have claimed and not filled yet.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Promised {
    pub(super) cells: u64,
    pub(super) slots: usize,
}

impl Promised {
    /// Nothing, while nobody else can claim.
    pub(super) fn of<R: Runtime>(state: &State<R>) -> Self {
        if !state.ledger.is_shared() {
            return Self::default();
        }
        let cells = state.ledger.claimed(Domain::Blocks).saturating_mul(state.granule());
        let slots = usize::try_from(state.ledger.claimed(Domain::Slots)).unwrap_or(usize::MAX);
        Self { cells, slots }
    }
}

impl<R: Runtime> Room<'_, R> {
    /// Claims what a plan that fits needs, and what its drafts may take besides: at most so much per decoding lane. Nothing has to be claimed
    /// while nobody else can.
    ///
    /// # Errors
    /// Somebody else was faster; the evidence, if there is any.
    pub(super) fn claim(
        &mut self,
        demand: &Demand<'_>,
        evictions: &[EntryId],
        spare_cells: u64,
        decodes: usize,
    ) -> Result<(Units, u64), Option<Blocked>> {
        if !self.state.ledger.is_shared() {
            return Ok((NOTHING, u64::MAX));
        }
        let granule = self.state.granule();
        let draft = (DRAFT_MAX as u64).next_multiple_of(granule).saturating_add(granule);
        let draft_cells = draft.saturating_mul(decodes as u64).min(spare_cells) / granule * granule;
        let mut claim = self.claim_of(demand, evictions);
        claim.claim[Domain::Blocks.index()] += draft_cells / granule;
        claim.provisional = true;
        match self.state.ledger.claim(&claim, Remedy::Wait) {
            Ok(receipt) => Ok((receipt.gained, draft_cells)),
            Err(refusal) => Err(refusal.blocked().copied()),
        }
    }

    /// What entries are evicted for: pages, if those are short without it, else sequences.
    pub(super) fn short_of(&mut self, demand: &Demand<'_>) -> u32 {
        let pages = self.cells_left(&[], demand, super::Count::Exact).is_none();
        if pages { Domain::Blocks.code() } else { Domain::Slots.code() }
    }

    /// Why a plan does not fit although these entries would go: what the coordinator says of it, under the lock under which it
    /// samples the ticket.
    pub(super) fn evidence(&mut self, demand: &Demand<'_>, evictions: &[EntryId]) -> Blocked {
        let claim = self.claim_of(demand, evictions);
        let ledger = &self.state.ledger;
        let seen = ledger.ticket(crate::capacity::EVERY);
        match ledger.check(&claim, Remedy::Wait) {
            Err(Refusal::Blocked(blocked) | Refusal::Never(blocked)) => blocked,
            // What is short is room that the plan's policy keeps from it: it would have to evict more than it may.
            Ok(()) | Err(_) => self.protected(&claim, &seen),
        }
    }

    /// Evidence of a plan whose own policy keeps the room from it: both domains that evictions give back are watched.
    fn protected(&self, claim: &Claim, seen: &crate::capacity::Ticket) -> Blocked {
        let ledger = &self.state.ledger;
        let entry = |domain: Domain| {
            let (need, total) = (claim.claim[domain.index()], ledger.total(domain));
            let free = total.saturating_sub(ledger.used(domain)).saturating_add(claim.returns[domain.index()]);
            Shortfall { domain, lack: Lack::Now, need, free: free.min(need), total, max: total }
        };
        Blocked::on(Remedy::Wait, &[entry(Domain::Slots), entry(Domain::Blocks)], seen)
    }

    /// The demand of a plan as the coordinator counts it: the plan's own policy has decided what is evicted, so nothing else counts as
    /// free that is cached.
    fn claim_of(&mut self, demand: &Demand<'_>, evictions: &[EntryId]) -> Claim {
        let state = self.state;
        let granule = state.granule();
        let (mut claim, mut returns) = (NOTHING, NOTHING);
        claim[Domain::Slots.index()] = demand.sequences as u64;
        claim[Domain::Workspace.index()] = demand.workspace;
        returns[Domain::Slots.index()] = (self.retiring + evictions.len()) as u64;
        if state.descriptor.cells_total != 0 {
            // Departing entries are not counted as used in the first place.
            let released = self.cells_released(evictions).saturating_sub(state.cells_departing());
            claim[Domain::Blocks.index()] = demand.cells(Some(self.leaving), state).div_ceil(granule);
            returns[Domain::Blocks.index()] = released / granule;
        }
        Claim { claim, returns, firm: true, ..Claim::default() }
    }
}
