"""The `vllm serve` process: started in the keeper's own group, its log read line by line, ended with all it started."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import os
import signal
import sys
from collections.abc import Callable

from ascendd.errors import EngineFault
from ascendd.host.files import HostFiles
from ascendd.host.process_group import find_members
from ascendd.ipc.child import die_with_parent
from ascendd.vllm.command import Command

# Lines kept to find out why it ended; a traceback of several processes has some hundred.
_TAIL_LINES = 2000
_MAX_LINE_CHARS = 8192
_READ_BYTES = 64 * 1024
# What is still in the pipe of a process that ended; a grandchild that lives on must not delay that.
_LAST_WORDS_S = 1.0


class VllmServer:
    """One run of `vllm serve`; `on_line` gets each line, bars of progress included."""

    def __init__(self, command: Command, on_line: Callable[[str], None]) -> None:
        self._command = command
        self._on_line = on_line
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self.tail: collections.deque[str] = collections.deque(maxlen=_TAIL_LINES)

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self._process is not None
        return self._process.pid

    async def start(self) -> None:
        """Start it. Raises EngineFault where the system refuses."""
        # A pipe of our own: asyncio tells the end of a process only once nobody holds the pipes that it made for it,
        # and vLLM's engine core, which outlives a crash of its API server, holds them, too.
        reading, writing = os.pipe()
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self._command.argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=writing,
                stderr=writing,
                env=dict(self._command.env),
                # It dies with the keeper, and the keeper leads its group: the supervisor ends all of it at once.
                preexec_fn=die_with_parent,
            )
        except OSError as error:
            os.close(reading)
            raise EngineFault(f"{self._command.argv[0]} cannot be started: {error.strerror}") from error
        finally:
            os.close(writing)
        self._reading = asyncio.get_running_loop().create_task(self._read(reading), name="vllm-log")

    async def wait(self) -> int:
        """Return its exit status, negative for a signal, once it ended and its last lines were read."""
        assert self._process is not None
        assert self._reading is not None
        status = await self._process.wait()
        await asyncio.wait({self._reading}, timeout=_LAST_WORDS_S)
        return status

    def ask_to_end(self) -> None:
        """Send SIGTERM: vLLM ends its own processes and leaves."""
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()

    def dump_stacks(self) -> None:
        """Have every process of vLLM write where it is and end; PYTHONFAULTHANDLER is set for each."""
        for pid in self._others():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGABRT)

    def kill_rest(self) -> int:
        """Send SIGKILL to all of the group but this process; return how many there were."""
        others = self._others()
        for pid in others:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return len(others)

    @staticmethod
    def _others() -> list[int]:
        own = os.getpid()
        if os.getpgrp() != own:  # not started by a supervisor: the group has others than ours
            return []
        return [process.pid for process in find_members(HostFiles(), own) if process.pid != own]

    async def _read(self, pipe: int) -> None:
        stream = asyncio.StreamReader(limit=_READ_BYTES)
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stream), os.fdopen(pipe, "rb", buffering=0))
        rest = ""
        while data := await stream.read(_READ_BYTES):
            *lines, rest = (rest + data.decode("utf-8", "replace")).splitlines(keepends=True)
            if rest.endswith(("\n", "\r")) or len(rest) > _MAX_LINE_CHARS:
                lines.append(rest)
                rest = ""
            for line in lines:
                self._take(line)
            if rest:  # the present state of a bar of progress, whose line ends with its next state
                self._on_line(rest)
        if rest:
            self._take(rest)

    def _take(self, line: str) -> None:
        text = line.rstrip("\r\n")[:_MAX_LINE_CHARS]
        if not text.strip():
            return
        self._on_line(text)
        if line.endswith("\r"):  # only the last state of a bar is a line of the log
            return
        self.tail.append(text)
        # As it came: `ascendd diagnose` reads it as it would read vLLM's own log.
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()
