"""Fetch: one file over HTTP, gone on with where it stopped, taken only with the checksum that it was promised with."""

from __future__ import annotations

import errno
import http.client
import netrc
import time
import urllib.error
import urllib.parse
import urllib.request
from base64 import b64encode
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Mapping, Optional

from ascendd.errors import HostError, UsageError

from ..media import sha256_of

PARTIAL = ".part"
_CHUNK = 1 << 18
_ATTEMPTS = 5
# Answers that another attempt may change.
_PASSING = (408, 425, 429, 500, 502, 503, 504)
_LOCAL = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS)
_PULSE_S = 5.0
_AGAIN = "Run the same command again: what is whole is kept, and what is not is gone on with."


@dataclass(frozen=True)
class RemoteFile:
    """A file that is wanted: where it lies, the sha256 that its index promises, and its bytes where they are known."""

    url: str
    name: str
    sha256: str
    size: Optional[int] = None


@dataclass
class Fetcher:
    """
    Gets documents and files. `sleep` is waited with between attempts, `say` takes lines of progress.

    Nothing is taken from a URL's user part: secrets of an index belong into ~/.netrc, not on a command line.
    """

    say: Callable[[str], None]
    sleep: Callable[[float], None] = time.sleep
    timeout_s: float = 60.0
    num_bytes: int = field(default=0, init=False)

    def document(self, url: str, accept: str = "*/*") -> bytes:
        """Return a small document such as an index. Raises HostError, FileNotFoundError where the server has none."""
        data: bytes = self._repeat(url, lambda: self._read(url, accept))
        return data

    def file(self, wanted: RemoteFile, target: Path) -> bool:
        """
        Make `target` that file, beginning with what an earlier run left of it; return whether it was not there yet.

        Raises HostError when the server does not give it, or gives one with another checksum twice.
        """
        if target.is_file() and sha256_of(str(target)) == wanted.sha256:
            return False
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(target.name + PARTIAL)
        for is_last in (False, True):
            try:
                self._repeat(wanted.url, lambda: self._go_on(wanted, partial))
            except FileNotFoundError as error:
                raise HostError(f"{error.args[0]}, though its index names it", remedy=_AGAIN) from error
            seen = sha256_of(str(partial))
            if seen == wanted.sha256:
                partial.replace(target)
                return True
            # What an earlier run left may be of another file; a fresh one shows who is wrong.
            partial.unlink()
            if is_last:
                raise HostError(
                    f"{shown(wanted.url)} has the sha256 {seen}, its index promises {wanted.sha256}; it was not kept",
                    remedy="Name another index or mirror, or ask its keeper; do not install what came.",
                )
            self.say(f"{wanted.name}: wrong checksum, fetched once more from the beginning")
        raise AssertionError("the loop ends by return or raise")

    def _repeat(self, url: str, attempt: Callable[[], Any]) -> Any:
        """Try again with growing pauses; an attempt that brought bytes does not count."""
        failures = 0
        while True:
            before = self.num_bytes
            try:
                return attempt()
            except urllib.error.HTTPError as error:
                reason, passes = f"status {error.code} {error.reason}", error.code in _PASSING
                error.close()
                if error.code in (404, 410):
                    raise FileNotFoundError(f"{shown(url)} is not there ({reason})") from error
            except (OSError, http.client.HTTPException) as error:
                reason, passes = str(getattr(error, "reason", "") or error) or type(error).__name__, True
                passes = getattr(error, "errno", None) not in _LOCAL
            failures = 1 if self.num_bytes > before else failures + 1
            if not passes or failures >= _ATTEMPTS:
                raise HostError(f"{shown(url)} cannot be fetched: {reason}", remedy=_AGAIN)
            pause = 2.0 ** (failures - 1)
            self.say(f"{shown(url)}: {reason}; again in {pause:.0f} s")
            self.sleep(pause)

    def _read(self, url: str, accept: str) -> bytes:
        with self._open(url, {"Accept": accept}) as answer:
            data: bytes = answer.read()
        self.num_bytes += len(data)
        return data

    def _go_on(self, wanted: RemoteFile, partial: Path) -> None:
        """Fetch what is missing of `partial`. Raises OSError when the connection ends before the file does."""
        there = partial.stat().st_size if partial.exists() else 0
        if wanted.size is not None and there >= wanted.size:
            return
        try:
            answer = self._open(wanted.url, {"Range": f"bytes={there}-"} if there else {})
        except urllib.error.HTTPError as error:
            if error.code != 416:
                raise
            # It holds everything already, or more than there is; the checksum tells.
            error.close()
            return
        with answer:
            # A server that ignores the range sends the whole.
            goes_on = answer.status == 206 and _first_byte(answer.headers) == there
            length = answer.headers.get("Content-Length")
            total = (there if goes_on else 0) + int(length) if length and length.isdigit() else wanted.size
            received = there if goes_on else 0
            started = told = time.monotonic()
            # What has come is on disk at once, so that a killed run loses nothing of it.
            with partial.open("ab" if goes_on else "wb", buffering=0) as file:
                while chunk := answer.read1(_CHUNK):
                    file.write(chunk)
                    received += len(chunk)
                    self.num_bytes += len(chunk)
                    now = time.monotonic()
                    if now - told >= _PULSE_S:
                        told = now
                        self.say(_progress(wanted.name, received, total, (received - there) / (now - started)))
        if total is not None and received < total:
            raise OSError(f"the connection ended after {received} of {total} bytes")

    def _open(self, url: str, headers: Mapping[str, str]) -> Any:
        # Every URL comes from check_url, or from an index that a URL of it has given.
        if not url.startswith(("http://", "https://")):
            raise HostError(f"{shown(url)} is no http or https URL", remedy="Name another index or mirror.")
        request = urllib.request.Request(url, headers={"User-Agent": "ascendd-installer", **headers})  # noqa: S310
        credentials = _credentials(urllib.parse.urlsplit(url).hostname or "")
        if credentials is not None:
            # Not sent on to where a redirect leads.
            request.add_unredirected_header("Authorization", credentials)
        return urllib.request.urlopen(request, timeout=self.timeout_s)  # noqa: S310


