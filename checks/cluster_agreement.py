"""Agreement of the hosts: versions, model and TLS switch are equal on all that joined, and their clocks are kept."""

from __future__ import annotations

from typing import Dict, List, Mapping, Optional, Tuple

from ascendd.errors import ProbeError
from ascendd.host.ray_nodes import ASK, find_nodes, token_path
from ascendd.preflight.check import CheckResult, Finding, HostCheck, Remedy, Verdict, conclude
from ascendd.preflight.cluster import ONE_HOST, cluster_of
from ascendd.preflight.context import CheckContext

DIFFERS, TLS_MISMATCH = "ASD-H01", "ASD-G46"
_TIMEOUT_S = 30.0
CLOCK_IS_KEPT = "synchronised"
_JOIN = Remedy(
    DIFFERS,
    "Run `ascendd cluster join` on every host; then the hosts are compared.",
    ("ascendd cluster status --instance NAME",),
)


class ClusterAgreement(HostCheck):
    """All hosts are alike."""

    id = "cluster-agreement"
    title = "Agreement of the hosts"
    timeout_s = 60.0

    def run(self, context: CheckContext) -> CheckResult:
        """Ask the head of the cluster what each node said of itself as it joined."""
        cluster = cluster_of(context)
        if cluster is None:
            return ONE_HOST
        python = f"{context.config.engine.vllm.venv}/bin/python"
        token = cluster.token_file or token_path(context.request.instance or "NAME")
        environ = {**context.environ, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": context.files.real(token)}
        argv = (context.files.real(python), "-c", ASK, f"{cluster.head}:{cluster.port}", "0")
        try:
            outcome = context.run(argv, _TIMEOUT_S * context.request.patience, environ)
        except ProbeError as error:
            return not_asked(error.message)
        nodes = find_nodes(outcome.stdout)
        if nodes is None:
            said = [one for one in outcome.stderr.splitlines() if one.strip()]
            return not_asked(said[-1].strip()[:200] if said else "no answer")
        return judge({host: nodes.facts.get(host, {}) for host in nodes.alive}, cluster.nodes)


def not_asked(reason: str) -> CheckResult:
    """Return what is said where the head does not answer."""
    said = f"the head cannot be asked, so the hosts were not compared: {reason}"
    return conclude([Finding(Verdict.WARN, said, _JOIN)], "", {"reason": reason})


def judge(hosts: Mapping[str, Mapping[str, str]], expected: int) -> CheckResult:
    """Decide over what each host, by address, says of itself."""
    findings: List[Finding] = []
    for key in sorted({key for facts in hosts.values() for key in facts}):
        values = {host: facts.get(key) for host, facts in hosts.items()}
        findings.extend(_clock(values) if key == "clock" else _versions(key, values))
    if len(hosts) < expected:
        said = f"{len(hosts)} of {expected} hosts joined, and those alone were compared"
        findings.append(Finding(Verdict.WARN, said, _JOIN))
    return conclude(findings, f"{len(hosts)} hosts are alike", {host: dict(facts) for host, facts in hosts.items()})


def _versions(key: str, values: Mapping[str, Optional[str]]) -> List[Finding]:
    by_value: Dict[Optional[str], List[str]] = {}
    for host, value in values.items():
        by_value.setdefault(value, []).append(host)
    if len(by_value) == 1:
        return []
    told = "; ".join(f"{value or 'unknown'} on {', '.join(of)}" for value, of in by_value.items())
    if None in by_value and len(by_value) == 2:
        text = "Look on the hosts where it is not known: the package or the driver may be missing there."
        return [Finding(Verdict.WARN, f"{key} is not known everywhere: {told}", Remedy(DIFFERS, text))]
    if key == "tls":
        text = "Switch TLS alike on every chip of every host of the cluster, then join again."
        commands: Tuple[str, ...] = ("hccn_tool -i ID -tls -s enable 0",)
        return [Finding(Verdict.FAIL, f"TLS between chips differs: {told}", Remedy(TLS_MISMATCH, text, commands))]
    text = "Install the same versions on every host, and the same model; then join again."
    return [Finding(Verdict.FAIL, f"{key} differs: {told}", Remedy(DIFFERS, text))]


def _clock(values: Mapping[str, Optional[str]]) -> List[Finding]:
    text = "Switch on chronyd or systemd-timesyncd there: logs and timeouts of several hosts need one time."
    return [
        Finding(Verdict.WARN, f"the clock of {host} is not synchronised", Remedy(DIFFERS, text, ("timedatectl",)), host)
        for host, value in values.items()
        if value is not None and value != CLOCK_IS_KEPT
    ]
