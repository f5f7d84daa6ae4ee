"""
StackPipe: where a process writes the stack of each of its threads when it is asked by SIGUSR1.

A pipe of its own for each process: on a shared stream the dumps of several processes mix word by word, since the
interpreter writes each in many small pieces.
"""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import os
import signal

_PIPE_BYTES = 256 * 1024
MAX_CHARS = 100_000


class StackPipe:
    """The reader's end, and until `given` the end that the process inherits; neither ever blocks."""

    def __init__(self) -> None:
        self._reader, self.writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        with contextlib.suppress(OSError):
            fcntl.fcntl(self.writer, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)

    def given(self) -> None:
        """Close this process's copy of the writer's end."""
        os.close(self.writer)
        self.writer = -1

    def read(self) -> str:
        """Return what has come since the last call; empty once this end is closed."""
        parts: list[bytes] = []
        with contextlib.suppress(BlockingIOError):
            while self._reader >= 0 and (data := os.read(self._reader, 65_536)):
                parts.append(data)
        return b"".join(parts).decode(errors="replace")

    def close(self) -> None:
        """Close what of it is open here."""
        for fd in (self._reader, self.writer):
            if fd >= 0:
                os.close(fd)
        self._reader = self.writer = -1


def answer_stack_requests(fd: int) -> None:
    """In the process that is asked: write the stacks to `fd` on SIGUSR1, even from within a call that never returns."""
    os.set_inheritable(fd, False)
    faulthandler.register(signal.SIGUSR1, file=fd, all_threads=True)


def own_stacks() -> str:
    """Return the stack of each thread of this process."""
    pipe = StackPipe()
    try:
        faulthandler.dump_traceback(file=pipe.writer, all_threads=True)
        return pipe.read()[:MAX_CHARS]
    finally:
        pipe.close()
