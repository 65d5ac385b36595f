#![forbid(unsafe_code)]
//! The claim half of a run, and the warm-up.

use std::sync::atomic::Ordering;

use super::core::{Shared, Submission};
use super::table::blocks;
use super::work::{Fit, Work};
use crate::capacity::{Bad, Demand, Domain, NOTHING, Receipt, Refusal, Remedy, Units};
use crate::runtime::{Feed, Input, Runtime, RuntimeError, Want};

impl<R: Runtime> Shared<R> {
    pub(super) fn reserve_blocks(&self, work: &[Work<'_>], fit: Fit) -> Result<Receipt, Refusal> {
        self.check_shape(work)?;
        let mut table = self.table();
        self.check_open(&table)?;
        self.check_items(&mut table, work)?;
        let mut items: smallvec::SmallVec<[Units; 32]> = smallvec::SmallVec::new();
        let (mut claim, mut fits) = (NOTHING, NOTHING);
        let mut pressure = Remedy::Wait;
        for (item, index) in work.iter().zip(0..) {
            let at = table.find(item.seq()).map_err(|why| Refusal::bad_at(why, index))?;
            let Some(slot) = table.slots.get(at) else { continue };
            let lacks = slot.lacks(item.start() + item.width(), self.traits.block);
            let len = match fit {
                Fit::Now => 0,
                Fit::Input => slot.context_len,
                Fit::Ceiling => slot.ceiling,
            };
            let mut units = NOTHING;
            units[Domain::Blocks.index()] = lacks;
            items.push(units);
            claim[Domain::Blocks.index()] += lacks;
            fits[Domain::Blocks.index()] += lacks.max(slot.lacks(len, self.traits.block));
            pressure = if index == 0 { slot.pressure() } else { pressure };
        }
        let receipt = match fit {
            Fit::Now => self.ledger.claim_batch(&NOTHING, &items, pressure),
            Fit::Input | Fit::Ceiling => self.ledger.claim(&Demand::fitting(claim, fits), pressure),
        }?;
        for (item, units) in work.iter().zip(&items) {
            let slot = table.find(item.seq()).ok().and_then(|at| table.slots.get_mut(at));
            if let Some(slot) = slot {
                slot.held += units[Domain::Blocks.index()];
            }
        }
        Ok(receipt)
    }

    /// Runs a token in a sequence that is gone afterwards: code, tables and buffers are warm then.
    pub(super) fn warm_up(&self) -> Result<(), Refusal> {
        self.check_open(&self.table())?;
        if self.prepared.load(Ordering::Acquire) {
            return Ok(());
        }
        let mut claim = NOTHING;
        claim[Domain::Slots.index()] = 1;
        claim[Domain::Blocks.index()] = blocks(1, self.traits.block);
        self.ledger.claim(&Demand::of(claim), Remedy::Wait)?;
        let mut turn = self.submit();
        let outcome = self.contain(&mut turn, Self::step_once).unwrap_or(Err(RuntimeError::Fatal));
        let broken = outcome == Err(RuntimeError::Fatal);
        self.broken.fetch_or(broken, Ordering::AcqRel);
        self.prepared.store(outcome.is_ok(), Ordering::Release);
        let woken = turn.executor.settle_guests(&claim, 0);
        drop(turn);
        drop(woken);
        if broken { Err(Refusal::bad(Bad::Poisoned)) } else { Ok(()) }
    }

    /// One token in a sequence that comes and goes.
    fn step_once(core: &mut Submission<R>) -> Result<(), RuntimeError> {
        core.executor.make_room(1);
        let Ok(guest) = core.executor.make_guest(None) else { return Ok(()) };
        let feed = Feed { sequence: guest, input: Input::Tokens(&[0]), want: Want::LastRow };
        let outcome = core.executor.step_guests(&[feed], &mut core.workshop.answers);
        core.executor.free_guest(guest);
        outcome
    }
}
