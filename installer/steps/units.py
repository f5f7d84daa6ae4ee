"""The units: service template, slice and tmpfiles, as they lie in systemd/ of the bundle."""

from __future__ import annotations

from pathlib import Path
from typing import Dict, List, Sequence

from ascendd.errors import HostError

from ..action import Action, Command, RestoreFiles, WriteFile
from ..bundle import Bundle
from ..host import Host
from ..state import InstallState
from ..step import Detection, Found, Step

_TMPFILES = "/etc/tmpfiles.d/ascendd.conf"


class Units(Step):
    """Files below /etc/systemd/system and /etc/tmpfiles.d, and the folders that the latter ask for."""

    id = "units"
    title = "systemd units"
    requires = ("service-account", "ascendd")
    estimate_s = 2.0

    def __init__(self, bundle: Bundle) -> None:
        self._bundle = bundle

    def detect(self, host: Host) -> Detection:
        """Compare every file."""
        same = [path for path, source in self._files().items() if self._is_same(host, path, source)]
        missing = [path for path in self._files() if not host.files.exists(path)]
        if len(same) == len(self._files()) and all(map(host.files.is_dir, self._folders())):
            return Detection(Found.PRESENT, None, "the units are those of this release")
        if len(missing) == len(self._files()):
            return Detection(Found.ABSENT, None, "there are no units of ascendd")
        return Detection(Found.OLDER, None, "the units are not those of this release")

    def act(self, host: Host, found: Found) -> Sequence[Action]:
        """Copy, make the folders, and tell systemd."""
        actions: List[Action] = [
            WriteFile(path, self._bundle.read(source), source=self._bundle.path(source))
            for path, source in self._files().items()
        ]
        root = [f"--root={host.files.root}"] if host.files.root else []
        actions.append(Command(("systemd-tmpfiles", *root, "--create", "ascendd.conf"), makes=tuple(self._folders())))
        if host.has_systemd:
            actions.append(Command(("systemctl", "daemon-reload")))
        return actions

    def prove(self, host: Host) -> str:
        """Compare again."""
        detection = self.detect(host)
        if detection.found is not Found.PRESENT:
            raise HostError(f"{detection.sentence}, though they were just copied")
        return detection.sentence

    def undo(self, host: Host, state: InstallState) -> Sequence[Action]:
        """Stop the instances, put the files back; folders with models, keys or logs in them stay."""
        if not host.has_systemd:
            return (RestoreFiles(),)
        stop = [Command(("systemctl", "stop", "ascendd@*.service"), limit_s=300.0)] if state.was_absent(self.id) else []
        return (*stop, RestoreFiles(), Command(("systemctl", "daemon-reload")))

    def _files(self) -> Dict[str, str]:
        """Return where each file of the bundle goes; sysusers belongs to the step of the account."""
        return {
            "/etc/systemd/system/ascendd@.service": "systemd/ascendd@.service",
            "/etc/systemd/system/ascendd.slice": "systemd/ascendd.slice",
            _TMPFILES: "systemd/tmpfiles.d/ascendd.conf",
        }

    def _folders(self) -> List[str]:
        """Return the folders of tmpfiles.d, those without a home of their own first."""
        lines = [line.split() for line in self._bundle.read("systemd/tmpfiles.d/ascendd.conf").splitlines()]
        return sorted(
            (fields[1] for fields in lines if fields and fields[0] == "d"), key=lambda path: len(Path(path).parts)
        )

    def _is_same(self, host: Host, path: str, source: str) -> bool:
        return host.files.read_optional(path) == self._bundle.read(source)
