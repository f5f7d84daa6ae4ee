"""
The executable specification of every kernel, in plain torch on any device.

Cache layout of a layer: [2, kv_heads, num_blocks, block_size * head_dim], K then V. Head-major, so that a gather of
blocks copies long runs and attention needs no transpose (7x over a token-major cache with repeated heads on two cores).
A latent cache is [num_blocks, block_size, kv_rank + rope_dim] (kernels.latent_attention).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn import functional

from ascendd.device.base import AttentionContext, AttentionForm, DecodeGroup, LatentUp, Linear, PrefillChunk
from ascendd.device.kernels.latent_attention import attend_latents
from ascendd.device.kernels.plain_attention import Attend, torch_attention


class ReferenceKernels:
    """See device.base.Kernels for each contract; another cache layout replaces `gather_blocks`."""

    attend: Attend = staticmethod(torch_attention)

    def attention_form(self, *, is_latent: bool) -> AttentionForm:
        return AttentionForm.DECODE_GROUPS | AttentionForm.PREFILL_CHUNKS

    def gather_blocks(
        self, cache: torch.Tensor, block_ids: torch.Tensor, head_dim: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return K and V of the blocks in order, each [kv_heads, len(block_ids) * block_size, head_dim]."""
        return gather_blocks(cache, block_ids, head_dim)

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return functional.rms_norm(x, (x.shape[-1],), weight, eps)

    def add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        residual = residual.add_(x)
        return self.rms_norm(residual, weight, eps), residual

    def rope(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        half = x.shape[-1] // 2
        rotated = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
        return x * cos + rotated * sin

    def rope_interleaved(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        half = x.shape[-1] // 2
        cos, sin = cos[..., :half], sin[..., :half]
        even, odd = x[..., 0::2], x[..., 1::2]
        return torch.stack((even * cos - odd * sin, odd * cos + even * sin), dim=-1).flatten(-2)

    def silu_and_mul(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = x.chunk(2, dim=-1)
        return functional.silu(gate).mul_(up)

    def store_kv(self, cache: torch.Tensor, key: torch.Tensor, value: torch.Tensor, slot_mapping: torch.Tensor) -> None:
        # [2, kv_heads, slots, head_dim]: one block's slots follow each other, so slot = block x block_size + offset.
        head_dim = key.shape[-1]
        slots = cache.view(2, cache.shape[1], -1, head_dim)
        slots[0].index_copy_(1, slot_mapping, key.transpose(0, 1).to(cache.dtype))
        slots[1].index_copy_(1, slot_mapping, value.transpose(0, 1).to(cache.dtype))

    def paged_attention(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        cache: torch.Tensor,
        context: AttentionContext,
        scale: float,
    ) -> torch.Tensor:
        out = torch.empty_like(query)
        for group in context.decode_groups:
            _attend_decode(
                out,
                query,
                self.gather_blocks(cache, group.block_table.flatten(), query.shape[2]),
                group,
                scale,
                self.attend,
            )
        for chunk in context.prefill_chunks:
            stored = self.gather_blocks(cache, chunk.block_ids, query.shape[2]) if chunk.start else None
            _attend_prefill(out, query, key, value, stored, chunk, scale, self.attend)
        return out

    def store_latent(self, cache: torch.Tensor, latent: torch.Tensor, slot_mapping: torch.Tensor) -> None:
        cache.view(-1, cache.shape[-1]).index_copy_(0, slot_mapping, latent.to(cache.dtype))

    def latent_attention(
        self,
        query: torch.Tensor,
        latent: torch.Tensor,
        cache: torch.Tensor,
        context: AttentionContext,
        scale: float,
        up: LatentUp,
    ) -> torch.Tensor:
        return attend_latents(query, latent, cache, context, scale, up, self.attend)

    def experts(
        self,
        x: torch.Tensor,
        expert_ids: torch.Tensor,
        weights: torch.Tensor,
        experts: Sequence[tuple[Linear, Linear]],
    ) -> torch.Tensor:
        # Sorted by expert, so that each that was chosen at all runs once, over all its tokens.
        order = expert_ids.flatten().argsort(stable=True)
        tokens, weights = order // expert_ids.shape[1], weights.flatten()[order, None].to(x.dtype)
        out, begin = torch.zeros_like(x), 0
        for index, count in enumerate(expert_ids.flatten().bincount(minlength=len(experts)).tolist()):
            if count == 0:
                continue
            gate_up, down = experts[index]
            rows, end = tokens[begin : begin + count], begin + count
            out.index_add_(0, rows, down(self.silu_and_mul(gate_up(x.index_select(0, rows)))).mul_(weights[begin:end]))
            begin = end
        return out

    def greedy(self, logits: torch.Tensor) -> list[int]:
        return [int(index) for index in logits.argmax(dim=-1).tolist()]


def gather_blocks(cache: torch.Tensor, block_ids: torch.Tensor, head_dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return K and V of the blocks in order, each [kv_heads, len(block_ids) * block_size, head_dim]."""
    kv_heads = cache.shape[1]
    keys = cache[0].index_select(1, block_ids).view(kv_heads, -1, head_dim)
    values = cache[1].index_select(1, block_ids).view(kv_heads, -1, head_dim)
    return keys, values


def _attend_decode(
    out: torch.Tensor,
    query: torch.Tensor,
    stored: tuple[torch.Tensor, torch.Tensor],
    group: DecodeGroup,
    scale: float,
    attend: Attend,
) -> None:
    num_rows, kv_heads = group.rows.shape[0], stored[0].shape[0]
    num_heads, head_dim = query.shape[1:]
    keys, values = (kv.view(kv_heads, num_rows, -1, head_dim) for kv in stored)
    # The query heads of a group become query positions of their KV head: [kv_heads, rows, group, head_dim].
    # index_select and index_copy_ rather than brackets: those start a parallel region for a few kilobytes.
    folded = query.index_select(0, group.rows).view(num_rows, kv_heads, num_heads // kv_heads, head_dim).transpose(0, 1)
    attended = attend(
        folded, keys.to(query.dtype), values.to(query.dtype), attn_mask=group.mask[None, :, None, :], scale=scale
    )
    out.index_copy_(0, group.rows, attended.transpose(0, 1).reshape(num_rows, num_heads, head_dim))


def _attend_prefill(
    out: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    stored: tuple[torch.Tensor, torch.Tensor] | None,
    chunk: PrefillChunk,
    scale: float,
    attend: Attend,
) -> None:
    """Attend over `stored`, K and V of the chunk's blocks, or over its own key and value where nothing is before it."""
    num_new = chunk.end - chunk.begin
    num_heads, kv_heads = query.shape[1], key.shape[1]
    q = query[chunk.begin : chunk.end].transpose(0, 1)  # [heads, new, head_dim]
    if stored is None:
        k = key[chunk.begin : chunk.end].transpose(0, 1)  # [kv_heads, new, head_dim]
        v = value[chunk.begin : chunk.end].transpose(0, 1)
        mask = None
    else:
        total = chunk.start + num_new
        k, v = (kv[:, :total].to(query.dtype) for kv in stored)
        positions = torch.arange(chunk.start, total, device=query.device)
        mask = torch.arange(total, device=query.device)[None, :] <= positions[:, None]  # [new, total]
    if num_heads != kv_heads:
        k, v = (kv.repeat_interleave(num_heads // kv_heads, dim=0) for kv in (k, v))
    attended = attend(q[None], k[None], v[None], attn_mask=mask, is_causal=mask is None and num_new > 1, scale=scale)
    out[chunk.begin : chunk.end] = attended[0].transpose(0, 1)
