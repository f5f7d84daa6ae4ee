"""Name of the host: it resolves to the address of the cluster, since gloo and HCCL ask for the host's own name."""

from __future__ import annotations

import ipaddress
from typing import List, Tuple

from ascendd.preflight.check import CheckResult, Finding, HostCheck, Remedy, Verdict, conclude
from ascendd.preflight.cluster import ONE_HOST, cluster_of
from ascendd.preflight.context import CheckContext

HOST = "ASD-H01"
_TIMEOUT_S = 10.0


class ClusterNames(HostCheck):
    """A host finds itself by name where the others find it."""

    id = "cluster-names"
    title = "Name of the host"

    def run(self, context: CheckContext) -> CheckResult:
        """Ask the resolver of the system for this host's own name."""
        cluster = cluster_of(context)
        if cluster is None:
            return ONE_HOST
        name = context.files.read_text("/proc/sys/kernel/hostname").strip()
        outcome = context.run(("getent", "ahosts", name), _TIMEOUT_S * context.request.patience, context.environ)
        found = tuple(dict.fromkeys(line.split()[0] for line in outcome.stdout.splitlines() if line.strip()))
        return judge(name, found, cluster.address)


def judge(name: str, found: Tuple[str, ...], address: str) -> CheckResult:
    """Decide over the addresses that `name` resolves to."""
    commands = (f"getent ahosts {name}", "cat /etc/hosts")
    text = f"Write `{address} {name}` into /etc/hosts, and take the name away from lines with 127.0.1.1."
    remedy = Remedy(HOST, text, commands)
    findings: List[Finding] = []
    if not found:
        findings.append(Finding(Verdict.FAIL, f"this host's name {name} does not resolve", remedy))
    elif all(_is_loopback(one) for one in found):
        said = f"this host's name {name} resolves to {', '.join(found)}, where no other host can reach it"
        findings.append(Finding(Verdict.FAIL, said, remedy))
    elif address not in found:
        said = f"this host's name {name} resolves to {', '.join(found)}, not to cluster.address {address}"
        findings.append(Finding(Verdict.WARN, said, remedy))
    return conclude(findings, f"{name} resolves to {address}", {"name": name, "addresses": list(found)})


def _is_loopback(text: str) -> bool:
    try:
        return ipaddress.ip_address(text.partition("%")[0]).is_loopback
    except ValueError:
        return False
