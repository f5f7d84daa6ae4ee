"""
Who may ask: keys from the file that listen.api_key_file names, one a line, `#` starts a comment.

Only SHA-256 digests stay in memory, so no key can get into a log, a traceback or a core file's strings by our doing.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ascendd.config.key_file import read_keys
from ascendd.errors import AuthenticationFailed
from ascendd.telemetry.log import get_logger

# Open on purpose: probes of orchestrators carry no keys, and these answers carry no names.
OPEN_PATHS = frozenset({"/livez", "/readyz", "/health"})


def read_key_file(path: Path) -> list[str]:
    """Return the keys of `path` (config.key_file.read_keys); others who may open it are told of in the log."""
    keys = read_keys(path)
    mode = path.stat().st_mode
    if mode & stat.S_IRWXO:
        get_logger("api").warning(
            "api.key_file_exposed", path=str(path), mode=f"{stat.S_IMODE(mode):04o}", remedy=f"chmod 0600 {path}"
        )
    return keys


class Authenticator:
    """Decides from the Authorization header alone, before a byte of the body is read."""

    def __init__(self, keys: list[str] | None) -> None:
        self._digests = None if keys is None else [_digest(key) for key in keys]
        self._one_time: bytes | None = None

    @classmethod
    def from_file(cls, path: str | None) -> Authenticator:
        """Read the keys of `path`; None serves everyone."""
        return cls(None if path is None else read_key_file(Path(path)))

    def reload(self, path: str | None) -> None:
        """Read the keys of `path` anew; the old ones stay where that raises (config.key_file.read_keys)."""
        self._digests = None if path is None else [_digest(key) for key in read_key_file(Path(path))]

    @contextmanager
    def one_time_key(self) -> Iterator[str]:
        """Yield a key that is accepted, and recognised by `is_self_test`, until the block is left."""
        key = secrets.token_urlsafe(32)
        self._one_time = _digest(key)
        try:
            yield key
        finally:
            self._one_time = None

    def is_self_test(self, header: str | None) -> bool:
        """Whether `header` carries the one-time key of this process."""
        key = _bearer(header)
        return key is not None and self._one_time is not None and hmac.compare_digest(_digest(key), self._one_time)

    def check(self, path: str, header: str | None) -> None:
        """Raise AuthenticationFailed unless `path` is open or `header` carries a key. Unknown paths need one, too."""
        if self._digests is None or path in OPEN_PATHS or self.is_self_test(header):
            return
        key = _bearer(header)
        if key is None:
            raise AuthenticationFailed(
                "no API key; send `Authorization: Bearer KEY`", openai_code="invalid_api_key", reason="missing"
            )
        digest = _digest(key)
        # All digests are compared, so the time tells nothing of which one came close.
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        if not any(matches):
            raise AuthenticationFailed("this API key is not known", openai_code="invalid_api_key", reason="wrong")


def _bearer(header: str | None) -> str | None:
    scheme, _, key = (header or "").strip().partition(" ")
    key = key.strip()
    return key if scheme.lower() == "bearer" and key else None


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
