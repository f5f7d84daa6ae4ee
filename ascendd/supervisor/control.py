"""
ControlSocket: the unix socket on which operators ask and order. One JSON object a line in, one out.

    {"verb": "status"}   ->   {"ok": true, ...}   or   {"ok": false, "code": ..., "error": ..., "remedy": ...}

The socket has mode 0660; besides, the kernel's word on the peer counts: root, the daemon's own user, or its group.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import json
import os
import socket
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ascendd.config.schema import InstanceConfig
from ascendd.errors import AscenddError, HostError, PermissionMissing
from ascendd.telemetry import log

_MODE = 0o660
# One request is a verb and a word or two.
_MAX_LINE_BYTES = 4096
_IDLE_S = 10.0
_CREDENTIALS = struct.Struct("3i")
# include/uapi/asm-generic/socket.h of Linux; Python has no name for it.
_SO_PEERGROUPS = 59
_MAX_GROUPS = 65_536

Answer = Callable[[Mapping[str, Any]], Mapping[str, Any]]


@dataclass(frozen=True)
class Control:
    """How people reach an instance: the socket (None: without), how its file is read anew, what the doctor said."""

    path: Path | None = None
    load: Callable[[], InstanceConfig] | None = None
    doctor: Mapping[str, Any] | None = None
    # Where incident bundles go; None writes none.
    incidents: Path | None = None


class ControlSocket:
    """Listens at `path` and lets `answer` reply; what that raises as AscenddError is told as its code and remedy."""

    def __init__(self, path: Path, answer: Answer) -> None:
        self._path = path
        self._answer = answer
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        """Bind and listen. Raises HostError where that is not possible or another process listens there."""
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            owner = self._path.parent.stat().st_uid
            if owner != os.geteuid():
                raise PermissionMissing(f"{self._path.parent} belongs to user {owner}", path=str(self._path.parent))
            _remove_stale(self._path)
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            mask = os.umask(0o777 & ~_MODE)
            try:
                sock.bind(str(self._path))
            finally:
                os.umask(mask)
            self._server = await asyncio.start_unix_server(self._serve, sock=sock, limit=_MAX_LINE_BYTES)
        except OSError as error:
            raise HostError(f"the control socket {self._path} cannot be opened: {error}") from error

    def close(self) -> None:
        """Stop listening and take the path away."""
        if self._server is not None:
            self._server.close()
            self._server = None
            with contextlib.suppress(OSError):
                self._path.unlink()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            reply = self._refusal(writer.get_extra_info("socket"))
            while True:
                line = await asyncio.wait_for(reader.readline(), _IDLE_S)
                if not line:
                    return
                writer.write(json.dumps(reply or self._reply(line)).encode() + b"\n")
                await writer.drain()
        except (OSError, ValueError, asyncio.TimeoutError, TimeoutError):
            return
        finally:
            writer.close()

    def _refusal(self, sock: socket.socket) -> dict[str, Any] | None:
        pid, uid, gid = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
        if uid in (0, os.geteuid()) or os.getegid() in {gid, *_groups_of(sock)}:
            return None
        log.get_logger("supervisor").warning("control.refused", peer_pid=pid, peer_uid=uid)
        error = PermissionMissing(
            f"user {uid} may not control this instance",
            remedy=f"Ask as root, as user {os.geteuid()} or as a member of group {os.getegid()}.",
        )
        return _failure(error)

    def _reply(self, line: bytes) -> dict[str, Any]:
        try:
            request = json.loads(line)
            if not isinstance(request, dict):
                raise HostError('a control request is a JSON object such as {"verb": "status"}')
            return {"ok": True, **self._answer(request)}
        except AscenddError as error:
            return _failure(error)
        except (ValueError, RecursionError):
            return _failure(HostError("a control request is one line of JSON"))


def _failure(error: AscenddError) -> dict[str, Any]:
    return {"ok": False, "code": error.code, "error": error.message, "remedy": error.remedy}


def _groups_of(sock: socket.socket) -> set[int]:
    groups = array.array("I")
    with contextlib.suppress(OSError):
        groups.frombytes(sock.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, 4 * _MAX_GROUPS))
    return set(groups)


def _remove_stale(path: Path) -> None:
    """Take away a socket that nobody listens on. Raises HostError where somebody does."""
    if not path.exists():
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
    raise HostError(f"another process listens on {path}: an instance of this name runs already")
