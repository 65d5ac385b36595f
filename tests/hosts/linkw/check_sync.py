"""The rest of state sync, strategies, ping and drain (linkw.md 11 and 12)."""

import json
import math
import struct

import messages
from expect import check, equal, expect, note
from messages import ARTIFACT, CAP_REQ, SAMPLING, TAP, Status
from schedule import Request, Scheduler, alone
from session import ADMITTED, DRAWN, FINISH_EOS, FINISH_GRAMMAR, GREEDY, HOST, IGNORE_EOS, REJECTED, floats

NONE_HERE = "/nowhere/at/all"


@check("W-96 section 11; media")
def media_of_a_text_model_is_unsupported(host):
    with host.session() as session:
        session.tick([session.admit(1, [1, 2, 3])], prefills=[(1, 0, 3)])
        requests = [
            ("image_encode", "MediaProbe", dict(image_path=NONE_HERE)),
            ("image_encode", "MediaEncode", dict(image_path=NONE_HERE)),
            ("image_encode", "MediaRelease", dict(media_handle=1)),
            ("image_encode", "MediaBind", dict(lane_tag=1, media_handle=1, token_offset=0)),
            ("whisper_transcribe", "Transcribe", dict(audio_path=NONE_HERE, language="en")),
            ("whisper_transcribe", "Transcribe", dict(audio_path=NONE_HERE, stream=True, prompt="")),
        ]
        for member, variant, fields in requests:
            expect(isinstance(session.capabilities["modalities"][member], str), f"the model claims {member}")
            for _ in range(2):
                equal(session.sync_refused(variant, **fields), Status.UNSUPPORTED, variant)
        equal(len(session.tick(decodes=[(1, 2)]).tokens[1]), 2, "tokens after the refusals")


@check("E-11 section 11; ForwardStage, Embed, Lora")
def stages_compose_and_other_workloads_answer(host):
    with host.session() as session:
        tokens = host.prompt("stages", 7)
        (first,) = alone(session, Request(1, tokens, 1))

        def stage(start, end, hidden=None):
            return session.sync("ForwardStage", tokens=tokens, start_layer=start, end_layer=end, hidden_in=hidden)

        layers = 1
        while stage(0, layers).token is None:
            layers += 1
            expect(layers < 200, "no last layer")
        equal(stage(0, layers).token, first, "token of all layers in one stage")
        for cut in range(1, layers):
            part = stage(0, cut)
            expect(part.hidden and part.token is None, f"stage up to {cut}")
            equal(stage(cut, layers, part.hidden).token, first, f"token of two stages cut at {cut}")
            for second in range(cut + 1, layers):
                middle = stage(cut, second, part.hidden).hidden
                equal(stage(second, layers, middle).token, first, f"token of three stages cut at {cut}, {second}")
        for start, end in ((0, layers + 1), (2, 1), (layers + 1, layers + 1)):
            refused = session.sync_refused("ForwardStage", tokens=tokens, start_layer=start, end_layer=end)
            equal(refused, Status.BOUNDS, f"layers {start} to {end}")
        for hidden in (b"", b"\x00", part.hidden[:-1], part.hidden + b"\x00"):
            asked = dict(tokens=tokens, start_layer=layers - 1, end_layer=layers, hidden_in=hidden)
            equal(session.sync_refused("ForwardStage", **asked), Status.BAD_STRUCT, f"{len(hidden)} bytes of activations")

        if isinstance(session.capabilities["workload"]["embedding"], str):
            equal(session.sync_refused("Embed", tokens=tokens), Status.UNSUPPORTED, "Embed")
            note("the model gives no embeddings")
        else:
            data = session.sync("Embed", tokens=tokens).embedding
            expect(data and len(data) % 4 == 0, f"an embedding of {len(data)} bytes")
            values = floats([int.from_bytes(data[at : at + 4], "little") for at in range(0, len(data), 4)])
            expect(all(map(math.isfinite, values)) and any(values), "an embedding without values")
            equal(session.sync("Embed", tokens=tokens).embedding, data, "the embedding again")

        equal(session.sync("LoraId").id, None, "adapter of a fresh worker")
        for variant, fields in (("LoraLoad", dict(adapter_path=NONE_HERE)), ("LoraLoad", dict(adapter_path=host.model))):
            for _ in range(2):
                expect(session.sync_refused(variant, **fields) < 0, f"{variant} {fields}")
        equal(session.sync("LoraId").id, None, "adapter after refused loads")
        equal(alone(session, Request(1, tokens, 1)), [first], "token after them")


