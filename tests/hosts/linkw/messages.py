"""The messages of Link W version 8 and the types of their fields (linkw.md sections 3, 4 and 11)."""

from postcard import BOOL, BYTES, F32, HASH, I32, TEXT, U8, U16, U32, U64, Enum, Option, Struct, Tuple, Vec

NOTHING = Struct()

RING_KIND = Enum(("tokens", NOTHING), ("logits", NOTHING))
RING_SPEC = Struct(ring_id=U32, kind=RING_KIND, slot_bytes=U32, slots=U32)
ROLE = Enum(("node_agent", NOTHING), ("worker", NOTHING), ("head_daemon", NOTHING))
SPACE_DESC = Struct(
    space_id=U32,
    kind=U32,
    version_tag=U64,
    bytes_per_token=U64,
    blob_bytes=U64,
    page_size_tokens=U32,
    fork_cost_class=U32,
    fork_cost_bytes=U64,
    snapshot_cadence=U32,
    snapshot_interval_tokens=U32,
    placement=U32,
    flags=U32,
    name=TEXT,
)
STRATEGY_SUMMARY = Struct(strategy_id=TEXT, slot=U32, impl_version=TEXT, claimed_exactness=U8)
LIMITS = Struct(max_frame=U32, op_window=U32, ring_specs=Vec(RING_SPEC))
TOKEN_REF = Struct(ring_id=U32, index=U32, count=U32, generation=U64)
RING_REF = Struct(ring_id=U32, index=U32, generation=U64)
TOKEN_RANGE = Struct(start=U64, end=U64)

SAMPLING = Struct(
    temperature=F32,
    top_p=F32,
    min_p=F32,
    top_k=U32,
    freq_penalty=F32,
    presence_penalty=F32,
    repeat_penalty=F32,
    flags=U32,
)
LANE_ADMIT = Struct(
    lane_tag=U64,
    prompt=TOKEN_REF,
    seed_handle=U64,
    sampling=U32,
    params=SAMPLING,
    rng_counter_base=U64,
    grammar_handle=U32,
    logit_bias_handle=U32,
    want_logprobs=BOOL,
    top_logprobs=U8,
    strategy_slot=U32,
    determinism_class=U8,
    minimum_exactness=U8,
    allow_approximate=BOOL,
    required_cert_id=U32,
    host_sampler_identity=HASH,
    grammar_replay=U32,
    decode_replay=U32,
)
LANE_COMMIT = Struct(lane_tag=U64, token_id=U32, logits_nonce=U64)
LANE_PREFILL = Struct(lane_tag=U64, token_offset=U32, token_count=U32)
LANE_DECODE = Struct(lane_tag=U64, max_new_tokens=U16, overshoot=U16)
LANE_RETIRE = Struct(lane_tag=U64, publish_to_cache=BOOL)
SHED = Struct(victim_lanes=Vec(U64), evictable_cache_classes=U64, protected_quota_bytes=U64, max_evict_bytes=U64)
PLAN = Struct(
    plan_seq=U64,
    flags=U32,
    prefill_token_budget=U32,
    max_decode_lanes=U32,
    admits=Vec(LANE_ADMIT),
    commits=Vec(LANE_COMMIT),
    prefills=Vec(LANE_PREFILL),
    decodes=Vec(LANE_DECODE),
    retires=Vec(LANE_RETIRE),
    shed_policy=SHED,
)

ADMIT_RESULT = Struct(lane_tag=U64, status=U32, reject_code=U32, cert_id=U32, granted_class=U8)
LANE_EMIT = Struct(
    lane_tag=U64,
    token_ref=TOKEN_REF,
    n_tokens=U32,
    finish=U32,
    logits_row=RING_REF,
    spec=Tuple(U32, U32, U32),
)
LANE_FAULT = Struct(lane_tag=U64, code=U32, detail=U64)
SHED_ENTRY = Struct(lane_tag=U64, kind=U32, reason=U32, bytes=U64, tokens=U64)
SHED_REPORT = Struct(
    prefill_chunks_dropped=U32, evictions_performed=U32, bytes_evicted=U64, entries=Vec(SHED_ENTRY)
)
OP_COMPLETE = Struct(op=U64, state=U8, error=U32, bytes_moved=U64)
TIMINGS = Struct(wall_ns=U64, prefill_ns=U64, decode_ns=U64, graph_hits=U32, graph_misses=U32)
MEM = Struct(
    allocated_bytes=U64,
    host_retained_bytes=U64,
    pool_blocks_total=U64,
    pool_blocks_used=U64,
    pool_bytes_evictable=U64,
    tentative_bytes=U64,
)
LOGPROB = Struct(lane_tag=U64, logprob_bits=U32, top_ids=Vec(U32), top_logprob_bits=Vec(U32))
TICK_EVENTS = Struct(
    plan_seq=U64,
    tick_status=U32,
    admit_results=Vec(ADMIT_RESULT),
    emits=Vec(LANE_EMIT),
    faults=Vec(LANE_FAULT),
    shed=SHED_REPORT,
    op_completions=Vec(OP_COMPLETE),
    timings=TIMINGS,
    mem=MEM,
    logprobs=Vec(LOGPROB),
)

