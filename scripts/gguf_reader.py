"""Reads GGUF versions 2 and 3: all metadata, tensors decoded to float64 on request. For files we trust."""

import mmap
import struct

import numpy as np

import quant

NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


class Reader:
    """`metadata[key]`, `shapes[name]` in row order, `kinds[name]`, and `tensor(name)`."""

    def __init__(self, path):
        with open(path, "rb") as f:
            self.data = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)
        self.at = 0
        magic, version, tensors, keys = self.take("<4sIQQ")
        assert magic == b"GGUF" and version in (2, 3), (magic, version)
        self.metadata = {}
        for _ in range(keys):
            key = self.text()
            (code,) = self.take("<I")
            self.metadata[key] = self.value(code)
        self.shapes, self.kinds, offsets = {}, {}, {}
        for _ in range(tensors):
            name = self.text()
            (count,) = self.take("<I")
            self.shapes[name] = tuple(reversed(self.take(f"<{count}Q")))
            code, offsets[name] = self.take("<IQ")
            self.kinds[name] = quant.BY_CODE[code]
        alignment = self.metadata.get("general.alignment", 32)
        start = self.at + -self.at % alignment
        self.offsets = {name: start + offset for name, offset in offsets.items()}

    def take(self, form):
        values = struct.unpack_from(form, self.data, self.at)
        self.at += struct.calcsize(form)
        return values

    def text(self):
        (length,) = self.take("<Q")
        self.at += length
        return self.data[self.at - length : self.at].decode("utf-8", "surrogateescape")

    def value(self, code):
        if code == 8:
            return self.text()
        if code == 9:
            inner, count = self.take("<IQ")
            if inner in NUMBERS:
                return list(self.take(f"<{count}{NUMBERS[inner]}"))
            return [self.value(inner) for _ in range(count)]
        return self.take("<" + NUMBERS[code])[0]

    def rows(self, name, ids=None):
        """The tensor, or of a matrix only the rows `ids`, as float64."""
        shape, kind, at = self.shapes[name], self.kinds[name], self.offsets[name]
        if ids is None:
            return quant.decode(self.data[at : at + quant.size_bytes(shape, kind)], shape, kind)
        width = quant.size_bytes(shape[-1:], kind)
        parts = b"".join(self.data[at + i * width : at + (i + 1) * width] for i in ids)
        return quant.decode(parts, (len(ids), shape[-1]), kind)

    def tensor(self, name):
        return self.rows(name)
