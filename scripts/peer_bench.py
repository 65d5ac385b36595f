#!/usr/bin/env python3
"""llama.cpp on one model, in lines of JSON that stand beside those of examples/bench: the peer of compare.py.

    python scripts/peer_bench.py MODEL.gguf --threads 2 [--tests pp,tg,batch,load] [--reps 3] [--steps 64]
                                 [--pp 32,128,512] [--depth 0,512,2048] [--batches 8,32] [--fa both|on|off]

pp     `n` tokens in one call, in parts of 512 (ubatch), logits of the last one
tg     `steps` calls of one token behind `depth` tokens; nothing is sampled
batch  `seqs` sequences behind a prompt of 128 tokens each: `steps` calls of one token for each of them, with logits for all; `tok_s` is of
       these calls alone
load   in a process of its own: seconds of opening (`load_s`), of making a context (`ctx_s`) and of the first token, and peak memory behind a
       prompt of 512 tokens and 32 decoded ones (`rss_mb`) and before the model is opened (`rss0_mb`)

Each figure is the median of `reps` runs after a warm-up; of at most three with 16 sequences or more, as in examples/bench. Prompts of tg and
batch are computed once: every run starts from a copy of their state. Keys and values are 16 bits wide, each sequence has a buffer of its own,
weights are laid out anew for the processor where llama.cpp can. pp, tg and batch run with flash attention (`fa`) and without; the faster
line is repeated at the end with the mark `best_of`. load has it on, unless --fa off. Needs llama-cpp-python, built for this machine.

Every line has the instructions that this build of llama.cpp computes with (`instruction_set`, by the names of examples/bench); the line `info`
has all that it says of itself. A build for AVX2 alone, on any machine (without the last option pip takes a build of other options that it has kept):

    CMAKE_ARGS="-DGGML_NATIVE=OFF -DGGML_AVX=ON -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON -DGGML_BMI2=ON -DGGML_AVX512=OFF" \\
        pip install --no-binary llama-cpp-python llama-cpp-python==0.3.36 --no-cache-dir
"""
import argparse
import ctypes
import json
import os
import re
import subprocess
import sys
import time

import llama_cpp as L

UBATCH = 512
BATCH_PROMPT = 128
QUIET = L.llama_log_callback(lambda level, text, user: None)


def tokens(count, vocab, seed):
    """The ids that examples/bench feeds."""
    state, ids = seed * 2654435761 % 2**32, []
    for _ in range(count):
        state = (state * 1664525 + 1013904223) % 2**32
        ids.append(min(min(1000, vocab - 1) + (state >> 8) % max(vocab - 2000, 1), vocab - 1))
    return ids


def fill(batch, rows):
    """Rows are (token, position, sequence, whether its logits are wanted)."""
    for i, (token, position, sequence, wanted) in enumerate(rows):
        batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, position, 1, wanted
        batch.seq_id[i][0] = sequence
    batch.n_tokens = len(rows)


def decode(context, batch):
    code = L.llama_decode(context, batch)
    if code:
        raise RuntimeError(f"llama_decode answers {code}")
    L.llama_synchronize(context)


def start():
    """Once in a process; the log of llama.cpp goes nowhere."""
    L.llama_log_set(QUIET, ctypes.c_void_p(0))
    L.llama_backend_init()


def instruction_set():
    """The widest vectors that llama.cpp was built for, as examples/bench names them."""
    has = set(re.findall(r"(\w+) = 1", L.llama_print_system_info().decode()))
    names = {"AVX512_VNNI": "avx512-vnni", "AVX512": "avx512", "AVX_VNNI": "avx2-vnni", "AVX2": "avx2", "DOTPROD": "neon-dotprod", "NEON": "neon"}
    return next((name for feature, name in names.items() if feature in has), "portable")


def open_model(path):
    params = L.llama_model_default_params()
    params.n_gpu_layers, params.use_extra_bufts = 0, True
    model = L.llama_model_load_from_file(path.encode(), params)
    if not model:
        raise SystemExit(f"cannot load {path}")
    return model, L.llama_vocab_n_tokens(L.llama_model_get_vocab(model))


class Context:
    """Sequences with room for `cells` tokens in all, and a batch that holds as many."""

    def __init__(self, model, threads, flash, cells, sequences=1):
        params = L.llama_context_default_params()
        params.n_ctx = params.n_batch = cells
        params.n_ubatch, params.n_seq_max = min(UBATCH, cells), sequences
        params.n_threads = params.n_threads_batch = threads
        params.flash_attn_type, params.kv_unified, params.swa_full, params.no_perf = int(flash), False, False, True
        self.handle = L.llama_init_from_model(model, params)
        if not self.handle:
            raise RuntimeError("no context")
        self.memory, self.batch = L.llama_get_memory(self.handle), L.llama_batch_init(cells, 0, 1)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        L.llama_batch_free(self.batch)
        L.llama_free(self.handle)

    def fill(self, ids, sequence=0):
        """A prompt; its last logits are wanted."""
        fill(self.batch, [(token, at, sequence, at == len(ids) - 1) for at, token in enumerate(ids)])

    def run(self):
        decode(self.handle, self.batch)

    def state(self, sequence):
        size = L.llama_state_seq_get_size(self.handle, sequence)
        state = (ctypes.c_uint8 * size)()
        if L.llama_state_seq_get_data(self.handle, state, size, sequence) != size:
            raise RuntimeError("no state of a sequence")
        return state

    def restore(self, states):
        """Sequence i holds states[i]; without states all are empty."""
        L.llama_memory_clear(self.memory, False)
        for sequence, state in enumerate(states):
            if not L.llama_state_seq_set_data(self.handle, state, len(state), sequence):
                raise RuntimeError("a state does not go back")


