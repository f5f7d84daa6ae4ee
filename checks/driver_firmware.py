"""Driver and firmware: each package's files name the versions of the other that it works with."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, Tuple

from ascendd.host.cann_version import in_ranges, matches_pattern, parse_ranges
from ascendd.host.policy import VersionPolicy, read_policy
from ascendd.host.vendor_facts import load_facts
from ascendd.host.version_files import DriverFiles, FirmwareFiles, read_driver, read_firmware
from ascendd.preflight.check import CheckResult, Finding, NpuCheck, Remedy, Verdict, conclude
from ascendd.preflight.chips import read_boards
from ascendd.preflight.context import CheckContext

PREFLIGHT = "ASD-P01"
_UPGRADE = "Upgrade firmware and driver to one vendor release: firmware first, then driver, then reboot."


class DriverFirmware(NpuCheck):
    """Driver and firmware say that they go together."""

    id = "driver-firmware"
    title = "Driver with firmware"
    requires = ("driver-version", "firmware-version", "site-policy")
    timeout_s = 90.0

    def run(self, context: CheckContext) -> CheckResult:
        """Read both version files, and ask npu-smi for the firmware that runs and its own opinion."""
        return judge(
            read_driver(context.files), read_firmware(context.files), read_boards(context), read_policy(context.files)
        )


def judge(
    driver: DriverFiles, firmware: FirmwareFiles, boards: Mapping[int, Mapping[str, str]], policy: VersionPolicy
) -> CheckResult:
    """Decide; `boards` are the fields of `npu-smi info -t board` by NPU id."""
    running = {npu_id: board["Firmware Version"] for npu_id, board in boards.items() if "Firmware Version" in board}
    evidence = {
        "driver": driver.version,
        "firmware": firmware.version,
        "running": {f"NPU {npu_id}": version for npu_id, version in running.items()},
        "driver_accepts": driver.compatible_firmware,
        "firmware_accepts": firmware.compatible_drivers,
    }
    versions = list(dict.fromkeys([*([firmware.version] if firmware.version else []), *running.values()]))
    if driver.version is None or not versions:
        what = "driver" if driver.version is None else "firmware"
        return CheckResult(Verdict.SKIPPED, f"the version of the {what} is not known here", evidence)
    findings: List[Finding] = []
    for npu_id, board in boards.items():
        if board.get("Compatibility", "").upper() == "NOK":
            said = f"NPU {npu_id}: firmware {board.get('Firmware Version')} and driver are incompatible (npu-smi: NOK)"
            findings.append(_finding(Verdict.FAIL, said, (f"npu-smi info -t board -i {npu_id}",)))
    for version in versions if not findings else []:
        permitted = policy.permit(driver=driver.version, firmware=version)
        if permitted is not None:
            findings.append(
                Finding(Verdict.PASS, f"firmware {version} is permitted by {policy.site_file}: {permitted}")
            )
        else:
            findings += _of_version(version, firmware, driver)
    return conclude(findings, f"driver {driver.version} with firmware {', '.join(versions)}", evidence)


def _of_version(version: str, firmware: FirmwareFiles, driver: DriverFiles) -> List[Finding]:
    """Take one yes as enough: the later package knows the earlier one. The published table comes second."""
    accepted, drivers = driver.compatible_firmware, parse_ranges(firmware.compatible_drivers)
    said_by = f"which driver {driver.version} accepts"
    if not accepted:
        row = published(driver.version or "")
        if row is not None:
            accepted, said_by = row["firmware_ranges"], f"published for driver {driver.version} ({row['source']})"
    ranges = parse_ranges(accepted)
    lists_driver = bool(drivers) and driver.version is not None and in_ranges(driver.version, drivers)
    if (ranges and in_ranges(version, ranges)) or (lists_driver and version == firmware.version):
        return []
    if ranges:
        return [_finding(Verdict.FAIL, f"firmware {version} is outside {accepted}, {said_by}")]
    if drivers and version == firmware.version:
        said = f"firmware {version} does not list driver {driver.version}: it accepts {firmware.compatible_drivers}"
        return [_finding(Verdict.FAIL, said)]
    return [_finding(Verdict.WARN, f"nothing is known of driver {driver.version} with firmware {version}")]


def published(driver: str) -> Optional[Dict[str, Any]]:
    """Return the row of the published table for a driver, or None."""
    rows: List[Dict[str, Any]] = load_facts("driver_firmware")["pairs"]
    return next((row for row in rows if matches_pattern(driver, row["driver"])), None)


def _finding(verdict: Verdict, said: str, commands: Tuple[str, ...] = ("npu-smi info -t board -i 0",)) -> Finding:
    return Finding(verdict, said, Remedy(PREFLIGHT, _UPGRADE, commands))
