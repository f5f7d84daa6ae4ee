"""DeepSeek-V2 (2024): latent attention, and a mixture of experts in all but the first layers."""

from __future__ import annotations

import torch

from ascendd.config.model_facts import ModelFacts
from ascendd.engine.layers.forward_context import ForwardContext
from ascendd.engine.layers.mla import LatentAttention
from ascendd.engine.layers.mlp import GatedMLP
from ascendd.engine.layers.moe import MixtureOfExperts
from ascendd.engine.layers.norm import RMSNorm
from ascendd.engine.layers.weight_scope import WeightScope
from ascendd.engine.models.llama import DecoderLayer, LlamaForCausalLM


class DeepseekV2DecoderLayer:
    """The frame of Llama's layer: norm, attention, norm, MLP, with the residual beside."""

    def __init__(self, scope: WeightScope, facts: ModelFacts, layer_index: int) -> None:
        self._input_norm = RMSNorm(scope, "input_layernorm", facts.rms_norm_eps)
        self._attention = LatentAttention(scope.child("self_attn"), facts, layer_index)
        self._post_norm = RMSNorm(scope, "post_attention_layernorm", facts.rms_norm_eps)
        has_experts = facts.experts is not None and layer_index >= facts.experts.first_layer
        self._mlp = MixtureOfExperts(scope.child("mlp"), facts) if has_experts else GatedMLP(scope.child("mlp"))

    def forward(
        self, x: torch.Tensor, residual: torch.Tensor | None, context: ForwardContext
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (output, residual), each [num_tokens, hidden]."""
        x, residual = self._input_norm.forward(x, residual)
        x = self._attention.forward(x, context)
        x, residual = self._post_norm.forward(x, residual)
        return self._mlp.forward(x), residual


class DeepseekV2ForCausalLM(LlamaForCausalLM):
    """Embedding, norm and head are Llama's."""

    def make_layer(self, scope: WeightScope, facts: ModelFacts, layer_index: int) -> DecoderLayer:
        """Build a layer of this architecture."""
        return DeepseekV2DecoderLayer(scope, facts, layer_index)