def measure(reps, prepare, work):
    """Seconds of `work` in each run but the first, the shortest first."""
    seconds = []
    for _ in range(reps + 1):
        prepare()
        started = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - started)
    return sorted(seconds[1:])


def prefill(model, args, flash, ids):
    with Context(model, args.threads, flash, max(1024, len(ids))) as context:

        def prepare():
            context.restore([])
            context.fill(ids)

        return measure(args.reps, prepare, context.run)


def generate(model, args, flash, prompts, fed):
    """Steps that feed each sequence its next token of `fed`, behind prompts of one length."""
    lanes, depth = len(prompts), len(prompts[0])
    room = -(-(depth + args.steps) // 256) * 256
    with Context(model, args.threads, flash, lanes * room, lanes) as context:
        states = []
        for lane in range(lanes if depth else 0):
            context.fill(prompts[lane], lane)
            context.run()
            states.append(context.state(lane))

        def steps():
            for step in range(args.steps):
                fill(context.batch, [(fed[lane][step], depth + step, lane, True) for lane in range(lanes)])
                context.run()

        reps = min(args.reps, 3) if lanes >= 16 else args.reps
        return measure(reps, lambda: context.restore(states), steps)


def cases(args, vocab):
    """Of each measurement: its fields, the tokens that it is about, and what runs it with a model, arguments and flash attention."""
    tests = args.tests.split(",")
    for n in map(int, args.pp.split(",") if "pp" in tests else []):
        yield {"test": "pp", "n": n}, n, lambda *on, ids=tokens(n, vocab, n): prefill(*on, ids)
    for depth in map(int, args.depth.split(",") if "tg" in tests else []):
        texts = [tokens(depth, vocab, 1)], [tokens(args.steps, vocab, 7)]
        yield {"test": "tg", "depth": depth, "steps": args.steps}, args.steps, lambda *on, texts=texts: generate(*on, *texts)
    for seqs in map(int, args.batches.split(",") if "batch" in tests else []):
        prompts = [tokens(BATCH_PROMPT, vocab, lane + 1) for lane in range(seqs)]
        texts = prompts, [tokens(args.steps, vocab, 100 + lane) for lane in range(seqs)]
        fields = {"test": "batch", "seqs": seqs, "prompt": BATCH_PROMPT, "steps": args.steps}
        yield fields, seqs * args.steps, lambda *on, texts=texts: generate(*on, *texts)


def peak_mb():
    """Of this program alone; what getrusage answers includes the process that started it."""
    with open("/proc/self/status") as status:
        return int(re.search(r"VmHWM:\s*(\d+) kB", status.read())[1]) / 1024


def child(args):
    """One run of `load`, as a line of JSON."""
    start()
    line, marks = {"rss0_mb": peak_mb()}, [time.perf_counter()]
    model, vocab = open_model(args.model)
    marks.append(time.perf_counter())
    with Context(model, args.threads, args.fa != "off", 1024) as context:
        marks.append(time.perf_counter())
        context.fill([1])
        context.run()
        marks.append(time.perf_counter())
        line |= {name: end - begin for name, begin, end in zip(("load_s", "ctx_s", "first_token_s"), marks, marks[1:])}
        context.restore([])
        context.fill(tokens(512, vocab, 1))
        context.run()
        for at, token in enumerate(tokens(32, vocab, 7), 512):
            fill(context.batch, [(token, at, 0, True)])
            context.run()
        print(json.dumps(line | {"rss_mb": peak_mb()}))


def load(args):
    """The median of each field over the runs."""
    command = [sys.executable, os.path.abspath(__file__), args.model, "--child", "--threads", str(args.threads), "--fa", args.fa]
    outputs = [subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout for _ in range(args.reps)]
    runs = [json.loads(output.splitlines()[-1]) for output in outputs]
    return {name: round(sorted(run[name] for run in runs)[len(runs) // 2], 4) for name in runs[0]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    for name, value in [("--threads", 2), ("--reps", 3), ("--steps", 64)]:
        parser.add_argument(name, type=int, default=value)
    for name, value in [("--tests", "pp,tg,batch,load"), ("--pp", "32,128,512"), ("--depth", "0,512,2048"), ("--batches", "8,32")]:
        parser.add_argument(name, default=value)
    parser.add_argument("--fa", default="both", choices=["both", "on", "off"])
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        return child(args)
    start()
    base = {"engine": "llama.cpp", "model": os.path.basename(args.model), "threads": args.threads, "instruction_set": instruction_set()}

    def say(line):
        print(json.dumps(base | line), flush=True)

    say({"test": "info", "version": f"llama-cpp-python {L.__version__}", "system": L.llama_print_system_info().decode().strip()})
    if "load" in args.tests.split(","):
        say({"test": "load", "fa": args.fa != "off", "runs": args.reps} | load(args))
    if not {"pp", "tg", "batch"} & set(args.tests.split(",")):
        return
    model, vocab = open_model(args.model)
    for fields, count, measured in cases(args, vocab):
        best = None
        for flash in {"both": (False, True), "on": (True,), "off": (False,)}[args.fa]:
            line = fields | {"fa": flash}
            try:
                seconds = measured(model, args, flash)
            except (RuntimeError, OSError) as reason:
                say(line | {"skipped": str(reason)})
                continue
            median = seconds[len(seconds) // 2]
            line |= {"runs": len(seconds), "median_s": round(median, 6), "best_s": round(seconds[0], 6), "tok_s": round(count / median, 2)}
            say(line)
            best = line if best is None or median < best["median_s"] else best
        if best:
            say(best | {"best_of": True})
    L.llama_model_free(model)


if __name__ == "__main__":
    main()
