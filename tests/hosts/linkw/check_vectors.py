"""The byte vectors of section 19: this host's own codec against the text (WS-1), before it is held against a worker."""

import struct

import messages
from expect import check, equal
from link import frame
from messages import (
    ADMIT_RESULT,
    CANDIDATE,
    CERT,
    GRANT,
    LANE_ADMIT,
    LANE_COMMIT,
    LANE_DECODE,
    LANE_EMIT,
    LANE_FAULT,
    LANE_PREFILL,
    LANE_RETIRE,
    LIMITS,
    LOGPROB,
    MEM,
    OP_COMPLETE,
    PLAN,
    RING_REF,
    RING_SPEC,
    SAMPLING,
    SHED,
    SHED_ENTRY,
    SHED_REPORT,
    SPACE_DESC,
    SPACE_MATCH,
    STATE_OP,
    STATUS,
    SYNC_OK,
    SYNC_REQ,
    TICK_EVENTS,
    TIMINGS,
    TOKEN_RANGE,
    TOKEN_REF,
)
from postcard import U32_MAX, U64_MAX, decode, encode
from sampling import U_VECTORS, uniform
from envelope import content_digest, fnv

TOKENS = messages.RING_KIND.new("tokens")
LOGITS = messages.RING_KIND.new("logits")
ROW = "0000000000000000000000000000000000000000000000000000000000000000"


def bits(value):
    return struct.unpack("<I", struct.pack("<f", value))[0]


def plan():
    sampling = SAMPLING.of(0.5, 1.0, 0.0, 40, 0.0, 0.0, 1.0, 1)
    admit = LANE_ADMIT.of(
        7, TOKEN_REF.of(1, 2, 4, 3), 0, 1, sampling, 1000, 2, 3, True, 5, 0, 0, 0, False, 0, b"\xaa" * 32, 0, 0
    )
    return PLAN.of(
        1,
        4,
        4096,
        8,
        [admit],
        [LANE_COMMIT.of(9, 300, 5)],
        [LANE_PREFILL.of(7, 0, 4)],
        [LANE_DECODE.of(7, 300, 16)],
        [LANE_RETIRE.of(6, True)],
        SHED.of([], U64_MAX, 0, U64_MAX),
    )


def events():
    return TICK_EVENTS.of(
        1,
        0,
        [ADMIT_RESULT.of(7, 1, 0, 0, 2)],
        [LANE_EMIT.of(7, TOKEN_REF.of(2, 0, 3, 1), 3, 2, RING_REF.of(0, 0, 0), (4, 2, 1))],
        [LANE_FAULT.of(8, 1, 0)],
        SHED_REPORT.of(1, 0, 0, [SHED_ENTRY.of(7, 1, 0, 0, 90)]),
        [OP_COMPLETE.of(1, 2, 0, 200)],
        TIMINGS.of(1000, 600, 400, 0, 0),
        MEM.of(1, 2, 3, 4, 5, 6),
        [LOGPROB.of(7, bits(-0.5), [1, 200], [bits(-0.5), bits(-1.0)])],
    )


