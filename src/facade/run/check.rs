#![forbid(unsafe_code)]
//! What an item may ask: shape, identity, state, in this order over all items (X-36 .. X-38).

use crate::capacity::{Bad, Blocked, Domain, Feature, Lack, Refusal, Remedy, Shortfall};
use crate::facade::core::Shared;
use crate::facade::table::{Phase, Table};
use crate::facade::work::{Kind, Logits, Work};
use crate::runtime::Runtime;

impl<R: Runtime> Shared<R> {
    /// What the items say by themselves, and whether so many of them and such a mixture are offered.
    pub(in crate::facade) fn check_shape(&self, work: &[Work<'_>]) -> Result<(), Refusal> {
        for (item, index) in work.iter().zip(0..) {
            self.check_item(item).map_err(|why| Refusal::bad_at(why, index))?;
        }
        if work.len() as u64 > self.info.max_items {
            return Err(Refusal::Unsupported(Feature::Items));
        }
        let tokens = work.iter().fold(0, |sum: u64, item| sum.saturating_add(item.width() as u64));
        if work.len() > 1 && tokens > self.info.max_batch_tokens {
            return Err(Refusal::Unsupported(Feature::Tokens));
        }
        let mixes = work.windows(2).any(|pair| matches!(pair, [a, b] if a.kind() != b.kind()));
        if mixes && !self.options.mixed { Err(Refusal::Unsupported(Feature::Mixed)) } else { Ok(()) }
    }

    fn check_item(&self, item: &Work<'_>) -> Result<(), Bad> {
        let foreign = match item {
            Work::Prefill { .. } => false,
            Work::Decode { token, .. } => *token >= self.traits.vocab,
            Work::Verify { tokens, .. } => tokens.is_empty() || tokens.iter().any(|&id| id >= self.traits.vocab),
        };
        if foreign {
            return Err(Bad::Bounds);
        }
        match item.logits() {
            Logits::Greedy { penalty, penalised, .. } => {
                let sound = penalty.is_finite() && *penalty > 0.0;
                let known = penalised.iter().all(|&id| id < self.traits.vocab);
                if sound && known { Ok(()) } else { Err(Bad::Policy) }
            }
            Logits::Full => Ok(()),
        }
    }

    /// Whose the items are, and whether each may run now.
    pub(in crate::facade) fn check_items(&self, table: &mut Table, work: &[Work<'_>]) -> Result<(), Refusal> {
        let call = table.begin_call();
        for (item, index) in work.iter().zip(0..) {
            let wrong = |why| Refusal::bad_at(why, index);
            let at = table.find(item.seq()).map_err(wrong)?;
            if !table.name(at, call) {
                return Err(wrong(Bad::Duplicate));
            }
            let context_len = table.slots.get(at).map_or(0, |slot| slot.context_len);
            if matches!(item, Work::Prefill { chunk, .. } if chunk.total() != context_len) {
                return Err(wrong(Bad::Bounds));
            }
        }
        let mut in_flight = None;
        for (item, index) in work.iter().zip(0..) {
            let at = table.find(item.seq()).map_err(|why| Refusal::bad_at(why, index))?;
            if self.check_state(table, at, item).map_err(|why| Refusal::bad_at(why, index))? == Phase::InFlight {
                in_flight = in_flight.or(Some(index));
            }
        }
        match in_flight {
            // Sampled while the table is held: a run that ends clears its marks in it first, and moves the epoch then.
            Some(first) => Err(Refusal::Blocked(Blocked {
                fits: first,
                ..Blocked::on(Remedy::Quiesce, &[ONE_RUN], &self.ledger.ticket(Domain::Flight.bit()))
            })),
            None => Ok(()),
        }
    }

    /// The table of X-10; what a sequence in flight is at, nobody knows.
    fn check_state(&self, table: &Table, at: usize, item: &Work<'_>) -> Result<Phase, Bad> {
        let slot = table.slots.get(at).ok_or(Bad::Stale)?;
        match slot.phase {
            Phase::Lost | Phase::Held => return Err(Bad::Faulted),
            Phase::InFlight => return Ok(Phase::InFlight),
            Phase::Idle => {}
        }
        if slot.decodes() != (item.kind() != Kind::Prefill) || item.start() != slot.frontier {
            return Err(Bad::Frontier);
        }
        let end = item.start().checked_add(item.width()).ok_or(Bad::Bounds)?;
        if end > slot.ceiling { Err(Bad::Bounds) } else { Ok(Phase::Idle) }
    }
}

/// A sequence has one run at a time.
const ONE_RUN: Shortfall = Shortfall { domain: Domain::Flight, lack: Lack::Now, need: 1, free: 0, total: 1, max: 1 };
