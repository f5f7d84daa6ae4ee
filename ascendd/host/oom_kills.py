"""
Processes that the kernel killed because the control group had no memory left.

Both versions of control groups count them: `oom_kill` of memory.events (version 2, with the groups below; kills because
the whole host ran out are in it) and of memory.oom_control (version 1, kernel 4.13 or later).
See https://docs.kernel.org/admin-guide/cgroup-v2.html.
"""

from __future__ import annotations

import re
from typing import Optional, Tuple

from ascendd.host.files import HostFiles
from ascendd.host.memory import own_groups

_COUNT = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)


class OomKills:
    """Tells for a process that SIGKILL ended whether the kernel did it; each kill that was counted explains one."""

    def __init__(self, files: Optional[HostFiles] = None) -> None:
        self._files = files or HostFiles()
        self._path: Optional[str] = None
        self._num_explained = 0
        for path in _places(self._files):
            count = _read(self._files, path)
            if count is not None:
                self._path, self._num_explained = path, count
                break

    @property
    def path(self) -> Optional[str]:
        """The file that is read; None where the host shows none."""
        return self._path

    def explain(self) -> Optional[bool]:
        """Return whether there was a kill that explains one more death; None where nothing counts them."""
        count = None if self._path is None else _read(self._files, self._path)
        if count is None:
            return None
        if count <= self._num_explained:
            return False
        self._num_explained += 1
        return True


def _places(files: HostFiles) -> Tuple[str, ...]:
    groups = own_groups(files)
    found = []
    if "" in groups:
        found.append("/sys/fs/cgroup" + groups[""].rstrip("/") + "/memory.events")
    if "memory" in groups:
        found.append("/sys/fs/cgroup/memory" + groups["memory"].rstrip("/") + "/memory.oom_control")
    return tuple(found)


def _read(files: HostFiles, path: str) -> Optional[int]:
    match = _COUNT.search(files.read_if_possible(path) or "")
    return None if match is None else int(match[1])
