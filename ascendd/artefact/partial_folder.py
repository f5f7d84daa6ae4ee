"""
DST.partial: where a conversion writes, how it is gone on with, and how it becomes DST.

    DST.partial/convert-state.json    the inputs, and the finished files with their checksums
    DST.partial/rank-R-of-N...        written front to back, made durable, then noted in the state
    DST.partial/config.json ...       the small files; then the state is removed and the manifest is written
    DST                               DST.partial renamed, when all of it is on the disk
    DST.replaced                      the old DST, between two renames of a conversion with --force

The lock is on the folder itself, so it goes along with the rename and leaves nothing behind.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from ascendd.artefact.manifest import (
    MANIFEST_NAME,
    STATE_NAME,
    CastCount,
    FileEntry,
    Manifest,
    encode_manifest,
    hash_file,
    is_artefact,
    sync_folder,
)
from ascendd.errors import ConversionFailed


class ConversionState(msgspec.Struct, kw_only=True):
    """What a conversion has done so far; `inputs` are all facts that its output depends on."""

    inputs: dict[str, object]
    cast_report: dict[str, CastCount] | None = None
    finished: dict[str, FileEntry] = {}


class PartialFolder:
    """The folder beside `destination` in which an artefact grows."""

    def __init__(self, destination: Path) -> None:
        # The parent may be a link, the last part must not be followed: DST is what gets replaced.
        self.destination = destination.parent.resolve() / destination.name
        self.path = self.destination.with_name(self.destination.name + ".partial")
        self._replaced = self.destination.with_name(self.destination.name + ".replaced")

    def check_destination(self, *, force: bool) -> None:
        """Raise ConversionFailed unless DST is free, or `force` is set and DST is an artefact or an empty folder."""
        destination = self.destination
        if not destination.exists() and not destination.is_symlink():
            if self._replaced.is_dir():  # a conversion died between its two renames
                self._replaced.rename(destination)
            else:
                return
        if not force:
            raise ConversionFailed(
                f"{destination} exists", remedy="Choose another folder, or add --force to replace it."
            )
        is_empty_folder = destination.is_dir() and not any(destination.iterdir())
        if destination.is_symlink() or not (is_empty_folder or is_artefact(destination)):
            raise ConversionFailed(
                f"{destination} was not written by `ascendd convert`, so --force does not replace it",
                remedy="Choose another folder, or remove this one yourself.",
            )

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder, made if need be. Raises ConversionFailed while another process holds it."""
        self.path.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                is_ours = os.fstat(descriptor).st_ino == self.path.stat().st_ino  # else it was renamed meanwhile
            except (BlockingIOError, FileNotFoundError):
                is_ours = False
            if not is_ours:
                raise ConversionFailed(f"another conversion is writing {self.path}", remedy="Wait until it has ended.")
            yield
        finally:
            os.close(descriptor)

    def resume(self, inputs: dict[str, object], progress: Callable[[str, int, int], None]) -> ConversionState:
        """
        Return the state of an earlier run with the same inputs, less files that are not intact; else a new state.

        Whatever else lies in the folder is removed. `progress` gets a file name, bytes done and bytes in all.
        """
        fresh = ConversionState(inputs=inputs)
        try:
            state = msgspec.json.decode((self.path / STATE_NAME).read_bytes(), type=ConversionState)
        except (OSError, msgspec.DecodeError):
            state = fresh
        if state.inputs != inputs:
            state = fresh
        state.finished = self._intact(state.finished, progress)
        for path in self.path.iterdir():
            if path.name != STATE_NAME and path.name not in state.finished:
                _remove(path)
        self.save(state)
        return state

    def save(self, state: ConversionState) -> None:
        """Make `state` durable; a kill leaves the old or the new one."""
        fresh = self.path / (STATE_NAME + ".new")
        _write_durably(fresh, msgspec.json.encode(state))
        fresh.rename(self.path / STATE_NAME)
        sync_folder(self.path)

    def write(self, name: str, data: bytes) -> FileEntry:
        """Write one small file and return its entry."""
        _write_durably(self.path / name, data)
        digest, num_bytes = hash_file(self.path / name)
        return FileEntry(bytes=num_bytes, sha256=digest)

    def publish(self, manifest: Manifest) -> None:
        """Turn the folder into DST; the caller holds the lock and has checked that DST may be replaced."""
        (self.path / STATE_NAME).unlink()
        _write_durably(self.path / MANIFEST_NAME, encode_manifest(manifest))
        sync_folder(self.path)
        if self.destination.exists():
            if self._replaced.exists():
                shutil.rmtree(self._replaced)
            self.destination.rename(self._replaced)
        self.path.rename(self.destination)
        sync_folder(self.destination.parent)
        if self._replaced.exists():
            shutil.rmtree(self._replaced)

    def _intact(
        self, finished: dict[str, FileEntry], progress: Callable[[str, int, int], None]
    ) -> dict[str, FileEntry]:
        intact: dict[str, FileEntry] = {}
        done, total = 0, sum(entry.bytes for entry in finished.values())
        for name, entry in finished.items():
            progress(name, done, total)
            with suppress(OSError):
                if hash_file(self.path / name) == (entry.sha256, entry.bytes):
                    intact[name] = entry
            done += entry.bytes
            progress(name, done, total)
        return intact


def _write_durably(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
