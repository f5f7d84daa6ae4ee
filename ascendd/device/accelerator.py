"""Accelerator: what devices behind a module of torch that is made like torch.cuda have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import torch

from ascendd.device.base import Device, KVCacheSpec, MemoryInfo


class Accelerator(Device):
    """
    Device `index` of `runtime` (torch.npu, torch.cuda), with memory of its own and a caching allocator before it.

    A class names the `kind` of torch's devices and the `backend` of torch.distributed between them.
    """

    kind: ClassVar[str]
    backend: ClassVar[str]

    def __init__(self, index: int, runtime: Any) -> None:
        self._index = index
        self._runtime = runtime

    def torch_device(self) -> str:
        return f"{self.kind}:{self._index}"

    def collective_backend(self) -> str:
        return self.backend

    def memory_info(self) -> MemoryInfo:
        # What torch's allocator holds and no tensor uses is free for this process all the same.
        free, total = self._runtime.mem_get_info(self._index)
        cached = self._runtime.memory_reserved(self._index) - self._runtime.memory_allocated(self._index)
        return MemoryInfo(free_bytes=int(free + cached), total_bytes=int(total))

    def peak_memory(self, work: Callable[[], None]) -> int:
        self.synchronize()
        before = int(self._runtime.memory_allocated(self._index))
        self._runtime.reset_peak_memory_stats(self._index)
        work()
        self.synchronize()
        return max(0, int(self._runtime.max_memory_allocated(self._index)) - before)

    def empty_cache(self) -> None:
        self._runtime.empty_cache()

    def synchronize(self) -> None:
        """Wait for all that was launched; what failed meanwhile is raised here."""
        self._runtime.synchronize(self._index)

    def allocate_kv(self, spec: KVCacheSpec) -> list[torch.Tensor]:
        shape, dtype, device = self.kv_shape(spec), getattr(torch, spec.dtype), self.torch_device()
        if spec.is_latent:
            shape = (spec.num_blocks, spec.block_size, spec.head_dim)
        with self.naming_faults():
            return [torch.zeros(shape, dtype=dtype, device=device) for _ in range(spec.num_layers)]

    @abstractmethod
    def kv_shape(self, spec: KVCacheSpec) -> tuple[int, ...]:
        """Return the shape of one layer's cache of keys and values, as this device's kernels read it."""
