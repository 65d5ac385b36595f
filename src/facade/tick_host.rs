#![forbid(unsafe_code)]
//! A tick engine on a core that also serves the facade.
//!
//! Each call takes a turn among the submissions, does the chores, is the executor's own, and settles with the ledger. What a call answers by
//! reference lies here: the lists of events change hands with the executor's, so that nothing is copied in a tick.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::core::Shared;
use crate::capacity::{Blocked, Capacity, NOTHING};
use crate::engine::{Engine, EventsView, ExportSize, LaneCost, OpHandle};
use crate::executor::{Executor, TickEvents};
use crate::record::view::Memory;
use crate::record::{
    CacheKey, ExactnessCert, MatchCandidate, MatchResult, MediaInfo, OpStatus, SpaceMatch, StateSpaceDesc, Status,
    StrategyGrant, StrategyRegistration, TickPlan, TokenRange,
};
use crate::ring::Rings;
use crate::runtime::{Runtime, SeqHandle, StageOutput};
use crate::timeline::Timeline;

/// The tick facade of a [`Core`](super::Core): an [`Engine`], driven by one host thread, beside any number of threads that use the other one.
#[derive(Debug)]
pub struct TickHost<R: Runtime> {
    core: Arc<Shared<R>>,
    events: TickEvents,
    spaces: Vec<StateSpaceDesc>,
    kv_bits: u32,
    layers: u32,
    lease_ticks: Option<u64>,
    capability: Option<String>,
    /// The last answers; the arrays of the records point into the core, where only this handle changes them.
    grant: Option<StrategyGrant>,
    certificates: Vec<ExactnessCert>,
    identities: Vec<[u8; 32]>,
    found: Option<MatchResult>,
    found_spaces: Vec<SpaceMatch>,
    candidates: Vec<MatchCandidate>,
    strategy_refusal: Option<String>,
    adapter_refusal: Option<String>,
    blocked: Option<Blocked>,
}

impl<R: Runtime> Drop for TickHost<R> {
    fn drop(&mut self) {
        self.core.lent.store(false, Ordering::Release);
    }
}

impl<R: Runtime> TickHost<R> {
    pub(super) fn new(core: Arc<Shared<R>>) -> Self {
        let turn = core.submission.enter();
        let engine = &turn.executor;
        let host = Self {
            events: TickEvents::none(),
            spaces: engine.state_spaces().to_vec(),
            kv_bits: engine.kv_bits(),
            layers: engine.n_layers(),
            lease_ticks: engine.seed_lease_ticks(),
            capability: engine.capability_descriptor().map(str::to_owned),
            grant: None,
            certificates: Vec::new(),
            identities: Vec::new(),
            found: None,
            found_spaces: Vec::new(),
            candidates: Vec::new(),
            strategy_refusal: None,
            adapter_refusal: None,
            blocked: None,
            core: Arc::clone(&core),
        };
        drop(turn);
        host
    }

    /// A call that may change something.
    fn submit<T>(&self, call: impl FnOnce(&mut Executor<R>) -> T) -> T {
        let mut turn = self.core.submit();
        let answer = call(&mut turn.executor);
        let woken = turn.executor.settle_guests(&NOTHING, 0);
        drop(turn);
        drop(woken);
        answer
    }

    /// A call that changes nothing.
    fn ask<T>(&self, call: impl FnOnce(&Executor<R>) -> T) -> T {
        call(&self.core.submission.enter().executor)
    }

    fn keep_match(
        &mut self,
        found: Result<(MatchResult, Vec<SpaceMatch>, Vec<MatchCandidate>), Status>,
    ) -> Result<&MatchResult, Status> {
        let (found, spaces, candidates) = found?;
        self.found_spaces = spaces;
        self.candidates = candidates;
        Ok(self.found.insert(found))
    }
}

/// Calls that the executor answers by value.
macro_rules! passed {
    ($(fn $name:ident(&mut self $(, $argument:ident: $kind:ty)*) -> $answer:ty;)*) => {
        $(fn $name(&mut self $(, $argument: $kind)*) -> $answer {
            self.submit(|engine| engine.$name($($argument),*))
        })*
    };
}

/// Questions that the executor answers by value.
macro_rules! asked {
    ($(fn $name:ident(&self $(, $argument:ident: $kind:ty)*) -> $answer:ty;)*) => {
        $(fn $name(&self $(, $argument: $kind)*) -> $answer {
            self.ask(|engine| engine.$name($($argument),*))
        })*
    };
}

