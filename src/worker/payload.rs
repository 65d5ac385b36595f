#![forbid(unsafe_code)]
//! What the messages carry: the types of version 8, each with its fields in wire order.
//!
//! Most have the name and the fields of a record of [`crate::record`], less padding and `struct_size`, and mean the same; the order may
//! differ, and the order here is the wire's. [`super::convert`] goes from one to the other.
#![allow(missing_docs, reason = "a field is that of the record of the same name; what is not in a record is said")]

use super::codec::{PayloadError, Reader, Wire, wire_enums, wire_structs};

wire_structs! {
    /// The host says who it is and what it speaks.
    Hello {
        /// Lowest and highest version spoken.
        versions: Versions,
        role: Role,
        /// Not looked at.
        auth: Vec<u8>,
    }
    /// A range of versions, ends included.
    Versions { lowest: u16, highest: u16 }
    /// The worker says what it serves.
    HelloAck {
        /// The version of all later frames.
        chosen: u16,
        /// Zero: a bundle without a hash.
        engine_bundle_hash: [u8; 32],
        /// JSON text, or empty.
        capabilities: String,
        spaces: Vec<SpaceDesc>,
        strategies: Vec<StrategySummary>,
        limits: Limits,
        kv_bits: u32,
    }
    /// [`StateSpaceDesc`](crate::record::StateSpaceDesc).
    SpaceDesc {
        space_id: u32,
        kind: u32,
        version_tag: u64,
        bytes_per_token: u64,
        blob_bytes: u64,
        page_size_tokens: u32,
        fork_cost_class: u32,
        fork_cost_bytes: u64,
        snapshot_cadence: u32,
        snapshot_interval_tokens: u32,
        placement: u32,
        flags: u32,
        /// Up to the first NUL of the record.
        name: String,
    }
    /// A strategy that a worker brings; nobody sends one.
    StrategySummary { strategy_id: String, slot: u32, impl_version: String, claimed_exactness: u8 }
    /// What a host must keep to.
    Limits {
        /// Most bytes of a frame after its length.
        max_frame: u32,
        /// Most accepted state operations that are not finished.
        op_window: u32,
        ring_specs: Vec<RingSpec>,
    }
    /// A ring that the host has to make.
    RingSpec { ring_id: u32, kind: RingKind, slot_bytes: u32, slots: u32 }
    /// Announces the descriptor of a ring.
    RingAttach { ring_id: u32, layout: RingSpec }
    /// The ring was taken.
    RingAck {
        ring_id: u32,
        /// Always 1.
        generation_base: u64,
    }
    /// [`TokenRef`](crate::record::TokenRef).
    TokenRef { ring_id: u32, index: u32, count: u32, generation: u64 }
    /// [`RingRef`](crate::record::RingRef).
    RingRef { ring_id: u32, index: u32, generation: u64 }
    /// [`TokenRange`](crate::record::TokenRange).
    TokenRange { start: u64, end: u64 }
    /// [`SamplingParams`](crate::record::SamplingParams).
    Sampling {
        temperature: f32,
        top_p: f32,
        min_p: f32,
        top_k: u32,
        freq_penalty: f32,
        presence_penalty: f32,
        repeat_penalty: f32,
        flags: u32,
    }
    /// [`LaneAdmit`](crate::record::LaneAdmit); mind the order.
    LaneAdmit {
        lane_tag: u64,
        prompt: TokenRef,
        seed_handle: u64,
        sampling: u32,
        params: Sampling,
        rng_counter_base: u64,
        grammar_handle: u32,
        logit_bias_handle: u32,
        want_logprobs: bool,
        /// Alternatives per token, at most 20 count; without `want_logprobs` it says nothing.
        top_logprobs: u8,
        strategy_slot: u32,
        determinism_class: u8,
        minimum_exactness: u8,
        allow_approximate: bool,
        required_cert_id: u32,
        host_sampler_identity: [u8; 32],
        grammar_replay: u32,
        decode_replay: u32,
    }
    /// [`LaneCommit`](crate::record::LaneCommit).
    LaneCommit { lane_tag: u64, token_id: u32, logits_nonce: u64 }
    /// [`LanePrefill`](crate::record::LanePrefill).
    LanePrefill { lane_tag: u64, token_offset: u32, token_count: u32 }
    /// [`LaneDecode`](crate::record::LaneDecode).
    LaneDecode { lane_tag: u64, max_new_tokens: u16, overshoot: u16 }
    /// [`LaneRetire`](crate::record::LaneRetire).
    LaneRetire { lane_tag: u64, publish_to_cache: bool }
    /// [`ShedPolicy`](crate::record::ShedPolicy).
    Shed {
        victim_lanes: Vec<u64>,
        evictable_cache_classes: u64,
        protected_quota_bytes: u64,
        max_evict_bytes: u64,
    }
    /// [`TickPlan`](crate::record::TickPlan).
    Plan {
        plan_seq: u64,
        flags: u32,
        prefill_token_budget: u32,
        max_decode_lanes: u32,
        admits: Vec<LaneAdmit>,
        commits: Vec<LaneCommit>,
        prefills: Vec<LanePrefill>,
        decodes: Vec<LaneDecode>,
        retires: Vec<LaneRetire>,
        shed_policy: Shed,
    }
    /// [`AdmitResult`](crate::record::AdmitResult).
    AdmitResult { lane_tag: u64, status: u32, reject_code: u32, cert_id: u32, granted_class: u8 }
    /// [`SpecStats`](crate::record::SpecStats).
    SpecStats { proposed: u32, accepted: u32, cert_id_in_effect: u32 }
    /// [`LaneEmit`](crate::record::LaneEmit).
    LaneEmit {
        lane_tag: u64,
        token_ref: TokenRef,
        n_tokens: u32,
        finish: u32,
        logits_row: RingRef,
        spec: SpecStats,
    }
    /// [`LaneFault`](crate::record::LaneFault).
    LaneFault { lane_tag: u64, code: u32, detail: u64 }
    /// [`ShedEntry`](crate::record::ShedEntry).
    ShedEntry { lane_tag: u64, kind: u32, reason: u32, bytes: u64, tokens: u64 }
    /// [`ShedReport`](crate::record::ShedReport).
    ShedReport {
        prefill_chunks_dropped: u32,
        evictions_performed: u32,
        bytes_evicted: u64,
        entries: Vec<ShedEntry>,
    }
    /// [`OpComplete`](crate::record::OpComplete), in events and as the message that an operation ended.
    OpComplete { op: u64, state: u8, error: u32, bytes_moved: u64 }
    /// [`TickTimings`](crate::record::TickTimings).
    Timings { wall_ns: u64, prefill_ns: u64, decode_ns: u64, graph_hits: u32, graph_misses: u32 }
    /// [`TickMemCounters`](crate::record::TickMemCounters).
    Mem {
        allocated_bytes: u64,
        host_retained_bytes: u64,
        pool_blocks_total: u64,
        pool_blocks_used: u64,
        pool_bytes_evictable: u64,
        tentative_bytes: u64,
    }
    /// [`LaneLogprob`](crate::record::LaneLogprob), the floats as their bits (W-13).
    Logprob {
        lane_tag: u64,
        logprob_bits: u32,
        /// As many as there are alternatives, at most 20.
        top_ids: Vec<u32>,
        /// As many as `top_ids`.
        top_logprob_bits: Vec<u32>,
    }
    /// [`TickEvents`](crate::record::TickEvents).
    TickEvents {
        plan_seq: u64,
        tick_status: u32,
        admit_results: Vec<AdmitResult>,
        emits: Vec<LaneEmit>,
        faults: Vec<LaneFault>,
        shed: ShedReport,
        op_completions: Vec<OpComplete>,
        timings: Timings,
        mem: Mem,
        logprobs: Vec<Logprob>,
    }
    /// Tokens of one lane, from inside a tick.
    TickEmit { lane_tag: u64, tokens: Vec<u32> }
    /// Asks for the cached prefixes of a span.
    MatchReq { space_id: u32, span: TokenRef, media_deps: Vec<[u8; 32]> }
    /// The answer: one entry per space.
    MatchRes { spaces: Vec<SpaceMatch> }
    /// [`SpaceMatch`](crate::record::SpaceMatch).
    SpaceMatch { space_id: u32, candidates: Vec<Candidate> }
    /// [`MatchCandidate`](crate::record::MatchCandidate).
    Candidate { prefix_len: u64, provenance_digest: [u8; 32], taint_bits: u32, resident_tier: u8 }
    /// Asks for a lease of a cached prefix.
    SeedAcquire { span: TokenRef, prefix_len: u64, determinism_class: u8 }
    /// [`StrategyRegistration`](crate::record::StrategyRegistration).
    Registration {
        strategy_id: String,
        impl_version: String,
        impl_hash: [u8; 32],
        config_hash: [u8; 32],
        artifacts: Vec<Artifact>,
        taps: Vec<Tap>,
        capabilities: Vec<CapReq>,
        target_archs: Vec<String>,
        kernel_caps_required: u32,
        est_state_bytes: u64,
        claimed_exactness: u8,
        rng_contract_version: u32,
    }
    /// [`Artifact`](crate::record::Artifact).
    Artifact { role: u32, content_hash: [u8; 32], byte_size: u64, load_path: String }
    /// [`TapSpec`](crate::record::TapSpec).
    Tap { layer: u32, tensor: u32, dtype: u32, layout: u32 }
    /// [`CapabilityReq`](crate::record::CapabilityReq).
    CapReq { kind_id: u32, params: Vec<u8> }
    /// [`StrategyGrant`](crate::record::StrategyGrant).
    Grant { strategy_slot: u32, certificates: Vec<Cert>, state_spaces: Vec<SpaceDesc>, reserved_bytes: u64 }
    /// [`ExactnessCert`](crate::record::ExactnessCert); mind the order.
    Cert {
        cert_id: u32,
        exactness: u8,
        sampling_modes: u8,
        param_domain: u32,
        grammar_allowed: bool,
        logit_bias_allowed: bool,
        verification_shape_class: u32,
        admissible_host_identities: Vec<[u8; 32]>,
    }
    /// [`MediaInfo`](crate::record::MediaInfo).
    MediaInfo { n_tokens: u32, image_token_id: u32, boi_token_id: u32, eoi_token_id: u32, preprocess_fp: u64 }
    /// A stretch of a transcription; the floats as their bits.
    TranscriptSegment {
        start_ms: i32,
        end_ms: i32,
        text: String,
        avg_logprob_bits: u32,
        no_speech_prob_bits: u32,
        compression_ratio_bits: u32,
        temperature_bits: u32,
    }
    /// [`CacheKey`](crate::record::CacheKey).
    CacheKey { compat_key: [u8; 32], provenance_digest: [u8; 32] }
    /// Announces a buffer; without effect.
    BufAlloc { buf_id: u64, len: u64 }
    /// Announces the descriptor of a buffer.
    BufAttach {
        buf_id: u64,
        len: u64,
        /// Not looked at.
        generation: u64,
    }
    /// How busy a side is: in a ping not looked at, in a pong the unfinished operations and the last tick's memory.
    Load { queue_depth: u32, mem: Mem }
    /// A segment of a transcription that goes on.
    TranscribedSegment { start_ms: i32, end_ms: i32, text: String }
}

