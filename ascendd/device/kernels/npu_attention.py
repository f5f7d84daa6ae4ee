"""
The fused attention over a paged cache, in the two forms that its document allows.

Head sizes of 128 and 192 go as TND: all sequences of a step, prompts and single tokens alike, in one call. Other sizes
go as BSH: one call for the sequences with one new token each, and one for every prompt, whose length is its own.
"""

from __future__ import annotations

from typing import Any

import torch

from ascendd.device.base import SequenceTable

_TND_HEAD_SIZES = frozenset({128, 192})
_CAUSAL_BOTTOM_RIGHT = 3  # sparse_mode: the triangle is aligned with the last query and the last key
_ALL_SEEN = 0


def attend_paged(
    query: torch.Tensor, cache: torch.Tensor, table: SequenceTable, scale: float, mask: torch.Tensor
) -> torch.Tensor:
    """
    Attend query [num_tokens, heads, head_dim] over cache [2, num_blocks, block_size, kv_heads, head_dim].

    `mask` is the compressed causal triangle, True where hidden.
    """
    _, num_blocks, block_size, kv_heads, head_dim = cache.shape
    paged: dict[str, Any] = {
        "key": cache[0].view(num_blocks, block_size, kv_heads * head_dim),
        "value": cache[1].view(num_blocks, block_size, kv_heads * head_dim),
        "num_heads": query.shape[1],
        "num_key_value_heads": kv_heads,
        "scale": scale,
        "block_size": block_size,
    }
    if head_dim in _TND_HEAD_SIZES:
        return _fused(
            query.contiguous(), paged, table.block_table, table.kv_lengths, "TND", mask, query_ends=table.query_ends
        )
    flat = query.reshape(query.shape[0], -1)  # [num_tokens, heads * head_dim]
    num_single = _num_single(table.query_ends)
    parts = []
    if num_single:
        single = flat[:num_single, None].contiguous()  # [sequences, 1 token, heads * head_dim]
        lengths = table.kv_lengths[:num_single]
        parts.append(_fused(single, paged, table.block_table[:num_single], lengths, "BSH")[:, 0])
    for index in range(num_single, len(table.query_ends)):
        begin = table.query_ends[index - 1] if index else 0
        prompt = flat[None, begin : table.query_ends[index]].contiguous()  # [1 sequence, tokens, heads * head_dim]
        blocks, length = table.block_table[index : index + 1], table.kv_lengths[index]
        parts.append(_fused(prompt, paged, blocks, [length], "BSH", mask)[0])
    attended = parts[0] if len(parts) == 1 else torch.cat(parts)
    return attended.view(query.shape)


def _num_single(query_ends: list[int]) -> int:
    """Return how many sequences at the front have one new token each; decodes stand first in a step."""
    return next((index for index, end in enumerate(query_ends) if end != index + 1), len(query_ends))


def _fused(
    query: torch.Tensor,
    paged: dict[str, Any],
    block_table: torch.Tensor,
    kv_lengths: list[int],
    layout: str,
    mask: torch.Tensor | None = None,
    *,
    query_ends: list[int] | None = None,
) -> torch.Tensor:
    out: torch.Tensor = torch.ops.npu.npu_fused_infer_attention_score(
        query,
        paged["key"],
        paged["value"],
        atten_mask=mask,
        actual_seq_lengths=query_ends,
        actual_seq_lengths_kv=kv_lengths,
        block_table=block_table,
        num_heads=paged["num_heads"],
        num_key_value_heads=paged["num_key_value_heads"],
        scale=paged["scale"],
        input_layout=layout,
        sparse_mode=_ALL_SEEN if mask is None else _CAUSAL_BOTTOM_RIGHT,
        block_size=paged["block_size"],
    )[0]
    return out
