"""Makes one tiny model of random weights for each family, for the tests, under tests/data.

    python3 make_family_models.py ../tests/data

| file | family | what it is there for | tensor types |
| --- | --- | --- | --- |
| llama-rope-scaled.gguf | llama | rope_freqs.weight (Llama 3 scaling), output matrix of its own | F32 F16 BF16 |
| llama-window.gguf | llama | sliding window of 8, tied output | Q4_0 Q4_1 Q8_0 Q4_K Q6_K |
| qwen2.gguf | qwen2 | bias on q, k and v | Q5_0 Q5_1 Q8_0 Q2_K Q3_K F16 |
| qwen3.gguf | qwen3 | norms on the heads of q and k, heads wider than hidden / heads | F32 F16 BF16 |
| gemma3.gguf | gemma3 | seven layers, window of 8, two rotary bases, SentencePiece vocabulary | Q8_0 Q5_K IQ4_NL IQ4_XS |

hf-llama/ and hf-qwen3/ hold the same weights as llama-rope-scaled.gguf and qwen3.gguf in the Hugging Face layout
(one file; two shards with an index). A Hugging Face llama pairs dimension i with i + head_dim / 2 in its rotary
embedding, a GGUF llama 2i with 2i + 1, so the rows of q and k stand in another order there.

Weights come from one key per file. They are scaled so that attention is neither flat nor a single peak, and that
a window or a rotary base which is not applied changes logits far beyond any tolerance.
"""

import json
import os
import struct
import sys

import numpy as np

import bpe
import gguf_writer as gguf
import quant
import stories

MERGES = 29
SPECIAL = ["<|begin|>", "<|end|>", "<|turn|>"]
SPLITS = {
    "llama-bpe": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "qwen2": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
}


class Weights:
    """Draws tensors and keeps, for each, the bytes of its type and the float64 values that those stand for."""

    def __init__(self, key):
        self.rng = np.random.Generator(np.random.Philox(key))
        self.shapes, self.kinds, self.data = {}, {}, {}

    def add(self, name, shape, kind, std, mean=0.0):
        if kind in quant.SCALES:
            data = quant.random_blocks(self.rng, shape, kind, std)
        else:
            data = quant.encode(self.rng.standard_normal(shape) * std + mean, kind)
        self.shapes[name], self.kinds[name], self.data[name] = shape, kind, data

    def fixed(self, name, values):
        self.shapes[name], self.kinds[name], self.data[name] = values.shape, "F32", quant.encode(values, "F32")

    def values(self, name):
        return quant.decode(self.data[name], self.shapes[name], self.kinds[name])

    def put(self, out):
        for name, data in self.data.items():
            out.raw_tensor(name, self.shapes[name], data, self.kinds[name])


class Shape:
    """Sizes of a model."""

    def __init__(self, family, vocab, layers, hidden, heads, kv_heads, head_dim, ffn, rope_base=10000.0, eps=1e-6, window=None):
        self.family, self.vocab, self.layers, self.hidden, self.heads = family, vocab, layers, hidden, heads
        self.kv_heads, self.head_dim, self.ffn, self.rope_base, self.eps = kv_heads, head_dim, ffn, rope_base, eps
        self.window, self.context = window, 256

    def meta(self, out, name, key_length=True):
        f = self.family
        for key, value in {
            "general.architecture": f, "general.type": "model", "general.name": name, "general.license": "apache-2.0",
            "general.description": "random weights, for tests",
        }.items():
            out.meta(key, value)
        numbers = {
            "general.quantization_version": 2,
            f"{f}.block_count": self.layers, f"{f}.context_length": self.context, f"{f}.embedding_length": self.hidden,
            f"{f}.feed_forward_length": self.ffn, f"{f}.attention.head_count": self.heads,
            f"{f}.attention.head_count_kv": self.kv_heads,
        }
        if key_length:
            numbers |= {f"{f}.attention.key_length": self.head_dim, f"{f}.attention.value_length": self.head_dim}
        if f == "llama":
            numbers |= {"llama.rope.dimension_count": self.head_dim, "llama.vocab_size": self.vocab}
        if self.window:
            numbers[f"{f}.attention.sliding_window"] = self.window
        for key, value in numbers.items():
            out.meta(key, gguf.U32(value))
        out.meta(f"{f}.attention.layer_norm_rms_epsilon", gguf.F32(self.eps))
        out.meta(f"{f}.rope.freq_base", gguf.F32(self.rope_base))