CANDIDATE = Struct(prefix_len=U64, provenance_digest=HASH, taint_bits=U32, resident_tier=U8)
SPACE_MATCH = Struct(space_id=U32, candidates=Vec(CANDIDATE))
STATE_OP = Enum(
    ("Snapshot", Struct(sequence=U64, space_id=U32, boundary_pos=U64, buf_id=U64, sizing_gen=U64)),
    ("Restore", Struct(sequence=U64, space_id=U32, buf_id=U64)),
    (
        "Demote",
        Struct(sequence=U64, space_id=U32, range=TOKEN_RANGE, encoding=U8, buf_id=U64, sizing_gen=U64),
    ),
    ("Promote", Struct(sequence=U64, space_id=U32, range=TOKEN_RANGE, buf_id=U64)),
)
ARTIFACT = Struct(role=U32, content_hash=HASH, byte_size=U64, load_path=TEXT)
TAP = Struct(layer=U32, tensor=U32, dtype=U32, layout=U32)
CAP_REQ = Struct(kind_id=U32, params=BYTES)
REGISTRATION = Struct(
    strategy_id=TEXT,
    impl_version=TEXT,
    impl_hash=HASH,
    config_hash=HASH,
    artifacts=Vec(ARTIFACT),
    taps=Vec(TAP),
    capabilities=Vec(CAP_REQ),
    target_archs=Vec(TEXT),
    kernel_caps_required=U32,
    est_state_bytes=U64,
    claimed_exactness=U8,
    rng_contract_version=U32,
)
CERT = Struct(
    cert_id=U32,
    exactness=U8,
    sampling_modes=U8,
    param_domain=U32,
    grammar_allowed=BOOL,
    logit_bias_allowed=BOOL,
    verification_shape_class=U32,
    admissible_host_identities=Vec(HASH),
)
GRANT = Struct(strategy_slot=U32, certificates=Vec(CERT), state_spaces=Vec(SPACE_DESC), reserved_bytes=U64)
MEDIA_INFO = Struct(n_tokens=U32, image_token_id=U32, boi_token_id=U32, eoi_token_id=U32, preprocess_fp=U64)
TRANSCRIPT_SEGMENT = Struct(
    start_ms=I32,
    end_ms=I32,
    text=TEXT,
    avg_logprob_bits=U32,
    no_speech_prob_bits=U32,
    compression_ratio_bits=U32,
    temperature_bits=U32,
)
CACHE_KEY = Struct(compat_key=HASH, provenance_digest=HASH)

STATUS = Struct(status=I32)
HANDLE = Struct(handle=U32)

