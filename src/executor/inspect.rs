#![forbid(unsafe_code)]
//! What tests and diagnostics see of an executor (engine.md, section 4).

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use super::sequences::Bare;
use super::{AuditError, Executor};
use crate::engine::LaneCost;
use crate::prefix::Entry;
use crate::record::LaneLogprob;
use crate::runtime::{Descriptor, Runtime};

impl<R: Runtime> Executor<R> {
    /// The committed tokens of a live lane.
    pub fn lane_committed(&self, lane_tag: u64) -> Option<&[u32]> {
        self.state.lanes.by_tag(lane_tag).map(|lane| lane.committed())
    }

    /// What a live lane has cost so far.
    pub(super) fn cost_of(&self, lane_tag: u64) -> Option<LaneCost> {
        let lane = self.state.lanes.by_tag(lane_tag)?;
        let page = u64::from(self.state.descriptor.page_size_tokens.max(1));
        // What was demoted is whole pages, or up to the end.
        let demoted = self.state.transfers.demoted.of(lane.sequence()).iter();
        let gone: u64 = demoted.map(|range| range.end.div_ceil(page) - range.start / page).sum();
        Some(LaneCost {
            pages: (lane.fed_len() as u64).div_ceil(page).saturating_sub(gone),
            page_copies: self.state.runtime.page_copies(lane.sequence()),
            ..lane.cost()
        })
    }

    /// Makes the next decode record of a live lane fault with `code` (T-96). Answers whether the lane is live.
    pub fn inject_fault(&mut self, lane_tag: u64, code: u32) -> bool {
        match self.state.lanes.by_tag_mut(lane_tag) {
            Some(lane) => {
                lane.inject_fault(code);
                true
            }
            None => false,
        }
    }

    /// Sequences that exist: those of lanes, the bare ones, and those of entries in the pool.
    pub fn live_sequences(&self) -> usize {
        self.state.live_sequences()
    }

    /// Lengths that a match of the span offers, descending.
    pub fn match_lengths(&self, span: &[u32]) -> Vec<u64> {
        let mut found = Vec::new();
        self.state.cache.matches(&self.state.scope(self.state.adapters.default_adapter()), span, &mut found);
        found.iter().map(|candidate| candidate.len as u64).collect()
    }

    /// Pool bytes that are accounted to entries in the pool (S-48).
    pub fn cache_bytes(&self) -> u64 {
        self.state.cache.resident_bytes()
    }

    /// Tokens that are held as exports out of the pool.
    pub fn cache_exported_tokens(&self) -> u64 {
        self.state.cache.exported_tokens()
    }

    /// Identity of the engines that can exchange state with this one (S-80).
    pub fn compat_identity(&self) -> [u8; 32] {
        self.state.compat
    }

    /// The log-probabilities of the last accepted tick.
    pub fn last_logprobs(&self) -> &[LaneLogprob] {
        &self.events.logprobs
    }

    /// The model that drafts, once one was registered.
    pub fn drafter(&self) -> Option<&dyn crate::speculate::Drafter> {
        self.state.speculation.drafter()
    }

    /// What the runtime said of itself at construction.
    pub fn descriptor(&self) -> &Descriptor {
        &self.state.descriptor
    }

    /// The runtime.
    pub fn primitives(&self) -> &R {
        &self.state.runtime
    }

    /// The runtime, to be told things. Moving its sequences breaks the engine.
    pub fn primitives_mut(&mut self) -> &mut R {
        &mut self.state.runtime
    }

    /// Walks the lanes and checks what must hold between ticks.
    ///
    /// # Errors
    /// The first invariant that does not hold.
    pub fn audit(&self) -> Result<(), AuditError> {
        self.state.audit()
    }

    /// A digest of all that a refused plan must leave alone (T-3): every field of the state, what the runtime says of each
    /// sequence and of its memory, and the last events.
    pub fn state_digest(&self) -> u64 {
        let state = &self.state;
        let lanes: BTreeMap<u64, _> =
            state.lanes.iter().map(|lane| (lane.tag(), (lane, state.runtime.seq_len(lane.sequence())))).collect();
        let bare: Vec<_> = state
            .bare
            .iter()
            .map(|(&sequence, bare)| (sequence, unclaimed(bare), state.runtime.seq_len(sequence)))
            .collect();
        // Expired leases are no part of it: a refused plan sweeps them (T-21), with them go their pins and claims, and what they held may
        // be what settling waits for.
        let leases: Vec<_> = state.cache.leases().filter(|lease| lease.expires_at >= state.tick_count).collect();
        let entries: Vec<_> = state
            .cache
            .entries()
            .into_iter()
            .map(|entry| (Entry { pins: 0, ..entry.clone() }, state.runtime.seq_len(entry.sequence)))
            .collect();
        let moved = state.cells_moved || state.cache.leases().any(|lease| lease.expires_at < state.tick_count);
        let cache = (leases, entries, &state.losses, moved, state.cache.changed());
        let mut faulted: Vec<u64> = state.faulted.iter().copied().collect();
        faulted.sort_unstable();
        let counters = (state.plan_seq, state.tick_count, state.pace, state.broken, state.runtime.mem_counters());
        let mut hasher = DefaultHasher::new();
        let lists = (
            &state.transfers,
            &state.departures,
            &state.bias,
            &state.grammars,
            &state.exempt,
            &state.speculation,
            &self.grant,
            &state.adapters,
        );
        format!("{lanes:?} {bare:?} {cache:?} {faulted:?} {lists:?} {counters:?} {:?}", self.events).hash(&mut hasher);
        hasher.finish()
    }
}

/// A bare sequence without its claim: the leases say it.
fn unclaimed(bare: &Bare) -> Bare {
    Bare { lease: None, ..bare.clone() }
}
