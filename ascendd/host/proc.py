"""Facts about running processes, through psutil."""

from __future__ import annotations

import contextlib
import os
import signal
from dataclasses import dataclass

import psutil


@dataclass(frozen=True)
class ProcessUsage:
    """What a process and all its descendants use."""

    rss_bytes: int
    cpu_s: float
    num_processes: int


def usage(pid: int) -> ProcessUsage | None:
    """Return what `pid` and its descendants use now, or None where it is gone."""
    try:
        root = psutil.Process(pid)
        members = [root, *root.children(recursive=True)]
    except psutil.Error:
        return None
    rss_bytes, cpu_s, count = 0, 0.0, 0
    for process in members:
        with contextlib.suppress(psutil.Error), process.oneshot():
            times = process.cpu_times()
            rss_bytes += process.memory_info().rss
            cpu_s += times.user + times.system
            count += 1
    return ProcessUsage(rss_bytes, cpu_s, count) if count else None


def own_usage(pid: int) -> ProcessUsage | None:
    """Return what `pid` alone uses now, or None where it is gone."""
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            times = process.cpu_times()
            return ProcessUsage(process.memory_info().rss, times.user + times.system, 1)
    except psutil.Error:
        return None


def descendants(pid: int, word: str = "") -> list[int]:
    """Return the processes below `pid`, nearest first; with `word` those that have it among their arguments."""
    found = []
    with contextlib.suppress(psutil.Error):
        for process in psutil.Process(pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if not word or word in process.cmdline():
                    found.append(process.pid)
    return found


def port_holder(port: int) -> str | None:
    """Return `name (pid N)` of the process that listens on TCP `port`, or None where that cannot be seen."""
    return listeners().get(port)


def listeners() -> dict[int, str]:
    """Return `name (pid N)` by TCP port that is listened on, as far as this user may see it."""
    try:
        connections = psutil.net_connections(kind="tcp")
    except (psutil.Error, OSError):
        return {}
    found: dict[int, str] = {}
    for connection in connections:
        if connection.status == psutil.CONN_LISTEN and connection.laddr and connection.pid is not None:
            name = f"pid {connection.pid}"
            with contextlib.suppress(psutil.Error):
                name = f"{psutil.Process(connection.pid).name()} ({name})"
            found.setdefault(connection.laddr.port, name)
    return found


def signal_group(pid: int, number: signal.Signals) -> bool:
    """Send `number` to the process group that `pid` leads; False where nothing is left of it."""
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True
