"""The daemon's side of systemd: notify states through sdnotify, inherited listeners, the watchdog interval."""

from __future__ import annotations

import os
from collections.abc import MutableMapping

import sdnotify

_FIRST_FD = 3
# Of this process only; a child that kept them could speak for the unit.
ENVIRONMENT = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES")


class Notifier:
    """sd_notify(3) states; without systemd every call does nothing."""

    def __init__(self) -> None:
        # sdnotify leaks a socket where it finds no manager, so it is not even asked then.
        self._notifier = sdnotify.SystemdNotifier() if os.environ.get("NOTIFY_SOCKET") else None
        self._status = ""

    def close(self) -> None:
        """Close the link to the manager."""
        if self._notifier is not None and self._notifier.socket is not None:
            self._notifier.socket.close()
        self._notifier = None

    def ready(self) -> None:
        """READY=1: the unit is active."""
        self._notify("READY=1")

    def stopping(self) -> None:
        """STOPPING=1: the unit is being deactivated."""
        self._notify("STOPPING=1")

    def watchdog(self) -> None:
        """WATCHDOG=1: alive."""
        self._notify("WATCHDOG=1")

    def status(self, text: str) -> None:
        """STATUS=: one line for `systemctl status`; the same text twice is sent once."""
        if text != self._status:
            self._status = text
            self._notify("STATUS=" + " ".join(text.split()))

    def _notify(self, state: str) -> None:
        if self._notifier is not None:
            self._notifier.notify(state)

    def extend_timeout(self, seconds: float) -> None:
        """EXTEND_TIMEOUT_USEC: starting or stopping may take `seconds` more from now."""
        self._notify(f"EXTEND_TIMEOUT_USEC={int(seconds * 1e6)}")


def listen_fds(environ: MutableMapping[str, str] | None = None) -> dict[str, int]:
    """Return the listeners that systemd passed, by FileDescriptorName=; of equal names the first."""
    env = os.environ if environ is None else environ
    if env.get("LISTEN_PID") != str(os.getpid()):
        return {}
    try:
        count = int(env.get("LISTEN_FDS", "0"))
    except ValueError:
        return {}
    names = env.get("LISTEN_FDNAMES", "").split(":")
    found: dict[str, int] = {}
    for index in range(count):
        name = names[index] if index < len(names) and names[index] else "unknown"
        found.setdefault(name, _FIRST_FD + index)
    return found


def watchdog_interval_s(environ: MutableMapping[str, str] | None = None) -> float | None:
    """Return WatchdogSec= of the unit in seconds, or None where it is off or meant for another process."""
    env = os.environ if environ is None else environ
    if env.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    try:
        usec = int(env.get("WATCHDOG_USEC", "0"))
    except ValueError:
        return None
    return usec / 1e6 if usec > 0 else None
