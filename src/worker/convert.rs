#![forbid(unsafe_code)]
//! Records to payloads and back (W-45).
//!
//! # Invariants
//! What goes one way and comes back is the same, but for padding, and for a log-probability record's places beyond its count.

use super::payload as wire;
use crate::engine::EventsView;
use crate::record::view::Plain;
use crate::record::{
    AdmitResult, CacheKey, LaneAdmit, LaneCommit, LaneDecode, LaneEmit, LaneFault, LaneLogprob, LanePrefill,
    LaneRetire, MatchCandidate, MediaInfo, OpComplete, RecordArena, RingRef, SamplingParams, ShedEntry, ShedPolicy,
    SpecStats, StateSpaceDesc, TapSpec, TickMemCounters, TickPlan, TickTimings, TokenRange, TokenRef,
};

/// Most alternatives of a token (T-122).
const TOP_LOGPROBS: usize = 20;

/// Both ways between a record and a payload with the same fields.
macro_rules! same_fields {
    ($( $record:ident = $wire:ident { $($field:ident),* } )*) => { $(
        impl From<&$record> for wire::$wire {
            fn from(record: &$record) -> Self {
                Self { $( $field: record.$field.into(), )* }
            }
        }

        impl From<&wire::$wire> for $record {
            fn from(value: &wire::$wire) -> Self {
                #[allow(clippy::needless_update, reason = "the rest is padding, where there is any")]
                Self { $( $field: value.$field.into(), )* ..Self::zeroed() }
            }
        }

        impl From<$record> for wire::$wire {
            fn from(record: $record) -> Self {
                Self::from(&record)
            }
        }

        impl From<wire::$wire> for $record {
            fn from(value: wire::$wire) -> Self {
                Self::from(&value)
            }
        }
    )* };
}

same_fields! {
    TokenRef = TokenRef { ring_id, index, count, generation }
    RingRef = RingRef { ring_id, index, generation }
    TokenRange = TokenRange { start, end }
    SamplingParams = Sampling {
        temperature, top_p, min_p, top_k, freq_penalty, presence_penalty, repeat_penalty, flags
    }
    LaneCommit = LaneCommit { lane_tag, token_id, logits_nonce }
    LanePrefill = LanePrefill { lane_tag, token_offset, token_count }
    LaneDecode = LaneDecode { lane_tag, max_new_tokens, overshoot }
    AdmitResult = AdmitResult { lane_tag, status, reject_code, cert_id, granted_class }
    SpecStats = SpecStats { proposed, accepted, cert_id_in_effect }
    LaneFault = LaneFault { lane_tag, code, detail }
    ShedEntry = ShedEntry { lane_tag, kind, reason, bytes, tokens }
    OpComplete = OpComplete { op, state, error, bytes_moved }
    TickTimings = Timings { wall_ns, prefill_ns, decode_ns, graph_hits, graph_misses }
    TickMemCounters = Mem {
        allocated_bytes, host_retained_bytes, pool_blocks_total, pool_blocks_used, pool_bytes_evictable, tentative_bytes
    }
    MatchCandidate = Candidate { prefix_len, provenance_digest, taint_bits, resident_tier }
    MediaInfo = MediaInfo { n_tokens, image_token_id, boi_token_id, eoi_token_id, preprocess_fp }
    CacheKey = CacheKey { compat_key, provenance_digest }
    TapSpec = Tap { layer, tensor, dtype, layout }
}

impl From<&LaneEmit> for wire::LaneEmit {
    fn from(record: &LaneEmit) -> Self {
        Self {
            lane_tag: record.lane_tag,
            token_ref: record.token_ref.into(),
            n_tokens: record.n_tokens,
            finish: record.finish,
            logits_row: record.logits_row.into(),
            spec: record.spec.into(),
        }
    }
}

impl From<&wire::LaneEmit> for LaneEmit {
    fn from(value: &wire::LaneEmit) -> Self {
        Self {
            lane_tag: value.lane_tag,
            token_ref: (&value.token_ref).into(),
            n_tokens: value.n_tokens,
            finish: value.finish,
            logits_row: (&value.logits_row).into(),
            spec: (&value.spec).into(),
        }
    }
}

impl From<&LaneRetire> for wire::LaneRetire {
    fn from(record: &LaneRetire) -> Self {
        Self { lane_tag: record.lane_tag, publish_to_cache: record.publish_to_cache != 0 }
    }
}

impl From<&wire::LaneRetire> for LaneRetire {
    fn from(value: &wire::LaneRetire) -> Self {
        Self { lane_tag: value.lane_tag, publish_to_cache: value.publish_to_cache.into(), _pad0: [0; 7] }
    }
}

