#!/usr/bin/env python3
"""Speed of ictus beside another engine's, on the same file, in the same minutes; the table of the README.

    python scripts/compare.py run --bench target/release/examples/bench --peer 'python scripts/peer_bench.py' --model M.gguf --out DIR
    python scripts/compare.py table [--readme] DIR...

`run` goes test by test and lets the engines take turns: ictus on each path that --paths names, then the peer. Their lines, one JSON
object each, go to DIR/ictus.jsonl and DIR/peer.jsonl, which later runs add to. `table` prints what stands there, how often faster
ictus is, and what part each figure is of the limit that its own run measured. Peer lines from elsewhere do as well, if they are of the
same minutes. Of a measurement that a folder has twice the newest counts; of several folders, which are rounds of the same, the fastest
does, on both sides. What ran on other instruction sets is never mixed: a comparison on AVX2 alone is
`--ours '--instruction-set avx2'` beside a peer built for it, in a folder of its own. `--readme` prints the tables and figures of the README,
of runs with the tests `load`, `idle` and `oversubscription` too, which is no speed beside a peer's.

The peer is llama.cpp (scripts/peer_bench.py) where this Python has llama-cpp-python; --peer names another one, or with '' none. Its
command is called as `CMD MODEL --threads N --tests T --reps R --steps S` and with `--pp`, `--depth` or `--batches`, and prints
lines with `test` (`pp`, `tg`, `batch`, `load`), `n`, `depth` or `seqs`, and `tok_s`; of several settings that it tried, the line that it marks
`best_of` counts. --peer-prefix is a command for the test `prefix`, by default scripts/peer_prefix.py in the Python of the peer.
"""
import argparse
import importlib.util
import json
import pathlib
import shlex
import subprocess
import sys

# What a peer has a bench for; ours alone runs the others, in exact arithmetic.
PEER_TESTS = {"load", "pp", "tg", "batch", "prefix"}
SIZES = {"pp": ("--pp", "n"), "tg": ("--depth", "depth"), "batch": ("--lanes", "lanes")}


def lines_of(command):
    """The JSON lines that a command prints; what it says besides goes to stderr."""
    print("+", shlex.join(command), file=sys.stderr, flush=True)
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        print(f"failed with {done.returncode}", file=sys.stderr)
    return [line for line in done.stdout.splitlines() if line.startswith("{")]


def default_peer():
    """llama.cpp, if its package is there."""
    if importlib.util.find_spec("llama_cpp"):
        return [sys.executable, str(pathlib.Path(__file__).with_name("peer_bench.py"))]
    print("skipped: the peer; this Python has no llama-cpp-python, and --peer names no other", file=sys.stderr)
    return []


def append(path, lines):
    with path.open("a") as file:
        file.writelines(line + "\n" for line in lines)


def run(args):
    out = pathlib.Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    sizes = {"pp": args.pp, "tg": args.depth, "batch": args.lanes}
    peer = default_peer() if args.peer is None else shlex.split(args.peer)
    prefix_script = pathlib.Path(__file__).with_name("peer_prefix.py")
    peer_prefix = shlex.split(args.peer_prefix) if args.peer_prefix else peer[:1] + [str(prefix_script)]
    for model in args.model:
        for threads in args.threads.split(","):
            for test in args.tests.split(","):
                known = test in PEER_TESTS
                for path in args.paths.split(",") if known else ["exact"]:
                    only = {"load": "load,rss"}.get(test, test)
                    command = [args.bench, "--json", "--model", model, "--threads", threads, "--only", only]
                    command += ["--runs", str(args.runs), "--steps", str(args.steps)]
                    command += [SIZES[test][0], sizes[test]] if test in SIZES else []
                    command += (["--fast"] if path == "fast" else []) + shlex.split(args.ours)
                    append(out / "ictus.jsonl", lines_of(command))
                if not peer or not known:
                    continue
                command = (peer_prefix if test == "prefix" else peer) + [model, "--threads", threads]
                if test != "prefix":
                    command += ["--tests", test]
                command += ["--reps", str(args.runs), "--steps", str(args.steps)]
                if test in SIZES:
                    command += [SIZES[test][0].replace("--lanes", "--batches"), sizes[test]]
                append(out / "peer.jsonl", lines_of(command + shlex.split(args.peer_args)))
    args.out, args.readme = [args.out], False
    table(args)


