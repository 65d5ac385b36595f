#![forbid(unsafe_code)]
//! What a batch leaves behind: frontiers move with their rows, claims become pages, the sequences land.

use std::time::Duration;

use super::{Job, Scratch};
use crate::capacity::{Domain, NOTHING, Units};
use crate::executor::Chore;
use crate::facade::core::{Shared, Submission};
use crate::facade::table::{Phase, Table, blocks};
use crate::facade::turnstile::Turn;
use crate::facade::work::{Fault, FaultCode, FaultState, Logits, Out, Row, Work};
use crate::runtime::Runtime;

/// What a run gives back to the ledger.
struct Landing {
    back: Units,
    freed: u8,
}

impl<R: Runtime> Shared<R> {
    pub(super) fn publish(
        &self,
        mut turn: Turn<'_, Submission<R>>,
        work: &[Work<'_>],
        scratch: &mut Scratch,
        rows: &mut Vec<Row>,
        took: Duration,
    ) {
        let mut landing = Landing { back: scratch.shared, freed: Domain::Flight.bit() };
        let mut table = self.table();
        for (job, item) in scratch.jobs.iter_mut().zip(work) {
            let cancelled = self.land(&mut table, job, &mut landing);
            if cancelled && job.fault.is_none_or(|fault| fault.state == FaultState::Intact) {
                job.fault = Some(Fault { code: FaultCode::Cancelled, state: FaultState::Lost, detail: 0 });
            }
            rows.push(self.row(job, item, &mut scratch.spare_tokens, &mut scratch.spare_data, took));
        }
        table.in_flight -= work.len();
        let woken = turn.executor.settle_guests(&landing.back, landing.freed);
        drop(table);
        self.landed.notify_all();
        drop(turn);
        drop(woken);
    }

    /// Takes a sequence back from its job; whether it was closed meanwhile, and so is gone now.
    fn land(&self, table: &mut Table, job: &mut Job, landing: &mut Landing) -> bool {
        let Some(slot) = table.slots.get_mut(job.slot) else { return false };
        slot.tokens = std::mem::take(&mut job.tokens);
        slot.handle = job.handle;
        slot.phase = match job.fault.map(|fault| fault.state) {
            None => {
                slot.frontier = job.end;
                Phase::Idle
            }
            Some(FaultState::Intact) => {
                slot.tokens.truncate(job.start.max(slot.context_len));
                Phase::Idle
            }
            Some(FaultState::Lost) => Phase::Lost,
            Some(FaultState::Held) => Phase::Held,
        };
        let reached = usize::try_from(job.reached).unwrap_or(usize::MAX);
        let real = blocks(reached, self.traits.block).saturating_sub(slot.shared).min(slot.held);
        landing.back[Domain::Blocks.index()] += real.saturating_sub(slot.real);
        slot.real = real.max(slot.real);
        if !slot.ended {
            return false;
        }
        let held = slot.phase == Phase::Held;
        let gone = table.vacate(job.slot);
        if held {
            let (mut claimed, mut measured) = (NOTHING, NOTHING);
            claimed[Domain::Slots.index()] = 1;
            claimed[Domain::Blocks.index()] = gone.held - gone.real;
            measured[Domain::Blocks.index()] = gone.real;
            // Books that are in doubt themselves change no more.
            let _ = self.ledger.quarantine(&claimed, &measured);
            return true;
        }
        landing.back[Domain::Slots.index()] += 1;
        landing.back[Domain::Blocks.index()] += gone.held - gone.real;
        landing.freed |= Domain::Slots.bit() | if gone.held > 0 { Domain::Blocks.bit() } else { 0 };
        if gone.handle != 0 {
            self.chores.lock().push(Chore::Free(gone.handle));
        }
        true
    }

    /// The row of a job. Buffers that it does not need go back to the spare ones.
    fn row(
        &self,
        job: &mut Job,
        item: &Work<'_>,
        spare_tokens: &mut Vec<Vec<u32>>,
        spare_data: &mut Vec<Vec<f32>>,
        took: Duration,
    ) -> Row {
        let (picked, data) = (std::mem::take(&mut job.picked), std::mem::take(&mut job.data));
        let mut ran = job.start..job.end;
        let full = matches!(item.logits(), Logits::Full);
        let (out, picked, data) = match job.fault {
            Some(fault) => {
                self.counters.fault(fault.code);
                ran.end = ran.start;
                (Err(fault), Some(picked), Some(data))
            }
            None if !job.yields => (Ok(Out::Silent), Some(picked), Some(data)),
            None if job.no_finite => (Ok(Out::NoFinite), Some(picked), Some(data)),
            None if full => (Ok(Out::Logits { rows: job.rows, data }), Some(picked), None),
            None => (Ok(Out::Tokens(picked)), None, Some(data)),
        };
        spare_tokens.extend(picked);
        spare_data.extend(data);
        if job.counted && out.is_ok() {
            self.counters.row(job.kind, ran.len() as u64, took);
        }
        Row { seq: item.seq(), ran, probes: job.probes, out }
    }
}
