#![forbid(unsafe_code)]
//! One tick over the link: sent, waited for, its events brought into the host's rings and records.
//!
//! # Invariants
//! A tick like the one before takes no new memory, but where the history of a lane outgrows what it has: plan, reply, events and tokens keep theirs.

use core::time::Duration;
use std::collections::HashMap;
use std::sync::Arc;

use super::connection::{Connection, DoneList, Trouble, status_of};
use super::error::LinkError;
use super::events::{EventStore, emit};
use super::lanes::{Lane, Row, emitted, settle};
use super::link::{Listener, Unasked};
use super::plan::{Outgoing, Records};
use crate::record::constant::{admit_status, fault, tick_status};
use crate::record::view::{Memory, Plain};
use crate::record::{LaneFault, PartialEmit, RingRef, Status, TickPlan, TokenRef};
use crate::ring::{ControlWords, Rings};
use crate::worker::codec::{PayloadError, Reader, Wire};
use crate::worker::message::kind;
use crate::worker::payload::{LaneRetire, Plan, TickEvents};

/// Memory that ticks use one after the other.
#[derive(Debug, Default)]
pub(super) struct TickBuffers {
    records: Records,
    out: Outgoing,
    /// Per lane of the plan: tokens heard now, and tokens that the callback had already.
    heard: HashMap<u64, (u32, u32)>,
    answer: Answer,
    emitted: Vec<Emitted>,
}

/// What became of a plan, as `TickResult`, read in place.
#[derive(Debug, Default)]
struct Answer {
    /// The status of one that was rejected; the events then are older.
    rejected: Option<i32>,
    events: TickEvents,
}

impl Wire for Answer {
    const LEAST_BYTES: usize = 1;
    /// A host only reads them.
    fn put(&self, out: &mut Vec<u8>) {
        match self.rejected {
            None => {
                0u32.put(out);
                self.events.put(out);
            }
            Some(status) => {
                1u32.put(out);
                status.put(out);
            }
        }
    }
    fn get(&mut self, reader: &mut Reader<'_>) -> Result<(), PayloadError> {
        match reader.variant()? {
            0 => {
                self.rejected = None;
                self.events.get(reader)
            }
            1 => {
                self.rejected = Some(reader.take()?);
                Ok(())
            }
            got => Err(PayloadError::Variant { got }),
        }
    }
}

/// Hears a tick: tokens for the callback, ends of operations; and hurries the worker when the host wants it.
struct Tick<'t> {
    partial: Option<PartialEmit>,
    heard: &'t mut HashMap<u64, (u32, u32)>,
    done: DoneList,
    rings: &'t dyn Rings,
    control: Arc<ControlWords>,
    interval: Duration,
    may_yield: bool,
}

impl Listener for Tick<'_> {
    fn hear(&mut self, unasked: Unasked<'_>) {
        match unasked {
            Unasked::Emit(emit) => {
                let Some((now, told)) = self.heard.get_mut(&emit.lane_tag) else { return };
                for &token in &emit.tokens {
                    *now = now.saturating_add(1);
                    if *now > *told {
                        *told = *now;
                        self.partial.iter().for_each(|partial| partial.call(emit.lane_tag, token));
                    }
                }
            }
            done @ Unasked::Done(_) => self.done.hear(done),
        }
    }

    fn pulse(&mut self) -> Option<Duration> {
        if self.may_yield && self.rings.yield_requested() {
            self.control.set_yield(true);
        }
        Some(self.interval)
    }
}

impl Connection {
    /// Sends a plan and waits for what becomes of it.
    fn submit(
        &mut self,
        buffers: &mut TickBuffers,
        plan: &TickPlan,
        rings: &dyn Rings,
        again: bool,
    ) -> Result<(), Trouble> {
        let TickBuffers { out, heard, answer, .. } = buffers;
        let ahead = |tag: u64| self.ahead.get(&tag).copied().unwrap_or(0);
        heard.clear();
        heard.extend(out.wire.decodes.iter().map(|decode| (decode.lane_tag, (0, ahead(decode.lane_tag)))));
        // A tick that is run again runs through: a lane must come at least as far as the callback has heard.
        let may_yield = !again;
        self.control.set_yield(may_yield && rings.yield_requested());
        self.control.set_latency(rings.latency_wanted());
        let mut tick = Tick {
            partial: plan.partial_emit(),
            heard,
            done: DoneList::default(),
            rings,
            control: Arc::clone(&self.control),
            interval: self.options.control_interval.max(Duration::from_micros(50)),
            may_yield,
        };
        let limit = self.options.tick_timeout;
        let kinds = (kind::TICK_SUBMIT, kind::TICK_RESULT);
        let answered = match self.live() {
            Ok(session) => session.ask(kinds, &out.wire, answer, &mut tick, limit).map_err(Trouble::from),
            Err(trouble) => Err(trouble),
        };
        let Tick { heard, done, .. } = tick;
        let told = heard.iter().filter(|&(_, &(_, told))| told > 0);
        self.ahead.extend(told.map(|(&tag, &(_, told))| (tag, told)));
        self.ops.note(&done.0);
        answered?;
        match answer.rejected.map(status_of) {
            None => Ok(()),
            Some(Status::Fatal) => Err(LinkError::EngineFatal.into()),
            Some(status) => Err(status.into()),
        }
    }

