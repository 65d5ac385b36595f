"""The worker as a command: report, command line, load, end (linkw.md sections 5, 14 and 15)."""

import json
import os
import signal
import subprocess
import tempfile
import time

import messages
from expect import check, equal, expect
from link import Ended, Link
from schedule import Request, alone

RESERVED = {"model", "max-context", "max-batch", "kv-bits", "frames-fd", "fd-channel-fd", "engine"}
DESCRIPTORS = ["--frames-fd", "3", "--fd-channel-fd", "4"]
MISSING = "/nowhere/model.gguf"


def one_line(said, what):
    expect(said.endswith("\n") and said.count("\n") == 1 and len(said) > 1, f"{what}: stderr {said!r}")


@check("W-84 W-85 W-86 W-89")
def report_names_the_runtime_and_reads_the_model(host):
    report = host.report
    equal(report["runtime"]["id"], "ictus", "runtime.id")
    expect(8 in report["link_w"], report["link_w"])
    equal(report["available"], True, "available")
    model = report["model"]
    equal((model["path"], model["reads"]), (host.model, True), "model")
    name = os.path.basename(host.model)
    magic = open(host.model, "rb").read(16)
    files = [form["file"] for form in report["formats"] if "file" in form]
    expect(
        any(
            name.lower().endswith(tuple("." + ending.lower() for ending in form["extensions"]))
            or magic.startswith(form["magic"].encode())
            for form in files
        ),
        f"no format matches {name}: {files}",
    )
    for form in report["formats"]:
        expect({"id", "describe"} < set(form) and ("file" in form) != ("directory" in form), form)
    for device in report["devices"]:
        equal(set(device), {"backend", "name", "memory", "budget"}, "members of a device")
    sizing = model["sizing"]
    wanted = {"budget_bytes", "weight_bytes", "kv_bytes_per_token", "trained_context"}
    expect(wanted <= set(sizing) and all(sizing[name] > 0 for name in wanted), sizing)
    equal(report["tokenizer"]["from"], "library", "tokenizer")
    equal(f"lib{report['tokenizer']['name']}.so", os.path.basename(host.library), "library's name")

    status, printed, said = host.command("version")
    equal((status, printed.strip(), said), (0, report["runtime"]["version"], ""), "version")
    # The host closes the check's standard input (W-84).
    closed = ["sh", "-c", 'exec "$0" "$@" <&-', host.worker, "check", "--model", host.model]
    equal(json.loads(subprocess.run(closed, capture_output=True, check=True).stdout), report, "without an input")
    status, printed, _ = host.command("check")
    alone = json.loads(printed)
    equal((status, "model" in alone), (0, False), "check without a model")
    equal(alone, {name: value for name, value in report.items() if name != "model"}, "the rest of the report")


@check("W-84 W-82 WS-23")
def check_of_what_cannot_be_read_says_why(host):
    for path in (MISSING, "/dev/null", os.path.dirname(__file__)):
        status, printed, _ = host.command("check", "--model", path)
        reads = json.loads(printed)["model"]["reads"]
        expect(status == 1 and isinstance(reads, str) and reads, f"check of {path}: {status}, {reads!r}")
    for words in (["check", "--vigour", "3"], ["check", "model.gguf"]):
        status, printed, said = host.command(*words)
        equal((status, printed), (2, ""), f"{words}")
        one_line(said, words)


@check("W-82 WS-23")
def bad_command_lines_are_refused_in_one_line(host):
    model = ["--model", host.model]
    cases = [
        (["fetch"], ""),
        (["-model", host.model], ""),
        ([*model, "spare", *DESCRIPTORS], ""),
        ([*model, "--vigour", "3", *DESCRIPTORS], "unknown flag --vigour"),
        ([*model, *DESCRIPTORS, "--max-batch"], ""),
        ([*model, "--max-context", "many", *DESCRIPTORS], ""),
        ([*model, "--max-batch", "-1", *DESCRIPTORS], ""),
        ([*model, "--frames-fd", "three", "--fd-channel-fd", "4"], ""),
        (DESCRIPTORS, ""),
        (model, "--frames-fd"),
        (["--model", MISSING], "--frames-fd"),
        ([*model, "--frames-fd", "3"], ""),
    ]
    for words, said_of in cases:
        status, printed, said = host.command(*words)
        equal((status, printed), (2, ""), f"{words}: {said}")
        one_line(said, words)
        expect(said_of in said, f"{words}: {said!r} does not name {said_of!r}")


