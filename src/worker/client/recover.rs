#![forbid(unsafe_code)]
//! Lanes that were in a worker that is gone begin again in a fresh one.
//!
//! ```text
//!   host saw     p p p p p p o o o           prompt, produced
//!   renewal      p p p p p p p p p           all of it is the prompt now; prefilled in one go
//!                                ^           the newest waits to be fed, as it did
//! ```
//! A row's bits depend on the tokens before it alone, and a draw on its position (T-119), so the lane goes on with the bits it would have
//! had. A lane is renewed when a plan speaks of it, not before: what is retired unseen costs nothing. Where the host has exported the
//! beginning of a lane, that is restored ([`restore`](super::restore)) and only the rest is computed.
//!
//! # Invariants
//! - Nothing is renewed that the host has not seen; a tick that was under way is run again whole, and what its callback had is not
//!   told twice.
//! - A lane that a fresh worker has no room for stays as it is, and the plan is `NeedsReplan`.

use super::connection::{Connection, Trouble, status_of};
use super::error::LinkError;
use super::lanes::Row;
use super::restore::Restored;
use super::session::Deaf;
use crate::record::Status;
use crate::record::constant::{admit_status, fault, shed_kind};
use crate::worker::message::kind;
use crate::worker::payload::{
    LaneAdmit, LaneDecode, LanePrefill, LaneRetire, Plan, SeedAcquire, SeedGrant, Shed, SyncOk, SyncRequest,
    TickEvents, TickResult,
};

/// Lanes that are renewed in one tick.
const AT_ONCE: usize = 32;
/// Ticks in a row that may bring a renewal no further.
const STALLS: u32 = 8;

/// A plan without records that may evict whatever is in the way.
fn empty_plan(plan_seq: u64) -> Plan {
    Plan {
        plan_seq,
        prefill_token_budget: u32::MAX,
        shed_policy: Shed { evictable_cache_classes: u64::MAX, max_evict_bytes: u64::MAX, ..Shed::default() },
        ..Plan::default()
    }
}

impl Connection {
    /// Runs a plan of this side's own.
    pub(super) fn run_own(&mut self, mut plan: Plan) -> Result<TickEvents, Trouble> {
        plan.plan_seq = self.next_seq;
        let limit = self.options.tick_timeout;
        let mut result = TickResult::default();
        self.live()?.ask((kind::TICK_SUBMIT, kind::TICK_RESULT), &plan, &mut result, &mut Deaf, limit)?;
        match result {
            TickResult::Events(events) => {
                self.next_seq += 1;
                self.ops.note(&events.op_completions);
                Ok(events)
            }
            TickResult::Rejected { status } => match status_of(status) {
                Status::Fatal => Err(LinkError::EngineFatal.into()),
                status => Err(status.into()),
            },
        }
    }

    /// Puts these lanes into the worker, as far as they are not there.
    ///
    /// # Errors
    /// `NeedsReplan`: no room for one of them, which stays out. Or the worker is gone.
    pub(super) fn renew(&mut self, tags: impl IntoIterator<Item = u64>) -> Result<(), Trouble> {
        let missing = |lane: &super::lanes::Lane| !lane.resident;
        let mut absent: Vec<u64> = tags.into_iter().filter(|tag| self.lanes.get(tag).is_some_and(missing)).collect();
        absent.sort_unstable();
        absent.dedup();
        for chunk in absent.chunks(AT_ONCE) {
            match self.renew_together(chunk) {
                Err(Trouble::Refused(Status::NeedsReplan)) if chunk.len() > 1 => {
                    for tag in chunk {
                        self.renew_together(&[*tag])?;
                    }
                }
                renewed => renewed?,
            }
        }
        Ok(())
    }

    /// With what the host has exported of them, where that serves, else by computing all of it.
    fn renew_together(&mut self, tags: &[u64]) -> Result<(), Trouble> {
        let restored = self.restore(tags)?;
        match self.renew_from(tags, &restored) {
            Err(Trouble::Refused(status)) => {
                self.give_back(&restored)?;
                if restored.is_empty() {
                    return Err(status.into());
                }
                restored.iter().for_each(|seed| self.forget_parked(seed.lane_tag));
                self.renew_from(tags, &[])
            }
            renewed => {
                renewed?;
                self.restored_tokens += restored.iter().map(|seed| seed.tokens as u64).sum::<u64>();
                Ok(())
            }
        }
    }

