#!/usr/bin/env python3
"""torch's kernels on the shapes of benches/cuda.rs, one JSON line each, for a table beside that bench's lines.

Products and attention are torch's in bf16 and f16, so they read half the bytes of f32 activations; `of_bandwidth` counts what they read.
Picking a token is softmax, sort and multinomial over the row, as no single kernel of torch does all of it.
"""
import json
import statistics
import time

import torch
import torch.nn.functional as F

HIDDEN, FFN, HEADS, KV_HEADS, HEAD_DIM, VOCAB = 2048, 8192, 32, 8, 64, 128_256
ROWS, LANES, CONTEXT, PROMPT = (1, 4, 16, 64, 512), (1, 16, 64), 4096, 512
device = torch.device("cuda")
bandwidth = 1.0


def seconds(operation, least=0.02):
    """Median of five of the time of one call."""

    def batch(calls):
        torch.cuda.synchronize()
        started = time.perf_counter()
        for call in range(calls):
            operation(call)
        torch.cuda.synchronize()
        return time.perf_counter() - started

    batch(3)
    calls = max(1, min(10_000, int(least / max(batch(1), 1e-7)) + 1))
    return statistics.median(batch(calls) / calls for _ in range(5))


def say(test, count, operation, operations=0, **shape):
    took = seconds(operation)
    line = dict(engine="torch", version=torch.__version__, device=torch.cuda.get_device_name(), test=test, **shape)
    line |= dict(us=round(took * 1e6, 3), gb_s=round(count / took / 1e9, 1), of_bandwidth=round(count / took / bandwidth, 4))
    if operations:
        line["tflop_s"] = round(operations / took / 1e12, 3)
    print(json.dumps(line), flush=True)
    return took


def rates():
    """What the arithmetic units do in products that are large enough: the other floor beside the memory's bandwidth."""
    torch.backends.cuda.matmul.allow_tf32 = False
    for name, dtype, size in (("f32", torch.float32, 4096), ("bf16", torch.bfloat16, 8192), ("s8", torch.int8, 8192)):
        a = torch.randint(-9, 9, (size, size), device=device).to(dtype)
        product = torch._int_mm if dtype == torch.int8 else torch.matmul
        try:
            say("rate", 3 * a.numel() * a.element_size(), lambda _: product(a, a), 2 * size**3, type=name)
        except RuntimeError as error:
            print(json.dumps(dict(engine="torch", test="rate", type=name, error=str(error).splitlines()[0])), flush=True)


def main():
    global bandwidth
    x, y = (torch.rand(64 << 20, device=device) for _ in range(2))
    took = say("bandwidth", 12 * x.numel(), lambda _: x.add_(y))
    bandwidth = 12 * x.numel() / took
    del x, y
    rates()
    weight = torch.rand(HIDDEN, device=device)
    for rows in ROWS:
        x = torch.rand(rows, HIDDEN, device=device)
        say("rms_norm", 8 * x.numel(), lambda _: F.rms_norm(x, (HIDDEN,), weight, 1e-5), rows=rows, width=HIDDEN)
    matrices = [torch.rand(FFN, HIDDEN, device=device, dtype=torch.bfloat16) for _ in range(16)]
    for rows in ROWS:
        x = torch.rand(rows, HIDDEN, device=device, dtype=torch.bfloat16)
        count = 2 * (FFN * HIDDEN + rows * (FFN + HIDDEN))
        say("linear", count, lambda call: F.linear(x, matrices[call % 16]), 2 * rows * FFN * HIDDEN, type="BF16",
            rows=rows, outputs=FFN, inputs=HIDDEN)
    del matrices

    def state(lanes, heads, tokens):
        return torch.rand(lanes, heads, tokens, HEAD_DIM, device=device, dtype=torch.float16)

    for lanes in LANES:
        query, key, value = state(lanes, HEADS, 1), state(lanes, KV_HEADS, CONTEXT), state(lanes, KV_HEADS, CONTEXT)
        count = 4 * lanes * CONTEXT * KV_HEADS * HEAD_DIM
        say("attention_decode", count, lambda _: F.scaled_dot_product_attention(query, key, value, enable_gqa=True),
            4 * lanes * CONTEXT * HEADS * HEAD_DIM, kv="F16", lanes=lanes)
    query, key, value = state(1, HEADS, PROMPT), state(1, KV_HEADS, PROMPT), state(1, KV_HEADS, PROMPT)
    say("attention_prefill", 4 * PROMPT * KV_HEADS * HEAD_DIM,
        lambda _: F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True),
        2 * PROMPT * (PROMPT + 1) * HEADS * HEAD_DIM, kv="F16", rows=PROMPT)
    for lanes in LANES:
        logits = torch.randn(lanes, VOCAB, device=device)

        def pick(_):
            ordered, ids = torch.softmax(logits / 0.8, -1).sort(-1, descending=True)
            kept = ordered * (ordered.cumsum(-1) - ordered < 0.95)
            return ids.gather(-1, torch.multinomial(kept, 1))

        say("pick", 4 * logits.numel(), pick, lanes=lanes, vocab=VOCAB)


if __name__ == "__main__":
    main()
