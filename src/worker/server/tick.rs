#![forbid(unsafe_code)]
//! One plan: read in place, run, and its events sent (W-44 .. W-49).
//!
//! # Invariants
//! A tick like the one before takes no new memory: payload, records, events and reply keep theirs.

use super::link::HangUp;
use super::{Request, ServeError, WorkerServer};
use crate::engine::Engine;
use crate::record::constant::tick_flag;
use crate::record::{RecordArena, RingRef, Status, TokenRef};
use crate::ring::{RingError, Rings, SharedRings};
use crate::worker::codec::{Reader, Wire};
use crate::worker::convert::{PlanRecords, copy_events, plan_record};
use crate::worker::message::{Message, kind};
use crate::worker::payload::{Plan, TickEmit, TickEvents, TickResult};

/// Memory that ticks use one after the other.
#[derive(Debug, Default)]
pub(super) struct TickBuffers {
    plan: Plan,
    records: PlanRecords,
    arena: RecordArena,
    /// Variant 0 of the result, which is sent as it lies here.
    result: Events,
    /// Tokens that are told of while the tick runs.
    emit: TickEmit,
}

/// Events as they are sent.
#[derive(Debug, Default)]
struct Events(TickEvents);

impl Wire for Events {
    const LEAST_BYTES: usize = 1;
    fn put(&self, out: &mut Vec<u8>) {
        0u32.put(out);
        self.0.put(out);
    }
    /// A worker only sends them.
    fn get(&mut self, reader: &mut Reader<'_>) -> Result<(), crate::worker::codec::PayloadError> {
        match reader.take::<u32>()? {
            0 => self.0.get(reader),
            got => Err(crate::worker::codec::PayloadError::Variant { got }),
        }
    }
}

/// The rings, and a host that may be gone: then the tick is to end at its next boundary, as if it had raised its yield word.
struct WatchedRings<'r> {
    rings: &'r mut SharedRings,
    hang_up: HangUp,
}

impl Rings for WatchedRings<'_> {
    fn read_tokens(&self, reference: &TokenRef, tokens: &mut Vec<u32>) -> Result<(), RingError> {
        self.rings.read_tokens(reference, tokens)
    }

    fn write_tokens(&mut self, tokens: &[u32]) -> Result<TokenRef, RingError> {
        self.rings.write_tokens(tokens)
    }

    fn write_logits_row(&mut self, row: &[f32]) -> Result<RingRef, RingError> {
        self.rings.write_logits_row(row)
    }

    fn read_logits_row(&self, reference: &RingRef, row: &mut Vec<f32>) -> Result<(), RingError> {
        self.rings.read_logits_row(reference, row)
    }

    fn yield_requested(&self) -> bool {
        self.rings.yield_requested() || self.hang_up.seen()
    }

    fn latency_wanted(&self) -> bool {
        self.rings.latency_wanted()
    }
}

impl<E: Engine + ?Sized> WorkerServer<E> {
    pub(super) fn run_tick(&mut self, request: Request, payload: &[u8]) -> Result<(), ServeError> {
        self.need_rings(request)?;
        let TickBuffers { plan, records, arena, result, emit } = &mut self.tick;
        let read = plan.get(&mut Reader::new(payload));
        read.map_err(|error| ServeError::Payload { kind: request.kind, error })?;
        let record = plan_record(plan, arena, records);
        let mut rings = WatchedRings { hang_up: self.link.hang_up(), rings: self.attached.rings_mut() };
        let engine = &mut *self.engine;
        let ticked = if plan.flags & tick_flag::PARTIAL_EMITS != 0 {
            let link = &mut self.link;
            let mut broken = false;
            let mut receive = |lane_tag: u64, tokens: &[u32]| {
                if broken {
                    return;
                }
                emit.lane_tag = lane_tag;
                emit.tokens.clear();
                emit.tokens.extend_from_slice(tokens);
                broken = link.reply_payload(kind::TICK_EMIT, 0, emit).is_err();
            };
            record.with_partial_emits(&mut receive, |record| tick_into(engine, record, arena, &mut rings, result))
        } else {
            tick_into(engine, &record, arena, &mut rings, result)
        };
        // What was emitted into memory that is gone is not told of.
        self.attached.whole()?;
        match ticked {
            Ok(()) => {
                self.mem = self.tick.result.0.mem.clone();
                // What ended with the tick is told before its events (W-48).
                self.report_ops()?;
                self.link.reply_payload(kind::TICK_RESULT, request.seq, &self.tick.result)
            }
            Err(status) => {
                let rejected = TickResult::Rejected { status: status.code() };
                self.link.reply(request.seq, &Message::TickResult(rejected))
            }
        }
    }
}

fn tick_into<E: Engine + ?Sized>(
    engine: &mut E,
    plan: &crate::record::TickPlan,
    arena: &RecordArena,
    rings: &mut WatchedRings<'_>,
    result: &mut Events,
) -> Result<(), Status> {
    let events = engine.tick(plan, arena, rings)?;
    copy_events(&events, &mut result.0);
    Ok(())
}
