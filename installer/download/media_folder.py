"""Media folder: what was downloaded into it, its SHA256SUMS, and what an operator has put there beside that."""

from __future__ import annotations

import contextlib
import fcntl
import json
from pathlib import Path
from typing import Dict, Iterator, List, Set

from ascendd.errors import HostError

from ..host import write_atomic
from ..media import CHECKSUMS, parse_checksums
from .fetch import Fetcher, RemoteFile, shown

RECORD = "media.json"


class MediaFolder:
    """The folder; what is fetched is written down after each file, so that a killed run loses no more than one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fetched: Dict[str, Dict[str, str]] = {}
        self._lines: List[str] = []

    @contextlib.contextmanager
    def open(self) -> Iterator[MediaFolder]:
        """Make it, hold it alone, and read what it has. Raises HostError."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = (self.path / ".download.lock").open("w")
        except OSError as error:
            raise HostError(f"{self.path} cannot be written: {error.strerror}", remedy="See --media.") from error
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise HostError(f"another download fills {self.path}", remedy="Wait for its end.") from error
            self._read()
            yield self
            (self.path / ".download.lock").unlink()

    def fetch(self, fetcher: Fetcher, wanted: RemoteFile, folder: str) -> bool:
        """Bring a file below `folder` and write it down; return whether it had to be fetched."""
        name = f"{folder}/{wanted.name}".lstrip("/")
        is_new = fetcher.file(wanted, self.path / name)
        entry = {"url": shown(wanted.url), "sha256": wanted.sha256}
        if self._fetched.get(name) != entry or self.sums().get(name) != wanted.sha256:
            self._fetched[name] = entry
            self._write()
        return is_new

    def drop_others(self, names: Set[str]) -> List[str]:
        """Remove what an earlier download has brought and this one does not want; return those names."""
        gone = sorted(set(self._fetched) - names)
        for name in gone:
            for path in (self.path / name, self.path / f"{name}.part"):
                with contextlib.suppress(FileNotFoundError):
                    path.unlink()
            del self._fetched[name]
        if gone:
            self._lines = [line for line in self._lines if not set(parse_checksums([line])) & set(gone)]
            self._write()
        return gone

    def sums(self) -> Dict[str, str]:
        """Return name -> sha256 of SHA256SUMS."""
        return parse_checksums(self._lines)

    def _read(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._lines = (self.path / CHECKSUMS).read_text(encoding="utf-8").splitlines()
        try:
            record = json.loads((self.path / RECORD).read_text(encoding="utf-8"))
            self._fetched = {str(name): dict(entry) for name, entry in record["files"].items()}
        except FileNotFoundError:
            pass
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise HostError(
                f"{self.path / RECORD} cannot be read: {error}", remedy="Remove it; what is whole is not fetched again."
            ) from error

    def _write(self) -> None:
        # The record first: a file that is listed in SHA256SUMS and not in the record would be taken for an operator's.
        record = {"made_by": "install.sh download", "files": dict(sorted(self._fetched.items()))}
        write_atomic(str(self.path / RECORD), (json.dumps(record, indent=1) + "\n").encode())
        lines = [line for line in self._lines if not set(parse_checksums([line])) & set(self._fetched)]
        self._lines = [*lines, *(f"{entry['sha256']}  {name}" for name, entry in sorted(self._fetched.items()))]
        write_atomic(str(self.path / CHECKSUMS), "".join(f"{line}\n" for line in self._lines).encode())
