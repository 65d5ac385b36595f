#!/usr/bin/env python3
"""gpu_table.py FOLDER: the lines of benches/cuda.rs and peer_torch.py (ictus.jsonl, torch.jsonl) as one table.

The floor of an operation is the longer of two times: its bytes at the bandwidth that the bench measured, and its operations at the rate that torch's large
products had in the same run (f32, bf16, s8, whichever the operation is made of). `of floor` is floor / time: 1 is as fast as can be. Without torch there is no rate,
and the floor is the memory's alone. Beside it torch's time for the same shape, where it has such an operation.
"""
import json
import pathlib
import sys

# What tells one measurement of a test from another one.
SHAPE = ("type", "rows", "width", "outputs", "inputs", "kv", "dims", "lanes", "positions", "vocab", "pages", "how", "encoding", "tokens", "arithmetic")
# Dimensions of the heads that torch attends with.
PEER_DIMS = 64
QUANTISED = ("Q", "IQ")


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines() if line.startswith("{")] if path.exists() else []


def unit(line):
    """Which units an operation of ictus is made of."""
    if line["test"] == "linear_fast":
        return "s8" if line["type"].startswith(QUANTISED) else "bf16"
    return "bf16" if line["test"].startswith("attention") and line.get("arithmetic") == "fast" else "f32"


def peer_of(line, torch):
    """Torch's line for the shape of one of ours."""
    test = {"linear_fast": "linear"}.get(line["test"], line["test"])
    if line["test"] == "linear_fast" and line["type"] != "BF16" or line["test"] == "linear" and line["type"] != "BF16":
        return None
    if test == "pick" and line["how"] != "draw":
        return None
    if test == "attention_prefill" and line["positions"] != line["rows"]:
        return None
    if line.get("dims", PEER_DIMS) != PEER_DIMS:
        return None
    keys = [key for key in ("rows", "outputs", "inputs", "lanes", "kv") if key in line]
    same = lambda other: other["test"] == test and all(other[key] == line[key] for key in keys if key in other)
    return next((other for other in torch if "us" in other and same(other)), None)


def main():
    folder = pathlib.Path(sys.argv[1])
    ictus, torch = lines(folder / "ictus.jsonl"), lines(folder / "torch.jsonl")
    bandwidth = next((line["gb_s"] * 1e9 for line in ictus if line["test"] == "bandwidth"), None)
    if not bandwidth:
        sys.exit("ictus.jsonl has no line with the bandwidth")
    rates = {line["type"]: line["tflop_s"] * 1e12 for line in torch if line["test"] == "rate" and "tflop_s" in line}
    print(f"{ictus[0]['device']}: {bandwidth / 1e9:.0f} GB/s;", ", ".join(f"{name} {rate / 1e12:.0f} TFLOP/s" for name, rate in rates.items()) or "no rates (no torch)")
    print(*(line["form"] for line in ictus if line["test"] == "kernels"))
    print("\n| test | shape | us | floor us | of floor | torch us |\n|---|---|---|---|---|---|")
    for line in ictus:
        if "us" not in line:
            continue
        seconds = line["us"] / 1e6
        floor = line["gb_s"] * 1e9 * seconds / bandwidth
        rate = rates.get(unit(line))
        if rate and "tflop_s" in line:
            floor = max(floor, line["tflop_s"] * 1e12 * seconds / rate)
        shape = " ".join(f"{key} {line[key]}" for key in SHAPE if key in line)
        peer = peer_of(line, torch)
        beside = f"{peer['us']:.1f}" if peer else ""
        print(f"| {line['test']} | {shape} | {line['us']:.1f} | {floor * 1e6:.2f} | {floor / seconds:.3f} | {beside} |")
    print("\n| whole steps | arithmetic | lanes or tokens | graphs (steps that were one) | ms | tokens/s | of bandwidth |\n|---|---|---|---|---|---|---|")
    for line in ictus:
        if line["test"] in ("step", "pp"):
            count, part = line.get("lanes", line.get("n")), line.get("of_bandwidth", "")
            graphs = f"{'yes' if line['graphs'] else 'no'} ({line['graph_hits']} of {line['steps']})" if "graphs" in line else ""
            print(f"| {line['test']} | {line['arithmetic']} | {count} | {graphs} | {line['ms']} | {line['tok_s']} | {part} |")


if __name__ == "__main__":
    main()
