"""Multi-head latent attention (DeepSeek-V2, 2024): what is cached is one low-rank vector a token, not K and V."""

from __future__ import annotations

import torch

from ascendd.config.model_facts import ModelFacts
from ascendd.device.base import LatentUp
from ascendd.engine.layers.forward_context import ForwardContext
from ascendd.engine.layers.norm import RMSNorm
from ascendd.engine.layers.weight_scope import WeightScope

# The norms of the latents have this constant whatever rms_norm_eps is, in the published code and in transformers.
_LATENT_NORM_EPS = 1e-6


class LatentAttention:
    """
    Hidden state -> query, through a latent of its own or directly, and -> latent c and shared rotated key k_r.

    The cache gets [c; k_r]. W_UK and W_UV (kv_b_proj) are kept as they are; the kernel either expands latents with them
    or absorbs them into query and output, which is the same sum in another order.
    """

    def __init__(self, scope: WeightScope, facts: ModelFacts, layer_index: int) -> None:
        latent = facts.latent
        assert latent is not None
        self._kernels = scope.device.kernels
        self._latent = latent
        self._scale = facts.attention_scale
        self._layer_index = layer_index
        self._has_query_latent = latent.q_rank is not None
        if self._has_query_latent:
            self._qkv_a_proj = scope.linear("qkv_a_proj")
            self._q_a_norm = RMSNorm(scope, "q_a_layernorm", _LATENT_NORM_EPS)
            self._q_proj = scope.linear("q_b_proj")
        else:
            self._q_proj = scope.linear("q_proj")
            self._kv_a_proj = scope.linear("kv_a_proj_with_mqa")
        self._kv_a_norm = RMSNorm(scope, "kv_a_layernorm", _LATENT_NORM_EPS)
        kv_b = scope.tensor("kv_b_proj.weight")
        self._up = LatentUp(kv_b.view(-1, latent.nope_dim + latent.value_dim, latent.kv_rank), latent.nope_dim)
        self._o_proj = scope.row_linear("o_proj")

    def forward(self, x: torch.Tensor, context: ForwardContext) -> torch.Tensor:
        """Attend. x [num_tokens, hidden] -> [num_tokens, hidden]."""
        query, latent = self._project(x)
        for rotated in (query[..., self._latent.nope_dim :], latent[:, None, self._latent.kv_rank :]):
            rotated.copy_(self._kernels.rope_interleaved(rotated, context.cos, context.sin))
        cache = context.kv_cache(self._layer_index)
        self._kernels.store_latent(cache, latent, context.attention.slot_mapping)
        out = self._kernels.latent_attention(query, latent, cache, context.attention, self._scale, self._up)
        return self._o_proj(out.reshape(x.shape[0], -1))

    def _project(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return query [num_tokens, heads, query_dim] and latent [num_tokens, kv_rank + rope_dim], not yet rotated."""
        if self._has_query_latent:
            both = self._qkv_a_proj(x)
            query_latent, latent = both[:, : self._latent.q_rank], both[:, self._latent.q_rank :]
            query = self._q_proj(self._q_a_norm.forward(query_latent, None)[0])
        else:
            query, latent = self._q_proj(x), self._kv_a_proj(x)
        content = latent[:, : self._latent.kv_rank]
        content.copy_(self._kv_a_norm.forward(content, None)[0])
        return query.view(x.shape[0], -1, self._latent.query_dim), latent
