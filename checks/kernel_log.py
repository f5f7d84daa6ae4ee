"""Kernel log: since the last start the kernel reported no fault of a chip, the PCIe bus or the host's memory."""

from __future__ import annotations

from typing import List, Sequence

from ascendd.host.kernel_log import LONGEST_LINES, KernelFault, find_faults, read_kernel_log
from ascendd.preflight.check import CheckResult, Finding, NpuCheck, Remedy, Verdict, conclude
from ascendd.preflight.context import CheckContext


class KernelLog(NpuCheck):
    """The kernel saw no hardware fault."""

    id = "kernel-log"
    title = "Kernel log"
    live = True

    def run(self, context: CheckContext) -> CheckResult:
        """Read the log and look for known faults. What may not be read is ERROR."""
        if context.is_container:
            return CheckResult(Verdict.SKIPPED, "a container does not see its host's kernel log")
        text = read_kernel_log(context.run, context.environ)
        return judge(find_faults(text), len(text.splitlines()))


def judge(faults: Sequence[KernelFault], num_lines: int) -> CheckResult:
    """Decide by the severity of each kind of fault."""
    evidence = {"num_lines": num_lines, "faults": {fault.id: [fault.count, fault.last_line] for fault in faults}}
    findings: List[Finding] = []
    for fault in faults:
        verdict = Verdict.FAIL if fault.severity == "fail" else Verdict.WARN
        said = f"{fault.meaning} ({fault.count} line(s), the last: {fault.last_line[:160]})"
        commands = ("journalctl -k -b --no-pager | tail -200",)
        findings.append(Finding(verdict, said, Remedy(fault.runbook, fault.remedy, commands)))
    if num_lines >= LONGEST_LINES:
        return conclude(findings, f"the last {num_lines} lines, no fault that is known", evidence)
    return conclude(findings, f"{num_lines} lines since the last start, no fault that is known", evidence)