SYNC_REQ = Enum(
    ("Fork", Struct(parent_sequence=U64, flags=U32)),
    ("Trim", Struct(sequence=U64, space_id=U32, new_len=U64)),
    ("ExportSize", Struct(sequence=U64, space_id=U32, range=TOKEN_RANGE, encoding=U8)),
    ("CacheEvict", Struct(bytes_target=U64, policy=SHED)),
    ("LaneSequence", Struct(lane_tag=U64)),
    ("CreateSequence", NOTHING),
    ("FreeSequence", Struct(sequence=U64)),
    ("PublishSequence", Struct(sequence=U64, span=TOKEN_REF)),
    ("AdoptSequence", Struct(sequence=U64, span=TOKEN_REF)),
    ("MediaProbe", Struct(image_path=TEXT)),
    ("MediaEncode", Struct(image_path=TEXT)),
    ("MediaRelease", Struct(media_handle=U64)),
    ("MediaBind", Struct(lane_tag=U64, media_handle=U64, token_offset=U32)),
    ("CreateGrammar", Struct(json_schema=TEXT)),
    ("CreateGrammarStructural", Struct(tag_json=TEXT)),
    ("FreeGrammar", Struct(grammar_handle=U32)),
    ("CreateLogitBias", Struct(tokens=Vec(I32), values=Vec(U32))),
    ("FreeLogitBias", HANDLE),
    ("ForwardStage", Struct(tokens=Vec(U32), start_layer=U32, end_layer=U32, hidden_in=Option(BYTES))),
    ("Embed", Struct(tokens=Vec(U32))),
    (
        "Transcribe",
        Struct(
            audio_path=TEXT,
            language=Option(TEXT),
            translate=BOOL,
            timestamps=BOOL,
            prompt=Option(TEXT),
            stream=BOOL,
        ),
    ),
    ("LoraLoad", Struct(adapter_path=TEXT)),
    ("LoraUnload", NOTHING),
    ("LoraId", NOTHING),
    ("Capabilities", NOTHING),
    ("SnapshotBoundary", Struct(sequence=U64, space_id=U32, cap=U64)),
    ("CacheEvictEntries", Struct(keys=Vec(CACHE_KEY))),
    ("Unpublish", Struct(span=TOKEN_REF)),
)
SYNC_OK = Enum(
    ("Fork", Struct(child_sequence=U64)),
    ("Trim", NOTHING),
    ("ExportSize", Struct(required_bytes=U64, sizing_gen=U64)),
    ("CacheEvict", Struct(bytes_freed=U64)),
    ("LaneSequence", Struct(sequence=U64)),
    ("CreateSequence", Struct(sequence=U64)),
    ("FreeSequence", NOTHING),
    ("PublishSequence", NOTHING),
    ("AdoptSequence", Struct(seed_handle=U64)),
    ("MediaProbe", Struct(info=MEDIA_INFO)),
    ("MediaEncode", Struct(media_handle=U64, info=MEDIA_INFO)),
    ("MediaRelease", NOTHING),
    ("MediaBind", NOTHING),
    ("CreateGrammar", Struct(grammar_handle=U32)),
    ("FreeGrammar", NOTHING),
    ("CreateLogitBias", HANDLE),
    ("FreeLogitBias", NOTHING),
    ("ForwardStage", Struct(hidden=Option(BYTES), token=Option(U32))),
    (
        "Transcribe",
        Struct(text=TEXT, language=TEXT, duration_ms=I32, segments=Vec(TRANSCRIPT_SEGMENT)),
    ),
    ("Embed", Struct(embedding=BYTES)),
    ("LoraId", Struct(id=Option(TEXT))),
    ("Capabilities", Struct(json=TEXT)),
    ("SnapshotBoundary", Struct(boundary=U64)),
    ("CacheEvictEntries", NOTHING),
    ("Unpublish", NOTHING),
)
# The variant of an answer where it is not the one of the request's name.
SYNC_ANSWER = {"CreateGrammarStructural": "CreateGrammar", "LoraLoad": "LoraId", "LoraUnload": "LoraId"}


SYNC_RES_OK = Struct(answer=SYNC_OK)


class Message:
    """One row of the table in section 3. `reply` is the type of the answer, None where none is sent."""

    def __init__(self, number, name, by_host, payload, reply=None):
        self.number = number
        self.name = name
        self.by_host = by_host
        self.payload = payload
        self.reply = reply

    def __repr__(self):
        return self.name