impl From<&LaneAdmit> for wire::LaneAdmit {
    fn from(record: &LaneAdmit) -> Self {
        Self {
            lane_tag: record.lane_tag,
            prompt: record.prompt.into(),
            seed_handle: record.seed_handle,
            sampling: record.sampling,
            params: record.params.into(),
            rng_counter_base: record.rng_counter_base,
            grammar_handle: record.grammar_handle,
            logit_bias_handle: record.logit_bias_handle,
            want_logprobs: record.want_logprobs != 0,
            top_logprobs: record.want_logprobs.saturating_sub(1),
            strategy_slot: record.strategy_slot,
            determinism_class: record.determinism_class,
            minimum_exactness: record.minimum_exactness,
            allow_approximate: record.allow_approximate != 0,
            required_cert_id: record.required_cert_id,
            host_sampler_identity: record.host_sampler_identity,
            grammar_replay: record.grammar_replay,
            decode_replay: record.decode_replay,
        }
    }
}

impl From<&wire::LaneAdmit> for LaneAdmit {
    fn from(value: &wire::LaneAdmit) -> Self {
        let want_logprobs = match value.want_logprobs {
            false => 0,
            true => 1 + value.top_logprobs.min(TOP_LOGPROBS as u8),
        };
        Self {
            lane_tag: value.lane_tag,
            prompt: (&value.prompt).into(),
            seed_handle: value.seed_handle,
            sampling: value.sampling,
            logit_bias_handle: value.logit_bias_handle,
            params: (&value.params).into(),
            rng_counter_base: value.rng_counter_base,
            grammar_handle: value.grammar_handle,
            strategy_slot: value.strategy_slot,
            determinism_class: value.determinism_class,
            minimum_exactness: value.minimum_exactness,
            allow_approximate: value.allow_approximate.into(),
            want_logprobs,
            required_cert_id: value.required_cert_id,
            host_sampler_identity: value.host_sampler_identity,
            grammar_replay: value.grammar_replay,
            decode_replay: value.decode_replay,
        }
    }
}

impl From<&StateSpaceDesc> for wire::SpaceDesc {
    fn from(record: &StateSpaceDesc) -> Self {
        let name: Vec<u8> = record.name.iter().map(|&byte| byte as u8).take_while(|&byte| byte != 0).collect();
        Self {
            space_id: record.space_id,
            kind: record.kind,
            version_tag: record.version_tag,
            bytes_per_token: record.bytes_per_token,
            blob_bytes: record.blob_bytes,
            page_size_tokens: record.page_size_tokens,
            fork_cost_class: record.fork_cost_class,
            fork_cost_bytes: record.fork_cost_bytes,
            snapshot_cadence: record.snapshot_cadence,
            snapshot_interval_tokens: record.snapshot_interval_tokens,
            placement: record.placement,
            flags: record.flags,
            name: String::from_utf8_lossy(&name).into_owned(),
        }
    }
}

impl From<&wire::SpaceDesc> for StateSpaceDesc {
    /// A name longer than the record's is cut.
    fn from(value: &wire::SpaceDesc) -> Self {
        let mut name = [0; 32];
        for (place, &byte) in name[..31].iter_mut().zip(value.name.as_bytes()) {
            *place = byte as core::ffi::c_char;
        }
        Self {
            space_id: value.space_id,
            kind: value.kind,
            version_tag: value.version_tag,
            bytes_per_token: value.bytes_per_token,
            blob_bytes: value.blob_bytes,
            page_size_tokens: value.page_size_tokens,
            fork_cost_class: value.fork_cost_class,
            fork_cost_bytes: value.fork_cost_bytes,
            snapshot_cadence: value.snapshot_cadence,
            snapshot_interval_tokens: value.snapshot_interval_tokens,
            placement: value.placement,
            flags: value.flags,
            name,
        }
    }
}

/// The record of a plan, its arrays in `arena`, which is cleared first.
pub fn plan_record(plan: &wire::Plan, arena: &mut RecordArena, records: &mut PlanRecords) -> TickPlan {
    arena.clear();
    TickPlan {
        struct_size: size_of::<TickPlan>() as u64,
        plan_seq: plan.plan_seq,
        flags: plan.flags,
        _pad0: 0,
        prefill_token_budget: plan.prefill_token_budget,
        max_decode_lanes: plan.max_decode_lanes,
        admits: arena.push_records(refill(&mut records.admits, &plan.admits)),
        commits: arena.push_records(refill(&mut records.commits, &plan.commits)),
        prefills: arena.push_records(refill(&mut records.prefills, &plan.prefills)),
        decodes: arena.push_records(refill(&mut records.decodes, &plan.decodes)),
        retires: arena.push_records(refill(&mut records.retires, &plan.retires)),
        shed_policy: ShedPolicy {
            victim_lanes: arena.push_records(&plan.shed_policy.victim_lanes),
            evictable_cache_classes: plan.shed_policy.evictable_cache_classes,
            protected_quota_bytes: plan.shed_policy.protected_quota_bytes,
            max_evict_bytes: plan.shed_policy.max_evict_bytes,
        },
        on_partial_emit: None,
        partial_emit_user: core::ptr::null_mut(),
    }
}

/// Lists that plans go through on their way into an arena; kept, they keep their memory.
#[derive(Debug, Default)]
pub struct PlanRecords {
    admits: Vec<LaneAdmit>,
    commits: Vec<LaneCommit>,
    prefills: Vec<LanePrefill>,
    decodes: Vec<LaneDecode>,
    retires: Vec<LaneRetire>,
}

