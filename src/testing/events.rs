#![forbid(unsafe_code)]
//! The events of a tick, copied out.

use crate::engine::EventsView;
use crate::record::{
    AdmitResult, Array, LaneEmit, LaneFault, LaneLogprob, OpComplete, ShedEntry, TickEvents, TickMemCounters,
    TickTimings,
};

/// Owned copies of what one tick answered.
#[derive(Clone, Debug)]
pub struct Events {
    /// The number of the plan.
    pub plan_seq: u64,
    /// `TICK_*` status.
    pub tick_status: u32,
    /// One per admit, in plan order.
    pub admit_results: Vec<AdmitResult>,
    /// One per decode of a lane that did not fault, in plan order.
    pub emits: Vec<LaneEmit>,
    /// At most one per lane.
    pub faults: Vec<LaneFault>,
    /// Number of prefill chunks that were dropped.
    pub shed_chunks: u32,
    /// Number of cache entries that were lost.
    pub evictions: u32,
    /// Their bytes.
    pub bytes_evicted: u64,
    /// What was given up.
    pub shed_entries: Vec<ShedEntry>,
    /// Operations that ended.
    pub op_completions: Vec<OpComplete>,
    /// In emission order.
    pub logprobs: Vec<LaneLogprob>,
    /// Memory at the end of the tick.
    pub mem: TickMemCounters,
    /// Where the time went.
    pub timings: TickTimings,
}

impl Events {
    /// Copies a view.
    ///
    /// # Panics
    /// When the record and the slices differ: a C host reads the one, a Rust host the others.
    pub fn of(view: &EventsView<'_>) -> Self {
        let record = view.record;
        assert_eq!(record.struct_size as usize, size_of::<TickEvents>(), "A-19");
        same(&record.admit_results, view.admit_results);
        same(&record.emits, view.emits);
        same(&record.faults, view.faults);
        same(&record.shed.entries, view.shed_entries);
        same(&record.op_completions, view.op_completions);
        same(&record.logprobs, view.logprobs);
        Self {
            plan_seq: record.plan_seq,
            tick_status: record.tick_status,
            admit_results: view.admit_results.to_vec(),
            emits: view.emits.to_vec(),
            faults: view.faults.to_vec(),
            shed_chunks: record.shed.prefill_chunks_dropped,
            evictions: record.shed.evictions_performed,
            bytes_evicted: record.shed.bytes_evicted,
            shed_entries: view.shed_entries.to_vec(),
            op_completions: view.op_completions.to_vec(),
            logprobs: view.logprobs.to_vec(),
            mem: record.mem,
            timings: record.timings,
        }
    }

    /// The emit of a lane.
    pub fn emit_for(&self, lane_tag: u64) -> Option<&LaneEmit> {
        self.emits.iter().find(|emit| emit.lane_tag == lane_tag)
    }

    /// The result of a lane's admit.
    pub fn admit_for(&self, lane_tag: u64) -> Option<&AdmitResult> {
        self.admit_results.iter().find(|result| result.lane_tag == lane_tag)
    }

    /// The log-probability records of a lane, in emission order.
    pub fn logprobs_for(&self, lane_tag: u64) -> Vec<&LaneLogprob> {
        self.logprobs.iter().filter(|record| record.lane_tag == lane_tag).collect()
    }

    /// The fault of a lane.
    pub fn fault_for(&self, lane_tag: u64) -> Option<&LaneFault> {
        self.faults.iter().find(|fault| fault.lane_tag == lane_tag)
    }
}

fn same<T>(array: &Array, slice: &[T]) {
    assert_eq!(array.count as usize, slice.len(), "the array has the length of the slice");
    if !slice.is_empty() {
        assert_eq!(array.data.cast::<T>(), slice.as_ptr(), "the array points at the slice");
        assert_eq!(array.elem_size as usize, size_of::<T>(), "the stride is the size of the record");
    }
}
