"""WaitingQueue: sequences that wait for a place in the batch, by priority, then by arrival."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator

from ascendd.engine.sequence import Sequence


class WaitingQueue:
    """A heap with O(1) removal: what is removed stays in the heap as a dead entry until it comes up."""

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[int, int], int]] = []
        self._alive: dict[int, Sequence] = {}

    def __len__(self) -> int:
        return len(self._alive)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(list(self._alive.values()))

    def push(self, sequence: Sequence) -> None:
        """Add `sequence`; one that was preempted has its old order and so comes before later arrivals."""
        self._alive[sequence.seq_id] = sequence
        heapq.heappush(self._heap, (sequence.queue_key, sequence.seq_id))

    def peek(self, allows: Callable[[Sequence], bool] | None = None) -> Sequence | None:
        """Return the sequence to serve next, or None; with `allows`, the next one of those it holds for."""
        while self._heap:
            sequence = self._alive.get(self._heap[0][1])
            if sequence is not None:
                if allows is None or allows(sequence):
                    return sequence
                return min(filter(allows, self._alive.values()), key=lambda seq: seq.queue_key, default=None)
            heapq.heappop(self._heap)
        return None

    def pop(self) -> Sequence:
        """Take the sequence to serve next. Raises IndexError when none waits."""
        sequence = self.peek()
        if sequence is None:
            raise IndexError("nothing waits")
        heapq.heappop(self._heap)
        del self._alive[sequence.seq_id]
        return sequence

    def remove(self, seq_id: int) -> None:
        """Forget a waiting sequence; unknown ids are ignored."""
        self._alive.pop(seq_id, None)
