"""The prefix cache over the link: match, seeds, publication, forks, eviction (linkw.md 9 and 11, state.md 2 to 7)."""

import messages
from envelope import content_digest, parse
from expect import check, equal, expect
from messages import CACHE_KEY, SHED, TOKEN_RANGE, Status
from postcard import U64_MAX
from schedule import Request, Scheduler, alone
from session import DRAWN, EVERYTHING, SPACE, TOKENS_OUT

DETERMINISTIC = 1
GPU_TIER, HOST_TIER = 0, 1
RESIDENT, HOST_EXPORT = 1, 4
PRIVATE = 65536


def published(host, session, key, length, want=8):
    """A request that was served and published: its known tokens, and how many of them the cache holds."""
    request = Request(900, host.prompt(key, length), want, publish=True)
    Scheduler(session).run([request])
    tokens = request.prompt + request.tokens
    return tokens, len(tokens) // session.page * session.page


@check("W-50 W-51 T-73 T-77 T-78 T-34 S-40 S-46 S-81 WS-13 TS-14 TS-68")
def seeded_lanes_continue_as_cold_ones(host):
    with host.session() as session:
        page = session.page
        tokens, cached = published(host, session, "seeds", 40)
        equal(cached, 48, "tokens of the entry")
        span = tokens + host.prompt("behind", 9)
        (candidate,) = session.matches(span)
        found = (candidate.prefix_len, candidate.provenance_digest, candidate.taint_bits, candidate.resident_tier)
        equal(found, (cached, content_digest(tokens[:cached]), 0, GPU_TIER), "the candidate")
        equal(session.matches(span, space=None), {SPACE: [candidate]}, "the candidates of all spaces")
        equal(session.matches(span, space=99), [], "the candidates of space 99")
        equal(session.lengths(tokens[:cached]), [cached], "match of exactly the entry")
        equal(session.lengths(tokens[:40]), [32], "match of a span that ends within a page")
        equal(session.lengths(tokens[:page] + span[-9:]), [page], "match of a branch")
        equal(session.lengths([tokens[0] ^ 1] + tokens[1:]), [], "match of another start")

        for length in (0, 1, page + 1, cached + page, U64_MAX):
            kind, record = session.seed_outcome(span, length)
            equal((kind, record.status), ("Refused", Status.SEED_UNSERVABLE), f"a seed of {length}")
        wanted = alone(session, Request(1, span, 6))
        drawn = Request(2, span, 6, params=messages.SAMPLING.new(temperature=2.0, top_p=1.0, flags=1), seed=77)
        wanted_drawn = alone(session, drawn)
        for length in (page, 32, cached):
            seed = session.seed(span, length)
            got = seeded(session, span, length, seed)
            equal(got, wanted, f"tokens behind a seed of {length}")
            session.release(seed)
            seed = session.seed(span, length, DETERMINISTIC)
            got = seeded(
                session, span, length, seed, determinism_class=1, mode=DRAWN, params=drawn.params, rng_counter_base=drawn.base
            )
            equal(got, wanted_drawn, f"drawn tokens behind a seed of {length}")
        # A seed of the whole prompt needs no prefill.
        whole = alone(session, Request(1, tokens[:cached], 5))
        events = session.tick(
            [session.admit(3, tokens[:cached], seed_handle=session.seed(span, cached))], decodes=[(3, 5)]
        )
        equal(events.tokens[3], whole, "tokens behind a seed of the whole prompt")
        # An emit's slot is a span too.
        events = session.tick(decodes=[(3, 40)])
        equal(events.emits[0].token_ref.ring_id, TOKENS_OUT, "ring of an emit")
        equal(session.matches(events.emits[0].token_ref), [], "match of an emit")
        deps = session.request(messages.MATCH_REQ, space_id=1, span=session.stage(span), media_deps=[b"\x01" * 32])
        equal(deps.spaces[0].candidates, [candidate], "match of a text engine with media hashes")


def seeded(session, span, length, seed, tag=2, want=6, **admit):
    events = session.tick(
        [session.admit(tag, span, seed_handle=seed, **admit)],
        prefills=[(tag, length, len(span) - length)],
        decodes=[(tag, want)],
    )
    session.tick(retires=[(tag, False)])
    return events.tokens[tag]


