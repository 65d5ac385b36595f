#![forbid(unsafe_code)]
//! One claim for the whole batch, narrower chunks where it does not fit (X-38 .. X-42).

use super::{Job, Scratch};
use crate::capacity::{Blocked, Domain, NOTHING, Refusal, Remedy, Units};
use crate::facade::core::Shared;
use crate::facade::table::{Phase, Table, blocks};
use crate::facade::work::{Kind, Logits, Work};
use crate::runtime::Runtime;

/// Growths that a run makes at most.
const GROWTHS_MAX: u32 = 2;

impl<R: Runtime> Shared<R> {
    /// Checks the items, claims for them, and marks their sequences as in flight, all in one hold of the table.
    ///
    /// # Errors
    /// Nothing was taken; what was grown stays grown, and is proven by `grew`.
    pub(super) fn take_off(&self, work: &[Work<'_>], scratch: &mut Scratch) -> Result<(), Refusal> {
        let (mut growths, mut grew) = (0, 0);
        loop {
            let mut table = self.table();
            self.check_open(&table)?;
            self.check_items(&mut table, work)?;
            self.list_jobs(&table, work, scratch);
            let refusal = match self.claim(&table, work, scratch) {
                Ok(()) => {
                    lend(&mut table, work, scratch);
                    return Ok(());
                }
                Err(refusal) => refusal,
            };
            let grows = |blocked: &&Blocked| blocked.remedy == Remedy::Grow && growths < GROWTHS_MAX;
            if let Some(blocked) = refusal.blocked().filter(grows).copied() {
                drop(table);
                growths += 1;
                match self.grow_once(&blocked) {
                    Ok(receipt) if receipt.gained != NOTHING => grew = receipt.at.resized(),
                    Ok(_) => {}
                    Err(_) => growths = GROWTHS_MAX,
                }
                continue;
            }
            return match self.claim_narrower(&table, work, scratch, refusal) {
                Ok(()) => {
                    lend(&mut table, work, scratch);
                    Ok(())
                }
                Err(Refusal::Blocked(blocked)) => Err(Refusal::Blocked(Blocked { grew, ..blocked })),
                Err(refusal) => Err(refusal),
            };
        }
    }

    fn list_jobs(&self, table: &Table, work: &[Work<'_>], scratch: &mut Scratch) {
        scratch.jobs.clear();
        for item in work {
            let (Ok(at), start) = (table.find(item.seq()), item.start()) else { continue };
            let Some(slot) = table.slots.get(at) else { continue };
            scratch.jobs.push(Job {
                slot: at,
                kind: item.kind(),
                start,
                end: start + item.width(),
                yields: true,
                probes: 0,
                counted: slot.counted,
                pages: 0,
                handle: slot.handle,
                tokens: Vec::new(),
                done: start,
                again: false,
                picked: Vec::new(),
                data: Vec::new(),
                rows: 0,
                no_finite: false,
                fault: None,
                reached: 0,
            });
        }
    }

    /// One try, for the jobs as wide as they are.
    fn claim(&self, table: &Table, work: &[Work<'_>], scratch: &mut Scratch) -> Result<(), Refusal> {
        let Scratch { jobs, units, shared, .. } = scratch;
        units.clear();
        let mut bytes = self.options.workspace_bytes;
        let mut pressure = Remedy::Wait;
        for ((job, item), index) in jobs.iter_mut().zip(work).zip(0..) {
            let Some(slot) = table.slots.get(job.slot) else { continue };
            let mut claim = NOTHING;
            claim[Domain::Blocks.index()] = slot.lacks(job.end, self.traits.block);
            units.push(claim);
            job.pages = blocks(job.end, self.traits.block).saturating_sub(slot.shared + slot.real);
            job.yields = match item {
                Work::Prefill { chunk, .. } => job.end == chunk.total(),
                _ => true,
            };
            let rows = if job.yields && !self.is_picked(item) { job.end - job.start.max(row_start(job)) } else { 0 };
            let token_bytes = self.options.workspace_token_bytes.saturating_mul((job.end - job.start) as u64);
            bytes = bytes.saturating_add(token_bytes).saturating_add(self.row_bytes(rows));
            pressure = if index == 0 { slot.pressure() } else { pressure };
        }
        *shared = workspace(bytes);
        self.ledger.claim_batch(shared, units, pressure).map(|_| ())
    }

    /// Whether its token is picked in the step, so that no row comes out of it.
    pub(super) fn is_picked(&self, item: &Work<'_>) -> bool {
        let plain = matches!(item.logits(), Logits::Greedy { mask: None, penalty, penalised }
            if *penalty == 1.0 || penalised.is_empty());
        plain && self.traits.picks && item.kind() != Kind::Verify
    }

    fn row_bytes(&self, rows: usize) -> u64 {
        (rows as u64).saturating_mul(u64::from(self.traits.vocab)).saturating_mul(size_of::<f32>() as u64)
    }

    /// Narrows what may be narrowed and tries again, until it fits or nothing gets narrower.
    fn claim_narrower(
        &self,
        table: &Table,
        work: &[Work<'_>],
        scratch: &mut Scratch,
        first: Refusal,
    ) -> Result<(), Refusal> {
        let mut refusal = first;
        loop {
            // What can never be as wide as it was may still be narrower.
            let Some(blocked) = refusal.blocked().copied() else { return Err(refusal) };
            let mut narrowed = false;
            for ((job, item), units) in scratch.jobs.iter_mut().zip(work).zip(&scratch.units) {
                if !may_shrink(item, units, &blocked) {
                    continue;
                }
                if let Some(width) = blocked.narrower(job.end - job.start) {
                    job.end = job.start + width;
                    job.probes += 1;
                    narrowed = true;
                }
            }
            if !narrowed {
                return Err(refusal);
            }
            match self.claim(table, work, scratch) {
                Ok(()) => {
                    let count = scratch.jobs.iter().filter(|job| job.probes > 0).count() as u64;
                    self.counters.narrowings.fetch_add(count, std::sync::atomic::Ordering::Relaxed);
                    return Ok(());
                }
                Err(next) => refusal = next,
            }
        }
    }
}

/// Whether a chunk that may be cut takes part in what is short.
fn may_shrink(item: &Work<'_>, units: &Units, blocked: &Blocked) -> bool {
    let takes_part = |domain: Domain| match domain {
        Domain::Workspace => true,
        domain => units[domain.index()] > 0,
    };
    matches!(item, Work::Prefill { whole: false, .. })
        && blocked.shortfalls().iter().any(|entry| takes_part(entry.domain))
}

/// The first token of a job that a row is wanted behind.
fn row_start(job: &Job) -> usize {
    if job.kind == Kind::Verify { job.start } else { job.end - 1 }
}

fn workspace(bytes: u64) -> Units {
    let mut units = NOTHING;
    units[Domain::Workspace.index()] = bytes;
    units
}

/// The sequences are in flight now, and their tokens with the jobs.
fn lend(table: &mut Table, work: &[Work<'_>], scratch: &mut Scratch) {
    table.in_flight += work.len();
    for ((job, item), units) in scratch.jobs.iter_mut().zip(work).zip(&scratch.units) {
        let Some(slot) = table.slots.get_mut(job.slot) else { continue };
        slot.phase = Phase::InFlight;
        slot.held += units[Domain::Blocks.index()];
        job.tokens = std::mem::take(&mut slot.tokens);
        match item {
            Work::Prefill { .. } => {}
            Work::Decode { token, .. } => job.tokens.push(*token),
            Work::Verify { tokens, .. } => job.tokens.extend_from_slice(tokens),
        }
        job.picked = scratch.spare_tokens.pop().unwrap_or_default();
        job.picked.clear();
        job.data = scratch.spare_data.pop().unwrap_or_default();
        job.data.clear();
    }
}