    /// Runs a plan, again on a fresh worker when one is gone meanwhile.
    ///
    /// # Errors
    /// The engine's refusal, or this side's: nothing changed. `Fatal`: no worker is left.
    pub(super) fn tick(
        &mut self,
        plan: &TickPlan,
        memory: &dyn Memory,
        rings: &mut dyn Rings,
        store: &mut EventStore,
    ) -> Result<(), Status> {
        let accepted = store.view().map(|view| view.record.plan_seq);
        let expired = self.ticks;
        self.leases.retain(|lease| lease.expires_at.is_none_or(|last| last >= expired));
        let mut again = false;
        let mut buffers = std::mem::take(&mut self.buffers);
        let ran = self.with_worker(|connection| {
            let TickBuffers { records, out, .. } = &mut buffers;
            connection.outgoing(plan, memory, rings, accepted, (records, out))?;
            let retried = std::mem::replace(&mut again, true);
            connection.submit(&mut buffers, plan, rings, retried)?;
            connection.next_seq += 1;
            connection.take_over(plan.plan_seq, &mut buffers, rings, store)
        });
        self.buffers = buffers;
        ran?;
        self.ticks += 1;
        Ok(())
    }

    /// Brings the events of an accepted plan into the host's rings and records, and notes what they did to the lanes.
    ///
    /// What the worker says has been checked as far as it decides what is read or written here; a lie about its own lanes is its own.
    fn take_over(
        &mut self,
        plan_seq: u64,
        buffers: &mut TickBuffers,
        rings: &mut dyn Rings,
        store: &mut EventStore,
    ) -> Result<(), Trouble> {
        let TickBuffers { out, answer: Answer { events, .. }, emitted: read, .. } = buffers;
        let events = &*events;
        self.read_emits(&out.wire, events, read)?;
        store.fill(events);
        self.ops.report(&events.op_completions, &mut store.op_completions);
        for tag in out.wire.retires.iter().map(|retire| retire.lane_tag).chain(out.departed.iter().copied()) {
            self.forget_lane(tag);
            self.doomed.remove(&tag);
            self.faulted.remove(&tag);
        }
        self.begin_lanes(out, events);
        settle(&mut self.lanes, &out.wire, events);
        let mut overflowed = Vec::new();
        for (source, read) in events.emits.iter().zip(&*read) {
            match self.write_emit(source, read, rings) {
                Some((token_ref, row)) => store.emits.push(emit(source, token_ref, row)),
                None => overflowed.push(source.lane_tag),
            }
        }
        let faulted = |lane_tag, code, detail| LaneFault { lane_tag, code, _pad0: 0, detail };
        store.faults.extend(events.faults.iter().map(LaneFault::from));
        // The host's own ring cannot hold it (T-141); the worker's could.
        store.faults.extend(overflowed.iter().map(|&tag| faulted(tag, fault::REF_SPAN_OOB, 0)));
        let late = std::mem::take(&mut self.doomed);
        self.faulted.extend(overflowed.iter().chain(late.keys()));
        store.faults.extend(late.iter().map(|(&tag, &code)| faulted(tag, code, 0)));
        for tag in store.faults.iter().map(|fault| fault.lane_tag) {
            self.forget_lane(tag);
        }
        self.told_after(events);
        let broken = !store.faults.is_empty();
        let status = if broken { tick_status::LANE_ERRORS } else { events.tick_status };
        store.seal(plan_seq, status, events);
        self.end_quietly(&overflowed);
        Ok(())
    }

