#!/usr/bin/env python3
"""Speed of ictus beside another engine's, on the same file, in the same minutes; the table of the README.

    python scripts/compare.py run --bench target/release/examples/bench --peer 'python scripts/peer_bench.py' --model M.gguf --out DIR
    python scripts/compare.py table DIR

`run` goes test by test and lets the engines take turns: ictus on each path that --paths names, then the peer. Their lines, one JSON
object each, go to DIR/ictus.jsonl and DIR/peer.jsonl, which later runs add to. `table` prints what stands there, how often faster
ictus is, and what part each figure is of the limit that its own run measured. Peer lines from elsewhere do as well, if they are of the
same minutes.

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
                for path in args.paths.split(","):
                    only = {"load": "load,rss"}.get(test, test)
                    command = [args.bench, "--json", "--model", model, "--threads", threads, "--only", only]
                    command += ["--runs", str(args.runs), "--steps", str(args.steps)]
                    command += [SIZES[test][0], sizes[test]] if test in SIZES else []
                    command += (["--fast"] if path == "fast" else []) + shlex.split(args.ours)
                    append(out / "ictus.jsonl", lines_of(command))
                if not peer:
                    continue
                command = (peer_prefix if test == "prefix" else peer) + [model, "--threads", threads]
                if test != "prefix":
                    command += ["--tests", test]
                command += ["--reps", str(args.runs), "--steps", str(args.steps)]
                if test in SIZES:
                    command += [SIZES[test][0].replace("--lanes", "--batches"), sizes[test]]
                append(out / "peer.jsonl", lines_of(command + shlex.split(args.peer_args)))
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
    out = pathlib.Path(args.out)
    ours, theirs = read(out / "ictus.jsonl"), read(out / "peer.jsonl")
    figures = {}
    for line in ours:
        if key_of(line):
            figures[(line["model"], line["threads"], key_of(line), line["path"])] = line
    peer = peer_figures(theirs)
    for model, threads in dict.fromkeys((line["model"], line["threads"]) for line in ours if "model" in line):
        print(f"\n**{model}**, {threads} threads\n")
        print("| tok/s | peer | exact | ratio | of limit | fast | ratio | of limit |\n|---|---|---|---|---|---|---|---|")
        for cells in speed_rows(model, threads, figures, peer):
            print("| " + " | ".join(cells) + " |")
        for name, theirs_is, mine_is, digits in load_rows(model, threads, ours, theirs):
            they = "-" if theirs_is is None else f"{theirs_is:.{digits}f}"
            ratio = "-" if theirs_is is None else f"{theirs_is / mine_is:.2f}x"
            print(f"| {name} | {they} | {mine_is:.{digits}f} | {ratio} | | | | |")
        limits = [x for x in ours if x["test"] == "limits" and (x["model"], x["threads"]) == (model, threads)]
        if limits:
            print("\n" + limits_line(limits))


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
    two.add_argument("out")
    two.set_defaults(call=table)
    args = parser.parse_args()
    args.call(args)


if __name__ == "__main__":
    main()
