"""The vendor's table of torch, torch_npu and CANN, as the installer applies it."""

from __future__ import annotations

import pytest
from ascendd.installer.torch_stack import torch_problems


@pytest.mark.parametrize(
    ("torch", "torch_npu", "cann"),
    [("2.9.0", "2.9.0", "8.5.0"), ("2.9.0+cpu", "2.9.0.post2", "9.0.0"), ("2.8.0", "2.8.0", "8.3.rc1")],
)
def test_a_listed_pair_has_no_problem(torch: str, torch_npu: str, cann: str) -> None:
    """Local parts, post-releases and the case of RC are no difference."""
    assert torch_problems({"torch": torch, "torch-npu": torch_npu}, cann, allow_unverified=False) == []


@pytest.mark.parametrize(
    ("pins", "cann", "said"),
    [
        ({"torch": "2.9.0"}, "8.5.0", "there is no wheel of torch_npu"),
        ({"torch-npu": "2.9.0"}, "8.5.0", "there is no wheel of torch for torch_npu 2.9.0"),
        ({"torch": "2.8.0", "torch-npu": "2.9.0"}, "8.5.0", "torch_npu 2.9.0 is for torch 2.9.0"),
    ],
)
def test_what_never_works_is_refused_whatever_is_allowed(pins: dict[str, str], cann: str, said: str) -> None:
    """A missing half or a torch_npu for another torch is refused by name, with what the vendor lists."""
    (problem,) = torch_problems(pins, cann, allow_unverified=True)

    assert problem.startswith(said)
    assert "torch_npu 2.9.0 with torch 2.9.0" in problem


def test_a_pair_without_a_verdict_needs_the_operator() -> None:
    """A pair that no row lists for this CANN is refused until --allow-unverified says otherwise."""
    pins = {"torch": "2.13.0", "torch-npu": "2.13.0"}

    (problem,) = torch_problems(pins, "8.5.0", allow_unverified=False)

    assert problem.startswith(
        "torch_npu 2.13.0 with torch 2.13.0 has no verdict for CANN 8.5.0; the vendor lists for it: "
    )
    assert problem.endswith("or add --allow-unverified")
    assert torch_problems(pins, "8.5.0", allow_unverified=True) == []


def test_an_unknown_cann_is_said_so() -> None:
    """Without a version of CANN there is nothing to look up."""
    (problem,) = torch_problems({"torch": "2.9.0", "torch-npu": "2.9.0"}, None, allow_unverified=False)

    assert "the vendor's table has no row for a CANN of unknown version" in problem
