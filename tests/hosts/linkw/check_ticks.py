"""Ticks over the link: the same tokens by every schedule, partial emits, HOST lanes, refusals (tick.md, linkw.md 8)."""

import struct
import threading

import messages
from expect import check, equal, expect
from messages import SAMPLING, TOKEN_REF, Status
from postcard import U64_MAX
from sampling import draws, log_sum_exp, penalised
from schedule import Request, Scheduler, alone
from session import (
    CHUNK_SHED,
    DRAIN,
    DRAWN,
    EVERYTHING,
    FINISH_EOS,
    FINISH_LENGTH,
    FINISH_NONE,
    GREEDY,
    HOST,
    IGNORE_EOS,
    LOGITS,
    PARTIAL_EMITS,
    TICK_SHED,
    TOKENS_IN,
    TOKENS_OUT,
    floats,
)

WARM = SAMPLING.new(temperature=0.9, top_p=0.95, top_k=40, flags=IGNORE_EOS)
HOT = SAMPLING.new(temperature=4.0, top_p=1.0, flags=IGNORE_EOS)
STRICT = SAMPLING.new(
    temperature=1.7,
    top_p=0.9,
    min_p=0.02,
    top_k=50,
    repeat_penalty=1.3,
    presence_penalty=0.2,
    freq_penalty=0.1,
    flags=IGNORE_EOS,
)


def several(host):
    """Requests of unlike lengths and modes; the keys of their prompts are their tags."""
    modes = [dict(), dict(params=WARM, seed=11), dict(params=HOT, seed=U64_MAX - 9), dict(params=STRICT, seed=3)]
    lengths = [1, 2, 16, 17, 5, 33, 40]
    return [
        Request(tag, host.prompt(f"several {tag}", length), 4 + tag % 3, **modes[tag % len(modes)])
        for tag, length in enumerate(lengths, 1)
    ]


@check("schedule invariance; T-49 T-84 T-89 T-105 W-46")
def tokens_are_the_same_by_every_schedule(host):
    requests = several(host)
    with host.session() as session:
        wanted = {request.tag: alone(session, request) for request in requests}
        for request in requests:
            equal(len(wanted[request.tag]), request.want, f"tokens of request {request.tag}")
        schedules = [
            dict(),
            dict(grants=(1,), flags=PARTIAL_EMITS),
            dict(chunk=7, grants=(3, 1, 2), flags=PARTIAL_EMITS),
            dict(chunk=16, lanes=3, budget=13, grants=(4, 1)),
        ]
        cut = 0
        for how in schedules:
            scheduler = Scheduler(session, **how)
            equal(scheduler.run(requests), wanted, f"tokens by {how}")
            cut += scheduler.chunks_cut
        expect(cut > 0, "no budget cut a chunk")
        backwards = Scheduler(session, grants=(2, 3), flags=PARTIAL_EMITS).run(requests[::-1])
        equal(backwards, wanted, "tokens in the opposite order")
        equal(session.last_mem.pool_blocks_used, 0, "blocks in use after all have gone")
    # Another batch, and threads.
    with host.session(batch=3, options=["--threads", "1"]) as session:
        equal(Scheduler(session, chunk=24, grants=(2,)).run(requests), wanted, "tokens of three lanes on one thread")


@check("W-46 W-8 T-107")
def partial_emits_come_while_the_tick_runs(host):
    with host.session() as session:
        prompt = host.prompt("partial", 12)
        plan = session.plan([session.admit(1, prompt)], prefills=[(1, 0, 12)], decodes=[(1, 24)], flags=PARTIAL_EMITS)
        seq = session.send(messages.TICK_SUBMIT, plan=plan)
        # A PING behind the submit is answered behind its result.
        ping = session.send(messages.PING)
        heard = []
        for _ in range(24):
            message, record, correlation = session.receive()
            equal((message, correlation, record.lane_tag), (messages.TICK_EMIT, 0, 1), "a frame within the tick")
            session.keep(message, record)
            heard += record.tokens
        kind, events = session.result(seq, plan)
        equal((kind, events.tokens[1]), ("Events", heard), "the result behind its frames")
        equal(session.answer(ping).mem, events.mem, "mem of the PONG (W-66)")
        silent = session.tick(decodes=[(1, 5)])
        equal(len(silent.tokens[1]), 5, "tokens without the flag")


