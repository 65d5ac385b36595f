//! The byte vectors of the contract (WS-1): read, they are the stated value; written again, they are the same bytes.

use ictus::worker::frame::{FrameReader, FrameWriter, VERSION};
use ictus::worker::message::{Message, kind};
use ictus::worker::payload::*;

use crate::bytes_of;

fn f32_bits(value: f32) -> u32 {
    value.to_bits()
}

fn space() -> SpaceDesc {
    SpaceDesc {
        space_id: 1,
        kind: 1,
        version_tag: 3,
        bytes_per_token: 300,
        blob_bytes: 0,
        page_size_tokens: 16,
        fork_cost_class: 1,
        name: "kv".to_owned(),
        ..SpaceDesc::default()
    }
}

fn span(ring_id: u32, index: u32, count: u32, generation: u64) -> TokenRef {
    TokenRef { ring_id, index, count, generation }
}

fn plan() -> Plan {
    let everything = Shed {
        victim_lanes: vec![],
        evictable_cache_classes: u64::MAX,
        protected_quota_bytes: 0,
        max_evict_bytes: u64::MAX,
    };
    let params =
        Sampling { temperature: 0.5, top_p: 1.0, top_k: 40, repeat_penalty: 1.0, flags: 1, ..Sampling::default() };
    let admit = LaneAdmit {
        lane_tag: 7,
        prompt: span(1, 2, 4, 3),
        sampling: 1,
        params,
        rng_counter_base: 1000,
        grammar_handle: 2,
        logit_bias_handle: 3,
        want_logprobs: true,
        top_logprobs: 5,
        host_sampler_identity: [0xAA; 32],
        ..LaneAdmit::default()
    };
    Plan {
        plan_seq: 1,
        flags: 4,
        prefill_token_budget: 4096,
        max_decode_lanes: 8,
        admits: vec![admit],
        commits: vec![LaneCommit { lane_tag: 9, token_id: 300, logits_nonce: 5 }],
        prefills: vec![LanePrefill { lane_tag: 7, token_offset: 0, token_count: 4 }],
        decodes: vec![LaneDecode { lane_tag: 7, max_new_tokens: 300, overshoot: 16 }],
        retires: vec![LaneRetire { lane_tag: 6, publish_to_cache: true }],
        shed_policy: everything,
    }
}

fn events() -> TickEvents {
    let emit = LaneEmit {
        lane_tag: 7,
        token_ref: span(2, 0, 3, 1),
        n_tokens: 3,
        finish: 2,
        logits_row: RingRef::default(),
        spec: SpecStats { proposed: 4, accepted: 2, cert_id_in_effect: 1 },
    };
    let logprob = Logprob {
        lane_tag: 7,
        logprob_bits: f32_bits(-0.5),
        top_ids: vec![1, 200],
        top_logprob_bits: vec![f32_bits(-0.5), f32_bits(-1.0)],
    };
    TickEvents {
        plan_seq: 1,
        tick_status: 0,
        admit_results: vec![AdmitResult { lane_tag: 7, status: 1, reject_code: 0, cert_id: 0, granted_class: 2 }],
        emits: vec![emit],
        faults: vec![LaneFault { lane_tag: 8, code: 1, detail: 0 }],
        shed: ShedReport {
            prefill_chunks_dropped: 1,
            evictions_performed: 0,
            bytes_evicted: 0,
            entries: vec![ShedEntry { lane_tag: 7, kind: 1, reason: 0, bytes: 0, tokens: 90 }],
        },
        op_completions: vec![OpComplete { op: 1, state: 2, error: 0, bytes_moved: 200 }],
        timings: Timings { wall_ns: 1000, prefill_ns: 600, decode_ns: 400, graph_hits: 0, graph_misses: 0 },
        mem: mem(),
        logprobs: vec![logprob],
    }
}

