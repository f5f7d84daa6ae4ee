"""The units: every file of systemd/ in the bundle, whatever its kind, and the folders that tmpfiles.d asks for."""

from __future__ import annotations

import contextlib
import fnmatch
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, List, Sequence, Tuple

from ..action import Action, Command, RestoreFiles, WriteFile
from ..bundle import Bundle
from ..host import Host
from ..state import InstallState
from ..step import Detection, Found, Step

_TMPFILES = "/etc/tmpfiles.d/ascendd.conf"
_UNITS = "/etc/systemd/system"
# `systemctl stop` of a unit that systemd has not loaded ends with 5.
_STOPPED = (0, 5)


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
        return self.look_again(host, "they were just copied")

    def undo(self, host: Host, state: InstallState) -> Sequence[Action]:
        """Stop what runs, put the files back; folders with models, keys or logs in them stay."""
        units = [Path(path).name for path in self._files() if Path(path).parent == Path(_UNITS)]
        was_absent = state.was_absent(self.id)
        links = (RemoveEnabledLinks(tuple(units)),) if was_absent else ()
        if not host.has_systemd:
            return (*links, RestoreFiles())
        reload = Command(("systemctl", "daemon-reload"))
        if not was_absent:
            return (RestoreFiles(), reload)
        return (
            Command(("systemctl", "stop", *stop_patterns(units)), _STOPPED, limit_s=300.0),
            Command(("systemctl", "disable", "--quiet", *units), _STOPPED),
            *links,
            RestoreFiles(),
            reload,
        )

    def _files(self) -> Dict[str, str]:
        """Return where each file of the bundle goes; sysusers belongs to the step of the account."""
        return {
            _TMPFILES: "systemd/tmpfiles.d/ascendd.conf",
            **{f"{_UNITS}/{unit}": f"systemd/{unit}" for unit in self._bundle.units()},
        }

    def _folders(self) -> List[str]:
        """Return the folders of tmpfiles.d, those without a home of their own first."""
        lines = [line.split() for line in self._bundle.read("systemd/tmpfiles.d/ascendd.conf").splitlines()]
        return sorted(
            (fields[1] for fields in lines if fields and fields[0] == "d"), key=lambda path: len(Path(path).parts)
        )

    def _is_same(self, host: Host, path: str, source: str) -> bool:
        return host.files.read_optional(path) == self._bundle.read(source)


@dataclass(frozen=True)
class RemoveEnabledLinks(Action):
    """
    The links by which units and instances were enabled, which would lead nowhere.

    systemctl removes those that [Install] names; here go those of an earlier release's [Install] and of a systemd that
    does not run, too.
    """

    units: Tuple[str, ...]

    def show(self, host: Host) -> str:
        """Return the command that finds them."""
        names = " -o ".join(f"-name {shlex.quote(unit.replace('@.', '@*.'))}" for unit in self.units)
        folders = "-path '*.wants/*' -o -path '*.requires/*'"
        return f"find {host.real(_UNITS)} -mindepth 2 -maxdepth 2 -type l \\( {folders} \\) \\( {names} \\) -delete"

    def perform(self, host: Host, state: InstallState, step_id: str) -> None:
        """Remove them, and the folders that they leave empty."""
        remove_enabled_links(host, self.units)


def remove_enabled_links(host: Host, units: Sequence[str]) -> None:
    """Remove the links in *.wants and *.requires that are named as one of these units or an instance of it."""
    patterns = [unit.replace("@.", "@*.") for unit in units]
    for path in sorted(Path(host.real(_UNITS)).glob("*.*/*")):
        is_ours = any(fnmatch.fnmatchcase(path.name, pattern) for pattern in patterns)
        if not (is_ours and path.is_symlink() and path.parent.suffix in (".wants", ".requires")):
            continue
        host.log(f"remove {path}")
        path.unlink()
        with contextlib.suppress(OSError):
            path.parent.rmdir()


def stop_patterns(units: Sequence[str]) -> List[str]:
    """Return what `systemctl stop` takes for these unit files; sockets first, so that none starts its service again."""
    order = sorted(units, key=lambda unit: (not unit.endswith((".socket", ".timer", ".path")), unit))
    return [unit.replace("@.", "@*.") for unit in order if not unit.endswith(".slice")]