def key_of(line):
    """What a line measured: test and size; none for lines that are no speed."""
    size = {"pp": "n", "tg": "depth", "batch": "lanes", "prefix": "prefix"}.get(line["test"])
    if size is None or "tok_s" not in line:
        return None
    return line["test"], line.get(size, line.get("seqs"))


def read(path):
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines() if line.startswith("{")]


def ours_figures(lines):
    """Newest line per model, threads, test and path."""
    return {(line["model"], line["threads"], key_of(line), line["path"]): line for line in lines if key_of(line)}


def peer_figures(lines):
    """Best line per model, threads and test; of lines with the same key, marked ones count before others."""
    best = {}
    for line in lines:
        key = key_of(line)
        if key is None:
            continue
        at = (line["model"], line["threads"], key)
        rank = (bool(line.get("best_of")), line["tok_s"])
        if at not in best or rank > (bool(best[at].get("best_of")), best[at]["tok_s"]):
            best[at] = line
    return best


def faster(figures):
    """Of figures of several folders, for each measurement the fastest."""
    best = {}
    for at, line in (item for of_folder in figures for item in of_folder.items()):
        if at not in best or line["tok_s"] > best[at]["tok_s"]:
            best[at] = line
    return best


class Comparison:
    """What folders say of ictus on one instruction set beside a peer on one."""

    def __init__(self):
        self.ours, self.theirs, self.ours_by_folder, self.theirs_by_folder = [], [], [], []

    def add(self, ours, theirs):
        self.ours += ours
        self.theirs += theirs
        self.ours_by_folder.append(ours_figures(ours))
        self.theirs_by_folder.append(peer_figures(theirs))

    @property
    def figures(self):
        return faster(self.ours_by_folder)

    @property
    def peer(self):
        return faster(self.theirs_by_folder)


def comparisons(folders):
    """By the instruction sets of both sides; lines from before they said theirs are of one that is not named."""
    found = {}
    sets_of = lambda lines: list(dict.fromkeys(line.get("instruction_set", "not named") for line in lines if "model" in line))
    on = lambda lines, name: [line for line in lines if line.get("instruction_set", "not named") == name]
    for folder in map(pathlib.Path, folders):
        ours, theirs = read(folder / "ictus.jsonl"), read(folder / "peer.jsonl")
        for mine in sets_of(ours):
            for other in sets_of(theirs) or ["none"]:
                found.setdefault((mine, other), Comparison()).add(on(ours, mine), on(theirs, other))
    return found


def speed_rows(model, threads, ours, peer):
    keys = [key for (name, count, key, _) in ours if (name, count) == (model, threads)]
    for key in dict.fromkeys(keys):
        other = peer.get((model, threads, key))
        cells = [f"{key[0]} {key[1]}", f"{other['tok_s']:.0f}" if other else "-"]
        for path in ("exact", "fast"):
            line = ours.get((model, threads, key, path))
            if line is None:
                cells += ["-", "-", "-"]
                continue
            ratio = f"{line['tok_s'] / other['tok_s']:.2f}x" if other else "-"
            of_limit = line.get("of_limit")
            part = f"{100 * of_limit:.0f} % {line['limit']}" if of_limit is not None else "-"
            cells += [f"{line['tok_s']:.0f}", ratio, part]
        yield cells


def load_rows(model, threads, ours, theirs):
    """Seconds from opening to the first token, and peak memory."""
    mine = lambda test: next((x for x in reversed(ours) if key(x) == (model, threads, test, "exact")), None)
    key = lambda line: (line["model"], line["threads"], line["test"], line.get("path", "exact"))
    other = next((x for x in reversed(theirs) if key(x)[:3] == (model, threads, "load")), None)
    load, rss = mine("load"), mine("rss")
    if load:
        seconds = load["open_s"] + load["first_token_s"]
        peer_s = other["load_s"] + other["ctx_s"] + other["first_token_s"] if other else None
        yield "open to first token, s", peer_s, seconds, 3
    if rss:
        yield "peak memory, MB", other["rss_mb"] - other["rss0_mb"] if other else None, rss["peak_bytes"] / 2**20, 0


