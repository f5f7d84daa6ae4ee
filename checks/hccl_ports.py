"""HCCL's ports: 16666 and 60000-60031 are free, and the kernel gives them to no client."""

from __future__ import annotations

from typing import FrozenSet, List, Tuple

from ascendd.host.cpu_list import format_cpus
from ascendd.host.tcp_ports import client_ports, listening_ports, reserved_ports
from ascendd.preflight.check import CheckResult, Finding, NpuCheck, Remedy, Verdict, conclude
from ascendd.preflight.context import CheckContext

PORT_IN_USE = "ASD-G44"
# The vendor's defaults: the port of the chip's own network, and those that ranks of one host listen on.
DEVICE_PORT = 16666
HOST_PORTS = frozenset(range(60000, 60032))
_COMMANDS = ("ss -ltnp '( sport >= :60000 and sport <= :60031 )'", "sysctl net.ipv4.ip_local_reserved_ports")


class HcclPorts(NpuCheck):
    """HCCL can listen where it wants to."""

    id = "hccl-ports"
    title = "HCCL ports"

    def run(self, context: CheckContext) -> CheckResult:
        """Read listeners and the kernel's ranges."""
        logical_ids = context.logical_devices()
        if logical_ids is not None and len(logical_ids) == 1:
            return CheckResult(Verdict.SKIPPED, "one chip needs no HCCL")
        files = context.files
        is_running = context.request.instance is not None and context.service().is_active
        return judge(listening_ports(files), client_ports(files), reserved_ports(files), is_running=is_running)


def judge(
    listening: FrozenSet[int], clients: Tuple[int, int], reserved: FrozenSet[int], *, is_running: bool = False
) -> CheckResult:
    """Decide; while the instance runs, the listeners are its own."""
    evidence = {
        "listening": sorted(listening & (HOST_PORTS | {DEVICE_PORT})),
        "client_ports": list(clients),
        "reserved": format_cpus(reserved),
    }
    findings: List[Finding] = []
    taken = sorted(listening & (HOST_PORTS | {DEVICE_PORT}))
    if taken and not is_running:
        said = f"port {', '.join(map(str, taken))} has a listener, which HCCL wants for itself"
        text = "Stop that process, or move HCCL with HCCL_IF_BASE_PORT in the unit's environment."
        findings.append(Finding(Verdict.FAIL, said, Remedy(PORT_IN_USE, text, _COMMANDS)))
    given = {port for port in HOST_PORTS if clients[0] <= port <= clients[1]} - reserved
    if given:
        said = f"the kernel may give port {format_cpus(given)} to a client, at random, before HCCL listens there"
        text = "Reserve them: sysctl -w net.ipv4.ip_local_reserved_ports=60000-60031, and the same in /etc/sysctl.d."
        findings.append(Finding(Verdict.WARN, said, Remedy(PORT_IN_USE, text, _COMMANDS)))
    return conclude(findings, f"{DEVICE_PORT} and {format_cpus(HOST_PORTS)} are free and reserved", evidence)
