"""
Checks as processes of their own, forked from one that has imported what they share (preflight.child).

A Python process for each check costs ten times the CPU time of what most checks do, which a small machine that is busy
with a start does not have.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Dict, List, Optional, Set

_CHILD = Path(__file__).resolve().with_name("child.py")
_REAP_S = 2.0
# Until the first check of a round says its number: a start of Python on a machine that is short of everything.
_START_S = 60.0


class CheckLate(Exception):
    """The check did not end in its time and was killed with all that it started."""


@dataclass(frozen=True)
class CheckEnd:
    """How a check ended: its answer (None without one), its exit status or minus its signal, what it printed last."""

    answer: Optional[Dict[str, Any]]
    status: Optional[int]
    last_line: str


class ForkServer:
    """The process that checks are forked from; started at once, ended with every check by `close`."""

    def __init__(self) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        self._pids: Set[int] = set()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, *_interpreter_flags(), str(_CHILD), str(theirs.fileno()), json.dumps(sys.path)],
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._output,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )

    def __enter__(self) -> ForkServer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """End every check that still runs, then the server."""
        for pid in list(self._pids):
            _kill_tree(pid)
        self._control.close()
        try:
            self._process.wait(_REAP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_REAP_S)
        self._output.close()

    def run(self, module: str, message: Dict[str, Any], limit_s: float) -> CheckEnd:
        """Fork for `message` and wait. Raises CheckLate after `limit_s`, which count from the fork."""
        ours, theirs = socket.socketpair()
        with ours, tempfile.TemporaryFile() as output:
            with theirs, contextlib.suppress(BrokenPipeError, ConnectionResetError):
                socket.send_fds(self._control, [module.encode()], [theirs.fileno(), output.fileno()])
            lines = _Lines(ours)
            begun = lines.next(time.monotonic() + _START_S)
            if begun is None:
                return CheckEnd(None, None, _last_line(self._output))
            pid, deadline = int(begun["pid"]), time.monotonic() + limit_s
            self._pids.add(pid)
            try:
                ours.settimeout(limit_s)
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    ours.sendall(json.dumps(message).encode())
                    ours.shutdown(socket.SHUT_WR)
                answer, status = None, None
                while status is None and (line := lines.next(deadline)) is not None:
                    status = line.get("status") if line.keys() == {"status"} else None
                    answer = answer if status is not None else line
            except (CheckLate, socket.timeout) as late:  # noqa: UP041 - no TimeoutError before Python 3.10
                _kill_tree(pid)
                raise CheckLate from late
            except BaseException:
                _kill_tree(pid)
                raise
            finally:
                self._pids.discard(pid)
            return CheckEnd(answer, status, _last_line(output))


class _Lines:
    """The JSON lines that come from a socket."""

    def __init__(self, stream: socket.socket) -> None:
        self._stream, self._held = stream, bytearray()

    def next(self, deadline: float) -> Optional[Dict[str, Any]]:
        """Return the next line that is whole, None at the end. Raises CheckLate at `deadline`, in monotonic seconds."""
        while True:
            line, newline, rest = self._held.partition(b"\n")
            if newline:
                self._held = rest
                with contextlib.suppress(ValueError):
                    message = json.loads(line)
                    if isinstance(message, dict):
                        return message
                continue
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise CheckLate
            self._stream.settimeout(left_s)
            try:
                part = self._stream.recv(1 << 16)
            except socket.timeout:  # noqa: UP041 - as above
                raise CheckLate from None
            except ConnectionResetError:
                return None
            if not part:
                return None
            self._held += part


def _interpreter_flags() -> List[str]:
    """Give the child the same view of installed packages that this process has."""
    return [flag for flag, is_set in (("-I", sys.flags.isolated), ("-S", sys.flags.no_site)) if is_set]


def _last_line(output: IO[bytes]) -> str:
    """Return the last line of what a process wrote into `output`; "" where it wrote nothing."""
    end = output.seek(0, os.SEEK_END)
    output.seek(max(0, end - 8192))
    lines = output.read().decode("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else ""


def _kill_tree(pid: int) -> None:
    """Kill the check and its descendants; a tool that it ran has a process group of its own."""
    for each in [pid, *_descendants(pid)]:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(each, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(each, signal.SIGKILL)


def _descendants(root: int) -> List[int]:
    children: Dict[int, List[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            # The name in brackets may hold anything; what follows its last bracket is regular.
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(stat.parent.name))
    found, waiting = [], [root]
    while waiting:
        waiting += (below := children.get(waiting.pop(), []))
        found += below
    return found
