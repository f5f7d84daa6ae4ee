"""MemoryLadder: an engine that ends for want of device memory is started again with a smaller KV cache. Pure."""

from __future__ import annotations

import collections
import math
from dataclasses import dataclass

# What is left of the cache at each rung, and how many rungs there are within the window.
SHARE = 0.9
MAX_RUNGS = 2


@dataclass(frozen=True)
class Rung:
    """Start again with `num_blocks`, None for those of the configuration; it is rung `number` of the window."""

    num_blocks: int | None
    number: int


@dataclass(frozen=True)
class Exhausted:
    """A smaller cache does not help, or would hold no sequence of full length; `reason` is for people."""

    reason: str


class MemoryLadder:
    """
    Counts the ends for want of memory within `window_s`: two make the cache smaller, the third gives up.

    The cache stays smaller until the instance is started anew: what was too much once is too much again.
    """

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._ends: collections.deque[float] = collections.deque()
        self._num_blocks: int | None = None
        self._floor = 1

    def measured(self, *, num_blocks: int, block_size: int, max_model_len: int) -> None:
        """Take the cache of an engine that is ready, and what one sequence of full length needs of it."""
        self._num_blocks = num_blocks
        self._floor = math.ceil(max_model_len / block_size)

    def on_out_of_memory(self, now_s: float) -> Rung | Exhausted:
        """Decide after an end at `now_s` (monotonic seconds)."""
        while self._ends and now_s - self._ends[0] > self._window_s:
            self._ends.popleft()
        self._ends.append(now_s)
        number = len(self._ends)
        if number > MAX_RUNGS:
            return Exhausted(f"out of device memory {number} times within {self._window_s:g} s")
        if self._num_blocks is None:
            return Rung(None, number)
        smaller = int(self._num_blocks * SHARE)
        if smaller < self._floor:
            return Exhausted(
                f"{smaller} KV blocks would be left, fewer than the {self._floor} of one sequence of full length"
            )
        self._num_blocks = smaller
        return Rung(smaller, number)