@check("W-86")
def options_of_the_report_are_read_with_their_defaults(host):
    words = []
    for option in host.report["options"]:
        expect(option["kind"] in ("int", "float", "on-off", "choice", "text"), option)
        expect(option["name"] not in RESERVED, f"{option['name']} is reserved")
        if option["kind"] == "choice":
            expect(option["default"] in option["choices"], option)
        if option["kind"] in ("int", "float"):
            expect(option["least"] <= option["default"] <= option["most"], option)
        default = option["default"]
        words += [f"--{option['name']}", ("on" if default else "off") if isinstance(default, bool) else str(default)]
    request = Request(1, host.prompt("options", 9), 4)
    with host.session() as plain, host.session(options=words) as named:
        equal(alone(named, request), alone(plain, request), "tokens with all options at their defaults")
        equal(named.ack.capabilities, plain.ack.capabilities, "capabilities")


@check("W-81 W-23 W-30 section 6")
def ring_specs_follow_the_command_line(host):
    def rounded(size):
        return -(-size // 8) * 8

    def specs(options=(), **how):
        with host.session(ready="greeted", options=options, **how) as session:
            equal(session.ack.limits.max_frame, 16_777_216, "max_frame")
            equal(session.ack.limits.op_window, 16, "op_window")
            found = [(spec.ring_id, spec.kind[0], spec.slot_bytes, spec.slots) for spec in session.ack.limits.ring_specs]
            return found, session.capabilities["limits"]["max_seq_len"]

    trained = host.report["model"]["sizing"]["trained_context"]

    def wanted(context):
        return [
            (1, "tokens", rounded(16 + 4 * max(context, 512)), 64),
            (2, "tokens", 16 + 4 * 1024, 256),
            (3, "logits", rounded(16 + 4 * host.vocab), 8),
        ]

    # The context is the one that the model serves: what it was trained at bounds what is asked for.
    for asked in (64, 4096):
        found, served = specs(context=asked)
        equal(served, min(asked, trained), f"max_seq_len when {asked} is asked for")
        equal(found, wanted(served), f"rings at a context of {served}")
    found, served = specs(context=4096, options=["--max-context", "64"])
    equal((found, served), (wanted(64), 64), "rings when the last flag wins")


@check("W-23 W-24 W-95 R-91")
def acknowledgement_says_the_same_in_every_start(host):
    with host.session() as first, host.session() as second:
        equal(first.ack, second.ack, "acknowledgement of a second start")
        request = Request(1, host.prompt("again", 20), 6)
        tokens = alone(first, request)
        first.greet()
        equal(first.ack, second.ack, "acknowledgement to a second HELLO")
        equal(alone(first, request), tokens, "tokens after a second HELLO")
        equal(first.sync("Capabilities").json, first.ack.capabilities, "Capabilities")
        equal(first.ack.strategies, [], "strategies")
        equal(len(first.ack.engine_bundle_hash), 32, "bundle hash")
        space = first.ack.spaces[0]
        equal((space.space_id, space.kind, space.name), (1, 1, "kv.full"), "the space")
        expect(first.page >= 1 and "\0" not in space.name, space)
        agrees(host.report["capabilities"], first.capabilities)


def agrees(static, loaded, place=""):
    """A load never contradicts the static part; it adds members (R-91)."""
    for name, value in static.items():
        expect(name in loaded, f"{place}{name} is gone after the load")
        if isinstance(value, dict):
            agrees(value, loaded[name], f"{place}{name}.")
        else:
            equal(loaded[name], value, f"{place}{name} after the load")


@check("W-21 WS-5")
def version_is_the_highest_both_speak(host):
    for versions in ((8, 8), (1, 20), (0, 65535), (8, 9)):
        with host.session(ready="started") as session:
            # The version in the header of a HELLO is not looked at (W-20).
            equal(session.greet(versions, version=3).chosen, 8, f"chosen of {versions}")
    for versions in ((9, 12), (1, 7), (9, 8)):
        with host.session(ready="started") as session:
            session.send(messages.HELLO, versions=versions)
            equal(session.ended(), 1, f"exit code after the offer {versions}")
            one_line(session.process.said(), versions)


@check("W-25 W-71")
def worker_whose_load_fails_exits_with_3(host):
    with tempfile.NamedTemporaryFile(suffix=".gguf") as torn:
        with open(host.model, "rb") as whole:
            torn.write(whole.read()[:5000])
        torn.flush()
        for path in (MISSING, torn.name, "/dev/null"):
            link = Link([host.worker, "--model", path])
            try:
                link.send(messages.HELLO, versions=(8, 8))
                equal(link.ended(), 3, f"exit code after loading {path}")
                one_line(link.process.said(), path)
            except BrokenPipeError:
                equal(link.process.wait(10), 3, f"exit code after loading {path}")
            finally:
                link.free()


@check("W-70 W-6 WS-21")
def closing_the_stream_ends_the_worker_at_once(host):
    def idle(session):
        pass

    def with_lanes(session):
        session.tick([session.admit(1, host.prompt("closing", 30))], prefills=[(1, 0, 30)], decodes=[(1, 3)])
        session.seed_outcome(host.prompt("closing", 30), 16)
        session.sync("CreateSequence")

    def inside_a_frame(session):
        session.raw(b"\x19\x00\x00\x00\x08")

    def inside_a_length(session):
        session.raw(b"\x19\x00")

    def fds_first(session):
        session.fds.close()
        equal(session.pong().queue_depth, 0, "PONG without the descriptor socket")

    def ends(case):
        with host.session() as session:
            case(session)
            closed = time.monotonic()
            equal(session.close(60.0), 0, f"exit code, {case.__name__}")
            took = time.monotonic() - closed
            if case in (inside_a_frame, inside_a_length):
                one_line(session.process.said(), case.__name__)
            return took

    for case in (idle, with_lanes, inside_a_frame, inside_a_length, fds_first):
        # Within a second; a busy machine may keep one end waiting for a processor, not each of ten.
        expect(any(ends(case) < 1.0 for _ in range(10)), f"{case.__name__}: ten ends of more than a second each")
    with host.session(ready="started") as session:
        equal(session.close(10.0), 0, "exit code, closed before HELLO")


@check("W-73 W-70")
def host_that_goes_away_before_its_answers_leaves_no_worker(host):
    with host.session() as session:
        prompt = host.prompt("gone", 40)
        plan = session.plan([session.admit(1, prompt)], prefills=[(1, 0, 40)], decodes=[(1, 100)], flags=4)
        session.send(messages.TICK_SUBMIT, plan=plan)
        expect(session.close(10.0) in (0, 1), f"a signal or another code: {session.process.status}")


@check("W-95 WS-22")
def worker_killed_in_a_tick_is_started_again_with_the_same_answers(host):
    prompt = host.prompt("killed", 25)
    request = Request(1, prompt, 12)
    with host.session() as session:
        plan = session.plan([session.admit(1, prompt)], prefills=[(1, 0, 25)], decodes=[(1, 300)], flags=4)
        session.send(messages.TICK_SUBMIT, plan=plan)
        first = session.receive()[1]
        os.kill(session.process.pid, signal.SIGKILL)
        heard = [first.tokens[0]]
        try:
            while True:
                heard += session.receive()[1].tokens
        except Ended:
            pass
        equal(session.process.wait(5), -signal.SIGKILL, "exit status")
        capabilities = session.ack.capabilities
    with host.session() as session:
        equal(session.ack.capabilities, capabilities, "capabilities of the new worker")
        tokens = alone(session, request)
        common = min(len(tokens), len(heard))
        equal(heard[:common], tokens[:common], "what the killed worker had said")


@check("W-72")
def idle_worker_answers_at_once(host):
    with host.session() as session:
        time.sleep(0.2)
        started = time.monotonic()
        for _ in range(50):
            session.pong()
        each = (time.monotonic() - started) / 50
        expect(each < 0.1, f"{each} s for a PING")
