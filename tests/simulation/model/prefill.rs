//! Prompt tokens, step by step (T-84 .. T-93).

use ictus::record::constant::shed_kind;

use super::settle::Fatal;
use super::validate::Valid;
use super::{Loss, Model, Predicted};
use crate::plan::Plan;

/// What of a prefill record is still to run.
#[derive(Clone, Debug)]
struct Work {
    tag: u64,
    rest: usize,
}

/// What a lane takes from one step.
#[derive(Clone, Debug)]
struct Portion {
    tag: u64,
    take: usize,
    completes: bool,
    holds_back: bool,
}

/// The shortest prompt that leaves a checkpoint, one token aside (T-90).
const CHECKPOINT_MIN: usize = 128;

impl Model {
    /// Runs the prefill phase; answers whether it was cut short (T-91).
    pub(super) fn prefill(
        &mut self,
        plan: &Plan,
        valid: &Valid,
        yields: bool,
        out: &mut Predicted,
    ) -> Result<bool, Fatal> {
        let mut works = Vec::new();
        for (&(tag, _, count), &take) in plan.prefills.iter().zip(&valid.taken) {
            works.push(Work { tag, rest: take });
            if take < count as usize {
                out.losses.push(chunk(tag, count as usize - take)); // T-84
            }
        }
        let mut first = true;
        loop {
            works.retain(|work| work.rest > 0 && self.lane(work.tag).is_some());
            if works.is_empty() {
                return Ok(false);
            }
            if !first && yields {
                out.losses.extend(works.iter().map(|work| chunk(work.tag, work.rest))); // T-91
                return Ok(true);
            }
            first = false;
            let portions = self.next_step(plan, &mut works);
            self.run_prefill_step(&portions, out)?;
        }
    }

    /// T-85, T-88, T-89: who gives how much to the next step. A step holds at most `max_batch` lanes.
    fn next_step(&self, plan: &Plan, works: &mut [Work]) -> Vec<Portion> {
        let mut room = if self.shape.prefill_step == 0 { usize::MAX } else { self.shape.prefill_step };
        let mut portions = Vec::new();
        for work in works.iter_mut() {
            if room == 0 || portions.len() == self.shape.batch {
                break;
            }
            let take = work.rest.min(room);
            room -= take;
            work.rest -= take;
            let lane = self.lane(work.tag).expect("a live lane");
            let completes = lane.committed.len() + take == lane.prompt.len();
            let decodes = plan.decodes.iter().any(|&(tag, grant, _)| tag == work.tag && grant > 0);
            let holds_back = completes && !(decodes && self.shape.cuts);
            portions.push(Portion { tag: work.tag, take, completes, holds_back });
        }
        portions
    }

    fn run_prefill_step(&mut self, portions: &[Portion], out: &mut Predicted) -> Result<(), Fatal> {
        let mut feeds = Vec::new();
        let mut fed = Vec::new();
        for portion in portions {
            let lane = self.lane(portion.tag).expect("a live lane");
            let from = lane.committed.len();
            let to = from + portion.take - usize::from(portion.holds_back);
            if to > from {
                feeds.push((lane.seq, lane.prompt[from..to].to_vec()));
                fed.push(portion.tag);
            }
        }
        let failed = match feeds.is_empty() {
            true => None,
            false => self.step(&feeds).err(),
        };
        if let Some(error) = failed {
            self.fault_all(&fed, error, out)?; // T-92
        }
        for portion in portions {
            if failed.is_some() && fed.contains(&portion.tag) {
                continue;
            }
            let lane = self.lane_mut(portion.tag); // T-93
            let from = lane.committed.len();
            let more = lane.prompt[from..from + portion.take].to_vec();
            lane.committed.extend(more);
            lane.prefilled += portion.take;
            lane.pending = portion.holds_back;
            lane.has_row = portion.completes && !portion.holds_back;
            lane.cost.answered += u64::from(lane.has_row);
            if portion.completes && fed.contains(&portion.tag) {
                self.checkpoint(portion.tag);
            }
        }
        Ok(())
    }

    /// T-90.
    fn checkpoint(&mut self, tag: u64) {
        let lane = self.lane(tag).expect("a live lane").clone();
        let key = lane.committed[..lane.held()].to_vec();
        let scope = self.scope(self.seq(lane.seq).adapter);
        let known = self.entries.iter().any(|entry| entry.key == key && entry.scope == scope);
        if self.shape.cuts || lane.prompt.len() < 2 || key.len() < CHECKPOINT_MIN || known {
            return;
        }
        let cells = if self.shape.shares { 0 } else { key.len() as u64 };
        if cells > self.spare {
            return;
        }
        let Ok(seq) = self.seq_create() else { return };
        if self.seq_copy(lane.seq, seq, key.len()).is_err() {
            self.seq_free(seq);
            return;
        }
        self.spare -= cells;
        self.seq_mut(seq).taint = self.seq(lane.seq).taint;
        let len = key.len();
        self.insert_entry(seq, key, len, false);
    }

    /// T-132, T-133.
    pub(super) fn fault_all(
        &mut self,
        tags: &[u64],
        error: ictus::runtime::RuntimeError,
        out: &mut Predicted,
    ) -> Result<(), Fatal> {
        use ictus::record::constant::fault;
        use ictus::runtime::RuntimeError as Error;
        let code = match error {
            Error::Fault(code) => code,
            Error::Capacity => fault::OOM_TENTATIVE,
            Error::Unsupported | Error::UnknownSeq | Error::OutOfBoundary => fault::INTERNAL,
            _ => return Err(Fatal),
        };
        for &tag in tags {
            self.fault(tag, code, out);
        }
        Ok(())
    }

    /// T-133.
    pub(super) fn fault(&mut self, tag: u64, code: u32, out: &mut Predicted) {
        let lane = self.lane(tag).expect("a live lane").clone();
        self.seq_free(lane.seq);
        self.give_grammar_back(lane.grammar.as_ref());
        self.lanes.retain(|lane| lane.tag != tag);
        self.faulted.push(tag);
        out.faults.push((tag, code));
    }
}

fn chunk(tag: u64, tokens: usize) -> Loss {
    Loss { tag, kind: shed_kind::PREFILL_CHUNK, bytes: 0, tokens: tokens as u64 }
}
