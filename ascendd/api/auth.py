"""
Who may ask, and for what: keys from the file that listen.api_key_file names (config.credentials has its form).

Only SHA-256 digests stay in memory, so no key can get into a log, a traceback or a core file's strings by our doing.
"""

from __future__ import annotations

import hmac
import re
import secrets
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ascendd.config.credentials import Credential, digest_of
from ascendd.config.key_file import read_credentials
from ascendd.errors import ActionForbidden, AuthenticationFailed
from ascendd.telemetry.log import get_logger

# Open on purpose: probes of orchestrators carry no keys, and these answers carry no names.
OPEN_PATHS = frozenset({"/livez", "/readyz", "/health"})
# The status page without its figures: a browser has no key to send yet.
PAGE_PATHS = frozenset({"/status", "/status/"})
PAGE_ASSETS = re.compile(r"/status/[a-z]+\.(?:css|js|svg)")
# What changes the instance, and what tells of everybody's requests; all other paths need the scope infer.
SCOPE_OF_PATH = {
    "/v1/load_lora_adapter": "admin", "/v1/unload_lora_adapter": "admin", "/status/events": "admin",
    "/metrics": "metrics",
}  # fmt: skip


def read_key_file(path: Path) -> list[Credential]:
    """Return the keys of `path` (config.key_file.read_credentials); others who may open it are told of in the log."""
    keys = read_credentials(path)
    mode = path.stat().st_mode
    if mode & stat.S_IRWXO:
        get_logger("api").warning(
            "api.key_file_exposed", path=str(path), mode=f"{stat.S_IMODE(mode):04o}", remedy=f"chmod 0600 {path}"
        )
    return keys


class Authenticator:
    """Decides from the Authorization header alone, before a byte of the body is read."""

    def __init__(self, credentials: list[Credential] | None) -> None:
        self._credentials = credentials
        self._one_time: bytes | None = None

    @classmethod
    def from_file(cls, path: str | None) -> Authenticator:
        """Read the keys of `path`; None serves everyone."""
        return cls(None if path is None else read_key_file(Path(path)))

    def reload(self, path: str | None) -> None:
        """Read the keys of `path` anew; the old ones stay where that raises (config.key_file.read_credentials)."""
        self._credentials = None if path is None else read_key_file(Path(path))

    @property
    def has_keys(self) -> bool:
        """Whether anybody is asked for a key."""
        return self._credentials is not None

    @contextmanager
    def one_time_key(self) -> Iterator[str]:
        """Yield a key that is accepted, and recognised by `is_self_test`, until the block is left."""
        key = secrets.token_urlsafe(32)
        self._one_time = digest_of(key)
        try:
            yield key
        finally:
            self._one_time = None

    def is_self_test(self, header: str | None) -> bool:
        """Whether `header` carries the one-time key of this process."""
        key = _bearer(header)
        return key is not None and self._one_time is not None and hmac.compare_digest(digest_of(key), self._one_time)

    def check(self, path: str, header: str | None) -> Credential | None:
        """
        Return whose key `header` carries; None where nobody is asked for one. Unknown paths need one, too.

        Raises AuthenticationFailed, or ActionForbidden for a key without the scope that `path` needs.
        """
        if self._credentials is None or is_open(path) or self.is_self_test(header):
            return None
        return find_credential(self._credentials, path, header)


def find_credential(credentials: Sequence[Credential], path: str, header: str | None) -> Credential:
    """
    Return the one of `credentials` whose key an Authorization `header` carries.

    Raises AuthenticationFailed, or ActionForbidden for a key without the scope that `path` needs.
    """
    key = _bearer(header)
    if key is None:
        raise AuthenticationFailed(
            "no API key; send `Authorization: Bearer KEY`", openai_code="invalid_api_key", reason="missing"
        )
    digest = digest_of(key)
    # All digests are compared, so the time tells nothing of which one came close.
    found = [known for known in credentials if hmac.compare_digest(digest, known.digest)]
    if not found:
        raise AuthenticationFailed("this API key is not known", openai_code="invalid_api_key", reason="wrong")
    scope = SCOPE_OF_PATH.get(path, "infer")
    if scope not in found[0].scopes:
        raise ActionForbidden(
            f"this API key has no scope `{scope}`, which {path[:64]} needs",
            remedy="Use a key that has the scope, or have one made with `ascendd key add`.",
            openai_code="insufficient_scope",
        )
    return found[0]


def is_open(path: str) -> bool:
    """Whether `path` is answered without a key."""
    return path in OPEN_PATHS or path in PAGE_PATHS or PAGE_ASSETS.fullmatch(path) is not None


def _bearer(header: str | None) -> str | None:
    scheme, _, key = (header or "").strip().partition(" ")
    key = key.strip()
    return key if scheme.lower() == "bearer" and key else None
