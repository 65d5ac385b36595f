#![forbid(unsafe_code)]
//! What a timeline is told of a tick.
//!
//! ```text
//!   ticks   |------------------------- tick -------------------------|
//!           |- validate -|- settle -|--- prefill ---|--- decode ---|- report -|
//!                                   |-step-||-step-|  |-step-||-step-|
//!   lane 7                          |- prefill -|     |---- emit ----|
//!                                                     |-decode-||-decode-|
//! ```
//!
//! Everything here begins with the question whether there is a timeline; without one no clock is read and nothing is formatted.

use std::time::Instant;

use super::Executor;
use super::draft::Drafting;
use super::lane::Phase;
use super::run::Run;
use crate::record::constant::shed_kind;
use crate::record::{Status, TickMemCounters};
use crate::runtime::{Runtime, SeqHandle};
use crate::timeline::{Timeline, Track, Value};

impl<R: Runtime> Run<'_, R> {
    /// The plan was accepted; the call began at `started`.
    pub(super) fn trace_start(&mut self, started: Instant) {
        if let Some(timeline) = &mut self.timeline {
            timeline.begin_tick(started);
            timeline.phase("validate");
        }
    }

    /// A phase is over.
    pub(super) fn trace_phase(&mut self, name: &str) {
        if let Some(timeline) = &mut self.timeline {
            timeline.phase(name);
        }
    }

    /// A step is about to run.
    pub(super) fn trace_step_start(&self) -> u64 {
        self.timeline.as_ref().map_or(0, |timeline| timeline.now_ns())
    }

    /// The queued step has run, and no mark of a lane has moved yet.
    pub(super) fn trace_step(&mut self, from_ns: u64, failed: bool) {
        let Some(timeline) = &mut self.timeline else { return };
        let to_ns = timeline.now_ns();
        let (mut fed_lanes, mut fed_tokens) = (0, 0);
        for portion in &self.steps.portions {
            let Some(lane) = self.state.lanes.get(portion.lane).filter(|lane| lane.fed_len() < portion.fed) else {
                continue;
            };
            let drafted = lane.drafting().and_then(Drafting::feed).map(<[u32]>::len);
            let tokens = drafted.unwrap_or(portion.fed - lane.fed_len()) as u64;
            fed_lanes += 1;
            fed_tokens += tokens;
            let name = match lane.phase() {
                Phase::Prefilling => "prefill",
                Phase::Replaying => "replay",
                _ => "decode",
            };
            timeline.span(Track::Lane(lane.tag()), name, from_ns, to_ns, &[("tokens", Value::Number(tokens))]);
        }
        if fed_lanes > 0 {
            let name = if failed { "failed step" } else { "step" };
            let args = [("lanes", Value::Number(fed_lanes)), ("tokens", Value::Number(fed_tokens))];
            timeline.span(Track::Ticks, name, from_ns, to_ns, &args);
        }
    }

    /// The events are complete, but for the timings.
    pub(super) fn trace_events(&mut self, started: Instant, plan_seq: u64, status: u32, mem: &TickMemCounters) {
        let Some(timeline) = &mut self.timeline else { return };
        let (from, to) = timeline.last_phase_ns();
        for emit in &self.events.emits {
            let args = [
                ("tokens", Value::Number(emit.n_tokens.into())),
                ("finish", Value::Number(emit.finish.into())),
                ("proposed", Value::Number(emit.spec.proposed.into())),
                ("accepted", Value::Number(emit.spec.accepted.into())),
            ];
            timeline.span(Track::Lane(emit.lane_tag), "emit", from, to, &args);
        }
        let now = timeline.now_ns();
        for fault in &self.events.faults {
            timeline.mark(Track::Lane(fault.lane_tag), "fault", now, &[("code", Value::Number(fault.code.into()))]);
        }
        for entry in &self.events.shed_entries {
            let name = if entry.kind == shed_kind::CACHE_EVICTION { "evict" } else { "drop chunk" };
            let args = [
                ("lane", Value::Id(entry.lane_tag)),
                ("bytes", Value::Number(entry.bytes)),
                ("tokens", Value::Number(entry.tokens)),
            ];
            timeline.mark(Track::Cache, name, now, &args);
        }
        for complete in &self.events.op_completions {
            let args =
                [("state", Value::Number(complete.state.into())), ("bytes", Value::Number(complete.bytes_moved))];
            timeline.end("operation", complete.op, now, &args);
        }
        timeline.counter("pages", now, &[("used", Value::Number(mem.pool_blocks_used))]);
        let args = [
            ("evictable", Value::Number(mem.pool_bytes_evictable)),
            ("exported", Value::Number(mem.host_retained_bytes)),
        ];
        timeline.counter("cache bytes", now, &args);
        timeline.phase("report");
        let (_, end) = timeline.last_phase_ns();
        let args = [("plan", Value::Id(plan_seq)), ("status", Value::Number(status.into()))];
        timeline.span(Track::Ticks, "tick", timeline.since_start_ns(started), end, &args);
    }
}

impl<R: Runtime> Executor<R> {
    /// Records from here on, or, with none, no more; gives the timeline that was being recorded.
    pub fn set_timeline(&mut self, timeline: Option<Box<Timeline>>) -> Option<Box<Timeline>> {
        core::mem::replace(&mut self.timeline, timeline)
    }

    /// A plan was refused, or the tick was fatal.
    pub(super) fn trace_refusal(&mut self, status: Status) {
        if let Some(timeline) = &mut self.timeline {
            let now = timeline.now_ns();
            timeline.mark(Track::Ticks, "refused", now, &[("status", Value::Text(status.c_name()))]);
        }
    }

    /// An operation was submitted.
    pub(super) fn trace_operation(&mut self, what: &str, op: u64, sequence: SeqHandle) {
        if let Some(timeline) = &mut self.timeline {
            let now = timeline.now_ns();
            let args = [("what", Value::Text(what)), ("sequence", Value::Id(sequence))];
            timeline.begin("operation", op, now, &args);
        }
    }
}
