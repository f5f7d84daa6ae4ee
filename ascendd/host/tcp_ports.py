"""TCP ports that are listened on, and those that the kernel keeps out of what it gives to clients; from /proc."""

from __future__ import annotations

import re
from typing import FrozenSet, Tuple

from ascendd.errors import ProbeParseError
from ascendd.host.cpu_list import parse_cpus
from ascendd.host.files import HostFiles

_LISTEN = "0A"
_LOCAL = re.compile(r"^\s*\d+: [0-9A-F]+:([0-9A-F]{4}) [0-9A-F]+:[0-9A-F]{4} ([0-9A-F]{2}) ")
_HEAD = re.compile(r"\s*sl\s+local_address\s+(?:rem|remote)_address\s+st\b")
_RANGE = "/proc/sys/net/ipv4/ip_local_port_range"
_RESERVED = "/proc/sys/net/ipv4/ip_local_reserved_ports"


def listening_ports(files: HostFiles) -> FrozenSet[int]:
    """Return the ports with a listener of any process. Raises ProbeUnavailable or ProbeParseError for /proc/net/tcp."""
    ports = _listening("/proc/net/tcp", files.read_text("/proc/net/tcp"))
    text = files.read_optional("/proc/net/tcp6")  # not there where the kernel has no IPv6
    return ports if text is None else ports | _listening("/proc/net/tcp6", text)


def _listening(path: str, text: str) -> FrozenSet[int]:
    """Return the ports of one table; a row of another form could be any port."""
    head, *rows = text.splitlines() or [""]
    found = [_LOCAL.match(row) for row in rows]
    if not _HEAD.match(head) or not text.endswith("\n") or not all(found):
        raise ProbeParseError(
            f"{path} holds no table of connections", remedy="Look whether /proc is mounted as the kernel gives it."
        )
    return frozenset(int(match[1], 16) for match in found if match is not None and match[2] == _LISTEN)


def client_ports(files: HostFiles) -> Tuple[int, int]:
    """Return the first and the last port that a client may be given. Raises ProbeUnavailable or ProbeParseError."""
    words = files.read_text(_RANGE).split()
    if len(words) != 2 or not all(word.isdigit() for word in words):
        raise ProbeParseError(f"{_RANGE} holds no two numbers")
    return int(words[0]), int(words[1])


def reserved_ports(files: HostFiles) -> FrozenSet[int]:
    """Return the ports that no client is given. Raises ProbeParseError where the list has another form."""
    ports = parse_cpus(files.read_optional(_RESERVED) or "")
    if ports is None:
        raise ProbeParseError(f"{_RESERVED} holds no list of ports")
    return ports
