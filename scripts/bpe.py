"""Byte-level BPE with the GPT-2 byte alphabet: training, encoding, decoding.

The text is cut by the GPT-2 pattern (here its ASCII form: the stories hold nothing else; the reference encodes
no other text), each piece becomes bytes, each byte a printable letter of the GPT-2 alphabet, and the merges
join neighbours, the earliest merge first.

# Source
Sennrich, Haddow, Birch 2016 (arXiv 1508.07909); the byte alphabet: Radford et al. 2019 (GPT-2).
"""

import re
from collections import Counter

PIECES = re.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+(?!\S)|\s+")


def byte_alphabet():
    """The 256 letters, by byte: printable Latin-1 stands for itself, the rest take U+0100 and up in order."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    letters = {b: chr(b) for b in plain}
    rest = [b for b in range(256) if b not in letters]
    letters.update({b: chr(0x100 + i) for i, b in enumerate(rest)})
    return [letters[b] for b in range(256)]


LETTERS = byte_alphabet()
BYTES = {c: b for b, c in enumerate(LETTERS)}


def spell(piece):
    return [LETTERS[b] for b in piece.encode("utf-8")]


def join(symbols, pair):
    out, i = [], 0
    while i < len(symbols):
        if i + 1 < len(symbols) and (symbols[i], symbols[i + 1]) == pair:
            out.append(symbols[i] + symbols[i + 1])
            i += 2
        else:
            out.append(symbols[i])
            i += 1
    return out


def train(texts, count):
    """`count` merges from `texts`; ties go to the pair that sorts first, so the result depends on the text only."""
    pieces = Counter(p for t in texts for p in PIECES.findall(t))
    words = [(spell(p), n) for p, n in sorted(pieces.items())]
    merges = []
    while len(merges) < count:
        pairs = Counter()
        for symbols, n in words:
            for pair in zip(symbols, symbols[1:]):
                pairs[pair] += n
        if not pairs:
            raise SystemExit(f"the text gives only {len(merges)} merges")
        best = min(pairs, key=lambda p: (-pairs[p], p))
        merges.append(best)
        words = [(join(s, best), n) for s, n in words]
    return merges


class Tokenizer:
    """Ids from a token list (`tokens[id]` in the byte alphabet) and merges in order of rank."""

    def __init__(self, tokens, merges):
        self.tokens, self.merges = tokens, merges
        self.ids = {t: i for i, t in enumerate(tokens)}
        self.rank = {m: i for i, m in enumerate(merges)}
        self.cache = {}

    def piece(self, piece):
        if piece not in self.cache:
            symbols = spell(piece)
            while len(symbols) > 1:
                pair = min(zip(symbols, symbols[1:]), key=lambda p: self.rank.get(p, len(self.rank)))
                if pair not in self.rank:
                    break
                symbols = join(symbols, pair)
            self.cache[piece] = [self.ids[s] for s in symbols]
        return self.cache[piece]

    def encode(self, text):
        return [i for p in PIECES.findall(text) for i in self.piece(p)]

    def decode(self, ids, special=()):
        raw = bytes(BYTES[c] for i in ids if i not in special for c in self.tokens[i])
        return raw.decode("utf-8", "replace")