@check("W-38 T-109 T-91 WS-26")
def yield_ends_a_tick_early_and_changes_no_token(host):
    prompt = host.prompt("yield", 20)
    request = Request(1, prompt, 64)
    # The worker can be only a few frames ahead of the host, so the tick still runs when the word is raised.
    with host.session(narrow=True) as session:
        wanted = alone(session, request)

        # Raised before the tick: one round of progress, no more.
        session.control.set_yield(True)
        events = session.tick([session.admit(2, prompt)], prefills=[(2, 0, 20)], decodes=[(2, 64)])
        equal(events.tokens[2], wanted[:1], "the one round of a tick that yields")
        tokens = session.tick(decodes=[(2, 64)]).tokens[2]
        equal(tokens, wanted[1:2], "the round of a second one")

        # Raised by another thread after the tick's first emit: it ends well before its grant.
        session.control.set_yield(False)
        plan = session.plan(decodes=[(2, 62)], flags=PARTIAL_EMITS)
        seq = session.send(messages.TICK_SUBMIT, plan=plan)
        message, record, _ = session.receive()
        session.keep(message, record)
        raising = threading.Thread(target=session.control.set_yield, args=(True,))
        raising.start()
        raising.join()
        _, events = session.result(seq, plan)
        made = events.tokens[2]
        expect(1 <= len(made) < 62, f"{len(made)} tokens of a tick that was asked to yield")
        equal(made, wanted[2 : 2 + len(made)], "tokens up to the yield")

        session.control.set_yield(False)
        session.control.set_latency(True)
        rest = session.tick(decodes=[(2, 62 - len(made))]).tokens[2]
        equal(made + rest, wanted[2:], "tokens of the ticks after it")


@check("T-91 W-92")
def yield_cuts_a_prefill_between_steps_and_the_report_says_where(host):
    with host.session(options=["--prefill-step-tokens", "16"]) as session:
        prompt = host.prompt("cut", 100)
        wanted = alone(session, Request(1, prompt, 5))
        session.control.set_yield(True)
        events = session.tick([session.admit(2, prompt)], prefills=[(2, 0, 100)], decodes=[(2, 5)])
        equal(events.tick_status, TICK_SHED, "status")
        (entry,) = events.shed.entries
        equal((entry.lane_tag, entry.kind, entry.bytes), (2, CHUNK_SHED, 0), "the shed entry")
        equal(events.tokens[2], [], "tokens of a lane whose prompt was cut")
        at = 100 - entry.tokens
        equal(at, 16, "tokens of the one step that ran")
        refused = session.refused(prefills=[(2, 0, 100)])
        equal(refused, Status.ILLEGAL_COMBINATION, "prefill from the start again")
        session.control.set_yield(False)
        events = session.tick(prefills=[(2, at, 100 - at)], decodes=[(2, 5)])
        equal(events.tokens[2], wanted, "tokens after the rest")


@check("T-106 T-115 T-43 T-75 W-49; host sampling")
def host_lanes_give_the_rows_that_greedy_lanes_pick_from(host):
    requests = [Request(tag, host.prompt(f"host {tag}", 3 + 8 * tag), 4) for tag in (1, 2, 3)]
    with host.session() as session:
        wanted = {request.tag: alone(session, request) for request in requests}
        hosted = [Request(request.tag, request.prompt, 5, host=True) for request in requests]
        for request in hosted:
            Scheduler(session).run([request])
            equal(request.tokens, wanted[request.tag], f"greedy picks of the host, lane {request.tag}")
            equal(len(request.rows[0]), host.vocab, "values of a row")
        lonely = {request.tag: request.rows for request in hosted}
        mixed = hosted + [Request(tag + 10, request.prompt, 6) for tag, request in enumerate(requests)]
        together = Scheduler(session, chunk=5, budget=11, grants=(2,)).run(mixed)
        for request in hosted:
            equal(together[request.tag], wanted[request.tag], f"picks beside others, lane {request.tag}")
            expect(request.rows == lonely[request.tag], f"rows of lane {request.tag} differ beside others")


