#![forbid(unsafe_code)]
//! The events of the last tick, and the other answers that the host reads by reference.

use crate::engine::EventsView;
use crate::record::{
    AdmitResult, Array, ExactnessCert, LaneEmit, LaneFault, LaneLogprob, MatchCandidate, MatchResult, OpComplete,
    RecordArena, RingRef, ShedEntry, ShedReport, SpaceMatch, StateSpaceDesc, StrategyGrant, TickEvents, TokenRef,
};
use crate::worker::convert::refill;
use crate::worker::payload;

/// The events of one tick, as records.
#[derive(Debug, Default)]
pub(super) struct EventStore {
    record: Option<TickEvents>,
    pub(super) admit_results: Vec<AdmitResult>,
    pub(super) emits: Vec<LaneEmit>,
    pub(super) faults: Vec<LaneFault>,
    pub(super) shed_entries: Vec<ShedEntry>,
    pub(super) op_completions: Vec<OpComplete>,
    pub(super) logprobs: Vec<LaneLogprob>,
}

impl EventStore {
    /// The events as the host reads them; none before the first tick.
    pub(super) fn view(&self) -> Option<EventsView<'_>> {
        Some(EventsView {
            record: self.record.as_ref()?,
            admit_results: &self.admit_results,
            emits: &self.emits,
            faults: &self.faults,
            shed_entries: &self.shed_entries,
            op_completions: &self.op_completions,
            logprobs: &self.logprobs,
        })
    }

    /// Takes over all that needs no translation. Emits, faults and operations are the caller's; [`EventStore::seal`] ends it.
    pub(super) fn fill(&mut self, events: &payload::TickEvents) {
        self.emits.clear();
        self.faults.clear();
        self.op_completions.clear();
        refill(&mut self.admit_results, &events.admit_results);
        refill(&mut self.shed_entries, &events.shed.entries);
        refill(&mut self.logprobs, &events.logprobs);
    }

    /// Makes the record over what is stored.
    pub(super) fn seal(&mut self, plan_seq: u64, tick_status: u32, events: &payload::TickEvents) {
        self.record = Some(TickEvents {
            struct_size: size_of::<TickEvents>() as u64,
            plan_seq,
            tick_status,
            _pad0: 0,
            admit_results: Array::over(&self.admit_results),
            emits: Array::over(&self.emits),
            faults: Array::over(&self.faults),
            shed: ShedReport {
                prefill_chunks_dropped: events.shed.prefill_chunks_dropped,
                evictions_performed: events.shed.evictions_performed,
                bytes_evicted: events.shed.bytes_evicted,
                entries: Array::over(&self.shed_entries),
            },
            op_completions: Array::over(&self.op_completions),
            timings: (&events.timings).into(),
            mem: (&events.mem).into(),
            logprobs: Array::over(&self.logprobs),
        });
    }
}

/// An emit with its places in the host's rings.
pub(super) fn emit(source: &payload::LaneEmit, token_ref: TokenRef, logits_row: RingRef) -> LaneEmit {
    LaneEmit { token_ref, logits_row, ..source.into() }
}

/// The answer to the last match.
#[derive(Debug)]
pub(super) struct MatchStore {
    result: MatchResult,
    spaces: Vec<SpaceMatch>,
    candidates: Vec<MatchCandidate>,
}

impl Default for MatchStore {
    fn default() -> Self {
        let result = MatchResult { struct_size: size_of::<MatchResult>() as u64, spaces: Array::EMPTY };
        Self { result, spaces: Vec::new(), candidates: Vec::new() }
    }
}

impl MatchStore {
    pub(super) fn fill(&mut self, answer: &payload::MatchRes) -> &MatchResult {
        self.candidates.clear();
        let all = answer.spaces.iter().flat_map(|space| &space.candidates);
        self.candidates.extend(all.map(MatchCandidate::from));
        self.spaces.clear();
        let mut rest = self.candidates.as_slice();
        for space in &answer.spaces {
            let (own, others) = rest.split_at(space.candidates.len().min(rest.len()));
            rest = others;
            self.spaces.push(SpaceMatch { space_id: space.space_id, _pad0: 0, candidates: Array::over(own) });
        }
        self.result.spaces = Array::over(&self.spaces);
        &self.result
    }

    pub(super) fn candidates(&self) -> &[MatchCandidate] {
        &self.candidates
    }

    pub(super) fn spaces(&self) -> &[SpaceMatch] {
        &self.spaces
    }
}

/// The last grant of a strategy.
#[derive(Debug, Default)]
pub(super) struct GrantStore {
    grant: Option<StrategyGrant>,
    certificates: Vec<ExactnessCert>,
    spaces: Vec<StateSpaceDesc>,
    // What the certificates point into.
    arena: RecordArena,
    identities: Vec<[u8; 32]>,
}

impl GrantStore {
    pub(super) fn fill(&mut self, source: &payload::Grant) -> &StrategyGrant {
        let mut arena = RecordArena::new();
        self.certificates = source.certificates.iter().map(|cert| certificate(cert, &mut arena)).collect();
        self.arena = arena;
        self.identities = source.certificates.iter().flat_map(|cert| cert.admissible_host_identities.clone()).collect();
        self.spaces = source.state_spaces.iter().map(Into::into).collect();
        self.grant.insert(StrategyGrant {
            struct_size: size_of::<StrategyGrant>() as u64,
            strategy_slot: source.strategy_slot,
            _pad0: 0,
            certificates: Array::over(&self.certificates),
            state_spaces: Array::over(&self.spaces),
            reserved_bytes: source.reserved_bytes,
        })
    }

    pub(super) fn certificates(&self) -> &[ExactnessCert] {
        &self.certificates
    }

    pub(super) fn identities(&self) -> &[[u8; 32]] {
        &self.identities
    }
}

fn certificate(source: &payload::Cert, arena: &mut RecordArena) -> ExactnessCert {
    ExactnessCert {
        cert_id: source.cert_id,
        exactness: source.exactness,
        sampling_modes: source.sampling_modes,
        grammar_allowed: source.grammar_allowed.into(),
        logit_bias_allowed: source.logit_bias_allowed.into(),
        param_domain: source.param_domain,
        verification_shape_class: source.verification_shape_class,
        admissible_host_identities: arena.push_records(&source.admissible_host_identities),
    }
}
