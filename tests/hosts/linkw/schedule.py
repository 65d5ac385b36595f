"""A small continuous-batching scheduler over a session, and the requests it serves.

It exists to serve the same requests by different schedules: whatever chunks, grants, lanes and neighbours it
uses, a request's tokens must be the same.
"""

from expect import equal, expect
from session import CHUNK_SHED, DRAWN, FINISH_NONE, GREEDY, HOST, IGNORING_END, LOGITS
from sampling import greedy


class Request:
    """A prompt and how many tokens are wanted. `tokens` and `finish` fill while it is served."""

    def __init__(self, tag, prompt, want, params=IGNORING_END, seed=None, host=False, publish=False, **admit):
        self.tag = tag
        self.prompt = prompt
        self.want = want
        self.params = params
        self.base = 0 if seed is None else (seed + len(prompt)) % 2**64
        self.mode = HOST if host else DRAWN if params.temperature > 0 else GREEDY
        self.publish = publish
        self.admit = admit
        self.reset()

    def reset(self):
        self.prefilled = 0
        self.tokens = []
        self.rows = []
        self.nonce = None
        self.finish = FINISH_NONE
        return self

    def done(self):
        enough = len(self.rows if self.mode == HOST else self.tokens) >= self.want
        return enough or self.finish != FINISH_NONE


class Scheduler:
    """`chunk`: most prompt tokens of a lane in a tick. `budget`: the plan's prefill budget, which may cut what the
    plan asks for. `grants`: tokens granted to a lane, taken in turn. `lanes`: how many run at once."""

    def __init__(self, session, chunk=4096, budget=4096, grants=(8,), lanes=None, flags=0, pick=greedy):
        self.session = session
        self.chunk = chunk
        self.budget = budget
        self.grants = grants
        self.lanes = session.batch if lanes is None else lanes
        self.flags = flags
        self.pick = pick
        self.ticks = 0
        self.chunks_cut = 0

    def run(self, requests):
        """Serves all to their end; answers {tag: tokens}."""
        waiting = [request.reset() for request in requests]
        live = []
        leaving = []
        while waiting or live or leaving:
            admitted = waiting[: self.lanes - len(live)]
            waiting = waiting[len(admitted) :]
            live += admitted
            events = self.tick(admitted, live, leaving)
            leaving = [request for request in live if request.done()]
            live = [request for request in live if not request.done()]
            expect(self.ticks < 5000, f"no end after {self.ticks} ticks: {events}")
        return {request.tag: request.tokens for request in requests}

    def tick(self, admitted, live, leaving):
        prefills = self.prefills(live)
        decodes, commits = self.decodes(live, prefills)
        session = self.session
        events = session.tick(
            admits=[
                session.admit(
                    request.tag,
                    request.prompt,
                    params=request.params,
                    mode=request.mode,
                    rng_counter_base=request.base,
                    **request.admit,
                )
                for request in admitted
            ],
            commits=commits,
            prefills=prefills,
            decodes=decodes,
            retires=[(request.tag, request.publish) for request in leaving],
            prefill_token_budget=self.budget,
            flags=self.flags,
        )
        self.ticks += 1
        self.take(events, live, prefills)
        return events

    def prefills(self, live):
        """Records of the lanes that still have prompt left; the budget may cut the last of them."""
        return [
            (request.tag, request.prefilled, min(self.chunk, len(request.prompt) - request.prefilled))
            for request in live
            if request.prefilled < len(request.prompt)
        ]

    def decodes(self, live, prefills):
        """Grants of the lanes that will stand at their prompt's end after the budget's cut (T-49, T-54)."""
        left = self.budget
        ends = {request.tag: request.prefilled for request in live}
        for tag, offset, count in prefills:
            taken = min(count, left)
            left -= taken
            ends[tag] = offset + taken
        decodes, commits = [], []
        for request in live:
            if ends[request.tag] < len(request.prompt):
                continue
            if request.mode == HOST:
                decodes.append((request.tag, 1))
                if request.nonce is not None:
                    token = self.pick(request)
                    request.tokens.append(token)
                    commits.append((request.tag, token, request.nonce))
                continue
            grant = self.grants[(self.ticks + request.tag) % len(self.grants)]
            decodes.append((request.tag, min(grant, request.want - len(request.tokens))))
        return decodes, commits

    def take(self, events, live, prefills):
        """What the tick did, lane by lane: where cut prefills stand is read off the shed entries (W-92)."""
        equal(events.faults, [], "faults")
        cut = {entry.lane_tag: entry.tokens for entry in events.shed.entries if entry.kind == CHUNK_SHED}
        self.chunks_cut += len(cut)
        by_tag = {request.tag: request for request in live}
        for tag, offset, count in prefills:
            by_tag[tag].prefilled = offset + count - cut.get(tag, 0)
        for emit in events.emits:
            request = by_tag[emit.lane_tag]
            request.finish = emit.finish
            request.tokens += events.tokens[emit.lane_tag]
            if request.mode == HOST and emit.finish == FINISH_NONE:
                request.nonce = emit.logits_row.generation
                request.rows.append(self.session.rings[LOGITS].row(emit.logits_row))


def alone(session, request, **how):
    """The tokens of one request served by itself: its whole prompt and all its tokens in one tick."""
    how = {"grants": (request.want,), "lanes": 1, **how}
    return Scheduler(session, **how).run([request])[request.tag]
