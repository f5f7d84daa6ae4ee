"""
InstallState: what was there before and how far each step is, on disk before it is true on the host.

    /var/lib/ascendd-installer/state.json     written whole, then renamed
    /var/lib/ascendd-installer/before/N       the content of files that were replaced, bytes and mode
    /var/lib/ascendd-installer/lock           held by the installer and by every command that it has started
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import stat
import time
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional

from ascendd.errors import HostError, PreflightFailed

from .host import STATE_FOLDER, Host, write_atomic
from .step import Detection, Found, StepStatus

FORMAT = 1
_LOCK_PAUSE_S = 0.2


class InstallState:
    """The state of one host; every change is saved at once."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self.folder = host.real(STATE_FOLDER)
        self.verb = ""
        self.options: Dict[str, Any] = {}
        # By step: `status`; `found` when this run began; `before` and `before_version` when the first one did.
        self.steps: Dict[str, Dict[str, Any]] = {}
        # What each path was before the first change, in the order of the changes.
        self.files: Dict[str, Dict[str, Any]] = {}
        self.reboot_after: Optional[str] = None

    @classmethod
    def load(cls, host: Host) -> InstallState:
        """Read the state; an empty one where there is none. Raises HostError when the file is not ours to read."""
        state = cls(host)
        path = Path(state.folder, "state.json")
        if not path.exists():
            return state
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            if data["format"] != FORMAT:
                raise HostError(f"{path} has format {data['format']}, this installer reads {FORMAT}")
            state.verb, state.options, state.steps = data["verb"], data["options"], data["steps"]
            state.files, state.reboot_after = data["files"], data["reboot_after"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise HostError(
                f"{path} cannot be read: {error}",
                remedy="The file is only ever replaced whole; restore it from a backup, or remove the folder to forget "
                "what it knows of the host before.",
            ) from error
        return state

    @property
    def is_unfinished(self) -> bool:
        """Whether a run began and did not reach its end."""
        return bool(self.verb)

    def save(self) -> None:
        """Write the state so that it survives a power cut."""
        Path(self.folder).mkdir(mode=0o700, parents=True, exist_ok=True)
        data = {
            "format": FORMAT,
            "verb": self.verb,
            "options": self.options,
            "steps": self.steps,
            "files": self.files,
            "reboot_after": self.reboot_after,
        }
        write_atomic(f"{self.folder}/state.json", json.dumps(data, indent=1).encode(), 0o600)

    def begin(self, verb: str, options: Dict[str, Any], found: Dict[str, Detection]) -> None:
        """Start a run: remember what each step found, and for ever what it found the first time."""
        self.verb, self.options = verb, options
        for step_id, detection in found.items():
            entry = self.steps.setdefault(
                step_id, {"before": detection.found.value, "before_version": detection.version}
            )
            entry.update(status=StepStatus.PENDING.value, found=detection.found.value)
        self.save()

    def end(self) -> None:
        """Finish the run."""
        self.verb = ""
        self.save()

    def status(self, step_id: str) -> StepStatus:
        """Return how far a step is."""
        return StepStatus(self.steps.get(step_id, {}).get("status", StepStatus.PENDING.value))

    def found(self, step_id: str) -> Found:
        """Return what the step found when this run began."""
        return Found(self.steps[step_id]["found"])

    def was_absent(self, step_id: str) -> bool:
        """Tell whether nothing of the step was there before this installer came."""
        return bool(self.steps.get(step_id, {}).get("before") == Found.ABSENT.value)

    def set_status(self, step_id: str, status: StepStatus) -> None:
        """Move a step on and save."""
        self.steps[step_id]["status"] = status.value
        self.save()

    def remember(self, step_id: str, path: str) -> None:
        """Record what `path` is, and its missing parents, before the first change of it."""
        for parent in reversed(Path(path).parents):
            if str(parent) not in self.files and not Path(self._host.real(str(parent))).exists():
                self.files[str(parent)] = {"step": step_id, "kind": "absent"}
        if path in self.files:
            self.save()
            return
        real = Path(self._host.real(path))
        entry: Dict[str, Any] = {"step": step_id, "kind": "absent"}
        if real.is_symlink():
            entry.update(kind="link", target=str(real.readlink()))
        elif real.is_dir():
            entry.update(kind="folder")
        elif real.exists():
            info = real.stat()
            name = str(len(self.files))
            Path(self.folder, "before").mkdir(mode=0o700, parents=True, exist_ok=True)
            write_atomic(f"{self.folder}/before/{name}", real.read_bytes(), 0o600)
            entry.update(kind="file", copy=name, mode=stat.S_IMODE(info.st_mode), uid=info.st_uid, gid=info.st_gid)
            entry.update(mtime_ns=info.st_mtime_ns)
        self.files[path] = entry
        self.save()

    def files_of(self, step_id: str) -> List[str]:
        """Return the paths that the step changed, the last one first."""
        return [path for path, entry in reversed(list(self.files.items())) if entry["step"] == step_id]

    def restore(self, path: str) -> None:
        """Make `path` what it was before; a folder that others have filled since then stays."""
        entry = self.files[path]
        real = Path(self._host.real(path))
        if entry["kind"] == "absent":
            if real.is_symlink() or real.is_file():
                real.unlink()
            elif real.is_dir():
                with contextlib.suppress(OSError):
                    real.rmdir()
        elif entry["kind"] == "link":
            replace_link(str(real), entry["target"])
        elif entry["kind"] == "file":
            write_atomic(str(real), Path(self.folder, "before", entry["copy"]).read_bytes(), entry["mode"])
            if os.getuid() == 0:
                os.chown(real, entry["uid"], entry["gid"])
            os.utime(real, ns=(entry["mtime_ns"], entry["mtime_ns"]))

    def forget(self) -> None:
        """Remove the state; the host is what it was."""
        shutil.rmtree(self.folder)

    @contextlib.contextmanager
    def lock(self, wait_s: float) -> Iterator[None]:
        """
        Hold the lock of the host, waiting up to `wait_s` seconds for an earlier run and its commands to end.

        Raises PreflightFailed when it is still held then.
        """
        Path(self.folder).mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(f"{self.folder}/lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            deadline = time.monotonic() + wait_s
            told = False
            while not _try_lock(descriptor):
                if time.monotonic() > deadline:
                    raise PreflightFailed(
                        f"another run of the installer, or a command that it started, holds {STATE_FOLDER}/lock",
                        remedy=f"Find it with `fuser -v {STATE_FOLDER}/lock` and wait; do not kill a vendor's "
                        "package while it runs.",
                    )
                if not told:
                    self._host.say("waiting for an earlier run, or a command that it started, to end")
                    told = True
                time.sleep(_LOCK_PAUSE_S)
            self._host.lock_descriptor = descriptor
            yield
        finally:
            self._host.lock_descriptor = None
            os.close(descriptor)


def replace_link(path: str, target: str) -> None:
    """Point a link elsewhere without a moment at which it is not there."""
    partial = Path(path).with_name(f".{Path(path).name}.ascendd-new")
    partial.unlink(missing_ok=True)
    partial.symlink_to(target)
    partial.replace(path)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
