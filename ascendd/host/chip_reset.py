"""
Resets chips with `npu-smi set -t reset`, each together with its ring.

A reset takes every chip along that is linked to the one that was named, ends whatever computes there, and wipes what
the chips have logged. So, in this order: the ring is found; nothing is done while anybody has a chip of it; the device
logs are exported; the reset is asked for, its one or two prompts answered, at most three times; and it counts once
every chip of the ring is listed again and those that were asked for are well. Blocking, for minutes.
"""

from __future__ import annotations

import enum
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable, Dict, FrozenSet, List, Mapping, Optional, Sequence, Set, Tuple

from ascendd.errors import ProbeError
from ascendd.host.command import CommandOutcome, run_command
from ascendd.host.device_holders import find_holders
from ascendd.host.files import HostFiles
from ascendd.host.npu_smi import NpuSmi, find_npu_smi, raise_failure
from ascendd.host.npu_smi_lists import parse_reset
from ascendd.host.npu_smi_table import BAD, WELL, NpuChip, NpuSmiReport
from ascendd.host.npu_topology import FAST, NpuTopology
from ascendd.host.tool import find_tool, host_runner, tool_environ
from ascendd.host.version_files import driver_tool

# What each try adds: in band by the driver, else out of band by the BMC. Some chips take only the one or the other.
_WAYS: Tuple[Tuple[str, ...], ...] = (("-m", "1"), (), ("-m", "1"))
# Every product asks once, A3 and the 300I Duo twice; what is not read is left in the pipe.
_ANSWERS = "Y\nY\n"


class ResetResult(enum.Enum):
    """How it went; the value is the exit status of `ascendd instance reset-chips`."""

    DONE = 0
    HELD = 75  # somebody has a chip of the ring: nothing was done
    FAILED = 74


@dataclass(frozen=True)
class ResetOutcome:
    """What came of it, for people; `ring` has the labels of all chips that it took along, `logs` the exported ones."""

    result: ResetResult
    text: str
    ring: Tuple[str, ...] = ()
    num_tries: int = 0
    logs: Optional[str] = None


@dataclass(frozen=True)
class ResetPlan:
    """What a reset of some chips takes: `first` are named to the tool, one a ring; `ring` are logical numbers."""

    first: Tuple[int, ...]
    wanted: FrozenSet[int]
    ring: FrozenSet[int]
    holders: Tuple[str, ...]
    chips: Tuple[NpuChip, ...]

    @property
    def labels(self) -> Tuple[str, ...]:
        """The chips of the ring as an operator finds them again."""
        return tuple(self.chips[number].label for number in sorted(self.ring))