wire_enums! {
    /// What a peer is in its fleet.
    Role = Self::NodeAgent => { 0 NodeAgent, 1 Worker, 2 HeadDaemon }
    /// What a ring carries: one less than the record's constants.
    RingKind = Self::Tokens => { 0 Tokens, 1 Logits }
    /// What became of a plan.
    TickResult = Self::Rejected { status: 0 } => {
        0 Events(events: TickEvents),
        /// The plan's, or `Fatal`.
        1 Rejected { status: i32 },
    }
    /// What became of a state operation that was asked for.
    OpAccepted = Self::Rejected { status: 0 } => { 0 Accepted { op_handle: u64 }, 1 Rejected { status: i32 } }
    /// What became of a registration.
    StrategyGrant = Self::Refused { status: 0 } => { 0 Granted(grant: Grant), 1 Refused { status: i32 } }
    /// A state operation.
    StateOp = Self::Restore { sequence: 0, space_id: 0, buf_id: 0 } => {
        0 Snapshot { sequence: u64, space_id: u32, boundary_pos: u64, buf_id: u64, sizing_gen: u64 },
        1 Restore { sequence: u64, space_id: u32, buf_id: u64 },
        2 Demote {
            sequence: u64,
            space_id: u32,
            range: TokenRange,
            encoding: u8,
            buf_id: u64,
            sizing_gen: u64,
        },
        3 Promote { sequence: u64, space_id: u32, range: TokenRange, buf_id: u64 },
    }
    /// A question or a change that is answered at once.
    SyncRequest = Self::CreateSequence => {
        0 Fork { parent_sequence: u64, flags: u32 },
        1 Trim { sequence: u64, space_id: u32, new_len: u64 },
        2 ExportSize { sequence: u64, space_id: u32, range: TokenRange, encoding: u8 },
        3 CacheEvict { bytes_target: u64, policy: Shed },
        4 LaneSequence { lane_tag: u64 },
        5 CreateSequence,
        6 FreeSequence { sequence: u64 },
        7 PublishSequence { sequence: u64, span: TokenRef },
        8 AdoptSequence { sequence: u64, span: TokenRef },
        9 MediaProbe { image_path: String },
        10 MediaEncode { image_path: String },
        11 MediaRelease { media_handle: u64 },
        12 MediaBind { lane_tag: u64, media_handle: u64, token_offset: u32 },
        13 CreateGrammar { json_schema: String },
        14 CreateGrammarStructural { tag_json: String },
        15 FreeGrammar { grammar_handle: u32 },
        16 CreateLogitBias {
            tokens: Vec<i32>,
            /// Bits of the addends.
            values: Vec<u32>,
        },
        17 FreeLogitBias { handle: u32 },
        18 ForwardStage { tokens: Vec<u32>, start_layer: u32, end_layer: u32, hidden_in: Option<Vec<u8>> },
        19 Embed { tokens: Vec<u32> },
        20 Transcribe {
            audio_path: String,
            language: Option<String>,
            translate: bool,
            timestamps: bool,
            prompt: Option<String>,
            stream: bool,
        },
        21 LoraLoad { adapter_path: String },
        22 LoraUnload,
        23 LoraId,
        24 Capabilities,
        25 SnapshotBoundary { sequence: u64, space_id: u32, cap: u64 },
        26 CacheEvictEntries { keys: Vec<CacheKey> },
        27 Unpublish { span: TokenRef },
    }
    /// The answer to a [`SyncRequest`].
    SyncResult = Self::Err { status: 0 } => { 0 Ok(answer: SyncOk), 1 Err { status: i32 } }
    /// The answer to a [`SyncRequest`] that went well.
    SyncOk = Self::Trim => {
        0 Fork { child_sequence: u64 },
        1 Trim,
        2 ExportSize { required_bytes: u64, sizing_gen: u64 },
        3 CacheEvict { bytes_freed: u64 },
        4 LaneSequence { sequence: u64 },
        5 CreateSequence { sequence: u64 },
        6 FreeSequence,
        7 PublishSequence,
        8 AdoptSequence { seed_handle: u64 },
        9 MediaProbe { info: MediaInfo },
        10 MediaEncode { media_handle: u64, info: MediaInfo },
        11 MediaRelease,
        12 MediaBind,
        /// Of either kind of grammar.
        13 CreateGrammar { grammar_handle: u32 },
        14 FreeGrammar,
        15 CreateLogitBias { handle: u32 },
        16 FreeLogitBias,
        /// Exactly one of the two is there.
        17 ForwardStage { hidden: Option<Vec<u8>>, token: Option<u32> },
        18 Transcribe { text: String, language: String, duration_ms: i32, segments: Vec<TranscriptSegment> },
        19 Embed {
            /// Little-endian f32.
            embedding: Vec<u8>,
        },
        /// Also after a load and an unload.
        20 LoraId { id: Option<String> },
        21 Capabilities { json: String },
        22 SnapshotBoundary { boundary: u64 },
        23 CacheEvictEntries,
        24 Unpublish,
    }
}

