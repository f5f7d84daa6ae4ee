"""Ports of the instance: what it wants to listen on is free."""

from __future__ import annotations

from typing import Dict, FrozenSet, List, Tuple

from ascendd.host.files import HostFiles
from ascendd.host.tcp_ports import listening_ports
from ascendd.preflight.check import CheckResult, Finding, HostCheck, Remedy, Verdict, conclude
from ascendd.preflight.context import CheckContext

LISTEN_FAILED = "ASD-H02"


class PortFree(HostCheck):
    """The instance can listen."""

    id = "port-free"
    title = "Ports"

    def run(self, context: CheckContext) -> CheckResult:
        """Compare the configured ports with the listeners of this host."""
        config = context.config
        if config is None:
            return CheckResult(Verdict.SKIPPED, "no instance named whose ports could be looked at")
        ports = {"listen.port": config.listen.port}
        if config.metrics.enabled:
            ports["metrics.port"] = config.metrics.port
        is_running = context.request.inside_service or (
            context.request.instance is not None and context.service().is_active
        )
        return judge(ports, listening_ports(context.files), holders(context.files), is_running=is_running)


def holders(files: HostFiles) -> Dict[int, str]:
    """Return who listens, by port, as far as this user may see it; nobody of a fake host."""
    if files.root:
        return {}
    try:
        from ascendd.host.proc import listeners
    except ImportError:  # psutil comes with the installed product, not with the bundle
        return {}
    return listeners()


def judge(
    ports: Dict[str, int], listening: FrozenSet[int], held_by: Dict[int, str], *, is_running: bool = False
) -> CheckResult:
    """Decide; while the instance runs, the listeners are its own. Port 0 takes a free one."""
    evidence = {
        "ports": ports,
        "listening": sorted(set(ports.values()) & listening),
        "held_by": {str(port): held_by[port] for port in sorted(set(ports.values()) & held_by.keys())},
    }
    findings: List[Finding] = []
    taken = {key: port for key, port in ports.items() if port and port in listening}
    for key, port in taken.items():
        if is_running:
            continue
        who = held_by.get(port)
        said = f"{key} {port} has a listener already" + (f": {who}" if who else "")
        text = f"End that process, or write another {key} into the instance file."
        commands: Tuple[str, ...] = (f"ss -ltnp 'sport = :{port}'",)
        findings.append(Finding(Verdict.FAIL, said, Remedy(LISTEN_FAILED, text, commands)))
    if is_running and taken:
        return conclude(findings, f"the instance runs and listens on {', '.join(map(str, taken.values()))}", evidence)
    told = " and ".join(f"{key} {port or 'any'}" for key, port in ports.items())
    return conclude(findings, f"{told} can be listened on", evidence)
