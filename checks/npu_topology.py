"""Topology: the chips of the instance reach each other over links made for chips, not across the processors."""

from __future__ import annotations

from typing import Dict, FrozenSet, List, Optional, Sequence, Tuple

from ascendd.host.npu_smi_table import NpuChip
from ascendd.host.npu_topology import FAST
from ascendd.host.npu_topology import NpuTopology as Topology
from ascendd.preflight.check import CheckResult, Finding, NpuCheck, Remedy, Verdict, conclude
from ascendd.preflight.chips import in_use, read_report
from ascendd.preflight.context import CheckContext

LINK_ERROR = "ASD-G54"
_COMMANDS = ("npu-smi info -t topo",)


class NpuTopology(NpuCheck):
    """The instance's chips lie well together."""

    id = "npu-topology"
    title = "NPU topology"
    requires = ("npu-presence", "npu-security")
    timeout_s = 60.0

    def run(self, context: CheckContext) -> CheckResult:
        """Ask npu-smi for the matrix."""
        logical_ids = context.logical_devices()
        if logical_ids is not None and len(logical_ids) == 1:
            return CheckResult(Verdict.SKIPPED, "one chip has no other to reach")
        chips = read_report(context).chips
        if len(chips) < 2:
            return CheckResult(Verdict.SKIPPED, "this host has one chip")
        return judge(context.npu_smi().topology(), chips, logical_ids)


def judge(topology: Topology, chips: Sequence[NpuChip], logical_ids: Optional[FrozenSet[int]]) -> CheckResult:
    """Decide over the links among the instance's chips; without an instance a group of all chips is only described."""
    wanted = frozenset(chip.physical_id for chip in in_use(chips, logical_ids) if chip.physical_id is not None)
    links = topology.between(wanted)
    count: Dict[str, int] = {}
    for word in links.values():
        count[word] = count.get(word, 0) + 1
    evidence = {
        "chips": sorted(wanted),
        "links": count,
        "groups": [sorted(group) for group in fast_groups(topology)],
    }
    findings: List[Finding] = []
    unknown = sorted(pair for pair, word in links.items() if word == "NA")
    if unknown:
        said = f"how NPU {_pair(unknown[0])} reach each other is not known" + _more(unknown)
        text = "A link between the chips is broken, or the driver does not know it: reset the chips, look in the BMC."
        findings.append(Finding(Verdict.FAIL, said, Remedy(LINK_ERROR, text, _COMMANDS)))
    slow = sorted(pair for pair, word in links.items() if word not in FAST and word != "NA")
    if slow and logical_ids is not None:
        said = f"NPU {_pair(slow[0])} reach each other only by {links[slow[0]]}" + _more(slow)
        group = next((group for group in fast_groups(topology) if len(group) >= len(wanted)), None)
        better = f"parallel.devices: {sorted(group)[: len(wanted)]}" if group else "fewer chips"
        text = f"All-reduce crosses the processors and is slow. Choose chips of one group: {better}."
        findings.append(Finding(Verdict.WARN, said, Remedy(LINK_ERROR, text, _COMMANDS)))
    missing = sorted(wanted - set(topology.chips))
    if missing:
        said = f"NPU {', '.join(map(str, missing))} is not in the matrix of npu-smi"
        text = "Look for the chip in npu-smi info and dmesg."
        findings.append(Finding(Verdict.FAIL, said, Remedy(LINK_ERROR, text, _COMMANDS)))
    shown = ", ".join(f"{number} by {word}" for word, number in sorted(count.items()))
    return conclude(findings, f"{len(wanted)} chips, {len(links)} pairs: {shown}", evidence)


def fast_groups(topology: Topology) -> Tuple[FrozenSet[int], ...]:
    """Return the groups of chips that all reach each other fast, greedily from the lowest id."""
    groups: List[FrozenSet[int]] = []
    waiting = sorted(topology.chips)
    while waiting:
        group = [waiting[0]]
        for chip in waiting[1:]:
            if all(topology.links[chip, member] in FAST for member in group):
                group.append(chip)
        groups.append(frozenset(group))
        waiting = [chip for chip in waiting if chip not in group]
    return tuple(groups)


def _pair(pair: Tuple[int, int]) -> str:
    return f"{pair[0]} and {pair[1]}"


def _more(pairs: Sequence[Tuple[int, int]]) -> str:
    return f" (and {len(pairs) - 1} more pairs)" if len(pairs) > 1 else ""
