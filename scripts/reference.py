"""What a model answers, computed in float64 from nothing but its file: the expected logits of the tests.

Shares no code with the engine: its own GGUF reader (gguf_reader.py), its own decoding of quantised blocks
(quant.py), and a plain forward pass that keeps no cache and computes the whole sequence for every token.

    python3 reference.py write FILE.gguf...      FILE.expected.json for each, beside it or in the folder --to
    python3 reference.py check MODEL LOGITS      largest difference from a file of known logits

Families: llama (rotary pairs adjacent; `rope_freqs.weight` divides the frequencies; a sliding window if
`llama.attention.sliding_window` says so), qwen2 (bias on q, k, v), qwen3 (RMSNorm on each head of q and k), gemma3
(norms after attention and MLP too, embedding times sqrt(hidden), GELU, every sixth layer attends to all and the
rest to a window, with rotary bases of their own). All but llama pair dimension i with i + head_dim / 2.

A window of W means: position p attends to p - W + 1 .. p.

# Source
arXiv 2307.09288 (Llama 2), 2407.21783 (Llama 3), 2310.06825 (Mistral), 2407.10671 (Qwen2), 2505.09388 (Qwen3),
2503.19786 (Gemma 3); 2104.09864 (rotary embedding), 1910.07467 (RMSNorm), 2002.05202 (SwiGLU, GEGLU).
"""

import argparse
import json
import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

from gguf_reader import Reader

GEMMA_LOCAL_ROPE_BASE, GEMMA_PERIOD = 10000.0, 6


def rms_norm(x, weight, eps):
    return x / np.sqrt(np.mean(x * x, -1, keepdims=True) + eps) * weight


def silu(x):
    return x / (1 + np.exp(-x))


