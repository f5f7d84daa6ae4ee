"""Action: one thing that is shown before it is done. What a file was before is recorded first; each can be repeated."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import Dict, Tuple

from ascendd.errors import HostError

from .host import Host, write_atomic
from .state import InstallState, replace_link


class Action(ABC):
    """One change of the host."""

    @abstractmethod
    def show(self, host: Host) -> str:
        """Return the command that does the same, for `plan` and the log."""

    @abstractmethod
    def perform(self, host: Host, state: InstallState, step_id: str) -> None:
        """Do it. Raises HostError."""


@dataclass(frozen=True)
class Command(Action):
    """A command as it is started; `accepts` are the exit statuses that mean success."""

    argv: Tuple[str, ...]
    accepts: Tuple[int, ...] = (0,)
    limit_s: float = 600.0
    # Paths that the command makes; recorded first, so that uninstall knows that they were not there.
    makes: Tuple[str, ...] = ()

    def show(self, host: Host) -> str:
        """Return the command line."""
        return shlex.join(self.argv)

    def perform(self, host: Host, state: InstallState, step_id: str) -> None:
        """Record what it makes, then run it."""
        for path in self.makes:
            state.remember(step_id, path)
        host.run(self.argv, self.accepts, self.limit_s)


@dataclass(frozen=True)
class WriteFile(Action):
    """A file with this content and mode; its folders are made."""

    path: str
    content: str
    mode: int = 0o644
    # Where the content comes from, when a file of the bundle is copied.
    source: str = ""

    def show(self, host: Host) -> str:
        """Return an `install` command, or the whole text that is written."""
        mode = f"{self.mode:04o}"
        if self.source:
            return shlex.join(["install", "-D", "-m", mode, self.source, host.real(self.path)])
        text = "".join(f"\n        | {line}" for line in self.content.splitlines())
        return f"write {host.real(self.path)}, mode {mode}:{text}"

    def perform(self, host: Host, state: InstallState, step_id: str) -> None:
        """Record the old file, then replace it whole."""
        state.remember(step_id, self.path)
        real = Path(host.real(self.path))
        real.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(str(real), self.content.encode(), self.mode)


@dataclass(frozen=True)
class Link(Action):
    """A symbolic link that is moved without a gap."""

    path: str
    target: str

    def show(self, host: Host) -> str:
        """Return the `ln` command."""
        return shlex.join(["ln", "-sfn", self.target, host.real(self.path)])

    def perform(self, host: Host, state: InstallState, step_id: str) -> None:
        """Record the old link, then replace it."""
        state.remember(step_id, self.path)
        real = Path(host.real(self.path))
        real.parent.mkdir(parents=True, exist_ok=True)
        if real.is_dir() and not real.is_symlink():
            raise HostError(f"{self.path} is a folder, and a link belongs there", remedy="Move it away, then `resume`.")
        replace_link(str(real), self.target)


@dataclass(frozen=True)
class RestoreFiles(Action):
    """Every file that the step changed becomes what it was; files and empty folders that were not there go."""

    def show(self, host: Host) -> str:
        """Say it; there is no one command for it."""
        return "put back every file that this step changed, and remove those that it made"

    def perform(self, host: Host, state: InstallState, step_id: str) -> None:
        """Restore the last change first."""
        for path in state.files_of(step_id):
            host.log(f"restore {path}")
            state.restore(path)


@dataclass(frozen=True)
class RemoveTree(Action):
    """A folder of this installer's own making is removed; never one that was there before."""

    path: str

    def show(self, host: Host) -> str:
        """Return the `rm` command."""
        return shlex.join(["rm", "-rf", host.real(self.path)])

    def perform(self, host: Host, state: InstallState, step_id: str) -> None:
        """Remove it, if the record says that it was not there before."""
        if state.files.get(self.path, {}).get("kind") != "absent":
            raise HostError(f"{self.path} was there before this installer, so it is not removed")
        real = Path(host.real(self.path))
        if real.exists():
            shutil.rmtree(real)


@dataclass(frozen=True)
class CaptureEnvironment(Action):
    """The variables that shell scripts of the vendor set are written as an environment file for the units."""

    path: str
    scripts: Tuple[str, ...]
    mode: int = 0o640
    ignored: Tuple[str, ...] = field(default=("_", "SHLVL", "PWD", "OLDPWD"))

    def show(self, host: Host) -> str:
        """Return the shell command."""
        sources = "; ".join(f". {shlex.quote(host.real(script))}" for script in self.scripts)
        return (
            f"env -i HOME=/ PATH=/usr/sbin:/usr/bin bash -c {shlex.quote(sources + '; env')} > {host.real(self.path)}"
        )

    def perform(self, host: Host, state: InstallState, step_id: str) -> None:
        """Source the scripts in an empty environment and write what they set."""
        base = {"HOME": "/", "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
        there = [host.real(script) for script in self.scripts if host.files.exists(script)]
        sources = [f". {shlex.quote(script)} >/dev/null || exit 9" for script in there]
        if not sources:
            raise HostError(f"none of {', '.join(self.scripts)} is there, so the service would not find CANN")
        done = subprocess.run(
            ["bash", "-c", "; ".join([*sources, "env -0"])],
            env=base, capture_output=True, timeout=60, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            said = done.stderr.decode(errors="replace").strip()[-300:]
            raise HostError(f"`{self.show(host)}` ended with status {done.returncode}: {said}")
        pairs: Dict[str, str] = {}
        for item in done.stdout.decode(errors="replace").split("\0"):
            name, separator, value = item.partition("=")
            if separator and name not in self.ignored and base.get(name) != value and not set(value) & set('\n"\\`$'):
                pairs[name] = value
        text = "".join(f'{name}="{value}"\n' for name, value in sorted(pairs.items()))
        header = f"# What {' and '.join(self.scripts)} set; written by the installer.\n"
        WriteFile(self.path, header + text, self.mode).perform(host, state, step_id)
