"""Writes GGUF version 3 files: metadata, tensor descriptions, data aligned to 32 bytes.

Numbers in metadata carry their type: `U32(7)`, `F32(1e-5)`, ...; `str`, `bool` and lists need none (a list takes
the type of its first element; a numpy array the type of its elements). Tensors are numpy arrays in row order
([rows, columns]); the file names dimensions the other way round, fastest first.

# Source
The GGUF specification in the ggml repository (docs/gguf.md).
"""

import struct

import numpy as np

import quant

ALIGNMENT = 32


class Typed:
    """A number with its GGUF value type."""

    code, form = None, None

    def __init__(self, value):
        self.value = value


def typed(name, code, form):
    return type(name, (Typed,), {"code": code, "form": form})


U8, I8, U16, I16 = typed("U8", 0, "B"), typed("I8", 1, "b"), typed("U16", 2, "H"), typed("I16", 3, "h")
U32, I32, F32 = typed("U32", 4, "I"), typed("I32", 5, "i"), typed("F32", 6, "f")
U64, I64, F64 = typed("U64", 10, "Q"), typed("I64", 11, "q"), typed("F64", 12, "d")
BOOL, STRING, ARRAY = 7, 8, 9


def string(text):
    raw = text.encode("utf-8") if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def value(v):
    """(type code, bytes) of a metadata value."""
    if isinstance(v, bool):
        return BOOL, struct.pack("<B", v)
    if isinstance(v, (str, bytes)):
        return STRING, string(v)
    if isinstance(v, Typed):
        return v.code, struct.pack("<" + v.form, v.value)
    if isinstance(v, list) and v:
        parts = [value(x) for x in v]
        code = parts[0][0]
        assert all(c == code for c, _ in parts), "a list holds one type"
        return ARRAY, struct.pack("<IQ", code, len(parts)) + b"".join(b for _, b in parts)
    raise TypeError(f"no GGUF type for {v!r}")


class Writer:
    """Collects metadata and tensors, in the order given."""

    def __init__(self):
        self.metadata, self.tensors = {}, {}

    def meta(self, key, v):
        assert key not in self.metadata, key
        self.metadata[key] = value(v)

    def tensor(self, name, array, kind):
        """Stores `array` quantised to the type `kind` (see quant.py)."""
        self.raw_tensor(name, array.shape, quant.encode(array, kind), kind)

    def raw_tensor(self, name, shape, data, kind):
        """Stores bytes that are blocks of `kind` already."""
        assert name not in self.tensors, name
        assert len(data) == quant.size_bytes(shape, kind), (name, shape, kind, len(data))
        self.tensors[name] = (shape, data, kind)

    def tokenizer_gpt2(self, tokens, merges, types, bos, eos, add_bos, pre="gpt-2"):
        """Byte-level BPE metadata. `types`: 1 normal, 3 control, 4 user defined, 6 byte."""
        self.meta("tokenizer.ggml.model", "gpt2")
        self.meta("tokenizer.ggml.pre", pre)
        self.meta("tokenizer.ggml.tokens", list(tokens))
        self.meta("tokenizer.ggml.token_type", [I32(t) for t in types])
        self.meta("tokenizer.ggml.merges", [" ".join(m) for m in merges])
        self.ends(bos, eos, add_bos)

    def tokenizer_llama(self, tokens, scores, types, bos, eos, unknown, add_bos, add_space_prefix):
        """SentencePiece metadata. `types` as above, and 2 unknown."""
        self.meta("tokenizer.ggml.model", "llama")
        self.meta("tokenizer.ggml.pre", "default")
        self.meta("tokenizer.ggml.tokens", list(tokens))
        self.meta("tokenizer.ggml.scores", [F32(s) for s in scores])
        self.meta("tokenizer.ggml.token_type", [I32(t) for t in types])
        self.meta("tokenizer.ggml.unknown_token_id", U32(unknown))
        self.meta("tokenizer.ggml.add_space_prefix", add_space_prefix)
        self.ends(bos, eos, add_bos)

    def ends(self, bos, eos, add_bos):
        self.meta("tokenizer.ggml.bos_token_id", U32(bos))
        self.meta("tokenizer.ggml.eos_token_id", U32(eos))
        self.meta("tokenizer.ggml.add_bos_token", add_bos)
        self.meta("tokenizer.ggml.add_eos_token", False)

    def bytes(self):
        head = [b"GGUF", struct.pack("<IQQ", 3, len(self.tensors), len(self.metadata))]
        for key, (code, data) in self.metadata.items():
            head += [string(key), struct.pack("<I", code), data]
        offset, body = 0, []
        for name, (shape, data, kind) in self.tensors.items():
            dims = list(reversed(shape))
            head += [string(name), struct.pack("<I", len(dims)), struct.pack(f"<{len(dims)}Q", *dims)]
            head.append(struct.pack("<IQ", quant.TYPES[kind].code, offset))
            body += [data, bytes(-len(data) % ALIGNMENT)]
            offset += len(data) + -len(data) % ALIGNMENT
        head = b"".join(head)
        return head + bytes(-len(head) % ALIGNMENT) + b"".join(body)

    def write(self, path):
        with open(path, "wb") as f:
            f.write(self.bytes())
