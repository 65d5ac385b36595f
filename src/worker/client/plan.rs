#![forbid(unsafe_code)]
//! A plan of the host as it goes over the wire: the records read, the prompts staged, every handle what the worker calls it.

use std::collections::HashMap;

use super::connection::{Connection, Trouble};
use super::lanes::Lane;
use crate::record::constant::sampling;
use crate::record::view::{Memory, Record};
use crate::record::{Array, LaneAdmit, LaneCommit, LaneDecode, LanePrefill, LaneRetire, Status, TickPlan};
use crate::ring::{RingError, Rings};
use crate::worker::convert::refill;
use crate::worker::payload;

/// A plan that is on its way.
#[derive(Debug, Default)]
pub(super) struct Outgoing {
    pub(super) wire: payload::Plan,
    /// Per admit of the wire, the prompt and the names it goes by here.
    pub(super) admitted: Vec<Admitted>,
    /// Lanes that the worker does not have, and that end with this plan.
    pub(super) departed: Vec<u64>,
}

/// One admit, as the host named things.
#[derive(Debug)]
pub(super) struct Admitted {
    pub(super) prompt: Vec<u32>,
    pub(super) lease: u64,
    pub(super) grammar: u64,
    pub(super) bias: u64,
}

/// The records of a plan; kept, they keep their memory.
#[derive(Debug, Default)]
pub(super) struct Records {
    admits: Vec<LaneAdmit>,
    commits: Vec<LaneCommit>,
    prefills: Vec<LanePrefill>,
    decodes: Vec<LaneDecode>,
    retires: Vec<LaneRetire>,
    victims: Vec<u64>,
}

impl Records {
    /// Reads all arrays, in the order of T-11, in place of what was read before.
    fn read(&mut self, plan: &TickPlan, memory: &dyn Memory) -> Result<(), Status> {
        if plan.struct_size < TickPlan::MIN_PREFIX as u64 {
            return Err(Status::RejectBadStruct);
        }
        fn all<T: Record>(list: &mut Vec<T>, array: &Array, memory: &dyn Memory) -> Result<(), Status> {
            list.clear();
            list.extend(array.elements_within::<T>(memory)?);
            Ok(())
        }
        all(&mut self.admits, &plan.admits, memory)?;
        all(&mut self.commits, &plan.commits, memory)?;
        all(&mut self.prefills, &plan.prefills, memory)?;
        all(&mut self.decodes, &plan.decodes, memory)?;
        all(&mut self.retires, &plan.retires, memory)?;
        all(&mut self.victims, &plan.shed_policy.victim_lanes, memory)
    }
}

/// A reference that fails in the worker as the host's own fails here, so that the worker's checks keep their order.
fn unreadable(error: RingError) -> payload::TokenRef {
    let nowhere = payload::TokenRef { ring_id: u32::MAX, index: 0, count: 1, generation: 1 };
    match error {
        RingError::StaleGeneration { .. } => payload::TokenRef { ring_id: 1, generation: u64::MAX, ..nowhere },
        _ => nowhere,
    }
}