@check("W-65 R-50 R-52 R-53 R-54 T-82 T-127 T-129 T-130 W-90")
def prompt_lookup_changes_no_token(host):
    # The small model stutters after this: what a lane said already is a good draft.
    loop = [23, 24]
    modes = [
        dict(),
        dict(params=SAMPLING.new(temperature=0.2, top_p=0.9, top_k=20, flags=IGNORE_EOS), seed=9),
        dict(params=SAMPLING.new(top_p=1.0, repeat_penalty=1.02, flags=IGNORE_EOS)),
    ]
    registration = dict(
        strategy_id="prompt-lookup", impl_version="1.0.0", claimed_exactness=2, rng_contract_version=1
    )

    def register(session, **changed):
        return session.request(messages.STRATEGY_REGISTER, **{**registration, **changed})

    with host.session() as session:
        requests = [Request(tag, loop, 24, **mode) for tag, mode in enumerate(modes, 1)]
        wanted = {request.tag: alone(session, request) for request in requests}
        equal(session.refused([session.admit(9, loop, strategy_slot=1)]), Status.ILLEGAL_COMBINATION, "slot before a grant")
        for changed in (
            dict(strategy_id="oracle"),
            dict(strategy_id="prompt-lookup\0"),
            dict(kernel_caps_required=1),
            dict(target_archs=["sm_90"]),
            dict(capabilities=[CAP_REQ.of(2, b"")]),
            dict(capabilities=[CAP_REQ.of(77, b"")]),
            dict(capabilities=[CAP_REQ.of(1, b""), CAP_REQ.of(3, b"")]),
        ):
            kind, record = register(session, **changed)
            equal((kind, record.status), ("Refused", Status.REGISTRATION_REFUSED), f"registration with {changed}")
        parameters = b"max_draft=4, throughput_gate=0, yield_rounds=1000"
        kind, grant = register(session, capabilities=[CAP_REQ.of(1, parameters)])
        equal(kind, "Granted", "prompt-lookup")
        equal((grant.state_spaces, grant.reserved_bytes), ([], 0), "the rest of the grant")
        (cert,) = grant.certificates
        certified = (cert.exactness, cert.sampling_modes, cert.param_domain, cert.grammar_allowed, cert.logit_bias_allowed)
        equal(certified, (1, 3, 3, False, False), "the certificate")
        slot = grant.strategy_slot
        expect(slot and cert.cert_id, grant)
        # What is recorded or ignored is taken.
        kind, again = register(
            session,
            capabilities=[CAP_REQ.of(1, parameters[:9]), CAP_REQ.of(1, parameters[9:])],
            artifacts=[ARTIFACT.of(1, b"\x05" * 32, 77, NONE_HERE)],
            taps=[TAP.of(1, 1, 0, 0)],
            est_state_bytes=1 << 40,
            claimed_exactness=0,
            rng_contract_version=9,
        )
        equal((kind, again.strategy_slot), ("Granted", slot), "slot of the same registration again")

        proposed = taken = 0
        for request in requests:
            admit = session.admit(
                request.tag,
                request.prompt,
                params=request.params,
                mode=DRAWN if request.params.temperature > 0 else GREEDY,
                rng_counter_base=request.base,
                strategy_slot=slot,
            )
            end = len(request.prompt)
            events = session.tick([admit], prefills=[(request.tag, 0, end)], decodes=[(request.tag, 1)])
            (result,) = events.admit_results
            equal((result.cert_id, result.granted_class), (cert.cert_id, cert.exactness), "the admit's certificate")
            tokens = events.tokens[request.tag]
            while len(tokens) < 24:
                left = 24 - len(tokens)
                grant_now = min(6, left)
                events = session.tick(decodes=[(request.tag, grant_now, min(3, left - grant_now))], flags=4)
                (emit,) = events.emits
                expect(emit.n_tokens >= grant_now, f"{emit.n_tokens} tokens for a grant of {grant_now}")
                drafts, accepted, certificate = emit.spec
                expect(accepted <= drafts and (certificate == cert.cert_id) == (drafts > 0), f"spec {emit.spec}")
                proposed += drafts
                taken += accepted
                tokens += events.tokens[request.tag]
            equal(tokens, wanted[request.tag], f"tokens with drafts, lane {request.tag}")
            session.tick(retires=[(request.tag, False)])
        expect(0 < taken <= proposed, f"{taken} of {proposed} drafts taken")

        # Another implementation has no certificate: its lanes are rejected, alone.
        kind, other = register(session, impl_hash=b"\x07" * 32)
        equal((kind, other.strategy_slot, other.certificates), ("Granted", slot, []), "other hashes")
        admits = [session.admit(7, loop, strategy_slot=slot), session.admit(8, loop)]
        events = session.tick(admits, prefills=[(7, 0, 2), (8, 0, 2)], decodes=[(7, 3), (8, 3)])
        statuses = [(result.lane_tag, result.status) for result in events.admit_results]
        equal(statuses, [(7, REJECTED), (8, ADMITTED)], "admits")
        equal(events.tokens, {8: wanted[1][:3]}, "tokens beside a rejected lane")
        equal(session.sync_refused("LaneSequence", lane_tag=7), Status.UNKNOWN_HANDLE, "a rejected lane")


SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}, "kind": {"enum": ["one", "two"]}},
        "required": ["ok", "kind"],
        "x-guidance": {"whitespace_flexible": False},
    }
)


@check("R-61 R-62 R-63 T-31 T-32 E-12 W-45")
def grammars_hold_lanes_to_their_schema(host):
    params = SAMPLING.new(temperature=1.0, top_p=1.0)
    prompt = host.prompt("grammar", 8)
    with host.session() as session:
        for variant, text in (
            ("CreateGrammar", "no JSON"),
            ("CreateGrammar", '{"type": 7}'),
            ("CreateGrammarStructural", "[]"),
            ("CreateGrammarStructural", '{"type": "structural_tag"}'),
        ):
            field = "json_schema" if variant == "CreateGrammar" else "tag_json"
            for _ in range(2):
                equal(session.sync_refused(variant, **{field: text}), Status.BAD_STRUCT, f"{variant} of {text}")
        first = session.sync("CreateGrammar", json_schema=SCHEMA).grammar_handle
        second = session.sync("CreateGrammar", json_schema=SCHEMA).grammar_handle
        expect(0 < first < second, f"handles {first}, {second}")

        def lane(tag, grammar, replay=(), **fields):
            fields = {"params": params, "mode": DRAWN, "rng_counter_base": 40 + len(replay), **fields}
            return session.admit(
                tag,
                prompt + list(replay),
                grammar_handle=grammar,
                grammar_replay=len(replay),
                decode_replay=len(replay),
                **fields,
            )

        prefill = (1, 0, len(prompt))
        events = session.tick([lane(1, first)], prefills=[prefill], decodes=[(1, 200)], flags=4)
        tokens = events.tokens[1]
        equal(events.emits[0].finish, FINISH_GRAMMAR, f"finish of {host.tokenizer.text_of(tokens)}")
        value = json.loads(host.tokenizer.text_of(tokens))
        expect(set(value) == {"ok", "kind"} and value["ok"] in (True, False) and value["kind"] in ("one", "two"), value)

        bad = Status.ILLEGAL_COMBINATION
        equal(session.refused([lane(2, first)]), bad, "a grammar that a lane holds")
        equal(session.refused([lane(2, second, mode=HOST)]), bad, "a grammar on a HOST lane")
        equal(session.refused([lane(2, second), lane(3, second)]), bad, "a grammar twice in a plan")
        session.tick(retires=[(1, False)])
        # From its start again; then resumed in the middle, where it was.
        events = session.tick([lane(1, first)], prefills=[prefill], decodes=[(1, 200)])
        equal(events.tokens[1], tokens, "tokens of the grammar's second lane")
        session.tick(retires=[(1, False)])
        middle = len(tokens) // 2
        events = session.tick([lane(1, first, tokens[:middle])], prefills=[prefill])
        events = session.tick(decodes=[(1, 200)])
        equal(events.tokens[1], tokens[middle:], "tokens after a resume")
        wrong = lane(2, second, host.tokenizer.encode("["))
        equal(session.refused([wrong]), bad, "a replay that the grammar refuses")

        session.sync("FreeGrammar", grammar_handle=first)
        equal(session.sync_refused("FreeGrammar", grammar_handle=first), Status.UNKNOWN_HANDLE, "freed while borrowed")
        session.tick(retires=[(1, False)])
        equal(session.refused([lane(1, first)]), bad, "a freed grammar")
        session.sync("FreeGrammar", grammar_handle=second)
        equal(session.sync_refused("FreeGrammar", grammar_handle=second), Status.UNKNOWN_HANDLE, "freed twice")

        # An open-ended one ends by the end token.
        tag = json.dumps({"type": "const_string", "value": "ok"})
        structural = session.sync("CreateGrammarStructural", tag_json=tag).grammar_handle
        events = session.tick([lane(4, structural)], prefills=[(4, 0, len(prompt))], decodes=[(4, 20)])
        equal(events.emits[0].finish, FINISH_EOS, "finish of a structural grammar")
        equal(host.tokenizer.text_of(events.tokens[4]), b"ok", "its text")