    fn renew_from(&mut self, tags: &[u64], restored: &[Restored]) -> Result<(), Trouble> {
        self.control.set_yield(false);
        let mut plan = empty_plan(0);
        let mut borrowed = Vec::new();
        for &tag in tags {
            let Some(lane) = self.lanes.get(&tag) else { continue };
            let (mut admit, prefill) = lane.renewal();
            let through = prefill == lane.history.len();
            let asks_row = lane.is_host() && lane.row.is_some();
            let prompt = if through { lane.history.clone() } else { lane.history[..lane.prompt_len].to_vec() };
            let grammar = lane.grammar.clone();
            let bias = lane.bias.clone();
            admit.prompt = self.stage(&prompt)?;
            if let Some((name, source)) = grammar {
                let (remote, freed) = self.grammar_for(name, &source)?;
                admit.grammar_handle = remote;
                borrowed.extend(freed.then_some(remote));
            }
            if let Some(source) = bias {
                admit.logit_bias_handle = self.bias_for(&source)?;
            }
            let held = restored.iter().find(|seed| seed.lane_tag == tag);
            admit.seed_handle = held.map_or(0, |seed| seed.lease);
            let held = held.map_or(0, |seed| seed.tokens);
            plan.admits.push(admit);
            if prefill > held {
                let (token_offset, token_count) = (held as u32, (prefill - held) as u32);
                plan.prefills.push(LanePrefill { lane_tag: tag, token_offset, token_count });
            }
            if asks_row {
                plan.decodes.push(LaneDecode { lane_tag: tag, max_new_tokens: 1, overshoot: 0 });
            }
        }
        plan.max_decode_lanes = plan.decodes.len() as u32;
        let biases: Vec<u32> =
            plan.admits.iter().map(|admit| admit.logit_bias_handle).filter(|&bias| bias != 0).collect();
        let ran = self.run_renewal(plan);
        // Lanes have copied their lists, and keep the grammars that nobody else has a name for.
        for handle in biases {
            self.sync(&SyncRequest::FreeLogitBias { handle })?;
        }
        for grammar_handle in borrowed {
            self.sync(&SyncRequest::FreeGrammar { grammar_handle })?;
        }
        ran
    }

    /// Runs the plan of a renewal, and what its prefills left over.
    fn run_renewal(&mut self, mut plan: Plan) -> Result<(), Trouble> {
        let renewed: Vec<LaneAdmit> = plan.admits.clone();
        let mut stalls = 0;
        loop {
            let events = self.run_own(plan.clone())?;
            for admitted in &events.admit_results {
                if admitted.status != admit_status::ADMITTED {
                    self.doom(admitted.lane_tag, fault::INTERNAL);
                }
            }
            for broken in &events.faults {
                self.doom(broken.lane_tag, broken.code);
            }
            for emit in &events.emits {
                let row = self.lanes.get_mut(&emit.lane_tag).and_then(|lane| lane.row.as_mut());
                if let Some(row) = row {
                    *row = Row { remote: emit.logits_row.generation, ..*row };
                }
            }
            let left = left_over(&plan.prefills, &events);
            let moved = left.iter().map(|prefill| u64::from(prefill.token_count)).sum::<u64>()
                < plan.prefills.iter().map(|prefill| u64::from(prefill.token_count)).sum::<u64>();
            if left.is_empty() {
                break;
            }
            stalls = if moved { 0 } else { stalls + 1 };
            if stalls > STALLS {
                return Err(Status::NeedsReplan.into());
            }
            // Rows are asked for once the prompt is in.
            let waiting = |decode: &LaneDecode| left.iter().any(|prefill| prefill.lane_tag == decode.lane_tag);
            let decodes: Vec<LaneDecode> = plan.decodes.iter().filter(|decode| waiting(decode)).cloned().collect();
            plan = Plan { max_decode_lanes: decodes.len() as u32, prefills: left, decodes, ..empty_plan(0) };
        }
        for admit in renewed {
            if let Some(lane) = self.lanes.get_mut(&admit.lane_tag) {
                (lane.resident, lane.renewed) = (true, true);
            }
        }
        self.bind_sequences()
    }

    /// The fresh worker did not take a lane: it faults with the next events.
    fn doom(&mut self, tag: u64, code: u32) {
        if self.lanes.contains_key(&tag) {
            self.forget_lane(tag);
            self.doomed.insert(tag, code);
        }
    }

    /// Names that the host has of sequences of lanes go on to mean them.
    fn bind_sequences(&mut self) -> Result<(), Trouble> {
        let unbound = |(tag, lane): (&u64, &super::lanes::Lane)| {
            let name = lane.sequence.filter(|_| lane.resident)?;
            self.sequences.remote(name).is_none().then_some((*tag, name))
        };
        let unbound: Vec<(u64, u64)> = self.lanes.iter().filter_map(unbound).collect();
        for (lane_tag, name) in unbound {
            if let SyncOk::LaneSequence { sequence } = self.sync(&SyncRequest::LaneSequence { lane_tag })? {
                self.sequences.bind(name, sequence);
            }
        }
        Ok(())
    }