def draw(shape, key, kind, tied):
    """All tensors of a model. `kind(name, layer)` names a matrix's type."""
    w = Weights(key)
    s, wide = shape, shape.heads * shape.head_dim
    narrow = s.kv_heads * s.head_dim
    norm = lambda name, width, mean=1.0: w.add(name, (width,), "F32", 0.2, mean)
    gemma = s.family == "gemma3"
    w.add("token_embd.weight", (s.vocab, s.hidden), kind("token_embd", 0), 0.1 if gemma else 0.3 if tied else 1.0)
    if not tied:
        w.add("output.weight", (s.vocab, s.hidden), kind("output", 0), 2.0 * s.hidden**-0.5)
    norm("output_norm.weight", s.hidden, 3.0 if gemma else 2.0 if tied else 1.0)  # small tied rows, or tokens repeat
    for i in range(s.layers):
        matrix = lambda name, rows, columns, gain: w.add(f"blk.{i}.{name}.weight", (rows, columns), kind(name, i), gain * columns**-0.5)
        norm(f"blk.{i}.attn_norm.weight", s.hidden)
        headed = s.family in ("qwen3", "gemma3")
        matrix("attn_q", wide, s.hidden, 1.0 if headed else 1.4)
        matrix("attn_k", narrow, s.hidden, 1.0 if headed else 1.4)
        matrix("attn_v", narrow, s.hidden, 1.0)
        if s.family == "qwen2":
            for name, width in (("attn_q", wide), ("attn_k", narrow), ("attn_v", narrow)):
                w.add(f"blk.{i}.{name}.bias", (width,), "F32", 0.4)
        if headed:
            w.add(f"blk.{i}.attn_q_norm.weight", (s.head_dim,), "F32", 0.3, 1.5)
            w.add(f"blk.{i}.attn_k_norm.weight", (s.head_dim,), "F32", 0.3, 1.5)
        matrix("attn_output", s.hidden, wide, 1.5)
        if gemma:
            norm(f"blk.{i}.post_attention_norm.weight", s.hidden)
        norm(f"blk.{i}.ffn_norm.weight", s.hidden)
        matrix("ffn_gate", s.ffn, s.hidden, 1.2)
        matrix("ffn_up", s.ffn, s.hidden, 1.2)
        matrix("ffn_down", s.hidden, s.ffn, 1.0)
        if gemma:
            norm(f"blk.{i}.post_ffw_norm.weight", s.hidden)
    return w


def bpe_vocabulary():
    """256 letters, some merges learnt from stories, three control tokens at the end."""
    merges = bpe.train([stories.story(1, i) for i in range(300)], MERGES)
    return [*bpe.LETTERS, *("".join(m) for m in merges), *SPECIAL], merges


def put_bpe(out, vocabulary, pre, add_bos):
    tokens, merges = vocabulary
    n = len(tokens)
    out.tokenizer_gpt2(tokens, merges, [1] * (n - 3) + [3] * 3, n - 3, n - 2, add_bos, pre)


def put_sentencepiece(out):
    """Pad, end, begin, unknown; 256 byte tokens; letters and a few joined pieces, scored by length as merges go."""
    joined = ["\u2581t", "he", "\u2581the", "\u2581a", "in", "er", "\u2581w", "\u2581o", "re", "at", "on", "nd", "\u2581and", "ing", "\u2581\u2581"]
    letters = ["\u2581", *"etaoinshrdlucmfwypvbgk.,'!"]
    tokens = ["<pad>", "<eos>", "<bos>", "<unk>", *(f"<0x{b:02X}>" for b in range(256)), *joined, *letters]
    scores = [0.0] * 260 + [-float(i) for i in range(len(joined))] + [-1000.0 - i for i in range(len(letters))]
    types = [3, 3, 3, 2] + [6] * 256 + [1] * (len(joined) + len(letters))
    out.tokenizer_llama(tokens, scores, types, 2, 1, 3, add_bos=True, add_space_prefix=False)
    out.meta("tokenizer.ggml.padding_token_id", gguf.U32(0))
    return len(tokens)


