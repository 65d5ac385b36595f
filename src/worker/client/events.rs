#![forbid(unsafe_code)]
//! The events of the last tick, and the other answers that the host reads by reference.

use core::ffi::c_char;

use crate::engine::EventsView;
use crate::record::view::Plain;
use crate::record::{
    AdmitResult, Array, ExactnessCert, LaneEmit, LaneFault, LaneLogprob, MatchCandidate, MatchResult, OpComplete,
    RecordArena, RingRef, ShedEntry, ShedReport, SpaceMatch, SpecStats, StateSpaceDesc, StrategyGrant, TickEvents,
    TickMemCounters, TickTimings, TokenRef,
};
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
        self.admit_results.clear();
        self.admit_results.extend(events.admit_results.iter().map(|result| AdmitResult {
            lane_tag: result.lane_tag,
            status: result.status,
            reject_code: result.reject_code,
            cert_id: result.cert_id,
            granted_class: result.granted_class,
            _pad0: [0; 3],
        }));
        self.shed_entries.clear();
        self.shed_entries.extend(events.shed.entries.iter().map(|entry| ShedEntry {
            lane_tag: entry.lane_tag,
            kind: entry.kind,
            reason: entry.reason,
            bytes: entry.bytes,
            tokens: entry.tokens,
        }));
        self.logprobs.clear();
        self.logprobs.extend(events.logprobs.iter().map(logprob));
    }

    /// Makes the record over what is stored.
    pub(super) fn seal(&mut self, plan_seq: u64, tick_status: u32, events: &payload::TickEvents) {
        let (timings, mem) = (&events.timings, &events.mem);
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
            timings: TickTimings {
                wall_ns: timings.wall_ns,
                prefill_ns: timings.prefill_ns,
                decode_ns: timings.decode_ns,
                graph_hits: timings.graph_hits,
                graph_misses: timings.graph_misses,
            },
            mem: TickMemCounters {
                allocated_bytes: mem.allocated_bytes,
                host_retained_bytes: mem.host_retained_bytes,
                pool_blocks_total: mem.pool_blocks_total,
                pool_blocks_used: mem.pool_blocks_used,
                pool_bytes_evictable: mem.pool_bytes_evictable,
                tentative_bytes: mem.tentative_bytes,
            },
            logprobs: Array::over(&self.logprobs),
        });
    }
}

/// An emit with its places in the host's rings.
pub(super) fn emit(source: &payload::LaneEmit, token_ref: TokenRef, logits_row: RingRef) -> LaneEmit {
    LaneEmit {
        lane_tag: source.lane_tag,
        token_ref,
        n_tokens: source.n_tokens,
        finish: source.finish,
        logits_row,
        spec: SpecStats {
            proposed: source.spec.proposed,
            accepted: source.spec.accepted,
            cert_id_in_effect: source.spec.cert_id_in_effect,
            _pad0: 0,
        },
    }
}

fn logprob(source: &payload::Logprob) -> LaneLogprob {
    let mut record = LaneLogprob::zeroed();
    record.lane_tag = source.lane_tag;
    record.logprob = f32::from_bits(source.logprob_bits);
    let pairs = source.top_ids.iter().zip(&source.top_logprob_bits);
    for ((id, value), (&from_id, &from_bits)) in record.top_ids.iter_mut().zip(&mut record.top_logprobs).zip(pairs) {
        (*id, *value) = (from_id, f32::from_bits(from_bits));
        record.n_top += 1;
    }
    record
}

/// A reference as a record.
pub(super) fn token_ref(source: &payload::TokenRef) -> TokenRef {
    let &payload::TokenRef { ring_id, index, count, generation } = source;
    TokenRef { ring_id, index, count, _pad0: 0, generation }
}

/// A reference as a record.
pub(super) fn ring_ref(source: &payload::RingRef) -> RingRef {
    let &payload::RingRef { ring_id, index, generation } = source;
    RingRef { ring_id, index, generation }
}

/// A space as a record; of a name that is too long the beginning.
pub(super) fn space(source: &payload::SpaceDesc) -> StateSpaceDesc {
    let mut name: [c_char; 32] = [0; 32];
    for (to, &from) in name.iter_mut().take(31).zip(source.name.as_bytes()) {
        *to = from as c_char;
    }
    StateSpaceDesc {
        space_id: source.space_id,
        kind: source.kind,
        version_tag: source.version_tag,
        bytes_per_token: source.bytes_per_token,
        blob_bytes: source.blob_bytes,
        page_size_tokens: source.page_size_tokens,
        fork_cost_class: source.fork_cost_class,
        fork_cost_bytes: source.fork_cost_bytes,
        snapshot_cadence: source.snapshot_cadence,
        snapshot_interval_tokens: source.snapshot_interval_tokens,
        placement: source.placement,
        flags: source.flags,
        name,
    }
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
        self.candidates.extend(all.map(|candidate| MatchCandidate {
            prefix_len: candidate.prefix_len,
            provenance_digest: candidate.provenance_digest,
            taint_bits: candidate.taint_bits,
            resident_tier: candidate.resident_tier,
            _pad0: [0; 3],
        }));
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
        self.spaces = source.state_spaces.iter().map(space).collect();
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
