"""The payload encoding of Link W: postcard over a schema of codecs (linkw.md section 2).

A codec has `write(out, value)`, `read(reader)` and `zero()`, the value a field has when nobody names one.
Structs are `Record`s; a variant of an enum is the pair of its name and its record.
"""

import struct

U32_MAX = 2**32 - 1
U64_MAX = 2**64 - 1


class PayloadError(Exception):
    """The payload does not say a value of its type (W-12)."""


class Reader:
    def __init__(self, data):
        self.data = data
        self.at = 0

    def take(self, count):
        if count > len(self.data) - self.at:
            raise PayloadError(f"{count} bytes wanted at {self.at} of {len(self.data)}")
        piece = self.data[self.at : self.at + count]
        self.at += count
        return piece

    def left(self):
        return len(self.data) - self.at


class Record:
    """Fields by name. Two are equal when all their fields are."""

    def __init__(self, **fields):
        self.__dict__.update(fields)

    def __eq__(self, other):
        return isinstance(other, Record) and self.__dict__ == other.__dict__

    def __repr__(self):
        return "(" + ", ".join(f"{name}={value!r}" for name, value in self.__dict__.items()) + ")"

    def but(self, **changed):
        """A copy with other values in some fields."""
        unknown = set(changed) - set(self.__dict__)
        assert not unknown, unknown
        return Record(**{**self.__dict__, **changed})


def write_varint(out, value):
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


class Varint:
    """u16, u32 and u64: seven bits a byte, low group first."""

    def __init__(self, bits):
        self.bits = bits
        self.most_bytes = -(-bits // 7)

    def zero(self):
        return 0

    def write(self, out, value):
        if not 0 <= value < 1 << self.bits:
            raise ValueError(f"{value} is no u{self.bits}")
        write_varint(out, value)

    def read(self, reader):
        value = 0
        for group in range(self.most_bytes):
            byte = reader.take(1)[0]
            value |= (byte & 0x7F) << 7 * group
            if byte < 0x80:
                if value >> self.bits:
                    raise PayloadError(f"{value} is no u{self.bits}")
                return value
        raise PayloadError(f"a varint of more than {self.most_bytes} bytes")


class Zigzag:
    """i32: 0, -1, 1, -2 as 0, 1, 2, 3."""

    def __init__(self, bits):
        self.bits = bits
        self.varint = Varint(bits)

    def zero(self):
        return 0

    def write(self, out, value):
        self.varint.write(out, value << 1 if value >= 0 else (-value << 1) - 1)

    def read(self, reader):
        folded = self.varint.read(reader)
        return folded >> 1 if folded & 1 == 0 else -(folded >> 1) - 1


class Byte:
    def zero(self):
        return 0

    def write(self, out, value):
        out.append(value)

    def read(self, reader):
        return reader.take(1)[0]


class Bool:
    def zero(self):
        return False

    def write(self, out, value):
        out.append(1 if value else 0)

    def read(self, reader):
        byte = reader.take(1)[0]
        if byte > 1:
            raise PayloadError(f"{byte} is no bool")
        return byte == 1


class Float32:
    def zero(self):
        return 0.0

    def write(self, out, value):
        out += struct.pack("<f", value)

    def read(self, reader):
        return struct.unpack("<f", reader.take(4))[0]


class Fixed:
    """An array of bytes of known length: no length is written."""

    def __init__(self, length):
        self.length = length

    def zero(self):
        return bytes(self.length)

    def write(self, out, value):
        if len(value) != self.length:
            raise ValueError(f"{len(value)} bytes instead of {self.length}")
        out += value

    def read(self, reader):
        return bytes(reader.take(self.length))


class Bytes:
    def zero(self):
        return b""

    def write(self, out, value):
        write_varint(out, len(value))
        out += value

    def read(self, reader):
        return bytes(reader.take(U64.read(reader)))


class Text:
    def zero(self):
        return ""

    def write(self, out, value):
        BYTES.write(out, value.encode())

    def read(self, reader):
        try:
            return BYTES.read(reader).decode()
        except UnicodeDecodeError as error:
            raise PayloadError(str(error)) from error


class Vec:
    def __init__(self, element):
        self.element = element

    def zero(self):
        return []

    def write(self, out, values):
        write_varint(out, len(values))
        for value in values:
            self.element.write(out, value)

    def read(self, reader):
        count = U64.read(reader)
        if count > reader.left():
            raise PayloadError(f"{count} elements in {reader.left()} bytes")
        return [self.element.read(reader) for _ in range(count)]


class Option:
    def __init__(self, inner):
        self.inner = inner

    def zero(self):
        return None

    def write(self, out, value):
        out.append(0 if value is None else 1)
        if value is not None:
            self.inner.write(out, value)

    def read(self, reader):
        tag = reader.take(1)[0]
        if tag > 1:
            raise PayloadError(f"{tag} is no option tag")
        return self.inner.read(reader) if tag else None


class Tuple:
    def __init__(self, *parts):
        self.parts = parts

    def zero(self):
        return tuple(part.zero() for part in self.parts)

    def write(self, out, values):
        if len(values) != len(self.parts):
            raise ValueError(f"{len(values)} parts instead of {len(self.parts)}")
        for part, value in zip(self.parts, values):
            part.write(out, value)

    def read(self, reader):
        return tuple(part.read(reader) for part in self.parts)


class Struct:
    """Fields in order, nothing between."""

    def __init__(self, **fields):
        self.fields = fields

    def zero(self):
        return Record(**{name: codec.zero() for name, codec in self.fields.items()})

    def new(self, **given):
        """A record with the named fields; the others are zero."""
        return self.zero().but(**given)

    def of(self, *values):
        """A record from its fields in wire order."""
        if len(values) != len(self.fields):
            raise ValueError(f"{len(values)} fields instead of {list(self.fields)}")
        return Record(**dict(zip(self.fields, values)))

    def write(self, out, record):
        for name, codec in self.fields.items():
            codec.write(out, getattr(record, name))

    def read(self, reader):
        return Record(**{name: codec.read(reader) for name, codec in self.fields.items()})


class Enum:
    """A value is the pair (variant, record)."""

    def __init__(self, *variants):
        self.variants = variants
        self.numbers = {name: number for number, (name, _) in enumerate(variants)}

    def zero(self):
        name, fields = self.variants[0]
        return name, fields.zero()

    def new(self, variant, **given):
        return variant, self.variants[self.numbers[variant]][1].new(**given)

    def write(self, out, value):
        variant, record = value
        number = self.numbers[variant]
        write_varint(out, number)
        self.variants[number][1].write(out, record)

    def read(self, reader):
        number = U32.read(reader)
        if number >= len(self.variants):
            raise PayloadError(f"variant {number} of {len(self.variants)}")
        variant, fields = self.variants[number]
        return variant, fields.read(reader)


def encode(codec, value):
    out = bytearray()
    codec.write(out, value)
    return bytes(out)


def decode(codec, payload):
    """The value; bytes after the last field are ignored (W-11)."""
    return codec.read(Reader(payload))


U8 = Byte()
U16 = Varint(16)
U32 = Varint(32)
U64 = Varint(64)
I32 = Zigzag(32)
F32 = Float32()
BOOL = Bool()
BYTES = Bytes()
TEXT = Text()
HASH = Fixed(32)
