"""Frames, attachments and what each bad input gets (linkw.md sections 1, 2, 6, 7 and 13)."""

import contextlib
import os
import socket
import struct

import messages
from check_process import one_line
from check_state import grown, size
from expect import check, equal
from link import HEADER, MOST_LEN, frame
from memory import CONTROL_BYTES, CONTROL_TAG, Control, Ring, Shared
from messages import PLAN, SYNC_REQ, TOKEN_REF, Status
from postcard import U64_MAX, encode
from schedule import Request, alone
from session import EVERYTHING, HOST, LOGITS, OP_FAILED, SPACE, TOKENS_IN, TOKENS_OUT, status_of

SPARE = b"\xff\x00\x80"


def plan_payload():
    return encode(PLAN, PLAN.new(plan_seq=1, max_decode_lanes=1, shed_policy=EVERYTHING))


def sync_payload(variant, **fields):
    return encode(SYNC_REQ, SYNC_REQ.new(variant, **fields))


@check("W-5 W-7 W-8 WS-2")
def frames_arrive_in_any_pieces_and_are_answered_in_order(host):
    with host.session() as session:
        ping = encode(messages.PING.payload, messages.PING.payload.new())
        pieces = []
        for _ in range(3):
            seq = session.next_seq()
            session.asked.append((seq, messages.PING))
            pieces.append(frame(messages.PING.number, ping, seq))
        for byte in pieces[0]:
            session.raw(bytes([byte]))
        session.raw(pieces[1] + pieces[2][:7])
        session.raw(pieces[2][7:])
        for seq in [seq for seq, _ in session.asked]:
            session.answer(seq)

        # Many requests of different kinds before any answer is read.
        tokens = session.stage(host.prompt("order", 20))
        wanted = []
        for round_ in range(20):
            wanted.append(session.send(messages.PING))
            wanted.append(session.send(messages.MATCH_REQ, space_id=1, span=tokens))
            wanted.append(session.send_bytes(messages.STATE_SYNC_REQ, sync_payload("LaneSequence", lane_tag=round_)))
            wanted.append(session.send(messages.TICK_SUBMIT, plan=session.plan(plan_seq=round_ + 1)))
            wanted.append(session.send(messages.DRAIN_REQ))
        for seq in wanted:
            session.answer(seq)

        # The worker looks at neither the counter nor the correlation of what it gets.
        for seq, correlation in ((0, 0), (7, 9), (U64_MAX, U64_MAX)):
            session.asked.append((seq, messages.PING))
            session.raw(frame(messages.PING.number, ping, seq, correlation))
            if seq:
                session.answer(seq)
            else:
                session.asked.popleft()
                message, _, found = session.receive()
                equal((message, found), (messages.PONG, 0), "the answer to request 0")


@check("W-1 W-3 W-11 W-62 WS-20")
def what_need_not_be_understood_is_ignored(host):
    with host.session() as session:
        ping = encode(messages.PING.payload, messages.PING.payload.new())
        session.answer(session.send_bytes(messages.PING, ping + SPARE))
        most = MOST_LEN - (HEADER.size - 4)
        session.answer(session.send_bytes(messages.PING, ping + bytes(most - len(ping))))
        session.answer(session.send_bytes(messages.DRAIN_REQ, SPARE))
        session.answer(session.send_bytes(messages.STATE_SYNC_REQ, sync_payload("Capabilities") + SPARE))
        equal(session.answer(session.send_bytes(messages.TICK_SUBMIT, plan_payload() + SPARE))[0], "Events", "a plan")
        for kind in (0x8000, 0x8002, 0x8FFF, 0xFFFF, messages.TELEMETRY.number):
            session.raw(frame(kind, SPARE * 5, session.next_seq()))
        session.send_bytes(messages.TRANSCRIBE_CANCEL, SPARE)
        session.send(messages.SEED_RELEASE, seed_handle=77)
        session.send(messages.OP_CANCEL, op_handle=77)
        session.send(messages.BUF_RELEASE, buf_id=77)
        session.send(messages.BUF_ALLOC, buf_id=77, len=U64_MAX)
        session.pong()
        equal(session.process.said(), "", "stderr")


