"""Cluster interface: it is there with this host's address, and no variable of the service names another one."""

from __future__ import annotations

from typing import List, Mapping, Optional, Sequence

from ascendd.host.interfaces import Interface, parse_interfaces
from ascendd.preflight.check import CheckResult, Finding, HostCheck, Remedy, Verdict, conclude
from ascendd.preflight.cluster import ONE_HOST, cluster_of
from ascendd.preflight.context import CheckContext

CONFIG = "ASD-C04"
# What chooses an interface for HCCL, gloo and torch's own stores.
VARIABLES = ("HCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
_COMMANDS = ("ip -br address", "cat /etc/ascendd/cann.env")
_TIMEOUT_S = 5.0


class ClusterNetwork(HostCheck):
    """The hosts meet on one interface."""

    id = "cluster-network"
    title = "Cluster interface"

    def run(self, context: CheckContext) -> CheckResult:
        """List the addresses of all interfaces, and what the service's environment says."""
        cluster = cluster_of(context)
        if cluster is None:
            return ONE_HOST
        outcome = context.run(("ip", "-json", "address"), _TIMEOUT_S * context.request.patience, context.environ)
        variables = context.service().variables
        chosen = {name: variables[name] for name in VARIABLES if name in variables}
        return judge(cluster.interface, cluster.address, parse_interfaces(outcome.stdout), chosen)


def judge(interface: str, address: str, found: Sequence[Interface], chosen: Mapping[str, str]) -> CheckResult:
    """Decide over the interfaces of the host and the variables that choose one."""
    addresses = {one.name: [here for here, _ in one.addresses] for one in found}
    evidence = {"interfaces": addresses, "variables": dict(chosen)}
    findings: List[Finding] = []
    has: Optional[str] = next((name for name, there in addresses.items() if address in there), None)
    text = "Correct cluster.interface and cluster.address in this host's file: they differ from host to host."
    remedy = Remedy(CONFIG, text, _COMMANDS)
    wanted = next((one for one in found if one.name == interface), None)
    if wanted is None:
        findings.append(Finding(Verdict.FAIL, f"there is no interface {interface}", remedy))
    elif not wanted.is_up:
        text = "Bring the interface up, and have it come up at boot."
        findings.append(Finding(Verdict.FAIL, f"{interface} is down", Remedy(CONFIG, text, _COMMANDS)))
    if has is None:
        findings.append(Finding(Verdict.FAIL, f"no interface has the address {address}", remedy))
    elif has != interface:
        findings.append(Finding(Verdict.FAIL, f"{address} is on {has}, not on {interface}", remedy))
    for name, value in chosen.items():
        if value.lstrip("=^").split(",")[0].split(":")[0] != interface:
            text = "Remove it from cann.env and the unit: the daemon sets it to cluster.interface itself."
            said = f"{name} is {value}, and the cluster is on {interface}"
            findings.append(Finding(Verdict.WARN, said, Remedy(CONFIG, text, _COMMANDS)))
    return conclude(findings, f"{interface} is up with {address}", evidence)
