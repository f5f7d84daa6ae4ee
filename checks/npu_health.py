"""Health: the word that npu-smi has for each chip, with the fault codes of those that are not OK."""

from __future__ import annotations

from typing import Dict, FrozenSet, List, Mapping, Optional, Sequence, Tuple

from ascendd.errors import ProbeError
from ascendd.host.npu_smi import ask_each
from ascendd.host.npu_smi_table import NpuChip
from ascendd.preflight.check import CheckResult, Finding, NpuCheck, Remedy, Verdict, conclude
from ascendd.preflight.chips import read_report, spare
from ascendd.preflight.context import CheckContext

# npu-smi's words, in the order of severity that the driver interface gives them.
WORD_VERDICT = {
    "OK": Verdict.PASS,
    "Warning": Verdict.WARN,
    "Alarm": Verdict.FAIL,
    "Critical": Verdict.FAIL,
    "UNKNOWN": Verdict.FAIL,
}
DEVICE_FAULT = "ASD-D01"


class NpuHealth(NpuCheck):
    """Every chip of the instance is OK."""

    id = "npu-health"
    title = "NPU health"
    live = True
    requires = ("npu-presence", "npu-security")
    timeout_s = 120.0

    def run(self, context: CheckContext) -> CheckResult:
        """Ask npu-smi for the table, and for the codes of each chip that is not OK."""
        tool, chips = context.npu_smi(), read_report(context).chips
        ids = {
            (chip.npu_id, chip.chip_id): chip.label
            for chip in chips
            if chip.health not in ("OK", None) and chip.npu_id is not None and chip.chip_id is not None
        }
        answers = ask_each(ids, lambda place: tool.health_codes(*place))
        codes: Dict[str, Mapping[str, str]] = {
            ids[place]: answer for place, answer in answers.items() if not isinstance(answer, ProbeError)
        }
        return judge(chips, codes, context.logical_devices())


def judge(
    chips: Sequence[NpuChip], codes: Mapping[str, Mapping[str, str]], in_use: Optional[FrozenSet[int]] = None
) -> CheckResult:
    """
    Decide over `chips`, which stand in logical order; `codes` by chip label.

    What is wrong with a chip that the instance does not use (`in_use`, None: all are used) is a warning.
    """
    evidence = {
        "chips": [{"chip": chip.label, "name": chip.name, "health": chip.health} for chip in chips],
        "error_codes": {label: dict(fields) for label, fields in codes.items()},
    }
    findings: List[Finding] = []
    for number, chip in enumerate(chips):
        findings += spare(number, _of_chip(chip, codes.get(chip.label, {})), in_use)
    return conclude(findings, f"{len(chips)} chip(s) OK", evidence)


def _of_chip(chip: NpuChip, codes: Mapping[str, str]) -> List[Finding]:
    if chip.health is None:
        text = "Read its fault codes; if the host was upgraded, reboot."
        said = f"{chip.label} has a health that npu-smi itself does not know, or none"
        return [Finding(Verdict.FAIL, said, Remedy(DEVICE_FAULT, text, ("npu-smi info",)), chip.label)]
    verdict = WORD_VERDICT.get(chip.health, Verdict.FAIL)
    if verdict is Verdict.PASS:
        return []
    said = " ".join(filter(None, (codes.get("Error Code"), codes.get("Error Information")))).strip()
    text = "Stop the instance, collect device logs, then reset the chip; three failed resets mean it must be replaced."
    detail = f" ({said})" if said and said != "NA" else ""
    remedy = Remedy(DEVICE_FAULT, text, _commands(chip))
    return [Finding(verdict, f"{chip.label} is {chip.health}{detail}", remedy, chip.label)]


def _commands(chip: NpuChip) -> Tuple[str, ...]:
    ids = f"-i {chip.npu_id} -c {chip.chip_id}"
    return (f"npu-smi info -t health {ids}", "msnpureport -f", f"npu-smi set -t reset {ids}")