def hello():
    return encode(messages.HELLO.payload, messages.HELLO.payload.new(versions=(8, 8)))


def unlike(spec, **changed):
    return messages.RING_SPEC.new(**{**spec.__dict__, **changed})


def first_frames(host):
    """What must not come before HELLO (W-20): every known type but HELLO, with a payload that is whole."""
    for message in messages.ALL:
        if message is messages.HELLO:
            continue
        payload = encode(message.payload, message.payload.zero())
        yield f"{message} before HELLO", lambda session, m=message, p=payload: session.send_bytes(m, p)


def header_faults():
    ping = encode(messages.PING.payload, messages.PING.payload.new())

    def raw(data):
        return lambda session: session.raw(data)

    yield "length 20", raw(struct.pack("<I", 20))
    yield "length 0", raw(struct.pack("<I", 0))
    yield "length 2^24 + 1", raw(struct.pack("<I", MOST_LEN + 1))
    yield "length 2^32 - 1", raw(b"\xff\xff\xff\xff")
    yield "PING with class 1", raw(frame(messages.PING.number, ping, 9, klass=1))
    yield "TELEMETRY with class 0", raw(frame(messages.TELEMETRY.number, b"\x00", 9, klass=0))
    yield "unknown droppable type with class 0", raw(frame(0x8FFF, b"", 9, klass=0))
    yield "class 7", raw(frame(messages.PING.number, ping, 9, klass=7))
    yield "droppable type with class 2", raw(frame(0x8FFF, b"", 9, klass=2))
    yield "type 0x0FFF", raw(frame(0x0FFF, b"", 9))
    yield "type 0", raw(frame(0, b"", 9))
    yield "type 0x7FFF", raw(frame(0x7FFF, b"", 9))
    for version in (0, 7, 9):
        yield f"version {version}", raw(frame(messages.PING.number, ping, 9, version=version))


def wrong_way(_):
    """Types that only a worker sends (W-15)."""
    for message in messages.ALL:
        if not message.by_host:
            payload = encode(message.payload, message.payload.zero())
            yield f"{message} from the host", lambda session, m=message, p=payload: session.send_bytes(m, p)


def payload_faults():
    """W-10, W-12 and W-14."""

    def payload(message, data):
        return lambda session: session.send_bytes(message, data)

    plan = plan_payload()
    yield "PING without its last byte", payload(messages.PING, bytes(6))
    yield "PING with a varint of six bytes for a u32", payload(messages.PING, b"\x80\x80\x80\x80\x80\x00" + bytes(6))
    yield "PING with 2^32 for a u32", payload(messages.PING, b"\x80\x80\x80\x80\x10" + bytes(6))
    yield "BUF_RELEASE with 2^64", payload(messages.BUF_RELEASE, b"\x80" * 9 + b"\x02")
    yield "BUF_RELEASE of eleven bytes", payload(messages.BUF_RELEASE, b"\x80" * 10 + b"\x00")
    yield "plan cut short", payload(messages.TICK_SUBMIT, plan[:-1])
    yield "plan of 2^32 admits", payload(messages.TICK_SUBMIT, b"\x01\x00\x00\x01" + b"\x80\x80\x80\x80\x10" + plan)
    yield "state operation 4", payload(messages.STATE_OP_SUBMIT, b"\x04" + bytes(40))
    yield "state sync 28", payload(messages.STATE_SYNC_REQ, b"\x1c" + bytes(40))
    yield "path that is not UTF-8", payload(messages.STATE_SYNC_REQ, b"\x09\x02\xc3\x28")
    yield "option tag 2", payload(messages.STATE_SYNC_REQ, b"\x12\x00\x00\x00\x02")
    yield "bool 2", payload(messages.STATE_SYNC_REQ, b"\x14\x00\x00\x02\x00\x00\x00")
    yield "text longer than the payload", payload(messages.STATE_SYNC_REQ, b"\x09\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01")
    yield "HELLO cut short", payload(messages.HELLO, b"\x08\x08\x00")
    yield "HELLO with role 3", payload(messages.HELLO, b"\x08\x08\x03\x00")


