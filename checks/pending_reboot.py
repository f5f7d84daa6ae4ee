"""Pending reboot: driver or firmware were installed after the host was started, so what runs is still the old one."""

from __future__ import annotations

from typing import List, Optional, Sequence

from ascendd.host.boot import Installation, boot_time_s, read_installations, restart_request
from ascendd.preflight.check import CheckResult, Finding, NpuCheck, Remedy, Verdict, conclude
from ascendd.preflight.context import CheckContext

DEVICE_UNAVAILABLE = "ASD-D02"
_REBOOT = Remedy(DEVICE_UNAVAILABLE, "Reboot the host, then run the doctor again.", ("systemctl reboot",))


class PendingReboot(NpuCheck):
    """The host was restarted since its driver and firmware were installed."""

    id = "pending-reboot"
    title = "Pending reboot"

    def run(self, context: CheckContext) -> CheckResult:
        """Compare the installer's log with the time of the last start."""
        files = context.files
        if context.is_container:
            return CheckResult(Verdict.SKIPPED, "a container does not know when its host was started")
        return judge(read_installations(files), boot_time_s(files), restart_request(files))


def judge(installed: Sequence[Installation], started_s: float, request: Optional[str]) -> CheckResult:
    """Decide; `started_s` is Unix time, `request` the file by which a package manager asks for a restart."""
    later = [one for one in installed if one.when_s > started_s]
    evidence = {
        "started_unix_s": round(started_s),
        "installed": [f"{one.date} {one.package}" for one in installed],
        "installed_since": [one.package for one in later],
        "request": request,
    }
    findings: List[Finding] = []
    if later:
        names = ", ".join(dict.fromkeys(one.package for one in later))
        findings.append(Finding(Verdict.FAIL, f"{names} was installed after the host was started", _REBOOT))
    if request is not None:
        findings.append(Finding(Verdict.WARN, f"{request} asks for a restart (a new kernel or library)", _REBOOT))
    last = f"; the last was on {installed[-1].date}" if installed else ", as far as its logs tell"
    return conclude(findings, f"nothing was installed since the host was started{last}", evidence)
