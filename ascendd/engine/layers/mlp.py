"""The gated feed-forward block: down(silu(gate(x)) * up(x)) (Shazeer, 2020)."""

from __future__ import annotations

import torch

from ascendd.engine.layers.weight_scope import WeightScope


class GatedMLP:
    """
    Gate and up are one projection; their product needs no extra memory.

    A rank has a slice of the inner features. With `is_partial` the results are left for the caller to add up.
    """

    def __init__(self, scope: WeightScope, *, is_partial: bool = False) -> None:
        self._kernels = scope.device.kernels
        self._gate_up_proj = scope.linear("gate_up_proj")
        self._down_proj = scope.linear("down_proj") if is_partial else scope.row_linear("down_proj")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map x [num_tokens, hidden] to [num_tokens, hidden]."""
        return self._down_proj(self._kernels.silu_and_mul(self._gate_up_proj(x)))
