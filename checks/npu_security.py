"""Security mode: a chip that shows its ids and nothing else refuses to run a firmware that it cannot verify."""

from __future__ import annotations

from typing import FrozenSet, List, Optional, Sequence

from ascendd.host.npu_smi_table import NpuChip
from ascendd.preflight.check import CheckResult, Finding, NpuCheck, Remedy, Verdict, conclude
from ascendd.preflight.chips import read_report, spare
from ascendd.preflight.context import CheckContext

DEVICE_UNAVAILABLE = "ASD-D02"
_REMEDY = Remedy(
    DEVICE_UNAVAILABLE,
    "The chip refuses its firmware, mostly because a firmware file was copied by hand. Install the vendor's firmware "
    "package for this chip generation with its own installer, then reboot.",
    ("npu-smi info", "tail -50 /var/log/ascend_seclog/ascend_install.log"),
)


class NpuSecurity(NpuCheck):
    """No chip is in security mode."""

    id = "npu-security"
    title = "NPU security mode"
    requires = ("npu-presence",)
    timeout_s = 60.0

    def run(self, context: CheckContext) -> CheckResult:
        """Read the table of npu-smi."""
        return judge(read_report(context).chips, context.logical_devices())


def judge(chips: Sequence[NpuChip], in_use: Optional[FrozenSet[int]] = None) -> CheckResult:
    """Decide over `chips`, which stand in logical order; those that the instance does not use only warn."""
    findings: List[Finding] = []
    for number, chip in enumerate(chips):
        if is_security_mode(chip):
            said = f"{chip.label} is in security mode: npu-smi shows its ids and nothing else"
            findings += spare(number, [Finding(Verdict.FAIL, said, _REMEDY, chip.label)], in_use)
    evidence = {"chips": [chip.label for chip in chips if is_security_mode(chip)]}
    return conclude(findings, f"none of {len(chips)} chip(s)", evidence)


def is_security_mode(chip: NpuChip) -> bool:
    """Tell whether npu-smi shows ids and nothing else."""
    measured = (
        chip.power_w,
        chip.temperature_c,
        chip.hbm_used_mb,
        chip.hbm_total_mb,
        chip.memory_used_mb,
        chip.memory_total_mb,
    )
    has_id = chip.npu_id is not None or chip.chip_id is not None
    return (
        has_id and chip.name is None and chip.health in (None, "UNKNOWN") and all(value is None for value in measured)
    )
