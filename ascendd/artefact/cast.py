"""The cast of weights to the dtype of the artefact, and what float16 does to values that other dtypes hold."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ascendd.artefact.manifest import CastCount

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
_PIECE_ELEMENTS = 1 << 18  # fits a cache; numpy counts truth values several times faster than torch

# Where rounding to the nearest float16 (ties to even) changes the kind of the result.
_FIRST_INFINITE = 65520.0  # halfway between 65504 and what would be 65536
_FIRST_NORMAL = 2.0**-14 - 2.0**-25  # halfway between the largest subnormal and the smallest normal
_LAST_ZERO = 2.0**-25  # half of the smallest subnormal


def cast(tensor: torch.Tensor, dtype: torch.dtype, *, clamp: bool = False) -> torch.Tensor:
    """Return `tensor` in `dtype`; with `clamp`, values beyond the range of float16 become its largest."""
    narrowed = tensor.to(dtype)
    if clamp and dtype is torch.float16:
        # After the cast: bfloat16 has no 65504 to clamp to, it would round to 65536 and become infinite all the same.
        limit = torch.finfo(torch.float16).max
        return narrowed.clamp(-limit, limit)
    return narrowed


def count_losses(tensor: torch.Tensor) -> CastCount:
    """Count the values of `tensor` that float16 cannot hold; NaN and infinities of the source are not among them."""
    overflow = below_normal = rounds_to_zero = is_zero = 0
    for piece in _pieces(tensor):
        magnitude = np.abs(piece)
        if not magnitude.max() < _FIRST_INFINITE:  # true for NaN as well
            overflow += int(np.count_nonzero((magnitude >= _FIRST_INFINITE) & np.isfinite(piece)))
        below_normal += int(np.count_nonzero(magnitude < _FIRST_NORMAL))
        rounds_to_zero += int(np.count_nonzero(magnitude <= _LAST_ZERO))
        is_zero += int(np.count_nonzero(piece == 0))
    return CastCount(overflow=overflow, subnormal=below_normal - rounds_to_zero, zero=rounds_to_zero - is_zero)


def count_not_finite(tensor: torch.Tensor) -> int:
    """Count NaN and infinities."""
    return sum(int(piece.size - np.count_nonzero(np.isfinite(piece))) for piece in _pieces(tensor))


def _pieces(tensor: torch.Tensor) -> Iterator[npt.NDArray[np.floating[Any]]]:
    """Yield the values in runs of a bounded length, so that masks stay small."""
    flat = tensor.reshape(-1)
    for start in range(0, flat.numel(), _PIECE_ELEMENTS):
        piece = flat[start : start + _PIECE_ELEMENTS]
        yield (piece.float() if piece.dtype is torch.bfloat16 else piece).numpy()  # numpy has no bfloat16
