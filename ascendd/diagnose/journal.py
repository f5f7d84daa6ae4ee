"""The journal of one instance, read from `journalctl` through a pipe; the child is killed when it goes quiet."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping

from ascendd.diagnose.source import BLOCK_BYTES, Source
from ascendd.errors import ProbeTimeout, ProbeUnavailable, UsageError

QUIET_S = 30.0
_NAME = re.compile(r"[A-Za-z0-9_.:\\][A-Za-z0-9_.:\\-]*")


def journal_source(instance: str, environ: Mapping[str, str], quiet_s: float = QUIET_S) -> Source:
    """Return the journal of ascendd@`instance` as a source. Raises UsageError for a name that no unit has."""
    if not _NAME.fullmatch(instance) or instance.startswith("."):
        raise UsageError(f"--instance {instance}: write the name of one instance, such as qwen2")
    unit = f"ascendd@{instance}"
    argv = ["journalctl", "-u", unit, "--no-pager", "--quiet", "--output", "short-iso-precise"]
    return Source(unit, _output(argv, environ, quiet_s), is_file=False)


def _output(argv: list[str], environ: Mapping[str, str], quiet_s: float) -> Iterator[bytes]:
    """
    Yield what `argv` prints.

    Raises ProbeUnavailable when it cannot be started or fails without output, ProbeTimeout when it is quiet too long.
    """
    with tempfile.TemporaryFile() as complaints:
        try:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=complaints,
                env={**environ, "LC_ALL": "C", "LANG": "C"},
                start_new_session=True,
            )
        except OSError as error:
            raise ProbeUnavailable(
                f"{argv[0]} cannot be started: {error.strerror or error}",
                remedy="On a host without a journal give the log files instead: `ascendd diagnose FILE...`.",
            ) from error
        assert process.stdout is not None
        any_output = False
        try:
            while True:
                if not select.select([process.stdout], [], [], quiet_s)[0]:
                    raise ProbeTimeout(f"{argv[0]} printed nothing for {quiet_s:g} s and was killed")
                block = os.read(process.stdout.fileno(), BLOCK_BYTES)
                if not block:
                    break
                any_output = True
                yield block
            status = process.wait(timeout=quiet_s)
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.stdout.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=2.0)
        if status != 0 and not any_output:
            complaints.seek(0)
            words = complaints.read(500).decode("utf-8", "replace").strip().splitlines()
            raise ProbeUnavailable(f"{argv[0]} ended with status {status}: {words[0] if words else 'no message'}")