@check("S-41 S-46 S-55 S-56 S-60 T-145; entries out of the pool")
def exported_entries_serve_as_those_in_the_pool(host):
    with host.session(options=["--cache-export-tokens", "4096"]) as session:
        page = session.page
        tokens, cached = published(host, session, "exported", 40)
        branch = tokens[:page] + host.prompt("branch", 30)
        Scheduler(session).run([Request(2, branch, 2, publish=True)])
        span = tokens + [tokens[0], tokens[1]]
        wanted = alone(session, Request(1, span, 5))
        found = [(candidate.prefix_len, candidate.resident_tier) for candidate in session.matches(span)]
        equal(found, [(cached, GPU_TIER), (page, GPU_TIER)], "candidates of two entries")
        evict(session, evictable_cache_classes=RESIDENT)
        session.tick()
        equal(session.last_mem.pool_blocks_used, 0, "blocks in use when all entries are out")
        held = session.last_mem.host_retained_bytes
        expect(held >= (cached + 32) * session.ack.spaces[0].bytes_per_token, f"{held} bytes of exports")
        found = [(candidate.prefix_len, candidate.resident_tier) for candidate in session.matches(span)]
        equal(found, [(cached, HOST_TIER), (page, HOST_TIER)], "candidates of two exports")
        for length in (page, cached):
            equal(seeded(session, span, length, session.seed(span, length), want=5), wanted, f"tokens behind {length}")
        equal(evict(session, evictable_cache_classes=HOST_EXPORT), 0, "bytes of exports that left the pool")
        equal(session.matches(span), [], "candidates after the exports were dropped")


@check("W-50 W-51 T-34 T-21 S-42 S-43 S-44 S-45 WS-14 TS-57")
def leases_pin_expire_and_are_consumed_once(host):
    with host.session() as session:
        tokens, cached = published(host, session, "leases", 40)
        span = session.stage(tokens)
        stale = span.but(generation=span.generation + 7)
        for bad in (stale, span.but(index=63), span.but(count=3), span.but(ring_id=9), span.but(ring_id=3)):
            equal(session.matches(bad), [], f"match of {bad}")
            kind, record = session.seed_outcome(bad, cached)
            equal((kind, record.status), ("Refused", Status.BAD_REF_GENERATION), f"seed of {bad}")

        kind, grant = session.seed_outcome(span, cached)
        equal((kind, grant.ttl_ms), ("Granted", 1000), "a lease")
        life = grant.ttl_ticks
        expect(life, "the worker declares no life of a lease")
        equal(evict(session), 0, "bytes evicted beside a lease")
        equal(session.lengths(span), [cached], "match beside a lease")
        session.release(grant.seed_handle)
        session.release(grant.seed_handle)

        # It serves the tick that starts `life` accepted ticks later, and not the next.
        early, late = session.seed(span, cached), session.seed(span, cached)
        for _ in range(life):
            session.tick()
        equal(session.refused([session.admit(2, tokens[1:], seed_handle=early)]), Status.STALE_SEED, "another prompt")
        session.tick([session.admit(2, tokens, seed_handle=early)])
        equal(session.refused([session.admit(3, tokens, seed_handle=late)]), Status.STALE_SEED, "a lease too old")
        equal(session.refused([session.admit(3, tokens, seed_handle=early)]), Status.STALE_SEED, "a lease used before")
        session.release(early)
        session.release(late)
        session.tick(retires=[(2, False)])

        expect(evict(session, target=1) > 0, "nothing was evicted after the leases")
        equal(session.lengths(span), [], "match after the eviction")
        kind, record = session.seed_outcome(span, cached)
        equal((kind, record.status), ("Refused", Status.SEED_UNSERVABLE), "a seed after the eviction")


def evict(session, target=U64_MAX, **policy):
    return session.sync("CacheEvict", bytes_target=target, policy=EVERYTHING.but(**policy)).bytes_freed


