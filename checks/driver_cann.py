"""Driver and CANN: each release lists the others that it works with; the vendor's release notes come second."""

from __future__ import annotations

import re
from typing import Any, List, Optional, Tuple

from ascendd.host.cann_version import matches_pattern
from ascendd.host.policy import VersionPolicy, read_policy
from ascendd.host.vendor_facts import load_facts
from ascendd.host.version_files import CannFiles, DriverFiles, read_cann, read_driver
from ascendd.preflight.check import CheckResult, Finding, NpuCheck, Remedy, Verdict, conclude
from ascendd.preflight.context import CheckContext

DRIVER_TOO_OLD = "ASD-G01"
_RELEASE = re.compile(r"V\d+R\d+C\d+")
_UPDATE = "Install a driver and a CANN release that the vendor lists together."


class DriverCann(NpuCheck):
    """CANN and the driver say that they go together."""

    id = "driver-cann"
    title = "Driver with CANN"
    requires = ("driver-version", "cann-version", "site-policy")

    def run(self, context: CheckContext) -> CheckResult:
        """Read what the files of both declare."""
        toolkits = read_cann(context.files, context.service().variables)
        return judge(read_driver(context.files), toolkits[0] if toolkits else None, read_policy(context.files))


def judge(driver: DriverFiles, cann: Optional[CannFiles], policy: VersionPolicy) -> CheckResult:
    """Decide; a denial blocks, a pair that nobody lists does not."""
    if driver.version is None or cann is None:
        what = "CANN toolkit" if cann is None else "driver"
        return CheckResult(Verdict.SKIPPED, f"no {what} to compare with")
    evidence = {
        "driver": driver.version,
        "cann": cann.version,
        "driver_release": driver.inner_version,
        "cann_release": cann.inner_version,
        "driver_accepts_cann": list(driver.compatible_versions),
        "cann_accepts_driver": list(cann.compatible_versions),
    }
    permitted = policy.permit(driver=driver.version, cann=cann.version)
    if permitted is not None:
        findings = [Finding(Verdict.PASS, f"permitted by {policy.site_file}: {permitted}")]
    else:
        findings = _pair(driver, cann)
    return conclude(findings, f"driver {driver.version} with CANN {cann.version}", evidence)


def _pair(driver: DriverFiles, cann: CannFiles) -> List[Finding]:
    """Ask the newer side first: whichever was released later lists the other."""
    declared = declares(driver, cann)
    row = published(cann.version, driver.version or "")
    said_by = "" if row is None else f" ({row['source']})"
    if row is not None and row["compatible"] == "no":
        said = f"CANN {cann.version} is published as not working with driver {driver.version}{said_by}"
        return [_finding(Verdict.FAIL, said)]
    if declared is False:
        if row is not None and row["compatible"] == "yes":
            return [Finding(Verdict.PASS, f"listed by the vendor for CANN {cann.version}{said_by}")]
        said = f"neither driver {driver.version} nor CANN {cann.version} lists the other as compatible"
        return [_finding(Verdict.FAIL, said)]
    if row is not None and row["compatible"] == "field-failure":
        said = f"CANN {cann.version} with driver {driver.version} failed in the field{said_by}"
        return [_finding(Verdict.WARN, said)]
    if declared is None and row is None:
        said = f"nothing is published on CANN {cann.version} with driver {driver.version}"
        return [_finding(Verdict.WARN, said)]
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


def _finding(verdict: Verdict, said: str) -> Finding:
    return Finding(verdict, said, Remedy(DRIVER_TOO_OLD, _UPDATE, ("python3 -m installer plan",)))
