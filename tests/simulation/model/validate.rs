//! What of a plan is refused, in which order (T-10 .. T-58).

use ictus::record::Status;
use ictus::record::constant::{determinism, sampling, tick_flag};

use super::{Model, Target};
use crate::plan::{Admit, BadRef, Plan};

/// Where a lane stands when its decode record is looked at.
#[derive(Clone, Debug)]
pub(super) struct Standing {
    pub(super) tag: u64,
    pub(super) stands: usize,
    pub(super) prefill_end: usize,
    pub(super) host: bool,
    pub(super) finished: bool,
    pub(super) row: bool,
}

/// A plan that passed: what each prefill record takes (T-49).
#[derive(Clone, Debug)]
pub(super) struct Valid {
    pub(super) taken: Vec<usize>,
}

fn twice(tags: impl Iterator<Item = u64>) -> bool {
    let tags: Vec<u64> = tags.collect();
    (0..tags.len()).any(|at| tags[..at].contains(&tags[at]))
}

impl Model {
    /// T-2: all checks in order; the first that fails decides.
    pub(super) fn validate(&mut self, plan: &Plan) -> Result<Valid, Status> {
        self.check_structure(plan)?;
        self.check_numbers(plan)?;
        self.sweep_leases();
        for (index, admit) in plan.admits.iter().enumerate() {
            self.check_admit(admit, &plan.admits[..index])?;
        }
        self.check_commits(plan)?;
        let mut standings = self.standings(plan);
        let taken = check_prefills(plan, &mut standings)?;
        check_decodes(plan, &standings)?;
        for (tag, _) in &plan.retires {
            if self.lane(*tag).is_none() && !self.faulted.contains(tag) {
                return Err(Status::RejectUnknownLane); // T-58
            }
        }
        self.check_transfers(plan)?;
        Ok(Valid { taken })
    }

    /// S-90: a plan names no lane whose sequence an operation works on, nor adopts one; S-91: a lane with a demoted range is neither fed
    /// nor published.
    fn check_transfers(&self, plan: &Plan) -> Result<(), Status> {
        let claimed = |admit: &Admit| match self.lease(admit.seed).map(|lease| lease.target) {
            Some(Target::Bare(seq)) => self.is_claimed(seq),
            _ => false,
        };
        if plan.admits.iter().any(claimed) {
            return Err(Status::RejectTransferLocked);
        }
        for lane in &self.lanes {
            let works = plan.commits.iter().any(|commit| commit.0 == lane.tag)
                || plan.prefills.iter().any(|prefill| prefill.0 == lane.tag)
                || plan.decodes.iter().any(|decode| decode.0 == lane.tag);
            let retires = plan.retires.iter().any(|retire| retire.0 == lane.tag);
            let publishes = plan.retires.contains(&(lane.tag, true));
            let locked = (works || retires) && self.is_claimed(lane.seq);
            if locked || ((works || publishes) && self.has_holes(lane.seq)) {
                return Err(Status::RejectTransferLocked);
            }
        }
        Ok(())
    }

    /// T-10 .. T-15.
    fn check_structure(&self, plan: &Plan) -> Result<(), Status> {
        if plan.struct_size < 152 {
            return Err(Status::RejectBadStruct); // T-10
        }
        let doubled = twice(plan.admits.iter().map(|admit| admit.tag))
            || twice(plan.commits.iter().map(|commit| commit.0))
            || twice(plan.prefills.iter().map(|prefill| prefill.0))
            || twice(plan.decodes.iter().map(|decode| decode.0))
            || twice(plan.retires.iter().map(|retire| retire.0));
        if doubled {
            return Err(Status::RejectDuplicateLane); // T-12
        }
        let admits = |tag| plan.admits.iter().any(|admit| admit.tag == tag);
        let commits = |tag| plan.commits.iter().any(|commit| commit.0 == tag);
        let retires = |tag| plan.retires.iter().any(|retire| retire.0 == tag);
        let clash = plan.admits.iter().any(|admit| retires(admit.tag) || commits(admit.tag))
            || plan.commits.iter().any(|commit| retires(commit.0))
            || plan.decodes.iter().any(|decode| retires(decode.0))
            || plan.prefills.iter().any(|prefill| retires(prefill.0));
        if clash {
            return Err(Status::RejectIllegalCombination); // T-13
        }
        let host = |tag| plan.admits.iter().any(|admit| admit.tag == tag && admit.mode == sampling::HOST);
        if plan.decodes.iter().any(|&(tag, grant, _)| admits(tag) && host(tag) && grant != 1) {
            return Err(Status::RejectHostRules); // T-14
        }
        match plan.decodes.len() <= plan.max_decode as usize {
            true => Ok(()),
            false => Err(Status::RejectBudget), // T-15
        }
    }