impl Connection {
    /// Turns a plan into what is sent, in place of what was sent before. Lanes that it speaks of are put into the worker first, if they are not there.
    ///
    /// # Errors
    /// What is wrong with its arrays; `RejectBudget` when the rings of the link cannot carry it; `NeedsReplan` when a fresh worker has no
    /// room for a lane; `RejectIllegalCombination` for work on a lane that had finished in a worker before.
    pub(super) fn outgoing(
        &mut self,
        plan: &TickPlan,
        memory: &dyn Memory,
        rings: &dyn Rings,
        accepted_seq: Option<u64>,
        (records, out): (&mut Records, &mut Outgoing),
    ) -> Result<(), Trouble> {
        records.read(plan, memory)?;
        self.check_bounds(records)?;
        out.departed = self.bring_back(records)?;
        // A number that is not higher than the last is refused by the worker, in its place among the checks (T-18).
        let stale = accepted_seq.is_some_and(|last| plan.plan_seq <= last);
        out.wire.flags = plan.flags;
        out.wire.prefill_token_budget = plan.prefill_token_budget;
        out.wire.max_decode_lanes = plan.max_decode_lanes;
        let shed = &mut out.wire.shed_policy;
        shed.victim_lanes.clone_from(&records.victims);
        shed.evictable_cache_classes = plan.shed_policy.evictable_cache_classes;
        shed.protected_quota_bytes = plan.shed_policy.protected_quota_bytes;
        shed.max_evict_bytes = plan.shed_policy.max_evict_bytes;
        // Leases first: one that has to be had again takes ticks, and slots of token-in, of its own.
        let leases: Vec<u64> =
            records.admits.iter().map(|admit| admit.seed_handle).filter(|&lease| lease != 0).collect();
        for lease in leases {
            self.lease_for(lease)?;
        }
        out.wire.plan_seq = if stale { 0 } else { self.next_seq };
        out.wire.admits.clear();
        out.admitted.clear();
        for admit in &records.admits {
            let (wire, admitted) = self.admit(admit, rings)?;
            out.wire.admits.push(wire);
            out.admitted.push(admitted);
        }
        out.wire.commits.clear();
        out.wire.commits.extend(records.commits.iter().map(|commit| self.commit(commit)));
        out.wire.prefills.clear();
        out.wire.prefills.extend(records.prefills.iter().map(|prefill| self.prefill(prefill)));
        refill(&mut out.wire.decodes, &records.decodes);
        refill(&mut out.wire.retires, &records.retires);
        Ok(())
    }

    /// What the rings of the link can carry in one tick (W-49).
    fn check_bounds(&mut self, records: &Records) -> Result<(), Trouble> {
        let [prompts, emits, rows] = self.live()?.slots.map(|slots| slots as usize);
        let hosts: HashMap<u64, bool> =
            records.admits.iter().map(|admit| (admit.lane_tag, admit.sampling == sampling::HOST)).collect();
        let is_host = |decode: &&LaneDecode| {
            let here = hosts.get(&decode.lane_tag).copied();
            here.unwrap_or_else(|| self.lanes.get(&decode.lane_tag).is_some_and(Lane::is_host))
        };
        let asked_rows = records.decodes.iter().filter(is_host).count();
        if records.admits.len() > prompts || records.decodes.len() > emits || asked_rows > rows {
            return Err(Status::RejectBudget.into());
        }
        Ok(())
    }

    /// Puts the lanes of a plan into the worker that it does not have. Answers those that only end, which stay out, and takes them and
    /// those that faulted meanwhile out of the records.
    fn bring_back(&mut self, records: &mut Records) -> Result<Vec<u64>, Trouble> {
        let doomed = |tag: u64, connection: &Self| connection.doomed.contains_key(&tag);
        let absent = |tag: u64, connection: &Self| connection.lanes.get(&tag).is_some_and(|lane| !lane.resident);
        let ended = |lane_tag: u64| self.lanes.get(&lane_tag).is_some_and(|lane| lane.finished && !lane.resident);
        let worked = records.decodes.iter().map(|decode| decode.lane_tag);
        if worked.chain(records.commits.iter().map(|commit| commit.lane_tag)).any(ended) {
            return Err(Status::RejectIllegalCombination.into());
        }
        let admitted = records.admits.iter().map(|admit| admit.lane_tag);
        let committed = records.commits.iter().map(|commit| commit.lane_tag);
        let prefilled = records.prefills.iter().map(|prefill| prefill.lane_tag);
        let decoded = records.decodes.iter().map(|decode| decode.lane_tag);
        self.renew(admitted.chain(committed).chain(prefilled).chain(decoded))?;
        // A lane that is published is computed again for it, room permitting; it is a favour to those who come later.
        let published = records.retires.iter().filter(|retire| retire.publish_to_cache != 0);
        match self.renew(published.map(|retire| retire.lane_tag)) {
            Err(Trouble::Refused(_)) => {}
            renewed => renewed?,
        }
        let departs = |retire: &LaneRetire| {
            let tag = retire.lane_tag;
            absent(tag, self) || doomed(tag, self) || self.faulted.contains(&tag)
        };
        let departed: Vec<u64> =
            records.retires.iter().filter(|retire| departs(retire)).map(|retire| retire.lane_tag).collect();
        records.retires.retain(|retire| !departed.contains(&retire.lane_tag));
        if !self.doomed.is_empty() {
            records.commits.retain(|commit| !self.doomed.contains_key(&commit.lane_tag));
            records.prefills.retain(|prefill| !self.doomed.contains_key(&prefill.lane_tag));
            records.decodes.retain(|decode| !self.doomed.contains_key(&decode.lane_tag));
        }
        Ok(departed)
    }

