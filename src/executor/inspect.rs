#![forbid(unsafe_code)]
//! What tests and diagnostics see of an executor (engine.md, section 4).

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use super::{AuditError, Executor};
use crate::record::LaneLogprob;
use crate::runtime::{Descriptor, Runtime};

impl<R: Runtime> Executor<R> {
    /// The committed tokens of a live lane.
    pub fn lane_committed(&self, lane_tag: u64) -> Option<&[u32]> {
        self.state.lanes.by_tag(lane_tag).map(|lane| lane.committed())
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

    /// Sequences that exist: those of lanes and the bare ones.
    pub fn live_sequences(&self) -> usize {
        self.state.live_sequences()
    }

    /// The log-probabilities of the last accepted tick.
    pub fn last_logprobs(&self) -> &[LaneLogprob] {
        &self.events.logprobs
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
        let bare: Vec<_> = state.bare.iter().map(|&sequence| (sequence, state.runtime.seq_len(sequence))).collect();
        let mut faulted: Vec<u64> = state.faulted.iter().copied().collect();
        faulted.sort_unstable();
        let counters = (state.plan_seq, state.tick_count, state.pace, state.broken, state.runtime.mem_counters());
        let mut hasher = DefaultHasher::new();
        format!("{lanes:?} {bare:?} {faulted:?} {:?} {:?} {counters:?} {:?}", state.bias, state.exempt, self.events)
            .hash(&mut hasher);
        hasher.finish()
    }
}
