"""Swap: the kernel does not move the memory of a serving instance to disk."""

from __future__ import annotations

import re
from typing import List

from ascendd.errors import ProbeParseError
from ascendd.preflight.check import CheckResult, Finding, HostCheck, Remedy, Verdict, conclude
from ascendd.preflight.context import CheckContext

HOST = "ASD-H01"
PATH = "/proc/sys/vm/swappiness"
# The kernel's default is 60; above 10 it swaps programs out to keep files cached, and weights are read as files.
MOST = 10


class Swappiness(HostCheck):
    """Memory in use stays in memory."""

    id = "swappiness"
    title = "Swap"

    def run(self, context: CheckContext) -> CheckResult:
        """Read the size of swap and how eagerly the kernel uses it."""
        text = context.files.read_text("/proc/meminfo")
        sizes = {match[1]: int(match[2]) * 1024 for match in re.finditer(r"^(Swap\w+):\s+(\d+) kB", text, re.MULTILINE)}
        if not {"SwapTotal", "SwapFree"} <= sizes.keys():
            raise ProbeParseError("/proc/meminfo holds no SwapTotal and SwapFree")
        said = context.files.read_text(PATH).strip()
        if not said.isdigit():
            raise ProbeParseError(f"{PATH} holds no number: {said[:20]!r}")
        return judge(sizes["SwapTotal"], sizes["SwapFree"], int(said))


def judge(total: int, free: int, swappiness: int) -> CheckResult:
    """Decide; without swap the number means nothing."""
    used = total - free
    evidence = {"swap_bytes": total, "swap_used_bytes": used, "swappiness": swappiness}
    findings: List[Finding] = []
    if not total:
        return conclude(findings, "no swap", evidence)
    if swappiness > MOST:
        said = f"vm.swappiness is {swappiness} with {total / 2**30:.1f} GiB of swap; at most {MOST} is asked for"
        text = f"Set it: sysctl -w vm.swappiness={MOST}, and the same in /etc/sysctl.d; or turn swap off."
        findings.append(Finding(Verdict.WARN, said, Remedy(HOST, text, ("sysctl vm.swappiness", "swapon --show"))))
    return conclude(
        findings, f"{used / 2**30:.1f} of {total / 2**30:.1f} GiB in use, swappiness {swappiness}", evidence
    )