HELLO = Message(0x0001, "HELLO", True, Struct(versions=Tuple(U16, U16), role=ROLE, auth=BYTES), 0x0002)
HELLO_ACK = Message(
    0x0002,
    "HELLO_ACK",
    False,
    Struct(
        chosen=U16,
        engine_bundle_hash=HASH,
        capabilities=TEXT,
        spaces=Vec(SPACE_DESC),
        strategies=Vec(STRATEGY_SUMMARY),
        limits=LIMITS,
        kv_bits=U32,
    ),
)
RING_ATTACH = Message(0x0003, "RING_ATTACH", True, Struct(ring_id=U32, layout=RING_SPEC), 0x0004)
RING_ACK = Message(0x0004, "RING_ACK", False, Struct(ring_id=U32, generation_base=U64))
TICK_SUBMIT = Message(0x0005, "TICK_SUBMIT", True, Struct(plan=PLAN), 0x0006)
TICK_RESULT = Message(0x0006, "TICK_RESULT", False, Enum(("Events", TICK_EVENTS), ("Rejected", STATUS)))
MATCH_REQ = Message(
    0x0007, "MATCH_REQ", True, Struct(space_id=U32, span=TOKEN_REF, media_deps=Vec(HASH)), 0x0008
)
MATCH_RES = Message(0x0008, "MATCH_RES", False, Struct(spaces=Vec(SPACE_MATCH)))
SEED_ACQUIRE = Message(
    0x0009, "SEED_ACQUIRE", True, Struct(span=TOKEN_REF, prefix_len=U64, determinism_class=U8), 0x000A
)
SEED_GRANT = Message(
    0x000A,
    "SEED_GRANT",
    False,
    Enum(("Granted", Struct(seed_handle=U64, ttl_ms=U32, ttl_ticks=Option(U64))), ("Refused", STATUS)),
)
SEED_RELEASE = Message(0x000B, "SEED_RELEASE", True, Struct(seed_handle=U64))
STATE_OP_SUBMIT = Message(0x000C, "STATE_OP_SUBMIT", True, Struct(op=STATE_OP), 0x000D)
STATE_OP_ACCEPTED = Message(
    0x000D, "STATE_OP_ACCEPTED", False, Enum(("Accepted", Struct(op_handle=U64)), ("Rejected", STATUS))
)
STATE_OP_DONE = Message(
    0x000E, "STATE_OP_DONE", False, Struct(op_handle=U64, state=U8, error=U32, bytes_moved=U64)
)
OP_CANCEL = Message(0x000F, "OP_CANCEL", True, Struct(op_handle=U64))
STRATEGY_REGISTER = Message(0x0010, "STRATEGY_REGISTER", True, REGISTRATION, 0x0011)
STRATEGY_GRANT = Message(0x0011, "STRATEGY_GRANT", False, Enum(("Granted", GRANT), ("Refused", STATUS)))
STATE_SYNC_REQ = Message(0x0012, "STATE_SYNC_REQ", True, SYNC_REQ, 0x0013)
STATE_SYNC_RES = Message(0x0013, "STATE_SYNC_RES", False, Enum(("Ok", SYNC_RES_OK), ("Err", STATUS)))
BUF_ALLOC = Message(0x0014, "BUF_ALLOC", True, Struct(buf_id=U64, len=U64))
BUF_ATTACH = Message(0x0015, "BUF_ATTACH", True, Struct(buf_id=U64, len=U64, generation=U64))
BUF_RELEASE = Message(0x0016, "BUF_RELEASE", True, Struct(buf_id=U64))
PING = Message(0x0017, "PING", True, Struct(queue_depth=U32, mem=MEM), 0x0018)
PONG = Message(0x0018, "PONG", False, Struct(queue_depth=U32, mem=MEM))
DRAIN_REQ = Message(0x0019, "DRAIN_REQ", True, NOTHING, 0x001A)
DRAINED = Message(0x001A, "DRAINED", False, NOTHING)
TRANSCRIBE_SEGMENT = Message(0x001B, "TRANSCRIBE_SEGMENT", False, Struct(start_ms=I32, end_ms=I32, text=TEXT))
TRANSCRIBE_CANCEL = Message(0x001C, "TRANSCRIBE_CANCEL", True, NOTHING)
TICK_EMIT = Message(0x001D, "TICK_EMIT", False, Struct(lane_tag=U64, tokens=Vec(U32)))
CONTROL_ATTACH = Message(0x001E, "CONTROL_ATTACH", True, Struct(bytes=U32), 0x001F)
CONTROL_ACK = Message(0x001F, "CONTROL_ACK", False, Struct(bytes=U32))
TELEMETRY = Message(0x8001, "TELEMETRY", True, Struct(spans=BYTES))

ALL = [value for value in list(globals().values()) if isinstance(value, Message)]
BY_NUMBER = {message.number: message for message in ALL}


class Status:
    """The statuses of abi.md section 4 that a worker can answer."""

    BOUNDS = -102
    BAD_REF_GENERATION = -103
    UNKNOWN_LANE = -104
    DUPLICATE_LANE = -105
    ILLEGAL_COMBINATION = -106
    BUDGET = -107
    STALE_SEED = -108
    HOST_RULES = -110
    TRANSFER_LOCKED = -111
    STALE_NONCE = -112
    NEEDS_REPLAN = -113
    BAD_STRUCT = -114
    BUSY = -120
    BUFFER_TOO_SMALL = -121
    STALE_SIZING = -122
    OUT_OF_BOUNDARY = -123
    ENVELOPE_MISMATCH = -124
    CHECKSUM = -125
    IDENTITY_MISMATCH = -126
    UNSUPPORTED = -127
    REGISTRATION_REFUSED = -128
    UNKNOWN_HANDLE = -129
    SEED_UNSERVABLE = -130
    CERT_UNMATCHED = -140
