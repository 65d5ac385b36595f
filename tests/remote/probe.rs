//! A fake engine behind the link, and a way to look into it.
//!
//! What the link has no message for travels in calls that a text engine does not offer: `media_bind` plants a fault, `media_probe` asks for
//! the digest of the engine's state.

use ictus::engine::{Engine, EventsView, ExportSize, OpHandle, SeqHandle};
use ictus::executor::Executor;
use ictus::record::view::Memory;
use ictus::record::{
    CacheKey, ExactnessCert, MatchCandidate, MatchResult, MediaInfo, OpStatus, RingDesc, StateSpaceDesc, Status,
    StrategyGrant, StrategyRegistration, TickPlan, TokenRange, TokenRef,
};
use ictus::ring::Rings;
use ictus::runtime::{FakeRuntime, Runtime};
use ictus::testing::EngineInspect;
use ictus::worker::client::RemoteEngine;

/// The handle of no media: what is bound to it is a fault.
const FAULT: u64 = 0xFA17;
const DIGEST: &str = "digest of the state";

/// The engine in the worker.
pub(crate) struct Probe<R: Runtime>(pub(crate) Executor<R>);

/// The fake runtime of the contract, with room for many lanes.
pub(crate) fn fake() -> Executor<FakeRuntime> {
    Executor::new(FakeRuntime::with(|options| {
        options.descriptor.max_batch = 256;
        options.descriptor.max_seq_len = 512;
        options.descriptor.vocab_size = 512;
        // What is published leaves again: a cache without a bound would be all that a long run measures.
        options.descriptor.cache_resident_cells = 4096;
        options.record = false;
    }))
}

macro_rules! delegate {
    ($( fn $name:ident(&mut self $(, $arg:ident: $type:ty)*) $(-> $out:ty)?; )*) => {
        $( fn $name(&mut self $(, $arg: $type)*) $(-> $out)? { Engine::$name(&mut self.0 $(, $arg)*) } )*
    };
}
macro_rules! delegate_shared {
    ($( fn $name:ident(&self $(, $arg:ident: $type:ty)*) -> $out:ty; )*) => {
        $( fn $name(&self $(, $arg: $type)*) -> $out { Engine::$name(&self.0 $(, $arg)*) } )*
    };
}

impl<R: Runtime> Engine for Probe<R> {
    fn tick(&mut self, plan: &TickPlan, memory: &dyn Memory, rings: &mut dyn Rings) -> Result<EventsView<'_>, Status> {
        self.0.tick(plan, memory, rings)
    }

    fn media_bind(&mut self, lane_tag: u64, media: u64, code: u32) -> Result<(), Status> {
        assert_eq!(media, FAULT);
        EngineInspect::inject_fault(&mut self.0, lane_tag, code);
        Ok(())
    }

    fn media_probe(&mut self, path: &str) -> Result<MediaInfo, Status> {
        assert_eq!(path, DIGEST);
        let preprocess_fp = EngineInspect::state_digest(&self.0);
        EngineInspect::audit(&self.0);
        Ok(MediaInfo { n_tokens: 0, image_token_id: 0, boi_token_id: 0, eoi_token_id: 0, preprocess_fp })
    }

    delegate! {
        fn pump(&mut self);
        fn attach_ring(&mut self, ring: &RingDesc) -> Result<(), Status>;
        fn strategy_register(&mut self, source: &StrategyRegistration, memory: &dyn Memory) -> Result<&StrategyGrant, Status>;
        fn space_match(&mut self, space_id: u32, span: &[u32], media: &[[u8; 32]]) -> Result<&MatchResult, Status>;
        fn space_match_ref(&mut self, space_id: u32, span: &[u32], reference: &TokenRef, media: &[[u8; 32]]) -> Result<&MatchResult, Status>;
        fn seed_acquire(&mut self, span: &[u32], prefix_len: u64, class: u8) -> Result<u64, Status>;
        fn seed_acquire_ref(&mut self, span: &[u32], reference: &TokenRef, prefix_len: u64, class: u8) -> Result<u64, Status>;
        fn seed_release(&mut self, lease: u64) -> Result<(), Status>;
        fn seed_adopt(&mut self, sequence: SeqHandle, span: &[u32]) -> Result<u64, Status>;
        fn seq_fork(&mut self, parent: SeqHandle, flags: u32) -> Result<SeqHandle, Status>;
        fn create_sequence(&mut self) -> Result<SeqHandle, Status>;
        fn free_sequence(&mut self, sequence: SeqHandle) -> Result<(), Status>;
        fn publish_sequence(&mut self, sequence: SeqHandle, tokens: &[u32]) -> Result<(), Status>;
        fn unpublish(&mut self, tokens: &[u32]) -> Result<(), Status>;
        fn cache_evict(&mut self, classes: u64, quota: u64, cap: u64, target: u64) -> Result<u64, Status>;
        fn cache_evict_entries(&mut self, keys: &[CacheKey]) -> Result<(), Status>;
        fn space_export_size(&mut self, sequence: SeqHandle, space_id: u32, range: TokenRange, encoding: u8) -> Result<ExportSize, Status>;
        fn space_snapshot(&mut self, sequence: SeqHandle, space_id: u32, boundary: u64, bytes: u64, sizing: u64) -> Result<OpHandle, Status>;
        fn space_restore(&mut self, sequence: SeqHandle, space_id: u32, sealed: &[u8]) -> Result<OpHandle, Status>;
        fn space_trim(&mut self, sequence: SeqHandle, space_id: u32, len: u64) -> Result<(), Status>;
        fn space_demote(&mut self, sequence: SeqHandle, space_id: u32, range: TokenRange, encoding: u8, bytes: u64, sizing: u64) -> Result<OpHandle, Status>;
        fn space_promote(&mut self, sequence: SeqHandle, space_id: u32, range: TokenRange, sealed: &[u8]) -> Result<OpHandle, Status>;
        fn take_op_output(&mut self, op: OpHandle) -> Option<Vec<u8>>;
        fn op_cancel(&mut self, op: OpHandle) -> Result<(), Status>;
        fn grammar_create(&mut self, schema: &str) -> Result<u32, Status>;
        fn grammar_create_structural(&mut self, document: &str) -> Result<u32, Status>;
        fn grammar_free(&mut self, grammar: u32) -> Result<(), Status>;
        fn logit_bias_create(&mut self, tokens: &[i32], addends: &[f32]) -> Result<u32, Status>;
        fn logit_bias_free(&mut self, bias: u32) -> Result<(), Status>;
    }
    delegate_shared! {
        fn last_events(&self) -> Option<EventsView<'_>>;
        fn state_spaces(&self) -> &[StateSpaceDesc];
        fn kv_bits(&self) -> u32;
        fn capability_descriptor(&self) -> Option<&str>;
        fn strategy_certificates(&self) -> &[ExactnessCert];
        fn match_candidates(&self) -> &[MatchCandidate];
        fn match_spaces(&self) -> &[ictus::record::SpaceMatch];
        fn strategy_identities(&self) -> &[[u8; 32]];
        fn seed_lease_ticks(&self) -> Option<u64>;
        fn lane_sequence(&self, lane_tag: u64) -> Option<SeqHandle>;
        fn space_snapshot_boundary(&self, sequence: SeqHandle, space_id: u32, cap: u64) -> Result<u64, Status>;
        fn op_poll(&self, op: OpHandle) -> Result<OpStatus, Status>;
    }
}

/// The host's side of a probe.
#[derive(Debug)]
pub(crate) struct Inspected(pub(crate) std::cell::RefCell<RemoteEngine>);

impl Inspected {
    pub(crate) fn new(engine: RemoteEngine) -> Self {
        Self(std::cell::RefCell::new(engine))
    }
}

