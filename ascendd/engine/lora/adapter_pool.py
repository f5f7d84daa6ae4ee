"""
AdapterPool: the adapters by name, and which of them are in host memory. Pure accounting, no tensors.

Each copy in host memory has an id that is never used again. A name that is unloaded and loaded anew, or evicted and
read again, thus gets another id, and nothing computed with the old weights is taken for the new ones'.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from ascendd.errors import AdapterInvalid, ModelUnknown, QueueFull


@dataclass(slots=True, eq=False)
class AdapterRecord:
    """A name and the folder it stands for; `adapter_id` is that of its copy in host memory, 0 while there is none."""

    name: str
    path: str
    adapter_id: int = 0


class AdapterPool:
    """
    At most `max_resident` adapters are in host memory; more may be named, and the least recently used one makes room.

    Whoever calls says which ids sequences still use (`in_use`): those are never evicted. A removed adapter that is in
    use stays as *draining* until no sequence needs it.
    """

    def __init__(self, max_resident: int) -> None:
        self.max_resident = max_resident
        self._records: dict[str, AdapterRecord] = {}
        self._resident: dict[int, AdapterRecord] = {}  # least recently used first
        self._draining: set[int] = set()
        self._last_id = 0

    @property
    def names(self) -> tuple[str, ...]:
        """All names, in the order in which they were added."""
        return tuple(self._records)

    @property
    def resident_ids(self) -> frozenset[int]:
        """Ids of all copies in host memory, the draining ones included."""
        return frozenset(self._resident) | self._draining

    @property
    def is_draining(self) -> bool:
        """Whether a removed adapter is still in host memory."""
        return bool(self._draining)

    def check_free(self, name: str) -> None:
        """Raise AdapterInvalid where `name` is taken."""
        if name in self._records:
            raise AdapterInvalid(f"an adapter named `{name}` is loaded already", remedy="Unload it first.", name=name)

    def find(self, name: str) -> AdapterRecord:
        """Return the adapter of this name, now the most recently used. Raises ModelUnknown."""
        record = self._records.get(name)
        if record is None:
            raise ModelUnknown(f"the adapter `{name}` is not loaded", param="model", openai_code="model_not_found")
        if record.adapter_id:
            self._resident[record.adapter_id] = self._resident.pop(record.adapter_id)
        return record

    def make_room(self, in_use: Collection[int]) -> list[int]:
        """Evict until one more fits; return the evicted ids. Raises QueueFull where sequences use all of them."""
        evicted = []
        while len(self._resident) + len(self._draining) >= self.max_resident:
            victim = next((adapter_id for adapter_id in self._resident if adapter_id not in in_use), None)
            if victim is None:
                raise QueueFull(
                    f"all {self.max_resident} adapters in host memory (engine.max_cpu_loras) have requests in work"
                )
            self._resident.pop(victim).adapter_id = 0
            evicted.append(victim)
        return evicted

    def new_id(self) -> int:
        """Return an id for a copy that is about to be read."""
        self._last_id += 1
        return self._last_id

    def add(self, record: AdapterRecord, adapter_id: int) -> None:
        """Book `record`, new or known, as resident under `adapter_id`; make_room came before."""
        assert len(self._resident) + len(self._draining) < self.max_resident, "no room was made"
        assert record.adapter_id == 0, f"{record.name} is resident already"
        record.adapter_id = adapter_id
        self._records[record.name] = record
        self._resident[adapter_id] = record

    def remove(self, name: str) -> AdapterRecord:
        """Take a name out; its copy drains. Raises ModelUnknown."""
        record = self.find(name)
        del self._records[name]
        if record.adapter_id:
            del self._resident[record.adapter_id]
            self._draining.add(record.adapter_id)
        return record

    def collect(self, in_use: Collection[int]) -> list[int]:
        """Return the drained ids that no sequence uses any more, and forget them."""
        done = sorted(self._draining.difference(in_use))
        self._draining.difference_update(done)
        return done

    def check_integrity(self) -> None:
        """Raise AssertionError unless ids, names and limits agree."""
        resident = {record.adapter_id for record in self._records.values() if record.adapter_id}
        assert resident == set(self._resident), "a resident adapter has no name, or a name no copy"
        assert not resident & self._draining, "an adapter is both named and draining"
        assert len(self.resident_ids) <= self.max_resident, "more adapters are in memory than may be"
