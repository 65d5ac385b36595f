"""A host that drives one worker: handshake, rings, plans, operations.

`Session.tick` audits every result for what holds of all of them, so every check of this program is one of the
tick contract too: the emits' order and slots, the partial emits, the status, the counters (T-140 to T-147, W-44 to W-49).
"""

import array
import json

import messages
from expect import equal, expect
from link import VERSION, Link
from memory import CONTROL_BYTES, CONTROL_TAG, NO_ROW, NO_TOKENS, Buffer, Control, Ring, ring_size
from messages import LANE_ADMIT, LANE_COMMIT, LANE_DECODE, LANE_PREFILL, LANE_RETIRE, PLAN, SAMPLING, SHED, STATE_OP, Status
from postcard import U64_MAX, encode

GREEDY, DRAWN, HOST = 0, 1, 2
DRAIN, PARTIAL_EMITS = 1, 4
FINISH_NONE, FINISH_EOS, FINISH_LENGTH, FINISH_GRAMMAR = 0, 1, 2, 3
TICK_OK, TICK_SHED, TICK_LANE_ERRORS = 0, 1, 2
CHUNK_SHED, EVICTION_SHED = 1, 2
IGNORE_EOS = 1
ADMITTED, REJECTED = 1, 2
OP_DONE, OP_FAILED, OP_CANCELLED = 2, 3, 4
TOKENS_IN, TOKENS_OUT, LOGITS = 1, 2, 3
SPACE = 1
ALL_CLASSES = U64_MAX
EVERYTHING = SHED.new(evictable_cache_classes=ALL_CLASSES, max_evict_bytes=U64_MAX)
IGNORING_END = SAMPLING.new(top_p=1.0, flags=IGNORE_EOS)


def status_of(error):
    """A status from the u32 that carries it."""
    return error - (1 << 32) if error >> 31 else error


