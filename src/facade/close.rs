#![forbid(unsafe_code)]
//! The end of sequences, and of parts of them (X-54, X-58 .. ).

use std::sync::PoisonError;

use super::core::Shared;
use super::table::{Phase, Slot, Table, blocks};
use super::{End, Seq};
use crate::capacity::{Bad, Domain, Feature, NOTHING, Receipt, Refusal, Units, Woken};
use crate::executor::Chore;
use crate::runtime::Runtime;

/// What a sequence gives back: claims, and pages of the pool.
struct Returns {
    claimed: Units,
    measured: Units,
}

impl Returns {
    fn of(slots: u64, claimed: u64, measured: u64) -> Self {
        let mut returns = Self { claimed: NOTHING, measured: NOTHING };
        returns.claimed[Domain::Slots.index()] = slots;
        returns.claimed[Domain::Blocks.index()] = claimed;
        returns.measured[Domain::Blocks.index()] = measured;
        returns
    }
}

impl<R: Runtime> Shared<R> {
    /// Puts a chore on the list and counts what it gives back as free, in one step: who submits next finds both or neither.
    fn give_back(&self, chore: Option<Chore>, returns: &Returns) -> Result<(Receipt, Woken), Refusal> {
        let mut chores = self.chores.lock();
        let mut woken = Woken::default();
        let receipt = self.ledger.retire_quietly(&returns.claimed, &returns.measured, &mut woken)?;
        chores.extend(chore);
        Ok((receipt, woken))
    }

    pub(super) fn cut(&self, seq: Seq, len: usize) -> Result<Receipt, Refusal> {
        let mut table = self.table();
        let at = table.find(seq).map_err(Refusal::bad)?;
        let block = self.traits.block;
        let Some(slot) = table.slots.get_mut(at) else { return Err(Refusal::bad(Bad::Stale)) };
        match slot.phase {
            Phase::Idle => {}
            Phase::InFlight => return Err(Refusal::bad(Bad::Busy)),
            Phase::Lost | Phase::Held => return Err(Refusal::bad(Bad::Faulted)),
        }
        if len > slot.frontier {
            return Err(Refusal::bad(Bad::Bounds));
        }
        if len < slot.frontier && !self.traits.cuts {
            return Err(Refusal::Unsupported(Feature::Truncate));
        }
        // A shared block that is cut is copied before it is written to, and so no longer counts as shared.
        let shared = slot.shared.min(len as u64 / block);
        let keep = if shared < slot.shared { 0 } else { blocks(len, block).saturating_sub(shared).min(slot.held) };
        let real = slot.real.min(keep);
        let claimed = (slot.held - slot.real) - (keep - real);
        let returns = Returns::of(0, claimed, slot.real - real);
        let chore = (len < slot.frontier && slot.handle != 0).then_some(Chore::Cut(slot.handle, len as u64));
        let (receipt, woken) = self.give_back(chore, &returns)?;
        (slot.shared, slot.held, slot.real, slot.frontier) = (shared, keep, real, len);
        slot.tokens.truncate(len.max(slot.context_len));
        drop(table);
        drop(woken);
        Ok(receipt)
    }

    pub(super) fn end(&self, seq: Seq, end: End) -> Result<Receipt, Refusal> {
        let mut table = self.table();
        let at = table.find(seq).map_err(Refusal::bad)?;
        let Some(slot) = table.slots.get_mut(at) else { return Err(Refusal::bad(Bad::Stale)) };
        self.check_end(slot, end)?;
        if slot.phase == Phase::InFlight {
            slot.ended = true;
            let at = self.ledger.ticket(Domain::Slots.bit() | Domain::Blocks.bit());
            return Ok(Receipt { freed: NOTHING, gained: NOTHING, decoding: false, pending: true, at });
        }
        let (decoding, shares) = (slot.decodes(), slot.shared > 0);
        let usage = if let End::Completed { prompt, output } = end { Some((prompt, output)) } else { None };
        let counted = slot.counted;
        let (receipt, woken) = self.let_go(&mut table, at, usage.is_some())?;
        drop(table);
        drop(woken);
        if let Some((prompt, output)) = usage.filter(|_| counted) {
            self.counters.completed(prompt, output);
        }
        if shares {
            // Whether blocks of a prefix rest alone now, the pool knows.
            self.tidy();
        }
        Ok(Receipt { decoding, ..receipt })
    }

