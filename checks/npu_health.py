"""Health: what npu-smi says of each chip, its sensors in range, no uncorrectable memory errors, no security mode."""

from __future__ import annotations

from typing import Dict, FrozenSet, List, Mapping, Optional, Sequence, Tuple

from ascendd.errors import ProbeError
from ascendd.host.npu_smi_table import NpuChip
from ascendd.preflight.check import CheckResult, Finding, NpuCheck, Remedy, Verdict, conclude
from ascendd.preflight.context import CheckContext

# npu-smi's words, in the order of severity that the driver interface gives them.
WORD_VERDICT = {
    "OK": Verdict.PASS,
    "Warning": Verdict.WARN,
    "Alarm": Verdict.FAIL,
    "Critical": Verdict.FAIL,
    "UNKNOWN": Verdict.FAIL,
}
# Our numbers: full load on an Atlas 800T A2 stays near 65 C; public tables of alarmed chips begin above 80.
TEMPERATURE_WARN_C = 80
TEMPERATURE_FAIL_C = 95
# Isolated HBM rows at which the vendor's fault list says restart (80E18401) and replace (80E18402).
ISOLATED_PAGES_REPLACE = 64
DEVICE_FAULT, ECC_FAULT = "ASD-D01", "ASD-D05"


class NpuHealth(NpuCheck):
    """Every chip of the instance is OK."""

    id = "npu-health"
    title = "NPU health"
    requires = ("npu-presence",)
    timeout_s = 120.0

    def run(self, context: CheckContext) -> CheckResult:
        """Ask npu-smi for the table, the error counters of each NPU, and the codes of each chip that is not OK."""
        tool = context.npu_smi()
        report = tool.info()
        ecc: Dict[Tuple[int, int], Mapping[str, int]] = {}
        codes: Dict[str, Mapping[str, str]] = {}
        for npu_id in sorted({chip.npu_id for chip in report.chips if chip.npu_id is not None}):
            try:
                ecc.update({(npu_id, chip_id): counters for chip_id, counters in tool.ecc(npu_id).items()})
            except ProbeError:
                continue  # many products do not have the counters
        for chip in report.chips:
            if chip.health not in ("OK", None) and chip.npu_id is not None and chip.chip_id is not None:
                try:
                    codes[chip.label] = tool.health_codes(chip.npu_id, chip.chip_id)
                except ProbeError:
                    continue
        return judge(report.chips, ecc, codes, context.logical_devices())


def judge(
    chips: Sequence[NpuChip],
    ecc: Mapping[Tuple[int, int], Mapping[str, int]],
    codes: Mapping[str, Mapping[str, str]],
    in_use: Optional[FrozenSet[int]] = None,
) -> CheckResult:
    """
    Decide over `chips`, which stand in logical order; `ecc` by NPU and chip id, `codes` by chip label.

    What is wrong with a chip that the instance does not use (`in_use`, None: all are used) is a warning.
    """
    evidence = {
        "chips": [
            {
                "chip": chip.label, "name": chip.name, "health": chip.health, "temperature_c": chip.temperature_c,
                "power_w": chip.power_w, "hbm_used_mb": chip.hbm_used_mb, "hbm_total_mb": chip.hbm_total_mb,
            }
            for chip in chips
        ],
        "ecc": {f"NPU {npu} chip {chip}": dict(counters) for (npu, chip), counters in ecc.items()},
        "error_codes": {label: dict(fields) for label, fields in codes.items()},
    }  # fmt: skip
    findings: List[Finding] = []
    for logical_id, chip in enumerate(chips):
        counters = ecc.get((-1 if chip.npu_id is None else chip.npu_id, chip.chip_id or 0), {})
        for finding in [*_of_chip(chip, codes.get(chip.label, {})), *_of_memory(chip, counters)]:
            spared = in_use is not None and logical_id not in in_use and finding.verdict is Verdict.FAIL
            text = f"{finding.text} (not used by this instance)" if spared else finding.text
            findings.append(Finding(Verdict.WARN if spared else finding.verdict, text, finding.remedy))
    temperatures = [chip.temperature_c for chip in chips if chip.temperature_c is not None]
    warmest = f", at most {max(temperatures)} C" if temperatures else ""
    counted = "no ECC double-bit errors" if ecc else "ECC counters not available"
    return conclude(findings, f"{len(chips)} chip(s) OK{warmest}, {counted}", evidence)


