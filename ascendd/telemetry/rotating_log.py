"""
RotatingLog: one log file that is rotated by size and by age; old ones are compressed.

    FILE, FILE.1.gz (the newest) ... FILE.<backups>.gz; a file stays plain while, or where, it could not be compressed

Nothing here raises for what the disk does once it is open: a full disk costs lines, which are counted, not the process.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import shutil
import threading
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from ascendd.errors import PermissionMissing

_FILE_MODE = 0o640
# How often it is looked whether something else moved or emptied the file.
_LOOK_S = 1.0
_PARTIAL = ".partial"


def check_log_file(path: Path, key: str = "log.file") -> None:
    """
    Raise PermissionMissing unless `path` can be appended to.

    Its folder is never made: a slip of the pen would become a folder tree, owned by whoever started the daemon.
    """
    if not path.parent.is_dir():
        raise PermissionMissing(
            f"{key} {path}: the folder {path.parent} does not exist",
            remedy=f"Make {path.parent}, owned by the service user, or write a file in a folder that exists.",
            path=str(path),
        )
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, _FILE_MODE))
    except OSError as error:
        raise PermissionMissing(
            f"{key} {path} cannot be written: {error.strerror}",
            remedy=f"Make {path.parent} writable for the service user, or remove {key} to log to the journal.",
            path=str(path),
        ) from error


class RotatingLog:
    """
    Appends whole lines to `path`; rotates beyond `max_bytes`, and where the file is older than `max_age_s` (0: never).

    A line that the disk does not take whole is taken back and counted; the next line that fits is preceded by the
    count. A file that was moved or removed by something else (logrotate) is made again within a second. Raises
    PermissionMissing where the file cannot be opened at the start. `clock` gives unix seconds.
    """

    def __init__(
        self,
        path: Path,
        max_bytes: int,
        backups: int,
        *,
        max_age_s: float = 0.0,
        compress: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._backups = backups
        self._max_age_s = max_age_s
        self._compress = compress
        self._clock = clock
        self._fd = -1
        self._size = 0
        self._began_s = 0.0
        self._looked_at_s = 0.0
        self._compressor: threading.Thread | None = None
        self.num_dropped = 0  # since the last line that fitted
        self.num_lost = 0  # since the start of this process
        check_log_file(path)
        for partial in path.parent.glob(f"{path.name}.*.gz{_PARTIAL}"):
            partial.unlink(missing_ok=True)
        self._open()

    def write(self, line: bytes) -> None:
        """Append one line; never raises for what the disk does."""
        if self.num_dropped:
            note = b'{"event":"log.lines_dropped","level":"error","role":"logwriter","count":%d}' % self.num_dropped
            if not self._append(note):
                self._drop()
                return
            self.num_dropped = 0
        if not self._append(line):
            self._drop()

    def reopen(self) -> None:
        """Open the file by its name again, after something else moved it."""
        self.close()

    def close(self) -> None:
        """Close the file; a later `write` opens it again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def settle(self) -> None:
        """Wait until the last rotated file is compressed."""
        if self._compressor is not None:
            self._compressor.join()
            self._compressor = None

    def _drop(self) -> None:
        self.num_dropped += 1
        self.num_lost += 1

    def _open(self) -> None:
        self._fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, _FILE_MODE)
        self._size = os.fstat(self._fd).st_size
        self._began_s = _first_time(self._path) if self._size and self._max_age_s else self._clock()

    def _append(self, line: bytes) -> bool:
        data = line + b"\n"
        try:
            self._follow()
            if self._fd < 0:
                self._open()
            if self._size and (self._size + len(data) > self._max_bytes or self._is_old()):
                self._rotate()
            num_written = self._put(data)
        except OSError:
            num_written = 0
        if num_written == len(data):
            self._size += num_written
            return True
        if num_written:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self._size)
        return False

    def _put(self, data: bytes) -> int:
        return os.write(self._fd, data)

    def _is_old(self) -> bool:
        return self._max_age_s > 0 and self._clock() - self._began_s >= self._max_age_s

    def _follow(self) -> None:
        """Let go of a file that no longer has the name, and see that one was emptied in place (copytruncate)."""
        now_s = time.monotonic()
        if self._fd < 0 or now_s - self._looked_at_s < _LOOK_S:
            return
        self._looked_at_s = now_s
        ours = os.fstat(self._fd)
        try:
            named = self._path.stat()
        except FileNotFoundError:
            self.close()
            return
        if (named.st_dev, named.st_ino) != (ours.st_dev, ours.st_ino):
            self.close()
        elif ours.st_size < self._size:
            self._size = ours.st_size

    def _rotate(self) -> None:
        self.settle()
        self.close()
        for number in range(self._backups, 0, -1):
            for suffix in ("", ".gz"):
                older = self._backup(number - 1, suffix) if number > 1 or not suffix else None
                if older is not None and older.exists():
                    for stale in (self._backup(number), self._backup(number, ".gz")):
                        stale.unlink(missing_ok=True)
                    older.replace(self._backup(number, suffix))
        if not self._backups:
            os.truncate(self._path, 0)
        elif self._compress:
            # In the background: a hundred megabytes take seconds, and the pipe holds one megabyte.
            self._compressor = threading.Thread(target=_compress, args=(self._backup(1),), name="compress", daemon=True)
            self._compressor.start()
        self._open()

    def _backup(self, number: int, suffix: str = "") -> Path:
        return self._path.with_name(f"{self._path.name}.{number}{suffix}") if number else self._path


def _compress(plain: Path) -> None:
    """Replace `plain` by its compressed form; where that fails, as on a full disk, the plain file stays."""
    target = plain.with_name(f"{plain.name}.gz")
    partial = target.with_name(target.name + _PARTIAL)
    try:
        fd = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, _FILE_MODE)
        with plain.open("rb") as source, os.fdopen(fd, "wb") as raw, gzip.GzipFile(plain.name, "wb", 6, raw) as packed:
            shutil.copyfileobj(source, packed, 256 * 1024)
        partial.replace(target)
        plain.unlink()
    except OSError:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)


def _first_time(path: Path) -> float:
    """Return when the file's first line was written, in unix seconds: as it says itself, else the last change."""
    try:
        with path.open("rb") as file:
            stamp = json.loads(file.readline(64 * 1024))["timestamp"]
        return datetime.fromisoformat(stamp.replace("Z", "+00:00")).timestamp()
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return path.stat().st_mtime
