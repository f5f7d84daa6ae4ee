"""The API key of verbs that are clients: from a file or a variable that the user names, never from the command line."""

from __future__ import annotations

import os
from pathlib import Path

from ascendd.errors import UsageError


def read_key(file: Path | None, variable: str | None) -> str | None:
    """Return the key in the first line of `file`, or in the environment variable `variable`. Raises UsageError."""
    if file is not None and variable is not None:
        raise UsageError("--api-key-file and --api-key-env exclude each other")
    if variable is not None:
        key = os.environ.get(variable, "").strip()
        if not key:
            raise UsageError(f"--api-key-env {variable}: this variable is not set")
    elif file is not None:
        try:
            lines = file.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"--api-key-file {file} cannot be read: {error}") from None
        key = next((text for line in lines if (text := line.split("#", 1)[0].strip())), "")
        if not key:
            raise UsageError(f"--api-key-file {file} holds no key; write it in a line of its own")
    else:
        return None
    if not key.isprintable() or not key.isascii() or " " in key:
        raise UsageError("the API key has characters that no header can carry")
    return key
