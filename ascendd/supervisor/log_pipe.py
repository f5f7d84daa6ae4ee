"""
The pipe between every process of an instance and its log writer.

    supervisor 1,2 --+                        +-- log writer (restarted at will)
    engine     1,2 --+--> [pipe, both ends kept by the supervisor]
    api        1,2 --+

The supervisor must never wait for the log writer, because it is the one that restarts it: its own lines go through a
second, non-blocking opening of the pipe, and lines that do not fit are counted instead.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import sys

# Room for what is written while the log writer is restarted; the kernel may give less.
_PIPE_BYTES = 1024 * 1024


class LossyStream(io.TextIOBase):
    """A text stream over a descriptor that does not block; what does not fit is dropped and counted."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self.num_dropped = 0

    def write(self, text: str) -> int:
        """Write `text` whole or drop it."""
        data = text.encode("utf-8", "backslashreplace")
        if self.num_dropped:
            data = b'{"event":"log.lines_dropped","role":"supervisor","count":%d}\n' % self.num_dropped + data
        try:
            os.write(self._fd, data)
        except BlockingIOError:
            self.num_dropped += 1
        else:
            self.num_dropped = 0
        return len(text)

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._fd


class LogPipe:
    """Standard output and error of this process and its children, until `restore`."""

    def __init__(self) -> None:
        self.reader, self._writer = os.pipe2(os.O_CLOEXEC)
        with contextlib.suppress(OSError):
            fcntl.fcntl(self._writer, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        own = os.open(f"/proc/self/fd/{self._writer}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self.stream = LossyStream(own)
        self._saved: list[int] = []

    def redirect(self) -> None:
        """Point 1 and 2 at the pipe; children inherit that."""
        for stream, fd in ((sys.stdout, 1), (sys.stderr, 2)):
            stream.flush()
            self._saved.append(fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3))
            os.dup2(self._writer, fd)

    def restore(self) -> None:
        """Give 1 and 2 back, so that the last words reach the journal, and close the pipe."""
        for fd, saved in zip((1, 2), self._saved, strict=True):
            os.dup2(saved, fd)
            os.close(saved)
        self._saved.clear()
        for fd in (self.reader, self._writer, self.stream.fileno()):
            os.close(fd)
