"""
AdapterLimit: at most so many different LoRA adapters run at once, and none waits for ever.

A waiting sequence whose adapter has no slot is passed over: those behind it that need no adapter, or one that runs
already, go first. Each of the latter may keep the slots taken, so a sequence is overtaken by `max_overtakes` of them at
most; then whoever needs a slot and stands behind it waits, until slots run empty and it has its turn.
"""

from __future__ import annotations

from collections.abc import Iterable

from ascendd.engine.sequence import Sequence

MAX_OVERTAKES = 16


class AdapterLimit:
    """`begin` before each step, `allows` before each admission, `admitted` after it."""

    def __init__(self, max_adapters: int, max_overtakes: int = MAX_OVERTAKES) -> None:
        self._max_adapters = max_adapters
        self._max_overtakes = max_overtakes
        self._active: set[int] = set()
        self._closed_behind: tuple[int, int] | None = None

    def begin(self, running: Iterable[Sequence], waiting: Iterable[Sequence]) -> None:
        """Note which adapters run and who has been overtaken too often."""
        self._active = {sequence.adapter_id for sequence in running if sequence.adapter_id}
        self._close(waiting)

    def allows(self, sequence: Sequence) -> bool:
        """Whether the waiting `sequence` may run beside those that do."""
        if not sequence.adapter_id:
            return True
        if self._closed_behind is not None and sequence.queue_key > self._closed_behind:
            return False
        return sequence.adapter_id in self._active or len(self._active) < self._max_adapters

    def admitted(self, sequence: Sequence, waiting: Iterable[Sequence]) -> None:
        """Note that `sequence` runs now, and whom of `waiting` it has overtaken."""
        if not sequence.adapter_id:
            return
        self._active.add(sequence.adapter_id)
        waiting = list(waiting)
        for other in waiting:
            if self._lacks_slot(other) and other.queue_key < sequence.queue_key:
                other.num_overtakes += 1
        self._close(waiting)

    def check(self, running: Iterable[Sequence]) -> None:
        """Raise AssertionError where more adapters run than may."""
        active = {sequence.adapter_id for sequence in running if sequence.adapter_id}
        assert len(active) <= self._max_adapters, f"{len(active)} adapters run, {self._max_adapters} may"

    def _lacks_slot(self, sequence: Sequence) -> bool:
        return sequence.adapter_id != 0 and sequence.adapter_id not in self._active

    def _close(self, waiting: Iterable[Sequence]) -> None:
        tired = [seq.queue_key for seq in waiting if seq.num_overtakes >= self._max_overtakes and self._lacks_slot(seq)]
        self._closed_behind = min(tired, default=None)
