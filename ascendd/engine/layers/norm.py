"""Root-mean-square normalisation (Zhang and Sennrich, 2019), fused with the residual addition before it."""

from __future__ import annotations

import torch

from ascendd.engine.layers.weight_scope import WeightScope


class RMSNorm:
    """x / rms(x) * weight."""

    def __init__(self, scope: WeightScope, name: str, eps: float) -> None:
        self._kernels = scope.device.kernels
        self._weight = scope.tensor(f"{name}.weight")
        self._eps = eps

    def forward(self, x: torch.Tensor, residual: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (norm(x + residual), x + residual); without a residual x itself becomes it."""
        if residual is None:
            return self._kernels.rms_norm(x, self._weight, self._eps), x
        return self._kernels.add_rms_norm(x, residual, self._weight, self._eps)
