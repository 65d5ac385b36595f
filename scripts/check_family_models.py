"""Holds the files of make_family_models.py against other people's code. Prints one line per check; stops at a failure.

    python3 check_family_models.py ../tests/data

Needs the PyPI packages gguf, safetensors, tokenizers and ml_dtypes (for the bf16 of safetensors).
"""

import glob
import json
import os
import sys

import gguf
import ml_dtypes  # noqa: F401  (gives numpy the type that safetensors asks for)
import numpy as np
from safetensors import safe_open
from tokenizers import Tokenizer

import bpe
import make_family_models as made
import quant
import reference

TEXTS = ["Once upon a time, there was a fox.", "It's  two o'clock!\n\nAnd   then 12345 she'd gone. ", "x"]


def tensors_decode_alike(path):
    """The package gguf reads the file, finds the same tensors, and decodes them to the same floats."""
    ours, theirs = reference.Reader(path), gguf.GGUFReader(path)
    assert {t.name for t in theirs.tensors} == set(ours.shapes)
    for t in theirs.tensors:
        plain = t.tensor_type in (gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.F16)
        values = t.data if plain else gguf.dequantize(t.data, t.tensor_type)
        same = np.array_equal(np.asarray(values, np.float64).reshape(ours.shapes[t.name]), ours.tensor(t.name))
        assert same, (path, t.name)
    print(f"{os.path.basename(path)}: {len(theirs.tensors)} tensors as gguf decodes them, {sorted(set(ours.kinds.values()))}")


def f32_error(path):
    """How far single precision moves the logits: the least that a test must tolerate."""
    exact, single = reference.Model(path), reference.Model(path)
    ids = list(reference.prompts_for(exact, os.path.basename(path)))[-1][1]
    single.weights = {name: single.file.tensor(name).astype(np.float32) for name in single.file.shapes}
    single.file.rows = lambda name, rows: single.weights[name][rows]
    turn = single.rope
    single.rope = lambda x, layer: turn(x, layer).astype(np.float32)
    every = range(len(ids))
    print(f"{os.path.basename(path)}: single precision moves a logit by {np.abs(exact.logits(ids, every) - single.logits(ids, every)).max():.1e}")


def directory_agrees(directory, path):
    """The safetensors, computed with half-split rotary pairs, answer as the GGUF file does."""
    hf, model = reference.Model(path), reference.Model(path)
    with open(os.path.join(directory, "config.json")) as f:
        config = json.load(f)
    names = {}
    for ours in model.file.shapes:
        if ours in made.HF_TOP:
            names[made.HF_TOP[ours]] = ours
        elif ours.startswith("blk."):
            _, layer, part, suffix = ours.split(".")
            names[f"model.layers.{layer}.{made.HF_NAMES[part]}.{suffix}"] = ours
    for shard in glob.glob(os.path.join(directory, "*.safetensors")):
        with safe_open(shard, "np") as f:
            for name in f.keys():
                hf.weights[names.pop(name)] = f.get_tensor(name).astype(np.float64)
    assert not names, names
    hf.file.rows = lambda name, rows: hf.weights[name][rows]
    hf.adjacent_pairs = False
    if config.get("rope_scaling"):
        scaling = {k: v for k, v in config["rope_scaling"].items() if k != "rope_type"}
        hf.rope_divisor = made.llama3_divisors(config["head_dim"], config["rope_theta"], **scaling)
    worst = 0.0
    for _, ids in reference.prompts_for(model, os.path.basename(path)):
        every = range(len(ids))
        worst = max(worst, np.abs(hf.logits(ids, every) - model.logits(ids, every)).max())
    assert worst < 1e-6, (directory, worst)  # the GGUF file keeps the divisors in single precision
    print(f"{os.path.basename(directory)}: logits within {worst:.1e} of {os.path.basename(path)}")
    tokenizer = Tokenizer.from_file(os.path.join(directory, "tokenizer.json"))
    meta = model.file.metadata
    ours = bpe.Tokenizer(meta["tokenizer.ggml.tokens"], [tuple(m.split(" ")) for m in meta["tokenizer.ggml.merges"]])
    for text in TEXTS:
        ids = tokenizer.encode(text).ids
        if meta["tokenizer.ggml.add_bos_token"]:
            assert ids.pop(0) == meta["tokenizer.ggml.bos_token_id"]
        assert tokenizer.decode(ids) == text == ours.decode(ids), text
    assert tokenizer.encode(TEXTS[0], add_special_tokens=False).ids == ours.encode(TEXTS[0])
    assert [tokenizer.id_to_token(i) for i in range(model.vocab)] == meta["tokenizer.ggml.tokens"]
    print(f"{os.path.basename(directory)}: tokenizer.json gives {len(TEXTS)} texts back, and the ids of the GGUF file")


def main():
    folder = sys.argv[1]
    seen = set()
    for path in sorted(glob.glob(os.path.join(folder, "*.gguf"))):
        tensors_decode_alike(path)
        f32_error(path)
        seen |= set(reference.Reader(path).kinds.values())
    assert seen == set(quant.TYPES), set(quant.TYPES) - seen
    directory_agrees(os.path.join(folder, "hf-llama"), os.path.join(folder, "llama-rope-scaled.gguf"))
    directory_agrees(os.path.join(folder, "hf-qwen3"), os.path.join(folder, "qwen3.gguf"))


if __name__ == "__main__":
    main()
