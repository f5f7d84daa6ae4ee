"""The check of the fused kernels: what it makes of the proof's answer."""

from __future__ import annotations

import json

from ascendd.checks import CHECKS
from ascendd.checks.npu_kernels import NpuKernels, judge

from ascendd.host.command import CommandOutcome
from ascendd.preflight.check import Tier, Verdict
from ascendd.preflight.discover import select

GOOD = {"kernel": "rope", "passed": True, "detail": "largest deviation 0.05%"}
BAD = {"kernel": "experts", "passed": False, "detail": "largest deviation 12.00%"}


def outcome(answer: object, status: int = 0, noise: str = "Warning: a vendor library speaks\n") -> CommandOutcome:
    return CommandOutcome(("python",), status, noise + json.dumps(answer) + "\n{not json\n", "last words", 1.0)


def test_a_kernel_that_deviates_is_a_warning_with_its_name() -> None:
    """Serving works, slower: WARN, the kernel, and the runbook page."""
    result = judge(outcome({"device": "Ascend910B2", "torch_npu": "2.13.0", "verdicts": [GOOD, BAD]}))

    assert result.verdict is Verdict.WARN
    assert "experts is replaced by the reference: largest deviation 12.00%" in result.summary
    assert result.remedy is not None
    assert result.remedy.runbook == "ASD-D07"


def test_kernels_that_all_agree_pass() -> None:
    """The number of kernels and the chip."""
    result = judge(outcome({"device": "Ascend910B2", "torch_npu": "2.13.0", "verdicts": [GOOD, GOOD]}))

    assert result.verdict is Verdict.PASS
    assert result.summary == "2 fused kernels give the reference's numbers on Ascend910B2"


def test_a_chip_without_fused_kernels_is_told() -> None:
    """It serves by the reference alone, which nobody would expect of an NPU."""
    result = judge(outcome({"device": "Ascend950", "torch_npu": "2.13.0", "verdicts": []}))

    assert result.verdict is Verdict.WARN
    assert "uses no fused kernel" in result.summary


def test_a_fault_of_the_device_fails_with_its_own_code() -> None:
    """Message and remedy are the fault's."""
    result = judge(outcome({"fault": {"code": "ASD-D04", "message": "device gone", "remedy": "Reset it."}}))

    assert result.verdict is Verdict.FAIL
    assert result.remedy is not None
    assert (result.summary, result.remedy.runbook) == ("device gone", "ASD-D04")


def test_a_proof_without_an_answer_fails_and_keeps_its_last_words() -> None:
    """A crash of a vendor library ends in a status and text on standard error."""
    result = judge(outcome([], status=139, noise=""))

    assert result.verdict is Verdict.FAIL
    assert result.evidence == {"status": 139, "stderr": "last words"}


def test_the_check_runs_with_deep_alone() -> None:
    """It wants the device for itself."""
    assert NpuKernels.tier is Tier.DEEP
    assert NpuKernels not in select(CHECKS, [], deep=False)
    assert NpuKernels in select(CHECKS, [], deep=True)
