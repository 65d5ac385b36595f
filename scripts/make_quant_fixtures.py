"""Writes random quant blocks of every element type and the values that they stand for, for tests/dequantise.rs.

    python3 -m venv venv && venv/bin/pip install gguf==0.19.0 numpy
    venv/bin/python scripts/make_quant_fixtures.py tests/data/quant

The values come from the `gguf` package, which shares no code with this project. One file per type: the blocks, then one
float32 per value, all little-endian. Random bytes are valid in every type; only the 16-bit scales are kept finite.
"""

import pathlib
import sys

import gguf
import numpy as np

# Type, and where the 16-bit scales stand in a block.
TYPES = {
    "F16": [0], "BF16": [], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0],
    "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0], "IQ4_XS": [0],
}


def finite_half(rng):
    while True:
        half = rng.integers(0, 1 << 16, dtype=np.uint16).view(np.float16)
        if np.isfinite(half):
            return half


def blocks(rng, kind, scales):
    values, size = gguf.GGML_QUANT_SIZES[kind]
    count = {1: 64, 32: 4, 256: 2}[values]
    data = rng.integers(0, 256, (count, size), dtype=np.uint8)
    for block in data:
        for at in scales:
            block[at : at + 2] = np.array([finite_half(rng)]).view(np.uint8)
        if kind.name == "BF16":
            block[1] &= 0xBF  # finite
    return data.reshape(1, -1)


def main(folder):
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.Generator(np.random.Philox(20))
    for name, scales in TYPES.items():
        kind = gguf.GGMLQuantizationType[name]
        data = blocks(rng, kind, scales)
        if name == "F16":
            values = data.view(np.float16).astype(np.float32)
        else:
            values = gguf.quants.dequantize(data, kind)
        assert np.isfinite(values).all(), name
        (folder / f"{name.lower()}.bin").write_bytes(data.tobytes() + values.astype("<f4").tobytes())


main(pathlib.Path(sys.argv[1]))
