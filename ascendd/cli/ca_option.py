"""Whom a verb that is a client trusts: the host's authorities, or those of a file for servers with a private one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ascendd.errors import UsageError

if TYPE_CHECKING:
    import ssl


def trust(file: Path | None) -> ssl.SSLContext | None:
    """Return a client's context that trusts the certificates of `file` alone; None without. Raises UsageError."""
    if file is None:
        return None
    import ssl

    try:
        return ssl.create_default_context(cafile=file)
    except (OSError, ssl.SSLError) as error:  # an SSLError is an OSError, whose strerror says little
        reason = error.reason if isinstance(error, ssl.SSLError) else error.strerror
        raise UsageError(f"--ca-file {file} cannot be used: {reason}; name a PEM file with certificates") from None
