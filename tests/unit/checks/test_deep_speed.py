"""The deep checks of speed and all-reduce: what they make of the numbers."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from ascendd.checks import hccl_all_reduce, npu_speed
from ascendd.checks.npu_speed import ChipRun

from ascendd.errors import ProbeParseError
from ascendd.host.command import CommandOutcome
from ascendd.host.files import HostFiles
from ascendd.host.policy import VersionPolicy, read_policy
from ascendd.preflight.check import CheckResult, Verdict

B3 = "Ascend910B3"


@pytest.fixture
def policy() -> VersionPolicy:
    """What ships."""
    return read_policy(HostFiles("/nonexistent"))


def chip(
    number: int, tflops: float = 250.0, gb_per_s: float = 1300.0, wrong: str | None = None, soc: str = B3
) -> ChipRun:
    """One chip's answer."""
    speed = {"soc_name": soc, "matmul_tflops": tflops, "memory_gb_per_s": gb_per_s, "wrong": wrong}
    return ChipRun(number, {"speed": speed})


def reduced(policy: VersionPolicy, **answer: Any) -> CheckResult:
    """Judge what the launcher of two ranks on chips 4 and 5 says."""
    text = "a vendor library speaks\n" + json.dumps(answer) + "\n"
    return hccl_all_reduce.judge(CommandOutcome(("python",), 0, text, "", 1.0), [4, 5], policy)


def test_chips_near_their_specification_pass_with_the_numbers(policy: VersionPolicy) -> None:
    """The range over all chips, in TFLOP/s and GB/s."""
    result = npu_speed.judge([chip(0), chip(1, 255.0), chip(2)], policy)

    assert result.verdict is Verdict.PASS
    assert result.summary == "3 chip(s): matmul 250 to 255 TFLOP/s, memory 1300 GB/s"
    assert result.evidence["specified"][B3]["matmul_tflops"] == 313


@pytest.mark.parametrize(("tflops", "verdict"), [(120.0, Verdict.FAIL), (150.0, Verdict.WARN), (200.0, Verdict.PASS)])
def test_a_chip_is_held_to_its_specification(policy: VersionPolicy, tflops: float, verdict: Verdict) -> None:
    """Below 40 % it fails, below 60 % somebody should look, and both numbers are told."""
    result = npu_speed.judge([chip(0, tflops)], policy)

    assert result.verdict is verdict
    if verdict is Verdict.FAIL:
        said = "chip 0 (Ascend910B3): matmul 120 TFLOP/s, 38% of the 313 TFLOP/s specified (published)"
        assert result.summary == said
        assert result.remedy is not None
        assert result.remedy.runbook == "ASD-D08"


def test_a_chip_slower_than_its_neighbours_fails_within_its_specification(policy: VersionPolicy) -> None:
    """One that throttles among seven that do not; of two nobody can say which is the odd one."""
    seven = [chip(number) for number in range(7)]

    assert npu_speed.judge([*seven, chip(7, gb_per_s=1000.0)], policy).summary == (
        "chip 7: memory 1000 GB/s, 77% of the 1300 GB/s of its neighbours"
    )
    assert npu_speed.judge([chip(0), chip(1, gb_per_s=1000.0)], policy).verdict is Verdict.PASS


def test_wrong_numbers_fail_whatever_the_speed(policy: VersionPolicy) -> None:
    """A fast chip with a wrong product is out."""
    result = npu_speed.judge([chip(0, wrong="a product of 64 came out between 64 and 65")], policy)

    assert result.verdict is Verdict.FAIL
    assert result.summary == "chip 0 computes wrongly: a product of 64 came out between 64 and 65"


