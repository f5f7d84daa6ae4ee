"""Where a kept vLLM listens: a socket in a folder of its own, or a loopback port with a key nobody else knows."""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import socket
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

_PREFIX = "vllm-"
# sockaddr_un holds no longer path (unix(7)).
_MAX_PATH_BYTES = 107


@dataclass(frozen=True)
class Address:
    """`path` of a Unix socket, or a loopback `port`; `key` guards the port, which every user of the host can reach."""

    path: str = ""
    port: int = 0
    key: str = field(default="", repr=False)

    @property
    def url(self) -> str:
        """What the API is told: `unix:PATH` or `http://127.0.0.1:PORT`."""
        return f"unix:{self.path}" if self.path else f"http://127.0.0.1:{self.port}"

    def remove(self) -> None:
        """Remove the folder of the socket."""
        if self.path:
            shutil.rmtree(Path(self.path).parent, ignore_errors=True)


def new_address(listen: str, instance: str, environ: Mapping[str, str]) -> Address:
    """
    Return an address that no earlier vLLM had, so that nothing late can be taken for the new one.

    Folders that a killed keeper of this instance left are removed.
    """
    if listen == "loopback":
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return Address(port=probe.getsockname()[1], key=secrets.token_urlsafe(32))
    parent = Path(environ.get("RUNTIME_DIRECTORY", "").split(":")[0] or tempfile.gettempdir())
    # Short, since the path is, and of one length, so that no instance takes the folder of another for its own.
    prefix = f"{_PREFIX}{hashlib.sha256(instance.encode()).hexdigest()[:12]}-"
    for stale in parent.glob(f"{prefix}*"):
        if stale.is_dir() and stale.stat().st_uid == os.getuid():
            shutil.rmtree(stale, ignore_errors=True)
    path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent)) / "s"
    if len(os.fsencode(path)) > _MAX_PATH_BYTES:
        path.parent.rmdir()
        path = Path(tempfile.mkdtemp(prefix=prefix, dir="/tmp")) / "s"
    return Address(path=str(path))