@check("W-60 S-55 S-58 S-59 S-48")
def eviction_and_unpublishing_take_what_they_name(host):
    with host.session() as session:
        bytes_per_token = session.ack.spaces[0].bytes_per_token
        entries = [published(host, session, f"evict {number}", 30) for number in range(3)]
        spans = [session.stage(tokens[:cached]) for tokens, cached in entries]
        equal([session.lengths(span) for span in spans], [[cached] for _, cached in entries], "matches")

        equal(evict(session, evictable_cache_classes=0), 0, "bytes without a class")
        equal(evict(session, protected_quota_bytes=U64_MAX), 0, "bytes under the quota")
        equal(evict(session, max_evict_bytes=1), 0, "bytes under the cap")
        equal(session.sync("CacheEvict", bytes_target=U64_MAX, policy=SHED.new()).bytes_freed, 0, "bytes of no policy")
        equal(evict(session, target=1), entries[0][1] * bytes_per_token, "bytes of the least recently used entry")
        equal([session.lengths(span) for span in spans], [[], [entries[1][1]], [entries[2][1]]], "matches then")

        # By key: the identity is the one that exports carry.
        session.tick([session.admit(1, entries[1][0])], prefills=[(1, 0, 20)])
        identity = compat_identity(session, session.sequence(1))
        digest = content_digest(entries[1][0][: entries[1][1]])
        foreign = bytes([identity[0] ^ 1]) + identity[1:]
        keys = [CACHE_KEY.of(identity, digest), CACHE_KEY.of(foreign, digest)]
        equal(session.sync_refused("CacheEvictEntries", keys=keys), Status.IDENTITY_MISMATCH, "a foreign key")
        session.sync("CacheEvictEntries", keys=[CACHE_KEY.of(identity, bytes(32))])
        equal(session.lengths(spans[1]), [entries[1][1]], "match after keys of nothing")
        session.sync("CacheEvictEntries", keys=keys[:1])
        equal(session.lengths(spans[1]), [], "match after the entry's key")

        lease = session.seed(spans[2], entries[2][1])
        part = session.stage(entries[2][0][: session.page])
        session.sync("Unpublish", span=part)
        session.sync("Unpublish", span=spans[2])
        equal(session.lengths(spans[2]), [entries[2][1]], "match of a leased entry after Unpublish")
        session.release(lease)
        session.sync("Unpublish", span=spans[2])
        equal(session.lengths(spans[2]), [], "match after Unpublish")
        bad = part.but(generation=part.generation + 7)
        equal(session.sync_refused("Unpublish", span=bad), Status.BAD_REF_GENERATION, "Unpublish of a stale span")


def compat_identity(session, sequence):
    """As the envelope of an export says it."""
    sizing = session.sync("ExportSize", sequence=sequence, space_id=SPACE, range=TOKEN_RANGE.of(0, 1))
    buffer = session.buffer(sizing.required_bytes)
    handle = session.op(
        "Snapshot",
        sequence=sequence,
        space_id=SPACE,
        boundary_pos=1,
        buf_id=buffer.buf_id,
        sizing_gen=sizing.sizing_gen,
    )
    session.done(handle)
    return parse(buffer.view[:136]).compat_identity


@check("S-10 S-11 S-22 S-30 S-31 S-32 S-33 S-68")
def forks_continue_as_their_parent(host):
    prompt = host.prompt("fork", 30)
    with host.session() as session:
        wanted = alone(session, Request(1, prompt, 16))
        session.tick([session.admit(1, prompt)], prefills=[(1, 0, 30)], decodes=[(1, 6)])
        parent = session.sequence(1)
        known = prompt + wanted[:5]
        children = [session.sync("Fork", parent_sequence=parent, flags=flags).child_sequence for flags in (0, 1, PRIVATE)]
        equal(len({parent, *children}), 4, "handles")

        for tag, child in enumerate(children, 2):
            seed = session.sync("AdoptSequence", sequence=child, span=session.stage(known)).seed_handle
            # The parent's tokens again, beside the parent and siblings; then another branch.
            more = known + [wanted[5]] if tag < 4 else known + [wanted[5] ^ 1]
            cold = wanted[6:12] if tag < 4 else alone(session, Request(1000, more, 6))
            rest = (tag, len(known), len(more) - len(known))
            admit = session.admit(tag, more, seed_handle=seed)
            events = session.tick([admit], prefills=[rest], decodes=[(tag, 6), (1, 0)])
            equal(session.sequence(tag), child, "the lane's sequence")
            equal(events.tokens[tag], cold, f"tokens of the fork of lane {tag}")
        equal(session.tick(decodes=[(1, 10)]).tokens[1], wanted[6:], "tokens of the parent")
        session.tick(retires=[(tag, False) for tag in (1, 2, 3, 4)])
        equal(session.last_mem.pool_blocks_used, 0, "blocks in use after all")