    /// What the worker calls this grammar, and whether only the lane will know it.
    fn grammar_for(&mut self, name: u64, source: &super::handles::GrammarSource) -> Result<(u32, bool), Trouble> {
        let kept = self.grammars.source(name).is_some();
        if let Some(remote) = self.grammars.remote(name) {
            return Ok((remote as u32, false));
        }
        let remote = self.make_grammar(source)?;
        if kept {
            self.grammars.made(name, u64::from(remote));
        }
        Ok((remote, !kept))
    }

    /// A bias list for one admit.
    pub(super) fn bias_for(&mut self, source: &super::handles::BiasSource) -> Result<u32, Trouble> {
        let request = SyncRequest::CreateLogitBias { tokens: source.tokens.clone(), values: source.bits.clone() };
        match self.sync(&request)? {
            SyncOk::CreateLogitBias { handle } => Ok(handle),
            _ => Err(LinkError::Protocol("another answer than to a bias list").into()),
        }
    }

    /// Compiles a grammar in the worker.
    pub(super) fn make_grammar(&mut self, source: &super::handles::GrammarSource) -> Result<u32, Trouble> {
        use super::handles::GrammarSource::{Schema, Structural};
        let request = match source {
            Schema(text) => SyncRequest::CreateGrammar { json_schema: text.clone() },
            Structural(text) => SyncRequest::CreateGrammarStructural { tag_json: text.clone() },
        };
        match self.sync(&request)? {
            SyncOk::CreateGrammar { grammar_handle } => Ok(grammar_handle),
            _ => Err(LinkError::Protocol("another answer than to a grammar").into()),
        }
    }

    /// Sees to a lease that an admit names. One of a worker that is gone is taken again: its prefix is computed once more,
    /// and published, where it is not cached.
    ///
    /// A lease that cannot be had again is unknown, and the admit is refused with `RejectStaleSeed`.
    pub(super) fn lease_for(&mut self, name: u64) -> Result<(), Trouble> {
        let known = self.leases.remote(name).is_some();
        let Some(source) = self.leases.source(name).cloned().filter(|source| !known && !source.adopted) else {
            return Ok(());
        };
        for attempt in 0..2 {
            let span = self.stage(&source.prefix)?;
            let prefix_len = source.prefix.len() as u64;
            let request = SeedAcquire { span, prefix_len, determinism_class: source.determinism_class };
            let (limit, mut grant) = (self.options.request_timeout, SeedGrant::default());
            self.live()?.ask((kind::SEED_ACQUIRE, kind::SEED_GRANT), &request, &mut grant, &mut Deaf, limit)?;
            if let SeedGrant::Granted { seed_handle, .. } = grant {
                self.leases.made(name, seed_handle);
                return Ok(());
            }
            if attempt == 0 && !self.publish(&source.prefix)? {
                break;
            }
        }
        Ok(())
    }

    /// Computes a prefix in a lane of this side's own and publishes it; answers whether there was room.
    fn publish(&mut self, prefix: &[u32]) -> Result<bool, Trouble> {
        let Some(tag) = (0..=u64::MAX).rev().find(|tag| !self.lanes.contains_key(tag)) else { return Ok(false) };
        let mut plan = empty_plan(0);
        let prompt = self.stage(prefix)?;
        plan.admits.push(LaneAdmit { lane_tag: tag, prompt, ..LaneAdmit::default() });
        plan.prefills.push(LanePrefill { lane_tag: tag, token_offset: 0, token_count: prefix.len() as u32 });
        match self.run_own(plan) {
            Err(Trouble::Refused(_)) => return Ok(false),
            ran => ran?,
        };
        let mut plan = empty_plan(0);
        plan.retires.push(LaneRetire { lane_tag: tag, publish_to_cache: true });
        match self.run_own(plan) {
            Err(Trouble::Refused(_)) => Ok(false),
            ran => ran.map(|_| true),
        }
    }
}

/// What the prefills of a tick have still to do.
fn left_over(prefills: &[LanePrefill], events: &TickEvents) -> Vec<LanePrefill> {
    let dropped = |tag: u64| -> u64 {
        let of_lane = |entry: &&crate::worker::payload::ShedEntry| {
            entry.kind == shed_kind::PREFILL_CHUNK && entry.lane_tag == tag
        };
        events.shed.entries.iter().filter(of_lane).map(|entry| entry.tokens).sum()
    };
    let rest = |prefill: &LanePrefill| {
        let left = u32::try_from(dropped(prefill.lane_tag)).unwrap_or(u32::MAX).min(prefill.token_count);
        let token_offset = prefill.token_offset + (prefill.token_count - left);
        (left > 0).then_some(LanePrefill { lane_tag: prefill.lane_tag, token_offset, token_count: left })
    };
    prefills.iter().filter_map(rest).collect()
}
