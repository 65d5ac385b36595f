#![forbid(unsafe_code)]
//! Drafting a plan: who runs how much of its prompt, and who decodes.
//!
//! Every lane whose prompt is through decodes in every tick. The rest of the tick's tokens goes to the prompts by rank; a prompt that
//! would take them all leaves half of them to the ones behind it, so that a short prompt does not wait for a long one.

use super::job::Live;
use super::lanes::Slot;
use super::scheduler::{Retire, Scheduler};
use crate::engine::PlanBuilder;
use crate::record::constant::tick_flag;
use crate::record::{RecordArena, TickPlan};

/// How much of the full plan is drafted. Each level asks for less memory than the one before (see `ladder.rs`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Level {
    /// Everything.
    Full,
    /// One prompt only, the one of the best rank, and half of the tokens.
    OnePrompt,
    /// No prompts.
    Decodes,
    /// No work: retires only.
    Nothing,
    /// One lane alone, with all its work.
    Alone(Slot),
    /// One lane alone, with the least work there is.
    Least(Slot),
}

/// What one lane does in a plan.
#[derive(Clone, Copy, Debug)]
pub(super) struct Act {
    pub(super) slot: Slot,
    pub(super) lane_tag: u64,
    pub(super) prefill: u32,
    /// 0 is no decode record.
    pub(super) grant: u16,
}

/// A plan, and what it asks of whom.
pub(super) struct Draft {
    pub(super) plan: TickPlan,
    pub(super) arena: RecordArena,
    /// In the order of the records.
    pub(super) acts: Vec<Act>,
    pub(super) admits: usize,
    /// The lane that gives its place up.
    pub(super) victim: Option<Slot>,
    /// Retires of the list that ride along.
    pub(super) retires: usize,
}

impl Draft {
    /// Whether it asks for nothing.
    pub(super) fn is_empty(&self) -> bool {
        self.acts.is_empty() && self.admits == 0 && self.victim.is_none() && self.retires == 0
    }

    /// Prompt tokens that it runs.
    pub(super) fn prefill_tokens(&self) -> u32 {
        self.acts.iter().map(|act| act.prefill).fold(0, u32::saturating_add)
    }
}

impl Scheduler {
    /// Drafts a plan with this number, in which `victim` gives its place up.
    pub(super) fn draft(&self, plan_seq: u64, level: Level, victim: Option<(Slot, bool)>) -> Draft {
        let victim_slot = victim.map(|(slot, _)| slot);
        let acts = self.acts(level, victim_slot);
        let tokens: u32 = acts.iter().map(|act| act.prefill).fold(0, u32::saturating_add);
        let lanes = u32::try_from(self.lanes.capacity()).unwrap_or(u32::MAX);
        let mut builder = PlanBuilder::new(plan_seq)
            .flags(tick_flag::CAPTURE_OK)
            .prefill_budget(tokens)
            .max_decode_lanes(lanes)
            .protected_quota(self.options.protected_cache_bytes);
        for Retire { lane_tag, publish } in &self.retires {
            builder = builder.retire(*lane_tag, *publish);
        }
        if let Some((slot, publish)) = victim
            && let Some(live) = self.lanes.get(slot)
        {
            builder = builder.retire(live.lane_tag, publish);
        }
        let mut admits = 0;
        for act in &acts {
            let Some(live) = self.lanes.get(act.slot) else { continue };
            if live.fresh {
                let admit = live.job.admit(live.lane_tag, live.staged, live.lease);
                builder = builder.admit_with(|record| *record = admit, live.lane_tag, live.staged);
                admits += 1;
            }
            if act.prefill > 0 {
                builder = builder.prefill(live.lane_tag, live.prefilled, act.prefill);
            }
            if act.grant > 0 {
                builder = builder.decode_with_overshoot(live.lane_tag, act.grant, self.overshoot(live, act.grant));
            }
        }
        let (plan, arena) = builder.build();
        Draft { plan, arena, acts, admits, victim: victim_slot, retires: self.retires.len() }
    }