@dataclass(frozen=True)
class ChipReset:
    """Resets chips of the host that `files` shows. `log_folder` gets the device logs; limits are seconds."""

    log_folder: Path
    files: HostFiles = field(default_factory=HostFiles)
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    export_s: float = 600.0
    reset_s: float = 300.0
    back_s: float = 180.0
    pause_s: float = 10.0
    sleep: Callable[[float], None] = time.sleep

    def plan(self, devices: FrozenSet[int], named: FrozenSet[int] = frozenset()) -> ResetPlan:
        """
        Return what a reset of the chips among `devices` (logical numbers) that need one would take along.

        Those that report a fault; where none does those that are `named`; else all. Raises ProbeError where the chips
        cannot be listed. Where npu-smi does not say how they are linked, the ring is the whole host.
        """
        tool = self._tool()
        report = tool.info()
        chips = report.chips
        known = frozenset(number for number in devices if number < len(chips))
        bad = frozenset(number for number in known if chips[number].health in BAD)
        wanted = bad or (named & known) or known
        try:
            links: Optional[NpuTopology] = tool.topology()
        except ProbeError:
            links = None
        first: List[int] = []
        ring: Set[int] = set()
        for number in sorted(wanted):
            if number not in ring:
                first.append(number)
                ring |= ring_of(number, chips, links)
        return ResetPlan(tuple(first), wanted, frozenset(ring), self._holders(report, ring), chips)

    def reset(self, devices: FrozenSet[int], named: FrozenSet[int] = frozenset()) -> ResetOutcome:
        """Do it; never raises for what host and tools do."""
        try:
            plan = self.plan(devices, named)
        except ProbeError as error:
            return ResetOutcome(ResetResult.FAILED, f"not reset: {error.message}")
        if not plan.wanted:
            return ResetOutcome(ResetResult.FAILED, "not reset: npu-smi lists none of the chips of the instance")
        if plan.holders:
            text = f"not reset: {', '.join(plan.holders)}; whatever is on the ring ends with a reset"
            return ResetOutcome(ResetResult.HELD, text, plan.labels)
        logs, said = self._export()
        num_tries = 0
        for number in plan.first:
            problem: Optional[str] = "never asked"
            for way in _WAYS:
                num_tries += 1
                problem = self._try(plan, number, way)
                if problem is None:
                    break
                self.sleep(self.pause_s)
            if problem is not None:
                text = f"{plan.chips[number].label} was not reset in {len(_WAYS)} tries: {problem}; {said}"
                return ResetOutcome(ResetResult.FAILED, text, plan.labels, num_tries, logs)
        named_chips = ", ".join(plan.chips[number].label for number in sorted(plan.wanted))
        text = f"{named_chips} was reset with its ring of {len(plan.ring)} chips, {num_tries} tries; {said}"
        return ResetOutcome(ResetResult.DONE, text, plan.labels, num_tries, logs)

    def _try(self, plan: ResetPlan, number: int, way: Tuple[str, ...]) -> Optional[str]:
        """Ask once; return None where the ring is back and well, else what is wrong."""
        chip = plan.chips[number]
        try:
            arguments = ("set", "-t", "reset", "-i", str(chip.npu_id), "-c", str(chip.chip_id), *way)
            outcome = self._run([self._tool().path, *arguments], self.reset_s, stdin=_ANSWERS)
            if "Status" not in outcome.stdout:
                raise_failure(outcome)
            if not parse_reset(outcome.stdout):
                return f"npu-smi {' '.join(arguments)} said Fail"
        except ProbeError as error:
            return error.message
        return self._wait_back(plan)

    def _wait_back(self, plan: ResetPlan) -> Optional[str]:
        waited_s = 0.0
        while True:
            problem = self._missing(plan)
            if problem is None or waited_s >= self.back_s:
                return problem and f"{problem}, {waited_s:.0f} s after the reset"
            step_s = min(5.0, self.back_s)
            self.sleep(step_s)
            waited_s += step_s

    def _missing(self, plan: ResetPlan) -> Optional[str]:
        try:
            report = self._tool().info()
        except ProbeError as error:
            return error.message
        now = {(chip.npu_id, chip.chip_id): chip for chip in report.chips}
        for number in sorted(plan.ring):
            before = plan.chips[number]
            chip = now.get((before.npu_id, before.chip_id))
            if chip is None:
                return f"{before.label} is not listed any more"
            if number in plan.wanted and chip.health not in WELL:
                return f"{before.label} reports health {chip.health}"
        return None

    def _export(self) -> Tuple[Optional[str], str]:
        """Export the device logs; return their folder and what to say of them."""
        tool = find_tool("msnpureport", self.files, self.environ) or driver_tool(self.files, "msnpureport")
        if tool is None:
            return None, "device logs were not exported: there is no msnpureport"
        folder = self.log_folder / time.strftime("device-%Y%m%d-%H%M%S", time.gmtime())
        try:
            folder.mkdir(mode=0o750, parents=True, exist_ok=True)
            outcome = self._run([tool, "-f"], self.export_s, cwd=str(folder))
        except OSError as error:
            return None, f"device logs were not exported: {folder}: {error.strerror or error}"
        except ProbeError as error:
            return str(folder), f"device logs were not exported whole: {error.message}"
        if outcome.status != 0 or "Export finished" not in outcome.stdout:
            said = (outcome.stdout + outcome.stderr).strip().splitlines() or ["nothing"]
            return str(folder), f"device logs were not exported whole: msnpureport said {said[-1][:200]}"
        return str(folder), f"device logs are in {folder}"

    def _holders(self, report: NpuSmiReport, ring: Set[int]) -> Tuple[str, ...]:
        """Return who has a chip of the ring: by its open node, and by what npu-smi lists of all containers."""
        nodes = {_node(self.files, number, report.chips[number]): report.chips[number] for number in ring}
        found: Dict[int, str] = {}
        for process in find_holders(self.files):
            for node in sorted(set(process.chips) & nodes.keys()):
                found.setdefault(process.pid, f"{process.label} has {nodes[node].label}")
        places = {(chip.npu_id, chip.chip_id): chip for chip in nodes.values()}
        for listed in report.processes:
            chip = places.get((listed.npu_id, listed.chip_id))
            if chip is not None:
                found.setdefault(listed.pid, f"{listed.name or 'a process'} (pid {listed.pid}) has {chip.label}")
        return tuple(found[pid] for pid in sorted(found))

    def _tool(self) -> NpuSmi:
        return NpuSmi(find_npu_smi(self.files, self.environ), host_runner(self.files), self.environ)

    def _run(
        self, argv: Sequence[str], limit_s: float, stdin: Optional[str] = None, cwd: Optional[str] = None
    ) -> CommandOutcome:
        return run_command(argv, limit_s, tool_environ(self.files, self.environ), stdin, cwd)


def ring_of(number: int, chips: Sequence[NpuChip], links: Optional[NpuTopology]) -> FrozenSet[int]:
    """
    Return the logical numbers of the chips that a reset of `number` takes along, itself included. Pure.

    Chips that reach each other over links made for chips, directly or by others, and all chips of one card. All of the
    host where `links` is None or does not know a chip.
    """
    everything = frozenset(range(len(chips)))
    if links is None or any(chip.physical_id not in links.chips for chip in chips):
        return everything
    ring, waiting = set(), [number]
    while waiting:
        one = waiting.pop()
        ring.add(one)
        for other in everything - ring:
            pair = (chips[one].physical_id, chips[other].physical_id)
            if chips[one].npu_id == chips[other].npu_id or _word(links, pair) in FAST:
                waiting.append(other)
    return frozenset(ring)


def _word(links: NpuTopology, pair: Tuple[Optional[int], Optional[int]]) -> Optional[str]:
    first, second = pair
    return None if first is None or second is None else links.links.get((first, second))


def _node(files: HostFiles, number: int, chip: NpuChip) -> int:
    physical = chip.physical_id
    return number if physical is None or not files.exists(f"/dev/davinci{physical}") else physical
