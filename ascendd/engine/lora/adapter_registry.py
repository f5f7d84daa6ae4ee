"""AdapterRegistry: loads, evicts and unloads adapters for EngineCore, whatever holds their tensors."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from typing import Protocol

from ascendd.engine.lora.adapter_pool import AdapterPool, AdapterRecord
from ascendd.errors import AdapterInvalid, ModelUnknown
from ascendd.telemetry.log import get_logger

_MAX_NAME_CHARS = 128

_log = get_logger("engine")


class AdapterStore(Protocol):
    """What holds the tensors (runner.model_runner.ModelRunner)."""

    def load_adapter(self, adapter_id: int, path: str) -> int:
        """Read an adapter into host memory under `adapter_id` and return its bytes. Raises AdapterInvalid."""

    def drop_adapter(self, adapter_id: int) -> None:
        """Forget an adapter."""


class AdapterRegistry:
    """Every method that may evict or free takes `in_use`, the adapter ids of all sequences that have not ended."""

    def __init__(self, store: AdapterStore, max_resident: int, base_name: str) -> None:
        self.pool = AdapterPool(max_resident)
        self._store = store
        self._base_name = base_name

    def load(self, name: str, path: str, in_use: Collection[int]) -> None:
        """Load the adapter in folder `path` under `name`. Raises AdapterInvalid or QueueFull, leaving all as it was."""
        if not 1 <= len(name) <= _MAX_NAME_CHARS or not name.isprintable() or name != name.strip():
            raise AdapterInvalid(
                f"adapter name {name[:_MAX_NAME_CHARS]!r}: must be 1 to {_MAX_NAME_CHARS} printable characters",
                name=name[:_MAX_NAME_CHARS],
            )
        if name == self._base_name:
            raise AdapterInvalid(f"adapter name `{name}` is the name of the model itself", name=name)
        self.pool.check_free(name)
        self._read(AdapterRecord(name, path), in_use)

    def unload(self, name: str, in_use: Collection[int]) -> None:
        """
        Take `name` out at once; sequences that use it run to their end with it. Raises ModelUnknown.

        Not refused while sequences run: under steady traffic a new version could then never be brought in.
        """
        record = self.pool.remove(name)
        _log.info("engine.adapter_unloaded", adapter=name, draining=record.adapter_id in in_use)
        self.collect(in_use)

    def acquire(self, name: str, in_use: Collection[int]) -> tuple[int, bytes]:
        """
        Return the id for a new sequence of adapter `name`, read again where it was evicted, and its prefix-cache key.

        Raises ModelUnknown or QueueFull.
        """
        record = self.pool.find(name)
        if not record.adapter_id:
            try:
                self._read(record, in_use)
            except AdapterInvalid as error:
                raise ModelUnknown(
                    f"the adapter `{name}` can no longer be read: {error.message}",
                    param="model",
                    openai_code="model_not_found",
                ) from error
        return record.adapter_id, cache_key(name, record.adapter_id)

    def collect(self, in_use: Collection[int]) -> None:
        """Free the unloaded adapters that no sequence uses any more."""
        for adapter_id in self.pool.collect(in_use):
            self._store.drop_adapter(adapter_id)

    def _read(self, record: AdapterRecord, in_use: Collection[int]) -> None:
        self.collect(in_use)
        adapter_id = self.pool.new_id()
        # Read before anything is evicted: a folder that is no adapter must not cost another its place.
        num_bytes = self._store.load_adapter(adapter_id, record.path)
        try:
            evicted = self.pool.make_room(in_use)
        except BaseException:
            self._store.drop_adapter(adapter_id)
            raise
        for other in evicted:
            self._store.drop_adapter(other)
        self.pool.add(record, adapter_id)
        _log.info("engine.adapter_loaded", adapter=record.name, num_bytes=num_bytes, num_evicted=len(evicted))


def cache_key(name: str, adapter_id: int) -> bytes:
    """Return what the prefix hash of an adapter's blocks is keyed with: its name and the version of its weights."""
    return hashlib.blake2b(f"{adapter_id}\0{name}".encode(), digest_size=16, person=b"ascendd.adapter").digest()
