"""ForwardContext: the only holder of what varies from step to step besides the tokens."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ascendd.device.base import AttentionContext


@dataclass(slots=True)
class ForwardContext:
    """
    `cos`, `sin` [num_tokens, 1, rotary_dim]; `kv_caches` one tensor for each layer from
    `first_layer` on; `sample_rows` [num_samples] int64.

    Models compute logits only for `sample_rows` of the flat batch, ascending, since no other row's are used.
    """

    cos: torch.Tensor
    sin: torch.Tensor
    kv_caches: list[torch.Tensor]
    attention: AttentionContext
    sample_rows: torch.Tensor
    first_layer: int = 0

    def kv_cache(self, layer_index: int) -> torch.Tensor:
        """Return the cache of a layer, which counts from the model's first, wherever this stage begins."""
        return self.kv_caches[layer_index - self.first_layer]
