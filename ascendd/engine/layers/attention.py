"""Causal self-attention over the paged cache."""

from __future__ import annotations

import torch

from ascendd.config.model_facts import ModelFacts
from ascendd.engine.layers.forward_context import ForwardContext
from ascendd.engine.layers.weight_scope import WeightScope


class Attention:
    """One fused projection to q, k and v; rotary; paged attention; output projection."""

    def __init__(self, scope: WeightScope, facts: ModelFacts, layer_index: int) -> None:
        self._kernels = scope.device.kernels
        self._qkv_proj = scope.linear("qkv_proj")
        self._o_proj = scope.linear("o_proj")
        self._num_heads = facts.num_heads
        self._num_kv_heads = facts.num_kv_heads
        self._head_dim = facts.head_dim
        self._scale = facts.head_dim**-0.5
        self._layer_index = layer_index

    def forward(self, x: torch.Tensor, context: ForwardContext) -> torch.Tensor:
        """Attend. x [num_tokens, hidden] -> [num_tokens, hidden]."""
        num_tokens, num_rotated = x.shape[0], self._num_heads + self._num_kv_heads
        qkv = self._qkv_proj(x).view(num_tokens, num_rotated + self._num_kv_heads, self._head_dim)
        rotated = self._kernels.rope(qkv[:, :num_rotated], context.cos, context.sin)
        query, key, value = rotated[:, : self._num_heads], rotated[:, self._num_heads :], qkv[:, num_rotated:]
        cache = context.kv_caches[self._layer_index]
        self._kernels.store_kv(cache, key, value, context.attention.slot_mapping)
        out = self._kernels.paged_attention(query, key, value, cache, context.attention, self._scale)
        return self._o_proj(out.reshape(num_tokens, -1))
