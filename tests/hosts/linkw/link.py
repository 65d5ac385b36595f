"""Frames and descriptors: the two sockets of a worker (linkw.md sections 1 and 6).

Everything a worker sends is checked here for what holds of every frame: length, class, version, the counter,
a known type in its own direction, and replies in the order of their requests (W-1 to W-8, W-22).
"""

import array
import collections
import socket
import struct

import messages
from expect import Failed, equal, expect
from postcard import decode, encode
from process import FD_CHANNEL_FD, FRAMES_FD, Process

HEADER = struct.Struct("<IHHQQB")
LEAST_LEN = 21
MOST_LEN = 16_777_216
VERSION = 8
PATIENCE_S = 60.0


def frame(kind, payload, seq, correlation=0, version=VERSION, klass=None):
    """The bytes of one frame; the class follows from the type unless it is named (W-2)."""
    klass = kind >> 15 if klass is None else klass
    return HEADER.pack(LEAST_LEN + len(payload), version, kind, seq, correlation, klass) + payload


class Ended(Exception):
    """The worker closed the stream."""


class Link:
    """A worker process and the host's end of the link. Nothing is sent or read on its own."""

    def __init__(self, arguments, narrow=False):
        """A `narrow` stream holds only a few frames that the host has not read; then the worker waits."""
        self.frames, worker_frames = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        if narrow:
            worker_frames.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 0)
        self.fds, worker_fds = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        numbers = ["--frames-fd", str(FRAMES_FD), "--fd-channel-fd", str(FD_CHANNEL_FD)]
        with worker_frames, worker_fds:
            self.process = Process([*arguments, *numbers], (worker_frames, worker_fds))
        self.sent = 0
        self.received = 0
        self.buffered = bytearray()
        # (seq, request) of what was asked and not answered yet, oldest first.
        self.asked = collections.deque()
        self.unasked = []

    # Sending.

    def raw(self, data):
        self.frames.sendall(data)

    def next_seq(self):
        self.sent += 1
        return self.sent

    def send_bytes(self, message, payload, **header):
        """Sends a frame with this payload, whatever it says; answers its `seq`."""
        seq = self.next_seq()
        self.raw(frame(message.number, payload, seq, **header))
        if message.reply is not None:
            self.asked.append((seq, message))
        return seq

    def send(self, message, **fields):
        record = message.payload.new(**fields)
        return self.send_bytes(message, encode(message.payload, record))

    def send_descriptors(self, tag, *descriptors, data=None):
        """One message on `fds`: eight bytes of tag and the descriptors beside them (W-32)."""
        data = struct.pack("<Q", tag) if data is None else data
        rights = array.array("i", descriptors)
        beside = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)] if descriptors else []
        sent = self.fds.sendmsg([data], beside)
        equal(sent, len(data), "bytes of a descriptor message")

    # Receiving.

    def fill(self, count, seconds):
        """Reads until `count` bytes are there."""
        self.frames.settimeout(seconds)
        while len(self.buffered) < count:
            try:
                piece = self.frames.recv(1 << 16)
            except TimeoutError:
                said = self.process.said()
                raise Failed(f"no frame within {seconds} s; stderr: {said!r}") from None
            except ConnectionResetError:
                piece = b""
            if not piece:
                expect(not self.buffered, f"the stream ended inside a frame: {bytes(self.buffered).hex()}")
                raise Ended(self.process.said())
            self.buffered += piece

    def receive(self, seconds=PATIENCE_S):
        """The next frame, as (message, record, correlation)."""
        self.fill(HEADER.size, seconds)
        length, version, kind, seq, correlation, klass = HEADER.unpack_from(self.buffered)
        expect(LEAST_LEN <= length <= MOST_LEN, f"a frame of length {length}")
        self.fill(4 + length, seconds)
        payload = bytes(self.buffered[HEADER.size : 4 + length])
        del self.buffered[: 4 + length]

        self.received += 1
        equal(seq, self.received, "seq of a frame from the worker")
        equal(version, VERSION, "version of a frame from the worker")
        equal(klass, kind >> 15, "class of a frame from the worker")
        message = messages.BY_NUMBER.get(kind)
        expect(message is not None and not message.by_host, f"type {kind:#06x} from the worker")
        record = decode(message.payload, payload)
        equal(encode(message.payload, record), payload, f"{message} encoded again")
        return message, record, correlation

    def answer(self, seq, seconds=PATIENCE_S):
        """The reply to the oldest open request, which must be `seq`. Unasked frames before it are kept."""
        expect(self.asked and self.asked[0][0] == seq, f"{seq} is not the oldest of {list(self.asked)}")
        _, request = self.asked.popleft()
        while True:
            message, record, correlation = self.receive(seconds)
            if correlation == 0:
                self.keep(message, record)
                continue
            equal(correlation, seq, f"correlation of a {message} while {request} is open")
            equal(message.number, request.reply, f"type of the reply to {request}")
            return record

    def keep(self, message, record):
        allowed = (messages.TICK_EMIT, messages.STATE_OP_DONE, messages.TRANSCRIBE_SEGMENT)
        expect(message in allowed, f"an unasked {message}")
        self.unasked.append((message, record))

    def take_unasked(self, wanted):
        taken = [record for message, record in self.unasked if message is wanted]
        self.unasked = [pair for pair in self.unasked if pair[0] is not wanted]
        return taken

    def request(self, message, **fields):
        return self.answer(self.send(message, **fields))

    # The end.

    def close(self, seconds=5.0):
        """Closes `frames`; the exit code of the worker, which must come promptly (W-70)."""
        self.frames.close()
        return self.process.wait(seconds)

    def ended(self, seconds=PATIENCE_S):
        """Waits for the worker to end by itself without having sent another frame; its exit code."""
        try:
            message, record, _ = self.receive(seconds)
        except Ended:
            return self.process.wait(seconds)
        raise Failed(f"a {message} instead of the end of the link: {record}")

    def free(self):
        self.process.free()
        self.frames.close()
        self.fds.close()
