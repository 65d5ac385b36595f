"""The tokenizer library of section 16 of linkw.md, through ctypes."""

import ctypes
import struct

from expect import Failed

NONE = ctypes.c_size_t(-1).value
PREFIX = "superfluid_tokenizer_"
HANDLE = ctypes.c_void_p
SIZE = ctypes.c_size_t
BYTES_OUT = ctypes.c_char_p
IDS_OUT = ctypes.POINTER(ctypes.c_uint32)

SIGNATURES = {
    "abi_version": (ctypes.c_uint32, []),
    "open": (HANDLE, [ctypes.c_char_p, BYTES_OUT, SIZE]),
    "close": (None, [HANDLE]),
    "encode": (SIZE, [HANDLE, ctypes.c_char_p, SIZE, IDS_OUT, SIZE]),
    "token_bytes": (SIZE, [HANDLE, ctypes.c_uint32, BYTES_OUT, SIZE]),
    "vocab_size": (ctypes.c_uint32, [HANDLE]),
    "special_tokens": (SIZE, [HANDLE, BYTES_OUT, SIZE]),
    "bos": (ctypes.c_int64, [HANDLE]),
    "eos": (ctypes.c_uint32, [HANDLE]),
    "chat_template": (SIZE, [HANDLE, ctypes.c_char_p, BYTES_OUT, SIZE]),
}


class Library:
    """The ten functions, by their short names."""

    def __init__(self, path):
        library = ctypes.CDLL(path)
        for name, (result, parameters) in SIGNATURES.items():
            function = getattr(library, PREFIX + name)
            function.restype = result
            function.argtypes = parameters
            setattr(self, name, function)


class Tokenizer:
    def __init__(self, path, model):
        self.library = Library(path)
        error = ctypes.create_string_buffer(512)
        self.handle = self.library.open(model.encode(), error, len(error))
        if not self.handle:
            raise Failed(f"open: {error.value.decode()}")

    def close(self):
        self.library.close(self.handle)
        self.handle = None

    def vocab_size(self):
        return self.library.vocab_size(self.handle)

    def encode(self, text):
        data = text.encode() if isinstance(text, str) else text
        needed = self.library.encode(self.handle, data, len(data), None, 0)
        out = (ctypes.c_uint32 * needed)()
        if self.library.encode(self.handle, data, len(data), out, needed) != needed:
            raise Failed(f"encode of {text!r} asks for another size the second time")
        return list(out)

    def filled(self, call):
        """The bytes of a function that answers the size needed; None where it answers that there are none."""
        needed = call(None, 0)
        if needed == NONE:
            return None
        out = ctypes.create_string_buffer(max(needed, 1))
        if call(out, needed) != needed:
            raise Failed("another size the second time")
        return out.raw[:needed]

    def token_bytes(self, token):
        return self.filled(lambda out, cap: self.library.token_bytes(self.handle, token, out, cap))

    def text_of(self, tokens):
        return b"".join(self.token_bytes(token) for token in tokens)

    def special_tokens(self):
        """{id: text} from the records of id, length and text."""
        data = self.filled(lambda out, cap: self.library.special_tokens(self.handle, out, cap))
        found = {}
        at = 0
        while at < len(data):
            token, length = struct.unpack_from("<II", data, at)
            found[token] = data[at + 8 : at + 8 + length]
            at += 8 + length
        if at != len(data):
            raise Failed("a special token's record ends early")
        return found

    def bos(self):
        return self.library.bos(self.handle)

    def eos(self):
        return self.library.eos(self.handle)

    def chat_template(self, name=None):
        named = None if name is None else name.encode()
        return self.filled(lambda out, cap: self.library.chat_template(self.handle, named, out, cap))
