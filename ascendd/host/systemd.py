"""The daemon's side of systemd: notify states through sdnotify, inherited listeners, the watchdog interval."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Mapping, MutableMapping
from pathlib import Path
from typing import Any

import sdnotify

_FIRST_FD = 3
# The manager writes each status to all who watch the unit; one a second is what people can read.
PROGRESS_EVERY_S = 1.0
# Of this process only; a child that kept them could speak for the unit.
ENVIRONMENT = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES")


class Notifier:
    """
    sd_notify(3) states; without systemd every call does nothing.

    No call waits: a manager that does not read (it is being re-executed, or hangs) must not stop the daemon. What does
    not fit its queue is sent with a later call, except for states that the next one of their kind replaces.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._status_at_s = -math.inf
        self._progress: str | None = None
        self._notifier: Any = None
        self._status = ""
        self._owed: list[str] = []
        # sdnotify leaks a socket where it finds no manager, so it is not even asked then.
        if os.environ.get("NOTIFY_SOCKET"):
            with contextlib.suppress(OSError):
                self._notifier = sdnotify.SystemdNotifier(debug=True)
                self._notifier.socket.setblocking(False)

    def close(self) -> None:
        """Close the link to the manager."""
        if self._notifier is not None:
            self._notifier.socket.close()
        self._notifier = None

    def ready(self) -> None:
        """READY=1: the unit is active."""
        self._owed.append("READY=1")
        self.settle()

    def reloading(self, *, is_ready: bool) -> None:
        """RELOADING=1 with the time at which it began; `ready` ends it. Nothing while the unit is not active yet."""
        if is_ready:
            # CLOCK_MONOTONIC, which tells systemd that a READY=1 after it belongs to this reload (sd_notify(3)).
            self._owed.append(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")
            self.settle()

    def stopping(self) -> None:
        """STOPPING=1: the unit is being deactivated."""
        self._owed.append("STOPPING=1")
        self.settle()

    def watchdog(self) -> None:
        """WATCHDOG=1: alive."""
        self.settle()
        self._send("WATCHDOG=1")

    def status(self, text: str) -> None:
        """STATUS=: one line for `systemctl status`; the same text twice is sent once."""
        self._progress = None
        if text != self._status:
            self._status = text
            self._status_at_s = self._clock()
            self._owed = [state for state in self._owed if not state.startswith("STATUS=")]
            self._owed.append("STATUS=" + " ".join(text.split()))
        self.settle()

    def progress(self, text: str) -> None:
        """STATUS= for a text that counts on, such as a percentage: once in PROGRESS_EVERY_S, the last one always."""
        self._progress = text
        self.settle()

    def extend_timeout(self, seconds: float) -> None:
        """EXTEND_TIMEOUT_USEC: starting or stopping may take `seconds` more from now."""
        self.settle()
        self._send(f"EXTEND_TIMEOUT_USEC={int(seconds * 1e6)}")

    def settle(self) -> None:
        """Send what the manager had no room for earlier, and progress that is due."""
        if self._progress is not None and self._clock() - self._status_at_s >= PROGRESS_EVERY_S:
            self.status(self._progress)
            return
        while self._owed and self._send(self._owed[0]):
            del self._owed[0]

    def _send(self, state: str) -> bool:
        """Send one state; False where the manager's queue is full. A manager that is gone is told nothing."""
        if self._notifier is None:
            return True
        try:
            self._notifier.notify(state)
        except BlockingIOError:
            return False
        except OSError:
            return True
        return True


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


def credential(name: str, environ: Mapping[str, str]) -> Path | None:
    """Return the file of a credential that the unit loads (LoadCredential=), None where there is none."""
    folder = environ.get("CREDENTIALS_DIRECTORY")
    if not folder:
        return None
    path = Path(folder) / name
    return path if path.is_file() else None


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