    /// Reads what lanes emitted out of the rings of the link, before anything is noted.
    fn read_emits(&mut self, plan: &Plan, events: &TickEvents, read: &mut Vec<Emitted>) -> Result<(), Trouble> {
        let wrong = |what| Err(LinkError::Protocol(what).into());
        if events.admit_results.len() != plan.admits.len() || events.emits.len() > plan.decodes.len() {
            return wrong("events that do not fit their plan");
        }
        read.resize_with(events.emits.len().max(read.len()), Emitted::default);
        for (source, emitted) in events.emits.iter().zip(read) {
            if !plan.decodes.iter().any(|decode| decode.lane_tag == source.lane_tag) {
                return wrong("an emit of a lane that did not decode");
            }
            emitted.tokens.clear();
            emitted.row.clear();
            emitted.has_tokens = false;
            let session = self.live()?;
            if source.token_ref.generation != 0 {
                let reference = TokenRef::from(&source.token_ref);
                if source.token_ref.count != source.n_tokens
                    || session.emitted(&reference, &mut emitted.tokens).is_err()
                {
                    return wrong("an emit that cannot be read");
                }
                emitted.has_tokens = true;
            }
            if source.logits_row.generation != 0
                && session.row(&RingRef::from(&source.logits_row), &mut emitted.row).is_err()
            {
                return wrong("a row that cannot be read");
            }
        }
        Ok(())
    }

    /// Writes what a lane emitted into the host's rings; none when they cannot hold it.
    fn write_emit(
        &mut self,
        source: &crate::worker::payload::LaneEmit,
        read: &Emitted,
        rings: &mut dyn Rings,
    ) -> Option<(TokenRef, RingRef)> {
        let written = if read.has_tokens { rings.write_tokens(&read.tokens).ok()? } else { TokenRef::zeroed() };
        let mut row = RingRef::zeroed();
        if source.logits_row.generation != 0 {
            row = rings.write_logits_row(&read.row).ok()?;
            if let Some(lane) = self.lanes.get_mut(&source.lane_tag) {
                lane.row = Some(Row { local: row.generation, remote: source.logits_row.generation });
            }
        }
        emitted(&mut self.lanes, source.lane_tag, &read.tokens, source.finish);
        Some((written, row))
    }

    /// Lanes that the plan admitted are live, and what they took is theirs.
    fn begin_lanes(&mut self, out: &mut Outgoing, events: &TickEvents) {
        let admits = out.wire.admits.iter().zip(out.admitted.drain(..)).zip(&events.admit_results);
        for ((admit, admitted), result) in admits {
            if result.status != admit_status::ADMITTED {
                continue;
            }
            let seeded = self.leases.source(admitted.lease).map_or(0, |lease| lease.prefix.len());
            self.leases.remove(admitted.lease);
            self.doomed.remove(&admit.lane_tag);
            self.faulted.remove(&admit.lane_tag);
            let seeded = seeded.min(admitted.prompt.len());
            self.lanes_begun += 1;
            let mut lane = Lane::new(self.lanes_begun, admit.clone(), admitted.prompt, seeded);
            lane.grammar = self.grammars.source(admitted.grammar).cloned().map(|source| (admitted.grammar, source));
            lane.bias = self.biases.source(admitted.bias).cloned();
            self.forget_lane(admit.lane_tag);
            self.lanes.insert(admit.lane_tag, lane);
        }
    }

    pub(super) fn forget_lane(&mut self, tag: u64) {
        if let Some(lane) = self.lanes.remove(&tag) {
            self.ops.forget_lane(lane.number);
        }
        self.ahead.remove(&tag);
    }

    /// What the callback had beyond the emits of this tick.
    fn told_after(&mut self, events: &TickEvents) {
        for emit in &events.emits {
            if let Some(ahead) = self.ahead.get_mut(&emit.lane_tag) {
                *ahead = ahead.saturating_sub(emit.n_tokens);
            }
        }
        self.ahead.retain(|_, ahead| *ahead > 0);
    }

    /// Ends lanes in the worker that are over for the host already. A worker that is gone meanwhile has no lanes.
    fn end_quietly(&mut self, tags: &[u64]) {
        if tags.is_empty() {
            return;
        }
        let retires = tags.iter().map(|&lane_tag| LaneRetire { lane_tag, publish_to_cache: false }).collect();
        if let Err(Trouble::Gone(cause)) = self.run_own(Plan { retires, ..Plan::default() }) {
            self.lost(cause);
        }
    }
}

/// What one lane emitted; what is kept beyond a tick is its memory.
#[derive(Debug, Default)]
struct Emitted {
    tokens: Vec<u32>,
    has_tokens: bool,
    row: Vec<f32>,
}
