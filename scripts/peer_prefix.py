#!/usr/bin/env python3
"""llama.cpp with one prompt for many sequences: the peer's line for the test `prefix` of examples/bench.

    python scripts/peer_prefix.py MODEL.gguf --threads 2 [--prefix 1024] [--lanes 32] [--steps 64] [--reps 3]

The prompt runs once in sequence 0; the others get its cells (llama_memory_seq_cp), so that nothing is computed twice. Then `steps` calls
of one token for each sequence are timed, and taken back before the next run. Tried with one buffer for all sequences and with a buffer
each, with flash attention and without; the best line is marked `best_of`. Needs llama-cpp-python, built for this machine.
"""
import argparse
import json
import os
import time

import llama_cpp as L

from peer_bench import decode, fill, instruction_set, open_model, start, tokens


def measure(model, vocab, args, flash, unified, whole):
    """Seconds of each run; none where steps cannot be taken back. `whole` keeps all cells of layers with a window."""
    params = L.llama_context_default_params()
    room = args.prefix + args.steps
    params.n_ctx = args.prefix + args.lanes * (args.steps + 32) if unified else args.lanes * (room + 32)
    params.n_batch, params.n_ubatch, params.n_seq_max = 2048, 512, args.lanes
    params.n_threads = params.n_threads_batch = args.threads
    params.flash_attn_type, params.kv_unified, params.swa_full, params.no_perf = int(flash), unified, whole, True
    context = L.llama_init_from_model(model, params)
    if not context:
        return []
    batch, memory = L.llama_batch_init(2048, 0, 1), L.llama_get_memory(context)
    prompt = tokens(args.prefix, vocab, 1)
    fill(batch, [(token, at, 0, at == args.prefix - 1) for at, token in enumerate(prompt)])
    decode(context, batch)
    for lane in range(1, args.lanes):
        L.llama_memory_seq_cp(memory, 0, lane, -1, -1)
    fed = [tokens(args.steps, vocab, 100 + lane) for lane in range(args.lanes)]
    seconds = []
    for _ in range(args.reps + 1):
        started = time.perf_counter()
        for step in range(args.steps):
            fill(batch, [(fed[lane][step], args.prefix + step, lane, True) for lane in range(args.lanes)])
            decode(context, batch)
        seconds.append(time.perf_counter() - started)
        if not all([L.llama_memory_seq_rm(memory, lane, args.prefix, -1) for lane in range(args.lanes)]):
            seconds = []
            break
    L.llama_batch_free(batch)
    L.llama_free(context)
    return sorted(seconds[1:])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    for name, value in [("--threads", 2), ("--prefix", 1024), ("--lanes", 32), ("--steps", 64), ("--reps", 3)]:
        parser.add_argument(name, type=int, default=value)
    args, _ = parser.parse_known_args()
    start()
    model, vocab = open_model(args.model)
    best = None
    for flash in (False, True):
        for unified in (True, False):
            line = {"engine": "llama.cpp", "model": os.path.basename(args.model), "threads": args.threads, "test": "prefix"}
            line |= {"lanes": args.lanes, "prefix": args.prefix, "steps": args.steps, "fa": flash, "kvu": unified}
            line["instruction_set"] = instruction_set()
            try:
                seconds = measure(model, vocab, args, flash, unified, False) or measure(model, vocab, args, flash, unified, True)
            except (RuntimeError, OSError) as reason:
                print(json.dumps(line | {"skipped": str(reason)}), flush=True)
                continue
            if not seconds:
                print(json.dumps(line | {"skipped": "no context"}), flush=True)
                continue
            median = seconds[len(seconds) // 2]
            line |= {"runs": len(seconds), "median_s": round(median, 6), "best_s": round(seconds[0], 6)}
            line["tok_s"] = round(args.lanes * args.steps / median, 2)
            print(json.dumps(line), flush=True)
            if best is None or line["tok_s"] > best["tok_s"]:
                best = line
    if best:
        print(json.dumps(best | {"best_of": True}), flush=True)


if __name__ == "__main__":
    main()
