"""StepProgress: what the control thread tells of the step thread. Written by one thread, read by another, no lock."""

from __future__ import annotations

import time
from collections.abc import Callable

from ascendd.ipc.messages import Heartbeat

# Steps with fewer tokens tell how long a step takes, not a token: a decode reads all weights for one.
MIN_TOKENS = 32
# How much of the worst time of a token is remembered from one such step to the next.
FORGET = 0.95


class StepProgress:
    """
    Number, start and size of the current step, and what a token of a prompt took lately at the worst.

    Each field is one Python object assignment, which is atomic; a reader may see a step that has just ended as running,
    for the length of one heartbeat at most.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._step_seq = 0
        self._started_s: float | None = None
        self._num_running = 0
        self._num_waiting = 0
        self._step_tokens = 0
        self._token_s = 0.0

    def begin(self) -> None:
        """Note that a step starts now."""
        self._step_tokens = 0
        self._started_s = self._clock()

    def scheduled(self, num_tokens: int) -> None:
        """Note how many tokens the step that runs has; its deadline goes by that."""
        self._step_tokens = num_tokens

    def end(self, num_running: int, num_waiting: int) -> None:
        """Note that the step is done."""
        if self._started_s is not None and self._step_tokens >= MIN_TOKENS:
            took_s = (self._clock() - self._started_s) / self._step_tokens
            self._token_s = max(took_s, FORGET * self._token_s)
        self._step_seq += 1
        self._started_s = None
        self._num_running, self._num_waiting = num_running, num_waiting

    def heartbeat(self) -> Heartbeat:
        """Describe this moment."""
        started = self._started_s
        inflight = 0.0 if started is None else self._clock() - started
        return Heartbeat(
            self._step_seq, inflight, self._num_running, self._num_waiting, self._step_tokens, self._token_s
        )
