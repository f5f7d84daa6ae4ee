"""ControlClient: asks a running instance over its control socket."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ascendd.errors import HostError, PermissionMissing, UsageError, error_by_code
from ascendd.ipc.control_path import instances, sockets_to_try

_TIMEOUT_S = 10.0


def ask(instance: str, request: dict[str, Any]) -> dict[str, Any]:
    """
    Return the answer of `instance` to `request`.

    Raises HostError where it does not run, PermissionMissing where this user may not ask, or the error that it told.
    """
    if not instance or "/" in instance or instance.startswith("."):
        raise UsageError(f"{instance!r} is not the name of an instance", remedy="`ascendd status` lists them.")
    paths = sockets_to_try(instance, os.environ)
    for path in paths:
        reply = ask_at(path, request)
        if reply is not None:
            return reply
    tried = " and ".join(str(path) for path in paths)
    raise HostError(
        f"the instance {instance} does not run: nobody listens on {tried}",
        remedy=f"Start it with `systemctl start ascendd@{instance}`, or see `systemctl status ascendd@{instance}`.",
    )


def order(
    instance: str, request: dict[str, Any], text: Callable[[dict[str, Any]], str], *, as_json: bool = False
) -> None:
    """Ask and print the answer, for people as `text` says. Raises as `ask` does."""
    reply = ask(instance, request)
    print(json.dumps(reply) if as_json else text(reply))


def ask_at(path: Path, request: dict[str, Any]) -> dict[str, Any] | None:
    """Return the answer from the socket at `path`, None where nobody listens. Raises as `ask` does."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(_TIMEOUT_S)
            sock.connect(str(path))
            sock.sendall(json.dumps(request).encode() + b"\n")
            with sock.makefile("rb") as file:
                line = file.readline()
    except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError):
        return None
    except PermissionError as error:
        raise PermissionMissing(
            f"{path}: this user may not ask",
            remedy="Ask as root (sudo) or as a member of the service's group.",
        ) from error
    except OSError as error:
        raise HostError(f"{path} gives no answer: {error}", remedy="See `journalctl -u ascendd@INSTANCE`.") from error
    try:
        reply = json.loads(line)
    except ValueError:
        raise HostError(f"{path} ended without an answer", remedy="Ask again; the daemon may be ending.") from None
    if not reply.pop("ok"):
        raise error_by_code(reply["code"])(reply["error"], remedy=reply["remedy"] or None)
    answer: dict[str, Any] = reply
    return answer


def ask_all(request: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the answers of every instance that runs and that this user may ask."""
    replies = []
    for path in instances(os.environ).values():
        reply = ask_at(path, request)
        if reply is not None:
            replies.append(reply)
    return replies
