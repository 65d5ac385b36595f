#![forbid(unsafe_code)]
//! The surface to the host: [`Engine`] for [`Executor`].
//!
//! What is not offered answers as the contract says of an engine without it: media are `Unsupported`.
//! After a fatal tick every call that could touch the runtime answers `Fatal`.

mod adaptation;
mod prefix;
mod sampling_inputs;
mod strategy;
mod transfer;

pub(super) use prefix::Matches;
pub(super) use strategy::Grant;

use super::Executor;
use crate::capacity::{Blocked, Capacity, NOTHING};
use crate::engine::{Engine, EventsView, ExportSize, LaneCost, OpHandle};
use crate::grammar::{GrammarError, Source};
use crate::record::view::Memory;
use crate::record::{
    CacheKey, ExactnessCert, MatchCandidate, MatchResult, OpStatus, SpaceMatch, StateSpaceDesc, Status, StrategyGrant,
    StrategyRegistration, TickPlan, TokenRange,
};
use crate::ring::Rings;
use crate::runtime::{Runtime, SeqHandle, StageOutput};
use crate::timeline::Timeline;

impl<R: Runtime> Executor<R> {
    /// Does what may move state, and tells the coordinator what is held then.
    ///
    /// # Errors
    /// `Fatal` once a tick was fatal; else those of `work`.
    fn moving<T>(&mut self, work: impl FnOnce(&mut Self) -> Result<T, Status>) -> Result<T, Status> {
        self.check_whole()?;
        let answer = work(self);
        self.tell_capacity();
        answer
    }

    fn tell_capacity(&mut self) {
        self.state.restate(&NOTHING, 0);
        self.state.wake();
    }

    /// `Fatal` once a tick was fatal.
    fn check_whole(&self) -> Result<(), Status> {
        if self.state.broken { Err(Status::Fatal) } else { Ok(()) }
    }
}

