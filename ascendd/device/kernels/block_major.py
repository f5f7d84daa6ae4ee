"""
The reference over the cache layout that an NPU's fused operators read, so that either can stand in for the other.

Layout of a layer: [2, num_blocks, block_size, kv_heads, head_dim], K then V, a token's heads side by side.
"""

from __future__ import annotations

import torch

from ascendd.device.kernels.plain_attention import Attend, plain_attention
from ascendd.device.kernels.reference import ReferenceKernels


class BlockMajorReference(ReferenceKernels):
    """
    Only what touches the cache differs; latents have one layout everywhere.

    Attention is written out: torch_npu maps torch's own to a fused operator, and a reference must not lean on one.
    """

    attend: Attend = staticmethod(plain_attention)

    def store_kv(self, cache: torch.Tensor, key: torch.Tensor, value: torch.Tensor, slot_mapping: torch.Tensor) -> None:
        slots = cache.view(2, -1, *cache.shape[3:])
        slots[0].index_copy_(0, slot_mapping, key.to(cache.dtype))
        slots[1].index_copy_(0, slot_mapping, value.to(cache.dtype))

    def gather_blocks(
        self, cache: torch.Tensor, block_ids: torch.Tensor, head_dim: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        kv_heads = cache.shape[3]
        keys, values = (
            kv.index_select(0, block_ids).view(-1, kv_heads, head_dim).transpose(0, 1).contiguous() for kv in cache
        )
        return keys, values
