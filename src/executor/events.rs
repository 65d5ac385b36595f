#![forbid(unsafe_code)]
//! The events of the last accepted tick, in lists that keep their memory from tick to tick.
//!
//! # Invariants
//! - The lists change only between acceptance and report of a plan, so a refused plan leaves the last events as they are (T-3).
//! - The arrays of `record` point into the lists since [`Events::complete`], and the lists do not change before the next
//!   accepted plan: a host may follow the pointers until then.

use super::cache::Loss;
use crate::engine::EventsView;
use crate::record::constant::{misc::MAX_TOP_LOGPROBS, shed_kind};
use crate::record::view::Plain;
use crate::record::{
    AdmitResult, Array, LaneEmit, LaneFault, LaneLogprob, OpComplete, ShedEntry, ShedReport, TickEvents,
    TickMemCounters, TickTimings,
};

const _: () = assert!(MAX_TOP_LOGPROBS == 20, "the record and the sampler agree on the number of alternatives");

/// The lists and the record over them.
#[derive(Clone, Debug)]
pub(super) struct Events {
    pub(super) admit_results: Vec<AdmitResult>,
    pub(super) emits: Vec<LaneEmit>,
    pub(super) faults: Vec<LaneFault>,
    pub(super) shed_entries: Vec<ShedEntry>,
    pub(super) op_completions: Vec<OpComplete>,
    pub(super) logprobs: Vec<LaneLogprob>,
    record: TickEvents,
    complete: bool,
}

impl Events {
    /// No tick has run.
    pub(super) fn none() -> Self {
        Self {
            admit_results: Vec::new(),
            emits: Vec::new(),
            faults: Vec::new(),
            shed_entries: Vec::new(),
            op_completions: Vec::new(),
            logprobs: Vec::new(),
            record: TickEvents::zeroed(),
            complete: false,
        }
    }

    /// Forgets the last tick: a plan was accepted.
    pub(super) fn begin(&mut self) {
        self.complete = false;
        self.admit_results.clear();
        self.emits.clear();
        self.faults.clear();
        self.shed_entries.clear();
        self.op_completions.clear();
        self.logprobs.clear();
    }

    /// Notes prompt tokens that were not run (T-84, T-91), and what was short of the engine's own for them.
    pub(super) fn drop_chunk(&mut self, lane_tag: u64, tokens: u32, reason: u32) {
        let kind = shed_kind::PREFILL_CHUNK;
        self.shed_entries.push(ShedEntry { lane_tag, kind, reason, bytes: 0, tokens: tokens.into() });
    }

    /// Notes state that the cache lost: `lane_tag` is that of the admit that it went for, or 0 (T-74, T-76).
    pub(super) fn lose(&mut self, lane_tag: u64, Loss { bytes, tokens, reason }: Loss) {
        self.shed_entries.push(ShedEntry { lane_tag, kind: shed_kind::CACHE_EVICTION, reason, bytes, tokens });
    }

    /// Drops the log-probabilities of lanes that have no emit to go with them.
    pub(super) fn forget_logprobs_of_faulted(&mut self) {
        if !self.faults.is_empty() && !self.logprobs.is_empty() {
            let faulted: std::collections::HashSet<u64> = self.faults.iter().map(|fault| fault.lane_tag).collect();
            self.logprobs.retain(|logprob| !faulted.contains(&logprob.lane_tag));
        }
    }

    /// Fills the record; the lists stay as they are from here on.
    pub(super) fn complete(&mut self, plan_seq: u64, tick_status: u32, timings: TickTimings, mem: TickMemCounters) {
        self.record = TickEvents {
            struct_size: size_of::<TickEvents>() as u64,
            plan_seq,
            tick_status,
            _pad0: 0,
            admit_results: Array::over(&self.admit_results),
            emits: Array::over(&self.emits),
            faults: Array::over(&self.faults),
            shed: self.shed_report(),
            op_completions: Array::over(&self.op_completions),
            timings,
            mem,
            logprobs: Array::over(&self.logprobs),
        };
        self.complete = true;
    }

    /// Counters that equal the entries (T-143).
    fn shed_report(&self) -> ShedReport {
        let mut report = ShedReport::zeroed();
        report.entries = Array::over(&self.shed_entries);
        for entry in &self.shed_entries {
            match entry.kind {
                shed_kind::PREFILL_CHUNK => report.prefill_chunks_dropped += 1,
                _ => {
                    report.evictions_performed += 1;
                    report.bytes_evicted += entry.bytes;
                }
            }
        }
        report
    }

    /// The events, once a tick has run.
    pub(super) fn view(&self) -> Option<EventsView<'_>> {
        self.complete.then_some(EventsView {
            record: &self.record,
            admit_results: &self.admit_results,
            emits: &self.emits,
            faults: &self.faults,
            shed_entries: &self.shed_entries,
            op_completions: &self.op_completions,
            logprobs: &self.logprobs,
        })
    }
}
