"""Driver version: a whole driver is installed, and the one on disk is the one that runs."""

from __future__ import annotations

import re
from typing import List, Optional, Tuple

from ascendd.errors import ProbeError
from ascendd.host.cann_version import parse_version
from ascendd.host.version_files import DriverFiles, read_driver
from ascendd.preflight.check import CheckResult, Finding, NpuCheck, Remedy, Verdict, conclude, conclude_with
from ascendd.preflight.context import CheckContext

PREFLIGHT = "ASD-P01"


class DriverVersion(NpuCheck):
    """The driver is whole, and the one that runs."""

    id = "driver-version"
    title = "Driver version"
    timeout_s = 60.0

    def run(self, context: CheckContext) -> CheckResult:
        """Read version.info and ask npu-smi."""
        driver = read_driver(context.files)
        running: Optional[str] = None
        try:
            running = context.npu_smi().info().driver_version
        except ProbeError as error:
            note = error.message
        else:
            note = ""
        has_tools = context.files.exists(f"{driver.path.rpartition('/')[0]}/tools/upgrade-tool")
        return judge(driver, running, note, has_tools=has_tools)


def judge(driver: DriverFiles, running: Optional[str], note: str = "", *, has_tools: bool = True) -> CheckResult:
    """Decide; `running` is the version that npu-smi shows (None with the reason in `note`)."""
    evidence = {
        "on_disk": driver.version,
        "running": running,
        "inner_version": driver.inner_version,
        "is_complete": driver.is_complete,
        "has_tools": has_tools,
        "path": driver.path,
    }
    if driver.version is None:
        if running is None:
            said = f"no driver is installed: {driver.path} is not there" + (f"; {note}" if note else "")
            return conclude_with(
                _finding(Verdict.FAIL, said, "Install the driver, then the firmware, then reboot."), evidence
            )
        text = f"Mount {driver.path} into the container."
        return conclude_with(_finding(Verdict.WARN, f"{driver.path} is not there; running: {running}", text), evidence)
    findings: List[Finding] = []
    if not driver.is_complete:
        text = "Install the driver package again, then reboot."
        findings.append(_finding(Verdict.FAIL, "the driver's installation was not completed", text))
    if not has_tools and running is None:
        # A container gets version.info alone; where the driver also does not run, half of it is missing.
        text = "Install the driver package again, then reboot."
        findings.append(_finding(Verdict.FAIL, "the driver's tools are missing: it is installed half", text))
    if running is None:
        findings.append(Finding(Verdict.PASS, f"what runs is not known: {note}"))  # presence says why
    elif not same_version(driver.version, running):
        said = f"{driver.version} is installed but {running} runs: a reboot is pending"
        findings.append(_finding(Verdict.FAIL, said, "Reboot the host.", ("systemctl reboot",)))
    return conclude(findings, f"{driver.version} is installed" + (" and runs" if running else ""), evidence)


def same_version(installed: str, running: str) -> bool:
    """Compare without case; `24.1.0.b062` is a build of `24.1.0`."""
    one, other = installed.lower(), running.lower()
    short, long = sorted((one, other), key=len)
    return (
        one == other
        or bool(re.fullmatch(re.escape(short) + r"[._](b|sph)\d+", long))
        or parse_version(one) == parse_version(other) is not None
    )


def _finding(verdict: Verdict, said: str, text: str, commands: Tuple[str, ...] = ()) -> Finding:
    return Finding(verdict, said, Remedy(PREFLIGHT, text, commands))
