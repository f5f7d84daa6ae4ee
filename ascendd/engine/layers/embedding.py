"""Token embedding and the head that turns hidden states into logits; both are cut over the vocabulary."""

from __future__ import annotations

import torch
from torch.nn import functional

from ascendd.config.model_facts import ModelFacts
from ascendd.engine.layers.weight_scope import WeightScope


class TokenEmbedding:
    """Row lookup. With tied embeddings LMHead packs the same matrix once more."""

    def __init__(self, scope: WeightScope) -> None:
        self.weight = scope.tensor("embed_tokens.weight")
        self._group = scope.group

    def forward(self, token_ids: torch.Tensor) -> torch.Tensor:
        """token_ids [num_tokens] -> [num_tokens, hidden]."""
        if self._group.size == 1:
            return functional.embedding(token_ids, self.weight)
        # Each token is in the rows of one rank; the others add zeros.
        num_rows = self.weight.shape[0]
        local = token_ids - self._group.rank * num_rows
        is_here = (local >= 0) & (local < num_rows)
        rows = functional.embedding(local.clamp_(0, num_rows - 1), self.weight)
        return self._group.all_reduce(rows.mul_(is_here[:, None]))


class LMHead:
    """Logits of the rows that sample."""

    def __init__(self, scope: WeightScope, facts: ModelFacts, embedding: TokenEmbedding | None) -> None:
        if embedding is not None and facts.tie_word_embeddings:
            self._proj = scope.device.pack_linear(embedding.weight, None)
        else:
            self._proj = scope.linear("lm_head")

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """
        Map hidden [num_samples, hidden] to logits [num_samples, vocab] in float32, which sampling needs.

        A rank of several has the logits of its own part of the vocabulary, padding included.
        """
        return self._proj(hidden).float()
