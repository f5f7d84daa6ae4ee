"""Listeners: taken from systemd by name, or bound here. The supervisor keeps them open for as long as it lives."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket

from ascendd.errors import ListenFailed, PermissionMissing
from ascendd.host.proc import port_holder

# Connections that wait while the API is being restarted.
BACKLOG = 1024


def open_listener(name: str, host: str, port: int, inherited: dict[str, int]) -> socket.socket:
    """
    Return a listening TCP socket for `host`:`port`, or the one that systemd passed as `name`.

    Raises ListenFailed with the address and, where it can be seen, the process that has it.
    """
    if name in inherited:
        return _adopt(name, inherited[name])
    address = "127.0.0.1" if host == "localhost" else host
    is_v6 = ipaddress.ip_address(address).version == 6
    listener = socket.socket(socket.AF_INET6 if is_v6 else socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise _explain(name, host, port, error) from error
    listener.setblocking(False)
    return listener


def address_of(listener: socket.socket) -> str:
    """Return `host:port` as it is bound, so that port 0 shows the one that was taken."""
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def differing_port(listener: socket.socket, port: int) -> str | None:
    """Return how the listener that systemd passed differs from `port` of the instance file, None where it does not."""
    bound = int(listener.getsockname()[1])
    if port in (0, bound):
        return None
    return f"systemd listens on {address_of(listener)} (ListenStream= of the socket unit), listen.port is {port}"


def _adopt(name: str, fd: int) -> socket.socket:
    os.set_inheritable(fd, False)
    listener = socket.socket(fileno=fd)
    if listener.type != socket.SOCK_STREAM or not listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        listener.detach()
        raise ListenFailed(f"descriptor {fd}, passed by systemd as {name}, is not a listening stream socket", name=name)
    listener.setblocking(False)
    return listener


def _explain(name: str, host: str, port: int, error: OSError) -> ListenFailed | PermissionMissing:
    where = f"{name} cannot listen on {host}:{port}"
    if error.errno == errno.EADDRINUSE:
        holder = port_holder(port)
        return ListenFailed(
            f"{where}: {f'{holder} has it' if holder else 'another process has it'}", host=host, port=port
        )
    if error.errno == errno.EACCES:
        return PermissionMissing(
            f"{where}: ports below 1024 need a privilege",
            remedy="Choose a port above 1023, or add AmbientCapabilities=CAP_NET_BIND_SERVICE to the unit.",
            host=host,
            port=port,
        )
    return ListenFailed(f"{where}: {error.strerror}", host=host, port=port)
