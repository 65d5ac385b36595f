"""The tokenizer library (linkw.md section 16)."""

import ctypes
import os
import threading

from expect import check, equal, expect, note
from tokenizer import NONE, Library, Tokenizer

TEXTS = [
    "",
    "a",
    "Hello, world! 123 4567",
    "  two  spaces\n\n\tand a tab ",
    "Grüße aus Zürich: 你好，世界 🦀👩‍🚀",
    "fn main() { println!(\"{}\", 1 << 20); }\r\n",
    "\x00\x7f\u200b\ufeff",
]


@check("section 16; encode, token_bytes")
def texts_come_back_from_their_tokens(host):
    tokenizer = host.tokenizer
    library = tokenizer.library
    equal(library.abi_version(), 1, "abi_version")
    special = tokenizer.special_tokens()
    begin = tokenizer.bos()
    for text in TEXTS:
        ids = tokenizer.encode(text)
        expect(all(0 <= id < host.vocab for id in ids), f"ids of {text!r}: {ids}")
        equal(tokenizer.text_of(ids), text.encode(), f"the text of {ids}")
        # Less room than needed: the same size is asked for, what fits is written, nothing behind it.
        data = text.encode()
        for room in {0, len(ids) // 2, max(len(ids) - 1, 0)}:
            out = (ctypes.c_uint32 * (room + 1))()
            out[room] = 0xABCD
            needed = library.encode(tokenizer.handle, data, len(data), out, room)
            equal(needed, len(ids), f"size of {text!r} in {room}")
            equal(list(out)[:room], ids[:room], f"what fits into {room}")
            equal(out[room], 0xABCD, "the id behind the buffer")
    for id, text in special.items():
        equal(tokenizer.encode(text), [id], f"encoding of the special text {text}")
        equal(tokenizer.encode(b"a" + text + b"b").count(id), 1, f"{text} inside a text")
        equal(tokenizer.token_bytes(id), b"", f"bytes of the control token {text}")
    expect(begin == -1 or begin in special, f"bos {begin} of {special}")
    expect(tokenizer.eos() in special, f"eos {tokenizer.eos()} of {special}")


@check("section 16; every id")
def every_id_has_bytes_and_those_outside_have_none(host):
    tokenizer = host.tokenizer
    special = tokenizer.special_tokens()
    empty = [id for id in range(host.vocab) if not tokenizer.token_bytes(id) and id not in special]
    equal(empty, [], "ids without bytes that are not special")
    for id in (host.vocab, 2**32 - 1):
        expect(not tokenizer.token_bytes(id), f"id {id} has bytes")
    out = ctypes.create_string_buffer(b"\xee" * 8, 8)
    longest = max(range(host.vocab), key=lambda id: len(tokenizer.token_bytes(id)))
    data = tokenizer.token_bytes(longest)
    needed = tokenizer.library.token_bytes(tokenizer.handle, longest, out, 1)
    equal((needed, out.raw), (len(data), data[:1] + b"\xee" * 7), "a token in one byte of room")


@check("section 16; W-89; open, chat_template")
def library_opens_what_the_worker_opens(host):
    library = Library(host.library)
    for path in ("/nowhere/model.gguf", os.devnull, os.path.dirname(__file__)):
        error = ctypes.create_string_buffer(b"\xee" * 64, 64)
        equal(library.open(path.encode(), error, len(error)), None, f"open of {path}")
        expect(b"\0" in error.raw and error.value, f"no message for {path}")
        error = ctypes.create_string_buffer(b"\xee" * 8, 8)
        library.open(path.encode(), error, 4)
        expect(b"\0" in error.raw[:4] and error.raw[4:] == b"\xee" * 4, f"a message past its end: {error.raw}")
        equal(library.open(path.encode(), None, 0), None, "open without room for a message")
    again = Tokenizer(host.library, host.model)
    equal(again.vocab_size(), host.vocab, "vocabulary of a second handle")
    equal(again.encode(TEXTS[2]), host.tokenizer.encode(TEXTS[2]), "ids of a second handle")
    template = again.chat_template()
    if template is None:
        note("the model has no chat template")
    else:
        template.decode()
    out = ctypes.create_string_buffer(8)
    equal(library.chat_template(again.handle, b"no such name", out, 8), NONE, "a template nobody named")
    again.close()
    with host.session(ready="greeted") as session:
        logits = session.spec(3).slot_bytes
        equal(logits, -(-(16 + 4 * host.vocab) // 8) * 8, "logits slots for the library's vocabulary")


@check("section 16; threads")
def one_handle_serves_several_threads(host):
    tokenizer = host.tokenizer
    wanted = [tokenizer.encode(text) for text in TEXTS]
    wrong = []

    def work():
        for _ in range(30):
            found = [tokenizer.encode(text) for text in TEXTS]
            if found != wanted or [tokenizer.text_of(ids).decode() for ids in found] != TEXTS:
                wrong.append(found)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    equal(wrong, [], "what a thread got")