def exempt_tokens(host):
    """T-114, as far as the tokenizer library lists them."""
    return set(host.tokenizer.special_tokens()) | {host.tokenizer.eos()}


@check("T-112 to T-120 from the text; R-20")
def drawn_tokens_are_those_of_the_rules_on_the_rows(host):
    exempt = exempt_tokens(host)
    ordinary = [token for token in range(host.vocab) if token not in exempt]
    narrow = SAMPLING.new(temperature=2.5, top_p=0.3, flags=IGNORE_EOS)
    least = SAMPLING.new(temperature=3.0, top_p=1.0, min_p=0.3, flags=IGNORE_EOS)
    greedy_penal = SAMPLING.new(top_p=1.0, repeat_penalty=1.5, presence_penalty=0.5, freq_penalty=0.25, flags=IGNORE_EOS)
    cases = [WARM, HOT, STRICT, narrow, least, greedy_penal]
    count = 16
    with host.session() as session:
        sure = 0
        for tag, params in enumerate(cases, 1):
            # Repeated ids, so that penalties bite; for those more than the window holds.
            length = 66 if params.repeat_penalty else 5
            prompt = [ordinary[7 * place % 11] for place in range(length + tag)]
            drawn = Request(tag, prompt, count, params=params, seed=1000 * tag)
            tokens = alone(session, drawn)
            # A HOST lane that commits the drawn tokens shows the rows which they were drawn from.
            hosted = Request(50, prompt, count, host=True)
            Scheduler(session, pick=lambda request: tokens[len(request.tokens)]).run([hosted])
            for place, (row, token) in enumerate(zip(hosted.rows, tokens)):
                scored = penalised(row, prompt + tokens[:place], exempt, params)
                if params.temperature > 0:
                    possible = draws(scored, params, (drawn.base + place) % 2**64)
                else:
                    possible = {scored.index(max(scored))}
                expect(token in possible, f"case {tag}, token {place}: {token} instead of {possible}")
                sure += len(possible) == 1
        expect(sure > 0.95 * count * len(cases), f"only {sure} draws have one possible outcome")


@check("T-112 T-113 T-114 TS-24 TS-72")
def penalties_see_the_last_64_tokens_and_no_special_one(host):
    special = max(exempt_tokens(host))
    with host.session() as session:
        prompt = [id for id in host.prompt("window", 200) if id not in exempt_tokens(host)][:64]
        for first, length, penalised_ in ((prompt[0], 64, True), (prompt[0], 65, False), (special, 64, False)):
            ids = ([first] + [id for id in prompt[1:] if id != first] + prompt[1:9])[:length]
            hosted = Request(1, ids, 1, host=True)
            Scheduler(session).run([hosted])
            row = hosted.rows[0]
            # What another id of the window gets by the penalty must not be the best; the first one's halves are below it.
            best = max((value, -id) for id, value in enumerate(row) if id not in ids)
            expect(best[0] > 0, "no token to compare with")
            raised = struct.pack("<f", 1.5 * best[0] - row[first])
            bias = session.sync("CreateLogitBias", tokens=[first], values=list(struct.unpack("<I", raised))).handle
            params = SAMPLING.new(top_p=1.0, repeat_penalty=2.0, flags=IGNORE_EOS)
            admit = session.admit(2, ids, params=params, logit_bias_handle=bias)
            events = session.tick([admit], prefills=[(2, 0, length)], decodes=[(2, 1)])
            wanted = -best[1] if penalised_ else first
            equal(events.tokens[2], [wanted], f"token {first} raised, {length} tokens before")
            session.tick(retires=[(2, False)])


