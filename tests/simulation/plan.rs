//! A plan as the host thinks of it, with the prompts in it; and how it becomes a record.

use ictus::engine::PlanBuilder;
use ictus::record::{RecordArena, SamplingParams, TickPlan};
use ictus::ring::MemoryRings;

/// What is wrong with a prompt reference.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum BadRef {
    Generation,
    Ring,
    Slot,
    Count,
}

#[derive(Clone, Debug)]
pub(crate) struct Admit {
    pub(crate) tag: u64,
    pub(crate) prompt: Vec<u32>,
    pub(crate) bad_ref: Option<BadRef>,
    pub(crate) seed: u64,
    pub(crate) mode: u32,
    pub(crate) bias: u32,
    pub(crate) params: SamplingParams,
    pub(crate) base: u64,
    pub(crate) grammar: u32,
    pub(crate) grammar_replay: u32,
    pub(crate) slot: u32,
    pub(crate) class: u8,
    pub(crate) logprobs: u8,
    pub(crate) replay: u32,
}

#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) seq: u64,
    pub(crate) struct_size: u64,
    pub(crate) flags: u32,
    pub(crate) budget: u32,
    pub(crate) max_decode: u32,
    pub(crate) classes: u64,
    pub(crate) quota: u64,
    pub(crate) max_evict: u64,
    pub(crate) admits: Vec<Admit>,
    /// Tag, token, nonce.
    pub(crate) commits: Vec<(u64, u32, u64)>,
    /// Tag, offset, count.
    pub(crate) prefills: Vec<(u64, u32, u32)>,
    /// Tag, grant, overshoot.
    pub(crate) decodes: Vec<(u64, u16, u16)>,
    pub(crate) retires: Vec<(u64, bool)>,
}

impl Plan {
    pub(crate) fn new(seq: u64) -> Self {
        Self {
            seq,
            struct_size: size_of::<TickPlan>() as u64,
            flags: 0,
            budget: 4096,
            max_decode: 2,
            classes: u64::MAX,
            quota: 0,
            max_evict: u64::MAX,
            admits: vec![],
            commits: vec![],
            prefills: vec![],
            decodes: vec![],
            retires: vec![],
        }
    }

    /// Stages the prompts and writes the records.
    pub(crate) fn build(&self, rings: &mut MemoryRings) -> (TickPlan, RecordArena) {
        let mut plan = PlanBuilder::new(self.seq)
            .flags(self.flags)
            .prefill_budget(self.budget)
            .max_decode_lanes(self.max_decode)
            .evict_envelope(self.classes, self.max_evict)
            .protected_quota(self.quota);
        for admit in &self.admits {
            let mut prompt = rings.stage_prompt(&admit.prompt);
            match admit.bad_ref {
                None => {}
                Some(BadRef::Generation) => prompt.generation += 1,
                Some(BadRef::Ring) => prompt.ring_id = 9,
                Some(BadRef::Slot) => prompt.index = 1000,
                Some(BadRef::Count) => prompt.count += 1,
            }
            let write = |record: &mut ictus::record::LaneAdmit| {
                record.seed_handle = admit.seed;
                record.sampling = admit.mode;
                record.logit_bias_handle = admit.bias;
                record.params = admit.params;
                record.rng_counter_base = admit.base;
                record.grammar_handle = admit.grammar;
                record.grammar_replay = admit.grammar_replay;
                record.strategy_slot = admit.slot;
                record.determinism_class = admit.class;
                record.want_logprobs = admit.logprobs;
                record.decode_replay = admit.replay;
            };
            plan = plan.admit_with(write, admit.tag, prompt);
        }
        for &(tag, token, nonce) in &self.commits {
            plan = plan.commit(tag, token, nonce);
        }
        for &(tag, offset, count) in &self.prefills {
            plan = plan.prefill(tag, offset, count);
        }
        for &(tag, grant, overshoot) in &self.decodes {
            plan = plan.decode_with_overshoot(tag, grant, overshoot);
        }
        for &(tag, publish) in &self.retires {
            plan = plan.retire(tag, publish);
        }
        let (mut plan, arena) = plan.build();
        plan.struct_size = self.struct_size;
        (plan, arena)
    }
}
