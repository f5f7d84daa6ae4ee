"""SlotPool: which of the layers' few slots holds which adapter. Pure accounting."""

from __future__ import annotations

from collections.abc import Iterable


class SlotPool:
    """The least recently used slot is taken first; an adapter stays in its slot until somebody needs it."""

    def __init__(self, num_slots: int) -> None:
        self._slot_of: dict[int, int] = {}  # adapter id -> slot, least recently used first
        self._free = list(range(num_slots - 1, -1, -1))
        self.num_slots = num_slots

    def slot_of(self, adapter_id: int) -> int:
        """Return the slot that holds an adapter. Raises KeyError where none does."""
        return self._slot_of[adapter_id]

    def take(self, adapter_ids: Iterable[int]) -> list[tuple[int, int]]:
        """Give each of `adapter_ids`, at most `num_slots`, a slot; return those newly put in as (adapter id, slot)."""
        wanted = list(dict.fromkeys(adapter_ids))
        assert len(wanted) <= self.num_slots, f"{len(wanted)} adapters in a step, {self.num_slots} slots"
        for adapter_id in wanted:
            if adapter_id in self._slot_of:
                self._slot_of[adapter_id] = self._slot_of.pop(adapter_id)
        new = []
        for adapter_id in wanted:
            if adapter_id in self._slot_of:
                continue
            # Those of this step stand at the end, so the oldest entry is none of them.
            slot = self._free.pop() if self._free else self._slot_of.pop(next(iter(self._slot_of)))
            self._slot_of[adapter_id] = slot
            new.append((adapter_id, slot))
        return new

    def drop(self, adapter_id: int) -> int | None:
        """Empty the slot of an adapter and return it; None where it had none."""
        slot = self._slot_of.pop(adapter_id, None)
        if slot is not None:
            self._free.append(slot)
        return slot

    def check_integrity(self) -> None:
        """Raise AssertionError unless every slot is free or held by exactly one adapter."""
        assert sorted([*self._free, *self._slot_of.values()]) == list(range(self.num_slots)), "a slot is lost"
