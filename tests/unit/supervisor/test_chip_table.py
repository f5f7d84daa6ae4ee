"""The chips of the status page, from what the live checks read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from ascendd.checks import npu_health, npu_sensors

from ascendd.host.npu_smi_table import parse_info
from ascendd.preflight.check import CheckResult, Verdict
from ascendd.supervisor.board import StatsBoard
from ascendd.supervisor.chip_table import chip_rows

RECORDED = Path(__file__).resolve().parents[2] / "fixtures" / "npu-smi"


def judged(name: str) -> list[CheckResult]:
    """Return what the two checks say of a recorded `npu-smi info`, under their ids."""
    chips = parse_info((RECORDED / name).read_text(encoding="utf-8")).chips
    return [
        replace(npu_sensors.judge(chips), check_id="npu-sensors"),
        replace(npu_health.judge(chips, {}), check_id="npu-health"),
    ]


@pytest.mark.parametrize(
    ("name", "num_chips"),
    [("info-24.1.rc3-910B3-2npu-idle.txt", 2), ("info-25.2.1-910_93-A3-2npu-4die.txt", 4)],
)
def test_each_chip_is_one_row(name: str, num_chips: int) -> None:
    """Health of one check and sensors of the other meet in the row of the chip, which has its logical number."""
    rows = chip_rows(judged(name))

    assert [row["device"] for row in rows] == [f"npu {number}" for number in range(num_chips)]
    for row, chip in zip(rows, parse_info((RECORDED / name).read_text(encoding="utf-8")).chips, strict=True):
        assert (row["chip"], row["health"], row["power_w"]) == (chip.label, chip.health, chip.power_w)
        assert (row["hbm_used_mb"], row["hbm_total_mb"]) == (chip.hbm_used_mb, chip.hbm_total_mb)
        assert row["temperature_c"] == chip.temperature_c
        assert isinstance(chip.temperature_c, int)


def test_without_a_reading_there_are_no_chips() -> None:
    """A host without NPUs, and a round in which npu-smi said nothing, leave no row of an earlier round."""
    board = StatsBoard("blue", "qwen2")
    board.take_checks(judged("info-24.1.rc3-910B3-2npu-idle.txt"))
    before = board.checks
    broken = CheckResult(Verdict.ERROR, "npu-smi did not answer", check_id="npu-health")

    board.take_checks([broken])

    assert before is not None
    assert len(before["chips"]) == 2
    assert board.checks is not None
    assert board.checks["chips"] == []
