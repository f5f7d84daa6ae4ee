"""Which processes of a session or group are left after its leader has ended."""

from __future__ import annotations

from typing import List, Tuple

from ascendd.host.device_holders import ZOMBIE, HostProcess, read_process
from ascendd.host.files import HostFiles

# Fields of /proc/PID/stat behind the name in brackets: state, ppid, pgrp, session (proc(5)).
_GROUP, _SESSION = 2, 3
_DEAD = (ZOMBIE, "X")


def find_members(files: HostFiles, leader: int) -> Tuple[HostProcess, ...]:
    """Return the processes whose group or session is that of `leader`, which may be gone; zombies hold nothing."""
    found: List[HostProcess] = []
    for name in files.list_dir("/proc", "[0-9]*"):
        stat = files.read_if_possible(f"/proc/{name}/stat") if name.isdigit() else None
        fields = (stat or "").rpartition(")")[2].split()
        if len(fields) <= _SESSION or str(leader) not in (fields[_GROUP], fields[_SESSION]) or fields[0] in _DEAD:
            continue
        process = read_process(files, int(name))
        if process is not None and process.state not in _DEAD:
            found.append(process)
    return tuple(found)
