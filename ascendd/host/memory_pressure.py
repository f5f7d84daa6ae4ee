"""
How short of memory this host, or the control group of this process, is.

Pressure stall information tells for which share of the last ten seconds all tasks stood still for want of memory
(https://docs.kernel.org/accounting/psi.html); the group's own file is the better one, since it counts its own limit.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Optional

from ascendd.errors import ProbeError
from ascendd.host.files import HostFiles
from ascendd.host.memory import own_groups, read_memory

_FULL = re.compile(r"^full avg10=(\d+(?:\.\d+)?)", re.MULTILINE)
_OOM = re.compile(r"^oom (\d+)$", re.MULTILINE)


@dataclass(frozen=True)
class MemoryPressure:
    """
    One reading. None means that this kernel, or this group, does not tell.

    `stalled_percent` is the share of the last 10 s; `num_oom` counts how often the group was at its limit and could not
    reclaim; `available_bytes` of the host's `total_bytes` can still be had. What is left of the group's limit is not
    told: page cache fills a group to its limit on a host where all is well.
    """

    stalled_percent: Optional[float]
    num_oom: Optional[int]
    available_bytes: Optional[int]
    total_bytes: Optional[int]


def read_pressure(files: HostFiles) -> MemoryPressure:
    """Read the files of the group of this process, else those of the host; what is not there is None."""
    group = own_groups(files).get("")
    folder = None if group is None else "/sys/fs/cgroup" + group.rstrip("/")
    stall = None if folder is None else files.read_if_possible(f"{folder}/memory.pressure")
    full = _FULL.search(stall or files.read_if_possible("/proc/pressure/memory") or "")
    events = None if folder is None else files.read_if_possible(f"{folder}/memory.events")
    oom = _OOM.search(events or "")
    try:
        memory = read_memory(files)
    except ProbeError:
        memory = None
    return MemoryPressure(
        stalled_percent=None if full is None else float(full[1]),
        num_oom=None if oom is None else int(oom[1]),
        available_bytes=None if memory is None else memory.available_bytes,
        total_bytes=None if memory is None else memory.total_bytes,
    )
