"""Memory errors: no chip counts double-bit errors of its HBM or DDR, and none has used up its spare rows."""

from __future__ import annotations

from typing import Dict, FrozenSet, List, Mapping, Optional, Sequence, Tuple

from ascendd.errors import ProbeError
from ascendd.host.npu_smi import ask_each
from ascendd.host.npu_smi_table import NpuChip
from ascendd.preflight.check import CheckResult, Finding, NpuCheck, Remedy, Verdict, conclude, conclude_with
from ascendd.preflight.chips import read_report, spare
from ascendd.preflight.context import CheckContext

# Isolated HBM rows at which the vendor's fault list says replace (80E18402).
ISOLATED_PAGES_REPLACE = 64
ECC_FAULT = "ASD-D05"
Counters = Mapping[Tuple[int, int], Mapping[str, int]]


class NpuEcc(NpuCheck):
    """The memory of the chips has had no error that could not be corrected."""

    id = "npu-ecc"
    title = "NPU memory errors"
    live = True
    requires = ("npu-presence", "npu-security")
    timeout_s = 120.0

    def run(self, context: CheckContext) -> CheckResult:
        """Ask npu-smi for the counters of each NPU; many products have none."""
        tool, chips = context.npu_smi(), read_report(context).chips
        answers = ask_each(sorted({chip.npu_id for chip in chips if chip.npu_id is not None}), tool.ecc)
        counters: Dict[Tuple[int, int], Mapping[str, int]] = {}
        missing: Dict[str, str] = {}
        for npu_id, answer in answers.items():
            if isinstance(answer, ProbeError):
                missing[f"NPU {npu_id}"] = answer.message
            else:
                counters.update({(npu_id, chip_id): found for chip_id, found in answer.items()})
        return judge(chips, counters, context.logical_devices(), missing)


def judge(
    chips: Sequence[NpuChip],
    counters: Counters,
    in_use: Optional[FrozenSet[int]] = None,
    missing: Optional[Mapping[str, str]] = None,
) -> CheckResult:
    """Decide over `counters` by NPU and chip id; `missing` says why an NPU has none. Chips not in use only warn."""
    evidence = {
        "ecc": {f"NPU {npu} chip {chip}": dict(found) for (npu, chip), found in counters.items()},
        "missing": dict(missing or {}),
    }
    if not counters:
        reasons = set((missing or {}).values())
        if reasons and not all("does not support" in reason for reason in reasons):
            said = f"the counters cannot be read: {sorted(reasons)[0]}"
            return conclude_with(Finding(Verdict.ERROR, said, _remedy("Ask npu-smi by hand.", 0)), evidence)
        return CheckResult(Verdict.SKIPPED, "these chips have no counters of memory errors", evidence)
    findings: List[Finding] = []
    for number, chip in enumerate(chips):
        found = counters.get((-1 if chip.npu_id is None else chip.npu_id, chip.chip_id or 0), {})
        findings += spare(number, _of_chip(chip, found), in_use)
    for npu, reason in (missing or {}).items():
        findings.append(Finding(Verdict.ERROR, f"{npu}: {reason}", _remedy("Ask npu-smi by hand.", npu.split()[-1])))
    return conclude(findings, f"no double-bit errors on {len(counters)} chip(s)", evidence)


def _of_chip(chip: NpuChip, counters: Mapping[str, int]) -> List[Finding]:
    current = {key: n for key, n in counters.items() if "Double Bit Error" in key and n}
    history = {key: n for key, n in counters.items() if "Double Bit" in key and "Error Count" not in key and n}
    worn = [n for key, n in history.items() if "Isolated" in key and n >= ISOLATED_PAGES_REPLACE]
    said = ", ".join(f"{key} {n}" for key, n in (current or history).items())
    if worn:
        text = "Replace the chip: its spare rows are used up."
        return [Finding(Verdict.FAIL, f"{chip.label}: {said}", _remedy(text, chip.npu_id))]
    if current:
        text = "Stop what runs there and reset the chip; replace it if they return."
        return [Finding(Verdict.FAIL, f"{chip.label}: {said}", _remedy(text, chip.npu_id))]
    if history:
        text = "Errors of the past, their rows are out of use. Watch the numbers."
        return [Finding(Verdict.WARN, f"{chip.label}: {said}", _remedy(text, chip.npu_id))]
    return []


def _remedy(text: str, npu_id: object) -> Remedy:
    return Remedy(ECC_FAULT, text, (f"npu-smi info -t ecc -i {npu_id}",))
