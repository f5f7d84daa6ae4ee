"""Memory of the host and of the control group, whichever is the tighter. Bytes throughout."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Dict, Iterator, Optional, Tuple

from ascendd.errors import ProbeParseError
from ascendd.host.files import HostFiles

# cgroup v1 writes `no limit` as a number near 2**63; no machine has this much.
_NO_LIMIT = 1 << 60


@dataclass(frozen=True)
class HostMemory:
    """What can be had. The limits are None where no control group sets one."""

    total_bytes: int
    available_bytes: int
    cgroup_limit_bytes: Optional[int]
    cgroup_available_bytes: Optional[int]
    cgroup_path: Optional[str]

    @property
    def usable_bytes(self) -> int:
        """Bytes that a new process may take now without being killed."""
        limits = [value for value in (self.available_bytes, self.cgroup_available_bytes) if value is not None]
        return min(limits)

    @property
    def ceiling_bytes(self) -> int:
        """Bytes that a process may take when nothing else runs."""
        return min(self.total_bytes, self.cgroup_limit_bytes or self.total_bytes)


def read_memory(files: HostFiles, cgroup: Optional[str] = None) -> HostMemory:
    """
    Read /proc/meminfo and the limits of `cgroup`, by default of this process, and of every group above it.

    Raises ProbeUnavailable or ProbeParseError when /proc/meminfo cannot be used.
    """
    meminfo = {
        match[1]: int(match[2]) * 1024
        for match in re.finditer(r"^(\w+):\s+(\d+) kB", files.read_text("/proc/meminfo"), re.MULTILINE)
    }
    if "MemTotal" not in meminfo or "MemAvailable" not in meminfo:
        raise ProbeParseError("/proc/meminfo holds no MemTotal and MemAvailable")
    tightest: Optional[Tuple[int, int, str]] = None
    for path, limit, used in _limits(files, cgroup):
        available = max(0, limit - used)
        if tightest is None or available < tightest[0]:
            tightest = (available, limit, path)
    return HostMemory(
        total_bytes=meminfo["MemTotal"],
        available_bytes=meminfo["MemAvailable"],
        cgroup_limit_bytes=None if tightest is None else tightest[1],
        cgroup_available_bytes=None if tightest is None else tightest[0],
        cgroup_path=None if tightest is None else tightest[2],
    )


def _limits(files: HostFiles, cgroup: Optional[str]) -> Iterator[Tuple[str, int, int]]:
    """Yield (group, limit, bytes in use that cannot be dropped) for each group with a limit, innermost first."""
    groups = own_groups(files)
    for base, names in (("/sys/fs/cgroup", ("memory.max", "memory.current")),
                        ("/sys/fs/cgroup/memory", ("memory.limit_in_bytes", "memory.usage_in_bytes"))):  # fmt: skip
        path = cgroup or groups.get("memory" if base.endswith("memory") else "", "/")
        while True:
            folder = base + path.rstrip("/")
            limit, used = (_number(files, f"{folder}/{name}") for name in names)
            if limit is not None and limit < _NO_LIMIT:
                stat = files.read_if_possible(f"{folder}/memory.stat") or ""
                match = re.search(r"^(?:total_)?inactive_file (\d+)", stat, re.MULTILINE)
                yield folder, limit, max(0, (used or 0) - (int(match[1]) if match else 0))
            if path in ("", "/"):
                break
            path = path.rsplit("/", 1)[0] or "/"


def own_groups(files: HostFiles) -> Dict[str, str]:
    """Return controller -> path of this process; the unified hierarchy is the empty controller."""
    groups = {}
    for line in (files.read_optional("/proc/self/cgroup") or "").splitlines():
        number, controllers, path = [*line.split(":", 2), "", ""][:3]
        if not number.isdigit() or not path.startswith("/"):
            raise ProbeParseError("/proc/self/cgroup holds no control group of this process")
        for controller in controllers.split(","):
            groups[controller] = path
    return groups


def _number(files: HostFiles, path: str) -> Optional[int]:
    """Return the bytes that a file of a control group holds; None where there is none, or no limit (`max`)."""
    text = files.read_optional(path)
    said = None if text is None else text.strip()
    if said in (None, "max"):
        return None
    if said is None or not (said.isascii() and said.isdigit()):
        raise ProbeParseError(f"{path} holds no number of bytes", path=path)
    return int(said)