def before_rings(_):
    def tick(session):
        session.send_bytes(messages.TICK_SUBMIT, plan_payload())

    def match(session):
        session.send(messages.MATCH_REQ, space_id=1, span=TOKEN_REF.of(1, 0, 1, 1))

    def seed(session):
        session.send(messages.SEED_ACQUIRE, span=TOKEN_REF.of(1, 0, 1, 1), prefix_len=1)

    def tick_with_two_rings(session):
        session.attach(session.spec(1))
        session.attach(session.spec(3))
        tick(session)

    yield "tick before the rings", tick
    yield "match before the rings", match
    yield "seed before the rings", seed
    yield "tick before the third ring", tick_with_two_rings


def ring_faults():
    """W-33, W-34 and W-36: each spoils one thing of an attachment that is right otherwise."""

    def attach(session, layout=None, ring_id=None, tag=None, size_off=0, header=None, descriptors=1, data=None):
        spec = session.spec(1)
        layout = spec if layout is None else unlike(spec, **layout)
        ring = Ring(spec)
        session.buffers.append(ring)
        os.ftruncate(ring.descriptor, len(ring) + size_off)
        if header is not None:
            offset, value = header
            os.pwrite(ring.descriptor, value, offset)
        session.send(messages.RING_ATTACH, ring_id=spec.ring_id if ring_id is None else ring_id, layout=layout)
        held = [ring.descriptor] * descriptors
        session.send_descriptors(1 if tag is None else tag, *held, data=data)

    def case(name, **how):
        return name, lambda session: attach(session, **how)

    yield case("ring id 4", ring_id=4, layout={"ring_id": 4}, tag=4)
    yield case("layout of another id", layout={"ring_id": 2})
    yield case("layout of another kind", layout={"kind": messages.RING_KIND.new("logits")})
    yield case("layout with one slot more", layout={"slots": 65})
    yield case("layout with longer slots", layout={"slot_bytes": 2072})
    yield case("tag 2 for ring 1", tag=2)
    yield case("object a byte short", size_off=-1)
    yield case("wrong magic", header=(0, b"\x00"))
    yield case("another id in the header", header=(8, b"\x02"))
    yield case("other slot bytes in the header", header=(12, b"\x18"))
    yield case("other slots in the header", header=(16, b"\x41"))
    yield case("no descriptor beside the tag", descriptors=0)
    yield case("two descriptors", descriptors=2)
    yield case("many descriptors", descriptors=60)
    yield case("seven bytes of data", data=bytes([1, 0, 0, 0, 0, 0, 0]))

    def twice(session):
        session.attach(session.spec(1))
        attach(session)

    def closed(session):
        session.fds.close()
        session.send(messages.RING_ATTACH, ring_id=1, layout=session.spec(1))

    yield "ring 1 a second time", twice
    yield "ring after the descriptor socket closed", closed


def segment_faults():
    """W-37 and W-40."""

    def control(session, size=CONTROL_BYTES, tag=CONTROL_TAG, announced=CONTROL_BYTES, magic=True):
        segment = Control() if magic else Shared("control", CONTROL_BYTES)
        session.buffers.append(segment)
        os.ftruncate(segment.descriptor, size)
        session.send(messages.CONTROL_ATTACH, bytes=announced)
        session.send_descriptors(tag, segment.descriptor)

    def buffer(session, size=64, length=64, tag=5):
        shared = Shared("buffer", size)
        session.buffers.append(shared)
        session.send(messages.BUF_ATTACH, buf_id=5, len=length, generation=1)
        session.send_descriptors(tag, shared.descriptor)

    yield "control of 16 bytes", lambda session: control(session, size=16, announced=16)
    yield "control shorter than announced", lambda session: control(session, announced=65)
    yield "control of zero bytes", lambda session: control(session, magic=False)
    yield "control with tag 1", lambda session: control(session, tag=1)
    yield "buffer with another tag", lambda session: buffer(session, tag=6)
    yield "buffer shorter than announced", lambda session: buffer(session, length=65)
    yield "buffer of 2^64 - 1 bytes", lambda session: buffer(session, length=U64_MAX)


