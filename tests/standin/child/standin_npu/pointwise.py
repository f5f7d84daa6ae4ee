"""Operators on each element or pair: rotary positions, the gated unit, casts."""

from __future__ import annotations

import torch

from standin_npu.meaning import BETA, described
from standin_npu.refusal import FLOATS, require

# The numbers of c10::ScalarType.
_DTYPES = {
    0: torch.uint8, 1: torch.int8, 2: torch.int16, 3: torch.int32, 4: torch.int64, 5: torch.float16, 6: torch.float32,
    7: torch.float64, 11: torch.bool, 15: torch.bfloat16,
}  # fmt: skip


def rotary_mul(
    x: torch.Tensor, r1: torch.Tensor, r2: torch.Tensor, rotary_mode: str = "half", rotate: torch.Tensor | None = None
) -> torch.Tensor:
    """Return x * r1 + rotated(x) * r2: halves swapped, or neighbours, the first of them negated."""
    require(rotate is None, "no `rotate` matrix in the stand-in")
    require(rotary_mode in {"half", "interleave"}, f"rotary_mode half or interleave, not {rotary_mode!r}")
    require(x.dtype in FLOATS and x.dtype == r1.dtype == r2.dtype, f"one dtype, not {x.dtype}, {r1.dtype}, {r2.dtype}")
    require(x.dim() == 4 and r1.dim() == 4, f"four axes, not {x.dim()} and {r1.dim()}")
    require(r1.shape == r2.shape, f"r1 {tuple(r1.shape)} and r2 {tuple(r2.shape)} have one shape")
    require(
        x.shape[-1] == r1.shape[-1] and x.shape[-1] % 2 == 0, f"one even last axis, not {x.shape[-1]}, {r1.shape[-1]}"
    )
    require(
        all(mine == its or its == 1 for mine, its in zip(x.shape, r1.shape, strict=True)),
        f"r1 {tuple(r1.shape)} has x's {tuple(x.shape)} axes, or 1",
    )
    wide = x.float()
    if rotary_mode == "half":
        first, second = wide.chunk(2, -1)
        rotated = torch.cat((-second, first), -1)
    else:
        rotated = torch.stack((-wide[..., 1::2], wide[..., ::2]), -1).flatten(-2)
    return (wide * r1.float() + rotated * r2.float()).to(x.dtype)


def swiglu(x: torch.Tensor, dim: int = -1) -> torch.Tensor:
    """Return a * sigmoid(a) * b for the halves a, b of x along `dim`."""
    require(x.dtype in FLOATS, f"float16, bfloat16 or float32, not {x.dtype}")
    require(x.shape[dim] % 2 == 0, f"an even size along dim {dim}, not {x.shape[dim]}")
    require(x.is_contiguous(), "a contiguous input")
    gate, up = x.float().chunk(2, dim)
    return (gate * gate.sigmoid() * up).to(x.dtype)


def dtype_cast(x: torch.Tensor, dtype: torch.dtype | int, input_dtype: int | None = None) -> torch.Tensor:
    """Return x in `dtype`: torch's own, or its number, which is how the public operator gets it."""
    require(input_dtype is None, f"no dtype of torch_npu's own as input in the stand-in, not {input_dtype}")
    if isinstance(dtype, int):
        require(dtype in _DTYPES, f"the number of a dtype of torch, not {dtype}")
        dtype = _DTYPES[dtype]
    return x.to(dtype)


_CAST_PAGE = f"{BETA}torch_npu-npu_dtype_cast"
MEANINGS = {
    "npu_rotary_mul": described(rotary_mul, "torch_npu-npu_rotary_mul"),
    "npu_swiglu": described(swiglu, f"{BETA}torch_npu-npu_swiglu"),
    "npu_dtype_cast": described(dtype_cast, _CAST_PAGE),
    # The same behind Tensor.to, which the page names as the way to go.
    "_npu_dtype_cast": described(dtype_cast, _CAST_PAGE),
}
