"""ControlLink: the engine's thread that talks to the supervisor while steps run."""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import threading
import time
from collections.abc import Callable

import msgspec

from ascendd.config.schema import InstanceConfig
from ascendd.engine.progress import StepProgress
from ascendd.errors import PeerClosed
from ascendd.ipc.channel import BlockingChannel
from ascendd.ipc.messages import (
    AttachPeer,
    ControlMessage,
    InjectFault,
    Reconfigure,
    SetLimits,
    Shutdown,
    Stats,
)
from ascendd.ipc.rank_row import RankRow
from ascendd.telemetry.log import set_level
from ascendd.telemetry.metrics import MetricStore

HEARTBEAT_S = 1.0


class ControlLink(threading.Thread):
    """
    Sends heartbeat and stats once a second; takes new data links, limits and the order to end.

    A step may hold the main thread for seconds, so this cannot live there: a heartbeat that says "step 7 has run for
    90 s" is what tells a hang from a long prompt. `wake_fd` becomes readable when one of them came.
    """

    def __init__(self, channel: BlockingChannel[ControlMessage], progress: StepProgress) -> None:
        super().__init__(name="control-link", daemon=True)
        self._channel = channel
        self._progress = progress
        self.metrics: MetricStore | None = None
        # What tells of the ranks, once there are any.
        self.ranks: Callable[[], list[RankRow]] = list
        # What takes the orders of drills; without it they are ignored.
        self.on_drill: Callable[[InjectFault], None] | None = None
        self.links: queue.SimpleQueue[socket.socket] = queue.SimpleQueue()
        self.limits: queue.SimpleQueue[SetLimits] = queue.SimpleQueue()
        self.ending = threading.Event()
        self.wake_fd, self._wake_write = os.pipe()
        os.set_blocking(self.wake_fd, False)
        os.set_blocking(self._wake_write, False)

    def run(self) -> None:
        """Serve the link until the supervisor ends it."""
        try:
            due_s = time.monotonic() + HEARTBEAT_S
            while True:
                message = self._channel.recv(max(0.0, due_s - time.monotonic()))
                # Whatever came: orders that come once a second must not keep the heartbeat back.
                if time.monotonic() >= due_s:
                    self._report()
                    due_s = time.monotonic() + HEARTBEAT_S
                if isinstance(message, AttachPeer):
                    self.links.put(socket.socket(fileno=self._channel.take_fd()))
                    self.wake()
                elif isinstance(message, Reconfigure):
                    set_level(msgspec.json.decode(message.config_json, type=InstanceConfig).log.level)
                elif isinstance(message, SetLimits):
                    self.limits.put(message)
                    self.wake()
                elif isinstance(message, InjectFault):
                    if self.on_drill is not None:
                        self.on_drill(message)
                elif isinstance(message, Shutdown):
                    self.ending.set()
                    self.wake()
        except PeerClosed:
            # The supervisor is gone; whatever the main thread does now serves nobody, and it may be deep in a step.
            os._exit(0)

    def clear_wake(self) -> None:
        """Make `wake_fd` unreadable again."""
        try:
            while os.read(self.wake_fd, 4096):
                pass
        except BlockingIOError:
            pass

    def _report(self) -> None:
        self._channel.send(msgspec.structs.replace(self._progress.heartbeat(), ranks=self.ranks()))
        if self.metrics is not None:
            self._channel.send(Stats(self.metrics.samples()))

    def wake(self) -> None:
        """Make `wake_fd` readable; from any thread."""
        with contextlib.suppress(BlockingIOError):  # full, so readable already
            os.write(self._wake_write, b"x")
