"""
What the doctor can put right itself: settings of the host that can be set back, and nothing else.

No fix stops a process, touches a device, removes or installs anything, or restarts the host; those stay with the
operator. Each is one command, shown before it runs, and runs only with `--fix --yes`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from ascendd.errors import ProbeError
from ascendd.host.command import RunCommand
from ascendd.preflight.check import CheckResult, Verdict

_TIMEOUT_S = 30.0
_UNTIL_RESTART = "until the next start of the host; a file in /etc/sysctl.d keeps it"


@dataclass(frozen=True)
class Fix:
    """One command for the finding of one check; `holds` says how long its effect lasts, `undo` takes it back."""

    check_id: str
    argv: Tuple[str, ...]
    holds: str
    undo: Optional[str]

    @property
    def command(self) -> str:
        """The command as it would be typed."""
        return " ".join(self.argv)


@dataclass(frozen=True)
class FixOutcome:
    """What became of a fix; `problem` is None where it worked."""

    fix: Fix
    problem: Optional[str]


def fixes_for(results: Sequence[CheckResult]) -> List[Fix]:
    """Return the fixes for what `results` found, in their order."""
    found = []
    for result in results:
        maker = _MAKERS.get(result.check_id)
        if maker is not None and result.verdict in (Verdict.WARN, Verdict.FAIL):
            fix = maker(result.evidence)
            found += [] if fix is None else [fix]
    return found


def apply(fix: Fix, run: RunCommand, environ: Mapping[str, str]) -> FixOutcome:
    """Run a fix and return what became of it; never raises for what the command does."""
    try:
        outcome = run(fix.argv, _TIMEOUT_S, environ)
    except ProbeError as error:
        return FixOutcome(fix, error.message)
    if outcome.status != 0:
        said = (outcome.stderr or outcome.stdout).strip().splitlines()
        return FixOutcome(fix, f"exit status {outcome.status}: {said[-1] if said else 'no word'}")
    return FixOutcome(fix, None)


def _ports(evidence: Mapping[str, object]) -> Optional[Fix]:
    """Reserve HCCL's ports beside those that are; a listener on them is nothing that a setting changes."""
    reserved = str(evidence.get("reserved") or "")
    if "60000-60031" in reserved or evidence.get("listening"):
        return None
    value = ",".join(part for part in (reserved, "60000-60031") if part)
    key = "net.ipv4.ip_local_reserved_ports"
    return Fix("hccl-ports", ("sysctl", "-w", f"{key}={value}"), _UNTIL_RESTART, f"sysctl -w {key}={reserved}")


def _swappiness(evidence: Mapping[str, object]) -> Optional[Fix]:
    undo = f"sysctl -w vm.swappiness={evidence['swappiness']}"
    return Fix("swappiness", ("sysctl", "-w", "vm.swappiness=10"), _UNTIL_RESTART, undo)


def _governor(evidence: Mapping[str, object]) -> Optional[Fix]:
    governors = evidence.get("governors")
    before = next((name for name in governors if name != "performance"), None) if isinstance(governors, dict) else None
    undo = None if before is None else f"cpupower frequency-set -g {before}"
    argv = ("cpupower", "frequency-set", "-g", "performance")
    return Fix("cpu-governor", argv, "until the next start of the host; tuned or a unit keeps it", undo)


def _clock(evidence: Mapping[str, object]) -> Optional[Fix]:
    shown = evidence.get("timedatectl")
    if not isinstance(shown, dict) or shown.get("NTP") != "no":
        return None
    return Fix("clock", ("timedatectl", "set-ntp", "true"), "for good", "timedatectl set-ntp false")


def _group(evidence: Mapping[str, object]) -> Optional[Fix]:
    user, group, groups = evidence.get("user"), evidence.get("driver_group"), evidence.get("groups")
    if not isinstance(groups, list) or not isinstance(group, str) or not isinstance(user, str) or group in groups:
        return None
    holds = "for good; instances have it after their next start"
    return Fix("service-user", ("usermod", "-aG", group, user), holds, f"gpasswd -d {user} {group}")


_MAKERS: Dict[str, Callable[[Mapping[str, object]], Optional[Fix]]] = {
    "hccl-ports": _ports,
    "swappiness": _swappiness,
    "cpu-governor": _governor,
    "clock": _clock,
    "service-user": _group,
}
