"""HostFiles: the one door to the host's files. Read-only; another root than `/` shows a recorded machine instead."""

from __future__ import annotations

import fnmatch
import os
from pathlib import Path
from typing import Any, Mapping, Optional, Tuple

from ascendd.errors import ProbeUnavailable
from ascendd.host.fake_host import FakeHost, read_fake_host

# Not there, which is an answer; a process that ended reads so, and a path with a NUL byte names no file. Every other
# reason leaves the question open.
_ABSENT = (FileNotFoundError, NotADirectoryError, ProcessLookupError, ValueError)


class HostFiles:
    """Files below `root`, addressed by the absolute path that they have on the host."""

    def __init__(self, root: str = "/") -> None:
        self.root = root.rstrip("/")
        self.fake: Optional[FakeHost] = read_fake_host(self.root)

    def real(self, path: str) -> str:
        """Return the path to hand to the operating system."""
        return self.root + path if self.root and path.startswith("/") else path

    def read_text(self, path: str) -> str:
        """Return the content of a file. Raises ProbeUnavailable with the reason."""
        self._refuse(path)
        try:
            return Path(self.real(path)).read_text(encoding="utf-8", errors="replace")
        except (OSError, ValueError) as error:  # ValueError: a NUL byte in a path that a broken file named
            raise ProbeUnavailable(f"{path} cannot be read: {_why(error)}", path=path) from error

    def read_optional(self, path: str) -> Optional[str]:
        """Return the content of a file, None where there is none. Raises ProbeUnavailable where it cannot be read."""
        try:
            return self.read_text(path)
        except ProbeUnavailable as error:
            if isinstance(error.__cause__, _ABSENT):
                return None
            raise

    def read_if_possible(self, path: str) -> Optional[str]:
        """Return the content of a file, or None for whatever reason: for what no verdict hangs on."""
        try:
            return self.read_text(path)
        except ProbeUnavailable:
            return None

    def exists(self, path: str) -> bool:
        """Tell whether `path` is there; a broken link is not, nor what a folder hides from this user."""
        return os.path.exists(self.real(path))  # noqa: PTH110 - Path.exists raises where a folder is shut

    def is_dir(self, path: str) -> bool:
        """Tell whether `path` is a folder."""
        return os.path.isdir(self.real(path))  # noqa: PTH112 - as above

    def is_executable(self, path: str) -> bool:
        """Tell whether `path` is a file that this user may run."""
        real = self.real(path)
        return os.path.isfile(real) and os.access(real, os.X_OK)  # noqa: PTH113 - as above

    def size(self, path: str) -> int:
        """Return the size of a file in bytes. Raises ProbeUnavailable."""
        try:
            return Path(self.real(path)).stat().st_size
        except (OSError, ValueError) as error:
            raise ProbeUnavailable(f"{path} cannot be read: {_why(error)}", path=path) from error

    def list_dir(self, path: str, pattern: str = "*") -> Tuple[str, ...]:
        """
        Return the sorted names in a folder that match `pattern`; none where there is no such folder.

        Raises ProbeUnavailable where it may not be looked into.
        """
        self._refuse(path)
        try:
            names = [entry.name for entry in Path(self.real(path)).iterdir()]
        except _ABSENT:
            return ()
        except OSError as error:
            raise ProbeUnavailable(f"{path} cannot be read: {_why(error)}", path=path) from error
        return tuple(sorted(fnmatch.filter(names, pattern)))

    def list_if_possible(self, path: str, pattern: str = "*") -> Tuple[str, ...]:
        """Return what `list_dir` does, and nothing for whatever reason: for what no verdict hangs on."""
        try:
            return self.list_dir(path, pattern)
        except ProbeUnavailable:
            return ()

    def resolve(self, path: str) -> str:
        """Return `path` with symbolic links followed, still as the host sees it."""
        if "\0" in path:
            return path
        resolved = os.path.realpath(self.real(path))
        root = os.path.realpath(self.root) if self.root else ""
        return resolved[len(root) :] if root and resolved.startswith(root + "/") else resolved

    def read_link(self, path: str) -> Optional[str]:
        """Return what the symbolic link `path` says, not followed; None where it is none or may not be read."""
        try:
            return str(Path(self.real(path)).readlink())
        except (OSError, ValueError):
            return None

    def open_read_write(self, path: str) -> Optional[str]:
        """Open `path` for reading and writing, as a process that uses the device would; return why not, or None."""
        if self.fake is not None and path in self.fake.denied:
            return self.fake.denied[path]
        try:
            descriptor = os.open(self.real(path), os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        except (OSError, ValueError) as error:
            return _why(error)
        os.close(descriptor)
        return None

    def disk_space(self, path: str) -> Tuple[int, int]:
        """Return total bytes and those free to this user where `path` lies. Raises ProbeUnavailable."""
        if self.fake is not None:
            mounts = [mount for mount in self.fake.disks if path == mount or path.startswith(mount.rstrip("/") + "/")]
            if not mounts:
                raise ProbeUnavailable(f"{path} lies on no file system that is known", path=path)
            return self.fake.disks[max(mounts, key=len)]
        try:
            found = os.statvfs(self.real(path))
        except (OSError, ValueError) as error:
            raise ProbeUnavailable(f"{path} cannot be measured: {_why(error)}", path=path) from error
        return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize

    def _refuse(self, path: str) -> None:
        """Let a fake host shut a file or folder, by any of its names; the tester's own rights shut nothing to root."""
        denied = {} if self.fake is None else self.fake.denied
        names = (path, self.resolve(path)) if denied else ()
        reason = next((denied[name] for name in names if name in denied), None)
        if reason is not None:
            raise ProbeUnavailable(f"{path} cannot be read: {reason}", path=path)

    def environ(self, own: Mapping[str, str]) -> Mapping[str, str]:
        """Return the environment on this host: `own`, but what a fake host says of its own."""
        return own if self.fake is None or self.fake.environ is None else self.fake.environ

    def fact(self, name: str) -> Any:
        """Return what a fake host says of `name`, which no file can; None on a real host."""
        return None if self.fake is None else self.fake.facts.get(name)


def _why(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
