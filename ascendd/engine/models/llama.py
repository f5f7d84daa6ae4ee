"""Llama (Touvron et al., 2023): pre-norm decoder layers of grouped-query attention and a gated MLP."""

from __future__ import annotations

from typing import Protocol

import torch

from ascendd.config.model_facts import ModelFacts
from ascendd.engine.layers.attention import Attention
from ascendd.engine.layers.embedding import LMHead, TokenEmbedding
from ascendd.engine.layers.forward_context import ForwardContext
from ascendd.engine.layers.mlp import GatedMLP
from ascendd.engine.layers.norm import RMSNorm
from ascendd.engine.layers.weight_scope import WeightScope


class DecoderLayer(Protocol):
    """One layer of the stack: (x, residual) in, (output, residual) out, each [num_tokens, hidden]."""

    def forward(
        self, x: torch.Tensor, residual: torch.Tensor | None, context: ForwardContext
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute the layer; a residual of None means that x is it."""


class LlamaDecoderLayer:
    """Attention and MLP, each behind a norm; the residual travels beside x so that its addition fuses into the norm."""

    def __init__(self, scope: WeightScope, facts: ModelFacts, layer_index: int) -> None:
        self._input_norm = RMSNorm(scope, "input_layernorm", facts.rms_norm_eps)
        self._attention = Attention(scope.child("self_attn"), facts, layer_index)
        self._post_norm = RMSNorm(scope, "post_attention_layernorm", facts.rms_norm_eps)
        self._mlp = GatedMLP(scope.child("mlp"))

    def forward(
        self, x: torch.Tensor, residual: torch.Tensor | None, context: ForwardContext
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (output, residual), each [num_tokens, hidden]."""
        x, residual = self._input_norm.forward(x, residual)
        x = self._attention.forward(x, context)
        x, residual = self._post_norm.forward(x, residual)
        return self._mlp.forward(x), residual


class LlamaForCausalLM:
    """
    Embed, layers, norm, head: of these what the scope has weights for, all of the model or one stage of it.

    A stage begins with `enter`, or with what the stage before it computed; the last one ends with `logits`.
    """

    def __init__(self, scope: WeightScope, facts: ModelFacts) -> None:
        body = scope.child("model")
        self._embedding = TokenEmbedding(body) if body.has("embed_tokens.weight") else None
        here = [index for index in range(facts.num_layers) if body.has(f"layers.{index}.input_layernorm.weight")]
        self._layers = [self.make_layer(body.child(f"layers.{index}"), facts, index) for index in here]
        has_head = body.has("norm.weight")
        self._norm = RMSNorm(body, "norm", facts.rms_norm_eps) if has_head else None
        self._head = LMHead(scope, facts, self._embedding) if has_head else None

    def make_layer(self, scope: WeightScope, facts: ModelFacts, layer_index: int) -> DecoderLayer:
        """Build one layer; architectures whose layers are of another kind have their own."""
        return LlamaDecoderLayer(scope, facts, layer_index)

    def enter(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Embed the tokens. token_ids [num_tokens] -> [num_tokens, hidden]."""
        assert self._embedding is not None
        return self._embedding.forward(token_ids)

    def forward(
        self, x: torch.Tensor, residual: torch.Tensor | None, context: ForwardContext
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute the layers; a residual of None means that x is it. All are [num_tokens, hidden]."""
        for layer in self._layers:
            x, residual = layer.forward(x, residual, context)
        assert residual is not None
        return x, residual

    def logits(self, x: torch.Tensor, residual: torch.Tensor, context: ForwardContext) -> torch.Tensor:
        """Return logits [num_samples, vocab] of the context's sample rows, of one rank's part of the vocabulary."""
        assert self._norm is not None
        assert self._head is not None
        if context.sample_rows.shape[0] != x.shape[0]:
            x = x.index_select(0, context.sample_rows)
            residual = residual.index_select(0, context.sample_rows)
        hidden, _ = self._norm.forward(x, residual)
        return self._head.forward(hidden)