impl<R: Runtime> Engine for TickHost<R> {
    fn tick(&mut self, plan: &TickPlan, memory: &dyn Memory, rings: &mut dyn Rings) -> Result<EventsView<'_>, Status> {
        if self.core.submission.is_entered_here() {
            return Err(Status::Busy);
        }
        let mut turn = self.core.submit();
        let ticked = self.core.contain(&mut turn, |core| core.executor.tick(plan, memory, rings).map(|_| ()));
        let ticked = ticked.unwrap_or(Err(Status::Fatal));
        if ticked.is_ok() {
            turn.executor.swap_events(&mut self.events);
        }
        self.blocked = turn.executor.last_blocked().copied();
        if ticked == Err(Status::Fatal) {
            self.core.broken.store(true, Ordering::Release);
        }
        let woken = turn.executor.settle_guests(&NOTHING, 0);
        drop(turn);
        drop(woken);
        ticked?;
        self.events.view().ok_or(Status::Fatal)
    }

    fn capacity(&self) -> Option<&Capacity> {
        Some(&self.core.capacity)
    }

    fn last_blocked(&self) -> Option<&Blocked> {
        self.blocked.as_ref()
    }

    fn last_events(&self) -> Option<EventsView<'_>> {
        self.events.view()
    }

    fn state_spaces(&self) -> &[StateSpaceDesc] {
        &self.spaces
    }

    fn kv_bits(&self) -> u32 {
        self.kv_bits
    }

    fn n_layers(&self) -> u32 {
        self.layers
    }

    fn seed_lease_ticks(&self) -> Option<u64> {
        self.lease_ticks
    }

    fn capability_descriptor(&self) -> Option<&str> {
        self.capability.as_deref()
    }

    fn strategy_register(
        &mut self,
        registration: &StrategyRegistration,
        memory: &dyn Memory,
    ) -> Result<&StrategyGrant, Status> {
        let (grant, certificates, identities, refusal) = self.submit(|engine| {
            let grant = engine.strategy_register(registration, memory).copied();
            let certificates = engine.strategy_certificates().to_vec();
            let identities = engine.strategy_identities().to_vec();
            (grant, certificates, identities, engine.strategy_refusal().map(str::to_owned))
        });
        self.strategy_refusal = refusal;
        let grant = grant?;
        self.certificates = certificates;
        self.identities = identities;
        Ok(self.grant.insert(grant))
    }

    fn strategy_certificates(&self) -> &[ExactnessCert] {
        &self.certificates
    }

    fn strategy_identities(&self) -> &[[u8; 32]] {
        &self.identities
    }

    fn strategy_refusal(&self) -> Option<&str> {
        self.strategy_refusal.as_deref()
    }

    fn space_match(&mut self, space: u32, span: &[u32], media: &[[u8; 32]]) -> Result<&MatchResult, Status> {
        let found = self.submit(|engine| {
            let found = *engine.space_match(space, span, media)?;
            Ok((found, engine.match_spaces().to_vec(), engine.match_candidates().to_vec()))
        });
        self.keep_match(found)
    }

    fn space_match_adapted(
        &mut self,
        space: u32,
        span: &[u32],
        media: &[[u8; 32]],
        adapter: u64,
    ) -> Result<&MatchResult, Status> {
        let found = self.submit(|engine| {
            let found = *engine.space_match_adapted(space, span, media, adapter)?;
            Ok((found, engine.match_spaces().to_vec(), engine.match_candidates().to_vec()))
        });
        self.keep_match(found)
    }

    fn match_candidates(&self) -> &[MatchCandidate] {
        &self.candidates
    }

    fn match_spaces(&self) -> &[SpaceMatch] {
        &self.found_spaces
    }

    fn adapter_load(&mut self, path: &str) -> Result<u64, Status> {
        let (loaded, refusal) =
            self.submit(|engine| (engine.adapter_load(path), engine.adapter_refusal().map(str::to_owned)));
        self.adapter_refusal = refusal;
        loaded
    }

    fn lora_load(&mut self, path: &str) -> Result<(), Status> {
        let (loaded, refusal) =
            self.submit(|engine| (engine.lora_load(path), engine.adapter_refusal().map(str::to_owned)));
        self.adapter_refusal = refusal;
        loaded
    }

    fn adapter_refusal(&self) -> Option<&str> {
        self.adapter_refusal.as_deref()
    }

    passed! {
        fn pump(&mut self) -> ();
        fn seed_acquire(&mut self, span: &[u32], prefix_len: u64, determinism_class: u8) -> Result<u64, Status>;
        fn seed_acquire_adapted(&mut self, span: &[u32], len: u64, class: u8, adapter: u64) -> Result<u64, Status>;
        fn seed_release(&mut self, lease: u64) -> Result<(), Status>;
        fn seed_adopt(&mut self, sequence: SeqHandle, span: &[u32]) -> Result<u64, Status>;
        fn seq_fork(&mut self, parent: SeqHandle, flags: u32) -> Result<SeqHandle, Status>;
        fn timeline_start(&mut self, timeline: Box<Timeline>) -> Result<(), Status>;
        fn timeline_stop(&mut self) -> Option<Box<Timeline>>;
        fn create_sequence(&mut self) -> Result<SeqHandle, Status>;
        fn free_sequence(&mut self, sequence: SeqHandle) -> Result<(), Status>;
        fn publish_sequence(&mut self, sequence: SeqHandle, tokens: &[u32]) -> Result<(), Status>;
        fn unpublish(&mut self, tokens: &[u32]) -> Result<(), Status>;
        fn cache_evict(&mut self, classes: u64, quota: u64, cap: u64, target: u64) -> Result<u64, Status>;
        fn cache_evict_entries(&mut self, keys: &[CacheKey]) -> Result<(), Status>;
        fn space_export_size(&mut self, sequence: SeqHandle, space: u32, range: TokenRange, encoding: u8)
            -> Result<ExportSize, Status>;
        fn space_snapshot(&mut self, sequence: SeqHandle, space: u32, boundary: u64, dst_bytes: u64, sizing_gen: u64)
            -> Result<OpHandle, Status>;
        fn space_restore(&mut self, sequence: SeqHandle, space: u32, sealed: &[u8]) -> Result<OpHandle, Status>;
        fn space_trim(&mut self, sequence: SeqHandle, space: u32, len: u64) -> Result<(), Status>;
        fn space_demote(&mut self, sequence: SeqHandle, space: u32, range: TokenRange, encoding: u8, dst_bytes: u64,
            sizing_gen: u64) -> Result<OpHandle, Status>;
        fn space_promote(&mut self, sequence: SeqHandle, space: u32, range: TokenRange, sealed: &[u8])
            -> Result<OpHandle, Status>;
        fn take_op_output(&mut self, op: OpHandle) -> Option<Vec<u8>>;
        fn op_cancel(&mut self, op: OpHandle) -> Result<(), Status>;
        fn grammar_create(&mut self, schema: &str) -> Result<u32, Status>;
        fn grammar_create_structural(&mut self, document: &str) -> Result<u32, Status>;
        fn grammar_create_regex(&mut self, pattern: &str) -> Result<u32, Status>;
        fn grammar_create_lark(&mut self, grammar: &str) -> Result<u32, Status>;
        fn grammar_free(&mut self, grammar: u32) -> Result<(), Status>;
        fn logit_bias_create(&mut self, tokens: &[i32], addends: &[f32]) -> Result<u32, Status>;
        fn logit_bias_free(&mut self, bias: u32) -> Result<(), Status>;
        fn media_probe(&mut self, path: &str) -> Result<MediaInfo, Status>;
        fn media_encode(&mut self, path: &str) -> Result<(u64, MediaInfo), Status>;
        fn media_release(&mut self, media: u64) -> Result<(), Status>;
        fn media_bind(&mut self, lane_tag: u64, media: u64, prompt_offset: u32) -> Result<(), Status>;
        fn adapter_unload(&mut self, adapter: u64) -> Result<(), Status>;
        fn adapter_bind(&mut self, lane_tag: u64, adapter: u64) -> Result<(), Status>;
        fn sequence_adapt(&mut self, sequence: SeqHandle, adapter: u64) -> Result<(), Status>;
        fn lora_unload(&mut self) -> Result<(), Status>;
        fn embed(&mut self, tokens: &[u32]) -> Result<Vec<f32>, Status>;
        fn forward_stage(&mut self, tokens: &[u32], first: u32, end: u32, incoming: Option<&[u8]>)
            -> Result<StageOutput, Status>;
    }

    asked! {
        fn lane_sequence(&self, lane_tag: u64) -> Option<SeqHandle>;
        fn lane_cost(&self, lane_tag: u64) -> Option<LaneCost>;
        fn space_snapshot_boundary(&self, sequence: SeqHandle, space: u32, cap: u64) -> Result<u64, Status>;
        fn op_poll(&self, op: OpHandle) -> Result<OpStatus, Status>;
        fn grammar_refusal(&self) -> Option<String>;
        fn adapter_bytes(&self) -> u64;
        fn adapter_digest(&self, adapter: u64) -> Option<[u8; 32]>;
        fn lora_id(&self) -> Option<[u8; 32]>;
    }
}
