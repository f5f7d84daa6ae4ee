"""Who asks the gateway, and the key it asks an instance with. Only digests of clients' keys stay in memory."""

from __future__ import annotations

import hmac
from pathlib import Path

from ascendd.config.credentials import Credential, digest_of
from ascendd.config.key_file import read_credentials
from ascendd.errors import ActionForbidden, AuthenticationFailed, ConfigError


class NamedKeys:
    """Tells the name of the key that a request carries; without a file everybody is served, under no name."""

    def __init__(self, path: str | None) -> None:
        """Read `path` (config.credentials has its form). Raises ConfigError or PermissionMissing."""
        self._credentials: list[Credential] | None = None if path is None else read_credentials(Path(path))

    def name_of(self, header: str | None) -> str:
        """Return the name of the key in an Authorization header. Raises AuthenticationFailed or ActionForbidden."""
        if self._credentials is None:
            return ""
        scheme, _, key = (header or "").strip().partition(" ")
        if scheme.lower() != "bearer" or not key.strip():
            raise AuthenticationFailed("no API key; send `Authorization: Bearer KEY`", openai_code="invalid_api_key")
        digest = digest_of(key.strip())
        # All are compared, so the time tells nothing of which one came close.
        found = [known for known in self._credentials if hmac.compare_digest(known.digest, digest)]
        if not found:
            raise AuthenticationFailed("this API key is not known", openai_code="invalid_api_key")
        if "infer" not in found[0].scopes:
            raise ActionForbidden(
                "this API key has no scope `infer`",
                remedy="Use a key that has the scope, or have one made with `ascendd key add`.",
                openai_code="insufficient_scope",
            )
        return found[0].name


def upstream_key(path: Path) -> str:
    """
    Return the key in clear that the first line of `path` with one has, to ask an instance with.

    Raises ConfigError where the file has none (a hash cannot be sent), or what config.key_file.read_credentials raises.
    """
    read_credentials(path)  # its errors name the rule
    for line in path.read_text(encoding="utf-8").splitlines():
        words = line.split("#", 1)[0].split()
        if words and not words[0].startswith("sha256:"):
            return words[0]
    raise ConfigError(
        f"{path} holds hashes only; the gateway has to send the key itself",
        remedy="Write the key that `ascendd key add` printed for the gateway into a file of its own, alone on a line.",
        path=str(path),
    )
