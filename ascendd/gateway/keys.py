"""Who asks the gateway: a file with one `KEY # NAME` a line. Only digests of keys stay in memory."""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path

from ascendd.config.key_file import read_keys
from ascendd.errors import AuthenticationFailed


class NamedKeys:
    """Tells the name of the key that a request carries; without a file everybody is served, under no name."""

    def __init__(self, path: str | None) -> None:
        """Read `path`. Raises ConfigError or PermissionMissing."""
        self._names: list[tuple[bytes, str]] | None = None
        if path is not None:
            read_keys(Path(path))  # its errors name the rule
            lines = Path(path).read_text(encoding="utf-8").splitlines()
            pairs = [line.partition("#") for line in lines]
            self._names = [(_digest(key.strip()), name.strip()) for key, _, name in pairs if key.strip()]

    def name_of(self, header: str | None) -> str:
        """Return the name of the key in an Authorization header. Raises AuthenticationFailed."""
        if self._names is None:
            return ""
        scheme, _, key = (header or "").strip().partition(" ")
        if scheme.lower() != "bearer" or not key.strip():
            raise AuthenticationFailed("no API key; send `Authorization: Bearer KEY`", openai_code="invalid_api_key")
        digest = _digest(key.strip())
        # All are compared, so the time tells nothing of which one came close.
        found = [name for known, name in self._names if hmac.compare_digest(known, digest)]
        if not found:
            raise AuthenticationFailed("this API key is not known", openai_code="invalid_api_key")
        return found[0]


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
