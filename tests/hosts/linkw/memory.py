"""Memory a host shares with a worker: rings, the control segment and buffers (linkw.md sections 6, 7 and 18)."""

import fcntl
import mmap
import os
import struct

from expect import Failed, equal, expect
from messages import RING_REF, TOKEN_REF

RING_MAGIC = 0x42525452494E4731
CONTROL_MAGIC = 0x31304C5254434653
CONTROL_TAG = 0xC0
CONTROL_BYTES = 64
RING_HEADER = 64
SLOT_HEADER = 16


class Shared:
    """A zeroed memory object of `size` bytes and its mapping. Sealed ones can no longer change their size."""

    def __init__(self, name, size, sealed=False):
        flags = os.MFD_CLOEXEC | (os.MFD_ALLOW_SEALING if sealed else 0)
        self.descriptor = os.memfd_create(name, flags)
        os.ftruncate(self.descriptor, size)
        if sealed:
            fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        self.view = mmap.mmap(self.descriptor, size)

    def __len__(self):
        return len(self.view)

    def free(self):
        self.view.close()
        os.close(self.descriptor)


class Ring(Shared):
    """One ring. The host writes ring 1 with `write` and reads the others."""

    def __init__(self, spec, sealed=False):
        super().__init__(f"ring-{spec.ring_id}", RING_HEADER + spec.slots * spec.slot_bytes, sealed)
        self.spec = spec
        self.capacity = (spec.slot_bytes - SLOT_HEADER) // 4
        struct.pack_into("<QIII", self.view, 0, RING_MAGIC, spec.ring_id, spec.slot_bytes, spec.slots)
        self.generation = 0

    def slot(self, index):
        return RING_HEADER + index * self.spec.slot_bytes

    def write(self, ids):
        """The reference to the slot that now holds these ids. Generation 0 stands while the slot is written."""
        expect(len(ids) <= self.capacity, f"{len(ids)} ids for a slot of {self.capacity}")
        index = self.generation % self.spec.slots
        self.generation += 1
        at = self.slot(index)
        struct.pack_into("<Q", self.view, at, 0)
        struct.pack_into(f"<II{len(ids)}I", self.view, at + 8, 4 * len(ids), 0, *ids)
        struct.pack_into("<Q", self.view, at, self.generation)
        return TOKEN_REF.of(self.spec.ring_id, index, len(ids), self.generation)

    def read(self, index, generation, element):
        expect(index < self.spec.slots, f"slot {index} of ring {self.spec.ring_id}")
        at = self.slot(index)
        found, length, zero = struct.unpack_from("<QII", self.view, at)
        equal(found, generation, f"generation of slot {index} of ring {self.spec.ring_id}")
        equal(zero, 0, "word behind the length")
        expect(length % 4 == 0 and length <= 4 * self.capacity, f"a payload of {length} bytes")
        values = struct.unpack_from(f"<{length // 4}{element}", self.view, at + SLOT_HEADER)
        equal(struct.unpack_from("<Q", self.view, at)[0], generation, "generation after reading")
        return list(values)

    def tokens(self, reference):
        equal(reference.ring_id, self.spec.ring_id, "ring of a token reference")
        ids = self.read(reference.index, reference.generation, "I")
        equal(len(ids), reference.count, "ids in the slot")
        return ids

    def row(self, reference):
        equal(reference.ring_id, self.spec.ring_id, "ring of a row")
        return self.read(reference.index, reference.generation, "f")

    def expected_write(self):
        """Index and generation of the engine's next write, which this counts (section 18)."""
        index = self.generation % self.spec.slots
        self.generation += 1
        return index, self.generation

    def contents(self):
        return bytes(self.view)


class Control(Shared):
    """The control segment: the yield word and the latency word."""

    def __init__(self, sealed=False):
        super().__init__("control", CONTROL_BYTES, sealed)
        struct.pack_into("<Q", self.view, 0, CONTROL_MAGIC)

    def set_yield(self, on):
        struct.pack_into("<Q", self.view, 8, 1 if on else 0)

    def set_latency(self, on):
        struct.pack_into("<Q", self.view, 16, 1 if on else 0)


class Buffer(Shared):
    def __init__(self, buf_id, size, sealed=False):
        super().__init__(f"buffer-{buf_id}", size, sealed)
        self.buf_id = buf_id


NO_ROW = RING_REF.of(0, 0, 0)
NO_TOKENS = TOKEN_REF.of(0, 0, 0, 0)


def ring_size(spec):
    if spec.slot_bytes % 8:
        raise Failed(f"slots of {spec.slot_bytes} bytes")
    return RING_HEADER + spec.slots * spec.slot_bytes
