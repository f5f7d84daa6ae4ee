"""Instances as units under a real systemd, for `backends.py`: the throw-away machine, what it needs, one unit."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_IN_MACHINE = "ASCENDD_BENCH_IN_MACHINE"
_PRIVATE = ("/tmp", "/var/tmp")  # what PrivateTmp= hides, and what a boot empties
_MODEL = Path("/var/lib/ascendd/models/m")


def is_machine() -> bool:
    """Whether this process already runs in the machine."""
    return _IN_MACHINE in os.environ


def in_machine(argv: Sequence[str], shown: Sequence[Path | None]) -> int:
    """Run `argv` by this Python in a booted machine that sees the folders `shown`; return its exit status."""
    needed = {folder for folder in (ROOT, Path(sys.prefix), *shown) if folder is not None}
    binds = [part for folder in needed if _is_hidden(folder) for part in ("--bind", str(folder.absolute()))]
    lab = [str(ROOT / "tests/systemd-lab"), *binds, "--", "env", f"{_IN_MACHINE}=1"]
    return subprocess.run([*lab, str(Path(sys.prefix) / "bin/python"), *argv], check=False).returncode


def install(shown: Sequence[Path], model: Path) -> Path:
    """Put units, user and `model` in place, and have the units see the folders `shown`; return the model's new path."""
    os.chmod("/root", 0o711)  # where an interpreter of a developer's machine lives
    bin_folder = Path("/opt/ascendd/current/bin")
    bin_folder.mkdir(parents=True)
    (bin_folder / "ascendd").symlink_to(Path(sys.prefix) / "bin/ascendd")
    units = Path("/etc/systemd/system")
    for file in (ROOT / "systemd").glob("ascendd*"):
        shutil.copy(file, units / file.name)
    for kind in ("sysusers", "tmpfiles"):
        shutil.copy(ROOT / f"systemd/{kind}.d/ascendd.conf", f"/usr/lib/{kind}.d/ascendd.conf")
    subprocess.run(["systemd-sysusers", "ascendd.conf"], check=True)
    subprocess.run(["systemd-tmpfiles", "--create", "ascendd.conf"], check=True)
    binds = [f"BindReadOnlyPaths={path}\n" for path in (ROOT, Path(sys.prefix), *shown) if _is_hidden(path)]
    drop_in = units / "ascendd@.service.d"
    drop_in.mkdir()
    (drop_in / "bench.conf").write_text("".join(["[Service]\nProtectHome=read-only\n", *binds]))
    shutil.copytree(model, _MODEL)
    subprocess.run(["chown", "-R", "ascendd:ascendd", str(_MODEL.parent)], check=True)
    subprocess.run(["systemctl", "daemon-reload"], check=True)
    return _MODEL


class Unit:
    """`ascendd@NAME` of the machine."""

    def __init__(self, name: str) -> None:
        self._name = f"ascendd@{name}.service"
        self._file = Path(f"/etc/ascendd/instances/{name}.yaml")

    def start(self, config: str) -> None:
        """Start an instance with this text as its file; does not wait for it to be ready."""
        self._file.write_text(config)
        shutil.chown(self._file, "root", "ascendd")
        subprocess.run(["systemctl", "start", "--no-block", self._name], check=True)

    def status(self) -> int | None:
        """Return the exit status of an ended unit, None while it starts or runs."""
        state, status = self._show("ActiveState"), self._show("ExecMainStatus")
        is_over = state == "failed" or (state == "inactive" and self._show("ExecMainExitTimestampMonotonic") != "0")
        return int(status) if is_over else None

    def stop(self) -> None:
        """Stop the unit; systemctl returns once no process of it is left."""
        subprocess.run(["systemctl", "stop", self._name], check=True)

    def log(self) -> str:
        """Return its lines of the journal, without what the journal adds."""
        command = ["journalctl", "--quiet", "--output=cat", "-u", self._name]
        return subprocess.run(command, capture_output=True, text=True, errors="replace", check=True).stdout

    def _show(self, name: str) -> str:
        command = ["systemctl", "show", self._name, f"-p{name}", "--value"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def _is_hidden(folder: Path) -> bool:
    return any(map(folder.absolute().is_relative_to, _PRIVATE))
