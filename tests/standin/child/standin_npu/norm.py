"""Normalisation. Sums in fp32; hardware sums in its own order."""

from __future__ import annotations

import torch

from standin_npu.meaning import BETA, described
from standin_npu.refusal import FLOATS, require


def rms_norm(x: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-6) -> tuple[torch.Tensor, torch.Tensor]:
    """Return x / sqrt(mean(x^2) + epsilon) * gamma over gamma's axes, and the reciprocal root in fp32."""
    axes = tuple(range(x.dim() - gamma.dim(), x.dim()))
    require(x.dtype in FLOATS, f"x is float16, bfloat16 or float32, not {x.dtype}")
    require(gamma.dtype in {x.dtype, torch.float32}, f"gamma has x's dtype {x.dtype} or float32, not {gamma.dtype}")
    require(
        gamma.dim() > 0 and tuple(x.shape[axes[0] :]) == tuple(gamma.shape),
        f"gamma {tuple(gamma.shape)} has the last axes of x {tuple(x.shape)}",
    )
    wide = x.float()
    reciprocal = torch.rsqrt(wide.square().mean(axes, keepdim=True) + epsilon)
    return (wide * reciprocal * gamma.float()).to(x.dtype), reciprocal


def add_rms_norm(
    x1: torch.Tensor, x2: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return rms_norm of x1 + x2, its reciprocal root, and x1 + x2."""
    require(x1.shape == x2.shape, f"x1 {tuple(x1.shape)} and x2 {tuple(x2.shape)} have one shape")
    require(
        x1.dtype == x2.dtype == gamma.dtype, f"x1, x2, gamma have one dtype, not {x1.dtype}, {x2.dtype}, {gamma.dtype}"
    )
    total = x1 + x2
    normed, reciprocal = rms_norm(total, gamma, epsilon)
    return normed, reciprocal, total


MEANINGS = {
    "npu_rms_norm": described(rms_norm, f"{BETA}torch_npu-npu_rms_norm"),
    "npu_add_rms_norm": described(add_rms_norm, "torch_npu-npu_add_rms_norm"),
}
