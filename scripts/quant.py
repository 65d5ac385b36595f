"""GGML tensor types: encoding and exact decoding of blocks, in numpy.

`encode(array, kind)` gives the bytes of a tensor; `decode(data, shape, kind)` gives float64 values, each exactly
the real number that the block stands for when its products and sums are carried out without rounding (an f16
scale times small integers fits a float64 with room to spare).

Rounding in `encode` is to nearest, ties to even, except Q8_0, which rounds ties away from zero. The K types and
the IQ4 types have no encoder: `random_blocks` draws valid blocks for them.

# Source
Block layouts: the GGUF specification and ggml's description of its types (as facts: field order, widths).
"""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Type:
    code: int
    block: int
    size: int


TYPES = {
    "F32": Type(0, 1, 4), "F16": Type(1, 1, 2), "BF16": Type(30, 1, 2),
    "Q4_0": Type(2, 32, 18), "Q4_1": Type(3, 32, 20), "Q5_0": Type(6, 32, 22), "Q5_1": Type(7, 32, 24),
    "Q8_0": Type(8, 32, 34), "IQ4_NL": Type(20, 32, 18),
    "Q2_K": Type(10, 256, 84), "Q3_K": Type(11, 256, 110), "Q4_K": Type(12, 256, 144), "Q5_K": Type(13, 256, 176),
    "Q6_K": Type(14, 256, 210), "IQ4_XS": Type(23, 256, 136),
}
BY_CODE = {t.code: name for name, t in TYPES.items()}


def size_bytes(shape, kind):
    t = TYPES[kind]
    assert shape[-1] % t.block == 0, f"{kind} needs rows of a multiple of {t.block}, got {shape}"
    return int(np.prod(shape)) // t.block * t.size


def away(x):
    """Nearest integer, ties away from zero."""
    return np.trunc(x + np.copysign(0.5, x))


def half(x):
    return x.astype("<f2").view(np.uint8).reshape(len(x), -1)


def nibbles(q):
    """Two halves of a block share bytes: value i in the low half, value i + n/2 in the high half."""
    q = q.astype(np.uint8)
    n = q.shape[1] // 2
    return q[:, :n] & 15 | (q[:, n:] & 15) << 4


def high_bits(q):
    """Bit 4 of each of the 32 values, as 4 bytes, value 0 in the lowest bit."""
    return np.packbits(q.astype(np.uint8) >> 4 & 1, axis=1, bitorder="little")


def symmetric(x, levels):
    """The value of largest magnitude maps to -levels exactly: scale and codes 0 .. 2 * levels - 1."""
    peak = np.take_along_axis(x, np.abs(x).argmax(1)[:, None], 1)
    scale = (peak / -levels).astype("<f2")
    wide = scale.astype(np.float32)
    inverse = np.divide(1, wide, out=np.zeros_like(wide), where=wide != 0)
    return half(scale), np.clip(np.rint(x * inverse) + levels, 0, 2 * levels - 1)


def ranged(x, top):
    """Scale and minimum of a block, and codes 0 .. top."""
    low = x.min(1, keepdims=True).astype("<f2")
    scale = ((x.max(1, keepdims=True) - low.astype(np.float32)) / top).astype("<f2")
    wide = scale.astype(np.float32)
    inverse = np.divide(1, wide, out=np.zeros_like(wide), where=wide != 0)
    return half(scale), half(low), np.clip(np.rint((x - low.astype(np.float32)) * inverse), 0, top)


def encode_q4_0(x):
    scale, q = symmetric(x, 8)
    return np.concatenate([scale, nibbles(q)], 1)


def encode_q4_1(x):
    scale, low, q = ranged(x, 15)
    return np.concatenate([scale, low, nibbles(q)], 1)


def encode_q5_0(x):
    scale, q = symmetric(x, 16)
    return np.concatenate([scale, high_bits(q), nibbles(q)], 1)


def encode_q5_1(x):
    scale, low, q = ranged(x, 31)
    return np.concatenate([scale, low, high_bits(q), nibbles(q)], 1)


def encode_bf16(x):
    bits = x.view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("<u2")


def encode_q8_0(x):
    scale = (np.abs(x).max(1, keepdims=True) / 127).astype(np.float32)
    inverse = np.divide(1, scale, out=np.zeros_like(scale), where=scale != 0)
    return np.concatenate([half(scale), away(x * inverse).astype(np.int8).view(np.uint8)], 1)


def encode(array, kind):
    array = np.ascontiguousarray(array, np.float32)
    if kind == "F32":
        return array.astype("<f4").tobytes()
    size_bytes(array.shape, kind)
    return ENCODERS[kind](array.reshape(-1, TYPES[kind].block)).tobytes()


ENCODERS = {
    "F16": lambda x: x.astype("<f2"), "BF16": encode_bf16, "Q4_0": encode_q4_0, "Q4_1": encode_q4_1,
    "Q5_0": encode_q5_0, "Q5_1": encode_q5_1, "Q8_0": encode_q8_0,
}

# Decoding. A block is a row of bytes; `i` numbers the values of a block. Each type says for every value in which
# byte and at which bit its code starts, and which scale it belongs to.
I32, I256 = np.arange(32), np.arange(256)
IQ4 = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float64)


def f16(b, at):
    return np.ascontiguousarray(b[:, at : at + 2]).view("<f2").astype(np.float64)


def code(b, at, shift, bits):
    """Bits `shift .. shift + bits` of the bytes `at`, one for each value."""
    return (b[:, at] >> shift & ((1 << bits) - 1)).astype(np.int64)