class Session(Link):
    """A started worker. `ready` says how far the start goes: "started", "greeted" or "attached"."""

    def __init__(self, host, context=512, batch=8, options=(), ready="attached", sealed=True, narrow=False):
        self.batch = batch
        self.sealed = sealed
        words = ["--model", host.model, "--max-context", str(context), "--max-batch", str(batch)]
        super().__init__([host.worker, *words, *options], narrow)
        self.rings = {}
        self.buffers = []
        self.control = None
        self.next_plan = 1
        self.ops_open = {}
        self.ops_ended = {}
        self.listed_ops = set()
        self.last_mem = None
        self.rows = {}
        try:
            if ready != "started":
                self.greet()
            if ready == "attached":
                for spec in self.ack.limits.ring_specs:
                    self.attach(spec)
                self.attach_control()
        except BaseException:
            self.free()
            raise

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        """After a check that held, the worker must end as W-70 says."""
        try:
            if kind is None and self.process.status is None:
                equal(self.close(), 0, f"exit code at the end, stderr {self.process.said()!r}")
        finally:
            self.free()

    def free(self):
        super().free()
        for shared in [*self.rings.values(), *self.buffers, self.control]:
            if shared is not None:
                shared.free()
        self.rings, self.buffers, self.control = {}, [], None

    # The start.

    def greet(self, versions=(VERSION, VERSION), **header):
        record = messages.HELLO.payload.new(versions=versions)
        seq = self.send_bytes(messages.HELLO, encode(messages.HELLO.payload, record), **header)
        self.ack = self.answer(seq)
        self.capabilities = json.loads(self.ack.capabilities)
        self.page = self.ack.spaces[0].page_size_tokens
        return self.ack

    def spec(self, ring_id):
        return next(spec for spec in self.ack.limits.ring_specs if spec.ring_id == ring_id)

    def attach(self, spec):
        """Creates the ring, sends its layout and then its descriptor, waits for the answer (W-31)."""
        ring_size(spec)
        ring = Ring(spec, self.sealed)
        self.rings[spec.ring_id] = ring
        seq = self.send(messages.RING_ATTACH, ring_id=spec.ring_id, layout=spec)
        self.send_descriptors(spec.ring_id, ring.descriptor)
        ack = self.answer(seq)
        equal((ack.ring_id, ack.generation_base), (spec.ring_id, 1), "RING_ACK")

    def attach_control(self):
        if self.control is not None:
            self.control.free()
        self.control = Control(self.sealed)
        seq = self.send(messages.CONTROL_ATTACH, bytes=CONTROL_BYTES)
        self.send_descriptors(CONTROL_TAG, self.control.descriptor)
        equal(self.answer(seq).bytes, CONTROL_BYTES, "CONTROL_ACK")

    # Plans.

    def stage(self, ids):
        return self.rings[TOKENS_IN].write(ids)

    def admit(self, tag, prompt, params=IGNORING_END, mode=GREEDY, **fields):
        """An admit; `prompt` is a list of ids or the reference to one that was staged."""
        reference = self.stage(prompt) if isinstance(prompt, list) else prompt
        return LANE_ADMIT.new(lane_tag=tag, prompt=reference, params=params, sampling=mode, **fields)

    def plan(self, admits=(), commits=(), prefills=(), decodes=(), retires=(), **fields):
        """A plan from short forms: commits (tag, token, nonce), prefills (tag, offset, count), decodes (tag, grant) or
        (tag, grant, overshoot), retires (tag, publish). Its number is the next one unless it is named."""
        return PLAN.new(
            admits=list(admits),
            commits=[LANE_COMMIT.of(*commit) for commit in commits],
            prefills=[LANE_PREFILL.of(*prefill) for prefill in prefills],
            decodes=[LANE_DECODE.of(*decode, *([0] * (3 - len(decode)))) for decode in decodes],
            retires=[LANE_RETIRE.of(*retire) for retire in retires],
            **{
                "plan_seq": self.next_plan,
                "prefill_token_budget": 4096,
                "max_decode_lanes": self.batch,
                "shed_policy": EVERYTHING,
                **fields,
            },
        )

    def submit(self, plan):
        """The result of the tick: ("Events", events), audited, or ("Rejected", record)."""
        self.take_unasked(messages.TICK_EMIT)
        seq = self.send(messages.TICK_SUBMIT, plan=plan)
        return self.result(seq, plan)

    def result(self, seq, plan):
        outcome = self.answer(seq)
        if outcome[0] == "Events":
            self.next_plan = plan.plan_seq + 1
            audit(self, plan, outcome[1])
        return outcome

    def tick(self, *args, **fields):
        """The events of a plan that must be accepted; `events.tokens` holds each lane's new ids."""
        kind, record = self.submit(self.plan(*args, **fields))
        expect(kind == "Events", f"the plan was rejected: {record}")
        return record

    def refused(self, *args, **fields):
        """The status of a plan that must be refused."""
        kind, record = self.submit(self.plan(*args, **fields))
        expect(kind == "Rejected", lambda: f"the plan was accepted: {record}")
        return record.status

    # Everything else.

    def sync(self, variant, **fields):
        """The record of a state sync answer that must be `Ok`."""
        kind, record = self.sync_outcome(variant, **fields)
        expect(kind == "Ok", f"{variant}: {record}")
        answer, fields = record.answer
        equal(answer, messages.SYNC_ANSWER.get(variant, variant), f"variant of the answer to {variant}")
        return fields

    def sync_refused(self, variant, **fields):
        kind, record = self.sync_outcome(variant, **fields)
        expect(kind == "Err", f"{variant}: {record}")
        return record.status

    def sync_outcome(self, variant, **fields):
        payload = encode(messages.SYNC_REQ, messages.SYNC_REQ.new(variant, **fields))
        return self.answer(self.send_bytes(messages.STATE_SYNC_REQ, payload))

    def sequence(self, tag):
        return self.sync("LaneSequence", lane_tag=tag).sequence

    def matches(self, ids, space=SPACE):
        """The candidates of one space, or of all in a dictionary when `space` is None."""
        reference = self.stage(ids) if isinstance(ids, list) else ids
        asked = 2**32 - 1 if space is None else space
        spaces = self.request(messages.MATCH_REQ, space_id=asked, span=reference).spaces
        found = {record.space_id: record.candidates for record in spaces}
        return found if space is None else found.get(space, [])

    def lengths(self, ids):
        return [candidate.prefix_len for candidate in self.matches(ids)]

    def seed(self, ids, length, determinism_class=0):
        """A lease that must be granted; its handle."""
        kind, record = self.seed_outcome(ids, length, determinism_class)
        expect(kind == "Granted", f"seed of {length}: {record}")
        return record.seed_handle

    def seed_outcome(self, ids, length, determinism_class=0):
        reference = self.stage(ids) if isinstance(ids, list) else ids
        return self.request(
            messages.SEED_ACQUIRE, span=reference, prefix_len=length, determinism_class=determinism_class
        )

    def release(self, handle):
        self.send(messages.SEED_RELEASE, seed_handle=handle)

    def pong(self):
        return self.request(messages.PING)

    def buffer(self, size, buf_id=None):
        """A buffer, announced and attached."""
        buffer = Buffer(1000 + len(self.buffers) if buf_id is None else buf_id, max(size, 1), self.sealed)
        self.buffers.append(buffer)
        self.send(messages.BUF_ALLOC, buf_id=buffer.buf_id, len=size)
        self.send(messages.BUF_ATTACH, buf_id=buffer.buf_id, len=size, generation=1)
        self.send_descriptors(buffer.buf_id, buffer.descriptor)
        return buffer

    def op(self, variant, **fields):
        """An operation that must be accepted; its handle, which ascends from 1 (S-85)."""
        kind, record = self.op_outcome(variant, **fields)
        expect(kind == "Accepted", f"{variant}: {record}")
        return record.op_handle

    def op_outcome(self, variant, **fields):
        kind, record = self.request(messages.STATE_OP_SUBMIT, op=STATE_OP.new(variant, **fields))
        # A DONE frame that came before its ACCEPTED names an operation that nobody knows yet (W-57).
        self.note_done()
        if kind == "Accepted":
            handles = [*self.ops_open, *self.ops_ended]
            equal(record.op_handle, len(handles) + 1, "handle of an operation")
            self.ops_open[record.op_handle] = variant
        return kind, record

    def op_refused(self, variant, **fields):
        kind, record = self.op_outcome(variant, **fields)
        expect(kind == "Rejected", f"{variant}: {record}")
        return record.status

    def note_done(self):
        """Files the DONE frames that came: each operation reports once, after it was accepted (W-57)."""
        for done in self.take_unasked(messages.STATE_OP_DONE):
            expect(done.op_handle in self.ops_open, f"a second or unknown DONE: {done}")
            del self.ops_open[done.op_handle]
            self.ops_ended[done.op_handle] = done

    def done(self, handle):
        """Waits for the end of an operation."""
        self.note_done()
        while handle not in self.ops_ended:
            message, record, correlation = self.receive()
            equal(correlation, 0, f"correlation of a {message}")
            self.keep(message, record)
            self.note_done()
        return self.ops_ended[handle]


