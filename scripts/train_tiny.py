"""Trains the default model, models/ictus-tiny.gguf, on the stories of stories.py.

A Llama: RMSNorm, rotary embedding on adjacent pairs, grouped-query attention, SwiGLU, tied embedding. Each row
of a batch starts with <|begin|> and holds texts one after the other, and a token attends to its own text. What
a step sees depends on the key and its number only, so a run that was stopped and resumed is the run that never
stopped. First come short rows of primer text, which teach it to look names up, then stories. The learning rate
warms up, stays, and falls linearly to zero over the last `--decay` steps; the last quarter of those trains on rows
of the full context length, where a token attends to the earlier stories too.

    python3 train_tiny.py --steps 2000 --decay 700 --checkpoint tiny.npz --out ../models/ictus-tiny.gguf

Needs numpy and jax (CPU). One thread.

# Source
arXiv 2307.09288 (Llama 2), 2002.05202 (SwiGLU), 2104.09864 (rotary embedding), 1412.6980 (Adam), 2502.16982 (Muon
with the step size of Adam); K. Jordan, "Muon: an optimizer for hidden layers in neural networks" (2024).
"""

import argparse
import os
import time
from functools import partial

os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_cpu_multi_thread_eigen=false"
os.environ["NPROC"] = "1"
os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"

import jax
import jax.numpy as jnp
import numpy as np

import bpe
import gguf_writer as gguf
import stories

VOCAB, HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD_DIM, FFN = 1024, 128, 5, 4, 2, 32, 384
CONTEXT, ROPE_BASE, EPS = 512, 10000.0, 1e-5
BOS, EOS = 0, 1
TRAIN_KEY, CHECK_KEY, BPE_STORIES = 1, 2, 20000
ROWS, ROW_TOKENS, PRIMER_TOKENS, PRIMER_STEPS = 8, 256, 64, 400
PEAK_RATE, WARMUP, WEIGHT_DECAY, CLIP, BETA1, BETA2, MOMENTUM = 4e-3, 100, 0.1, 1.0, 0.9, 0.95, 0.95


def make_tokenizer():
    merges = bpe.train([stories.story(TRAIN_KEY, i) for i in range(BPE_STORIES)], VOCAB - 258)
    tokens = ["<|begin|>", "<|end|>", *bpe.LETTERS, *("".join(m) for m in merges)]
    assert len(set(tokens)) == VOCAB
    return bpe.Tokenizer(tokens, merges)


def row(tokenizer, key, number, length, text):
    """`length + 1` tokens that start with BOS; row `number` takes its texts from 8 * number on."""
    ids, index = [], number * 8
    while len(ids) <= length:
        ids += [BOS, *tokenizer.encode(text(key, index)), EOS]
        index += 1
    return ids[: length + 1]


def batch(tokenizer, key, step, rows, length, text=stories.story):
    return np.array([row(tokenizer, key, step * 64 + r, length, text) for r in range(rows)], np.int32)


def initial(key):
    rng = np.random.Generator(np.random.Philox(key))
    normal = lambda *shape, std: (rng.standard_normal(shape) * std).astype(np.float32)
    params = {"embed": normal(VOCAB, HIDDEN, std=0.1), "norm": np.ones(HIDDEN, np.float32)}
    std, out_std = HIDDEN**-0.5, HIDDEN**-0.5 / (2 * LAYERS) ** 0.5
    for i in range(LAYERS):
        params |= {
            f"{i}.attn_norm": np.ones(HIDDEN, np.float32),
            f"{i}.q": normal(HEADS * HEAD_DIM, HIDDEN, std=std),
            f"{i}.k": normal(KV_HEADS * HEAD_DIM, HIDDEN, std=std),
            f"{i}.v": normal(KV_HEADS * HEAD_DIM, HIDDEN, std=std),
            f"{i}.o": normal(HIDDEN, HEADS * HEAD_DIM, std=out_std),
            f"{i}.ffn_norm": np.ones(HIDDEN, np.float32),
            f"{i}.gate": normal(FFN, HIDDEN, std=std),
            f"{i}.up": normal(FFN, HIDDEN, std=std),
            f"{i}.down": normal(HIDDEN, FFN, std=out_std * (HIDDEN / FFN) ** 0.5),
        }
    return {k: jnp.asarray(v) for k, v in params.items()}


def rms_norm(x, weight):
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + EPS) * weight