@check("T-122 W-45")
def logprobs_are_those_of_the_rows(host):
    prompt = host.prompt("logprobs", 31)
    with host.session() as session:
        plain = alone(session, Request(1, prompt, 6))
        hosted = Request(2, prompt, 6, host=True)
        Scheduler(session).run([hosted])
        for asked, given in ((0, 0), (3, 3), (20, 20), (255, 20)):
            events = session.tick(
                [session.admit(3, prompt, want_logprobs=True, top_logprobs=asked)],
                prefills=[(3, 0, 31)],
                decodes=[(3, 6)],
            )
            session.tick(retires=[(3, False)])
            equal(events.tokens[3], plain, "tokens of a lane that asks for logprobs")
            equal(len(events.logprobs), 6, "records")
            for token, row, record in zip(plain, hosted.rows, events.logprobs):
                norm = log_sum_exp(row)
                (value,) = floats([record.logprob_bits])
                expect(abs(value - (row[token] - norm)) < 1e-4, f"{value} instead of {row[token] - norm}")
                best = sorted(range(host.vocab), key=lambda id: (-row[id], id))[:given]
                equal(record.top_ids, best, f"{given} alternatives")
                for id, top in zip(best, floats(record.top_logprob_bits)):
                    expect(abs(top - (row[id] - norm)) < 1e-4, f"{top} instead of {row[id] - norm}")


@check("T-29 T-48 T-98 T-99 T-101 T-119")
def preempted_lane_goes_on_where_it_was(host):
    prompt = host.prompt("preempted", 10)
    with host.session() as session:
        for params, seed in ((WARM, 5), (HOT, U64_MAX - 20)):
            request = Request(1, prompt, 12, params=params, seed=seed)
            wanted = alone(session, request)
            for kept, grants in ((5, (12,)), (5, (3, 2, 7)), (1, (1, 1, 10)), (9, (9, 3)), (9, (4, 4, 4))):
                again = session.admit(
                    2,
                    prompt + wanted[:kept],
                    params=params,
                    mode=DRAWN,
                    rng_counter_base=(request.base + kept) % 2**64,
                    decode_replay=kept,
                )
                session.tick([again], prefills=[(2, 0, 10)])
                equal(session.refused(prefills=[(2, 10, 1)]), Status.BOUNDS, "prefill into the replayed tail")
                tokens = []
                for grant in grants:
                    tokens += session.tick(decodes=[(2, grant)], flags=PARTIAL_EMITS).tokens[2]
                equal(tokens, wanted[kept : sum(grants)], f"tokens after {kept} kept ones, grants {grants}")
                session.tick(retires=[(2, False)])


@check("T-36 T-106 T-108 TS-26 TS-39 TS-40")
def context_and_end_token_finish_lanes(host):
    with host.session(context=32) as session:
        full = host.prompt("full", 32)
        equal(session.capabilities["limits"]["max_seq_len"], 32, "max_seq_len")
        too_long = session.refused([session.admit(1, full + [1])])
        equal(too_long, Status.BUDGET, "a prompt longer than the context")
        events = session.tick([session.admit(1, full[:28])], prefills=[(1, 0, 28)], decodes=[(1, 50)])
        equal((len(events.tokens[1]), events.emits[0].finish), (4, FINISH_LENGTH), "the context's last tokens")
        for mode in (GREEDY, HOST):
            events = session.tick([session.admit(2, full, mode=mode)], prefills=[(2, 0, 32)], decodes=[(2, 1)])
            equal((events.tokens[2], events.emits[0].finish), ([], FINISH_LENGTH), "a prompt that fills the context")
            equal(session.refused(decodes=[(2, 1)]), Status.ILLEGAL_COMBINATION, "decode of a finished lane")
            session.tick(retires=[(2, False)])
        hosted = Request(3, full[:29], 9, host=True)
        Scheduler(session).run([hosted])
        equal((len(hosted.rows), hosted.finish), (3, FINISH_LENGTH), "rows of a HOST lane up to the context")

        # An end token finishes only without IGNORE_EOS, and is emitted.
        end = host.tokenizer.eos()
        bias = session.sync("CreateLogitBias", tokens=[end], values=[0x42C80000]).handle
        for flags, finish, count in ((0, FINISH_EOS, 1), (IGNORE_EOS, FINISH_NONE, 4)):
            params = SAMPLING.new(top_p=1.0, flags=flags)
            admit = session.admit(4, full[:9], params=params, logit_bias_handle=bias)
            events = session.tick([admit], prefills=[(4, 0, 9)], decodes=[(4, 4)])
            equal((events.tokens[4], events.emits[0].finish), ([end] * count, finish), f"flags {flags}")
            session.tick(retires=[(4, False)])