def audit(session, plan, events):
    """What holds of every accepted tick."""
    equal(events.plan_seq, plan.plan_seq, "plan_seq of the events")
    faulted = {fault.lane_tag for fault in events.faults}
    equal([result.lane_tag for result in events.admit_results], [admit.lane_tag for admit in plan.admits], "admits")
    for result in events.admit_results:
        code = Status.CERT_UNMATCHED if result.status == REJECTED else 0
        equal((result.status in (ADMITTED, REJECTED), status_of(result.reject_code)), (True, code), f"{result}")
    # A rejected lane's other records are ignored.
    gone = faulted | {result.lane_tag for result in events.admit_results if result.status == REJECTED}
    audit_emits(session, plan, events, gone)
    audit_partial_emits(session, plan, events, gone)
    audit_shed(events)
    audit_logprobs(events)
    expect(
        events.timings.prefill_ns + events.timings.decode_ns <= events.timings.wall_ns,
        f"phases longer than the tick: {events.timings}",
    )
    for op in events.op_completions:
        expect(op.op not in session.listed_ops, f"{op} is listed a second time")
        session.listed_ops.add(op.op)
    session.note_done()
    expect(
        all(op.op in session.ops_ended for op in events.op_completions),
        f"a tick lists an operation before its DONE frame: {events.op_completions}",
    )
    session.last_mem = events.mem


