"""Token embedding and the head that turns hidden states into logits."""

from __future__ import annotations

import torch
from torch.nn import functional

from ascendd.config.model_facts import ModelFacts
from ascendd.engine.layers.weight_scope import WeightScope


class TokenEmbedding:
    """Row lookup. With tied embeddings LMHead packs the same matrix once more."""

    def __init__(self, scope: WeightScope) -> None:
        self.weight = scope.tensor("embed_tokens.weight")

    def forward(self, token_ids: torch.Tensor) -> torch.Tensor:
        """token_ids [num_tokens] -> [num_tokens, hidden]."""
        return functional.embedding(token_ids, self.weight)


class LMHead:
    """Logits of the rows that sample."""

    def __init__(self, scope: WeightScope, facts: ModelFacts, embedding: TokenEmbedding) -> None:
        if facts.tie_word_embeddings:
            self._proj = scope.device.pack_linear(embedding.weight, None)
        else:
            self._proj = scope.linear("lm_head")

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Map hidden [num_samples, hidden] to logits [num_samples, vocab] in float32, which sampling needs."""
        return self._proj(hidden).float()
