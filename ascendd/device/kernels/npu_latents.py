"""
Attention over latents (MLA) by the fused operator, for the head counts that it takes; the reference serves the rest.

The fused operator wants the latent and its rotated part in tensors of their own, so the memory of one cache is split in
two: first all contents [num_blocks, block_size, kv_rank], then all rotated parts [num_blocks, block_size, rope_dim].
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ascendd.device.base import AttentionContext, LatentUp
from ascendd.device.kernels.latent_attention import attend_chunk
from ascendd.device.kernels.plain_attention import plain_attention


@dataclass(slots=True)
class SplitLatentCache:
    """Two views of one cache tensor's memory."""

    content: torch.Tensor
    rotated: torch.Tensor

    @classmethod
    def of(cls, cache: torch.Tensor, kv_rank: int) -> SplitLatentCache:
        """Split `cache` [num_blocks, block_size, kv_rank + rope_dim], whose shape says no more than its size."""
        num_blocks, block_size, width = cache.shape
        flat, num_content = cache.view(-1), num_blocks * block_size * kv_rank
        return cls(
            flat[:num_content].view(num_blocks, block_size, kv_rank),
            flat[num_content:].view(num_blocks, block_size, width - kv_rank),
        )

    @staticmethod
    def by_token(part: torch.Tensor) -> torch.Tensor:
        """View `part` as [num_blocks, block_size, 1 head, dim], as tokens are written."""
        return part.view(*part.shape[:2], 1, part.shape[2])

    @staticmethod
    def by_head(part: torch.Tensor) -> torch.Tensor:
        """View `part` as [num_blocks, 1 head, block_size, dim]: with one head the same bytes."""
        return part.view(part.shape[0], 1, *part.shape[1:])

    def gather(self, block_ids: torch.Tensor) -> torch.Tensor:
        """Return the latents of the blocks in order, [len(block_ids) * block_size, kv_rank + rope_dim]."""
        parts = (part.index_select(0, block_ids).flatten(0, 1) for part in (self.content, self.rotated))
        return torch.cat(tuple(parts), dim=-1)


def attend_split(
    query: torch.Tensor,
    latent: torch.Tensor,
    cache: SplitLatentCache,
    context: AttentionContext,
    scale: float,
    up: LatentUp,
) -> torch.Tensor:
    """See device.base.Kernels.latent_attention: lone new tokens by the fused operator, chunks by the reference."""
    out = query.new_empty((*query.shape[:2], up.value.shape[1]))
    if context.table is not None and context.table.kv_lengths:
        _attend_decodes(out, query, cache, context, scale, up)
    for chunk in context.prefill_chunks:
        attend_chunk(out, query, latent, cache.gather, chunk, scale, up, plain_attention)
    return out


def _absorb(query: torch.Tensor, up: LatentUp) -> tuple[torch.Tensor, torch.Tensor]:
    """Split query [rows, heads, dim] into W_UK^T q [rows, heads, kv_rank] and its rotated part."""
    absorbed = torch.bmm(query[..., : up.nope_dim].transpose(0, 1), up.key).transpose(0, 1)
    return absorbed, query[..., up.nope_dim :]


def _release(attended: torch.Tensor, up: LatentUp) -> torch.Tensor:
    """Map attended latents [rows, heads, kv_rank] through W_UV to [rows, heads, value_dim]."""
    return torch.bmm(attended.transpose(0, 1), up.value.transpose(1, 2)).transpose(0, 1)


def _attend_decodes(
    out: torch.Tensor,
    query: torch.Tensor,
    cache: SplitLatentCache,
    context: AttentionContext,
    scale: float,
    up: LatentUp,
) -> None:
    table = context.table
    assert table is not None
    assert table.rows is not None, "latents are attended for lone new tokens only"
    absorbed, rotated = _absorb(query.index_select(0, table.rows), up)
    block_size = cache.content.shape[1]
    content = cache.by_head(cache.content)
    attended = torch.ops.npu.npu_fused_infer_attention_score(
        absorbed[:, :, None].contiguous(),  # [rows, heads, 1 token, kv_rank]
        content,
        content,
        query_rope=rotated[:, :, None].contiguous(),
        key_rope=cache.by_head(cache.rotated),
        actual_seq_lengths_kv=table.kv_lengths,
        block_table=table.block_table,
        num_heads=query.shape[1],
        num_key_value_heads=1,
        scale=scale,
        input_layout="BNSD",
        sparse_mode=0,
        block_size=block_size,
    )[0]
    out.index_copy_(0, table.rows, _release(attended[:, :, 0], up))
