"""Firmware: the vendor's package for this chip generation, not too old, in the range of the driver, and running."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from ascendd.errors import ProbeError
from ascendd.host.cann_version import in_ranges, parse_ranges, parse_version
from ascendd.host.pci import find_pci_npus
from ascendd.host.vendor_facts import load_facts
from ascendd.host.version_files import DriverFiles, FirmwareFiles, read_driver, read_firmware
from ascendd.preflight.check import CheckResult, Finding, NpuCheck, Remedy, Verdict, conclude
from ascendd.preflight.context import CheckContext

PREFLIGHT = "ASD-P01"
_INSTALL = (
    "Install the vendor's own firmware package for this chip generation (never copy a firmware file by hand), "
    "then reboot."
)


class FirmwareVersion(NpuCheck):
    """The right firmware is installed and runs."""

    id = "firmware-version"
    title = "Firmware version"
    requires = ("npu-presence",)
    timeout_s = 120.0

    def run(self, context: CheckContext) -> CheckResult:
        """Read the package's files and ask npu-smi what runs on each NPU."""
        boards: Dict[int, Mapping[str, str]] = {}
        try:
            tool = context.npu_smi()
            for npu_id in sorted({chip.npu_id for chip in tool.info().chips if chip.npu_id is not None}):
                boards[npu_id] = tool.board(npu_id)
        except ProbeError:
            pass  # presence says why; the files on disk still tell something
        families = tuple(sorted({npu.family for npu in find_pci_npus(context.files)}))
        return judge(read_firmware(context.files), read_driver(context.files), boards, families, context.is_container)


def judge(
    firmware: FirmwareFiles,
    driver: DriverFiles,
    boards: Mapping[int, Mapping[str, str]],
    families: Sequence[str],
    is_container: bool = False,
) -> CheckResult:
    """Decide; `boards` are the fields of `npu-smi info -t board` by NPU id, `families` the chips on the bus."""
    running = {
        f"NPU {npu_id}": board["Firmware Version"] for npu_id, board in boards.items() if "Firmware Version" in board
    }
    evidence = {
        "package": firmware.version,
        "package_generation": firmware.generation,
        "running": running,
        "driver_accepts": driver.compatible_firmware,
        "firmware_accepts": firmware.compatible_drivers,
        "families": list(families),
        "path": firmware.path,
    }
    findings: List[Finding] = []
    if firmware.version is None and not is_container:
        findings.append(
            _finding(Verdict.FAIL, f"no firmware package is installed: {firmware.path} is not there", _INSTALL)
        )
    if firmware.version is None and not running:
        if is_container:
            findings.append(
                _finding(Verdict.WARN, "neither files nor npu-smi tell the firmware", "Check it on the host.")
            )
        return conclude(findings, "", evidence)
    findings += _of_generation(firmware, families)
    for version in dict.fromkeys([*running.values(), *([firmware.version] if firmware.version else [])]):
        findings += _of_version(version, firmware, driver, families)
    for npu_id, board in boards.items():
        if board.get("Compatibility", "").upper() == "NOK":
            said = f"NPU {npu_id}: firmware {board.get('Firmware Version')} and driver are incompatible (npu-smi: NOK)"
            findings.append(_finding(Verdict.FAIL, said, _INSTALL, (f"npu-smi info -t board -i {npu_id}",)))
    others = sorted({version for version in running.values() if firmware.version and version != firmware.version})
    if others:
        said = f"{firmware.version} is installed but {', '.join(others)} runs: a reboot is pending"
        findings.append(_finding(Verdict.WARN, said, "Reboot the host.", ("systemctl reboot",)))
    shown = firmware.version or ", ".join(sorted(set(running.values())))
    return conclude(findings, f"{shown}{' runs on every NPU' if running and not others else ''}", evidence)


def _of_generation(firmware: FirmwareFiles, families: Sequence[str]) -> List[Finding]:
    """Compare the package that the installer logged last with the chips; 910 and 910b packages differ by one letter."""
    if firmware.generation is None or not families:
        return []
    devices: Dict[str, Dict[str, Any]] = load_facts("pci_devices")["devices"]
    right = {package for row in devices.values() if row["family"] in families for package in row["packages"]}
    if firmware.generation in right:
        return []
    said = (
        f"the firmware package installed last is for {firmware.generation}, the chips are {', '.join(families)} "
        f"({', '.join(sorted(right))}): they are not interchangeable"
    )
    return [_finding(Verdict.FAIL, said, _INSTALL)]


def _of_version(version: str, firmware: FirmwareFiles, driver: DriverFiles, families: Sequence[str]) -> List[Finding]:
    parsed = parse_version(version)
    if parsed is None:
        said = f"firmware version {version} has no known form, so it was not compared"
        return [_finding(Verdict.WARN, said, "Compare it with the vendor's release notes.")]
    findings = []
    minimum_text = minimum(families)
    lowest = parse_version(minimum_text)
    assert lowest is not None
    if parsed < lowest:
        findings.append(
            _finding(Verdict.FAIL, f"firmware {version} is older than {minimum_text}, the policy's minimum", _INSTALL)
        )
    ranges, drivers = parse_ranges(driver.compatible_firmware), parse_ranges(firmware.compatible_drivers)
    # The later of the two packages knows the earlier one, so one yes is enough.
    lists_driver = bool(drivers) and driver.version is not None and in_ranges(driver.version, drivers)
    if ranges and not in_ranges(version, ranges) and not (lists_driver and version == firmware.version):
        said = f"firmware {version} is outside {driver.compatible_firmware}, which driver {driver.version} accepts"
        text = "Upgrade firmware and driver to one vendor release: firmware first, then driver, then reboot."
        findings.append(_finding(Verdict.FAIL, said, text))
    return findings


def minimum(families: Sequence[str]) -> str:
    """Return the policy's lowest firmware version for these chips."""
    table: Dict[str, str] = load_facts("version_policy")["firmware_minimum"]
    return next((table[family] for family in families if family in table), table["default"])


def _finding(verdict: Verdict, said: str, text: str, commands: Optional[Tuple[str, ...]] = None) -> Finding:
    return Finding(verdict, said, Remedy(PREFLIGHT, text, commands or ("npu-smi info -t board -i 0",)))
