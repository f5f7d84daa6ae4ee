"""What float16 does to values, counted by magnitude and compared with the cast itself."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ascendd.artefact.cast import cast, count_losses, count_not_finite
from ascendd.artefact.manifest import CastCount

pytestmark = pytest.mark.torch


def counted_by_casting(tensor: torch.Tensor) -> CastCount:
    """Count what a cast really did."""
    after = tensor.to(torch.float16)
    magnitude = after.abs()
    smallest = torch.finfo(torch.float16).smallest_normal
    return CastCount(
        overflow=int((after.isinf() & tensor.isfinite()).sum()),
        subnormal=int(((magnitude > 0) & (magnitude < smallest)).sum()),
        zero=int(((after == 0) & (tensor != 0)).sum()),
    )


def test_every_bfloat16_is_judged_as_the_cast_does() -> None:
    """All 65,536 values of bfloat16, NaN and infinities among them."""
    values = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)

    assert count_losses(values) == counted_by_casting(values)


def test_float32_is_judged_as_the_cast_does() -> None:
    """A walk over the bit patterns of float32, of both signs."""
    bits = torch.arange(0, 2**31 - 1, 2048 - 1, dtype=torch.int64).to(torch.int32)
    values = torch.cat([bits.view(torch.float32), -bits.view(torch.float32)])

    assert count_losses(values) == counted_by_casting(values)


@pytest.mark.parametrize("border", [65520.0, 2.0**-14 - 2.0**-25, 2.0**-25])
def test_borders_round_as_the_cast_does(border: float) -> None:
    """On each border and one step to either side, of both signs."""
    exact = np.float32(border)
    steps = [exact, np.nextafter(exact, np.float32(0)), np.nextafter(exact, np.float32(np.inf))]
    values = torch.tensor([float(sign * step) for step in steps for sign in (1, -1)])

    assert count_losses(values) == counted_by_casting(values)


def test_harmless_values_count_nothing() -> None:
    """Zeros and values in the normal range of float16 lose only bits."""
    assert count_losses(torch.tensor([0.0, -0.0, 1.0, -65504.0, 6.2e-5])) == CastCount()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_clamp_cuts_to_the_largest(dtype: torch.dtype) -> None:
    """With clamp, values beyond the range become 65504, without it infinite."""
    values = torch.tensor([1e6, -1e6, 1.0], dtype=dtype)

    assert cast(values, torch.float16, clamp=True).tolist() == [65504.0, -65504.0, 1.0]
    assert torch.isinf(cast(values, torch.float16)).tolist() == [True, True, False]


def test_clamp_leaves_wider_dtypes_alone() -> None:
    """bfloat16 and float32 hold the value, so nothing is cut."""
    values = torch.tensor([1e6])

    assert cast(values, torch.float32, clamp=True).item() == 1e6
    assert cast(values, torch.bfloat16, clamp=True).item() == pytest.approx(1e6, rel=0.01)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_broken_values_are_counted(dtype: torch.dtype) -> None:
    """NaN and both infinities are found in every dtype, in any shape."""
    values = torch.tensor([[1.0, float("nan")], [float("inf"), float("-inf")]], dtype=dtype)

    assert count_not_finite(values) == 3