def is_security_mode(chip: NpuChip) -> bool:
    """Tell whether npu-smi shows ids and nothing else: the chip refuses to run firmware that it cannot verify."""
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


def _of_chip(chip: NpuChip, codes: Mapping[str, str]) -> List[Finding]:
    if is_security_mode(chip):
        text = (
            "The chip refuses its firmware, mostly because a firmware file was copied by hand. "
            "Install the vendor's firmware package for this chip generation, then reboot."
        )
        return [
            _finding(Verdict.FAIL, f"{chip.label} is in security mode: npu-smi shows its ids and nothing else", text)
        ]
    if chip.health is None:
        text = "Read its fault codes; if the host was upgraded, reboot."
        return [_finding(Verdict.FAIL, f"{chip.label} has a health that npu-smi itself does not know, or none", text)]
    findings = []
    verdict = WORD_VERDICT.get(chip.health, Verdict.FAIL)
    if verdict is not Verdict.PASS:
        said = " ".join(filter(None, (codes.get("Error Code"), codes.get("Error Information")))).strip()
        text = (
            "Stop the instance, collect device logs, then reset the chip; three failed resets mean it must be replaced."
        )
        detail = f" ({said})" if said and said != "NA" else ""
        findings.append(_finding(verdict, f"{chip.label} is {chip.health}{detail}", text, _health_commands(chip)))
    if chip.temperature_c is not None and chip.temperature_c >= TEMPERATURE_WARN_C:
        hot = Verdict.FAIL if chip.temperature_c >= TEMPERATURE_FAIL_C else Verdict.WARN
        findings.append(
            _finding(hot, f"{chip.label} has {chip.temperature_c} C", "Check fans and air flow of the server.")
        )
    return findings


def _of_memory(chip: NpuChip, counters: Mapping[str, int]) -> List[Finding]:
    findings = []
    if chip.has_hbm_column and chip.name is not None and chip.hbm_total_mb is not None:
        if chip.hbm_total_mb == 0:
            findings.append(
                _finding(Verdict.FAIL, f"{chip.label} reports no HBM", "Reset the chip, then power-cycle the host.")
            )
        elif chip.hbm_used_mb is not None and chip.hbm_used_mb > chip.hbm_total_mb:
            said = f"{chip.label} reports {chip.hbm_used_mb} of {chip.hbm_total_mb} MB HBM used"
            findings.append(_finding(Verdict.FAIL, said, "Reset the chip."))
    current = {key: n for key, n in counters.items() if "Double Bit Error" in key and n}
    history = {key: n for key, n in counters.items() if "Double Bit" in key and "Error Count" not in key and n}
    worn = [n for key, n in history.items() if "Isolated" in key and n >= ISOLATED_PAGES_REPLACE]
    if current or worn:
        text = (
            "Replace the chip: its spare rows are used up."
            if worn
            else "Stop what runs there and reset the chip; replace it if they return."
        )
        said = ", ".join(f"{key} {n}" for key, n in (current or history).items())
        findings.append(Finding(Verdict.FAIL, f"{chip.label}: {said}", Remedy(ECC_FAULT, text, _ecc_commands(chip))))
    elif history:
        said = ", ".join(f"{key} {n}" for key, n in history.items())
        text = "Errors of the past, their rows are out of use. Watch the numbers."
        findings.append(Finding(Verdict.WARN, f"{chip.label}: {said}", Remedy(ECC_FAULT, text, _ecc_commands(chip))))
    return findings


def _finding(verdict: Verdict, said: str, text: str, commands: Tuple[str, ...] = ("npu-smi info",)) -> Finding:
    return Finding(verdict, said, Remedy(DEVICE_FAULT, text, commands))


def _health_commands(chip: NpuChip) -> Tuple[str, ...]:
    ids = f"-i {chip.npu_id} -c {chip.chip_id}"
    return (f"npu-smi info -t health {ids}", "msnpureport -f", f"npu-smi set -t reset {ids}")


def _ecc_commands(chip: NpuChip) -> Tuple[str, ...]:
    return (f"npu-smi info -t ecc -i {chip.npu_id}",)