/// What became of a seed that was asked for.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(test, derive(serde::Serialize, serde::Deserialize))]
pub enum SeedGrant {
    /// A lease.
    Granted {
        seed_handle: u64,
        /// Advisory.
        ttl_ms: u32,
        /// How many accepted ticks it lives; none when the engine does not say, or the worker is an old one.
        ttl_ticks: Option<u64>,
    },
    /// None, and why.
    Refused { status: i32 },
}

impl Default for SeedGrant {
    fn default() -> Self {
        Self::Refused { status: 0 }
    }
}

impl Wire for SeedGrant {
    const LEAST_BYTES: usize = 2;

    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::Granted { seed_handle, ttl_ms, ttl_ticks } => {
                0u32.put(out);
                seed_handle.put(out);
                ttl_ms.put(out);
                ttl_ticks.put(out);
            }
            Self::Refused { status } => {
                1u32.put(out);
                status.put(out);
            }
        }
    }

    /// The one payload that may end before its last field (W-52).
    fn get(&mut self, reader: &mut Reader<'_>) -> Result<(), PayloadError> {
        *self = match reader.variant()? {
            0 => {
                let (seed_handle, ttl_ms) = (reader.take()?, reader.take()?);
                let ttl_ticks = if reader.left() == 0 { None } else { reader.take()? };
                Self::Granted { seed_handle, ttl_ms, ttl_ticks }
            }
            1 => Self::Refused { status: reader.take()? },
            got => return Err(PayloadError::Variant { got }),
        };
        Ok(())
    }
}