def low4(b, at):
    return code(b, at + I32 % 16, I32 // 16 * 4, 4)


def bit5(b, at):
    return code(b, at + I32 // 8, I32 % 8, 1) << 4


def decode_q2_k(b):
    group, lane = I256 % 128 // 32, I256 % 32
    q = code(b, 16 + I256 // 128 * 32 + lane, group * 2, 2)
    return f16(b, 80) * code(b, I256 // 16, 0, 4) * q - f16(b, 82) * code(b, I256 // 16, 4, 4)


def decode_q3_k(b):
    group, lane, s = I256 % 128 // 32, I256 % 32, I256 // 16
    q = code(b, 32 + I256 // 128 * 32 + lane, group * 2, 2) + 4 * code(b, lane, I256 // 32, 1) - 4
    scale = code(b, 96 + s % 8, s // 8 * 4, 4) | code(b, 104 + s % 4, s // 4 * 2, 2) << 4
    return f16(b, 108) * (scale - 32) * q


def scale_and_min(b, at):
    """The eight 6-bit scales and minima of Q4_K and Q5_K, spread over 12 bytes."""
    j = np.arange(4)
    scale = [code(b, at + j, 0, 6), code(b, at + 8 + j, 0, 4) | code(b, at + j, 6, 2) << 4]
    low = [code(b, at + 4 + j, 0, 6), code(b, at + 8 + j, 4, 4) | code(b, at + 4 + j, 6, 2) << 4]
    return np.concatenate(scale, 1)[:, I256 // 32], np.concatenate(low, 1)[:, I256 // 32]


def decode_q45_k(b, high):
    scale, low = scale_and_min(b, 4)
    at = 48 if high else 16
    q = code(b, at + I256 // 64 * 32 + I256 % 32, I256 // 32 % 2 * 4, 4)
    if high:
        q = q | code(b, 16 + I256 % 32, I256 // 32, 1) << 4
    return f16(b, 0) * scale * q - f16(b, 2) * low


def decode_q6_k(b):
    part, group, lane = I256 // 128, I256 % 128 // 32, I256 % 32
    q = code(b, part * 64 + group % 2 * 32 + lane, group // 2 * 4, 4) | code(b, 128 + part * 32 + lane, group * 2, 2) << 4
    return f16(b, 208) * b[:, 192 + I256 // 16].view(np.int8) * (q - 32.0)


def decode_iq4_xs(b):
    s = I256 // 32
    scale = code(b, 4 + s // 2, s % 2 * 4, 4) | code(b, 2 + s // 4, s % 4 * 2, 2) << 4
    return f16(b, 0) * (scale - 32) * IQ4[code(b, 8 + s * 16 + I256 % 16, I256 % 32 // 16 * 4, 4)]


DECODERS = {
    "F32": lambda b: b.view("<f4").astype(np.float64),
    "F16": lambda b: f16(b, 0),
    "BF16": lambda b: (b.view("<u2").astype(np.uint32) << 16).view(np.float32).astype(np.float64),
    "Q4_0": lambda b: f16(b, 0) * (low4(b, 2) - 8),
    "Q4_1": lambda b: f16(b, 0) * low4(b, 4) + f16(b, 2),
    "Q5_0": lambda b: f16(b, 0) * ((low4(b, 6) | bit5(b, 2)) - 16),
    "Q5_1": lambda b: f16(b, 0) * (low4(b, 8) | bit5(b, 4)) + f16(b, 2),
    "Q8_0": lambda b: f16(b, 0) * b[:, 2:].view(np.int8),
    "IQ4_NL": lambda b: f16(b, 0) * IQ4[low4(b, 2)],
    "Q2_K": decode_q2_k, "Q3_K": decode_q3_k, "Q6_K": decode_q6_k, "IQ4_XS": decode_iq4_xs,
    "Q4_K": lambda b: decode_q45_k(b, False), "Q5_K": lambda b: decode_q45_k(b, True),
}


def decode(data, shape, kind):
    """float64 values of a tensor; `data`: its bytes (uint8)."""
    blocks = np.frombuffer(data, np.uint8).reshape(-1, TYPES[kind].size)
    out = np.empty((len(blocks), TYPES[kind].block))
    for at in range(0, len(blocks), 1 << 16):  # bounds the memory of the integer steps
        out[at : at + (1 << 16)] = DECODERS[kind](blocks[at : at + (1 << 16)])
    return out.reshape(shape)


# Where the f16 scale and the f16 minimum sit, and the minimum's size against the scale that centres the values.
SCALES = {
    "IQ4_NL": (0, None, 0), "IQ4_XS": (0, None, 0), "Q2_K": (80, 82, 1.5), "Q3_K": (108, None, 0),
    "Q4_K": (0, 2, 7.5), "Q5_K": (0, 2, 15.5), "Q6_K": (208, None, 0),
}


def random_blocks(rng, shape, kind, std):
    """Bytes of a tensor of random codes whose values have about the standard deviation `std`."""
    scale_at, min_at, ratio = SCALES[kind]
    count = size_bytes(shape, kind) // TYPES[kind].size
    blocks = rng.integers(0, 256, (count, TYPES[kind].size), np.uint8)

    def put(at, values):
        blocks[:, at : at + 2] = half(values[:, None])

    def set_scales(scale):
        put(scale_at, scale)
        if min_at is not None:
            put(min_at, scale * ratio)

    unit = 2.0**-10
    set_scales(np.full(count, unit))
    set_scales(std / DECODERS[kind](blocks).std() * unit * rng.uniform(0.7, 1.3, count))
    return blocks.tobytes()
