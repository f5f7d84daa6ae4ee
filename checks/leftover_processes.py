"""Leftovers: no process of an earlier run lives on without its supervisor, or waits as a zombie to be reaped."""

from __future__ import annotations

from typing import List, Sequence, Tuple

from ascendd.host.device_holders import STUCK, ZOMBIE, HostProcess, find_leftovers, find_orphans
from ascendd.preflight.check import CheckResult, Finding, HostCheck, Remedy, Verdict, conclude
from ascendd.preflight.context import CheckContext

ZOMBIE_OWNER = "ASD-G74"


class LeftoverProcesses(HostCheck):
    """Earlier runs are gone."""

    id = "leftover-processes"
    title = "Leftovers"
    live = True

    def run(self, context: CheckContext) -> CheckResult:
        """Read the process table. On an NPU host device-holders tells of the dead and the stuck, which hold chips."""
        orphans = find_orphans(context.files)
        if context.target.is_npu:
            chips = [process for process in orphans if process.chips]
            return judge([process for process in orphans if process not in chips], ())
        return judge(orphans, find_leftovers(context.files))


def judge(orphans: Sequence[HostProcess], dead: Sequence[HostProcess]) -> CheckResult:
    """Decide; what lives on takes memory and ports, what is dead only a place in the table."""
    evidence = {"orphans": [process.label for process in orphans], "dead": [process.label for process in dead]}
    findings: List[Finding] = []
    for process in orphans:
        said = f"{process.label} of an earlier run lives on without its supervisor"
        findings.append(_finding(said, "End it: it holds memory, and maybe a port.", (f"kill {process.pid}",)))
    for process in dead:
        commands = (f"ps -o pid,ppid,stat,cmd -p {process.pid}",)
        if process.state == ZOMBIE:
            text = "Its parent has not reaped it: restart the parent, or end it."
            findings.append(_finding(f"{process.label} is a zombie of an earlier run", text, commands))
        elif process.state == STUCK:
            text = "It waits in the kernel and does not die of a signal: look at the disk or mount that it waits for."
            findings.append(_finding(f"{process.label} hangs in the kernel", text, commands))
    return conclude(findings, "no process of an earlier run", evidence)


def _finding(said: str, text: str, commands: Tuple[str, ...]) -> Finding:
    return Finding(Verdict.WARN, said, Remedy(ZOMBIE_OWNER, text, commands))
