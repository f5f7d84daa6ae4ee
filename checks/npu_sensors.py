"""Sensors: temperature, power and the size of the memory of each chip are what a working chip shows."""

from __future__ import annotations

from typing import FrozenSet, List, Optional, Sequence

from ascendd.host.npu_smi_table import NpuChip
from ascendd.preflight.check import CheckResult, Finding, NpuCheck, Remedy, Verdict, conclude
from ascendd.preflight.chips import read_report, spare
from ascendd.preflight.context import CheckContext

# Our numbers: full load on an Atlas 800T A2 stays near 65 C; public tables of alarmed chips begin above 80.
TEMPERATURE_WARN_C = 80
TEMPERATURE_FAIL_C = 95
# Above any chip of today; a reading beyond it is a broken sensor or a short circuit.
POWER_WARN_W = 750.0
DEVICE_FAULT = "ASD-D01"


class NpuSensors(NpuCheck):
    """No chip is hot, without power or without memory."""

    id = "npu-sensors"
    title = "NPU temperature and power"
    live = True
    requires = ("npu-presence", "npu-security")
    timeout_s = 60.0

    def run(self, context: CheckContext) -> CheckResult:
        """Read the table of npu-smi."""
        return judge(read_report(context).chips, context.logical_devices())


def judge(chips: Sequence[NpuChip], in_use: Optional[FrozenSet[int]] = None) -> CheckResult:
    """Decide over `chips`, which stand in logical order; a chip whose health is not OK is judged elsewhere."""
    evidence = {
        "chips": [
            {
                "chip": chip.label, "temperature_c": chip.temperature_c, "power_w": chip.power_w,
                "hbm_used_mb": chip.hbm_used_mb, "hbm_total_mb": chip.hbm_total_mb,
            }
            for chip in chips
        ]
    }  # fmt: skip
    findings: List[Finding] = []
    for number, chip in enumerate(chips):
        findings += spare(number, _of_chip(chip), in_use)
    temperatures = [chip.temperature_c for chip in chips if chip.temperature_c is not None]
    power = [chip.power_w for chip in chips if chip.power_w is not None]
    warmest = f"at most {max(temperatures)} C" if temperatures else "no temperatures"
    return conclude(findings, warmest + (f", {sum(power):.0f} W together" if power else ""), evidence)


def _of_chip(chip: NpuChip) -> List[Finding]:
    findings = []
    if chip.temperature_c is not None and chip.temperature_c >= TEMPERATURE_WARN_C:
        hot = Verdict.FAIL if chip.temperature_c >= TEMPERATURE_FAIL_C else Verdict.WARN
        text = "Check fans and air flow of the server."
        findings.append(_finding(hot, f"{chip.label} has {chip.temperature_c} C", text))
    if chip.power_w is not None and chip.power_w > POWER_WARN_W:
        text = "Compare with the BMC; a reading like this is a broken sensor or a failing supply."
        findings.append(_finding(Verdict.WARN, f"{chip.label} takes {chip.power_w:g} W", text))
    if not chip.has_hbm_column or chip.name is None or chip.health != "OK":
        return findings
    if chip.power_w == 0 and chip.temperature_c == 0:
        text = "A dead chip shows zeros. Reset it; power-cycle the host if that does not help."
        findings.append(_finding(Verdict.FAIL, f"{chip.label} shows 0 W and 0 C", text))
    elif chip.hbm_total_mb == 0:
        text = "Reset the chip, then power-cycle the host."
        findings.append(_finding(Verdict.FAIL, f"{chip.label} reports no HBM", text))
    elif chip.hbm_used_mb is not None and chip.hbm_total_mb is not None and chip.hbm_used_mb > chip.hbm_total_mb:
        said = f"{chip.label} reports {chip.hbm_used_mb} of {chip.hbm_total_mb} MB HBM used"
        findings.append(_finding(Verdict.FAIL, said, "Reset the chip."))
    return findings


def _finding(verdict: Verdict, said: str, text: str) -> Finding:
    return Finding(verdict, said, Remedy(DEVICE_FAULT, text, ("npu-smi info",)))
