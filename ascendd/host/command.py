"""Run one vendor tool: no input, English output, its own process group, killed whole when it is late."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from dataclasses import dataclass
from typing import Callable, Mapping, Optional, Sequence, Tuple

from ascendd.errors import ProbeTimeout, ProbeUnavailable

# A process in uninterruptible sleep (a stuck device) survives SIGKILL; it is left behind rather than waited for.
_REAP_S = 2.0


@dataclass(frozen=True)
class CommandOutcome:
    """What a command left behind. `status` is the shell's: 0-255, or 128 + n after signal n."""

    argv: Tuple[str, ...]
    status: int
    stdout: str
    stderr: str
    duration_s: float


RunCommand = Callable[[Sequence[str], float, Mapping[str, str]], CommandOutcome]


def run_command(
    argv: Sequence[str], timeout_s: float, environ: Mapping[str, str], stdin: Optional[str] = None
) -> CommandOutcome:
    """
    Run `argv` with `environ` plus LC_ALL=C and return its outcome, whatever its status.

    Raises ProbeUnavailable when it cannot be started, and ProbeTimeout (with the partial output as fact `stdout`)
    when it runs longer than `timeout_s` seconds.
    """
    started = time.monotonic()
    try:
        process = subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**environ, "LC_ALL": "C", "LANG": "C"},
            start_new_session=True,
        )
    except OSError as error:
        raise ProbeUnavailable(f"{argv[0]} cannot be started: {error.strerror or error}", path=str(argv[0])) from error
    try:
        stdout, stderr = process.communicate(None if stdin is None else stdin.encode(), timeout_s)
    except subprocess.TimeoutExpired:
        stdout, _ = _kill(process)
        raise ProbeTimeout(
            f"{' '.join(argv)} did not answer within {timeout_s:g} s and was killed",
            timeout_s=timeout_s,
            stdout=_text(stdout),
        ) from None
    except BaseException:
        _kill(process)
        raise
    status = process.returncode if process.returncode >= 0 else 128 - process.returncode
    return CommandOutcome(tuple(argv), status, _text(stdout), _text(stderr), time.monotonic() - started)


def _kill(process: subprocess.Popen[bytes]) -> Tuple[bytes, bytes]:
    """Kill the group of `process`; return what it had written, as far as that can be had in time."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    try:
        return process.communicate(timeout=_REAP_S)
    except subprocess.TimeoutExpired as late:
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        return late.stdout or b"", late.stderr or b""


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace").replace("\r\n", "\n")
