"""Releases: what lies below /opt/ascendd side by side, which one is current, and how instances move to another."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import List, Optional, Sequence, Tuple

from ascendd.errors import HostError, UsageError

from .bundle import Bundle, find_python, pins
from .host import Host, sync_folder, write_atomic

FOLDER = "/opt/ascendd"
# Written last, so that a release without it was never finished.
RECORD = "release.json"
_UNIT = re.compile(r"ascendd[@-][^\s/]+\.service")
_PIP_LIMIT_S = 1800.0
# Above TimeoutStopSec of the unit (drain and the end of the engine) plus a load that makes progress.
_RESTART_LIMIT_S = 3600.0


@dataclass(frozen=True)
class Release:
    """One finished release."""

    version: str
    folder: str
    python: str


class Releases:
    """All releases of a host. `current` and `previous` are links beside them."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._folder = Path(host.real(FOLDER))

    def all(self) -> List[Release]:
        """Return every finished release, the oldest first."""
        found = []
        for path in sorted(self._folder.glob("*/" + RECORD), key=lambda path: path.stat().st_mtime):
            if path.parent.is_symlink():
                continue
            try:
                data = json.loads(path.read_text(encoding="utf-8"))
                found.append(Release(str(data["version"]), f"{FOLDER}/{path.parent.name}", str(data["python"])))
            except (OSError, ValueError, KeyError, TypeError):
                continue  # half written: not finished
        return found

    def linked(self, name: str) -> Optional[str]:
        """Return the version that the link `current` or `previous` names, None without one."""
        try:
            return str((self._folder / name).readlink())
        except OSError:
            return None

    def build(self, bundle: Bundle) -> Release:
        """
        Make the virtual environment of the bundle's release from its wheels, without a network.

        A finished one of the same version is left as it is. Raises HostError.
        """
        for release in self.all():
            if release.version == bundle.version:
                return release
        python = find_python(self._host, bundle.pythons)
        if python is None:
            names = " or ".join(bundle.pythons)
            raise HostError(
                f"this host has no Python {names} that can make a virtual environment",
                remedy=f"Install it (Debian, Ubuntu: apt install python{bundle.pythons[0]}-venv) and configure again.",
            )
        chosen, problems = pins(bundle.wheels(), Path(python).name[len("python") :], self._host.architecture)
        if problems:
            raise HostError("; ".join(problems), remedy="Make the package for this host's Python and architecture.")
        target = self._folder / bundle.version
        if target.exists():
            shutil.rmtree(target)  # never finished: a finished one has been returned above
        self._run(python, "-m", "venv", "--clear", str(target))
        requirements = "".join(f"{name}=={pin}\n" for name, pin in sorted(chosen.items()))
        write_atomic(str(target / "requirements.txt"), requirements.encode())
        pip = (str(target / "bin/python"), "-I", "-m", "pip", "install", "--disable-pip-version-check", "--no-index")
        self._run(
            "env", "PIP_CONFIG_FILE=/dev/null", *pip, "--no-deps", "--find-links", bundle.path("wheels"),
            "-r", str(target / "requirements.txt"),
        )  # fmt: skip
        self._run(str(target / "bin/ascendd"), "--version")
        record = json.dumps({"version": bundle.version, "python": python}) + "\n"
        write_atomic(str(target / RECORD), record.encode())
        return Release(bundle.version, f"{FOLDER}/{bundle.version}", python)

    def use(self, version: str, *, restart: bool = True) -> None:
        """
        Make `version` current and restart running instances one after another, each only when the last is ready.

        When one does not come back, all go back to the release that they had. Raises UsageError, HostError.
        """
        known = [release.version for release in self.all()]
        if version not in known:
            there = ", ".join(known) or "none"
            raise UsageError(f"release {version} is not installed; installed: {there}", remedy=f"Use one of: {there}.")
        before = self.linked("current")
        if before == version:
            self._host.say(f"release {version} is current already")
            return
        self._link("current", version)
        units = self.running_units() if restart else []
        done: List[str] = []
        for unit in units:
            self._host.say(f"restarting {unit} with release {version} ({len(done) + 1} of {len(units)})")
            done.append(unit)
            if not self._restart(unit):
                raise self._go_back(version, before, done)
        if before is not None:
            self._link("previous", before)

    def roll_back(self) -> str:
        """Make the release before the current one current again, and return its version. Raises UsageError."""
        before = self.linked("previous")
        if before is None or before not in [release.version for release in self.all()]:
            raise UsageError(
                "there is no earlier release to go back to", remedy="`ascendd release list` shows what is installed."
            )
        self.use(before)
        return before

    def prune(self) -> List[str]:
        """Remove every release but the current and the previous one; return the versions."""
        kept = {self.linked("current"), self.linked("previous")}
        gone = [release for release in self.all() if release.version not in kept]
        for release in gone:
            shutil.rmtree(self._host.real(release.folder))
        return [release.version for release in gone]

    def remove_all(self) -> None:
        """Remove every release, finished or not, and the links."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def running_units(self) -> List[str]:
        """Return the services that systemd runs now: the instances, then what stands before or beside them."""
        if not self._host.has_systemd:
            return []
        patterns = ("ascendd@*.service", "ascendd-*.service")
        listed = self._capture("systemctl", "list-units", "--plain", "--no-legend", "--state=active", *patterns)
        return sorted(set(_UNIT.findall(listed)), key=lambda unit: (not unit.startswith("ascendd@"), unit))

    def _go_back(self, version: str, before: Optional[str], units: Sequence[str]) -> HostError:
        """Return all `units` to the release `before`, and the error that says so."""
        failed = units[-1]
        if before is None:
            return HostError(f"{failed} does not start", remedy=f"journalctl -u {failed} says why.")
        self._link("current", before)
        lost = [unit for unit in units if not self._restart(unit)]
        state = f"; these do not run with it either: {', '.join(lost)}" if lost else ""
        return HostError(
            f"{failed} does not start with release {version}, so release {before} is current again{state}",
            remedy=f"journalctl -u {failed} says why.",
            unit=failed,
        )

    def _restart(self, unit: str) -> bool:
        """Restart and wait until it is ready: the unit notifies systemd only after a real answer."""
        self._capture("systemctl", "reset-failed", unit)
        done = subprocess.run(
            ["systemctl", "restart", unit],
            env=self._host.environ,
            timeout=_RESTART_LIMIT_S,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        return done.returncode == 0

    def _link(self, name: str, version: str) -> None:
        """Point a link elsewhere in one step: at every moment it names a whole release."""
        partial = self._folder / f".{name}.new"
        partial.unlink(missing_ok=True)
        partial.symlink_to(version)
        partial.replace(self._folder / name)
        sync_folder(str(self._folder))

    def _run(self, *argv: str) -> None:
        self._host.run(argv, (0,), _PIP_LIMIT_S)

    def _capture(self, *argv: str) -> str:
        done = subprocess.run(
            list(argv), env=self._host.environ, capture_output=True, text=True, timeout=60, check=False
        )
        return done.stdout


def show(releases: Releases) -> List[Tuple[str, str, str]]:
    """Return version, mark (`current`, `previous` or nothing) and Python of every release."""
    marks = {releases.linked(name): name for name in ("previous", "current")}
    return [(release.version, marks.get(release.version, ""), release.python) for release in releases.all()]
