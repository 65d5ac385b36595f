#![forbid(unsafe_code)]
//! The surface to the host: [`Engine`] for [`Executor`].
//!
//! What is not offered yet answers as the contract says of an engine without it: state operations, matches, forks, grammars and
//! media are `Unsupported`; no prefix is cached, so a seed is unservable, a lease unknown, and there is nothing to evict.
//! After a fatal tick every call that could touch the runtime answers `Fatal`.

use core::ffi::c_char;

use super::Executor;
use crate::engine::{Engine, EventsView, ExportSize, OpHandle};
use crate::record::constant::{misc::ALL_SPACES, space_flag, space_id, space_kind};
use crate::record::view::{Memory, Plain};
use crate::record::{
    Artifact, CacheKey, CapabilityReq, MatchResult, OpStatus, StateSpaceDesc, Status, StrategyGrant,
    StrategyRegistration, TapSpec, TickPlan, TokenRange,
};
use crate::ring::Rings;
use crate::runtime::{Descriptor, Runtime, SeqHandle};

/// The one space of a runtime: its paged keys and values.
pub(super) fn kv_space(descriptor: &Descriptor) -> StateSpaceDesc {
    let mut space = StateSpaceDesc::zeroed();
    space.space_id = space_id::KV;
    space.kind = space_kind::PAGED_TOKEN_KV;
    space.version_tag = 1;
    space.bytes_per_token = descriptor.kv_bytes_per_token.max(1);
    space.page_size_tokens = descriptor.page_size_tokens.max(1);
    space.flags = space_flag::OPS_UNAVAILABLE | space_flag::NO_PREFIX_CACHE;
    for (target, byte) in space.name.iter_mut().zip(*b"kv") {
        *target = byte as c_char;
    }
    space
}

impl<R: Runtime> Executor<R> {
    /// `Fatal` once a tick was fatal.
    fn check_whole(&self) -> Result<(), Status> {
        if self.state.broken { Err(Status::Fatal) } else { Ok(()) }
    }

    /// What is not offered, on an engine that is whole.
    fn not_offered<T>(&self) -> Result<T, Status> {
        self.check_whole()?;
        Err(Status::Unsupported)
    }
}

impl<R: Runtime> Engine for Executor<R> {
    fn tick(&mut self, plan: &TickPlan, memory: &dyn Memory, rings: &mut dyn Rings) -> Result<EventsView<'_>, Status> {
        self.run_plan(plan, memory, rings)?;
        self.events.view().ok_or(Status::Fatal)
    }

    fn last_events(&self) -> Option<EventsView<'_>> {
        self.events.view()
    }

    fn state_spaces(&self) -> &[StateSpaceDesc] {
        &self.spaces
    }

    fn kv_bits(&self) -> u32 {
        self.state.descriptor.kv_bits
    }

    /// Refused by a runtime that cannot verify drafts, not offered on any other.
    fn strategy_register(
        &mut self,
        registration: &StrategyRegistration,
        memory: &dyn Memory,
    ) -> Result<&StrategyGrant, Status> {
        self.check_whole()?;
        registration.artifacts.elements_within::<Artifact>(memory)?;
        registration.taps.elements_within::<TapSpec>(memory)?;
        for capability in registration.capabilities.elements_within::<CapabilityReq>(memory)? {
            capability.params.elements_within::<u8>(memory)?;
        }
        registration.target_archs.elements_within::<u64>(memory)?;
        match self.state.descriptor.verify_rows && self.state.descriptor.truncate_partial {
            true => Err(Status::Unsupported),
            false => Err(Status::RegistrationRefused),
        }
    }

    fn space_match(&mut self, space: u32, _: &[u32], _: &[[u8; 32]]) -> Result<&MatchResult, Status> {
        self.check_whole()?;
        match space {
            space_id::KV | ALL_SPACES => Err(Status::Unsupported),
            _ => Err(Status::UnknownHandle),
        }
    }

    fn seed_acquire(&mut self, _: &[u32], _: u64, _: u8) -> Result<u64, Status> {
        self.check_whole()?;
        Err(Status::SeedUnservable)
    }

    fn seed_release(&mut self, _: u64) -> Result<(), Status> {
        self.check_whole()?;
        Err(Status::UnknownHandle)
    }

    fn seq_fork(&mut self, _: SeqHandle, _: u32) -> Result<SeqHandle, Status> {
        self.not_offered()
    }

    fn lane_sequence(&self, lane_tag: u64) -> Option<SeqHandle> {
        self.state.lanes.by_tag(lane_tag).map(|lane| lane.sequence())
    }

    fn create_sequence(&mut self) -> Result<SeqHandle, Status> {
        self.check_whole()?;
        let slots = self.state.descriptor.max_seqs as usize;
        if slots != 0 && self.state.live_sequences() >= slots {
            return Err(Status::NeedsReplan);
        }
        let sequence = self.state.runtime.seq_create()?;
        self.state.bare.insert(sequence);
        Ok(sequence)
    }

    fn free_sequence(&mut self, sequence: SeqHandle) -> Result<(), Status> {
        self.check_whole()?;
        if self.state.bare.remove(&sequence) {
            self.state.runtime.seq_free(sequence);
            return Ok(());
        }
        match self.state.lanes.owns(sequence) {
            true => Err(Status::Busy),
            false => Err(Status::UnknownHandle),
        }
    }

    fn cache_evict(&mut self, _: u64, _: u64, _: u64, _: u64) -> Result<u64, Status> {
        self.check_whole()?;
        Ok(0)
    }

    fn cache_evict_entries(&mut self, _: &[CacheKey]) -> Result<(), Status> {
        self.not_offered()
    }

    fn space_export_size(&mut self, _: SeqHandle, _: u32, _: TokenRange, _: u8) -> Result<ExportSize, Status> {
        self.not_offered()
    }

    fn space_snapshot(&mut self, _: SeqHandle, _: u32, _: u64, _: u64, _: u64) -> Result<OpHandle, Status> {
        self.not_offered()
    }

    fn space_restore(&mut self, _: SeqHandle, _: u32, _: &[u8]) -> Result<OpHandle, Status> {
        self.not_offered()
    }

    fn space_trim(&mut self, _: SeqHandle, _: u32, _: u64) -> Result<(), Status> {
        self.not_offered()
    }

    fn space_demote(&mut self, _: SeqHandle, _: u32, _: TokenRange, _: u8, _: u64, _: u64) -> Result<OpHandle, Status> {
        self.not_offered()
    }

    fn space_promote(&mut self, _: SeqHandle, _: u32, _: TokenRange, _: &[u8]) -> Result<OpHandle, Status> {
        self.not_offered()
    }

    fn op_poll(&self, _: OpHandle) -> Result<OpStatus, Status> {
        self.check_whole()?;
        Err(Status::UnknownHandle)
    }

    fn op_cancel(&mut self, _: OpHandle) -> Result<(), Status> {
        self.check_whole()?;
        Err(Status::UnknownHandle)
    }

    fn logit_bias_create(&mut self, tokens: &[i32], addends: &[f32]) -> Result<u32, Status> {
        self.check_whole()?;
        let vocab_size = self.state.descriptor.vocab_size;
        self.state.bias.create(tokens, addends, vocab_size).ok_or(Status::Unsupported)
    }

    fn logit_bias_free(&mut self, bias: u32) -> Result<(), Status> {
        self.check_whole()?;
        if self.state.bias.free(bias) { Ok(()) } else { Err(Status::UnknownHandle) }
    }
}