@check("T-6 T-18 T-20 T-42 T-55 T-75 WS-12 TS-66")
def small_rules_of_decode_and_commit_hold(host):
    prompt = host.prompt("small", 18)
    with host.session() as session:
        wanted = alone(session, Request(1, prompt, 3))
        events = session.tick([session.admit(1, prompt)], prefills=[(1, 0, 18)], decodes=[(1, 0)])
        equal(events.tokens[1], [], "tokens of a grant of none")
        equal(session.tick(decodes=[(1, 3)]).tokens[1], wanted, "tokens after it")
        # Commit in one tick, decode in a later one; then the number of a plan may jump.
        events = session.tick([session.admit(2, prompt, mode=HOST)], prefills=[(2, 0, 18)], decodes=[(2, 1)])
        nonce = events.emits[0].logits_row.generation
        session.tick(commits=[(2, wanted[0], nonce)])
        equal(session.refused(commits=[(2, wanted[0], nonce)]), Status.HOST_RULES, "the same row again")
        events = session.tick(decodes=[(2, 1)], plan_seq=session.next_plan + 1000)
        row = session.rings[LOGITS].row(events.emits[0].logits_row)
        equal(row.index(max(row)), wanted[1], "pick from the row after the commit")
        equal(session.refused(plan_seq=session.next_plan - 1), Status.ILLEGAL_COMBINATION, "an old number")
        # A drain goes on with what lives.
        equal(session.refused([session.admit(3, prompt)], flags=DRAIN), Status.ILLEGAL_COMBINATION, "drain and admit")
        session.tick(decodes=[(1, 1)], retires=[(2, False)], flags=DRAIN)
        # What a plan does not know is ignored (T-6).
        session.tick(decodes=[(1, 1)], flags=2 | 1 << 31)