def test_a_chip_that_hangs_or_is_gone_does_not_hide_the_others(policy: VersionPolicy) -> None:
    """ERROR with the step for the one, FAIL with the vendor's code for the other, numbers of the third kept."""
    gone = {"fault": {"code": "ASD-D04", "message": "device gone", "remedy": "Reset it."}}
    hangs = ChipRun(1, {}, "hangs: `copy memory` took more than 100 s")
    result = npu_speed.judge([chip(0), hangs, ChipRun(2, gone)], policy)

    assert result.verdict is Verdict.FAIL
    assert result.summary == "chip 2: device gone"
    assert result.evidence["also"] == ["chip 1 hangs: `copy memory` took more than 100 s"]
    assert [found["chip"] for found in result.evidence["chips"]] == [0]
    assert npu_speed.judge([chip(0), hangs], policy).verdict is Verdict.ERROR


def test_chips_that_all_hang_are_told_and_not_lost_in_an_error_of_the_check(policy: VersionPolicy) -> None:
    """No chip was measured: there is no range of speeds, and the first that hangs is named."""
    result = npu_speed.judge([ChipRun(0, {}, "hangs: `start`"), ChipRun(1, {}, "hangs: `start`")], policy)

    assert result.verdict is Verdict.ERROR
    assert result.summary.startswith("chip 0 hangs: `start`")
    assert result.evidence["chips"] == []


def test_the_sites_numbers_replace_the_published_ones(policy: VersionPolicy) -> None:
    """Also for a chip that nobody published anything of, which is a warning otherwise."""
    site = dataclasses.replace(policy, chip_speed={"Ascend999": {"matmul_tflops": 1000.0, "memory_gb_per_s": 1000.0}})

    assert npu_speed.judge([chip(0, soc="Ascend999")], policy).verdict is Verdict.WARN
    assert npu_speed.judge([chip(0, soc="Ascend999")], site).verdict is Verdict.FAIL


def test_a_policy_with_a_speed_that_is_none_is_refused(tmp_path: Any) -> None:
    """The key and the rule are named."""
    (tmp_path / ".fake-host").write_text("{}")
    (tmp_path / "etc/ascendd").mkdir(parents=True)
    (tmp_path / "etc/ascendd/policy.json").write_text(json.dumps({"chip_speed": {B3: {"matmul_tflops": 0}}}))

    with pytest.raises(ProbeParseError, match=r"chip_speed.Ascend910B3 .* must give positive numbers"):
        read_policy(HostFiles(str(tmp_path)))


def test_a_right_sum_passes_with_its_speed(policy: VersionPolicy) -> None:
    """No speed is published for links, so none is judged unless the site names one."""
    answer = {"soc_name": B3, "world_size": 2, "bytes": 32 << 20, "gb_per_s": 18.0, "wrong": None}
    site = dataclasses.replace(policy, site_file="/site", chip_speed={B3: {"all_reduce_gb_per_s": 100.0}})

    assert reduced(policy, all_reduce=answer).summary == "2 chips add up 32 MiB rightly at 18 GB/s a chip"
    slow = reduced(site, all_reduce=answer)
    assert (slow.verdict, slow.summary) == (Verdict.FAIL, "18 GB/s a chip, 18% of the 100 GB/s that /site wants")


def test_a_wrong_sum_fails(policy: VersionPolicy) -> None:
    """The rank is named."""
    answer = {"soc_name": B3, "world_size": 2, "bytes": 1, "gb_per_s": 1.0, "wrong": "rank 1: 7 of 8 sums are wrong"}

    assert (
        reduced(policy, all_reduce=answer).summary
        == "the sum over chips [4, 5] is wrong on rank 1: 7 of 8 sums are wrong"
    )


def test_the_chip_of_the_rank_that_failed_is_named(policy: VersionPolicy) -> None:
    """Ranks count from 0, chips are the instance's."""
    failed = {"rank": 1, "step": "reduce once", "said": "ASD-D04 device gone", "waiting": [0]}

    assert reduced(policy, failed=failed).summary == "chip 5 failed at `reduce once`: ASD-D04 device gone"
    assert reduced(policy).summary == "the launcher ended with status 0 and no answer"
