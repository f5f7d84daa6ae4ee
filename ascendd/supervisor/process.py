"""ChildProcess: one running process of a child, its control link, and the ways to end it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Sequence

import msgspec

from ascendd.errors import PeerClosed
from ascendd.host.proc import signal_group
from ascendd.ipc.channel import AsyncChannel, socket_pair
from ascendd.ipc.messages import ControlMessage
from ascendd.ipc.stack_pipe import StackPipe
from ascendd.supervisor.spec import ChildSpec


class ChildProcess:
    """
    A process started from a ChildSpec, leader of its own group.

    `run` is unique per start, so that a late message of a dead process is told from one of its successor. `status` is
    set once it was reaped, negative for a signal; `hung` once the health monitor gave it up, `restart_asked` once
    people ordered another one in its place.
    """

    def __init__(self, spec: ChildSpec, run: int, listener: socket.socket | None, log_reader: int | None) -> None:
        ours, theirs = socket_pair()
        self.stacks = StackPipe()
        argv = [*spec.argv, "--control-fd", str(theirs.fileno()), "--stack-fd", str(self.stacks.writer)]
        pass_fds = [theirs.fileno(), self.stacks.writer]
        if spec.listener is not None and listener is not None:
            argv += ["--listen-fd", str(listener.fileno())]
            pass_fds.append(listener.fileno())
        if spec.reads_log and log_reader is not None:
            argv += ["--data-fd", str(log_reader)]
            pass_fds.append(log_reader)
        try:
            # Its own group: workers of the engine end with it; a Ctrl-C in the terminal reaches the supervisor only.
            self._popen = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, pass_fds=pass_fds, env=dict(spec.env), start_new_session=True
            )
        except OSError:
            ours.close()
            self.stacks.close()
            raise
        finally:
            theirs.close()
        self.stacks.given()
        self.spec = spec
        self.run = run
        self.pid = self._popen.pid
        self.hung = False
        self.restart_asked = False
        self.status: int | None = None
        self.link_closed = False
        self.end_reported = False
        self.channel: AsyncChannel[ControlMessage] = AsyncChannel(ours, ControlMessage)
        if spec.nice:
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, self.pid, spec.nice)

    def poll(self) -> int | None:
        """Return the exit status, negative for a signal, or None while it runs."""
        return self._popen.poll()

    def send(self, message: msgspec.Struct, fds: Sequence[int] = ()) -> bool:
        """Queue `message`; False where the link is gone, which the exit will tell, too."""
        try:
            self.channel.send(message, fds)
        except PeerClosed:
            return False
        return True

    def signal(self, number: signal.Signals) -> None:
        """Send `number` to the process alone."""
        with contextlib.suppress(ProcessLookupError):
            self._popen.send_signal(number)

    def kill_group(self) -> None:
        """Send SIGKILL to the process and everything that it started in its group."""
        signal_group(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """Close the control link; a living child takes that as the death of the supervisor and leaves."""
        self.channel.close()
        self.stacks.close()
