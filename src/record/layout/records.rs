#![forbid(unsafe_code)]
//! Every record with its fields, in the order of the layout table.

use super::super::{
    AdmitResult, Array, Artifact, Buf, CacheKey, CapabilityReq, ExactnessCert, LaneAdmit, LaneCommit, LaneDecode,
    LaneEmit, LaneFault, LaneLogprob, LanePrefill, LaneRetire, MatchCandidate, MatchResult, MediaInfo, OpComplete,
    OpStatus, RingDesc, RingRef, SamplingParams, ShedEntry, ShedPolicy, ShedReport, SpaceMatch, SpecStats,
    StateEnvelope, StateSpaceDesc, StrategyGrant, StrategyRegistration, TapSpec, TickEvents, TickMemCounters, TickPlan,
    TickTimings, TokenRange, TokenRef,
};
use super::table::records;

records! {
    /// Every record, in the order of the layout table.
    RECORDS
    value Array "Array" "ictus_array_t" {
        data: "const void *",
        count: "uint32_t",
        elem_size: "uint32_t",
    }
    value TokenRef "TokenRef" "ictus_token_ref_t" {
        ring_id: "uint32_t",
        index: "uint32_t",
        count: "uint32_t",
        _pad0: "uint32_t",
        generation: "uint64_t",
    }
    value RingRef "RingRef" "ictus_ring_ref_t" {
        ring_id: "uint32_t",
        index: "uint32_t",
        generation: "uint64_t",
    }
    value Buf "Buf" "ictus_buf_t" {
        ptr: "void *",
        len: "uint64_t",
    }
    value TokenRange "TokenRange" "ictus_token_range_t" {
        start: "uint64_t",
        end: "uint64_t",
    }
    value SamplingParams "SamplingParams" "ictus_sampling_params_t" {
        temperature: "float",
        top_p: "float",
        min_p: "float",
        top_k: "uint32_t",
        freq_penalty: "float",
        presence_penalty: "float",
        repeat_penalty: "float",
        flags: "uint32_t",
    }
    record ShedPolicy "ShedPolicy" "ictus_shed_policy_t" {
        victim_lanes: "ictus_array_t",
        evictable_cache_classes: "uint64_t",
        protected_quota_bytes: "uint64_t",
        max_evict_bytes: "uint64_t",
    }
    record LaneAdmit "LaneAdmit" "ictus_lane_admit_t" {
        lane_tag: "uint64_t",
        prompt: "ictus_token_ref_t",
        seed_handle: "uint64_t",
        sampling: "uint32_t",
        logit_bias_handle: "uint32_t",
        params: "ictus_sampling_params_t",
        rng_counter_base: "uint64_t",
        grammar_handle: "uint32_t",
        strategy_slot: "uint32_t",
        determinism_class: "uint8_t",
        minimum_exactness: "uint8_t",
        allow_approximate: "uint8_t",
        want_logprobs: "uint8_t",
        required_cert_id: "uint32_t",
        host_sampler_identity: "uint8_t[32]",
        grammar_replay: "uint32_t",
        decode_replay: "uint32_t",
    }
    record LaneCommit "LaneCommit" "ictus_lane_commit_t" {
        lane_tag: "uint64_t",
        token_id: "uint32_t",
        _pad0: "uint32_t",
        logits_nonce: "uint64_t",
    }
    record LanePrefill "LanePrefill" "ictus_lane_prefill_t" {
        lane_tag: "uint64_t",
        token_offset: "uint32_t",
        token_count: "uint32_t",
    }
    record LaneDecode "LaneDecode" "ictus_lane_decode_t" {
        lane_tag: "uint64_t",
        max_new_tokens: "uint16_t",
        overshoot: "uint16_t",
        _pad1: "uint32_t",
    }
    record LaneRetire "LaneRetire" "ictus_lane_retire_t" {
        lane_tag: "uint64_t",
        publish_to_cache: "uint8_t",
        _pad0: "uint8_t[7]",
    }
    record TickPlan "TickPlan" "ictus_tick_plan_t" {
        struct_size: "uint64_t",
        plan_seq: "uint64_t",
        flags: "uint32_t",
        _pad0: "uint32_t",
        prefill_token_budget: "uint32_t",
        max_decode_lanes: "uint32_t",
        admits: "ictus_array_t",
        commits: "ictus_array_t",
        prefills: "ictus_array_t",
        decodes: "ictus_array_t",
        retires: "ictus_array_t",
        shed_policy: "ictus_shed_policy_t",
        on_partial_emit: "void (*)(void *user, uint64_t lane_tag, const uint32_t *tokens, uint32_t n_tokens)",
        partial_emit_user: "void *",
    }
    record AdmitResult "AdmitResult" "ictus_admit_result_t" {
        lane_tag: "uint64_t",
        status: "uint32_t",
        reject_code: "uint32_t",
        cert_id: "uint32_t",
        granted_class: "uint8_t",
        _pad0: "uint8_t[3]",
    }
    value SpecStats "SpecStats" "ictus_spec_stats_t" {
        proposed: "uint32_t",
        accepted: "uint32_t",
        cert_id_in_effect: "uint32_t",
        _pad0: "uint32_t",
    }
    record LaneEmit "LaneEmit" "ictus_lane_emit_t" {
        lane_tag: "uint64_t",
        token_ref: "ictus_token_ref_t",
        n_tokens: "uint32_t",
        finish: "uint32_t",
        logits_row: "ictus_ring_ref_t",
        spec: "ictus_spec_stats_t",
    }
    record LaneFault "LaneFault" "ictus_lane_fault_t" {
        lane_tag: "uint64_t",
        code: "uint32_t",
        _pad0: "uint32_t",
        detail: "uint64_t",
    }
    record ShedEntry "ShedEntry" "ictus_shed_entry_t" {
        lane_tag: "uint64_t",
        kind: "uint32_t",
        reason: "uint32_t",
        bytes: "uint64_t",
        tokens: "uint64_t",
    }
    value ShedReport "ShedReport" "ictus_shed_report_t" {
        prefill_chunks_dropped: "uint32_t",
        evictions_performed: "uint32_t",
        bytes_evicted: "uint64_t",
        entries: "ictus_array_t",
    }
    record OpComplete "OpComplete" "ictus_op_complete_t" {
        op: "uint64_t",
        state: "uint8_t",
        _pad0: "uint8_t[3]",
        error: "uint32_t",
        bytes_moved: "uint64_t",
    }
    value TickTimings "TickTimings" "ictus_tick_timings_t" {
        wall_ns: "uint64_t",
        prefill_ns: "uint64_t",
        decode_ns: "uint64_t",
        graph_hits: "uint32_t",
        graph_misses: "uint32_t",
    }
    value TickMemCounters "MemCounters" "ictus_mem_counters_t" {
        allocated_bytes: "uint64_t",
        host_retained_bytes: "uint64_t",
        pool_blocks_total: "uint64_t",
        pool_blocks_used: "uint64_t",
        pool_bytes_evictable: "uint64_t",
        tentative_bytes: "uint64_t",
    }
    record LaneLogprob "LaneLogprob" "ictus_lane_logprob_t" {
        lane_tag: "uint64_t",
        logprob: "float",
        n_top: "uint32_t",
        top_ids: "uint32_t[20]",
        top_logprobs: "float[20]",
    }
    record TickEvents "TickEvents" "ictus_tick_events_t" {
        struct_size: "uint64_t",
        plan_seq: "uint64_t",
        tick_status: "uint32_t",
        _pad0: "uint32_t",
        admit_results: "ictus_array_t",
        emits: "ictus_array_t",
        faults: "ictus_array_t",
        shed: "ictus_shed_report_t",
        op_completions: "ictus_array_t",
        timings: "ictus_tick_timings_t",
        mem: "ictus_mem_counters_t",
        logprobs: "ictus_array_t",
    }
    record RingDesc "RingDesc" "ictus_ring_desc_t" {
        struct_size: "uint64_t",
        ring_id: "uint32_t",
        kind: "uint32_t",
        role: "uint32_t",
        slots: "uint32_t",
        slot_bytes: "uint32_t",
        _pad0: "uint32_t",
        base: "void *",
        len: "uint64_t",
    }
    record StateSpaceDesc "StateSpaceDesc" "ictus_state_space_desc_t" {
        space_id: "uint32_t",
        kind: "uint32_t",
        version_tag: "uint64_t",
        bytes_per_token: "uint64_t",
        blob_bytes: "uint64_t",
        page_size_tokens: "uint32_t",
        fork_cost_class: "uint32_t",
        fork_cost_bytes: "uint64_t",
        snapshot_cadence: "uint32_t",
        snapshot_interval_tokens: "uint32_t",
        placement: "uint32_t",
        flags: "uint32_t",
        name: "char[32]",
    }
    record Artifact "Artifact" "ictus_artifact_t" {
        role: "uint32_t",
        _pad0: "uint32_t",
        content_hash: "uint8_t[32]",
        byte_size: "uint64_t",
        load_path: "const char *",
    }
    record TapSpec "TapSpec" "ictus_tap_spec_t" {
        layer: "uint32_t",
        tensor: "uint32_t",
        dtype: "uint32_t",
        layout: "uint32_t",
    }
    record CapabilityReq "CapabilityReq" "ictus_capability_req_t" {
        kind_id: "uint32_t",
        _pad0: "uint32_t",
        params: "ictus_array_t",
    }
    record StrategyRegistration "StrategyRegistration" "ictus_strategy_registration_t" {
        struct_size: "uint64_t",
        strategy_id: "const char *",
        impl_version: "const char *",
        impl_hash: "uint8_t[32]",
        config_hash: "uint8_t[32]",
        artifacts: "ictus_array_t",
        taps: "ictus_array_t",
        capabilities: "ictus_array_t",
        target_archs: "ictus_array_t",
        kernel_caps_required: "uint32_t",
        _pad0: "uint32_t",
        est_state_bytes: "uint64_t",
        claimed_exactness: "uint8_t",
        _pad1: "uint8_t[3]",
        rng_contract_version: "uint32_t",
    }
    record ExactnessCert "ExactnessCert" "ictus_exactness_cert_t" {
        cert_id: "uint32_t",
        exactness: "uint8_t",
        sampling_modes: "uint8_t",
        grammar_allowed: "uint8_t",
        logit_bias_allowed: "uint8_t",
        param_domain: "uint32_t",
        verification_shape_class: "uint32_t",
        admissible_host_identities: "ictus_array_t",
    }
    record StrategyGrant "StrategyGrant" "ictus_strategy_grant_t" {
        struct_size: "uint64_t",
        strategy_slot: "uint32_t",
        _pad0: "uint32_t",
        certificates: "ictus_array_t",
        state_spaces: "ictus_array_t",
        reserved_bytes: "uint64_t",
    }
    record OpStatus "OpStatus" "ictus_op_status_t" {
        struct_size: "uint64_t",
        state: "uint8_t",
        _pad0: "uint8_t[3]",
        error: "uint32_t",
        bytes_moved: "uint64_t",
    }
    record MatchCandidate "MatchCandidate" "ictus_match_candidate_t" {
        prefix_len: "uint64_t",
        provenance_digest: "uint8_t[32]",
        taint_bits: "uint32_t",
        resident_tier: "uint8_t",
        _pad0: "uint8_t[3]",
    }
    record SpaceMatch "SpaceMatch" "ictus_space_match_t" {
        space_id: "uint32_t",
        _pad0: "uint32_t",
        candidates: "ictus_array_t",
    }
    record MatchResult "MatchResult" "ictus_match_result_t" {
        struct_size: "uint64_t",
        spaces: "ictus_array_t",
    }
    record StateEnvelope "StateEnvelope" "ictus_state_envelope_t" {
        magic: "uint64_t",
        envelope_version: "uint32_t",
        space_kind: "uint32_t",
        compat_identity: "uint8_t[32]",
        version_tag: "uint64_t",
        provenance_digest: "uint8_t[32]",
        taint_bits: "uint32_t",
        _pad0: "uint32_t",
        range: "ictus_token_range_t",
        encoding: "uint8_t",
        _pad1: "uint8_t[3]",
        checksum_kind: "uint32_t",
        payload_len: "uint64_t",
        content_checksum: "uint64_t",
    }
    record CacheKey "CacheKey" "ictus_cache_key_t" {
        compat_key: "uint8_t[32]",
        provenance_digest: "uint8_t[32]",
    }
    value MediaInfo "MediaInfo" "ictus_media_info_t" {
        n_tokens: "uint32_t",
        image_token_id: "uint32_t",
        boi_token_id: "uint32_t",
        eoi_token_id: "uint32_t",
        preprocess_fp: "uint64_t",
    }
}
