"""
MediaArchive: the media folder in one file, a tar (plain, gz, bz2, xz) or a zip, unpacked for as long as a run needs it.

    /var/tmp/ascendd-media.PID.XXXX      of the run PID; one that was killed is cleared away by the next run

A package that outlives its run still reads from there, so such a folder stays until the lock says that nothing runs.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tarfile
import tempfile
import zipfile
import zlib
from pathlib import Path, PurePosixPath
from typing import IO, Iterator, Optional, Tuple, Type

from ascendd.errors import PreflightFailed

from .host import Host
from .media import CHECKSUMS

_PLACE = "/var/tmp"  # noqa: S108 - made by mkdtemp; it outlives a reboot and is no RAM
_NAME = re.compile(r"ascendd-media\.(\d+)\..+")
_CHUNK = 1 << 20
# Left free on the disk after unpacking.
_RESERVE_BYTES = 1 << 30

# RuntimeError is what zipfile says of a password or of a compression that it does not know.
_BROKEN: Tuple[Type[Exception], ...] = (
    OSError, EOFError, RuntimeError, ValueError, tarfile.TarError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip
with contextlib.suppress(ImportError):  # A Python may have been built without it.
    from lzma import LZMAError

    _BROKEN += (LZMAError,)

# Name within the archive, size in bytes, and the content; None for what is neither file nor folder.
_Member = Tuple[str, int, Optional[IO[bytes]]]


def is_archive(path: str) -> bool:
    """Tell whether the media are one file; a folder is used where it lies."""
    return Path(path).is_file()


def unpack(host: Host, path: str) -> str:
    """
    Unpack an archive and return the folder that holds its packages; it goes with `clear_away`.

    Raises PreflightFailed for what is no archive, holds anything but files below itself, or is larger than the disk.
    """
    try:
        num_bytes = sum(size for _, size, _ in _members(path))
    except _BROKEN as error:
        raise _refused(path, f"cannot be read: {error}") from error
    if num_bytes + _RESERVE_BYTES > host.free_bytes(_PLACE):
        raise PreflightFailed(
            f"{path} unpacks to {num_bytes >> 20} MiB, and {_PLACE} has {host.free_bytes(_PLACE) >> 20} MiB free",
            remedy=f"Free {(num_bytes + _RESERVE_BYTES) >> 20} MiB there, or unpack it elsewhere and name that folder.",
        )
    host.say(f"unpacking {path} ({num_bytes >> 20} MiB) into {_PLACE}")
    Path(host.real(_PLACE)).mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f"ascendd-media.{os.getpid()}.", dir=host.real(_PLACE)))
    try:
        for name, _, content in _members(path):
            if content is None:
                raise _refused(path, f"holds `{name}`, which is neither a file nor a folder below it")
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("wb") as file:
                shutil.copyfileobj(content, file, _CHUNK)
    except _BROKEN as error:
        raise _refused(path, f"cannot be unpacked: {error}") from error
    return str(_top(folder))


def clear_away(host: Host, *, is_locked: bool) -> None:
    """Remove what this run has unpacked; under the lock also what runs left behind that were killed."""
    for path in Path(host.real(_PLACE)).glob("ascendd-media.*"):
        match = _NAME.fullmatch(path.name)
        if match is None or path.is_symlink():
            continue
        is_own = int(match[1]) == os.getpid()
        if (is_own and not is_locked) or (is_locked and not is_own and not Path(f"/proc/{match[1]}").exists()):
            with contextlib.suppress(OSError):
                shutil.rmtree(path)


def _members(path: str) -> Iterator[_Member]:
    """Give every file of the archive; folders are made with their files."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            for info in archive.infolist():
                # The upper half is the mode where it was made on Unix; a link has 0xA there.
                is_link = info.external_attr >> 28 == 0xA
                if info.is_dir():
                    continue
                if is_link or not _is_below(info.filename):
                    yield info.filename, 0, None
                else:
                    with archive.open(info) as content:
                        yield info.filename, info.file_size, content
        return
    with tarfile.open(path) as tar:
        for member in tar:
            if member.isdir():
                continue
            good = member.isreg() and _is_below(member.name)
            yield member.name, member.size, tar.extractfile(member) if good else None


def _is_below(name: str) -> bool:
    path = PurePosixPath(name)
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts


def _top(folder: Path) -> Path:
    """Return the folder itself, or the one in it where all was packed with its own folder."""
    inner = list(folder.iterdir())
    return inner[0] if len(inner) == 1 and inner[0].is_dir() and not (folder / CHECKSUMS).exists() else folder


def _refused(path: str, why: str) -> PreflightFailed:
    return PreflightFailed(
        f"{path} {why}",
        remedy="Pack the media folder itself: `tar -cf media.tar -C FOLDER .`; a zip will do, too. Or name the folder.",
    )
