"""Holders: no process of an earlier run, dead, stuck or invisible, still has a chip of the instance."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Dict, List, Optional, Sequence, Set, Tuple

from ascendd.host.device_holders import (
    STUCK,
    ZOMBIE,
    HostProcess,
    count_shut,
    find_holders,
    find_leftovers,
    read_process,
)
from ascendd.host.npu_smi_table import NpuProcess
from ascendd.preflight.check import CheckResult, Finding, NpuCheck, Remedy, Verdict, conclude
from ascendd.preflight.chips import in_use, read_report
from ascendd.preflight.context import CheckContext

STUCK_AFTER_S = 0.5
PROBE_UNAVAILABLE = "ASD-P05"
INVISIBLE, STRAY, ZOMBIE_OWNER = "ASD-G72", "ASD-G73", "ASD-G74"


@dataclass(frozen=True)
class Holders:
    """Who has the chips: `listed` by npu-smi (None: not on this host), `open` by their nodes, `leftovers` of ours."""

    listed: Tuple[Tuple[NpuProcess, Optional[HostProcess]], ...]
    open: Tuple[HostProcess, ...]
    leftovers: Tuple[HostProcess, ...]
    unit: Optional[str]
    is_container: bool = False
    # Processes that do not show this user what they have open; a service never sees those of others.
    num_shut: int = 0
    inside_service: bool = False


class DeviceHolders(NpuCheck):
    """Nothing of an earlier run is left on the chips."""

    id = "device-holders"
    title = "Device holders"
    live = True
    requires = ("npu-presence",)
    timeout_s = 60.0

    def run(self, context: CheckContext) -> CheckResult:
        """Compare the process table of npu-smi with /proc, and look who has the nodes open."""
        report = read_report(context)
        opened = find_holders(context.files)
        leftovers = find_leftovers(context.files)
        if any(process.state == STUCK for process in opened):
            # Uninterruptible for a moment is normal; what still is after a while hangs.
            time.sleep(STUCK_AFTER_S)
            opened = find_holders(context.files)
        chips = in_use(report.chips, context.logical_devices())
        ids = {(chip.npu_id, chip.chip_id) for chip in chips}
        nodes = {chip.physical_id for chip in chips}
        instance = context.request.instance
        listed = [process for process in report.processes if (process.npu_id, process.chip_id) in ids]
        return judge(
            Holders(
                listed=tuple((process, read_process(context.files, process.pid)) for process in listed),
                open=tuple(holder for holder in opened if nodes.intersection(holder.chips)),
                leftovers=leftovers,
                unit=None if instance is None else f"ascendd@{instance}.service",
                is_container=context.is_container,
                num_shut=count_shut(context.files),
                inside_service=context.request.inside_service,
            )
        )


def judge(holders: Holders) -> CheckResult:
    """Decide; a holder that lives and is known is judged by the memory that it takes (hbm-free)."""
    evidence: Dict[str, object] = {
        "listed": [f"pid {listed.pid} {listed.name} on NPU {listed.npu_id}" for listed, _ in holders.listed],
        "open": [f"{holder.label}: {_nodes(holder.chips)}" for holder in holders.open],
        "leftovers": [holder.label for holder in holders.leftovers],
        "shut": holders.num_shut,
    }
    findings: List[Finding] = []
    dead = {process.pid: process for _, process in holders.listed if process is not None and process.state == ZOMBIE}
    dead.update({process.pid: process for process in holders.leftovers if process.state == ZOMBIE})
    for process in dead.values():
        text = "Its parent has not reaped it: restart the parent, or end it; then the chip is free."
        commands = (f"ps -o pid,ppid,stat,cmd -p {process.pid}",)
        findings.append(
            _finding(Verdict.FAIL, f"{process.label} is a zombie of an earlier run", text, ZOMBIE_OWNER, commands)
        )
    stuck = {process.pid: process for process in (*holders.open, *holders.leftovers) if process.state == STUCK}
    for process in stuck.values():
        text = "It does not die of a signal: it waits in the driver. Reset the chip or reboot the host."
        stack = (f"cat /proc/{process.pid}/stack", "dmesg | tail -50")
        findings.append(_finding(Verdict.FAIL, f"{process.label} hangs in the kernel", text, ZOMBIE_OWNER, stack))
    invisible = [listed for listed, process in holders.listed if process is None]
    if invisible and not holders.is_container:
        shown = ", ".join(f"pid {listed.pid} on NPU {listed.npu_id}" for listed in invisible)
        text = "It runs in a container, or was killed and the driver still has its memory: look, then reset the chip."
        findings.append(
            _finding(Verdict.WARN, f"npu-smi lists {shown}, which this host does not have", text, INVISIBLE)
        )
    findings += _strays(holders, set(stuck))
    shut = f"what {holders.num_shut} processes of other users have open is not shown to this user"
    if holders.num_shut and not holders.inside_service:
        text = "Run the doctor as root; npu-smi lists those that have memory of a chip."
        findings.append(_finding(Verdict.ERROR, shut, text, PROBE_UNAVAILABLE, ("fuser -v /dev/davinci*",)))
    note = f" ({shut})" if holders.num_shut else ""
    return conclude(findings, _all_well(holders.open) + note, evidence)


def _strays(holders: Holders, judged: Set[int]) -> List[Finding]:
    """Find living processes of ours that belong to no unit, or to another one."""
    findings = []
    for process in holders.open:
        if process.pid in judged or not process.is_ours or (process.unit is not None and holders.unit is None):
            continue
        if process.unit is None or process.unit != holders.unit:
            of = f"of {process.unit}" if process.unit else "of no unit"
            said = f"{process.label} {of} has {_nodes(process.chips)} open"
            text = "Stop it: it is left of an earlier run, or two instances share chips in parallel.devices."
            # Without an instance it may be one that somebody serves by hand.
            verdict = Verdict.WARN if holders.unit is None else Verdict.FAIL
            findings.append(_finding(verdict, said, text, STRAY, (f"kill {process.pid}",)))
    return findings


def _all_well(holders: Sequence[HostProcess]) -> str:
    return "nobody has the chips open" if not holders else f"open by {', '.join(holder.label for holder in holders)}"


def _nodes(chips: Sequence[int]) -> str:
    return ", ".join(f"/dev/davinci{chip}" for chip in chips)


def _finding(
    verdict: Verdict, said: str, text: str, code: str, commands: Tuple[str, ...] = ("fuser -v /dev/davinci*",)
) -> Finding:
    return Finding(verdict, said, Remedy(code, text, commands))
