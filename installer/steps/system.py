"""The step that changes nothing: an operating system, an architecture and a user that the rest can work with."""

from __future__ import annotations

import os
from typing import List, Sequence

from ..action import Action
from ..host import Host
from ..settings import Settings
from ..state import InstallState
from ..step import Detection, Found, Step

SYSTEMS = ("openeuler", "ubuntu", "debian")
ARCHITECTURES = ("x86_64", "aarch64")
VENDOR_BYTES = 10 * 1000**3
RELEASE_BYTES = 4 * 1000**3


class System(Step):
    """The operating system as it is."""

    id = "system"
    title = "operating system"

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def detect(self, host: Host) -> Detection:
        """Name the system."""
        system = host.system
        name = system.get("PRETTY_NAME") or system.get("NAME") or "unknown system"
        return Detection(Found.PRESENT, system.get("VERSION_ID"), f"{name} on {host.architecture}")

    def check(self, host: Host, state: InstallState) -> List[str]:
        """Refuse systems that nothing is known of, other users than root, and full disks."""
        problems = []
        system = host.system
        likes = [system.get("ID", "").lower(), *system.get("ID_LIKE", "").lower().split()]
        if not set(likes) & set(SYSTEMS):
            problems.append(
                f"this is {likes[0] or 'an unknown system'}; the installer knows openEuler, Ubuntu and Debian"
            )
        if host.architecture not in ARCHITECTURES:
            problems.append(
                f"this host is {host.architecture}; there are packages for {' and '.join(ARCHITECTURES)} only"
            )
        if os.geteuid() != 0:
            problems.append("this is not root; start it from a root login or with sudo")
        wanted = [("/opt", RELEASE_BYTES)]
        if self._settings.is_npu:
            wanted.append((self._settings.install_path, VENDOR_BYTES))
        # Once the run has begun, what it took of the space is not what lacks.
        for path, size in wanted if not state.is_unfinished else ():
            free = host.free_bytes(path)
            if free < size:
                problems.append(f"{path} has {free / 1e9:.1f} GB free and needs {size / 1e9:.0f} GB")
        return problems

    def act(self, host: Host, found: Found) -> Sequence[Action]:
        """Nothing."""
        return ()

    def prove(self, host: Host) -> str:
        """Name the system again."""
        return self.detect(host).sentence

    def undo(self, host: Host, state: InstallState) -> Sequence[Action]:
        """Nothing."""
        return ()
