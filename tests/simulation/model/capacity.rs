//! Whether a plan fits, and what has to go so that it does (T-60 .. T-69).

use ictus::record::Status;
use ictus::record::constant::cache_class;

use super::pool::Growth;
use super::validate::Valid;
use super::{Entry, Lease, Model, Target};
use crate::plan::{Admit, Plan};

/// What capacity decided: entries that leave the pool, and admits that take their entry over.
#[derive(Clone, Debug, Default)]
pub(super) struct Decided {
    pub(super) victims: Vec<u64>,
    /// Places in the list of admits.
    pub(super) takeovers: Vec<usize>,
    /// Cells that are left then.
    pub(super) spare: u64,
}

/// What a plan needs (T-65), as far as it does not depend on what is evicted for it.
#[derive(Clone, Debug, Default)]
struct Need {
    /// Seeds that are copied or imported (T-64).
    seeds: u64,
    /// The most by which an imported entry is longer than its seed.
    longest_import: u64,
    /// Growth of sequences that the plan makes or takes over.
    fresh: u64,
    /// What takeovers give back (T-63).
    credits: u64,
    /// Growth of sequences that are there.
    growths: Vec<Growth>,
    /// Last tokens of publishing lanes (U of T-60).
    last: Vec<Growth>,
}

/// T-61.
pub(super) fn keep(admit: &Admit, lease: &Lease) -> usize {
    lease.prefix.len() - usize::from(lease.prefix.len() == admit.prompt.len())
}

impl Model {
    pub(super) fn decide_capacity(&self, plan: &Plan, valid: &Valid) -> Result<Decided, Status> {
        let mut decided = Decided { victims: vec![], takeovers: self.preferred_takeovers(plan), spare: 0 };
        if let Some(victims) = self.find_victims(plan, valid, &decided.takeovers) {
            decided.victims = victims;
            decided.spare = self.spare(plan, valid, &decided);
            return Ok(decided);
        }
        // T-69.
        let before = decided.takeovers.len();
        for (index, admit) in plan.admits.iter().enumerate() {
            if !decided.takeovers.contains(&index) && self.could_take_over(admit).is_some() {
                decided.takeovers.push(index);
            }
        }
        if decided.takeovers.len() == before {
            return Err(Status::NeedsReplan);
        }
        decided.takeovers.sort_unstable();
        decided.victims = self.find_victims(plan, valid, &decided.takeovers).ok_or(Status::NeedsReplan)?;
        decided.spare = self.spare(plan, valid, &decided);
        Ok(decided)
    }

    /// Cells that are free beside what the plan may need.
    fn spare(&self, plan: &Plan, valid: &Valid, decided: &Decided) -> u64 {
        let gone = self.gone(plan, &decided.victims);
        self.left(&self.need(plan, valid, &decided.takeovers), &gone).expect("it was found to fit")
    }

    /// The lease and the entry of an admit with a cache seed.
    fn seed_of(&self, admit: &Admit) -> Option<(&Lease, &Entry)> {
        let lease = self.lease(admit.seed)?;
        match lease.target {
            Target::Entry(name) => Some((lease, self.entry(name)?)),
            Target::Bare(_) => None,
        }
    }

    /// T-62: what a takeover would give back, if it is possible.
    fn could_take_over(&self, admit: &Admit) -> Option<usize> {
        let (lease, entry) = self.seed_of(admit)?;
        let keep = keep(admit, lease);
        let possible = !self.shape.shares
            && entry.pins == 1
            && !entry.exported
            && (self.shape.cuts || entry.key.len() == keep)
            && !entry.shared
            && (self.shape.cuts || entry.seeded == 0);
        possible.then(|| entry.key.len() - keep)
    }

    /// T-63.
    fn preferred_takeovers(&self, plan: &Plan) -> Vec<usize> {
        let mut preferred = Vec::new();
        if !self.shape.takes_over {
            return preferred;
        }
        for (index, admit) in plan.admits.iter().enumerate() {
            let Some((lease, entry)) = self.seed_of(admit) else { continue };
            let keep = keep(admit, lease);
            let continues = keep >= entry.prompt_len / self.shape.page * self.shape.page;
            if continues && self.could_take_over(admit).is_some_and(|back| back <= keep) {
                preferred.push(index);
            }
        }
        preferred
    }

    /// Most tokens that a lane feeds in the plan (P and D of T-60).
    fn growth_of(&self, tag: u64, decode_from: usize, plan: &Plan, valid: &Valid) -> usize {
        let prefills = plan.prefills.iter().zip(&valid.taken).filter(|(prefill, _)| prefill.0 == tag);
        let decodes = plan.decodes.iter().filter(|decode| decode.0 == tag);
        let room = self.shape.context - decode_from.min(self.shape.context);
        prefills.map(|(_, taken)| *taken).sum::<usize>()
            + decodes.map(|&(_, grant, _)| (grant as usize).min(room)).sum::<usize>()
    }

    /// T-60, T-64, T-65, with every sum in whole granules.
    fn need(&self, plan: &Plan, valid: &Valid, takeovers: &[usize]) -> Need {
        let mut need = Need::default();
        for lane in &self.lanes {
            let more = self.growth_of(lane.tag, lane.committed.len(), plan, valid);
            need.growths.push(Growth { seq: lane.seq, keep: lane.held(), more });
            if lane.pending && plan.retires.contains(&(lane.tag, true)) {
                need.last.push(Growth { seq: lane.seq, keep: lane.held(), more: 1 });
            }
        }
        for (index, admit) in plan.admits.iter().enumerate() {
            let lease = self.lease(admit.seed);
            let seeded = lease.map_or(0, |lease| lease.prefix.len());
            let end = (admit.prompt.len() - admit.replay as usize).max(seeded);
            let more = self.growth_of(admit.tag, end, plan, valid);
            let keep = lease.map_or(0, |lease| keep(admit, lease));
            if let Some(Target::Bare(seq)) = lease.map(|lease| lease.target) {
                need.growths.push(Growth { seq, keep, more });
                continue;
            }
            need.fresh += self.cells(keep + more) - self.cells(keep);
            let Some((_, entry)) = self.seed_of(admit) else { continue };
            let beyond = self.cells(entry.key.len()) - self.cells(keep);
            if takeovers.contains(&index) {
                need.credits += beyond;
            } else if entry.exported {
                need.seeds += self.cells(keep);
                need.longest_import = need.longest_import.max(beyond);
            } else if !self.shape.shares {
                need.seeds += self.cells(keep);
            } else if more > 0 && !keep.is_multiple_of(self.shape.granule) {
                // The entry holds the granule that the lane goes on in.
                need.fresh += self.shape.granule as u64;
            }
        }
        need
    }

    /// T-66: the cells that are left when these sequences are gone; none when they do not suffice.
    fn left(&self, need: &Need, gone: &[u64]) -> Option<u64> {
        if self.shape.cells == 0 {
            return Some(u64::MAX);
        }
        let stays = |growth: &&Growth| !gone.contains(&growth.seq);
        let growths: Vec<Growth> = need.growths.iter().filter(stays).copied().collect();
        let busiest = (self.cells_to_grow(&growths, gone) + need.fresh).max(need.longest_import);
        let needed = need.seeds + busiest + self.cells_to_grow(&need.last, gone);
        let free = self.shape.cells - self.cells_used() + self.cells_released(gone);
        free.checked_sub(needed.saturating_sub(need.credits))
    }

    /// Sequences of the lanes that leave nothing behind, and of the entries that are evicted.
    fn gone(&self, plan: &Plan, victims: &[u64]) -> Vec<u64> {
        self.leaving(plan).into_iter().chain(victims.iter().copied()).collect()
    }

    /// Sequences of the live lanes that retire without publishing.
    fn leaving(&self, plan: &Plan) -> Vec<u64> {
        let silent = plan.retires.iter().filter(|&&(_, publish)| !publish);
        silent.filter_map(|&(tag, _)| self.lane(tag).map(|lane| lane.seq)).collect()
    }

    /// T-67.
    fn slots_short(&self, plan: &Plan, leaving: &[u64], takeovers: &[usize]) -> usize {
        let creates = |(index, admit): &(usize, &Admit)| {
            let adopted = self.lease(admit.seed).is_some_and(|lease| matches!(lease.target, Target::Bare(_)));
            !takeovers.contains(index) && !adopted
        };
        let needed = plan.admits.iter().enumerate().filter(creates).count();
        match self.shape.slots {
            0 => 0,
            slots => (needed + self.live_sequences()).saturating_sub(slots + leaving.len()),
        }
    }

    /// T-68: the entries that leave so that the plan fits; none when it cannot.
    fn find_victims(&self, plan: &Plan, valid: &Valid, takeovers: &[usize]) -> Option<Vec<u64>> {
        let need = self.need(plan, valid, takeovers);
        let leaving = self.leaving(plan);
        let short = self.slots_short(plan, &leaving, takeovers);
        let mut victims = Vec::new();
        let fits = |victims: &[u64]| self.left(&need, &self.gone(plan, victims)).is_some();
        if short == 0 && fits(&victims) {
            return Some(victims);
        }
        if plan.classes & cache_class::RESIDENT == 0 {
            return None;
        }
        let cap = plan.max_evict.min(self.resident_bytes().saturating_sub(plan.quota));
        let mut bytes = 0;
        for name in self.eviction_order() {
            let entry_bytes = self.bytes_of(name);
            if bytes + entry_bytes > cap {
                continue;
            }
            bytes += entry_bytes;
            victims.push(name);
            if victims.len() >= short && fits(&victims) {
                return Some(victims);
            }
        }
        None
    }
}
