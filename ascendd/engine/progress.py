"""StepProgress: what the control thread tells of the step thread. Written by one thread, read by another, no lock."""

from __future__ import annotations

import time

from ascendd.ipc.messages import Heartbeat


class StepProgress:
    """
    Number and start of the current step.

    Each field is one Python object assignment, which is atomic; a reader may see a step that has just ended as running,
    for the length of one heartbeat at most.
    """

    def __init__(self) -> None:
        self._step_seq = 0
        self._started_s: float | None = None
        self._num_running = 0
        self._num_waiting = 0

    def begin(self) -> None:
        """Note that a step starts now."""
        self._started_s = time.monotonic()

    def end(self, num_running: int, num_waiting: int) -> None:
        """Note that the step is done."""
        self._step_seq += 1
        self._started_s = None
        self._num_running, self._num_waiting = num_running, num_waiting

    def heartbeat(self) -> Heartbeat:
        """Describe this moment."""
        started = self._started_s
        inflight = 0.0 if started is None else time.monotonic() - started
        return Heartbeat(self._step_seq, inflight, self._num_running, self._num_waiting)
