"""
Memory for packed weights: large pages where the kernel has them.

A step reads all weights from end to end. In pages of 4 KiB it meets a new page every few hundred nanoseconds, at which
the core's prefetcher stops and an address has to be translated; in pages of 2 MiB hardly ever.
"""

from __future__ import annotations

import contextlib
import mmap

import torch

_HUGE_PAGE = 2**21
# Small tensors share a mapping, so that only its end is rounded up to a whole page.
_SHARED_BYTES = 2**25
# Of a tensor's address: a line of the cache.
_ALIGNMENT = 64


class WeightMemory:
    """Gives out zeros for weights that live as long as each other; a mapping goes when the last tensor in it went."""

    def __init__(self) -> None:
        self._rest = torch.empty(0, dtype=torch.uint8)

    def zeros(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Return zeros of `shape` and `dtype`, contiguous."""
        num_bytes = torch.Size(shape).numel() * dtype.itemsize
        if num_bytes >= _SHARED_BYTES:
            return _mapping(num_bytes)[:num_bytes].view(dtype).view(shape)
        if num_bytes > len(self._rest):
            self._rest = _mapping(_SHARED_BYTES)
        given, self._rest = self._rest[:num_bytes], self._rest[-(-num_bytes // _ALIGNMENT) * _ALIGNMENT :]
        return given.view(dtype).view(shape)


def _mapping(num_bytes: int) -> torch.Tensor:
    """Return at least `num_bytes` zeros that begin with a large page; what is not written to takes no memory."""
    pages = mmap.mmap(-1, num_bytes + _HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without large pages
            pages.madvise(mmap.MADV_HUGEPAGE)
    whole = torch.frombuffer(pages, dtype=torch.uint8)
    return whole[-whole.data_ptr() % _HUGE_PAGE :]
