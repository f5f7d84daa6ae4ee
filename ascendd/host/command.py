"""Run one vendor tool: no input, English output, its own process group, killed whole when it is late."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from dataclasses import dataclass
from typing import Callable, Dict, Mapping, Optional, Sequence, Tuple

from ascendd.errors import ProbeParseError, ProbeTimeout, ProbeUnavailable

# A process in uninterruptible sleep (a stuck device) survives SIGKILL; it is left behind rather than waited for.
_REAP_S = 2.0
# Far above the longest real answer; a tool in a loop must not fill the memory of the doctor.
MAX_OUTPUT_BYTES = 4 << 20


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
    argv: Sequence[str],
    timeout_s: float,
    environ: Mapping[str, str],
    stdin: Optional[str] = None,
    cwd: Optional[str] = None,
) -> CommandOutcome:
    """
    Run `argv` with `environ` plus LC_ALL=C and return its outcome, whatever its status.

    Raises ProbeUnavailable when it cannot be started, ProbeTimeout when it runs longer than `timeout_s` seconds
    (facts: the partial `stdout`, and `is_stuck` where not even SIGKILL ends it), and ProbeParseError when it prints
    more than MAX_OUTPUT_BYTES.
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
            cwd=cwd,
        )
    except OSError as error:
        raise ProbeUnavailable(f"{argv[0]} cannot be started: {error.strerror or error}", path=str(argv[0])) from error
    try:
        stdout, stderr = _communicate(process, stdin, started + timeout_s)
    except _Late as late:
        is_stuck = not _kill(process)
        said = f"{' '.join(argv)} did not answer within {timeout_s:g} s and was killed"
        if is_stuck:  # most often in an ioctl of the driver
            said = f"{' '.join(argv)} did not answer within {timeout_s:g} s and does not die: it hangs in the kernel"
        raise ProbeTimeout(said, timeout_s=timeout_s, stdout=_text(late.stdout), is_stuck=is_stuck) from None
    except _Endless:
        _kill(process)
        said = f"{' '.join(argv)} printed more than {MAX_OUTPUT_BYTES >> 20} MiB and was killed"
        raise ProbeParseError(said, limit_bytes=MAX_OUTPUT_BYTES) from None
    except BaseException:
        _kill(process)
        raise
    status = process.returncode if process.returncode >= 0 else 128 - process.returncode
    return CommandOutcome(tuple(argv), status, _text(stdout), _text(stderr), time.monotonic() - started)


class _Late(Exception):
    """The time is over; `stdout` is what had come by then."""

    def __init__(self, stdout: bytes) -> None:
        super().__init__()
        self.stdout = stdout


class _Endless(Exception):
    """The output is longer than any tool of ours prints."""


def _communicate(process: subprocess.Popen[bytes], stdin: Optional[str], deadline: float) -> Tuple[bytes, bytes]:
    """Give `stdin`, read both outputs to their ends, reap. Raises _Late or _Endless."""
    assert process.stdout is not None
    assert process.stderr is not None
    if process.stdin is not None:
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write((stdin or "").encode())  # a few hundred bytes, which a pipe holds
            process.stdin.close()
    taken: Dict[int, bytearray] = {process.stdout.fileno(): bytearray(), process.stderr.fileno(): bytearray()}
    first = next(iter(taken.values()))
    with selectors.DefaultSelector() as selector:
        for descriptor in taken:
            selector.register(descriptor, selectors.EVENT_READ)
        while selector.get_map():
            ready = selector.select(max(0.0, deadline - time.monotonic()))
            if not ready and time.monotonic() >= deadline:
                raise _Late(bytes(first))
            for key, _ in ready:
                data = os.read(key.fd, 1 << 16)
                taken[key.fd] += data
                if not data:
                    selector.unregister(key.fd)
                if len(taken[key.fd]) > MAX_OUTPUT_BYTES:
                    raise _Endless
    try:
        process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        raise _Late(bytes(first)) from None
    process.stdout.close()
    process.stderr.close()
    return bytes(first), bytes(list(taken.values())[1])


def _kill(process: subprocess.Popen[bytes]) -> bool:
    """Kill the group of `process` and let go of it; False where it does not die."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
    try:
        process.wait(_REAP_S)
    except subprocess.TimeoutExpired:
        return False
    return True


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace").replace("\r\n", "\n")