SENTENCEPIECE_VOCAB = 4 + 256 + 15 + 27
LLAMA3_SCALING = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}


def llama3_divisors(head_dim, base, factor, low_freq_factor, high_freq_factor, original_max_position_embeddings):
    """Llama 3.1: wavelengths that fit often into the original context stay, long ones stretch, between is a blend."""
    wave = 2 * np.pi * base ** (np.arange(0, head_dim, 2) / head_dim)
    turns = original_max_position_embeddings / wave
    blend = np.clip((turns - low_freq_factor) / (high_freq_factor - low_freq_factor), 0, 1)
    return 1 / ((1 - blend) / factor + blend)


def safetensors(path, tensors):
    """`tensors[name]`: (dtype name, shape, bytes)."""
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(data for _, _, data in tensors.values()))


HF_NAMES = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm", "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}
HF_TOP = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight", "output.weight": "lm_head.weight"}


def hf_tensors(shape, w):
    """The same numbers under the other names; q and k of a llama in half-split order."""
    out = {}
    for name, kind in w.kinds.items():
        if name == "rope_freqs.weight":
            continue
        data, size = w.data[name], w.shapes[name]
        if name in HF_TOP:
            other = HF_TOP[name]
        else:
            _, layer, part, suffix = name.split(".")
            other = f"model.layers.{layer}.{HF_NAMES[part]}.{suffix}"
            if shape.family == "llama" and part in ("attn_q", "attn_k"):
                rows = np.frombuffer(data, np.uint8).reshape(-1, shape.head_dim // 2, 2, len(data) // size[0])
                data = rows.swapaxes(1, 2).tobytes()
        out[other] = (kind, size, data)
    return out


def hf_directory(path, shape, w, vocabulary, pre, add_bos, shards, extra):
    os.makedirs(path, exist_ok=True)
    dump = lambda name, value, **form: write_text(os.path.join(path, name), json.dumps(value, **form) + "\n")
    tokens, merges = vocabulary
    n = len(tokens)
    ends = {"bos_token_id": n - 3, "eos_token_id": n - 2}
    dump("config.json", {
        "hidden_size": shape.hidden, "intermediate_size": shape.ffn, "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads, "num_key_value_heads": shape.kv_heads, "head_dim": shape.head_dim,
        "max_position_embeddings": shape.context, "vocab_size": shape.vocab, "rms_norm_eps": shape.eps,
        "rope_theta": shape.rope_base, "hidden_act": "silu", "attention_bias": False,
        "torch_dtype": "bfloat16", **ends, **extra,
    }, indent=2)
    dump("generation_config.json", {**ends, "do_sample": False}, indent=2)
    begin = {"single": [{"SpecialToken": {"id": SPECIAL[0], "type_id": 0}}], "pair": [{"SpecialToken": {"id": SPECIAL[0], "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}]}
    dump("tokenizer.json", {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": n - 3 + i, "content": t, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True} for i, t in enumerate(SPECIAL)],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": SPLITS[pre]}, "behavior": "Isolated", "invert": False},
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        ]},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [*begin["single"], {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [*begin["single"], {"Sequence": {"id": "A", "type_id": 0}}, *begin["pair"]],
            "special_tokens": {SPECIAL[0]: {"id": SPECIAL[0], "ids": [n - 3], "tokens": [SPECIAL[0]]}},
        } if add_bos else None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": False, "byte_fallback": False, "ignore_merges": pre == "llama-bpe",
                  "vocab": {t: i for i, t in enumerate(tokens[:-3])}, "merges": [" ".join(m) for m in merges]},
    }, separators=(",", ":"))
    tensors = hf_tensors(shape, w)
    if shards == 1:
        safetensors(os.path.join(path, "model.safetensors"), tensors)
        return
    names, place, per = list(tensors), {}, -(-len(tensors) // shards)
    for i in range(shards):
        file = f"model-{i + 1:05}-of-{shards:05}.safetensors"
        part = names[i * per : (i + 1) * per]
        safetensors(os.path.join(path, file), {name: tensors[name] for name in part})
        place |= {name: file for name in part}
    total = sum(len(data) for _, _, data in tensors.values())
    dump("model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": place}, indent=1)


def write_text(path, text):
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)