macro_rules! through {
    ($( fn $name:ident(&mut self $(, $arg:ident: $type:ty)*) $(-> $out:ty)?; )*) => {
        $( fn $name(&mut self $(, $arg: $type)*) $(-> $out)? { Engine::$name(self.0.get_mut() $(, $arg)*) } )*
    };
}

impl Engine for Inspected {
    fn tick(&mut self, plan: &TickPlan, memory: &dyn Memory, rings: &mut dyn Rings) -> Result<EventsView<'_>, Status> {
        self.0.get_mut().tick(plan, memory, rings)
    }

    fn last_events(&self) -> Option<EventsView<'_>> {
        // SAFETY: nobody borrows the cell mutably while a view lives: the test is one thread, and the calls that do borrow it end
        // before they return.
        unsafe { (*self.0.as_ptr()).last_events() }
    }

    fn state_spaces(&self) -> &[StateSpaceDesc] {
        // SAFETY: as above.
        unsafe { (*self.0.as_ptr()).state_spaces() }
    }

    fn match_candidates(&self) -> &[MatchCandidate] {
        // SAFETY: as above.
        unsafe { (*self.0.as_ptr()).match_candidates() }
    }

    fn lane_sequence(&self, lane_tag: u64) -> Option<SeqHandle> {
        self.0.borrow().lane_sequence(lane_tag)
    }

    fn op_poll(&self, op: OpHandle) -> Result<OpStatus, Status> {
        self.0.borrow().op_poll(op)
    }

    through! {
        fn pump(&mut self);
        fn strategy_register(&mut self, source: &StrategyRegistration, memory: &dyn Memory) -> Result<&StrategyGrant, Status>;
        fn space_match(&mut self, space_id: u32, span: &[u32], media: &[[u8; 32]]) -> Result<&MatchResult, Status>;
        fn seed_acquire(&mut self, span: &[u32], prefix_len: u64, class: u8) -> Result<u64, Status>;
        fn seed_release(&mut self, lease: u64) -> Result<(), Status>;
        fn seed_adopt(&mut self, sequence: SeqHandle, span: &[u32]) -> Result<u64, Status>;
        fn seq_fork(&mut self, parent: SeqHandle, flags: u32) -> Result<SeqHandle, Status>;
        fn cache_evict(&mut self, classes: u64, quota: u64, cap: u64, target: u64) -> Result<u64, Status>;
        fn space_export_size(&mut self, sequence: SeqHandle, space_id: u32, range: TokenRange, encoding: u8) -> Result<ExportSize, Status>;
        fn space_snapshot(&mut self, sequence: SeqHandle, space_id: u32, boundary: u64, bytes: u64, sizing: u64) -> Result<OpHandle, Status>;
        fn space_restore(&mut self, sequence: SeqHandle, space_id: u32, sealed: &[u8]) -> Result<OpHandle, Status>;
        fn space_trim(&mut self, sequence: SeqHandle, space_id: u32, len: u64) -> Result<(), Status>;
        fn space_demote(&mut self, sequence: SeqHandle, space_id: u32, range: TokenRange, encoding: u8, bytes: u64, sizing: u64) -> Result<OpHandle, Status>;
        fn space_promote(&mut self, sequence: SeqHandle, space_id: u32, range: TokenRange, sealed: &[u8]) -> Result<OpHandle, Status>;
        fn op_cancel(&mut self, op: OpHandle) -> Result<(), Status>;
    }
}

impl EngineInspect for Inspected {
    fn lane_committed(&self, lane_tag: u64) -> Option<Vec<u32>> {
        self.0.borrow().lane_tokens(lane_tag)
    }

    fn inject_fault(&mut self, lane_tag: u64, code: u32) {
        self.0.get_mut().media_bind(lane_tag, FAULT, code).expect("the worker is a probe");
    }

    fn state_digest(&self) -> u64 {
        self.0.borrow_mut().media_probe(DIGEST).expect("the worker is a probe").preprocess_fp
    }
}
