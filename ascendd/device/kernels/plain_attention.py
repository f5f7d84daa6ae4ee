"""Attention from plain matrix products: for devices where torch's own form is itself a vendor's fused operator."""

from __future__ import annotations

from typing import Protocol

import torch
from torch.nn import functional

# Scores of one slice of queries take at most this much memory, in float32.
_MAX_SCORES_BYTES = 256 * 2**20


class Attend(Protocol):
    """torch.nn.functional.scaled_dot_product_attention, as far as kernels use it."""

    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *,
        attn_mask: torch.Tensor | None = None,
        is_causal: bool = False,
        scale: float,
    ) -> torch.Tensor:
        """Query [..., new, dim], key, value [..., total, dim] -> [..., new, value_dim]; a mask is True where seen."""


def torch_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    attn_mask: torch.Tensor | None = None,
    is_causal: bool = False,
    scale: float,
) -> torch.Tensor:
    """Attend by whatever torch takes for the fastest form."""
    return functional.scaled_dot_product_attention(
        query, key, value, attn_mask=attn_mask, is_causal=is_causal, scale=scale
    )


def plain_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    attn_mask: torch.Tensor | None = None,
    is_causal: bool = False,
    scale: float,
) -> torch.Tensor:
    """Attend by two products and a softmax in float32, a slice of the queries at a time."""
    num_new, total = query.shape[-2], key.shape[-2]
    rows_bytes = max(1, query[..., 0, 0].numel()) * total * 4
    step = max(1, min(num_new, _MAX_SCORES_BYTES // rows_bytes))
    positions = torch.arange(total, device=query.device)
    keys = key.transpose(-1, -2)
    parts = []
    for begin in range(0, num_new, step):
        rows = slice(begin, min(begin + step, num_new))
        scores = torch.matmul(query[..., rows, :], keys).float().mul_(scale)
        seen = None
        if is_causal:
            seen = positions[None, :] <= positions[rows, None]
        elif attn_mask is not None:
            seen = attn_mask[..., rows, :] if attn_mask.shape[-2] > 1 else attn_mask
        if seen is not None:
            scores = scores.masked_fill_(~seen, -torch.inf)
        parts.append(torch.matmul(scores.softmax(dim=-1).to(value.dtype), value))
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-2)
