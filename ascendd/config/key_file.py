"""Reading and changing the file that listen.api_key_file names (config.credentials has its form)."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from ascendd.config.credentials import Credential, parse_line
from ascendd.errors import ConfigError, PermissionMissing


def read_credentials(path: Path) -> list[Credential]:
    """
    Return the keys of `path` in their order.

    Raises ConfigError for a file that is missing, broken or holds no key, PermissionMissing where it cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(
            f"listen.api_key_file: {path} does not exist",
            remedy="Make it with `ascendd key add NAME --file PATH`, or remove listen.api_key_file to serve all.",
            path=str(path),
        ) from None
    except UnicodeDecodeError:
        raise ConfigError(f"listen.api_key_file: {path} is not UTF-8 text", path=str(path)) from None
    except OSError as error:
        raise PermissionMissing(
            f"listen.api_key_file: {path} cannot be read: {error.strerror}", path=str(path)
        ) from error
    found: dict[str, Credential] = {}
    for number, line in enumerate(text.splitlines(), 1):
        try:
            credential = parse_line(line, number)
            if credential is not None and credential.name in found:
                raise ValueError(f"the name {credential.name} is there twice")
        except ValueError as error:
            raise ConfigError(f"listen.api_key_file: {path}, line {number}: {error}", path=str(path)) from None
        if credential is not None:
            found[credential.name] = credential
    if not found:
        raise ConfigError(
            f"listen.api_key_file: {path} holds no key",
            remedy="Add one with `ascendd key add NAME --file PATH`, or remove listen.api_key_file to serve all.",
            path=str(path),
        )
    return list(found.values())


def rewrite(path: Path, text: str) -> None:
    """Put `text` in place of what `path` holds, whole or not at all, with its owner and mode; a new file gets 0600."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            facts = path.stat()
            os.chown(name, facts.st_uid, facts.st_gid)
            Path(name).chmod(facts.st_mode & 0o777)
        Path(name).replace(path)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise
