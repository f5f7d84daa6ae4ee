"""The file that listen.api_key_file names: one key a line, `#` starts a comment."""

from __future__ import annotations

from pathlib import Path

from ascendd.errors import ConfigError, PermissionMissing


def read_keys(path: Path) -> list[str]:
    """
    Return the keys of `path` in their order.

    Raises ConfigError for a file that is missing or holds no key, PermissionMissing for one that cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(
            f"listen.api_key_file: {path} does not exist",
            remedy="Create it with mode 0600, one key a line, or remove listen.api_key_file to serve without keys.",
            path=str(path),
        ) from None
    except UnicodeDecodeError:
        raise ConfigError(f"listen.api_key_file: {path} is not UTF-8 text", path=str(path)) from None
    except OSError as error:
        raise PermissionMissing(
            f"listen.api_key_file: {path} cannot be read: {error.strerror}", path=str(path)
        ) from error
    lines = (line.split("#", 1)[0].strip() for line in text.splitlines())
    keys = [line for line in lines if line]
    if not keys:
        raise ConfigError(
            f"listen.api_key_file: {path} holds no key",
            remedy="Write one key a line, or remove listen.api_key_file to serve without keys.",
            path=str(path),
        )
    return keys