    /// T-18 .. T-20.
    fn check_numbers(&self, plan: &Plan) -> Result<(), Status> {
        if self.plan_seq.is_some_and(|last| plan.seq <= last) {
            return Err(Status::RejectIllegalCombination);
        }
        if plan.max_decode as usize > self.shape.batch {
            return Err(Status::RejectBudget);
        }
        match plan.flags & tick_flag::DRAIN != 0 && !plan.admits.is_empty() {
            true => Err(Status::RejectIllegalCombination),
            false => Ok(()),
        }
    }

    /// Whether validating a plan now would drop a lease, which even a refused plan does (T-21).
    pub(crate) fn would_sweep(&self) -> bool {
        self.leases.iter().any(|lease| lease.expires_at < self.now)
    }

    /// T-21.
    fn sweep_leases(&mut self) {
        let expired: Vec<u64> =
            self.leases.iter().filter(|lease| lease.expires_at < self.now).map(|lease| lease.handle).collect();
        for handle in expired {
            self.drop_lease(handle);
        }
    }

    /// T-24 .. T-36.
    fn check_admit(&self, admit: &Admit, earlier: &[Admit]) -> Result<(), Status> {
        let illegal = Err(Status::RejectIllegalCombination);
        if self.lane(admit.tag).is_some() {
            return illegal; // T-24
        }
        match admit.bad_ref {
            None => {}
            Some(BadRef::Generation) => return Err(Status::RejectBadRefGeneration), // T-25, E-30
            Some(BadRef::Ring | BadRef::Slot | BadRef::Count) => return Err(Status::RejectBounds),
        }
        if admit.prompt.is_empty() {
            return illegal; // T-26
        }
        if admit.prompt.iter().any(|&token| token >= self.shape.vocab) {
            return Err(Status::RejectBounds); // T-27
        }
        if admit.mode > sampling::HOST {
            return illegal; // T-28
        }
        if admit.replay as usize >= admit.prompt.len() {
            return Err(Status::RejectBounds); // T-29
        }
        if admit.slot > u32::from(self.shape.drafts > 0) {
            return illegal; // T-30, R-54
        }
        if admit.grammar == 0 && admit.grammar_replay != 0 {
            return illegal; // T-32
        }
        if admit.grammar != 0 {
            let taken = earlier.iter().any(|other| other.grammar == admit.grammar);
            let start = admit.prompt.len().checked_sub(admit.grammar_replay as usize);
            let cursor = start.and_then(|start| self.cursor(admit.grammar, &admit.prompt[start..]));
            if taken || admit.mode == sampling::HOST || cursor.is_none() {
                return illegal; // T-31, T-32
            }
        }
        if admit.bias != 0 && !self.biases.iter().any(|(handle, _)| *handle == admit.bias) {
            return illegal; // T-33
        }
        if admit.seed != 0 {
            self.check_seed(admit, earlier)?;
        }
        match admit.prompt.len() <= self.shape.context {
            true => Ok(()),
            false => Err(Status::RejectBudget), // T-36
        }
    }

