"""LogBudget: one number of bytes for everything that an instance leaves on the disk, the vendor's logs included."""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

# A file that was written to a moment ago is in use: its owner would go on writing to a deleted one.
_IN_USE_S = 120.0


@dataclass(frozen=True)
class Sweep:
    """What one look found: bytes there now, files removed, bytes freed, and whether it is still too much."""

    total_bytes: int
    num_removed: int
    freed_bytes: int
    over: bool


@dataclass(frozen=True)
class _Found:
    path: Path
    num_bytes: int
    changed_s: float


class LogBudget:
    """
    Removes the oldest files of an instance until they fit `max_bytes`.

    `log_file` counts and is never removed, its rotated siblings are; of `folders` everything below counts and may go.
    """

    def __init__(self, max_bytes: int, log_file: Path | None, folders: Sequence[Path]) -> None:
        self.max_bytes = max_bytes
        self._log_file = log_file
        self._folders = folders

    def sweep(self, now_s: float | None = None) -> Sweep:
        """Look, and remove what is too much, oldest first; `now_s` is unix seconds. Raises nothing for the disk."""
        now_s = time.time() if now_s is None else now_s
        found = list(self._files())
        total = sum(file.num_bytes for file in found)
        num_removed = freed = 0
        for file in sorted(found, key=lambda file: file.changed_s):
            if total - freed <= self.max_bytes:
                break
            if file.path == self._log_file or now_s - file.changed_s < _IN_USE_S:
                continue
            with contextlib.suppress(OSError):
                file.path.unlink()
                num_removed += 1
                freed += file.num_bytes
        left = total - freed
        return Sweep(left, num_removed, freed, left > self.max_bytes)

    def _files(self) -> Iterator[_Found]:
        if self._log_file is not None:
            with contextlib.suppress(OSError):
                for path in self._log_file.parent.glob(f"{_escape(self._log_file.name)}*"):
                    rest = path.name[len(self._log_file.name) :].removesuffix(".gz")
                    if not rest or (rest[0] == "." and rest[1:].isdigit()):
                        yield from _regular(path)
        for folder in self._folders:
            for root, _folders, names in os.walk(folder):
                for name in names:
                    yield from _regular(Path(root, name))


def vendor_log_folders(environ: Mapping[str, str], instance: str) -> list[Path]:
    """
    Return the folders of the vendor's process logs (plog) that are this instance's own, below systemd's logs folder.

    Never ~/ascend/log, which belongs to every program of the user.
    """
    logs = environ.get("LOGS_DIRECTORY", "").split(":")[0]
    return [Path(logs, instance, "ascend")] if logs else []


def _regular(path: Path) -> Iterator[_Found]:
    with contextlib.suppress(OSError):
        found = path.lstat()
        if stat.S_ISREG(found.st_mode):
            # Blocks, not length: a sparse or compressed file takes what it takes.
            yield _Found(path, found.st_blocks * 512, found.st_mtime)


def _escape(name: str) -> str:
    return "".join(f"[{char}]" if char in "*?[" else char for char in name)
