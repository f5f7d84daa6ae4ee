"""Free device memory: the chips of the instance are empty, and if not, who holds their memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import List, Mapping, Optional, Sequence, Tuple

from ascendd.host.device_holders import HostProcess, read_process
from ascendd.host.npu_smi_table import NpuChip, NpuProcess
from ascendd.preflight.check import CheckResult, Finding, NpuCheck, Remedy, Verdict, conclude
from ascendd.preflight.chips import in_use, read_report
from ascendd.preflight.context import CheckContext

HELD, FULL_AT_OPEN = "ASD-G59", "ASD-G57"
# What the system itself keeps: 2.8 to 3.4 GB on 910B, 1.6 GB on 310P in public tables of idle machines.
IDLE_MB = 4608
# From here on, an instance that sizes its cache by the memory of an empty chip does not start.
HELD_SHARE = 0.10


@dataclass(frozen=True)
class ChipMemory:
    """Memory of one chip in MB, and its processes: those of the instance itself do not count against it."""

    chip: NpuChip
    used_mb: int
    total_mb: int
    own_mb: int
    others: Tuple[Tuple[NpuProcess, Optional[HostProcess]], ...]

    @property
    def held_mb(self) -> int:
        """MB that somebody else has, beyond what the system keeps."""
        return max(0, self.used_mb - self.own_mb - IDLE_MB)

    @property
    def holders(self) -> str:
        """Who they are, as far as this host can tell."""
        return ", ".join(
            (seen.label if seen else f"{listed.name or 'a process'} (pid {listed.pid})")
            + (f" {listed.memory_mb} MB" if listed.memory_mb is not None else "")
            for listed, seen in self.others
        )


class HbmFree(NpuCheck):
    """Nobody else has memory of the instance's chips."""

    id = "hbm-free"
    title = "Free device memory"
    requires = ("npu-presence", "npu-security", "npu-sensors")
    timeout_s = 60.0

    def run(self, context: CheckContext) -> CheckResult:
        """Read memory and processes of the table, and look the processes up on this host."""
        report = read_report(context)
        seen = {process.pid: read_process(context.files, process.pid) for process in report.processes}
        logical_ids, instance = context.logical_devices(), context.request.instance
        chips = in_use(report.chips, logical_ids)
        unit = None if instance is None else f"ascendd@{instance}.service"
        return judge(measure(chips, report.processes, seen, unit), is_needed=logical_ids is not None)


def measure(
    chips: Sequence[NpuChip],
    processes: Sequence[NpuProcess],
    seen: Mapping[int, Optional[HostProcess]],
    unit: Optional[str],
) -> List[ChipMemory]:
    """Put the processes of the table to their chips; those of `unit` are the instance's own."""
    found = []
    for chip in chips:
        used, total = (chip.hbm_used_mb, chip.hbm_total_mb)
        if not chip.has_hbm_column:
            used, total = chip.memory_used_mb, chip.memory_total_mb
        if used is None or not total:
            continue
        own_mb, others = 0, []
        for listed in processes:
            if (listed.npu_id, listed.chip_id) != (chip.npu_id, chip.chip_id):
                continue
            process = seen.get(listed.pid)
            if unit is not None and process is not None and process.unit == unit:
                own_mb += listed.memory_mb or 0
            else:
                others.append((listed, process))
        found.append(ChipMemory(chip, used, total, own_mb, tuple(others)))
    return found


def judge(memories: Sequence[ChipMemory], *, is_needed: bool) -> CheckResult:
    """Decide; `is_needed`: these are the chips of an instance, which would not start; else it is a warning."""
    evidence = {
        "chips": [
            {
                "chip": memory.chip.label, "used_mb": memory.used_mb, "total_mb": memory.total_mb,
                "own_mb": memory.own_mb, "others": memory.holders,
            }
            for memory in memories
        ]
    }  # fmt: skip
    if not memories:
        return CheckResult(Verdict.SKIPPED, "npu-smi shows no memory of the chips", evidence)
    findings = []
    for memory in memories:
        if memory.held_mb == 0:
            continue
        grave = is_needed and memory.held_mb >= HELD_SHARE * memory.total_mb
        said = f"{memory.chip.label}: {memory.used_mb} of {memory.total_mb} MB in use"
        if memory.others:
            text = "Stop those processes, or give this instance other chips in parallel.devices."
            remedy = Remedy(HELD, text, (f"fuser -v /dev/davinci{memory.chip.npu_id}", "npu-smi info"))
            said += f", held by {memory.holders}"
        else:
            text = (
                "No process is listed: it runs in another container, or was killed and the driver has not let go yet. "
                "Wait ten seconds; if it stays, stop all containers with this chip, then reset it."
            )
            remedy = Remedy(FULL_AT_OPEN, text, ("npu-smi info", "fuser -v /dev/davinci*"))
            said += ", and no process is listed"
        findings.append(Finding(Verdict.FAIL if grave else Verdict.WARN, said, remedy))
    free_mb = min(memory.total_mb - memory.used_mb for memory in memories)
    return conclude(findings, f"at least {free_mb} MB free on each of {len(memories)} chip(s)", evidence)
