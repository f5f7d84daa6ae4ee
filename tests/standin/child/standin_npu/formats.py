"""
Storage formats. The stand-in has the plain one only: a cast checks its arguments and leaves the bytes alone.

Numbers of formats: aclFormat in acl_base_rt.h (2 ND, 29 FRACTAL_NZ). A fractal tensor is padded to 16 x 16 on hardware and
takes more memory there than here.
"""

from __future__ import annotations

import torch

from standin_npu.meaning import BETA, described
from standin_npu.refusal import require

ND, FRACTAL_NZ = 2, 29


def format_cast(
    x: torch.Tensor,
    acl_format: int | torch.Tensor,
    *,
    customize_dtype: int | None = None,
    input_dtype: int | None = None,
) -> torch.Tensor:
    """Return x in another format, or in that of another tensor: here a copy with the same bytes."""
    return _note(x.clone(memory_format=torch.contiguous_format), acl_format)


def format_cast_(
    x: torch.Tensor,
    acl_format: int | torch.Tensor,
    *,
    customize_dtype: int | None = None,
    input_dtype: int | None = None,
) -> torch.Tensor:
    """Change the format of x itself."""
    return _note(x, acl_format)


def _note(x: torch.Tensor, acl_format: int | torch.Tensor) -> torch.Tensor:
    if isinstance(acl_format, torch.Tensor):
        acl_format = ND
    require(acl_format in {ND, FRACTAL_NZ}, f"format {ND} (ND) or {FRACTAL_NZ} (FRACTAL_NZ), not {acl_format}")
    require(acl_format == ND or x.dim() >= 2, f"a fractal format has two axes or more, not {x.dim()}")
    return x


MEANINGS = {
    "npu_format_cast": described(format_cast, f"{BETA}torch_npu-npu_format_cast"),
    "npu_format_cast_": described(format_cast_, f"{BETA}torch_npu-npu_format_cast_"),
}
