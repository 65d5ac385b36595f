"""A worker process, started the way section 15 of linkw.md says."""

import fcntl
import os
import select
import signal

from expect import Failed

SECRET_ENDINGS = (
    "TOKEN SECRET SECRET_KEY PASSWORD PASSWD API_KEY APIKEY ACCESS_KEY PRIVATE_KEY CREDENTIALS".split()
)
FRAMES_FD = 3
FD_CHANNEL_FD = 4
# Far above the numbers 0 to 4 which the child's descriptors get.
PARKED_FROM = 64


def environment():
    """The host's own, without what looks like a secret (W-83)."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.upper().endswith(tuple(SECRET_ENDINGS))
    }


def parked(descriptor):
    return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, PARKED_FROM)


class Process:
    """Owns the child until it was waited for. `sockets` are the child's ends of `frames` and `fds`."""

    def __init__(self, arguments, sockets=()):
        self.stdout = os.memfd_create("stdout")
        self.stderr = os.memfd_create("stderr")
        nowhere = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        given = [nowhere, self.stdout, self.stderr] + [socket.fileno() for socket in sockets]
        high = [parked(descriptor) for descriptor in given]
        actions = [(os.POSIX_SPAWN_DUP2, descriptor, number) for number, descriptor in enumerate(high)]
        try:
            self.pid = os.posix_spawn(arguments[0], arguments, environment(), file_actions=actions)
        finally:
            for descriptor in high + [nowhere]:
                os.close(descriptor)
        self.pidfd = os.pidfd_open(self.pid)
        self.status = None

    def wait(self, seconds):
        """The exit code; a signal's number as a negative one."""
        if self.status is None:
            poll = select.poll()
            poll.register(self.pidfd, select.POLLIN)
            if not poll.poll(int(seconds * 1000)):
                raise Failed(f"the worker runs on after {seconds} s; stderr: {self.said()!r}")
            self.status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.status

    def kill(self):
        if self.status is None:
            os.kill(self.pid, signal.SIGKILL)
            self.wait(10)

    def said(self, descriptor=None):
        descriptor = self.stderr if descriptor is None else descriptor
        return os.pread(descriptor, os.fstat(descriptor).st_size, 0).decode()

    def printed(self):
        return self.said(self.stdout)

    def free(self):
        """Ends the child if it still runs, and gives the descriptors back."""
        self.kill()
        for descriptor in (self.stdout, self.stderr, self.pidfd):
            os.close(descriptor)


def run(arguments, seconds=60):
    """Exit code, standard output and standard error of a command that ends by itself."""
    process = Process(arguments)
    try:
        return process.wait(seconds), process.printed(), process.said()
    finally:
        process.free()
