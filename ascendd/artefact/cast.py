"""The cast of weights to the dtype of the artefact, and what float16 does to values that other dtypes hold."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ascendd.artefact.manifest import CastCount

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
_PIECE_ELEMENTS = 1 << 22


def cast(tensor: torch.Tensor, dtype: torch.dtype, *, clamp: bool = False) -> torch.Tensor:
    """Return `tensor` in `dtype`; with `clamp`, values beyond the range of float16 become its largest."""
    if clamp and dtype is torch.float16 and tensor.dtype is not torch.float16:
        limit = torch.finfo(torch.float16).max
        tensor = tensor.clamp(-limit, limit)
    return tensor.to(dtype)


def count_losses(tensor: torch.Tensor) -> CastCount:
    """Count the values of `tensor` that float16 cannot hold; NaN and infinities of the source are not among them."""
    smallest = torch.finfo(torch.float16).smallest_normal
    overflow = subnormal = zero = 0
    for piece in _pieces(tensor):
        after = piece.to(torch.float16)
        magnitude = after.abs()
        overflow += int((torch.isinf(after) & torch.isfinite(piece)).sum())
        subnormal += int(((magnitude > 0) & (magnitude < smallest)).sum())
        zero += int(((after == 0) & (piece != 0)).sum())
    return CastCount(overflow=overflow, subnormal=subnormal, zero=zero)


def count_not_finite(tensor: torch.Tensor) -> int:
    """Count NaN and infinities."""
    count = 0
    for piece in _pieces(tensor):
        count += piece.numel() - int(torch.isfinite(piece).sum())
    return count


def _pieces(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield the values in runs of a bounded length, so that masks stay small."""
    flat = tensor.reshape(-1)
    for start in range(0, flat.numel(), _PIECE_ELEMENTS):
        yield flat[start : start + _PIECE_ELEMENTS]
