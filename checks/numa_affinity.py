"""NUMA: the service may run on CPUs near its chips; far ones make every step wait for the interconnect."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, FrozenSet, List, Mapping, Optional

from ascendd.host.cpu_list import format_cpus, parse_cpus
from ascendd.host.numa import allowed_cpus, cpus_near, online_cpus
from ascendd.preflight.check import CheckResult, Finding, NpuCheck, Remedy, Verdict, conclude
from ascendd.preflight.chips import in_use, read_report
from ascendd.preflight.context import CheckContext

HOST = "ASD-H01"


@dataclass(frozen=True)
class Affinity:
    """CPUs near each chip of the instance (None: not said), those online, and those the service may use."""

    near: Mapping[str, Optional[FrozenSet[int]]]
    online: FrozenSet[int]
    allowed: FrozenSet[int]
    allowed_by: str


class NumaAffinity(NpuCheck):
    """The service runs near its chips."""

    id = "numa-affinity"
    title = "NUMA affinity"
    requires = ("npu-presence", "npu-security")
    timeout_s = 60.0

    def run(self, context: CheckContext) -> CheckResult:
        """Read the bus, and what the unit and the control group let the service use."""
        chips = in_use(read_report(context).chips, context.logical_devices())
        near = {chip.label: cpus_near(context.files, chip.bus_id) for chip in chips}
        online = online_cpus(context.files)
        allowed, allowed_by = allowed_cpus(context.files), "this process"
        pinned = parse_cpus(context.service().cpu_affinity or "")
        if pinned:
            allowed, allowed_by = pinned, "CPUAffinity= of the unit"
        return judge(Affinity(near, online, allowed, allowed_by))


def judge(affinity: Affinity) -> CheckResult:
    """Decide; nothing here stops a service, it only makes it slow."""
    evidence = {
        "near": {label: None if cpus is None else format_cpus(cpus) for label, cpus in affinity.near.items()},
        "online": format_cpus(affinity.online),
        "allowed": format_cpus(affinity.allowed),
        "allowed_by": affinity.allowed_by,
    }
    if all(cpus is None for cpus in affinity.near.values()):
        return CheckResult(Verdict.SKIPPED, "this host does not say which CPUs are near a chip", evidence)
    findings: List[Finding] = []
    groups: Dict[str, List[str]] = {}
    for label, cpus in affinity.near.items():
        if not cpus:
            text = "The firmware of the host names no NUMA node for it; look for NUMA in its settings."
            findings.append(_finding(f"{label} has no CPUs near it", text))
        elif not cpus & affinity.online:
            text = "Bring those CPUs online, or give the instance other chips."
            findings.append(_finding(f"all CPUs near {label} ({format_cpus(cpus)}) are offline", text))
        elif not cpus & affinity.allowed:
            groups.setdefault(format_cpus(cpus), []).append(label)
    for near, labels in groups.items():
        said = f"{' and '.join(labels)}: near CPUs {near}, but {affinity.allowed_by} may use {evidence['allowed']}"
        text = "Widen CPUAffinity= or AllowedCPUs= of the unit to the CPUs near its chips, or leave them out."
        findings.append(_finding(said, text))
    nodes = len({cpus for cpus in affinity.near.values() if cpus})
    return conclude(findings, f"CPUs near every chip can be used ({nodes} group(s) of them)", evidence)


def _finding(said: str, text: str) -> Finding:
    return Finding(Verdict.WARN, said, Remedy(HOST, text, ("npu-smi info -t topo", "lscpu | grep NUMA")))