    /// What each lane does.
    fn acts(&self, level: Level, victim: Option<Slot>) -> Vec<Act> {
        let slots = self.lanes.iter().filter(|&(slot, live)| match level {
            Level::Full | Level::OnePrompt => Some(slot) != victim,
            Level::Decodes => Some(slot) != victim && live.prefill_left() == 0,
            Level::Nothing => false,
            Level::Alone(alone) | Level::Least(alone) => slot == alone,
        });
        let mut acts: Vec<Act> =
            slots.map(|(slot, live)| Act { slot, lane_tag: live.lane_tag, prefill: 0, grant: 0 }).collect();
        let prompts = self.prompts(&acts);
        let decoding = acts.len() - prompts.len();
        let budget = match level {
            Level::Least(_) => u32::try_from(self.pool.page_tokens).unwrap_or(u32::MAX).min(self.options.tick_tokens),
            Level::OnePrompt => self.pace.budget(decoding) / 2,
            _ => self.pace.budget(decoding),
        };
        let prompts = if level == Level::OnePrompt { prompts.get(..1).unwrap_or_default() } else { &prompts[..] };
        self.share_out(budget.max(1), prompts, &mut acts);
        for act in &mut acts {
            act.grant = self.lanes.get(act.slot).map_or(0, |live| self.grant(live, act.prefill, level));
        }
        // A fresh lane is admitted even when no token is left for it; any other one needs work to be named.
        acts.retain(|act| act.prefill > 0 || act.grant > 0 || self.lanes.get(act.slot).is_some_and(|live| live.fresh));
        acts
    }

    /// The acts whose lanes have prompt tokens left, best first.
    fn prompts(&self, acts: &[Act]) -> Vec<usize> {
        let left = |act: &Act| self.lanes.get(act.slot).is_some_and(|live| live.prefill_left() > 0);
        let mut prompts: Vec<usize> = (0..acts.len()).filter(|&at| acts.get(at).is_some_and(left)).collect();
        prompts.sort_by_key(|&at| acts.get(at).and_then(|act| self.lanes.get(act.slot)).map(|live| live.prefill_rank));
        prompts
    }

    /// Shares the prompt tokens of the tick out.
    fn share_out(&self, budget: u32, prompts: &[usize], acts: &mut [Act]) {
        let mut left = budget;
        for (place, &at) in prompts.iter().enumerate() {
            let Some(act) = acts.get_mut(at) else { continue };
            let wanted = self.lanes.get(act.slot).map_or(0, Live::prefill_left);
            let half = left.div_ceil(2);
            let most = if place == 0 && prompts.len() > 1 && wanted > half { half } else { left };
            act.prefill = wanted.min(most);
            left -= act.prefill;
        }
        // What the others did not need.
        if let Some(act) = prompts.first().and_then(|&at| acts.get_mut(at)) {
            let wanted = self.lanes.get(act.slot).map_or(0, Live::prefill_left);
            act.prefill = wanted.min(act.prefill.saturating_add(left));
        }
    }

    /// Tokens granted to a lane that runs so much of its prompt in this tick; 0 while its prompt is not through (T-54).
    fn grant(&self, live: &Live, prefill: u32, level: Level) -> u16 {
        if live.prefill_left() > prefill {
            return 0;
        }
        if matches!(level, Level::Least(_)) {
            return 1;
        }
        let replay = u32::from(self.options.replay_tokens).min(live.replay_left);
        // The tail takes a unit for each token (T-98). Only a lane that gets through it says something.
        let through = replay == live.replay_left;
        let new = if live.replay_left == 0 { self.options.decode_tokens } else { u16::from(through) };
        let new = u64::from(new).min(live.job.output.tokens_left().max(1));
        u16::try_from(u64::from(replay) + new).unwrap_or(u16::MAX)
    }

    /// How far drafts may run past a grant: never past the end of the answer.
    fn overshoot(&self, live: &Live, grant: u16) -> u16 {
        if live.job.request.strategy_slot == 0 {
            return 0;
        }
        let left = live.job.output.tokens_left().saturating_sub(u64::from(grant));
        self.options.draft_overshoot.min(u16::try_from(left).unwrap_or(u16::MAX))
    }
}