impl<R: Runtime> Engine for Executor<R> {
    fn tick(&mut self, plan: &TickPlan, memory: &dyn Memory, rings: &mut dyn Rings) -> Result<EventsView<'_>, Status> {
        let outcome = self.run_plan(plan, memory, rings);
        if outcome.is_err() && self.state.cells_moved && !self.state.broken {
            // Leases that ended meanwhile do not keep their entries any more (T-21).
            self.state.restate(&NOTHING, 0);
        }
        self.state.wake();
        outcome.inspect_err(|&status| self.trace_refusal(status))?;
        self.events.view().ok_or(Status::Fatal)
    }

    fn capacity(&self) -> Option<&Capacity> {
        Some(self.state.ledger.capacity())
    }

    fn last_blocked(&self) -> Option<&Blocked> {
        self.buffers.reserve.blocked.as_ref()
    }

    fn last_events(&self) -> Option<EventsView<'_>> {
        self.events.view()
    }

    fn state_spaces(&self) -> &[StateSpaceDesc] {
        &self.state.spaces
    }

    fn kv_bits(&self) -> u32 {
        self.state.descriptor.kv_bits
    }

    fn strategy_register(
        &mut self,
        registration: &StrategyRegistration,
        memory: &dyn Memory,
    ) -> Result<&StrategyGrant, Status> {
        self.check_whole()?;
        self.strategy_refusal = None;
        match self.register_strategy(registration, memory) {
            Ok(()) => self.grant.record().ok_or(Status::RegistrationRefused),
            Err((status, reason)) => {
                self.strategy_refusal = reason;
                Err(status)
            }
        }
    }

    fn strategy_certificates(&self) -> &[ExactnessCert] {
        self.grant.certificates()
    }

    fn strategy_identities(&self) -> &[[u8; 32]] {
        self.grant.identities()
    }

    fn space_match(&mut self, space: u32, span: &[u32], media: &[[u8; 32]]) -> Result<&MatchResult, Status> {
        self.check_whole()?;
        self.match_prefixes(space, span, media, self.state.adapters.default_adapter())
    }

    fn match_candidates(&self) -> &[MatchCandidate] {
        self.matches.candidates()
    }

    fn match_spaces(&self) -> &[SpaceMatch] {
        self.matches.spaces()
    }

    fn seed_acquire(&mut self, span: &[u32], prefix_len: u64, determinism_class: u8) -> Result<u64, Status> {
        self.moving(|engine| {
            engine.acquire_seed(span, prefix_len, determinism_class, engine.state.adapters.default_adapter())
        })
    }

    fn seed_release(&mut self, lease: u64) -> Result<(), Status> {
        self.moving(|engine| engine.release_seed(lease))
    }

    fn seed_lease_ticks(&self) -> Option<u64> {
        Some(self.state.options.seed_ttl_ticks)
    }

    fn seq_fork(&mut self, parent: SeqHandle, flags: u32) -> Result<SeqHandle, Status> {
        self.moving(|engine| engine.fork(parent, flags))
    }

    fn lane_sequence(&self, lane_tag: u64) -> Option<SeqHandle> {
        self.state.lanes.by_tag(lane_tag).map(|lane| lane.sequence())
    }

    fn lane_cost(&self, lane_tag: u64) -> Option<LaneCost> {
        self.cost_of(lane_tag)
    }

    fn timeline_start(&mut self, timeline: Box<Timeline>) -> Result<(), Status> {
        self.set_timeline(Some(timeline));
        Ok(())
    }

    fn timeline_stop(&mut self) -> Option<Box<Timeline>> {
        self.set_timeline(None)
    }

    fn create_sequence(&mut self) -> Result<SeqHandle, Status> {
        self.moving(|engine| engine.create_bare())
    }

    fn free_sequence(&mut self, sequence: SeqHandle) -> Result<(), Status> {
        self.moving(|engine| engine.free_bare(sequence))
    }

    fn seed_adopt(&mut self, sequence: SeqHandle, span: &[u32]) -> Result<u64, Status> {
        self.moving(|engine| engine.adopt(sequence, span))
    }

    fn publish_sequence(&mut self, sequence: SeqHandle, tokens: &[u32]) -> Result<(), Status> {
        self.moving(|engine| engine.state.publish_bare(sequence, tokens))
    }

    fn unpublish(&mut self, tokens: &[u32]) -> Result<(), Status> {
        self.moving(|engine| {
            engine.drop_published(tokens);
            Ok(())
        })
    }

    fn cache_evict(
        &mut self,
        classes: u64,
        quota_bytes: u64,
        cap_bytes: u64,
        target_bytes: u64,
    ) -> Result<u64, Status> {
        self.moving(|engine| engine.evict(classes, quota_bytes, cap_bytes, target_bytes))
    }

    fn cache_evict_entries(&mut self, keys: &[CacheKey]) -> Result<(), Status> {
        self.moving(|engine| engine.evict_entries(keys))
    }

    fn space_export_size(
        &mut self,
        sequence: SeqHandle,
        space: u32,
        range: TokenRange,
        encoding: u8,
    ) -> Result<ExportSize, Status> {
        self.check_whole()?;
        self.size_export(sequence, space, range, encoding)
    }

    fn space_snapshot(
        &mut self,
        sequence: SeqHandle,
        space: u32,
        boundary: u64,
        dst_bytes: u64,
        sizing_gen: u64,
    ) -> Result<OpHandle, Status> {
        let op = self.moving(|engine| engine.snapshot(sequence, space, boundary, dst_bytes, sizing_gen))?;
        self.trace_operation("snapshot", op, sequence);
        Ok(op)
    }

    fn space_snapshot_boundary(&self, sequence: SeqHandle, space: u32, cap: u64) -> Result<u64, Status> {
        self.check_whole()?;
        self.boundary(sequence, space, cap)
    }

    fn space_restore(&mut self, sequence: SeqHandle, space: u32, sealed: &[u8]) -> Result<OpHandle, Status> {
        let op = self.moving(|engine| engine.restore(sequence, space, sealed))?;
        self.trace_operation("restore", op, sequence);
        Ok(op)
    }

    fn space_trim(&mut self, sequence: SeqHandle, space: u32, len: u64) -> Result<(), Status> {
        self.moving(|engine| engine.trim(sequence, space, len))
    }

    fn space_demote(
        &mut self,
        sequence: SeqHandle,
        space: u32,
        range: TokenRange,
        encoding: u8,
        dst_bytes: u64,
        sizing_gen: u64,
    ) -> Result<OpHandle, Status> {
        let op = self.moving(|engine| engine.demote(sequence, space, range, encoding, dst_bytes, sizing_gen))?;
        self.trace_operation("demote", op, sequence);
        Ok(op)
    }

    fn space_promote(
        &mut self,
        sequence: SeqHandle,
        space: u32,
        range: TokenRange,
        sealed: &[u8],
    ) -> Result<OpHandle, Status> {
        let op = self.moving(|engine| engine.promote(sequence, space, range, sealed))?;
        self.trace_operation("promote", op, sequence);
        Ok(op)
    }

    fn op_poll(&self, op: OpHandle) -> Result<OpStatus, Status> {
        self.check_whole()?;
        self.poll_op(op)
    }

    fn take_op_output(&mut self, op: OpHandle) -> Option<Vec<u8>> {
        let output = self.take_output(op);
        self.tell_capacity();
        output
    }

    fn pump(&mut self) {
        self.pump_ops();
        self.tell_capacity();
    }

    fn op_cancel(&mut self, op: OpHandle) -> Result<(), Status> {
        self.moving(|engine| engine.cancel_op(op))
    }

    fn grammar_create(&mut self, schema: &str) -> Result<u32, Status> {
        self.check_whole()?;
        self.create_grammar(schema, Source::schema)
    }

    fn grammar_create_structural(&mut self, document: &str) -> Result<u32, Status> {
        self.check_whole()?;
        self.create_grammar(document, Source::structural)
    }

    fn grammar_create_regex(&mut self, pattern: &str) -> Result<u32, Status> {
        self.check_whole()?;
        self.create_grammar(pattern, Source::regex)
    }

    fn grammar_create_lark(&mut self, grammar: &str) -> Result<u32, Status> {
        self.check_whole()?;
        self.create_grammar(grammar, Source::lark)
    }

    fn grammar_refusal(&self) -> Option<String> {
        self.state.grammars.refusal().map(GrammarError::to_string)
    }

    fn grammar_free(&mut self, grammar: u32) -> Result<(), Status> {
        self.check_whole()?;
        self.free_grammar(grammar)
    }

    fn logit_bias_create(&mut self, tokens: &[i32], addends: &[f32]) -> Result<u32, Status> {
        self.check_whole()?;
        self.create_bias(tokens, addends)
    }

    fn logit_bias_free(&mut self, bias: u32) -> Result<(), Status> {
        self.check_whole()?;
        self.free_bias(bias)
    }

    fn capability_descriptor(&self) -> Option<&str> {
        Some(&self.capability)
    }

    fn space_match_adapted(
        &mut self,
        space: u32,
        span: &[u32],
        media: &[[u8; 32]],
        adapter: u64,
    ) -> Result<&MatchResult, Status> {
        self.check_whole()?;
        self.check_loaded(adapter)?;
        self.match_prefixes(space, span, media, adapter)
    }

    fn seed_acquire_adapted(
        &mut self,
        span: &[u32],
        prefix_len: u64,
        determinism_class: u8,
        adapter: u64,
    ) -> Result<u64, Status> {
        self.moving(|engine| {
            engine.check_loaded(adapter)?;
            engine.acquire_seed(span, prefix_len, determinism_class, adapter)
        })
    }

    fn adapter_load(&mut self, path: &str) -> Result<u64, Status> {
        self.check_whole()?;
        self.load_adapter(path).map(|loaded| loaded.handle)
    }

    fn adapter_unload(&mut self, adapter: u64) -> Result<(), Status> {
        self.check_whole()?;
        self.unload_adapter(adapter)
    }

    fn adapter_bind(&mut self, lane_tag: u64, adapter: u64) -> Result<(), Status> {
        self.check_whole()?;
        self.bind_adapter(lane_tag, adapter)
    }

    fn sequence_adapt(&mut self, sequence: SeqHandle, adapter: u64) -> Result<(), Status> {
        self.check_whole()?;
        self.adapt_bare(sequence, adapter)
    }

    fn adapter_bytes(&self) -> u64 {
        self.state.runtime.adapter_bytes()
    }

    fn adapter_digest(&self, adapter: u64) -> Option<[u8; 32]> {
        self.state.runtime.adapter_digest(adapter)
    }

    fn strategy_refusal(&self) -> Option<&str> {
        self.strategy_refusal.as_deref()
    }

    fn adapter_refusal(&self) -> Option<&str> {
        self.adapter_refusal.as_deref()
    }

    fn embed(&mut self, tokens: &[u32]) -> Result<Vec<f32>, Status> {
        self.moving(|engine| engine.embed_text(tokens))
    }

    fn lora_load(&mut self, path: &str) -> Result<(), Status> {
        self.check_whole()?;
        self.load_default(path)
    }

    fn lora_unload(&mut self) -> Result<(), Status> {
        self.check_whole()?;
        self.unload_default()
    }

    fn lora_id(&self) -> Option<[u8; 32]> {
        self.state.runtime.adapter_digest(self.state.adapters.default_adapter())
    }

    fn n_layers(&self) -> u32 {
        self.state.descriptor.workloads.layers
    }

    fn forward_stage(
        &mut self,
        tokens: &[u32],
        first: u32,
        end: u32,
        incoming: Option<&[u8]>,
    ) -> Result<StageOutput, Status> {
        self.moving(|engine| engine.run_stage(tokens, first, end, incoming))
    }
}