@check("E-12 T-33 W-45; TS-22")
def biases_are_copied_at_admission(host):
    prompt = host.prompt("bias", 9)
    bits = {100.0: 0x42C80000, -100.0: 0xC2C80000}
    with host.session() as session:
        plain = alone(session, Request(1, prompt, 4))
        other = next(token for token in range(5, 99) if token not in plain)
        outside = [-1, host.vocab, 2**31 - 1]
        handle = session.sync(
            "CreateLogitBias", tokens=[other, *outside], values=[bits[100.0]] * 4
        ).handle
        never = session.sync("CreateLogitBias", tokens=[plain[0]], values=[bits[-100.0], 0]).handle
        expect(0 < handle < never, f"handles {handle}, {never}")
        for bias, what in ((handle, [other] * 4), (never, None)):
            events = session.tick(
                [session.admit(2, prompt, logit_bias_handle=bias)], prefills=[(2, 0, 9)], decodes=[(2, 2)]
            )
            session.sync("FreeLogitBias", handle=bias)
            equal(session.sync_refused("FreeLogitBias", handle=bias), Status.UNKNOWN_HANDLE, "freed twice")
            tokens = events.tokens[2] + session.tick(decodes=[(2, 2)]).tokens[2]
            equal(tokens, what or tokens, "tokens of a lane whose bias was freed")
            expect(what or plain[0] not in tokens, f"{plain[0]} in {tokens}")
            session.tick(retires=[(2, False)])
            equal(
                session.refused([session.admit(3, prompt, logit_bias_handle=bias)]),
                Status.ILLEGAL_COMBINATION,
                "a freed bias",
            )


@check("T-112 T-115 W-13 E-12")
def biases_of_any_bits_pick_as_the_rules_say(host):
    nan, most, least = 0x7FC00000, 0x7F800000, 0xFF800000
    prompt = host.prompt("bits", 5)
    with host.session() as session:
        hosted = Request(1, prompt, 1, host=True)
        Scheduler(session).run([hosted])
        best, second = sorted(range(host.vocab), key=lambda id: (-hosted.rows[0][id], id))[:2]
        everything = list(range(host.vocab))
        for tokens, values, wanted in (
            ([], [], best),
            ([best], [nan], second),
            ([0], [nan], 0),
            (everything, [least] * host.vocab, 0),
            ([7, 5], [most, most], 5),
            ([best], [least], second),
            # Zipped to the shorter list, and what stands twice counts twice.
            ([second, best], [bits_of(60.0)], second),
            ([second, second, best], [bits_of(60.0), bits_of(60.0), bits_of(90.0)], second),
        ):
            handle = session.sync("CreateLogitBias", tokens=tokens, values=values).handle
            events = session.tick(
                [session.admit(2, prompt, logit_bias_handle=handle)], prefills=[(2, 0, 5)], decodes=[(2, 1)]
            )
            equal(events.tokens[2], [wanted], f"token under {tokens[:3]} + {values[:3]}")
            session.tick(retires=[(2, False)])


def bits_of(value):
    return int.from_bytes(struct.pack("<f", value), "little")


@check("W-66 W-67 T-145")
def ping_and_drain_answer_with_what_is(host):
    with host.session() as session:
        equal(session.pong().queue_depth, 0, "queue depth of a fresh worker")
        Scheduler(session, grants=(3,)).run([Request(1, host.prompt("ping", 20), 5)])
        session.tick([session.admit(2, host.prompt("ping", 20))], prefills=[(2, 0, 20)], decodes=[(2, 3)])
        pong = session.pong()
        equal(pong.mem, session.last_mem, "mem of the PONG")
        page = session.page
        cells = session.capabilities["limits"]["cells_total"]
        used = (pong.mem.pool_blocks_total, pong.mem.pool_blocks_used)
        equal(used, (cells // page, -(-22 // page)), "blocks in all and in use")
        session.request(messages.DRAIN_REQ)
        equal(len(session.tick(decodes=[(2, 3)]).tokens[2]), 3, "tokens after a drain")