fn mem() -> Mem {
    Mem {
        allocated_bytes: 1,
        host_retained_bytes: 2,
        pool_blocks_total: 3,
        pool_blocks_used: 4,
        pool_bytes_evictable: 5,
        tentative_bytes: 6,
    }
}

fn ack() -> HelloAck {
    let limits = Limits {
        max_frame: 1 << 24,
        op_window: 16,
        ring_specs: vec![
            RingSpec { ring_id: 1, kind: RingKind::Tokens, slot_bytes: 2064, slots: 64 },
            RingSpec { ring_id: 3, kind: RingKind::Logits, slot_bytes: 1040, slots: 8 },
        ],
    };
    HelloAck {
        chosen: 8,
        engine_bundle_hash: [0; 32],
        capabilities: "{}".to_owned(),
        spaces: vec![space()],
        strategies: vec![],
        limits,
        kv_bits: 16,
    }
}

fn grant() -> Grant {
    let cert = Cert {
        cert_id: 1,
        exactness: 2,
        sampling_modes: 3,
        param_domain: 3,
        grammar_allowed: true,
        logit_bias_allowed: false,
        verification_shape_class: 1,
        admissible_host_identities: vec![],
    };
    Grant { strategy_slot: 1, certificates: vec![cert], state_spaces: vec![], reserved_bytes: 0 }
}

/// Number, message and bytes of every payload in the contract's table.
pub(crate) fn payloads() -> Vec<(Message, &'static str)> {
    let sync = |request| Message::StateSyncReq(request);
    let answer = |answer| Message::StateSyncRes(SyncResult::Ok(answer));
    let versions = Versions { lowest: 8, highest: 8 };
    let ring = RingSpec { ring_id: 1, kind: RingKind::Tokens, slot_bytes: 2064, slots: 64 };
    let candidate = Candidate { prefix_len: 48, provenance_digest: [0x11; 32], taint_bits: 1, resident_tier: 0 };
    let demote = StateOp::Demote {
        sequence: 2,
        space_id: 1,
        range: TokenRange { start: 0, end: 32 },
        encoding: 0,
        buf_id: 1,
        sizing_gen: 5,
    };
    vec![
        (Message::Hello(Hello { versions, role: Role::NodeAgent, auth: vec![] }), "08080000"),
        (
            Message::HelloAck(ack()),
            "080000000000000000000000000000000000000000000000000000000000000000027b7d01010103ac020010010000000000026b76008080800810020100901040030190080810",
        ),
        (Message::RingAttach(RingAttach { ring_id: 1, layout: ring }), "010100901040"),
        (Message::RingAck(RingAck { ring_id: 3, generation_base: 1 }), "0301"),
        (Message::ControlAttach(64), "40"),
        (
            Message::TickSubmit(plan()),
            "010480200801070102040300010000003f0000803f000000002800000000000000000000803f01e807020301050000000000aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa00000109ac0205010700040107ac021001060100ffffffffffffffffff0100ffffffffffffffffff01",
        ),
        (Message::TickResult(TickResult::Rejected { status: -106 }), "01d301"),
        (
            Message::TickResult(TickResult::Events(events())),
            "00010001070100000201070200030103020000000402010108010001000001070100005a01010200c801e807d804900300000102030405060107808080f80b0201c80102808080f80b808080fc0b",
        ),
        (Message::TickEmit(TickEmit { lane_tag: 7, tokens: vec![5, 300] }), "070205ac02"),
        (
            Message::MatchRes(MatchRes { spaces: vec![SpaceMatch { space_id: 1, candidates: vec![candidate] }] }),
            "0101013011111111111111111111111111111111111111111111111111111111111111110100",
        ),
        (Message::SeedGrant(SeedGrant::Granted { seed_handle: 9, ttl_ms: 1000, ttl_ticks: Some(64) }), "0009e8070140"),
        (Message::SeedGrant(SeedGrant::Refused { status: -130 }), "018302"),
        (Message::StateOpSubmit(demote), "0202010020000105"),
        (Message::StateOpAccepted(OpAccepted::Accepted { op_handle: 1 }), "0001"),
        (
            Message::StateOpDone(OpComplete { op: 1, state: 3, error: (-121i32) as u32, bytes_moved: 0 }),
            "010387ffffff0f00",
        ),
        (sync(SyncRequest::LaneSequence { lane_tag: 7 }), "0407"),
        (
            sync(SyncRequest::CreateLogitBias { tokens: vec![-1, 5], values: vec![f32_bits(100.0), f32_bits(-1.0)] }),
            "1002010a028080a09604808080fc0b",
        ),
        (sync(SyncRequest::Unpublish { span: span(1, 0, 2, 1) }), "1b01000201"),
        (answer(SyncOk::ExportSize { required_bytes: 264, sizing_gen: 5 }), "0002880205"),
        (answer(SyncOk::LoraId { id: None }), "001400"),
        (answer(SyncOk::ForwardStage { hidden: None, token: Some(7) }), "0011000107"),
        (Message::StateSyncRes(SyncResult::Err { status: -129 }), "018102"),
        (Message::StrategyGrant(StrategyGrant::Granted(grant())), "00010101020303010001000000"),
        (Message::Pong(Load { queue_depth: 2, mem: mem() }), "02010203040506"),
    ]
}

