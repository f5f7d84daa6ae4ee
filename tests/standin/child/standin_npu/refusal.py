"""How a meaning refuses what its operator's document excludes and the wheel's shape functions let pass."""

from __future__ import annotations

import torch

HALVES = (torch.float16, torch.bfloat16)
FLOATS = (*HALVES, torch.float32)


def require(is_met: bool, rule: str) -> None:
    """
    Raise RuntimeError unless `is_met`; `rule` is what the document demands, with the value that broke it.

    The code is that of aclnn's check of parameters (aclnn_base.h: ACLNN_ERR_PARAM_INVALID).
    """
    if not is_met:
        raise RuntimeError(f"the operator's document demands: {rule}, error code is 161002")