    /// The table of X-10, of what is not in flight or may end there.
    fn check_end(&self, slot: &Slot, end: End) -> Result<(), Refusal> {
        let finishes = matches!(end, End::Completed { .. } | End::Recompute);
        match slot.phase {
            Phase::InFlight if finishes => return Err(Refusal::bad(Bad::Busy)),
            Phase::Lost | Phase::Held if finishes => return Err(Refusal::bad(Bad::Faulted)),
            _ => {}
        }
        if let End::Completed { prompt, output } = end {
            if !slot.decodes() {
                return Err(Refusal::bad(Bad::Frontier));
            }
            let said = prompt.checked_add(output).ok_or(Refusal::bad(Bad::Bounds))?;
            if prompt != slot.prompt_len || said > slot.frontier + 1 {
                return Err(Refusal::bad(Bad::Bounds));
            }
        }
        Ok(())
    }

    /// Ends a sequence that no run has. One that completed leaves its whole blocks behind where somebody may use them again.
    fn let_go(&self, table: &mut Table, at: usize, completed: bool) -> Result<(Receipt, Woken), Refusal> {
        let Some(slot) = table.slots.get_mut(at) else { return Err(Refusal::bad(Bad::Stale)) };
        if slot.phase == Phase::Held {
            return self.keep_held(table, at);
        }
        let returns = Returns::of(1, slot.held - slot.real, slot.real);
        let leaves = completed && self.traits.reuses && slot.handle != 0;
        let chore = match slot.handle {
            0 => None,
            sequence if leaves => {
                let mut tokens = std::mem::take(&mut slot.tokens);
                tokens.truncate(slot.frontier);
                Some(Chore::Leave { sequence, tokens, prompt_len: slot.prompt_len })
            }
            sequence => Some(Chore::Free(sequence)),
        };
        let given = self.give_back(chore, &returns)?;
        table.vacate(at);
        Ok(given)
    }

    /// The device may still touch what it has: nobody else gets it, ever.
    fn keep_held(&self, table: &mut Table, at: usize) -> Result<(Receipt, Woken), Refusal> {
        let slot = table.vacate(at);
        let doubtful = Returns::of(1, slot.held - slot.real, slot.real);
        self.ledger.quarantine(&doubtful.claimed, &doubtful.measured)?;
        let at = self.ledger.ticket(Domain::Slots.bit() | Domain::Blocks.bit());
        let receipt = Receipt { freed: NOTHING, gained: NOTHING, decoding: false, pending: true, at };
        Ok((receipt, Woken::default()))
    }

    pub(super) fn end_all(&self) -> Result<Receipt, Refusal> {
        let mut table = self.table();
        if table.closing {
            while table.closed.is_none() {
                table = self.landed.wait(table).unwrap_or_else(PoisonError::into_inner);
            }
            return table.closed.unwrap_or(Err(Refusal::bad(Bad::Closed)));
        }
        table.closing = true;
        drop(table);
        // Whoever waits learns of it now, not when the last run has ended.
        self.ledger.close();
        let mut table = self.table();
        let mut all = Ok((NOTHING, false));
        loop {
            all = all.and_then(|sums| self.let_all_go(&mut table, sums));
            if table.in_flight == 0 {
                break;
            }
            table = self.landed.wait(table).unwrap_or_else(PoisonError::into_inner);
        }
        let at = self.capacity.now();
        let receipt = all.map(|(freed, pending)| Receipt { freed, gained: NOTHING, decoding: false, pending, at });
        table.closed = Some(receipt);
        drop(table);
        self.landed.notify_all();
        // The pool is as empty as the ledger says when this returns.
        let mut turn = self.submission.enter();
        let woken = turn.executor.settle_guests(&NOTHING, 0);
        drop(turn);
        drop(woken);
        receipt
    }

    /// Ends all sequences that no run has; what that freed, and whether something is still held, added to `sums`.
    fn let_all_go(&self, table: &mut Table, sums: (Units, bool)) -> Result<(Units, bool), Refusal> {
        let (mut freed, mut pending) = sums;
        for seq in table.names() {
            let idle = |&at: &usize| table.slots.get(at).is_some_and(|slot| slot.phase != Phase::InFlight);
            let Some(at) = table.find(seq).ok().filter(idle) else { continue };
            let (receipt, woken) = self.let_go(table, at, false)?;
            pending |= receipt.pending;
            freed.iter_mut().zip(receipt.freed).for_each(|(sum, more)| *sum += more);
            // Nobody waits any more.
            drop(woken);
        }
        Ok((freed, pending))
    }
}
