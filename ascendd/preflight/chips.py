"""What several checks do with the chips of a host: read a whole table, and spare what the instance does not use."""

from __future__ import annotations

from dataclasses import replace
from typing import Dict, FrozenSet, Iterable, List, Mapping, Optional, Tuple

from ascendd.errors import ProbeError, ProbeParseError
from ascendd.host.npu_smi import ask_each
from ascendd.host.npu_smi_table import NpuChip, NpuSmiReport
from ascendd.preflight.check import Finding, Verdict
from ascendd.preflight.context import CheckContext


def read_report(context: CheckContext) -> NpuSmiReport:
    """Return what `npu-smi info` says. Raises ProbeError, also where the table was cut short: half is no answer."""
    return whole(context.npu_smi().info())


def whole(report: NpuSmiReport) -> NpuSmiReport:
    """Return `report` where nothing of it is missing. Raises ProbeParseError."""
    if not report.complete or not report.chips:
        said = "was cut short" if report.chips else "lists no chip"
        raise ProbeParseError(f"the table of npu-smi info {said}", remedy="Run `npu-smi info` by hand and look.")
    return report


def read_boards(context: CheckContext) -> Dict[int, Mapping[str, str]]:
    """Return the fields of `npu-smi info -t board` by NPU id; empty for those that cannot be had."""
    try:
        tool = context.npu_smi()
        ids = sorted({chip.npu_id for chip in tool.info().chips if chip.npu_id is not None})
    except ProbeError:
        return {}  # presence says why; the files on disk still tell something
    answers = ask_each(ids, tool.board)
    return {npu_id: {} if isinstance(answer, ProbeError) else answer for npu_id, answer in answers.items()}


def in_use(chips: Iterable[NpuChip], logical_ids: Optional[FrozenSet[int]]) -> Tuple[NpuChip, ...]:
    """Return the chips of the instance, which stand in logical order; all of them without an instance."""
    return tuple(chip for number, chip in enumerate(chips) if logical_ids is None or number in logical_ids)


def spare(number: int, findings: Iterable[Finding], logical_ids: Optional[FrozenSet[int]]) -> List[Finding]:
    """Make a failure of the chip `number` a warning where the instance does not use it."""
    judged = []
    for finding in findings:
        if finding.verdict is Verdict.FAIL and logical_ids is not None and number not in logical_ids:
            text = f"{finding.text} (not used by this instance)"
            judged.append(replace(finding, verdict=Verdict.WARN, text=text))
        else:
            judged.append(finding)
    return judged