def rope(x):
    """`x`: [rows, tokens, heads, head_dim]; dimensions 2i and 2i+1 turn by position * base^(-2i/head_dim)."""
    angle = np.arange(x.shape[1])[:, None] * ROPE_BASE ** (-np.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    cos, sin = (jnp.asarray(f(angle), jnp.float32)[:, None, :] for f in (np.cos, np.sin))
    even, odd = x[..., 0::2], x[..., 1::2]
    return jnp.stack([even * cos - odd * sin, even * sin + odd * cos], -1).reshape(x.shape)


def forward(params, ids, apart):
    """Logits [rows, tokens, vocab] of `ids` [rows, tokens]; `apart`: no token sees past its <|begin|>."""
    rows, length = ids.shape
    x = params["embed"][ids]
    seen = jnp.asarray(np.tril(np.ones((length, length), bool)))[None, None, None]
    if apart:
        number = jnp.cumsum(ids == BOS, 1)
        seen &= (number[:, :, None] == number[:, None, :])[:, None, None]
    for i in range(LAYERS):
        p = {k.split(".", 1)[1]: v for k, v in params.items() if k.startswith(f"{i}.")}
        h = rms_norm(x, p["attn_norm"])
        q = rope((h @ p["q"].T).reshape(rows, length, HEADS, HEAD_DIM))
        k = rope((h @ p["k"].T).reshape(rows, length, KV_HEADS, HEAD_DIM))
        v = (h @ p["v"].T).reshape(rows, length, KV_HEADS, HEAD_DIM)
        q = q.reshape(rows, length, KV_HEADS, HEADS // KV_HEADS, HEAD_DIM)
        score = jnp.einsum("bqhgd,bkhd->bhgqk", q, k) * HEAD_DIM**-0.5
        weight = jax.nn.softmax(jnp.where(seen, score, -1e30), -1)
        x += jnp.einsum("bhgqk,bkhd->bqhgd", weight, v).reshape(rows, length, -1) @ p["o"].T
        h = rms_norm(x, p["ffn_norm"])
        x += (jax.nn.silu(h @ p["gate"].T) * (h @ p["up"].T)) @ p["down"].T
    return rms_norm(x, params["norm"]) @ params["embed"].T


def loss(params, ids, apart):
    logits = forward(params, ids[:, :-1], apart)
    target = jnp.take_along_axis(logits, ids[:, 1:, None], -1)[..., 0]
    return jnp.mean(jax.nn.logsumexp(logits, -1) - target)


def orthogonal(g):
    """Five Newton-Schulz steps towards the nearest matrix with all singular values 1."""
    x = g.T if g.shape[0] > g.shape[1] else g
    x = x / (jnp.linalg.norm(x) + 1e-7)
    for _ in range(5):
        square = x @ x.T
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    return x.T if g.shape[0] > g.shape[1] else x


@partial(jax.jit, static_argnames="apart")
def update(params, m, v, ids, rate, step, apart):
    """One step: Muon for the matrices inside the layers, Adam for the embedding and the norms."""
    value, grads = jax.value_and_grad(loss)(params, ids, apart)
    norm = jnp.sqrt(sum(jnp.sum(g * g) for g in grads.values()))
    scale = jnp.minimum(1.0, CLIP / (norm + 1e-6))
    out, m2, v2 = {}, {}, {}
    for k, w in params.items():
        g = grads[k] * scale
        if k in v:
            m2[k] = BETA1 * m[k] + (1 - BETA1) * g
            v2[k] = BETA2 * v[k] + (1 - BETA2) * g * g
            move = m2[k] / (1 - BETA1**step) / (jnp.sqrt(v2[k] / (1 - BETA2**step)) + 1e-8)
        else:
            m2[k] = MOMENTUM * m[k] + g
            move = 0.2 * max(w.shape) ** 0.5 * orthogonal(g + MOMENTUM * m2[k]) + WEIGHT_DECAY * w
        out[k] = w - rate * move
    return out, m2, v2, value


def rate_at(step, steps, decay):
    return PEAK_RATE * min(1.0, (step + 1) / WARMUP) * min(1.0, (steps - step) / max(decay, 1))


def save(path, step, params, m, v):
    flat = {f"{n}/{k}": np.asarray(x) for n, d in (("p", params), ("m", m), ("v", v)) for k, x in d.items()}
    np.savez(path + ".part.npz", step=step, **flat)
    os.replace(path + ".part.npz", path)


def load(path):
    data = np.load(path)
    part = lambda n: {k.split("/", 1)[1]: jnp.asarray(data[k]) for k in data.files if k.startswith(n + "/")}
    return int(data["step"]), part("p"), part("m"), part("v")


NAMES = {
    "attn_norm": "attn_norm", "q": "attn_q", "k": "attn_k", "v": "attn_v", "o": "attn_output",
    "ffn_norm": "ffn_norm", "gate": "ffn_gate", "up": "ffn_up", "down": "ffn_down",
}


def export(path, params, tokenizer):
    """Matrices as Q8_0, norms as F32."""
    out = gguf.Writer()
    for key, value in {
        "general.architecture": "llama", "general.type": "model", "general.name": "ictus-tiny",
        "general.basename": "ictus", "general.size_label": "1.1M", "general.license": "apache-2.0",
        "general.description": "little stories in simple English; the default model of ictus",
        "general.languages": ["en"],
    }.items():
        out.meta(key, value)
    for key, value in {
        "general.quantization_version": 2, "general.file_type": 7,
        "llama.block_count": LAYERS, "llama.context_length": CONTEXT, "llama.embedding_length": HIDDEN,
        "llama.feed_forward_length": FFN, "llama.attention.head_count": HEADS, "llama.attention.head_count_kv": KV_HEADS,
        "llama.attention.key_length": HEAD_DIM, "llama.attention.value_length": HEAD_DIM,
        "llama.rope.dimension_count": HEAD_DIM, "llama.vocab_size": VOCAB,
    }.items():
        out.meta(key, gguf.U32(value))
    out.meta("llama.rope.freq_base", gguf.F32(ROPE_BASE))
    out.meta("llama.attention.layer_norm_rms_epsilon", gguf.F32(EPS))
    out.tokenizer_gpt2(tokenizer.tokens, tokenizer.merges, [3, 3] + [1] * (VOCAB - 2), BOS, EOS, add_bos=True)
    out.tensor("token_embd.weight", np.asarray(params["embed"]), "Q8_0")
    for i in range(LAYERS):
        for ours, theirs in NAMES.items():
            w = np.asarray(params[f"{i}.{ours}"])
            out.tensor(f"blk.{i}.{theirs}.weight", w, "F32" if w.ndim == 1 else "Q8_0")
    out.tensor("output_norm.weight", np.asarray(params["norm"]), "F32")
    out.write(path)


def write_story(params, tokenizer, prompt, temperature, rng, limit=250):
    """Draws one story; recomputes everything for each token, so that there is nothing to get wrong."""
    ids = [BOS, *tokenizer.encode(prompt)]
    while len(ids) < limit and ids[-1] != EOS:
        logits = np.asarray(sample_logits(params, jnp.asarray(ids + [0] * (limit - len(ids)))[None], len(ids) - 1), np.float64)
        if temperature == 0:
            ids.append(int(logits.argmax()))
        else:
            p = np.exp((logits - logits.max()) / temperature)
            ids.append(int(rng.choice(VOCAB, p=p / p.sum())))
    return tokenizer.decode(ids, (BOS, EOS)) + (" [end]" if ids[-1] == EOS else " [cut]")


@jax.jit
def sample_logits(params, ids, position):
    return forward(params, ids, False)[0, position]


def main():
    args = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    args.add_argument("--steps", type=int, default=2000)
    args.add_argument("--decay", type=int, default=700)
    args.add_argument("--checkpoint", default="tiny.npz")
    args.add_argument("--out", default="ictus-tiny.gguf")
    args.add_argument("--every", type=int, default=200, help="steps between checks, checkpoints and samples")
    args = args.parse_args()
    tokenizer = make_tokenizer()
    if os.path.exists(args.checkpoint):
        step, params, m, v = load(args.checkpoint)
    else:
        step, params = 0, initial(0)
        m = {k: jnp.zeros_like(x) for k, x in params.items()}
        v = {k: x for k, x in m.items() if k == "embed" or x.ndim == 1}
    print(f"{sum(x.size for x in params.values())} parameters, from step {step}", flush=True)
    check = batch(tokenizer, CHECK_KEY, 0, 64, ROW_TOKENS)
    check_loss = jax.jit(partial(loss, apart=True))
    start, recent = time.time(), []
    while step < args.steps:
        apart = step < args.steps - args.decay // 4
        length = PRIMER_TOKENS if step < PRIMER_STEPS else ROW_TOKENS if apart else CONTEXT
        text = stories.primer if step < PRIMER_STEPS else stories.story
        ids = batch(tokenizer, TRAIN_KEY, step, ROWS * ROW_TOKENS // length, length, text)
        params, m, v, value = update(params, m, v, ids, rate_at(step, args.steps, args.decay), step + 1.0, apart)
        recent.append(float(value))
        step += 1
        if step % 50 == 0:
            print(f"step {step} train {np.mean(recent[-50:]):.4f} {time.time() - start:.0f} s", flush=True)
        if step % args.every == 0 or step == args.steps:
            held = np.mean([float(check_loss(params, check[i : i + 8])) for i in range(0, 64, 8)])
            print(f"step {step} check {held:.4f}", flush=True)
            save(args.checkpoint, step, params, m, v)
            export(args.out, params, tokenizer)
            rng = np.random.Generator(np.random.Philox(step))
            print(write_story(params, tokenizer, "Once upon a time", 0.7, rng), flush=True)
    rng = np.random.Generator(np.random.Philox(0))
    for prompt, temperature in [("Once upon a time", 0), ("Once upon a time", 0.8), ("Ruby was a kind duck", 0.8), ("", 0.8), ("One day, Tom", 0.8)]:
        print(f"[{temperature}] {write_story(params, tokenizer, prompt, temperature, rng)}\n", flush=True)


if __name__ == "__main__":
    main()
