"""RankProgress: how far one rank is in its step. Written by the step's thread, read by another, no lock."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ascendd.errors import AscenddError
from ascendd.ipc.rank_messages import RankHeartbeat


class RankProgress:
    """
    Number and start of the current work, and the collectives entered so far.

    Ranks of a group get the same orders and enter the same collectives, so of ranks that wait for each other the one
    that is least far is the one that keeps the others waiting. Each field is one assignment of an object, which is
    atomic.
    """

    def __init__(self) -> None:
        self._step_seq = 0
        self._started_s: float | None = None
        self._num_done = 0
        self._num_collectives = 0
        self._collective = ""
        # What the device makes of an error that comes out of a collective: its own death shows there, too.
        self.classify: Callable[[BaseException], AscenddError | None] = lambda _error: None

    @contextmanager
    def work(self, step_seq: int | None = None) -> Iterator[None]:
        """Note work from here to the end of the block; a step has its number."""
        if step_seq is not None:
            self._step_seq = step_seq
        self._started_s = time.monotonic()
        try:
            yield
            self._num_done += 1
        finally:
            self._started_s = None

    def enter(self, collective: str) -> None:
        """Note that the rank begins to wait for others in `collective`."""
        self._num_collectives += 1
        self._collective = collective

    def leave(self) -> None:
        """Note that it does not wait any more."""
        self._collective = ""

    def heartbeat(self) -> RankHeartbeat:
        """Describe this moment."""
        started = self._started_s
        inflight = 0.0 if started is None else time.monotonic() - started
        return RankHeartbeat(self._step_seq, inflight, self._num_collectives, self._collective, self._num_done)
