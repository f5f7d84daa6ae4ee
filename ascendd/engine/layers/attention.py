"""Causal self-attention over the paged cache."""

from __future__ import annotations

import torch

from ascendd.config.model_facts import ModelFacts
from ascendd.config.plan import kv_heads_per_rank
from ascendd.engine.layers.forward_context import ForwardContext
from ascendd.engine.layers.norm import RMSNorm
from ascendd.engine.layers.weight_scope import WeightScope


class Attention:
    """
    One fused projection to q, k and v; rotary; paged attention; output projection. A rank has whole heads of its own.

    Two variations that facts ask for: a norm over each query and key head, and rotation of a head's first part only.
    """

    def __init__(self, scope: WeightScope, facts: ModelFacts, layer_index: int) -> None:
        self._kernels = scope.device.kernels
        self._qkv_proj = scope.linear("qkv_proj")
        self._o_proj = scope.row_linear("o_proj")
        self._num_heads = facts.num_heads // scope.group.size
        self._num_kv_heads = kv_heads_per_rank(facts, scope.group.size)
        self._head_dim = facts.head_dim
        self._rotary_dim = facts.rotary_dim
        self._scale = facts.attention_scale
        self._q_norm = RMSNorm(scope, "q_norm", facts.rms_norm_eps) if facts.qk_norm else None
        self._k_norm = RMSNorm(scope, "k_norm", facts.rms_norm_eps) if facts.qk_norm else None
        self._layer_index = layer_index

    def forward(self, x: torch.Tensor, context: ForwardContext) -> torch.Tensor:
        """Attend. x [num_tokens, hidden] -> [num_tokens, hidden]."""
        num_tokens, num_rotated = x.shape[0], self._num_heads + self._num_kv_heads
        qkv = self._qkv_proj(x).view(num_tokens, num_rotated + self._num_kv_heads, self._head_dim)
        if self._q_norm is not None and self._k_norm is not None:
            query, _ = self._q_norm.forward(qkv[:, : self._num_heads], None)
            key, _ = self._k_norm.forward(qkv[:, self._num_heads : num_rotated], None)
            query, key = self._rotate(query, context), self._rotate(key, context)
        else:
            rotated = self._rotate(qkv[:, :num_rotated], context)
            query, key = rotated[:, : self._num_heads], rotated[:, self._num_heads :]
        value = qkv[:, num_rotated:]
        cache = context.kv_cache(self._layer_index)
        self._kernels.store_kv(cache, key, value, context.attention.slot_mapping)
        out = self._kernels.paged_attention(query, key, value, cache, context.attention, self._scale)
        return self._o_proj(out.reshape(num_tokens, -1))

    def _rotate(self, heads: torch.Tensor, context: ForwardContext) -> torch.Tensor:
        """Rotate heads [num_tokens, heads, head_dim]; may overwrite them."""
        if self._rotary_dim == self._head_dim:
            return self._kernels.rope(heads, context.cos, context.sin)
        part = heads[..., : self._rotary_dim]
        part.copy_(self._kernels.rope(part, context.cos, context.sin))
        return heads
