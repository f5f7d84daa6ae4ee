"""
IncidentBook: pins what was known at the moment a process ended unasked, before restarts and rotation bury it.

    FOLDER/EPISODE.json   one bundle an episode: the end, its fault, the stacks of all where one hung, the last lines of
                          every process, the kernel's faults, the memory curve, the configuration, versions

A bundle is at most MAX_BYTES long and secrets in it are masked; of more than KEPT the oldest go. Writing happens in a
thread, and what cannot be had is named with its reason: a bundle never delays a restart and never fails one.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import platform
import time
from collections import defaultdict, deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from ascendd import __version__
from ascendd.config.schema import InstanceConfig
from ascendd.errors import ProbeError
from ascendd.host.command import run_command
from ascendd.host.kernel_log import find_faults, read_kernel_log
from ascendd.telemetry.log import hide_secrets

MAX_BYTES = 1024 * 1024
KEPT = 20
MAX_LINES = 200
# How long the log writer, or the journal, may take to have the line of the end, and with it all that stood before it.
_CATCH_UP_S = 5.0
_TAIL_BYTES = 2 * 1024 * 1024
_FILE_MODE = 0o640
_PACKAGES = ("torch", "torch_npu", "transformers", "aiohttp", "tokenizers", "msgspec")


def last_lines(path: Path, max_lines: int = MAX_LINES) -> dict[str, list[str]]:
    """Return the last lines of the log file at `path`, by the role that wrote them; `other` where none is named."""
    with path.open("rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
        text = file.read(_TAIL_BYTES).decode("utf-8", "replace")
    lines: dict[str, deque[str]] = defaultdict(lambda: deque(maxlen=max_lines))
    for line in text.splitlines():
        try:
            role = str(json.loads(line)["role"])
        except (ValueError, KeyError, TypeError):
            role = "other"  # stacks and whatever libraries print
        lines[role].append(line[:4096])
    return {role: list(found) for role, found in lines.items()}


class IncidentBook:
    """Writes bundles below `folder`; `environ` is what tools are run with. A log may be `catch_up_s` behind."""

    def __init__(
        self, folder: Path, instance: str, environ: Mapping[str, str], catch_up_s: float = _CATCH_UP_S
    ) -> None:
        self._folder = folder
        self._instance = instance
        self._environ = environ
        self._catch_up_s = catch_up_s

    def pin(
        self,
        incident: Mapping[str, Any],
        fault: Mapping[str, Any] | None,
        memory: list[tuple[float, dict[str, int]]],
        config: InstanceConfig,
        stacks: Mapping[str, str] | None = None,
    ) -> Path | None:
        """Write the bundle of `incident` and return its path; None where there is one of its episode already."""
        path = self._folder / f"{incident['episode']}.json"
        if path.exists():
            return None
        bundle: dict[str, Any] = {
            "instance": self._instance,
            "incident": dict(incident),
            "fault": None if fault is None else dict(fault),
            "stacks": {role: text.splitlines() for role, text in (stacks or {}).items()},
            "lines": self._settled_lines(config, str(incident["episode"])),
            "kernel_faults": self._kernel_faults(),
            "memory_curve": [{"unix_s": round(at_s, 1), **readings} for at_s, readings in memory],
            "config": msgspec.to_builtins(config),
            "versions": _versions(),
        }
        self._folder.mkdir(mode=0o750, parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        try:
            with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, _FILE_MODE), "wb") as file:
                file.write(_fit(_masked(bundle)))
            partial.replace(path)
        except OSError:  # half a bundle would go on taking the room that was short
            with contextlib.suppress(OSError):
                partial.unlink()
            raise
        for old in bundles(self._folder)[:-KEPT]:
            with contextlib.suppress(OSError):
                old.unlink()
        return path

    def num_bytes(self) -> int:
        """Return the length of all bundles together, those of earlier starts included."""
        total = 0
        for path in self._folder.glob("*.json"):
            with contextlib.suppress(OSError):
                total += path.stat().st_size
        return total

    def _settled_lines(self, config: InstanceConfig, episode: str) -> dict[str, list[str]]:
        """
        Return the last lines once the end itself is among them: what was said before it is there by then.

        Lines go through a pipe and another process, and the last ones of the process that ended matter most.
        """
        deadline_s = time.monotonic() + self._catch_up_s
        while True:
            lines = self._lines(config)
            said = lines.get("supervisor", lines.get("journal", []))
            if any("supervisor.child_ended" in line and f'"{episode}"' in line for line in said):
                return lines
            if "unavailable" in lines:
                return lines
            if time.monotonic() >= deadline_s:
                return lines | {"behind": [f"the log had not taken the line of this end after {self._catch_up_s:g} s"]}
            time.sleep(0.1)

    def _lines(self, config: InstanceConfig) -> dict[str, list[str]]:
        if config.log.file is not None:
            try:
                return last_lines(Path(config.log.file))
            except OSError as error:
                return {"unavailable": [f"{config.log.file} cannot be read: {error.strerror}"]}
        invocation = self._environ.get("INVOCATION_ID")
        if invocation is None:
            return {"unavailable": ["log.file is not set and systemd did not start this instance: nothing is kept"]}
        argv = [
            "journalctl",
            f"_SYSTEMD_INVOCATION_ID={invocation}",
            "-n",
            str(MAX_LINES * 4),
            "-o",
            "cat",
            "--no-pager",
        ]
        try:
            outcome = run_command(argv, 10.0, self._environ)
        except ProbeError as error:
            return {"unavailable": [error.message]}
        if outcome.status != 0 or not outcome.stdout.strip():
            reason = "journalctl shows this user no lines; `journalctl -u ascendd@INSTANCE` as root has them"
            return {"unavailable": [reason]}
        return {"journal": outcome.stdout.splitlines()[-4 * MAX_LINES :]}

    def _kernel_faults(self) -> list[str]:
        try:
            faults = find_faults(read_kernel_log(run_command, self._environ))
        except ProbeError as error:
            return [f"unavailable: {error.message}"]
        return [f"{fault.id} x{fault.count}: {fault.meaning}; last: {fault.last_line}" for fault in faults]


def bundles(folder: Path) -> list[Path]:
    """Return the bundles below `folder`, the oldest first; none where there is no folder."""
    return sorted(folder.glob("*.json"), key=lambda path: (path.stat().st_mtime, path.name))


def _versions() -> dict[str, str]:
    found = {"ascendd": __version__, "python": platform.python_version(), "kernel": platform.release()}
    for name in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def _masked(value: Any, key: str = "") -> Any:
    """Return `value` with the text of every secret replaced, at any depth."""
    if isinstance(value, dict):
        return {name: _masked(part, str(name)) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_masked(part, key) for part in value]
    return hide_secrets(None, "", {key: value})[key] if isinstance(value, str) else value


def _fit(bundle: dict[str, Any]) -> bytes:
    """Return `bundle` as JSON of at most MAX_BYTES: the older half of all lines goes until it fits."""
    while True:
        data = json.dumps(bundle, indent=1, default=str).encode()
        longest = max((len(lines) for lines in bundle["lines"].values()), default=0)
        if len(data) <= MAX_BYTES or longest <= 1:
            return data
        bundle["lines"] = {role: lines[-max(1, len(lines) // 2) :] for role, lines in bundle["lines"].items()}
        bundle["cut"] = "older lines were left out to keep the size"
