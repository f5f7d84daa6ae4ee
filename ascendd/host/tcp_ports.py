"""TCP ports that are listened on, and those that the kernel keeps out of what it gives to clients; from /proc."""

from __future__ import annotations

import re
from typing import FrozenSet, Tuple

from ascendd.errors import ProbeParseError
from ascendd.host.cpu_list import parse_cpus
from ascendd.host.files import HostFiles

_LISTEN = "0A"
_LOCAL = re.compile(r"^\s*\d+: [0-9A-F]+:([0-9A-F]{4}) [0-9A-F]+:[0-9A-F]{4} ([0-9A-F]{2}) ", re.MULTILINE)
_RANGE = "/proc/sys/net/ipv4/ip_local_port_range"
_RESERVED = "/proc/sys/net/ipv4/ip_local_reserved_ports"


def listening_ports(files: HostFiles) -> FrozenSet[int]:
    """Return the ports with a listener of any process. Raises ProbeUnavailable or ProbeParseError for /proc/net/tcp."""
    text = files.read_text("/proc/net/tcp")
    if "local_address" not in text:
        raise ProbeParseError(
            "/proc/net/tcp holds no table of connections",
            remedy="Look whether /proc is mounted as the kernel gives it.",
        )
    text += files.read_optional("/proc/net/tcp6") or ""
    return frozenset(int(match[1], 16) for match in _LOCAL.finditer(text) if match[2] == _LISTEN)


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
