"""
Ports for listeners of the tests that must be named before they are opened.

A port that the kernel chose and that was closed again may go to any other process before its listener opens. These come
from below the kernel's own range, and one counter for all processes of the user hands out each of them once per round.
"""

from __future__ import annotations

import fcntl
import os
import socket
import tempfile
from pathlib import Path

FIRST_PORT = 15_000
RANGE_FILE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_ports(count: int) -> list[int]:
    """Return ports of 127.0.0.1 that nobody listens on and that no other test is given; all different."""
    end = min(32_000, int(RANGE_FILE.read_text().split()[0]))
    counter = Path(tempfile.gettempdir()) / f"ascendd-test-ports-{os.getuid()}"
    with counter.open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        candidate = int(file.read() or FIRST_PORT)
        ports: list[int] = []
        for _ in range(end - FIRST_PORT):
            candidate = candidate + 1 if candidate + 1 < end else FIRST_PORT
            if _is_free(candidate):
                ports.append(candidate)
            if len(ports) == count:
                break
        else:
            raise RuntimeError(f"fewer than {count} free ports between {FIRST_PORT} and {end}")
        file.truncate(0)
        file.write(str(candidate))
    return ports


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As every listener of a server does: what was closed a moment ago is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
