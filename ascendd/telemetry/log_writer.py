"""
The `_logwriter` role: the only owner of `log.file`.

Every process of the instance writes to one pipe, whose two ends the supervisor keeps: what is written while this
process is being restarted waits in the pipe. Only whole lines reach the file, and a rotation happens between lines.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from ascendd.config.quantity import parse_bytes
from ascendd.errors import HostError, PeerClosed
from ascendd.ipc.channel import BlockingChannel
from ascendd.ipc.child import ChildArguments, receive_config, run_role
from ascendd.ipc.messages import ControlMessage, Heartbeat, InjectFault, Ready, Role, Shutdown, Stats
from ascendd.telemetry.drill_log import DrillLog
from ascendd.telemetry.metrics import LOG_METRICS, MetricStore
from ascendd.telemetry.rotating_log import RotatingLog

_READ_BYTES = 64 * 1024
_HEARTBEAT_S = 1.0
# A writer that never ends its line must not make this process grow.
MAX_LINE_BYTES = 1024 * 1024


class LineSplitter:
    """Bytes as they come -> whole lines, without their ends. Pure."""

    def __init__(self, max_line_bytes: int = MAX_LINE_BYTES) -> None:
        self._partial = b""
        self._max = max_line_bytes

    def feed(self, data: bytes) -> list[bytes]:
        """Add `data` and return the lines that are whole now; a line beyond the limit is cut into pieces."""
        *lines, self._partial = (self._partial + data).split(b"\n")
        while len(self._partial) > self._max:
            lines.append(self._partial[: self._max])
            self._partial = self._partial[self._max :]
        return lines

    def rest(self) -> list[bytes]:
        """Return what is left without a line end, at the end of everything."""
        rest, self._partial = self._partial, b""
        return [rest] if rest else []


def main(argv: Sequence[str]) -> int:
    """Run the log writer; it ends with the control link, after writing what is in the pipe."""
    return run_role(Role.LOGWRITER, argv, _write)


def _write(arguments: ChildArguments, channel: BlockingChannel[ControlMessage]) -> int:
    reopen = _ReopenFlag()
    config, _episode = receive_config(channel, Role.LOGWRITER)
    if arguments.data_fd is None or config.log.file is None:
        raise HostError("the log writer was started without a pipe or without log.file")
    os.set_inheritable(arguments.data_fd, False)
    target = (DrillLog if config.recovery.drills else RotatingLog)(
        Path(config.log.file),
        parse_bytes(config.log.max_bytes),
        config.log.backups,
        max_age_s=config.log.max_age_s,
        compress=config.log.compress,
    )
    splitter = LineSplitter()
    try:
        channel.send(Ready({"file": config.log.file}))
        _copy_until_told(arguments.data_fd, channel, reopen, splitter, target)
    except PeerClosed:
        pass
    while select.select([arguments.data_fd], [], [], 0)[0]:
        data = os.read(arguments.data_fd, _READ_BYTES)
        if not data:
            break
        _write_lines(splitter.feed(data), target)
    _write_lines(splitter.rest(), target)
    target.close()
    target.settle()
    return 0


def _copy_until_told(
    fd: int,
    channel: BlockingChannel[ControlMessage],
    reopen: _ReopenFlag,
    splitter: LineSplitter,
    target: RotatingLog,
) -> None:
    """Copy lines until Shutdown, or until nobody can write to the pipe any more. Raises PeerClosed."""
    due_s = time.monotonic()
    metrics = MetricStore(LOG_METRICS)
    num_told = 0
    while True:
        now_s = time.monotonic()
        if now_s >= due_s:
            metrics.inc("ascendd_log_lines_dropped_total", target.num_lost - num_told)
            num_told = target.num_lost
            channel.send(Heartbeat(num_waiting=target.num_dropped))
            channel.send(Stats(metrics.samples()))
            due_s = now_s + _HEARTBEAT_S
        # Before waiting: what came along with the configuration is in the channel already, not in its socket.
        for message in channel.drain():
            if isinstance(message, Shutdown):
                return
            if isinstance(message, InjectFault) and isinstance(target, DrillLog):
                target.take(message)
        readable = select.select([fd, channel.fileno(), reopen.fd], [], [], max(0.0, due_s - now_s))[0]
        if reopen.fd in readable and reopen.take():
            target.reopen()
        if fd in readable:
            data = os.read(fd, _READ_BYTES)
            if not data:
                return
            _write_lines(splitter.feed(data), target)


def _write_lines(lines: list[bytes], target: RotatingLog) -> None:
    for line in lines:
        target.write(line)


class _ReopenFlag:
    """SIGHUP as something that select can wait for."""

    def __init__(self) -> None:
        self.fd, self._write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGHUP, lambda *_: None)
        signal.set_wakeup_fd(self._write_fd, warn_on_full_buffer=False)

    def take(self) -> bool:
        try:
            return signal.SIGHUP in os.read(self.fd, 512)
        except BlockingIOError:
            return False