@check("E-31 E-32 T-25; ring wrap")
def rings_wrap_and_old_slots_are_stale(host):
    with host.session() as session:
        slots = session.rings[TOKENS_IN].spec.slots
        prompt = host.prompt("wrap", 4)
        wanted = alone(session, Request(1, prompt, 2))
        first = session.stage(prompt)
        for _ in range(slots - 1):
            newest = session.stage(prompt)
        for reference in (first, newest):
            session.tick([session.admit(2, reference)], prefills=[(2, 0, 4)], decodes=[(2, 2)])
            session.tick(retires=[(2, False)])
        session.stage(prompt)
        equal(session.refused([session.admit(2, first)]), Status.BAD_REF_GENERATION, "a slot written again")
        equal(session.refused([session.admit(2, first.but(index=slots))]), Status.BOUNDS, "a slot past the last")
        equal(session.refused([session.admit(2, newest.but(ring_id=9))]), Status.BOUNDS, "ring 9")
        equal(session.refused([session.admit(2, newest.but(count=3))]), Status.BOUNDS, "another count")
        for off in (1, 7):
            stale = newest.but(generation=newest.generation + off)
            equal(session.refused([session.admit(2, stale)]), Status.BAD_REF_GENERATION, f"generation + {off}")
        never = TOKEN_REF.of(1, 0, 4, 0)
        equal(session.refused([session.admit(2, never)]), Status.BAD_REF_GENERATION, "generation 0")
        # An emit is a prompt too, while its slot stands; and the ring of emits wraps as well.
        events = session.tick([session.admit(2, prompt)], prefills=[(2, 0, 4)], decodes=[(2, 2)])
        emitted = events.emits[0].token_ref
        session.tick([session.admit(3, emitted)], prefills=[(3, 0, 2)], decodes=[(3, 1)])
        for _ in range(session.rings[TOKENS_OUT].spec.slots // 2 + 9):
            session.tick(decodes=[(2, 0), (3, 0)])
        equal(session.refused([session.admit(4, emitted)]), Status.BAD_REF_GENERATION, "an emit written over")
        equal(alone(session, Request(5, prompt, 2)), wanted, "tokens after all that")


def refusals(host, session, state):
    """(what, plan, status): each plan breaks one rule. Lane 1 decodes, 2 is HOST with a row pending, 3 has prompt left,
    4 is finished; `state` has the nonce of 2, a seed and the prompt it serves."""
    prompt = state["prompt"]
    staged = session.stage(prompt)
    longer = session.stage(host.prompt("too long", 65))
    outside = session.stage([1, host.vocab])
    seeded = session.stage(state["seeded"])

    def admit(tag=9, reference=staged, **fields):
        return session.admit(tag, reference, **fields)

    one = [admit()]
    nonce = state["nonce"]
    bad = Status.ILLEGAL_COMBINATION
    seed = state["seed"]
    yield "T-12 admit twice", dict(admits=one + one), Status.DUPLICATE_LANE
    yield "T-12 decode twice", dict(decodes=[(1, 1), (1, 1)]), Status.DUPLICATE_LANE
    yield "T-12 prefill twice", dict(prefills=[(3, 5, 1), (3, 6, 1)]), Status.DUPLICATE_LANE
    yield "T-12 commit twice", dict(commits=[(2, 1, nonce)] * 2), Status.DUPLICATE_LANE
    yield "T-12 retire twice", dict(retires=[(1, True)] * 2), Status.DUPLICATE_LANE
    yield "T-13 admit and retire", dict(admits=one, retires=[(9, False)]), bad
    yield "T-13 admit and commit", dict(admits=one, commits=[(9, 1, 1)]), bad
    yield "T-13 commit and retire", dict(commits=[(2, 1, nonce)], retires=[(2, False)]), bad
    yield "T-13 decode and retire", dict(decodes=[(1, 1)], retires=[(1, False)]), bad
    yield "T-13 prefill and retire", dict(prefills=[(3, 5, 1)], retires=[(3, False)]), bad
    hosted = dict(admits=[admit(mode=HOST)], prefills=[(9, 0, len(prompt))], decodes=[(9, 2)])
    yield "T-14 HOST with a grant of 2", hosted, Status.HOST_RULES
    yield "T-15 more decodes than lanes", dict(decodes=[(1, 1), (3, 1)], max_decode_lanes=1), Status.BUDGET
    yield "T-18 the last number again", dict(decodes=[(1, 1)], plan_seq=session.next_plan - 1), bad
    yield "T-19 more lanes than the batch", dict(max_decode_lanes=session.batch + 1), Status.BUDGET
    yield "T-20 drain and admit", dict(admits=one, flags=DRAIN), bad
    yield "T-24 admit of a live lane", dict(admits=[admit(1)]), bad
    yield "T-26 no prompt", dict(admits=[admit(reference=session.stage([]))]), bad
    yield "T-27 id outside the vocabulary", dict(admits=[admit(reference=outside)]), Status.BOUNDS
    yield "T-28 sampling 3", dict(admits=[admit(mode=3)]), bad
    yield "T-29 replay of the whole prompt", dict(admits=[admit(decode_replay=len(prompt))]), Status.BOUNDS
    yield "T-30 strategy slot 9", dict(admits=[admit(strategy_slot=9)]), bad
    yield "T-31 unknown grammar", dict(admits=[admit(grammar_handle=99)]), bad
    yield "T-32 replay without a grammar", dict(admits=[admit(grammar_replay=1)]), bad
    yield "T-33 unknown bias", dict(admits=[admit(logit_bias_handle=99)]), bad
    yield "T-34 unknown seed", dict(admits=[admit(seed_handle=10**6)]), Status.STALE_SEED
    yield "T-34 seed of another prompt", dict(admits=[admit(seed_handle=seed)]), Status.STALE_SEED
    other = admit(reference=seeded, seed_handle=seed, determinism_class=1)
    yield "T-34 seed of another class", dict(admits=[other]), Status.STALE_SEED
    twice = [admit(tag, reference=seeded, seed_handle=seed) for tag in (9, 10)]
    yield "T-34 one seed, two admits", dict(admits=twice), Status.STALE_SEED
    yield "T-36 prompt longer than the context", dict(admits=[admit(reference=longer)]), Status.BUDGET
    yield "T-40 commit to nobody", dict(commits=[(77, 1, 1)]), Status.UNKNOWN_LANE
    yield "T-41 commit to a greedy lane", dict(commits=[(1, 1, 1)]), bad
    yield "T-43 another row", dict(commits=[(2, 1, nonce + 1)]), Status.STALE_NONCE
    yield "T-44 token outside the vocabulary", dict(commits=[(2, host.vocab, nonce)]), Status.BOUNDS
    yield "T-46 prefill of nobody", dict(prefills=[(77, 0, 1)]), Status.UNKNOWN_LANE
    yield "T-47 prefill with a gap", dict(prefills=[(3, 6, 1)]), bad
    yield "T-48 prefill past the end", dict(prefills=[(3, 5, len(prompt) - 4)]), Status.BOUNDS
    yield "T-48 prefill near 2^32", dict(prefills=[(3, 5, 2**32 - 1)]), Status.BOUNDS
    yield "T-50 decode of nobody", dict(decodes=[(77, 1)]), Status.UNKNOWN_LANE
    yield "T-51 decode of a finished lane", dict(decodes=[(4, 1)]), bad
    yield "T-52 HOST lane with a grant of 2", dict(commits=[(2, 1, nonce)], decodes=[(2, 2)]), Status.HOST_RULES
    yield "T-53 decode before the commit", dict(decodes=[(2, 1)]), Status.HOST_RULES
    yield "T-54 decode before the prompt's end", dict(decodes=[(3, 1)]), bad
    rest = [(3, 5, len(prompt) - 5)]
    yield "T-54 prefill cut by the budget", dict(prefills=rest, decodes=[(3, 1)], prefill_token_budget=3), bad
    yield "T-58 retire of nobody", dict(retires=[(77, False)]), Status.UNKNOWN_LANE
    # Good records before the bad one leave no trace either.
    good = dict(admits=one, commits=[(2, 1, nonce)], prefills=rest, decodes=[(1, 4), (2, 1)], retires=[(4, True)])
    yield "a good plan but for a retire", {**good, "retires": [(4, True), (77, False)]}, Status.UNKNOWN_LANE


@check("T-3 T-12 to T-15, T-18 to T-20, T-24 to T-36, T-40 to T-58; W-44 S-45 TS-4 TS-63")
def refused_plans_leave_no_trace(host):
    prompt = host.prompt("refused", 20)
    with host.session(context=64) as session:
        longer = Request(1, prompt, 12)
        wanted = alone(session, longer)
        seeded = host.prompt("seeded", 33)
        published = Request(5, seeded, 1, publish=True)
        Scheduler(session).run([published])
        end = host.tokenizer.eos()
        bias = session.sync("CreateLogitBias", tokens=[end], values=[0x42C80000]).handle
        ending = session.admit(4, prompt, params=SAMPLING.new(top_p=1.0), logit_bias_handle=bias)
        events = session.tick(
            [session.admit(1, prompt), session.admit(2, prompt, mode=HOST), session.admit(3, prompt), ending],
            prefills=[(1, 0, 20), (2, 0, 20), (3, 0, 5), (4, 0, 20)],
            decodes=[(1, 2), (2, 1), (4, 2)],
        )
        equal(events.tokens[1], wanted[:2], "tokens before the refusals")
        row = next(emit.logits_row for emit in events.emits if emit.lane_tag == 2)
        state = {
            "prompt": prompt,
            "nonce": row.generation,
            "seed": session.seed(seeded, 32),
            "seeded": seeded,
        }
        cases = list(refusals(host, session, state))
        span = session.stage(seeded)

        def trace():
            return (
                session.pong(),
                [session.sequence(tag) for tag in (1, 2, 3, 4)],
                session.matches(span),
                session.rings[TOKENS_OUT].contents(),
                session.rings[LOGITS].contents(),
            )

        before = trace()
        for what, plan, status in cases:
            for attempt in ("first", "second"):
                equal(session.refused(**plan), status, f"{what}, {attempt} time")
        expect(trace() == before, "the refused plans left a trace")

        # Every lane goes on, the number is still free and the seed still serves.
        values = session.rings[LOGITS].row(row)
        picked = values.index(max(values))
        events = session.tick(
            [session.admit(9, seeded, seed_handle=state["seed"])],
            commits=[(2, picked, row.generation)],
            prefills=[(3, 5, 15), (9, 32, 1)],
            decodes=[(1, 10), (2, 1), (3, 12), (9, 1)],
            retires=[(4, False)],
        )
        equal(events.tokens[1], wanted[2:], "tokens of lane 1")
        equal(events.tokens[3], wanted, "tokens of lane 3")
        equal(events.tokens[9], published.tokens, "the seeded lane's token")
        second = session.rings[LOGITS].row(next(emit.logits_row for emit in events.emits if emit.lane_tag == 2))
        equal([picked, second.index(max(second))], wanted[:2], "picks of lane 2")


@check("T-60 T-66 T-68 T-69 T-142 T-143; NeedsReplan")
def pool_that_is_full_asks_for_another_plan(host):
    with host.session(options=["--pool-tokens", "128", "--cache-tokens", "128"]) as session:
        cells = session.capabilities["limits"]["cells_total"]
        expect(cells >= 128, f"a pool of {cells} cells")
        length = min(cells - 16, 100)
        first = Request(1, host.prompt("pool 1", length), 2, publish=True)
        second = Request(2, host.prompt("pool 2", length), 2)
        tokens = alone(session, second)
        Scheduler(session).run([first])
        evictable = session.last_mem.pool_bytes_evictable
        expect(evictable > 0, "nothing was published")

        def plan(**policy):
            shed = EVERYTHING.but(**policy)
            prompt = session.admit(2, second.prompt)
            return dict(admits=[prompt], prefills=[(2, 0, length)], decodes=[(2, 2)], shed_policy=shed)

        for policy in (dict(evictable_cache_classes=0), dict(max_evict_bytes=0), dict(protected_quota_bytes=U64_MAX)):
            for _ in range(2):
                equal(session.refused(**plan(**policy)), Status.NEEDS_REPLAN, f"no room by {policy}")
        expect(session.lengths(first.prompt) != [], "a refused plan evicted")
        events = session.tick(**plan())
        equal((events.tick_status, events.tokens[2]), (TICK_SHED, tokens), "the tick that evicts")
        equal(sum(entry.tokens > 0 for entry in events.shed.entries), 1, "entries lost")
        equal(session.lengths(first.prompt), [], "what is left of the entry")
        # A lane holds what it has: no envelope frees that.
        more = session.admit(3, host.prompt("pool 3", length))
        for _ in range(2):
            equal(session.refused([more], prefills=[(3, 0, length)]), Status.NEEDS_REPLAN, "no room beside a lane")
        events = session.tick([more], prefills=[(3, 0, length)], retires=[(2, False)])
        equal(events.shed.entries, [], "evictions of a plan whose retire makes room")