def limits_line(limits):
    """Least and most of what the runs found the machine to do."""
    parts = []
    for name, what in [("read_gbs", "GB/s read"), ("fma_gflops", "GFLOP/s"), ("int8_gops", "GOP/s int8")]:
        found = [line[name] for line in limits]
        between = f"{min(found)}" if min(found) == max(found) else f"{min(found)} to {max(found)}"
        parts.append(f"{between} {what}")
    return f"Limits, over {len(limits)} runs: {', '.join(parts)}. What a row reaches is against those of its own run."


def table(args):
    for (mine, other), found in comparisons(args.out).items():
        print(f"\n## ictus on {mine}, the peer on {other}")
        (readme if args.readme else tables)(found)


def tables(found):
    """A table for each model and number of threads."""
    figures, peer = found.figures, found.peer
    for model, threads in dict.fromkeys((line["model"], line["threads"]) for line in found.ours if "model" in line):
        print(f"\n**{model}**, {threads} threads\n")
        print("| tok/s | peer | exact | ratio | of limit | fast | ratio | of limit |\n|---|---|---|---|---|---|---|---|")
        for cells in speed_rows(model, threads, figures, peer):
            print("| " + " | ".join(cells) + " |")
        for name, theirs_is, mine_is, digits in load_rows(model, threads, found.ours, found.theirs):
            they = "-" if theirs_is is None else f"{theirs_is:.{digits}f}"
            ratio = "-" if theirs_is is None else f"{theirs_is / mine_is:.2f}x"
            print(f"| {name} | {they} | {mine_is:.{digits}f} | {ratio} | | | | |")
        limits = [x for x in found.ours if x["test"] == "limits" and (x["model"], x["threads"]) == (model, threads)]
        if limits:
            print("\n" + limits_line(limits))


def row_name(key, line):
    test, size = key
    return {
        "pp": f"prefill, {size}",
        "tg": f"decode behind {size}" if size else "decode",
        "batch": f"{size} lanes together",
        "prefix": f"{line.get('lanes')} lanes behind one prefix of {size} tokens",
    }[test]


def of_threads(threads, most):
    """What a row of fewer threads than the most is called before its name."""
    return "" if threads == most else "one thread: " if threads == 1 else f"{threads} threads: "


def speeds(found, model, threads, key):
    """Cells of a row: the peer, and for each path the speed and how often faster that is."""
    figures, other = found.figures, found.peer.get((model, threads, key))
    cells = [f"{other['tok_s']:.0f}" if other else "-"]
    for path in ("exact", "fast"):
        line = figures.get((model, threads, key, path))
        cells.append(f"{line['tok_s']:.0f}" if line else "-")
        cells.append(f"{line['tok_s'] / other['tok_s']:.1f}x" if line and other else "")
    return cells