def vectors():
    space = SPACE_DESC.of(1, 1, 3, 300, 0, 16, 1, 0, 0, 0, 0, 0, "kv")
    specs = [RING_SPEC.of(1, TOKENS, 2064, 64), RING_SPEC.of(3, LOGITS, 1040, 8)]
    ack = messages.HELLO_ACK.payload.of(
        8, bytes(32), "{}", [space], [], LIMITS.of(1 << 24, 16, specs), 16
    )
    match = SPACE_MATCH.of(1, [CANDIDATE.of(48, b"\x11" * 32, 1, 0)])
    grant = GRANT.of(1, [CERT.of(1, 2, 3, 3, True, False, 1, [])], [], 0)
    ok = lambda variant, **fields: ("Ok", messages.SYNC_RES_OK.of(SYNC_OK.new(variant, **fields)))
    err = lambda status: ("Err", STATUS.of(status))
    refused = lambda variant, status: (variant, STATUS.of(status))
    demote = STATE_OP.new("Demote", sequence=2, space_id=1, range=TOKEN_RANGE.of(0, 32), buf_id=1, sizing_gen=5)
    one = lambda message, *values: (message, message.payload.of(*values))
    return [
        (*one(messages.HELLO, (8, 8), messages.ROLE.new("node_agent"), b""), "08080000"),
        (
            messages.HELLO_ACK,
            ack,
            "08" + ROW + "027b7d01010103ac020010010000000000026b7600"
            "8080800810020100901040030190080810",
        ),
        (*one(messages.RING_ATTACH, 1, specs[0]), "010100901040"),
        (*one(messages.RING_ACK, 3, 1), "0301"),
        (*one(messages.CONTROL_ATTACH, 64), "40"),
        (
            *one(messages.TICK_SUBMIT, plan()),
            "010480200801070102040300010000003f0000803f000000002800000000000000000000803f01e8070203010500"
            "00000000" + "aa" * 32 + "00000109ac0205010700040107ac021001060100ffffffffffffffffff0100ffff"
            "ffffffffffffff01",
        ),
        (messages.TICK_RESULT, refused("Rejected", -106), "01d301"),
        (
            messages.TICK_RESULT,
            ("Events", events()),
            "00010001070100000201070200030103020000000402010108010001000001070100005a01010200c801e807d804"
            "900300000102030405060107808080f80b0201c80102808080f80b808080fc0b",
        ),
        (*one(messages.TICK_EMIT, 7, [5, 300]), "070205ac02"),
        (*one(messages.MATCH_RES, [match]), "01010130" + "11" * 32 + "0100"),
        (
            messages.SEED_GRANT,
            messages.SEED_GRANT.payload.new("Granted", seed_handle=9, ttl_ms=1000, ttl_ticks=64),
            "0009e8070140",
        ),
        (messages.SEED_GRANT, refused("Refused", -130), "018302"),
        (*one(messages.STATE_OP_SUBMIT, demote), "0202010020000105"),
        (messages.STATE_OP_ACCEPTED, messages.STATE_OP_ACCEPTED.payload.new("Accepted", op_handle=1), "0001"),
        (*one(messages.STATE_OP_DONE, 1, 3, U32_MAX - 120, 0), "010387ffffff0f00"),
        (messages.STATE_SYNC_REQ, SYNC_REQ.new("LaneSequence", lane_tag=7), "0407"),
        (
            messages.STATE_SYNC_REQ,
            SYNC_REQ.new("CreateLogitBias", tokens=[-1, 5], values=[bits(100.0), bits(-1.0)]),
            "1002010a028080a09604808080fc0b",
        ),
        (messages.STATE_SYNC_REQ, SYNC_REQ.new("Unpublish", span=TOKEN_REF.of(1, 0, 2, 1)), "1b01000201"),
        (messages.STATE_SYNC_RES, ok("ExportSize", required_bytes=264, sizing_gen=5), "0002880205"),
        (messages.STATE_SYNC_RES, ok("LoraId"), "001400"),
        (messages.STATE_SYNC_RES, ok("ForwardStage", token=7), "0011000107"),
        (messages.STATE_SYNC_RES, err(-129), "018102"),
        (messages.STRATEGY_GRANT, ("Granted", grant), "00010101020303010001000000"),
        (*one(messages.PONG, 2, MEM.of(1, 2, 3, 4, 5, 6)), "02010203040506"),
    ]


@check("WS-1")
def vectors_of_the_text_encode_and_decode(_):
    for message, value, text in vectors():
        equal(encode(message.payload, value).hex(), text, f"{message} encoded")
        equal(decode(message.payload, bytes.fromhex(text)), value, f"{message} decoded")
    hello = frame(messages.HELLO.number, bytes.fromhex("08080000"), 1)
    equal(hello.hex(), "19000000080001000100000000000000000000000000000000" + "08080000", "HELLO frame")
    drained = frame(messages.DRAINED.number, b"", 5, 4)
    equal(drained.hex(), "1500000008001a000500000000000000040000000000000000", "DRAINED frame")


@check("S-82 S-83 T-119")
def vectors_of_hashes_and_draws_hold(_):
    equal(fnv(b"a"), 0xAF63DC4C8601EC8C, "FNV of a")
    equal(fnv(b"foobar"), 0x85944171F73967E8, "FNV of foobar")
    equal(content_digest([1, 2, 3]).hex(), "9503eb81430f1ffdbac346231c6d9d0d" + "00" * 16, "digest of 1 2 3")
    equal(content_digest([]).hex(), "25232284e49cf2cbdadcdd7b1b630d34" + "00" * 16, "digest of nothing")
    for position, u in U_VECTORS.items():
        equal(uniform(position), u, f"u({position})")
