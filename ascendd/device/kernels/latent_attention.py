"""
Reference of attention over a latent cache (MLA, DeepSeek-V2, 2024), in its two equal forms.

Cache layout of a layer: [num_blocks, block_size, kv_rank + rope_dim], the normed latent c, then the rotated key k_r
that all heads share. With W_UK and W_UV of a head,

    score = q_nope . (W_UK c) + q_rope . k_r  =  (W_UK^T q_nope) . c + q_rope . k_r
    out   = sum p W_UV c                      =  W_UV (sum p c)

The left form expands every latent into keys and values once, which many new tokens share. The right one absorbs the
matrices into query and output and reads nothing but the cache, which is what a lone new token wants.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch.nn import functional

from ascendd.device.base import AttentionContext, DecodeGroup, LatentUp, PrefillChunk
from ascendd.device.kernels.plain_attention import Attend, torch_attention


def attend_latents(
    query: torch.Tensor,
    latent: torch.Tensor,
    cache: torch.Tensor,
    context: AttentionContext,
    scale: float,
    up: LatentUp,
    attend: Attend = torch_attention,
) -> torch.Tensor:
    """See device.base.Kernels.latent_attention; each group and chunk takes the form with fewer multiplications."""
    out = query.new_empty((*query.shape[:2], up.value.shape[1]))
    for group in context.decode_groups:
        _attend_decode(out, query, cache, group, scale, up, attend)
    for chunk in context.prefill_chunks:
        attend_chunk(out, query, latent, partial(gather_latents, cache), chunk, scale, up, attend)
    return out


def gather_latents(cache: torch.Tensor, block_ids: torch.Tensor) -> torch.Tensor:
    """Return the latents of the blocks in order, [len(block_ids) * block_size, kv_rank + rope_dim]."""
    return cache.index_select(0, block_ids).view(-1, cache.shape[-1])


def attend_absorbed(
    query: torch.Tensor,
    latents: torch.Tensor,
    mask: torch.Tensor,
    scale: float,
    up: LatentUp,
    attend: Attend = torch_attention,
) -> torch.Tensor:
    """
    Attend in latent space.

    query [rows, new, heads, nope_dim + rope_dim], latents [rows, total, kv_rank + rope_dim], mask [rows, new, total]
    -> [rows, new, heads, value_dim].
    """
    rows, num_new, heads, _ = query.shape
    kv_rank = up.weight.shape[2]
    flat = query.reshape(rows * num_new, heads, -1)
    absorbed = torch.bmm(flat[..., : up.nope_dim].transpose(0, 1), up.key).transpose(0, 1)  # [rows * new, heads, rank]
    folded = torch.cat((absorbed, flat[..., up.nope_dim :]), dim=-1).view(rows, 1, num_new * heads, -1)
    keys = latents[:, None]
    folded_mask = mask[:, :, None].expand(-1, -1, heads, -1).reshape(rows, 1, num_new * heads, -1)
    attended = attend(folded, keys, keys[..., :kv_rank], attn_mask=folded_mask, scale=scale)
    by_head = attended.view(rows * num_new, heads, kv_rank).transpose(0, 1)
    return torch.bmm(by_head, up.value.transpose(1, 2)).transpose(0, 1).reshape(rows, num_new, heads, -1)


def attend_expanded(
    query: torch.Tensor,
    latents: torch.Tensor,
    mask: torch.Tensor | None,
    scale: float,
    up: LatentUp,
    attend: Attend = torch_attention,
) -> torch.Tensor:
    """
    Attend over the keys and values that the latents stand for.

    query [new, heads, nope_dim + rope_dim], latents [total, kv_rank + rope_dim] -> [new, heads, value_dim]. A mask
    [new, total] of None means that all tokens are new and attention is causal.
    """
    heads, _, kv_rank = up.weight.shape
    expanded = functional.linear(latents[:, :kv_rank], up.weight.flatten(0, 1)).view(latents.shape[0], heads, -1)
    rotated = latents[:, None, kv_rank:].expand(-1, heads, -1)
    keys = torch.cat((expanded[..., : up.nope_dim], rotated), dim=-1).transpose(0, 1)  # [heads, total, query_dim]
    values = expanded[..., up.nope_dim :].transpose(0, 1)
    attended = attend(
        query.transpose(0, 1)[None], keys[None], values[None], attn_mask=mask, is_causal=mask is None, scale=scale
    )
    return attended[0].transpose(0, 1)


def is_absorbing_cheaper(num_new: int, num_total: int, up: LatentUp, query_dim: int) -> bool:
    """Compare the multiplications of the two forms for `num_new` tokens that attend to `num_total`."""
    _, up_dim, kv_rank = up.weight.shape
    rope_dim, value_dim = query_dim - up.nope_dim, up_dim - up.nope_dim
    absorbed = num_new * kv_rank * up_dim + num_new * num_total * (2 * kv_rank + rope_dim)
    expanded = num_total * kv_rank * up_dim + num_new * num_total * (query_dim + value_dim)
    return absorbed < expanded


def _attend_decode(
    out: torch.Tensor,
    query: torch.Tensor,
    cache: torch.Tensor,
    group: DecodeGroup,
    scale: float,
    up: LatentUp,
    attend: Attend,
) -> None:
    num_rows = group.rows.shape[0]
    latents = cache.index_select(0, group.block_table.flatten()).view(num_rows, -1, cache.shape[-1]).to(query.dtype)
    rows = query.index_select(0, group.rows)[:, None]
    out.index_copy_(0, group.rows, attend_absorbed(rows, latents, group.mask[:, None], scale, up, attend)[:, 0])


def attend_chunk(
    out: torch.Tensor,
    query: torch.Tensor,
    latent: torch.Tensor,
    gather: Callable[[torch.Tensor], torch.Tensor],
    chunk: PrefillChunk,
    scale: float,
    up: LatentUp,
    attend: Attend = torch_attention,
) -> None:
    """Write the attention of one chunk into its rows of `out`; `gather(block_ids)` reads latents from the cache."""
    q, total = query[chunk.begin : chunk.end], chunk.start + chunk.end - chunk.begin
    if chunk.start == 0:
        out[chunk.begin : chunk.end] = attend_expanded(q, latent[chunk.begin : chunk.end], None, scale, up, attend)
        return
    latents = gather(chunk.block_ids)[:total].to(query.dtype)
    positions = torch.arange(total, device=query.device)
    mask = positions[None, :] <= positions[chunk.start :, None]  # [new, total]
    if is_absorbing_cheaper(q.shape[0], total, up, q.shape[2]):
        out[chunk.begin : chunk.end] = attend_absorbed(q[None], latents[None], mask[None], scale, up, attend)[0]
    else:
        out[chunk.begin : chunk.end] = attend_expanded(q, latents, mask, scale, up, attend)
