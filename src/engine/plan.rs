#![forbid(unsafe_code)]
//! Building a plan in Rust, record by record.
//!
//! ```
//! use ictus::engine::{PlanBuilder, basic_admit};
//! use ictus::ring::MemoryRings;
//!
//! let mut rings = MemoryRings::new();
//! let prompt = rings.stage_prompt(&[1, 2, 3]);
//! let (plan, arena) = PlanBuilder::new(1).admit(7, prompt).prefill(7, 0, 3).decode(7, 16).build();
//! assert_eq!(plan.plan_seq, 1);
//! # let _ = (arena, basic_admit(7, prompt));
//! ```

use core::ffi::c_void;

use crate::record::constant::sampling_flag;
use crate::record::view::Plain;
use crate::record::{
    Array, LaneAdmit, LaneCommit, LaneDecode, LanePrefill, LaneRetire, PartialEmitFn, RecordArena, ShedPolicy,
    TickPlan, TokenRef,
};

/// An admit that decodes greedily, does not stop at end tokens, and asks for nothing else.
pub fn basic_admit(lane_tag: u64, prompt: TokenRef) -> LaneAdmit {
    let mut admit = LaneAdmit::zeroed();
    admit.lane_tag = lane_tag;
    admit.prompt = prompt;
    admit.params.flags = sampling_flag::IGNORE_EOS;
    admit
}

/// Collects the records of one plan; [`PlanBuilder::build`] gives the plan and the memory its arrays lie in.
#[derive(Clone, Debug)]
pub struct PlanBuilder {
    plan: TickPlan,
    admits: Vec<LaneAdmit>,
    commits: Vec<LaneCommit>,
    prefills: Vec<LanePrefill>,
    decodes: Vec<LaneDecode>,
    retires: Vec<LaneRetire>,
}

impl PlanBuilder {
    /// An empty plan: no flags, 4096 tokens of prefill, 8 decode lanes, everything in the cache may be evicted.
    pub fn new(plan_seq: u64) -> Self {
        let plan = TickPlan {
            struct_size: size_of::<TickPlan>() as u64,
            plan_seq,
            flags: 0,
            _pad0: 0,
            prefill_token_budget: 4096,
            max_decode_lanes: 8,
            admits: Array::EMPTY,
            commits: Array::EMPTY,
            prefills: Array::EMPTY,
            decodes: Array::EMPTY,
            retires: Array::EMPTY,
            shed_policy: ShedPolicy {
                victim_lanes: Array::EMPTY,
                evictable_cache_classes: u64::MAX,
                protected_quota_bytes: 0,
                max_evict_bytes: u64::MAX,
            },
            on_partial_emit: None,
            partial_emit_user: core::ptr::null_mut(),
        };
        Self { plan, admits: vec![], commits: vec![], prefills: vec![], decodes: vec![], retires: vec![] }
    }

    /// Sets the flags of the plan.
    pub fn flags(mut self, flags: u32) -> Self {
        self.plan.flags = flags;
        self
    }

    /// Most prompt tokens to run in this tick.
    pub fn prefill_budget(mut self, tokens: u32) -> Self {
        self.plan.prefill_token_budget = tokens;
        self
    }

    /// Most decode records.
    pub fn max_decode_lanes(mut self, lanes: u32) -> Self {
        self.plan.max_decode_lanes = lanes;
        self
    }

    /// Which cache classes may be evicted, and how many bytes of them.
    pub fn evict_envelope(mut self, classes: u64, max_bytes: u64) -> Self {
        self.plan.shed_policy.evictable_cache_classes = classes;
        self.plan.shed_policy.max_evict_bytes = max_bytes;
        self
    }

    /// Cache bytes that stay.
    pub fn protected_quota(mut self, bytes: u64) -> Self {
        self.plan.shed_policy.protected_quota_bytes = bytes;
        self
    }

    /// Calls `callback` with every token as it is picked; the flag must be set too (A-37).
    pub fn partial_emit(mut self, callback: PartialEmitFn, user: *mut c_void) -> Self {
        self.plan.on_partial_emit = Some(callback);
        self.plan.partial_emit_user = user;
        self
    }

    /// Admits a lane as [`basic_admit`] does.
    pub fn admit(self, lane_tag: u64, prompt: TokenRef) -> Self {
        self.admit_with(|_| {}, lane_tag, prompt)
    }

    /// Admits a lane that starts as [`basic_admit`] and is then changed.
    pub fn admit_with(mut self, change: impl FnOnce(&mut LaneAdmit), lane_tag: u64, prompt: TokenRef) -> Self {
        let mut admit = basic_admit(lane_tag, prompt);
        change(&mut admit);
        self.admits.push(admit);
        self
    }

    /// Commits a host-sampled token.
    pub fn commit(mut self, lane_tag: u64, token_id: u32, logits_nonce: u64) -> Self {
        self.commits.push(LaneCommit { lane_tag, token_id, _pad0: 0, logits_nonce });
        self
    }

    /// Runs `token_count` prompt tokens from `token_offset` on.
    pub fn prefill(mut self, lane_tag: u64, token_offset: u32, token_count: u32) -> Self {
        self.prefills.push(LanePrefill { lane_tag, token_offset, token_count });
        self
    }

    /// Grants `max_new_tokens`.
    pub fn decode(self, lane_tag: u64, max_new_tokens: u16) -> Self {
        self.decode_with_overshoot(lane_tag, max_new_tokens, 0)
    }

    /// Grants `max_new_tokens`, which accepted drafts may exceed by `overshoot`.
    pub fn decode_with_overshoot(mut self, lane_tag: u64, max_new_tokens: u16, overshoot: u16) -> Self {
        self.decodes.push(LaneDecode { lane_tag, max_new_tokens, overshoot, _pad1: 0 });
        self
    }

    /// Ends a lane.
    pub fn retire(mut self, lane_tag: u64, publish: bool) -> Self {
        self.retires.push(LaneRetire { lane_tag, publish_to_cache: publish.into(), _pad0: [0; 7] });
        self
    }

    /// The plan, and the arena that its arrays point into.
    pub fn build(self) -> (TickPlan, RecordArena) {
        let mut arena = RecordArena::new();
        let mut plan = self.plan;
        plan.admits = arena.push_records(&self.admits);
        plan.commits = arena.push_records(&self.commits);
        plan.prefills = arena.push_records(&self.prefills);
        plan.decodes = arena.push_records(&self.decodes);
        plan.retires = arena.push_records(&self.retires);
        (plan, arena)
    }
}
