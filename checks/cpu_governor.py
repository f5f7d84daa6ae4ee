"""CPU governor: the CPUs run at full clock, not at what a governor thinks that a waiting engine needs."""

from __future__ import annotations

from types import MappingProxyType
from typing import Dict, FrozenSet, List, Mapping, Tuple

from ascendd.errors import ProbeError
from ascendd.host.cpu_list import format_cpus
from ascendd.host.files import HostFiles
from ascendd.preflight.check import CheckResult, Finding, HostCheck, Remedy, Verdict, conclude
from ascendd.preflight.context import CheckContext

HOST = "ASD-H01"
PROBE_PARSE = "ASD-P04"
# `schedutil` follows the load of the scheduler within a tick.
FAST = ("performance", "schedutil")
SLOW = ("powersave", "ondemand", "conservative", "userspace")
# With these drivers `powersave` lets the hardware choose the clock, up to the highest.
CHOOSE_THEMSELVES = ("intel_pstate", "amd-pstate-epp", "amd_pstate_epp")
_FOLDER = "/sys/devices/system/cpu"


class CpuGovernor(HostCheck):
    """Steps do not wait for a CPU that is still waking up."""

    id = "cpu-governor"
    title = "CPU governor"

    def run(self, context: CheckContext) -> CheckResult:
        """Read governor and driver of every CPU."""
        return judge(*governors(context.files))


def governors(files: HostFiles) -> Tuple[Dict[int, Tuple[str, str]], Dict[int, str]]:
    """Return governor and driver by CPU, for those that have one; and why those of others cannot be read."""
    found, unread = {}, {}
    for name in files.list_dir(_FOLDER, "cpu[0-9]*"):
        try:
            governor = files.read_optional(f"{_FOLDER}/{name}/cpufreq/scaling_governor")
            driver = files.read_optional(f"{_FOLDER}/{name}/cpufreq/scaling_driver") or ""
        except ProbeError as error:
            unread[int(name[3:])] = error.message
            continue
        if governor is not None:
            found[int(name[3:])] = (governor.strip(), driver.strip())
    return found, unread


def judge(found: Mapping[int, Tuple[str, str]], unread: Mapping[int, str] = MappingProxyType({})) -> CheckResult:
    """Decide; a slow governor costs time in every step, and stops nothing. `unread` says why a CPU's is not known."""
    if not found and not unread:
        return CheckResult(Verdict.SKIPPED, "this host does not let its clock be set (a virtual machine, or fixed)")
    slow: Dict[str, List[int]] = {}
    for cpu, (governor, driver) in sorted(found.items()):
        if governor in SLOW and not (governor == "powersave" and driver in CHOOSE_THEMSELVES):
            slow.setdefault(governor, []).append(cpu)
    evidence = {
        "governors": {governor: format_cpus(cpus) for governor, cpus in _grouped(found).items()},
        "unread": {str(cpu): why for cpu, why in unread.items()},
    }
    findings = []
    strange = [cpu for cpu, (governor, _) in found.items() if governor not in (*SLOW, *FAST)]
    if unread or strange:
        said = f"the governor of CPUs {format_cpus([*unread, *strange])} is not known"
        why = next(iter(unread.values()), None) or f"{_FOLDER} names {found[strange[0]][0][:40]!r}"
        text = "Look at the governor by hand: `cpupower frequency-info`."
        commands = (f"grep . {_FOLDER}/cpu*/cpufreq/scaling_governor | head",)
        findings.append(Finding(Verdict.ERROR, f"{said}: {why}", Remedy(PROBE_PARSE, text, commands)))
    for governor, cpus in slow.items():
        said = f"CPUs {format_cpus(cpus)} have the governor {governor}"
        text = "Set the governor performance: `cpupower frequency-set -g performance`, or a profile of tuned."
        commands = (f"grep . {_FOLDER}/cpu*/cpufreq/scaling_governor | head",)
        findings.append(Finding(Verdict.WARN, said, Remedy(HOST, text, commands)))
    return conclude(findings, f"governor {', '.join(sorted(_grouped(found)))} on {len(found)} CPUs", evidence)


def _grouped(found: Mapping[int, Tuple[str, str]]) -> Dict[str, FrozenSet[int]]:
    names = {governor for governor, _ in found.values()}
    return {name: frozenset(cpu for cpu, (governor, _) in found.items() if governor == name) for name in sorted(names)}