/// `values`, converted, in place of what `list` held.
pub(super) fn refill<'l, V, T: for<'v> From<&'v V>>(list: &'l mut Vec<T>, values: &[V]) -> &'l [T] {
    list.clear();
    list.extend(values.iter().map(T::from));
    list
}

/// Copies events out, in place of what `events` held.
pub fn copy_events(view: &EventsView<'_>, events: &mut wire::TickEvents) {
    let record = view.record;
    events.plan_seq = record.plan_seq;
    events.tick_status = record.tick_status;
    refill(&mut events.admit_results, view.admit_results);
    refill(&mut events.emits, view.emits);
    refill(&mut events.faults, view.faults);
    events.shed.prefill_chunks_dropped = record.shed.prefill_chunks_dropped;
    events.shed.evictions_performed = record.shed.evictions_performed;
    events.shed.bytes_evicted = record.shed.bytes_evicted;
    refill(&mut events.shed.entries, view.shed_entries);
    refill(&mut events.op_completions, view.op_completions);
    events.timings = record.timings.into();
    events.mem = record.mem.into();
    events.logprobs.resize_with(view.logprobs.len(), Default::default);
    for (place, logprob) in events.logprobs.iter_mut().zip(view.logprobs) {
        copy_logprob(logprob, place);
    }
}

fn copy_logprob(record: &LaneLogprob, place: &mut wire::Logprob) {
    let count = (record.n_top as usize).min(TOP_LOGPROBS);
    place.lane_tag = record.lane_tag;
    place.logprob_bits = record.logprob.to_bits();
    place.top_ids.clear();
    place.top_ids.extend_from_slice(&record.top_ids[..count]);
    place.top_logprob_bits.clear();
    place.top_logprob_bits.extend(record.top_logprobs[..count].iter().map(|value| value.to_bits()));
}

impl From<&wire::Logprob> for LaneLogprob {
    /// What exceeds 20 alternatives is dropped, and so is what has no partner in the other list.
    fn from(value: &wire::Logprob) -> Self {
        let mut record = Self::zeroed();
        record.lane_tag = value.lane_tag;
        record.logprob = f32::from_bits(value.logprob_bits);
        let pairs = value.top_ids.iter().zip(&value.top_logprob_bits).take(TOP_LOGPROBS);
        for (place, (&id, &bits)) in pairs.enumerate() {
            record.top_ids[place] = id;
            record.top_logprobs[place] = f32::from_bits(bits);
            record.n_top += 1;
        }
        record
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// W-45.
    #[test]
    fn alternatives_are_counted_from_one_and_at_most_twenty() {
        for (want, top, record) in
            [(false, 0, 0), (false, 9, 0), (true, 0, 1), (true, 5, 6), (true, 20, 21), (true, 255, 21)]
        {
            let value = wire::LaneAdmit { want_logprobs: want, top_logprobs: top, ..wire::LaneAdmit::default() };
            assert_eq!(LaneAdmit::from(&value).want_logprobs, record, "{want} {top}");
        }
    }

    #[test]
    fn admits_come_back_the_same() {
        let mut admit = LaneAdmit::zeroed();
        admit.lane_tag = 7;
        admit.prompt = TokenRef { ring_id: 1, index: 2, count: 3, _pad0: 0, generation: 4 };
        admit.seed_handle = 5;
        admit.sampling = 1;
        admit.logit_bias_handle = 6;
        admit.params = SamplingParams {
            temperature: 0.5,
            top_p: 0.9,
            min_p: 0.1,
            top_k: 40,
            freq_penalty: 1.5,
            presence_penalty: 2.5,
            repeat_penalty: 3.5,
            flags: 1,
        };
        admit.rng_counter_base = u64::MAX;
        admit.grammar_handle = 8;
        admit.strategy_slot = 9;
        admit.determinism_class = 1;
        admit.minimum_exactness = 2;
        admit.allow_approximate = 1;
        admit.want_logprobs = 21;
        admit.required_cert_id = 10;
        admit.host_sampler_identity = [11; 32];
        admit.grammar_replay = 12;
        admit.decode_replay = 13;
        let back = LaneAdmit::from(&wire::LaneAdmit::from(&admit));
        assert_eq!(format!("{back:?}"), format!("{admit:?}"));
    }

    #[test]
    fn logprobs_keep_their_pairs_and_bits() {
        let mut record = LaneLogprob::zeroed();
        record.lane_tag = 3;
        record.logprob = -0.0;
        record.n_top = 25;
        for n in 0..20 {
            record.top_ids[n] = n as u32 * 7;
            record.top_logprobs[n] = -(n as f32);
        }
        let mut value = wire::Logprob::default();
        copy_logprob(&record, &mut value);
        assert_eq!((value.top_ids.len(), value.top_logprob_bits.len()), (20, 20));
        record.n_top = 20;
        assert_eq!(format!("{:?}", LaneLogprob::from(&value)), format!("{record:?}"));
        value.top_ids.truncate(2);
        assert_eq!(LaneLogprob::from(&value).n_top, 2);
    }
}