def between(values, digits=0, scale=1):
    low, high = (f"{scale * value:.{digits}f}" for value in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


def readme(found):
    """Models side by side where they were measured alike, the others and shared prefixes line by line; then the figures of its text."""
    rows = {}
    for (model, threads, key, _), line in found.figures.items():
        rows.setdefault(model, {})[threads, key] = line
    most = max((threads for keys in rows.values() for threads, _ in keys), default=0)
    order = lambda keys: sorted(keys, key=lambda at: (-at[0], ["pp", "tg", "batch", "prefix"].index(at[1][0]), at[1][1]))
    alike = {model: {at for at in keys if at[1][0] != "prefix"} for model, keys in rows.items()}
    widest = max(alike.values(), key=len, default=set())
    columns = [model for model, keys in alike.items() if keys == widest and keys]
    stem = lambda model: model.removesuffix(".gguf")
    print("\n| tokens a second | " + " | ".join(f"{stem(model)}: llama.cpp | exact | | fast |" for model in columns) + " |")
    print("|---" * (1 + 5 * len(columns)) + "|")
    for threads, key in order(widest):
        cells = [cell for model in columns for cell in speeds(found, model, threads, key)]
        name = of_threads(threads, most) + row_name(key, rows[columns[0]][threads, key])
        print("| " + " | ".join([name] + cells) + " |")
    apart = [(model, at) for model, keys in rows.items() for at in order(keys) if model not in columns or at[1][0] == "prefix"]
    if apart:
        print("\n| tokens a second | llama.cpp | exact | | fast | |\n|---|---|---|---|---|---|")
    for model, (threads, key) in apart:
        name = f"{stem(model)}: {of_threads(threads, most)}{row_name(key, rows[model][threads, key])}"
        print("| " + " | ".join([name] + speeds(found, model, threads, key)) + " |")
    print()
    for line in (*about(found), *limits_of(found), *beside_speed(found, most)):
        print(f"- {line}")


def about(found):
    """Who ran, how often, on what."""
    versions = sorted({line["version"] for line in (*found.ours, *found.theirs) if "version" in line})
    runs = between([line["runs"] for line in found.figures.values()] or [0])
    yield f"{', '.join(versions)}; medians of {runs} runs, from {len(found.ours_by_folder)} folder(s)"
    for path in ("exact", "fast"):
        kinds = sorted({line["kv"] for (*_, of), line in found.figures.items() if of == path})
        if kinds:
            yield f"{path}: keys and values {' and '.join(kinds)}"
    with_flash = [bool(line.get("fa")) for line in found.peer.values()]
    if with_flash:
        yield f"llama.cpp is faster with flash attention in {sum(with_flash)} of {len(with_flash)} lines"
    systems = sorted({line["system"] for line in found.theirs if "system" in line})
    yield from (f"llama.cpp says: {system}" for system in systems)


def limits_of(found):
    """What the machine could do, and how much of that was reached."""
    limits = [line for line in found.ours if line["test"] == "limits"]
    for threads in sorted({line["threads"] for line in limits}, reverse=True):
        yield f"{threads} thread(s): " + limits_line([line for line in limits if line["threads"] == threads])
    for path in ("exact", "fast"):
        for test, name in [("pp", "prefill"), ("tg", "decode"), ("batch", "lanes together")]:
            lines = [line for (_, _, key, of), line in found.figures.items() if key[0] == test and of == path]
            parts = {}
            for line in lines:
                if line.get("of_limit") is not None:
                    parts.setdefault(line["limit"], []).append(line["of_limit"])
            for limit, reached in parts.items():
                yield f"{path} {name} reaches {between(reached, 0, 100)} % of {limit} ({len(reached)} lines)"


def beside_speed(found, most):
    """Opening, memory, idleness and more threads than processors."""
    for model in dict.fromkeys(line["model"] for line in found.ours if "model" in line):
        for name, theirs, ours, digits in load_rows(model, most, found.ours, found.theirs):
            yield f"{model}: {name}: {ours:.{digits}f}" + ("" if theirs is None else f" (llama.cpp {theirs:.{digits}f})")
    for line in found.ours:
        if line["test"] == "idle" and "state" in line:
            took = f"{line['cpu_us']} us of processor time and {line['sleeps']} sleeps in a second"
            yield f"{line['model']}, {line['threads']} threads: idle, {line['state']}: {took}"
        if line["test"] == "oversubscription":
            yield f"{line['model']}: {line['threads']} threads on {line['processors']} processors: {line['of_matched']} of the speed of one each"
        if line["test"] in ("tick", "match", "fork"):
            size = next(f"{line[name]} {name}" for name in ("lanes", "entries", "tokens") if name in line)
            yield f"{line['test']}, {size}: {line['us']} us"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("run")
    one.add_argument("--bench", default="target/release/examples/bench")
    one.add_argument("--peer", help="command of the peer's bench, by default of llama.cpp where its package is; empty runs ictus alone")
    one.add_argument("--peer-prefix", default="")
    one.add_argument("--peer-args", default="", help="more arguments for the peer's commands")
    one.add_argument("--ours", default="", help="more arguments for the bench of ictus")
    one.add_argument("--model", action="append", required=True)
    one.add_argument("--threads", default="2")
    one.add_argument("--paths", default="exact,fast")
    one.add_argument("--tests", default="load,pp,tg,batch,prefix")
    one.add_argument("--runs", type=int, default=3)
    one.add_argument("--steps", type=int, default=64)
    one.add_argument("--pp", default="32,128,512")
    one.add_argument("--depth", default="0,512,2048")
    one.add_argument("--lanes", default="8,32")
    one.add_argument("--out", default="target/compare")
    one.set_defaults(call=run)
    two = commands.add_parser("table")
    two.add_argument("out", nargs="+")
    two.add_argument("--readme", action="store_true", help="models side by side, as in the README")
    two.set_defaults(call=table)
    args = parser.parse_args()
    args.call(args)


if __name__ == "__main__":
    main()
