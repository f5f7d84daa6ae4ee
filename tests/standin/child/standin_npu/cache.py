"""
Writing new keys and values into a paged cache.

Scene one of the document; the plain layout [num_blocks, block_size, heads, dim] of cache_mode Norm as
aclnnScatterPaKvCache.md has it.
"""

from __future__ import annotations

import torch

from standin_npu.meaning import described
from standin_npu.refusal import require


def scatter_pa_kv_cache(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    *,
    compress_lens: torch.Tensor | None = None,
    compress_seq_offsets: torch.Tensor | None = None,
    seq_lens: torch.Tensor | None = None,
    cache_mode: str | None = "PA_NZ",
) -> None:
    """Write row i of key, value [tokens, heads, dim] to slot_mapping[i] = block * block_size + offset."""
    require(compress_lens is None and compress_seq_offsets is None and seq_lens is None, "scene one in the stand-in")
    require(key.dim() == value.dim() == 3, f"key, value of 3 axes in scene one, not {key.dim()}, {value.dim()}")
    require(
        key.shape[:2] == value.shape[:2], f"key {tuple(key.shape)} and value {tuple(value.shape)} agree in two axes"
    )
    require(key_cache.dim() == value_cache.dim() == 4, f"caches of 4 axes, not {key_cache.dim()}, {value_cache.dim()}")
    dtypes = {key.dtype, value.dtype, key_cache.dtype, value_cache.dtype}
    require(len(dtypes) == 1, f"one dtype of key, value and caches, not {sorted(map(str, dtypes))}")
    require(slot_mapping.dtype in {torch.int32, torch.int64}, f"slots int32 or int64, not {slot_mapping.dtype}")
    require(tuple(slot_mapping.shape) == (key.shape[0],), f"one slot a token, not {tuple(slot_mapping.shape)}")
    require(cache_mode in {None, "Norm", "PA_NZ"}, f"cache_mode Norm or PA_NZ, not {cache_mode!r}")
    for name, new in (("key", key), ("value", value), ("slot_mapping", slot_mapping)):
        require(new.is_contiguous(), f"{name} is contiguous")
    for new, cache in ((key, key_cache), (value, value_cache)):
        require(cache.is_contiguous(), "caches are contiguous")
        if cache_mode == "PA_NZ":
            _write_fractal(new, cache, slot_mapping)
        else:
            _write_plain(new, cache, slot_mapping)


def _check_slots(slots: torch.Tensor, num_slots: int) -> torch.Tensor:
    slots = slots.long()
    require(
        slots.numel() == 0 or 0 <= int(slots.min()) <= int(slots.max()) < num_slots, f"slots in 0 .. {num_slots - 1}"
    )
    require(slots.unique().numel() == slots.numel(), "no slot twice")
    return slots


def _write_plain(new: torch.Tensor, cache: torch.Tensor, slots: torch.Tensor) -> None:
    num_blocks, block_size, heads, dim = cache.shape
    require(
        (heads, dim) == tuple(new.shape[1:]),
        f"cache {tuple(cache.shape)} ends with the heads, dim of {tuple(new.shape)}",
    )
    cache.view(-1, heads, dim)[_check_slots(slots, num_blocks * block_size)] = new


def _write_fractal(new: torch.Tensor, cache: torch.Tensor, slots: torch.Tensor) -> None:
    """[num_blocks, heads * dim / last, block_size, last]: a token's row lies in pieces of `last`, a block apart."""
    num_blocks, pieces, block_size, last = cache.shape
    require(
        pieces * last == new.shape[1] * new.shape[2], f"cache {tuple(cache.shape)} holds rows of {tuple(new.shape)}"
    )
    slots = _check_slots(slots, num_blocks * block_size)
    cache[slots // block_size, :, slots % block_size] = new.reshape(-1, pieces, last)


MEANINGS = {"npu_scatter_pa_kv_cache": described(scatter_pa_kv_cache, "torch_npu-npu_scatter_pa_kv_cache")}
