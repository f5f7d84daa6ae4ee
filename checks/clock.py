"""Clock: it is right, and something keeps it so; keys, certificates and the order of log lines hang on it."""

from __future__ import annotations

import re
import time
from typing import Dict, List, Optional

from ascendd.errors import ProbeError, ProbeUnavailable
from ascendd.preflight.check import CheckResult, Finding, HostCheck, Remedy, Verdict, conclude
from ascendd.preflight.context import CheckContext

HOST = "ASD-H01"
# 2025-01-01: whatever clock says less has lost its battery or was never set.
EARLIEST_UNIX_S = 1_735_689_600
_ARGV = ("timedatectl", "show", "--property=NTP,NTPSynchronized,Timezone")
_TIMEOUT_S = 5.0
# What timedatectl says where systemd does not run, or its bus cannot be reached.
_NO_SYSTEMD = re.compile(r"not been booted with systemd|Failed to connect to bus|Failed to create bus connection")


class Clock(HostCheck):
    """The host knows what time it is."""

    id = "clock"
    title = "Clock"

    def run(self, context: CheckContext) -> CheckResult:
        """Ask systemd whether the clock is synchronised, and read it."""
        fake_now = context.files.fact("now_unix_s")
        now_s = time.time() if fake_now is None else float(fake_now)
        try:
            outcome = context.run(_ARGV, _TIMEOUT_S * context.request.patience, context.environ)
        except ProbeUnavailable as error:
            return judge(now_s, None, error.message)
        except ProbeError as error:
            return judge(now_s, None, error.message, is_unread=True)
        said = outcome.stdout.strip().splitlines()
        if outcome.status != 0:
            why = (outcome.stderr.strip().splitlines() or said or ["no answer"])[0]
            return judge(now_s, None, why, is_unread=not _NO_SYSTEMD.search(why))
        shown = dict(line.partition("=")[::2] for line in said)
        if shown.get("NTPSynchronized") not in ("yes", "no"):
            return judge(now_s, None, f"timedatectl said: {said[0][:80] if said else 'nothing'}", is_unread=True)
        return judge(now_s, shown)


def judge(now_s: float, shown: Optional[Dict[str, str]], why_not: str = "", *, is_unread: bool = False) -> CheckResult:
    """
    Decide; `shown` is what timedatectl says, None where it was not asked or its answer `is_unread`.

    Without systemd nobody can be asked, as in a container: then only the year is judged.
    """
    day = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(now_s))
    evidence = {"now_unix_s": round(now_s), "timedatectl": shown, "why_not": why_not}
    findings: List[Finding] = []
    if now_s < EARLIEST_UNIX_S:
        said = f"the clock says {day}, which is over"
        text = "Set the clock, and have chronyd or systemd-timesyncd keep it; then look at the battery of the board."
        findings.append(_finding(Verdict.FAIL, said, text))
    elif shown is not None and shown.get("NTPSynchronized") == "no":
        runs = "no time service is switched on" if shown.get("NTP") == "no" else "its time service has no answer yet"
        text = "Switch on chronyd or systemd-timesyncd, and let the host reach its time server."
        findings.append(_finding(Verdict.WARN, f"the clock is not synchronised: {runs}", text))
    if is_unread:
        said = f"whether the clock is synchronised cannot be read: {why_not}"
        findings.append(_finding(Verdict.ERROR, said, "Ask timedatectl, or the time service, by hand."))
    kept = (
        "is synchronised" if shown is not None else f"says {day}; whether it is synchronised is not known ({why_not})"
    )
    return conclude(findings, f"the clock {kept}", evidence)


def _finding(verdict: Verdict, said: str, text: str) -> Finding:
    return Finding(verdict, said, Remedy(HOST, text, ("timedatectl", "chronyc tracking")))
