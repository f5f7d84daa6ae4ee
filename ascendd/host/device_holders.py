"""
Which processes hold a chip: those with its device node open, as fuser finds them, and those that npu-smi lists.

Read from /proc, so it needs no tool; what another user's process has open is seen by root only. npu-smi knows those
of every container, /proc only those of its own PID namespace: a process that npu-smi lists and /proc lacks has
ended without giving the chip back, or lives elsewhere.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import Callable, Dict, Iterable, List, Optional, Tuple

from ascendd.errors import ProbeUnavailable
from ascendd.host.files import HostFiles

_CHIP_NODE = re.compile(r"/dev/davinci(\d+)")
_UNIT = re.compile(r"/(ascendd@[^/]+\.service)")
ZOMBIE, STUCK = "Z", "D"
# Until its parent reaps it, every process that ends is a zombie, and every one that reads a disk is stuck for a moment:
# what is left of an earlier run is what stays so. A daemon ends tools all the time.
SETTLE_S, _LOOK_EVERY_S = 2.0, 0.1
# A process that the supervisor or an engine starts: `python -m ascendd _engine ...`.
_CHILD = "-m\0ascendd\0_"


@dataclass(frozen=True)
class HostProcess:
    """One process of this PID namespace. `state` is the kernel's letter; `unit` is set for those of an ascendd unit."""

    pid: int
    name: str
    state: str
    command: str
    unit: Optional[str]
    chips: Tuple[int, ...] = ()
    parent: int = 0
    # In ticks since the host's start; with the id it names one process for ever.
    started: int = 0

    @property
    def label(self) -> str:
        """`python3 (pid 4711)`."""
        return f"{self.name or 'a process'} (pid {self.pid})"

    @property
    def is_ours(self) -> bool:
        """Whether it runs the product, by its command line or by its unit."""
        return self.unit is not None or "-m\0ascendd" in self.command or "/ascendd\0" in self.command


def read_process(files: HostFiles, pid: int) -> Optional[HostProcess]:
    """Return the process, or None where there is none with that id here."""
    stat = files.read_if_possible(f"/proc/{pid}/stat")
    if stat is None:
        return None
    # The name in brackets may hold anything, brackets too; what follows its last one is regular.
    name, _, rest = stat.partition("(")[2].rpartition(")")
    words = rest.split()
    unit = _UNIT.search(files.read_if_possible(f"/proc/{pid}/cgroup") or "")
    return HostProcess(
        pid=pid,
        name=name,
        state=words[0] if words else "?",
        command=files.read_if_possible(f"/proc/{pid}/cmdline") or "",
        unit=unit[1] if unit else None,
        chips=_open_chips(files, pid),
        parent=int(words[1]) if len(words) > 1 and words[1].isdigit() else 0,
        started=int(words[19]) if len(words) > 19 and words[19].isdigit() else 0,
    )


def find_holders(files: HostFiles) -> Tuple[HostProcess, ...]:
    """Return the processes that have a chip's node open, by id."""
    found: List[HostProcess] = []
    for name in files.list_dir("/proc", "[0-9]*"):
        if name.isdigit() and _open_chips(files, int(name)):
            process = read_process(files, int(name))
            if process is not None:
                found.append(process)
    return tuple(sorted(found, key=lambda process: process.pid))


def count_shut(files: HostFiles) -> int:
    """Return how many processes do not show this user what they have open: those of others, unless it is root."""
    num_shut = 0
    for name in files.list_dir("/proc", "[0-9]*"):
        try:
            files.list_dir(f"/proc/{name}/fd")
        except ProbeUnavailable:
            num_shut += 1
    return num_shut


def find_leftovers(files: HostFiles, pause: Callable[[float], None] = time.sleep) -> Tuple[HostProcess, ...]:
    """
    Return zombies and stuck processes of the product that stay so, whether or not they hold a chip.

    Takes SETTLE_S seconds where there are some, else no time.
    """
    found = _dead_or_stuck(files)
    for _ in range(round(SETTLE_S / _LOOK_EVERY_S)):
        if not found:
            break
        pause(_LOOK_EVERY_S)
        still = {(process.pid, process.started, process.state) for process in _dead_or_stuck(files)}
        found = [process for process in found if (process.pid, process.started, process.state) in still]
    return tuple(found)


def _dead_or_stuck(files: HostFiles) -> List[HostProcess]:
    found = []
    for name in files.list_dir("/proc", "[0-9]*"):
        process = read_process(files, int(name)) if name.isdigit() else None
        # A zombie has no command line any more, only its name.
        if process is None or process.state not in (ZOMBIE, STUCK):
            continue
        if process.is_ours or process.name.startswith("ascendd"):
            found.append(process)
    return found


def find_orphans(files: HostFiles) -> Tuple[HostProcess, ...]:
    """Return the living processes of the product whose supervisor, or engine, is gone: their parent is none of ours."""
    found = []
    for name in files.list_dir("/proc", "[0-9]*"):
        process = read_process(files, int(name)) if name.isdigit() else None
        if process is None or process.state == ZOMBIE or _CHILD not in process.command:
            continue
        parent = read_process(files, process.parent)
        if parent is None or not parent.is_ours:
            found.append(process)
    return tuple(found)


def by_pid(processes: Iterable[HostProcess]) -> Dict[int, HostProcess]:
    """Index by process id."""
    return {process.pid: process for process in processes}


def _open_chips(files: HostFiles, pid: int) -> Tuple[int, ...]:
    folder = f"/proc/{pid}/fd"
    links = (files.read_link(f"{folder}/{name}") for name in files.list_if_possible(folder))
    matches = (_CHIP_NODE.fullmatch(link) for link in links if link is not None)
    return tuple(sorted({int(match[1]) for match in matches if match}))