#[test]
fn ws_1_each_payload_is_the_stated_value_and_the_stated_bytes() {
    for (message, hex) in payloads() {
        let bytes = bytes_of(hex);
        let read = Message::decode(message.kind(), &bytes).expect("a known number").expect("a whole payload");
        assert_eq!(read, message);
        let mut written = Vec::new();
        read.encode(&mut written);
        assert_eq!(written, bytes, "{message:?}");
    }
}

#[test]
fn ws_1_each_payload_cut_short_is_an_error_and_spare_bytes_are_ignored() {
    for (message, hex) in payloads() {
        let bytes = bytes_of(hex);
        for len in 0..bytes.len() {
            let read = Message::decode(message.kind(), &bytes[..len]).expect("a known number");
            // A grant of an older worker ends before its last field (W-52).
            let older = matches!(message, Message::SeedGrant(SeedGrant::Granted { .. })) && len == 4;
            assert_eq!(read.is_ok(), older, "W-10: {len} bytes of {message:?}: {read:?}");
        }
        let spare = [&bytes[..], &[0xFF, 0xFF, 0xFF]].concat();
        assert_eq!(Message::decode(message.kind(), &spare), Some(Ok(message)), "W-11");
    }
}

/// W-52.
#[test]
fn ws_1_grant_of_an_older_worker_has_no_time_in_ticks() {
    let read = Message::decode(kind::SEED_GRANT, &bytes_of("0009e807"));
    let expected = SeedGrant::Granted { seed_handle: 9, ttl_ms: 1000, ttl_ticks: None };
    assert_eq!(read, Some(Ok(Message::SeedGrant(expected))));
}

#[test]
fn ws_1_frames_have_the_stated_bytes() {
    let (hello, _) = payloads().remove(0);
    let mut writer = FrameWriter::new(VERSION);
    let mut out = Vec::new();
    assert_eq!(writer.write(0, &hello, &mut out), Ok(1));
    assert_eq!(out, bytes_of("1900000008000100010000000000000000000000000000000008080000"));
    for seq in 2..5 {
        assert_eq!(writer.write(0, &Message::DrainReq, &mut Vec::new()), Ok(seq));
    }
    out.clear();
    assert_eq!(writer.write(4, &Message::Drained, &mut out), Ok(5));
    assert_eq!(out, bytes_of("1500000008001a000500000000000000040000000000000000"));
    let mut reader = FrameReader::new();
    reader.push(&out);
    let frame = reader.next().expect("sound").expect("whole");
    assert_eq!((frame.version, frame.kind, frame.seq, frame.correlation), (8, kind::DRAINED, 5, 4));
    assert!(frame.payload.is_empty());
}
