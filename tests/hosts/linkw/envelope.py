"""The envelope of exported state and its hashes (state.md sections 8 and 9)."""

import struct

from postcard import Struct

MAGIC = 0x4554415453545242
BYTES = 136
BASIS = 0xCBF29CE484222325
PRIME = 0x100000001B3
MASK64 = 2**64 - 1
XXH3, FNV = 1, 2
QUANTIZED = 1

# (field, offset, format) of the record; the file form is the in-memory form (S-70).
FIELDS = (
    ("magic", 0, "<Q"),
    ("envelope_version", 8, "<I"),
    ("space_kind", 12, "<I"),
    ("compat_identity", 16, "32s"),
    ("version_tag", 48, "<Q"),
    ("provenance_digest", 56, "32s"),
    ("taint_bits", 88, "<I"),
    ("start", 96, "<Q"),
    ("end", 104, "<Q"),
    ("encoding", 112, "<B"),
    ("checksum_kind", 116, "<I"),
    ("payload_len", 120, "<Q"),
    ("content_checksum", 128, "<Q"),
)
OFFSETS = {name: (offset, form) for name, offset, form in FIELDS}
PADDING = ((92, 96), (113, 116))


def fnv(data, h=BASIS):
    """S-82. Python pays for each byte, so give it little."""
    for byte in data:
        h = (h ^ byte) * PRIME & MASK64
    return h


def content_digest(tokens):
    """S-81."""
    data = struct.pack(f"<{len(tokens)}I", *tokens)
    return struct.pack("<QQ", fnv(data), fnv(data, ~BASIS & MASK64)) + bytes(16)


def parse(sealed):
    """The fields of sealed state, as a record."""
    values = {name: struct.unpack_from(form, sealed, offset)[0] for name, offset, form in FIELDS}
    return Struct(**dict.fromkeys(values)).of(*values.values())


def padding(sealed):
    return b"".join(bytes(sealed[start:end]) for start, end in PADDING)


def patched(sealed, **fields):
    """A copy with other values in some fields."""
    copy = bytearray(sealed)
    for name, value in fields.items():
        offset, form = OFFSETS[name]
        struct.pack_into(form, copy, offset, value)
    return bytes(copy)