@check("S-22 S-30 S-31 S-50 S-68 W-60; bad handles")
def bare_sequences_follow_their_rules(host):
    prompt = host.prompt("bare", 40)
    with host.session() as session:
        session.tick([session.admit(1, prompt)], prefills=[(1, 0, 40)])
        lane = session.sequence(1)
        child = session.sync("Fork", parent_sequence=lane, flags=0).child_sequence
        held = prompt[:39]
        unknown, busy = Status.UNKNOWN_HANDLE, Status.BUSY

        def refused(status, variant, **fields):
            for _ in range(2):
                equal(session.sync_refused(variant, **fields), status, f"{variant} {fields}")

        def span(tokens):
            return session.stage(tokens)

        refused(unknown, "LaneSequence", lane_tag=77)
        refused(unknown, "Fork", parent_sequence=10**9)
        for variant in ("FreeSequence", "PublishSequence", "AdoptSequence"):
            fields = {} if variant == "FreeSequence" else {"span": span(held)}
            refused(unknown, variant, sequence=lane, **fields)
            refused(unknown, variant, sequence=10**9, **fields)
        refused(busy, "Trim", sequence=lane, space_id=SPACE, new_len=10)
        refused(unknown, "Trim", sequence=child, space_id=9, new_len=10)
        refused(unknown, "Trim", sequence=10**9, space_id=SPACE, new_len=10)
        refused(Status.BOUNDS, "Trim", sequence=child, space_id=SPACE, new_len=40)
        for tokens in ([], held[:-1], prompt):
            refused(Status.OUT_OF_BOUNDARY, "AdoptSequence", sequence=child, span=span(tokens))
        stale = span(held)
        stale = stale.but(generation=stale.generation + 7)
        refused(Status.BAD_REF_GENERATION, "AdoptSequence", sequence=child, span=stale)
        refused(Status.BAD_REF_GENERATION, "PublishSequence", sequence=child, span=stale)
        refused(Status.OUT_OF_BOUNDARY, "PublishSequence", sequence=child, span=span(prompt))

        lease = session.sync("AdoptSequence", sequence=child, span=span(held)).seed_handle
        refused(busy, "AdoptSequence", sequence=child, span=span(held))
        refused(busy, "FreeSequence", sequence=child)
        refused(busy, "PublishSequence", sequence=child, span=span(held))
        refused(busy, "Trim", sequence=child, space_id=SPACE, new_len=10)
        session.release(lease)

        session.sync("Trim", sequence=child, space_id=SPACE, new_len=37)
        equal(session.sync("SnapshotBoundary", sequence=child, space_id=SPACE, cap=99).boundary, 32, "boundary")
        session.sync("PublishSequence", sequence=child, span=span(held[:37]))
        equal(session.lengths(prompt), [32], "match of what was published")
        refused(unknown, "FreeSequence", sequence=child)
        refused(busy, "Trim", sequence=child, space_id=SPACE, new_len=1)

        # Less than a page is nothing to keep.
        short = session.sync("Fork", parent_sequence=lane, flags=0).child_sequence
        session.sync("PublishSequence", sequence=short, span=span(held[:15]))
        refused(unknown, "FreeSequence", sequence=short)
        empty = session.sync("CreateSequence").sequence
        session.sync("FreeSequence", sequence=empty)
        refused(unknown, "FreeSequence", sequence=empty)
        later = session.sync("CreateSequence").sequence
        expect(later not in (lane, child, short, empty), "a handle was used again")