def gelu(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


class Model:
    """A model file and the numbers its metadata gives."""

    def __init__(self, path):
        self.file = Reader(path)
        meta = self.file.metadata
        self.family = meta["general.architecture"]
        get = lambda key, default=None: meta.get(f"{self.family}.{key}", default)
        self.layers, self.hidden = get("block_count"), get("embedding_length")
        self.heads = get("attention.head_count")
        self.kv_heads = get("attention.head_count_kv", self.heads)
        self.head_dim = get("attention.key_length", self.hidden // self.heads)
        self.eps = get("attention.layer_norm_rms_epsilon")
        self.rope_base = get("rope.freq_base", 10000.0)
        self.window = get("attention.sliding_window")
        self.adjacent_pairs = self.family == "llama"
        self.rope_divisor = self.file.tensor("rope_freqs.weight") if "rope_freqs.weight" in self.file.shapes else 1.0
        self.vocab = self.file.shapes["token_embd.weight"][0]
        self.weights = {}

    def weight(self, name):
        if name not in self.weights:
            self.weights[name] = self.file.tensor(name)
        return self.weights[name]

    def is_global(self, layer):
        return self.window is None or self.family == "gemma3" and layer % GEMMA_PERIOD == GEMMA_PERIOD - 1

    def rope(self, x, layer):
        """`x`: [tokens, heads, head_dim], positions from 0."""
        local = self.family == "gemma3" and not self.is_global(layer)
        base = GEMMA_LOCAL_ROPE_BASE if local else self.rope_base
        turn = base ** (-np.arange(0, self.head_dim, 2) / self.head_dim) / self.rope_divisor
        angle = np.arange(len(x))[:, None, None] * turn
        half = self.head_dim // 2
        one, two = (slice(0, None, 2), slice(1, None, 2)) if self.adjacent_pairs else (slice(0, half), slice(half, None))
        out = np.empty_like(x)
        out[..., one] = x[..., one] * np.cos(angle) - x[..., two] * np.sin(angle)
        out[..., two] = x[..., one] * np.sin(angle) + x[..., two] * np.cos(angle)
        return out

    def attention(self, x, layer):
        w = lambda name: self.weight(f"blk.{layer}.{name}")
        parts = []
        for name, heads in (("q", self.heads), ("k", self.kv_heads), ("v", self.kv_heads)):
            y = x @ w(f"attn_{name}.weight").T
            if self.family == "qwen2":
                y = y + w(f"attn_{name}.bias")
            y = y.reshape(len(x), heads, self.head_dim)
            if self.family in ("qwen3", "gemma3") and name != "v":
                y = rms_norm(y, w(f"attn_{name}_norm.weight"), self.eps)
            parts.append(self.rope(y, layer) if name != "v" else y)
        q, k, v = parts
        behind = np.arange(len(x))[:, None] - np.arange(len(x))[None, :]
        seen = behind >= 0
        if not self.is_global(layer):
            seen &= behind < self.window
        out = np.empty_like(q)
        for head in range(self.heads):
            kv = head // (self.heads // self.kv_heads)
            score = np.where(seen, q[:, head] @ k[:, kv].T / np.sqrt(self.head_dim), -np.inf)
            p = np.exp(score - score.max(1, keepdims=True))
            out[:, head] = p / p.sum(1, keepdims=True) @ v[:, kv]
        return out.reshape(len(x), -1) @ w("attn_output.weight").T

    def mlp(self, x, layer):
        w = lambda name: self.weight(f"blk.{layer}.ffn_{name}.weight")
        gate = gelu if self.family == "gemma3" else silu
        return (gate(x @ w("gate").T) * (x @ w("up").T)) @ w("down").T

    def logits(self, ids, positions):
        """[positions, vocab]: the logits after each of `positions`."""
        norm = lambda x, name: rms_norm(x, self.weight(name), self.eps)
        x = self.file.rows("token_embd.weight", ids)
        if self.family == "gemma3":
            x = x * np.sqrt(self.hidden)
        for i in range(self.layers):
            y = self.attention(norm(x, f"blk.{i}.attn_norm.weight"), i)
            x = x + (norm(y, f"blk.{i}.post_attention_norm.weight") if self.family == "gemma3" else y)
            y = self.mlp(norm(x, f"blk.{i}.ffn_norm.weight"), i)
            x = x + (norm(y, f"blk.{i}.post_ffw_norm.weight") if self.family == "gemma3" else y)
        head = "output.weight" if "output.weight" in self.file.shapes else "token_embd.weight"
        return norm(x[list(positions)], "output_norm.weight") @ self.weight(head).T

    def greedy(self, ids, count):
        """The `count` likeliest tokens one after the other, with their logits and the lead over the runner-up."""
        ids, out = list(ids), {"ids": [], "logit": [], "margin": []}
        for _ in range(count):
            row = self.logits(ids, [len(ids) - 1])[0]
            second, first = np.argsort(row)[-2:]
            out["ids"].append(int(first))
            out["logit"].append(digits(row[first]))
            out["margin"].append(digits(row[first] - row[second]))
            ids.append(int(first))
        return out


def digits(x):
    return float(f"{x:.9g}")


def prompts_for(model, name):
    """Token ids to try: random ones from a fixed key, and the text that a trained model knows."""
    rng = np.random.Generator(np.random.Philox(int.from_bytes(name.encode()[:8].ljust(8, b"."), "little")))
    if model.file.metadata.get("general.name") == "ictus-tiny":
        import bpe

        meta = model.file.metadata
        tokenizer = bpe.Tokenizer(meta["tokenizer.ggml.tokens"], [tuple(m.split(" ")) for m in meta["tokenizer.ggml.merges"]])
        for text in ("Once upon a time", "One day, Tom and Lily", "Hello! 2 + 2 is"):
            yield text, [meta["tokenizer.ggml.bos_token_id"], *tokenizer.encode(text)]
        return
    yield "one", rng.integers(0, model.vocab, 1).tolist()
    yield "short", rng.integers(0, model.vocab, 7).tolist()
    yield "long", rng.integers(0, model.vocab, 45).tolist()


def expected(path):
    model = Model(path)
    name = os.path.basename(path)
    out = {"file": name, "family": model.family, "vocab": model.vocab, "prompts": []}
    for title, ids in prompts_for(model, name):
        last = len(ids) - 1
        positions = sorted({last, last // 2} if model.vocab > 512 else {last, last - last // 4, last // 2, min(last, 3)})
        rows = model.logits(ids, positions)
        out["prompts"].append({
            "name": title, "ids": ids, "positions": positions, "logits": [[digits(x) for x in row] for row in rows],
            "greedy": model.greedy(ids, 16),
        })
    return out


def write(paths, folder):
    for path in paths:
        out = path.removesuffix(".gguf") + ".expected.json"
        if folder:
            out = os.path.join(folder, os.path.basename(out))
        with open(out, "w") as f:
            json.dump(expected(path), f, separators=(",", ":"))
            f.write("\n")
        print(out, os.path.getsize(out))


def check(path, logits, longest):
    """Against a file of logits in the form {prompts: [{ids, positions, logits: {exact: {position: {top, lse, probe}}}}]}."""
    model = Model(path)
    with open(logits) as f:
        known = json.load(f)
    for prompt in known["prompts"]:
        if len(prompt["ids"]) > longest:
            print(f"{prompt['name']}: {len(prompt['ids'])} tokens, left out")
            continue
        rows = model.logits(prompt["ids"], prompt["positions"])
        worst, same = 0.0, 0
        for position, row in zip(prompt["positions"], rows):
            want = prompt["logits"]["exact"][str(position)]
            lse = row.max() + np.log(np.exp(row - row.max()).sum())
            pairs = [(row[i], x) for i, x, _ in want["top"]] + list(zip(row[known["probe_ids"]], want["probe"]))
            pairs += [(lse, want["lse"]), (row.mean(), want["mean"]), (row.std(), want["std"]), (row.min(), want["min"])]
            worst = max(worst, *(abs(got - x) for got, x in pairs))
            same += int(row.argmax()) == want["top"][0][0]
        print(f"{prompt['name']}: {len(prompt['ids'])} tokens, largest difference {worst:.2e}, top token {same}/{len(rows)}", flush=True)


def main():
    args = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    sub = args.add_subparsers(dest="verb", required=True)
    new = sub.add_parser("write")
    new.add_argument("paths", nargs="+")
    new.add_argument("--to", help="folder to write to")
    known = sub.add_parser("check")
    known.add_argument("model")
    known.add_argument("logits")
    known.add_argument("--longest", type=int, default=100, help="leave out prompts of more tokens")
    args = args.parse_args()
    if args.verb == "write":
        write(args.paths, args.to)
    else:
        check(args.model, args.logits, args.longest)


if __name__ == "__main__":
    main()
