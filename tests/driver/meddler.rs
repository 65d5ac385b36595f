//! An engine that somebody meddles with: it refuses, or panics, when it is told to.

use ictus::engine::{Engine, EventsView, ExportSize, OpHandle, SeqHandle};
use ictus::record::view::Memory;
use ictus::record::{
    LaneDecode, MatchCandidate, MatchResult, OpStatus, StateSpaceDesc, Status, StrategyGrant, StrategyRegistration,
    TickPlan, TokenRange,
};
use ictus::ring::Rings;

use super::engine::Under;

/// What is done to a plan; `decodes` are the tags that it decodes.
pub(crate) type Meddle = Box<dyn FnMut(&TickPlan, &[u64]) -> Option<Status> + Send>;

/// An engine behind somebody who looks at each plan first.
pub(crate) struct Meddler {
    pub(crate) inner: Under,
    pub(crate) meddle: Meddle,
    pub(crate) plans: u64,
}

impl Meddler {
    pub(crate) fn new(inner: Under, meddle: impl FnMut(&TickPlan, &[u64]) -> Option<Status> + Send + 'static) -> Self {
        Self { inner, meddle: Box::new(meddle), plans: 0 }
    }
}

impl Engine for Meddler {
    fn tick(&mut self, plan: &TickPlan, memory: &dyn Memory, rings: &mut dyn Rings) -> Result<EventsView<'_>, Status> {
        self.plans += 1;
        let decodes = plan.decodes.elements::<LaneDecode>(memory)?.map(|decode| decode.lane_tag);
        match (self.meddle)(plan, &decodes.collect::<Vec<_>>()) {
            Some(status) => Err(status),
            None => self.inner.tick(plan, memory, rings),
        }
    }
    fn last_events(&self) -> Option<EventsView<'_>> {
        self.inner.last_events()
    }
    fn state_spaces(&self) -> &[StateSpaceDesc] {
        self.inner.state_spaces()
    }
    fn strategy_register(&mut self, it: &StrategyRegistration, memory: &dyn Memory) -> Result<&StrategyGrant, Status> {
        self.inner.strategy_register(it, memory)
    }
    fn space_match(&mut self, space: u32, span: &[u32], media: &[[u8; 32]]) -> Result<&MatchResult, Status> {
        self.inner.space_match(space, span, media)
    }
    fn match_candidates(&self) -> &[MatchCandidate] {
        self.inner.match_candidates()
    }
    fn seed_acquire(&mut self, span: &[u32], len: u64, class: u8) -> Result<u64, Status> {
        self.inner.seed_acquire(span, len, class)
    }
    fn seed_release(&mut self, lease: u64) -> Result<(), Status> {
        self.inner.seed_release(lease)
    }
    fn seq_fork(&mut self, parent: SeqHandle, flags: u32) -> Result<SeqHandle, Status> {
        self.inner.seq_fork(parent, flags)
    }
    fn lane_sequence(&self, lane_tag: u64) -> Option<SeqHandle> {
        self.inner.lane_sequence(lane_tag)
    }
    fn free_sequence(&mut self, sequence: SeqHandle) -> Result<(), Status> {
        self.inner.free_sequence(sequence)
    }
    fn publish_sequence(&mut self, sequence: SeqHandle, tokens: &[u32]) -> Result<(), Status> {
        self.inner.publish_sequence(sequence, tokens)
    }
    fn cache_evict(&mut self, classes: u64, quota: u64, cap: u64, target: u64) -> Result<u64, Status> {
        self.inner.cache_evict(classes, quota, cap, target)
    }
    fn space_export_size(&mut self, _: SeqHandle, _: u32, _: TokenRange, _: u8) -> Result<ExportSize, Status> {
        Err(Status::Unsupported)
    }
    fn space_snapshot(&mut self, _: SeqHandle, _: u32, _: u64, _: u64, _: u64) -> Result<OpHandle, Status> {
        Err(Status::Unsupported)
    }
    fn space_restore(&mut self, _: SeqHandle, _: u32, _: &[u8]) -> Result<OpHandle, Status> {
        Err(Status::Unsupported)
    }
    fn space_trim(&mut self, _: SeqHandle, _: u32, _: u64) -> Result<(), Status> {
        Err(Status::Unsupported)
    }
    fn space_demote(&mut self, _: SeqHandle, _: u32, _: TokenRange, _: u8, _: u64, _: u64) -> Result<OpHandle, Status> {
        Err(Status::Unsupported)
    }
    fn space_promote(&mut self, _: SeqHandle, _: u32, _: TokenRange, _: &[u8]) -> Result<OpHandle, Status> {
        Err(Status::Unsupported)
    }
    fn op_poll(&self, _: OpHandle) -> Result<OpStatus, Status> {
        Err(Status::UnknownHandle)
    }
    fn op_cancel(&mut self, _: OpHandle) -> Result<(), Status> {
        Err(Status::UnknownHandle)
    }
    fn logit_bias_create(&mut self, tokens: &[i32], addends: &[f32]) -> Result<u32, Status> {
        self.inner.logit_bias_create(tokens, addends)
    }
    fn logit_bias_free(&mut self, bias: u32) -> Result<(), Status> {
        self.inner.logit_bias_free(bias)
    }
}
