"""Port of the cluster: on the head nobody else listens there, and from a worker the head answers on it."""

from __future__ import annotations

import socket
from typing import List, Optional

from ascendd.errors import ProbeError
from ascendd.host.files import HostFiles
from ascendd.host.tcp_ports import listening_ports
from ascendd.preflight.check import CheckResult, Finding, HostCheck, Remedy, Verdict, conclude
from ascendd.preflight.cluster import ONE_HOST, cluster_of
from ascendd.preflight.context import CheckContext

LISTEN_FAILED = "ASD-H02"
_TIMEOUT_S = 5.0


class ClusterPorts(HostCheck):
    """Ray's head can be reached."""

    id = "cluster-ports"
    title = "Port of the cluster"

    def run(self, context: CheckContext) -> CheckResult:
        """Look for a listener on the head, or for the head from a worker."""
        cluster = cluster_of(context)
        if cluster is None:
            return ONE_HOST
        if cluster.address != cluster.head:
            return judge_worker(cluster.head, cluster.port, why_not(context.files, cluster.head, cluster.port))
        unit = f"ascendd-ray@{context.request.instance}.service"
        try:
            answer = context.run(("systemctl", "is-active", unit), _TIMEOUT_S, context.environ).stdout
        except ProbeError:
            answer = ""
        is_running = answer.strip() == "active"
        return judge_head(cluster.port, is_taken=cluster.port in listening_ports(context.files), is_running=is_running)


def why_not(files: HostFiles, host: str, port: int) -> Optional[str]:
    """Return why `host` does not answer, None where it does; a fake host says whom it reaches."""
    if files.fake is not None:
        return None if f"{host}:{port}" in (files.fact("reachable") or ()) else "Connection refused"
    try:
        socket.create_connection((host, port), _TIMEOUT_S).close()
    except OSError as error:
        return error.strerror or str(error)
    return None


def judge_head(port: int, *, is_taken: bool, is_running: bool) -> CheckResult:
    """Decide on the head; while its node of Ray runs, the listener is that."""
    evidence = {"port": port, "is_taken": is_taken, "is_running": is_running}
    findings: List[Finding] = []
    if is_taken and not is_running:
        text = "End that process, or write another cluster.port into the file of every host."
        said = f"cluster.port {port} has a listener already, and this host's node of Ray does not run"
        findings.append(Finding(Verdict.FAIL, said, Remedy(LISTEN_FAILED, text, (f"ss -ltnp 'sport = :{port}'",))))
    state = "Ray's head listens" if is_taken else "the head can listen"
    return conclude(findings, f"{state} on port {port}", evidence)


def judge_worker(head: str, port: int, reason: Optional[str]) -> CheckResult:
    """Decide on a worker; `reason`: why the head does not answer."""
    findings: List[Finding] = []
    if reason is not None:
        text = "Run `ascendd cluster join` on the head first; no firewall may stand between the hosts."
        said = f"the head {head} does not answer on port {port}: {reason}"
        findings.append(Finding(Verdict.FAIL, said, Remedy(LISTEN_FAILED, text, (f"ss -tn dst {head}",))))
    return conclude(findings, f"the head {head} answers on port {port}", {"head": head, "port": port, "reason": reason})