def ends_the_link(host, ready, cases):
    """Each case in a worker of its own: one line on stderr, exit code 1, not one frame more (W-71). The workers load
    their models beside each other."""
    cases = list(cases)
    for start in range(0, len(cases), 4):
        some = cases[start : start + 4]
        sessions = [host.session(ready="started") for _ in some]
        try:
            for (name, act), session in zip(some, sessions):
                if ready != "started":
                    session.greet()
                # A worker that ended at the first half of a case takes no second half.
                with contextlib.suppress(BrokenPipeError):
                    act(session)
            for (name, _), session in zip(some, sessions):
                equal(session.ended(), 1, f"exit code after {name}")
                one_line(session.process.said(), name)
        finally:
            for session in sessions:
                session.free()


@check("W-20 WS-6")
def nothing_comes_before_hello(host):
    ends_the_link(host, "started", first_frames(host))


@check("W-3")
def unknown_droppable_frame_may_come_before_hello(host):
    with host.session(ready="started") as session:
        session.raw(frame(0x8FFF, SPARE, session.next_seq()))
        equal(session.greet().chosen, 8, "chosen")


@check("W-1 W-2 W-3 W-4 W-22 WS-3 WS-4")
def wrong_headers_end_the_link(host):
    ends_the_link(host, "greeted", header_faults())


@check("W-15 WS-6")
def types_of_the_worker_end_the_link(host):
    ends_the_link(host, "greeted", wrong_way(host))


@check("W-10 W-12 W-14")
def payloads_that_do_not_decode_end_the_link(host):
    ends_the_link(host, "greeted", payload_faults())


@check("W-44 W-50")
def what_needs_rings_ends_the_link_before_them(host):
    ends_the_link(host, "greeted", before_rings(host))


@check("W-33 W-34 W-36 WS-7")
def wrong_rings_end_the_link(host):
    ends_the_link(host, "greeted", ring_faults())


@check("W-37 W-40 WS-9")
def wrong_segments_and_buffers_end_the_link(host):
    ends_the_link(host, "greeted", segment_faults())


@check("W-31 W-34 W-37 W-40 W-56; what the text allows")
def unusual_attachments_are_taken(host):
    with host.session(ready="greeted", sealed=False) as session:
        for length, announced in ((CONTROL_BYTES, 16), (CONTROL_BYTES, 0), (128, 128), (4096, CONTROL_BYTES)):
            control = Control()
            session.buffers.append(control)
            os.ftruncate(control.descriptor, length)
            seq = session.send(messages.CONTROL_ATTACH, bytes=announced)
            session.send_descriptors(CONTROL_TAG, control.descriptor)
            equal(session.answer(seq).bytes, announced, "CONTROL_ACK")
        for spec in session.ack.limits.ring_specs:
            ring = session.rings[spec.ring_id] = Ring(spec)
            os.ftruncate(ring.descriptor, len(ring) + 4096)
            seq = session.send(messages.RING_ATTACH, ring_id=spec.ring_id, layout=spec)
            session.send_descriptors(spec.ring_id, ring.descriptor)
            session.answer(seq)
        # A buffer of no bytes can be named, and holds nothing.
        _, sequence = grown(session, 1, host.prompt("unusual", 20), 1)
        sizing = size(session, sequence, 16)
        empty = session.buffer(0)
        equal(session.op_refused("Restore", **restored_into(session, empty)), Status.ENVELOPE_MISMATCH, "restore")
        equal(
            session.op_refused("Snapshot", **exported_to(empty, sequence, sizing)),
            Status.BUFFER_TOO_SMALL,
            "snapshot into nothing",
        )
        # The same number again is another buffer (W-40).
        session.buffer(sizing.required_bytes, buf_id=empty.buf_id)
        session.done(session.op("Snapshot", **exported_to(empty, sequence, sizing)))


def restored_into(session, buffer):
    sequence = session.sync("CreateSequence").sequence
    return dict(sequence=sequence, space_id=SPACE, buf_id=buffer.buf_id)


def exported_to(buffer, sequence, sizing, end=16):
    return dict(
        sequence=sequence, space_id=SPACE, boundary_pos=end, buf_id=buffer.buf_id, sizing_gen=sizing.sizing_gen
    )