    fn admit(&mut self, admit: &LaneAdmit, rings: &dyn Rings) -> Result<(payload::LaneAdmit, Admitted), Trouble> {
        let mut prompt = Vec::new();
        let reference = match rings.read_tokens(&admit.prompt, &mut prompt) {
            Ok(()) if prompt.len() > self.live()?.prompt_capacity() => return Err(Status::RejectBudget.into()),
            Ok(()) => self.stage(&prompt)?,
            Err(error) => unreadable(error),
        };
        let (lease, grammar, bias) =
            (admit.seed_handle, u64::from(admit.grammar_handle), u64::from(admit.logit_bias_handle));
        let wire = payload::LaneAdmit {
            prompt: reference,
            seed_handle: if lease == 0 { 0 } else { self.leases.remote(lease).unwrap_or(u64::MAX) },
            grammar_handle: self.borrow_grammar(grammar)?,
            logit_bias_handle: self.copy_bias(bias)?,
            ..payload::LaneAdmit::from(admit)
        };
        Ok((wire, Admitted { prompt, lease, grammar, bias }))
    }

    /// What the worker calls a grammar of the host; one that the host does not have is unknown there too.
    fn borrow_grammar(&mut self, name: u64) -> Result<u32, Trouble> {
        let Some(source) = self.grammars.source(name).cloned() else {
            return Ok(if name == 0 { 0 } else { u32::MAX });
        };
        if let Some(remote) = self.grammars.remote(name) {
            return Ok(remote as u32);
        }
        let remote = self.make_grammar(&source)?;
        self.grammars.made(name, u64::from(remote));
        Ok(remote)
    }

    fn copy_bias(&mut self, name: u64) -> Result<u32, Trouble> {
        let Some(source) = self.biases.source(name).cloned() else {
            return Ok(if name == 0 { 0 } else { u32::MAX });
        };
        if let Some(remote) = self.biases.remote(name) {
            return Ok(remote as u32);
        }
        let remote = self.bias_for(&source)?;
        self.biases.made(name, u64::from(remote));
        Ok(remote)
    }

    /// The row that a commit names is another one in the worker.
    fn commit(&self, commit: &LaneCommit) -> payload::LaneCommit {
        let row = self.lanes.get(&commit.lane_tag).and_then(|lane| lane.row);
        let logits_nonce = match row {
            Some(row) if row.local == commit.logits_nonce => row.remote,
            _ => u64::MAX,
        };
        payload::LaneCommit { lane_tag: commit.lane_tag, token_id: commit.token_id, logits_nonce }
    }

    fn prefill(&self, prefill: &LanePrefill) -> payload::LanePrefill {
        let lane = self.lanes.get(&prefill.lane_tag);
        let token_offset = lane.map_or(prefill.token_offset, |lane| lane.wire_offset(prefill.token_offset));
        payload::LanePrefill { token_offset, ..prefill.into() }
    }
}
