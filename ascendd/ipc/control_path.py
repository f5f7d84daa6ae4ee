"""Where the control socket and the incidents of an instance lie, for the supervisor and for the commands that ask."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

SOCKET_NAME = "control.sock"
_SYSTEM_DIR = Path("/run/ascendd")
_STATE_DIR = Path("/var/lib/ascendd")


def socket_to_bind(instance: str, environ: Mapping[str, str]) -> Path:
    """Return the path that the supervisor of `instance` binds: systemd's runtime folder, else one of the user's own."""
    if folder := environ.get("RUNTIME_DIRECTORY", "").split(":")[0]:
        return Path(folder) / SOCKET_NAME
    return _own_dir(environ) / instance / SOCKET_NAME


def sockets_to_try(instance: str, environ: Mapping[str, str]) -> list[Path]:
    """Return the paths at which `instance` may be found, in the order in which they are tried."""
    folders = [_SYSTEM_DIR, _own_dir(environ)]
    if runtime := environ.get("RUNTIME_DIRECTORY", "").split(":")[0]:
        return [Path(runtime) / SOCKET_NAME, *(folder / instance / SOCKET_NAME for folder in folders)]
    return [folder / instance / SOCKET_NAME for folder in folders]


def incidents_dir(instance: str, environ: Mapping[str, str]) -> Path:
    """Return where the supervisor of `instance` pins incidents: systemd's state folder, else one of the user's own."""
    if folder := environ.get("STATE_DIRECTORY", "").split(":")[0]:
        return Path(folder) / "incidents" / instance
    return _own_dir(environ) / instance / "incidents"


def all_incidents(environ: Mapping[str, str]) -> list[Path]:
    """Return the folders in which instances of this host, and of this user, pin incidents."""
    return [*sorted((_STATE_DIR / "incidents").glob("*")), *sorted(_own_dir(environ).glob("*/incidents"))]


def instances(environ: Mapping[str, str]) -> dict[str, Path]:
    """Return the instances that have a control socket, by name; whether somebody listens is for a call to find out."""
    found: dict[str, Path] = {}
    for folder in (_SYSTEM_DIR, _own_dir(environ)):
        for path in sorted(folder.glob(f"*/{SOCKET_NAME}")):
            found.setdefault(path.parent.name, path)
    return found


def _own_dir(environ: Mapping[str, str]) -> Path:
    if runtime := environ.get("XDG_RUNTIME_DIR"):
        return Path(runtime) / "ascendd"
    return Path(f"/tmp/ascendd-{os.getuid()}")  # noqa: S108 - made with mode 0700, and refused where it is another's