@check("W-58 W-74 W-56; objects that their owner cuts")
def buffers_cut_short_refuse(host):
    with host.session(sealed=False) as session:
        _, sequence = grown(session, 1, host.prompt("cut short", 20), 1)
        sizing = size(session, sequence, 16)
        buffer = session.buffer(sizing.required_bytes)
        session.pong()
        os.ftruncate(buffer.descriptor, 100)
        done = session.done(session.op("Snapshot", **exported_to(buffer, sequence, sizing)))
        equal((done.state, status_of(done.error)), (OP_FAILED, Status.BUFFER_TOO_SMALL), "export to what was cut")
        equal(session.op_refused("Restore", **restored_into(session, buffer)), Status.ENVELOPE_MISMATCH, "import")
        equal(len(session.tick(decodes=[(1, 2)]).tokens[1]), 2, "tokens after it")


@check("W-50 W-61 W-71 W-74; objects that their owner cuts")
def rings_cut_short_end_the_link_that_touches_them(host):
    prompt = host.prompt("cut ring", 4)
    span = TOKEN_REF.of(TOKENS_IN, 0, 4, 1)

    def tick(session, **plan):
        session.send(messages.TICK_SUBMIT, plan=session.plan(**plan))

    def match(session):
        equal(session.matches(span), [], "match of a span that cannot be read")

    def publish(session):
        sequence = session.sync("CreateSequence").sequence
        refused = session.sync_refused("PublishSequence", sequence=sequence, span=span)
        equal(refused, Status.BAD_REF_GENERATION, "publication of a span that cannot be read")

    for ring_id, act in (
        (TOKENS_IN, lambda session: tick(session, admits=[session.admit(3, span)])),
        (TOKENS_OUT, lambda session: tick(session, decodes=[(1, 1)])),
        (LOGITS, lambda session: tick(session, decodes=[(2, 1)])),
        (CONTROL_TAG, lambda session: tick(session, decodes=[(1, 2)])),
        (TOKENS_IN, match),
        (TOKENS_IN, publish),
    ):
        with host.session(sealed=False) as session:
            admits = [session.admit(1, prompt), session.admit(2, prompt, mode=HOST)]
            session.tick(admits, prefills=[(1, 0, 4), (2, 0, 4)])
            shared = session.control if ring_id == CONTROL_TAG else session.rings[ring_id]
            os.ftruncate(shared.descriptor, 0)
            act(session)
            equal(session.ended(), 1, f"exit code after ring {ring_id} was cut")
            one_line(session.process.said(), f"ring {ring_id}")


@check("W-21 W-24 W-70")
def second_hello_can_end_the_link_and_half_a_stream_is_closed(host):
    with host.session() as session:
        session.send(messages.HELLO, versions=(9, 12))
        equal(session.ended(), 1, "exit code after a second HELLO without a common version")
    with host.session() as session:
        session.frames.shutdown(socket.SHUT_WR)
        equal(session.process.wait(5), 0, "exit code after the host stopped sending")


@check("W-61")
def what_needs_no_ring_is_served_before_them(host):
    with host.session(ready="greeted") as session:
        nowhere = TOKEN_REF.of(1, 0, 1, 1)
        sequence = session.sync("CreateSequence").sequence
        for variant in ("PublishSequence", "AdoptSequence"):
            equal(
                session.sync_refused(variant, sequence=sequence, span=nowhere),
                Status.BAD_REF_GENERATION,
                f"{variant} before the rings",
            )
        equal(session.sync_refused("Unpublish", span=nowhere), Status.BAD_REF_GENERATION, "Unpublish")
        session.sync("FreeSequence", sequence=sequence)
        session.request(messages.DRAIN_REQ)
        session.pong()


@check("W-31 W-37 WS-8")
def rings_attach_in_any_order_and_control_again(host):
    request = Request(1, host.prompt("rings", 33), 5)
    with host.session() as session:
        tokens = alone(session, request)
    with host.session(ready="greeted", sealed=False) as session:
        session.attach_control()
        for ring_id in (3, 1, 2):
            session.attach(session.spec(ring_id))
            session.attach_control()
        equal(alone(session, request), tokens, "tokens")
        session.control.set_yield(True)
        session.attach_control()
        equal(alone(session, request), tokens, "tokens after the yield word's segment was replaced")