def check_url(url: str, option: str) -> str:
    """Return the URL without a slash at its end. Raises UsageError for one that is none, or that holds a password."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"{option} is `{shown(url)}`, which is no http or https URL")
    if "@" in parts.netloc:
        raise UsageError(
            f"{option} holds a user or a password, which every user of this machine can read in the list of processes",
            remedy=f"Write `machine {parts.hostname} login USER password ...` into ~/.netrc, and leave them out here.",
        )
    return url.rstrip("/")


def shown(url: str) -> str:
    """Return a URL for a log: without user, password and query."""
    parts = urllib.parse.urlsplit(url)
    return urllib.parse.urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def _credentials(machine: str) -> Optional[str]:
    try:
        found = netrc.netrc().authenticators(machine)
    except (OSError, netrc.NetrcParseError):
        return None
    return None if found is None else "Basic " + b64encode(f"{found[0]}:{found[2]}".encode()).decode()


def _first_byte(headers: Mapping[str, str]) -> Optional[int]:
    text = headers.get("Content-Range", "").partition(" ")[2].partition("-")[0]
    return int(text) if text.isdigit() else None


def _progress(name: str, received: int, total: Optional[int], rate: float) -> str:
    if not total:
        return f"{name}: {megabytes(received)}, {megabytes(rate)}/s"
    left = f"{(total - received) / rate:.0f} s left" if rate > 0 else "stalled"
    return f"{name}: {received / total:.0%} of {megabytes(total)}, {megabytes(rate)}/s, {left}"


def megabytes(num_bytes: float) -> str:
    """Return a size for people: `43.7 MB`."""
    return f"{num_bytes / 1e6:.1f} MB"
