"""What the gateway asks an instance with: the key in clear, and whom it trusts to be that instance."""

from __future__ import annotations

import ssl
from pathlib import Path

from ascendd.api.auth import find_credential, read_key_file
from ascendd.config.credentials import Credential
from ascendd.config.key_file import read_credentials
from ascendd.errors import ConfigError
from ascendd.gateway.schema import InstanceEntry


class NamedKeys:
    """Tells whose key a request carries; without a file everybody is served, under no name."""

    def __init__(self, path: str | None) -> None:
        """Read `path` (config.credentials has its form). Raises ConfigError or PermissionMissing."""
        self._credentials: list[Credential] | None = None if path is None else read_key_file(Path(path))

    def check(self, path: str, header: str | None) -> Credential | None:
        """Return the credential of an Authorization header, None without a file. Raises as api.auth.find_credential."""
        return None if self._credentials is None else find_credential(self._credentials, path, header)


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


def trusted(entry: InstanceEntry) -> ssl.SSLContext | bool:
    """Return whom aiohttp is to trust for `entry`; True: the authorities of the host. Raises ConfigError."""
    if entry.ca_file is None:
        return True
    try:
        return ssl.create_default_context(cafile=entry.ca_file)
    except OSError as error:
        reason = error.reason if isinstance(error, ssl.SSLError) else error.strerror
        raise ConfigError(
            f"instances: {entry.name}: ca_file {entry.ca_file} cannot be used: {reason}",
            remedy="Name a PEM file with the certificate of the authority, or the instance's own.",
            path=entry.ca_file,
        ) from None
