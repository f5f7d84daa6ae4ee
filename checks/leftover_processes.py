"""Leftovers: no process of an earlier run lives on without its supervisor, or waits as a zombie to be reaped."""

from __future__ import annotations

from typing import FrozenSet, List, Sequence, Tuple

from ascendd.host.device_holders import STUCK, ZOMBIE, HostProcess, find_leftovers, find_orphans
from ascendd.preflight.check import CheckResult, Finding, HostCheck, Remedy, Verdict, conclude
from ascendd.preflight.chips import in_use, read_report
from ascendd.preflight.context import CheckContext

STRAY, ZOMBIE_OWNER = "ASD-G73", "ASD-G74"


class LeftoverProcesses(HostCheck):
    """Earlier runs are gone."""

    id = "leftover-processes"
    title = "Leftovers"
    live = True

    def run(self, context: CheckContext) -> CheckResult:
        """Read the process table. On an NPU host the doctor's device-holders tells of those that hold chips."""
        orphans = find_orphans(context.files)
        if not context.target.is_npu:
            return judge(orphans, find_leftovers(context.files))
        with_chips = [process for process in orphans if process.chips]
        if not context.request.inside_service:
            return judge([process for process in orphans if process not in with_chips], ())
        # At a start device-holders is not asked: it takes longer, and tells of more than what a start breaks of.
        return judge(orphans, (), _nodes_in_use(context) if with_chips else frozenset())


def _nodes_in_use(context: CheckContext) -> FrozenSet[int]:
    """Return the numbers of the instance's /dev/davinciN."""
    chips = in_use(read_report(context).chips, context.logical_devices())
    return frozenset(chip.physical_id for chip in chips if chip.physical_id is not None)


def judge(
    orphans: Sequence[HostProcess], dead: Sequence[HostProcess], wanted: FrozenSet[int] = frozenset()
) -> CheckResult:
    """Decide; what lives takes memory, ports or a `wanted` chip; what is dead only a place in the table."""
    evidence = {"orphans": [process.label for process in orphans], "dead": [process.label for process in dead]}
    findings: List[Finding] = []
    for process in orphans:
        said = f"{process.label} of an earlier run lives on without its supervisor"
        if held := sorted(wanted.intersection(process.chips)):
            nodes = ", ".join(f"/dev/davinci{number}" for number in held)
            text = "End it, then start the instance again: two engines cannot have one chip."
            remedy = Remedy(STRAY, text, (f"kill {process.pid}",))
            findings.append(Finding(Verdict.FAIL, f"{said} and has {nodes} open", remedy))
            continue
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