def cycle(*kinds):
    """A type for each matrix in turn, so that every type meets every kind of matrix over the layers."""
    names = ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"]
    return lambda name, layer: kinds[(names.index(name) + layer) % len(kinds)] if name in names else kinds[0]


def main():
    target = sys.argv[1]
    os.makedirs(target, exist_ok=True)
    vocabulary = bpe_vocabulary()
    vocab = len(vocabulary[0])

    def make(name, shape, key, kind, tied, tokenizer, key_length=True, divisors=None):
        out = gguf.Writer()
        shape.meta(out, name, key_length)
        tokenizer(out)
        w = draw(shape, key, kind, tied)
        if divisors is not None:
            w.fixed("rope_freqs.weight", divisors.astype(np.float32))
        w.put(out)
        path = os.path.join(target, name + ".gguf")
        out.write(path)
        print(path, os.path.getsize(path))
        return w

    shape = Shape("llama", vocab, 3, 32, 2, 1, 16, 64, eps=1e-5)
    floats = cycle("BF16", "F32", "F16")
    divisors = llama3_divisors(shape.head_dim, shape.rope_base, **LLAMA3_SCALING)
    w = make("llama-rope-scaled", shape, 11, lambda n, i: {"token_embd": "BF16", "output": "F16"}.get(n) or floats(n, i), False,
             lambda out: put_bpe(out, vocabulary, "llama-bpe", True), key_length=False, divisors=divisors)
    hf_directory(os.path.join(target, "hf-llama"), shape, w, vocabulary, "llama-bpe", True, 1, {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "tie_word_embeddings": False, "mlp_bias": False,
        "rope_scaling": {"rope_type": "llama3", **LLAMA3_SCALING},
    })

    small, large = cycle("Q4_0", "Q4_1", "Q8_0"), ["Q4_K", "Q6_K"]
    shape = Shape("llama", vocab, 2, 64, 4, 2, 16, 256, eps=1e-5, window=8)
    make("llama-window", shape, 12, lambda n, i: large[i] if n == "ffn_down" else "Q8_0" if n == "token_embd" else small(n, i), True,
         lambda out: put_bpe(out, vocabulary, "gpt-2", True))

    small2, large2 = cycle("Q5_0", "Q5_1", "Q8_0"), ["Q2_K", "Q3_K"]
    shape = Shape("qwen2", vocab, 2, 64, 4, 2, 16, 256, rope_base=1e6)
    make("qwen2", shape, 13, lambda n, i: large2[i] if n == "ffn_down" else {"token_embd": "Q5_1", "output": "F16"}.get(n) or small2(n, i), False,
         lambda out: put_bpe(out, vocabulary, "qwen2", False), key_length=False)

    shape = Shape("qwen3", vocab, 3, 32, 4, 2, 16, 64, rope_base=1e6)
    w = make("qwen3", shape, 14, lambda n, i: "BF16" if n == "token_embd" else floats(n, i), True,
             lambda out: put_bpe(out, vocabulary, "qwen2", False))
    hf_directory(os.path.join(target, "hf-qwen3"), shape, w, vocabulary, "qwen2", False, 2, {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "tie_word_embeddings": True,
        "sliding_window": None, "use_sliding_window": False,
    })

    wide = ["IQ4_XS", "Q5_K"]
    shape = Shape("gemma3", SENTENCEPIECE_VOCAB, 7, 32, 8, 2, 32, 64, rope_base=1e6, window=8)
    make("gemma3", shape, 15, lambda n, i: wide[i % 2] if n == "attn_output" else "Q8_0" if n in ("token_embd", "attn_k") else "IQ4_NL", True,
         lambda out: put_sentencepiece(out))


if __name__ == "__main__":
    main()
