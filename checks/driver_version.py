"""Driver version: the one on disk is the one that runs, and CANN and the driver say that they go together."""

from __future__ import annotations

import re
from typing import Any, List, Optional, Tuple

from ascendd.errors import ProbeError
from ascendd.host.cann_version import matches_pattern, parse_version
from ascendd.host.vendor_facts import load_facts
from ascendd.host.version_files import CannFiles, DriverFiles, read_cann, read_driver
from ascendd.preflight.check import CheckResult, Finding, NpuCheck, Remedy, Verdict, conclude
from ascendd.preflight.context import CheckContext

PREFLIGHT = "ASD-P01"
_RELEASE = re.compile(r"V\d+R\d+C\d+")


class DriverVersion(NpuCheck):
    """The driver is whole, loaded, and of a version that CANN works with."""

    id = "driver-version"
    title = "Driver version"
    timeout_s = 60.0

    def run(self, context: CheckContext) -> CheckResult:
        """Read version.info, ask npu-smi, read what CANN declares."""
        running: Optional[str] = None
        try:
            running = context.npu_smi().info().driver_version
        except ProbeError as error:
            note = error.message
        else:
            note = ""
        toolkits = read_cann(context.files, context.service().variables)
        return judge(read_driver(context.files), running, toolkits[0] if toolkits else None, note)


def judge(driver: DriverFiles, running: Optional[str], cann: Optional[CannFiles], note: str = "") -> CheckResult:
    """Decide; `running` is the version that npu-smi shows (None with the reason in `note`)."""
    evidence = {
        "on_disk": driver.version,
        "running": running,
        "cann": None if cann is None else cann.version,
        "driver_release": driver.inner_version,
        "driver_accepts_cann": list(driver.compatible_versions),
        "cann_accepts_driver": [] if cann is None else list(cann.compatible_versions),
        "path": driver.path,
    }
    if driver.version is None:
        if running is None:
            said = f"no driver is installed: {driver.path} is not there" + (f"; {note}" if note else "")
            return conclude(
                [_finding(Verdict.FAIL, said, "Install the driver, then the firmware, then reboot.")], "", evidence
            )
        text = f"Mount {driver.path} into the container."
        return conclude([_finding(Verdict.WARN, f"{driver.path} is not there; running: {running}", text)], "", evidence)
    findings: List[Finding] = []
    if not driver.is_complete:
        text = "Install the driver package again, then reboot."
        findings.append(_finding(Verdict.FAIL, "the driver's installation was not completed", text))
    if running is None:
        findings.append(_finding(Verdict.WARN, f"what runs is not known: {note}", "See the presence check."))
    elif not same_version(driver.version, running):
        said = f"{driver.version} is installed but {running} runs: a reboot is pending"
        findings.append(_finding(Verdict.FAIL, said, "Reboot the host.", ("systemctl reboot",)))
    if cann is None:
        findings.append(Finding(Verdict.PASS, "no CANN toolkit to compare with"))
    else:
        findings += _pair(driver, cann)
    with_cann = "" if cann is None else f", works with CANN {cann.version}"
    return conclude(findings, f"{driver.version}{with_cann}", evidence)


def same_version(installed: str, running: str) -> bool:
    """Compare without case; `24.1.0.b062` is a build of `24.1.0`."""
    one, other = installed.lower(), running.lower()
    short, long = sorted((one, other), key=len)
    return (
        one == other
        or bool(re.fullmatch(re.escape(short) + r"[._](b|sph)\d+", long))
        or parse_version(one) == parse_version(other) is not None
    )


def _pair(driver: DriverFiles, cann: CannFiles) -> List[Finding]:
    """Ask the newer side first: whichever was released later lists the other."""
    declared = declares(driver, cann)
    row = published(cann.version, driver.version or "")
    said_by = "" if row is None else f" ({row['source']})"
    update = "Install a driver and a CANN release that the vendor lists together."
    if row is not None and row["compatible"] == "no":
        said = f"CANN {cann.version} is published as not working with driver {driver.version}{said_by}"
        return [_finding(Verdict.FAIL, said, update)]
    if declared is False:
        if row is not None and row["compatible"] == "yes":
            return [Finding(Verdict.PASS, f"listed by the vendor for CANN {cann.version}{said_by}")]
        said = f"neither driver {driver.version} nor CANN {cann.version} lists the other as compatible"
        return [_finding(Verdict.FAIL, said, update)]
    if row is not None and row["compatible"] == "field-failure":
        said = f"CANN {cann.version} with driver {driver.version} failed in the field{said_by}"
        return [_finding(Verdict.WARN, said, update)]
    if declared is None and row is None:
        return [Finding(Verdict.PASS, f"nothing published on CANN {cann.version} with this driver")]
    return []


def declares(driver: DriverFiles, cann: CannFiles) -> Optional[bool]:
    """Return whether one side lists the other's release, or None when the files do not say."""
    drivers_release, canns_release = _release(driver.inner_version), _release(cann.inner_version)
    answers = []
    if canns_release and driver.compatible_versions:
        answers.append(canns_release in _releases(driver.compatible_versions))
    if drivers_release and cann.compatible_versions:
        answers.append(drivers_release in _releases(cann.compatible_versions))
    return any(answers) if answers else None


def published(cann: str, driver: str) -> Optional[Any]:
    """Return the published row for a pair; a denial or a failure report beats `yes`, an exact row beats a pattern."""
    rows = [
        row
        for row in load_facts("cann_driver")["pairs"]
        if matches_pattern(cann, row["cann"]) and matches_pattern(driver, row["driver"])
    ]
    rank = {"no": 0, "field-failure": 1, "yes": 2}
    return min(rows, key=lambda row: (rank[row["compatible"]], row["cann"].endswith("X")), default=None)


def _release(text: Optional[str]) -> Optional[str]:
    match = _RELEASE.match(text or "")
    return match[0] if match else None


def _releases(texts: Tuple[str, ...]) -> List[Optional[str]]:
    return [_release(text) for text in texts]


def _finding(verdict: Verdict, said: str, text: str, commands: Tuple[str, ...] = ()) -> Finding:
    return Finding(verdict, said, Remedy(PREFLIGHT, text, commands))