def audit_emits(session, plan, events, gone):
    """One emit per decode record in plan order, each with the next slot of the ring it writes (T-140, W-49)."""
    wanted = [decode.lane_tag for decode in plan.decodes if decode.lane_tag not in gone]
    equal([emit.lane_tag for emit in events.emits], wanted, "lanes of the emits")
    grants = {decode.lane_tag: decode.max_new_tokens + decode.overshoot for decode in plan.decodes}
    events.tokens = {}
    for emit in events.emits:
        if emit.token_ref == NO_TOKENS:
            equal(emit.n_tokens, 0, "tokens of a HOST lane")
            events.tokens[emit.lane_tag] = []
            continue
        equal(emit.logits_row, NO_ROW, "row of a lane that is not HOST")
        at = (emit.token_ref.index, emit.token_ref.generation)
        equal(at, session.rings[TOKENS_OUT].expected_write(), "slot of an emit")
        ids = session.rings[TOKENS_OUT].tokens(emit.token_ref)
        equal(len(ids), emit.n_tokens, "n_tokens of an emit")
        expect(len(ids) <= grants[emit.lane_tag], f"{len(ids)} tokens for a grant of {grants[emit.lane_tag]}")
        events.tokens[emit.lane_tag] = ids
    audit_rows(session, [emit for emit in events.emits if emit.logits_row != NO_ROW])


def audit_rows(session, emits):
    """New rows take the next slots of the logits ring, in ascending lane tags (T-105, section 18)."""
    for emit in sorted(emits, key=lambda emit: emit.lane_tag):
        row = emit.logits_row
        if row != session.rows.get(emit.lane_tag):
            equal((row.index, row.generation), session.rings[LOGITS].expected_write(), "slot of a row")
            session.rows[emit.lane_tag] = row


def audit_partial_emits(session, plan, events, gone):
    """Frames of the tick concatenate to the emits; every round goes in ascending lane tags (W-46, T-105)."""
    frames = session.take_unasked(messages.TICK_EMIT)
    if not plan.flags & PARTIAL_EMITS:
        equal(frames, [], "partial emits nobody asked for")
        return
    joined = {tag: [] for tag in events.tokens}
    for partial in frames:
        expect(len(partial.tokens) == 1, f"a partial emit of {partial.tokens}")
        if partial.lane_tag not in gone:
            joined[partial.lane_tag] += partial.tokens
    equal(joined, events.tokens, "partial emits, joined")
    if all(emit.spec[0] == 0 for emit in events.emits):
        order = []
        seen = dict.fromkeys((partial.lane_tag for partial in frames), 0)
        for partial in frames:
            order.append((seen[partial.lane_tag], partial.lane_tag))
            seen[partial.lane_tag] += 1
        equal(order, sorted(order), "rounds and lanes of the partial emits")


def audit_shed(events):
    entries = events.shed.entries
    chunks = [entry for entry in entries if entry.kind == CHUNK_SHED]
    evictions = [entry for entry in entries if entry.kind == EVICTION_SHED]
    equal(len(chunks) + len(evictions), len(entries), "kinds of the shed entries")
    equal(events.shed.prefill_chunks_dropped, len(chunks), "chunks dropped")
    equal(events.shed.evictions_performed, len(evictions), "evictions performed")
    equal(events.shed.bytes_evicted, sum(entry.bytes for entry in evictions), "bytes evicted")
    status = TICK_LANE_ERRORS if events.faults else TICK_SHED if entries else TICK_OK
    equal(events.tick_status, status, "status of the tick")


def audit_logprobs(events):
    """A lane that asked has one record per token of its emit; at most twenty alternatives, descending (T-122)."""
    counts = {}
    for record in events.logprobs:
        counts[record.lane_tag] = counts.get(record.lane_tag, 0) + 1
        equal(len(record.top_ids), len(record.top_logprob_bits), "alternatives")
        expect(len(record.top_ids) <= 20, f"{len(record.top_ids)} alternatives")
        values = floats(record.top_logprob_bits)
        equal(values, sorted(values, reverse=True), "order of the alternatives")
    for tag, count in counts.items():
        equal(count, len(events.tokens[tag]), f"logprobs of lane {tag}")


def floats(bits):
    return list(array.array("f", array.array("I", bits).tobytes()))