    /// T-34, T-35.
    fn check_seed(&self, admit: &Admit, earlier: &[Admit]) -> Result<(), Status> {
        let stale = Err(Status::RejectStaleSeed);
        if earlier.iter().any(|other| other.seed == admit.seed) {
            return stale;
        }
        let Some(lease) = self.lease(admit.seed) else { return stale };
        let class = match lease.target {
            Target::Entry(_) => lease.class,
            Target::Bare(_) => determinism::BEST_EFFORT,
        };
        let bare = match lease.target {
            Target::Entry(_) => true,
            Target::Bare(seq) => self.bare(seq).is_some(),
        };
        let scope = match lease.target {
            Target::Entry(name) => self.entry(name).map(|entry| entry.scope),
            Target::Bare(seq) => self.bare(seq).map(|_| self.scope(self.seq(seq).adapter)),
        };
        // State of another adapter is no seed.
        if scope != Some(self.scope(self.adapter_of(admit.tag))) {
            return stale;
        }
        if lease.expires_at < self.now || class != admit.class || !admit.prompt.starts_with(&lease.prefix) || !bare {
            return stale;
        }
        // The cache seed is refused as the adopted one is: the note to T-36.
        match lease.prefix.len() == admit.prompt.len() && !self.shape.cuts {
            true => Err(Status::RejectIllegalCombination),
            false => Ok(()),
        }
    }

    /// T-40 .. T-44.
    fn check_commits(&self, plan: &Plan) -> Result<(), Status> {
        for &(tag, token, nonce) in &plan.commits {
            let lane = self.lane(tag).ok_or(Status::RejectUnknownLane)?;
            if !lane.is_host() || lane.finished {
                return Err(Status::RejectIllegalCombination);
            }
            let row = lane.row.ok_or(Status::RejectHostRules)?;
            if nonce != row {
                return Err(Status::RejectStaleNonce);
            }
            if token >= self.shape.vocab {
                return Err(Status::RejectBounds);
            }
        }
        Ok(())
    }

    /// Every lane that a record may name: live, or admitted here with its seed (the definitions of section 5).
    fn standings(&self, plan: &Plan) -> Vec<Standing> {
        let live = self.lanes.iter().map(|lane| Standing {
            tag: lane.tag,
            stands: lane.prefilled,
            prefill_end: lane.prefill_end,
            host: lane.is_host(),
            finished: lane.finished,
            row: lane.row.is_some() && !plan.commits.iter().any(|commit| commit.0 == lane.tag),
        });
        let admitted = plan.admits.iter().map(|admit| {
            let seeded = self.lease(admit.seed).map_or(0, |lease| lease.prefix.len());
            Standing {
                tag: admit.tag,
                stands: seeded,
                prefill_end: (admit.prompt.len() - admit.replay as usize).max(seeded),
                host: admit.mode == sampling::HOST,
                finished: false,
                row: false,
            }
        });
        live.chain(admitted).collect()
    }
}

/// T-46 .. T-49.
fn check_prefills(plan: &Plan, standings: &mut [Standing]) -> Result<Vec<usize>, Status> {
    let mut taken = Vec::new();
    let mut left = plan.budget as usize;
    for &(tag, offset, count) in &plan.prefills {
        let lane = standings.iter_mut().find(|lane| lane.tag == tag).ok_or(Status::RejectUnknownLane)?;
        if offset as usize != lane.stands {
            return Err(Status::RejectIllegalCombination);
        }
        if offset as usize + count as usize > lane.prefill_end {
            return Err(Status::RejectBounds);
        }
        let take = (count as usize).min(left);
        left -= take;
        lane.stands += take;
        taken.push(take);
    }
    Ok(taken)
}

/// T-50 .. T-54.
fn check_decodes(plan: &Plan, standings: &[Standing]) -> Result<(), Status> {
    for &(tag, grant, _) in &plan.decodes {
        let lane = standings.iter().find(|lane| lane.tag == tag).ok_or(Status::RejectUnknownLane)?;
        if lane.finished {
            return Err(Status::RejectIllegalCombination);
        }
        if lane.host && grant != 1 {
            return Err(Status::RejectHostRules);
        }
        if lane.host && lane.row {
            return Err(Status::RejectHostRules);
        }
        if lane.stands < lane.prefill_end {
            return Err(Status::RejectIllegalCombination);
        }
    }
    Ok(())
}
