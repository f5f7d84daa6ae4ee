"""Firmware: the vendor's package for this chip generation is installed, runs, and is not too old."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from ascendd.host.cann_version import parse_version
from ascendd.host.pci import find_pci_npus
from ascendd.host.policy import VersionPolicy, read_policy
from ascendd.host.vendor_facts import load_facts
from ascendd.host.version_files import FirmwareFiles, read_firmware
from ascendd.preflight.check import CheckResult, Finding, NpuCheck, Remedy, Verdict, conclude
from ascendd.preflight.chips import read_boards
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
    requires = ("npu-presence", "site-policy")
    timeout_s = 120.0

    def run(self, context: CheckContext) -> CheckResult:
        """Read the package's files and ask npu-smi what runs on each NPU."""
        families = tuple(sorted({npu.family for npu in find_pci_npus(context.files)}))
        policy = read_policy(context.files)
        return judge(read_firmware(context.files), read_boards(context), families, policy, context.is_container)


def judge(
    firmware: FirmwareFiles,
    boards: Mapping[int, Mapping[str, str]],
    families: Sequence[str],
    policy: VersionPolicy,
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
        "installed_on": firmware.installed_on,
        "oldest_allowed": {"version": policy.lowest_firmware(tuple(families)), "date": policy.firmware_date_minimum},
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
        findings += _of_version(version, policy.lowest_firmware(tuple(families)))
    findings += _of_date(firmware, policy.firmware_date_minimum)
    others = sorted({version for version in running.values() if firmware.version and version != firmware.version})
    if others:
        said = f"{firmware.version} is installed but {', '.join(others)} runs: a reboot is pending"
        findings.append(_finding(Verdict.WARN, said, "Reboot the host.", ("systemctl reboot",)))
    silent = [f"NPU {npu_id}" for npu_id in boards if f"NPU {npu_id}" not in running]
    if running and silent:
        said = f"which firmware runs on {', '.join(silent)} is not known: npu-smi tells it of the others"
        text = "Ask npu-smi for its board by hand; a chip that answers less than the others may need a reset."
        findings.append(_finding(Verdict.WARN, said, text, (f"npu-smi info -t board -i {silent[0].split()[-1]}",)))
    shown = firmware.version or ", ".join(sorted(set(running.values())))
    return conclude(
        findings, f"{shown}{' runs on every NPU' if running and not others and not silent else ''}", evidence
    )


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


def _of_version(version: str, lowest_text: str) -> List[Finding]:
    parsed, lowest = parse_version(version), parse_version(lowest_text)
    assert lowest is not None
    if parsed is None:
        said = f"firmware version {version} has no known form, so it was not compared"
        return [_finding(Verdict.WARN, said, "Compare it with the vendor's release notes.")]
    if parsed < lowest:
        said = f"firmware {version} is older than {lowest_text}, the policy's minimum"
        return [_finding(Verdict.FAIL, said, _INSTALL)]
    return []


def _of_date(firmware: FirmwareFiles, oldest: Optional[str]) -> List[Finding]:
    """Compare the day of the last installation with the site's policy; ISO dates order as texts do."""
    if oldest is None:
        return []
    if firmware.installed_on is None:
        said = f"no log tells when the firmware was installed; the policy asks for {oldest} or later"
        return [_finding(Verdict.WARN, said, "Compare the date of the package by hand.")]
    if firmware.installed_on < oldest:
        said = f"the firmware was installed on {firmware.installed_on}; the policy asks for {oldest} or later"
        return [_finding(Verdict.FAIL, said, _INSTALL)]
    return []


def _finding(verdict: Verdict, said: str, text: str, commands: Optional[Tuple[str, ...]] = None) -> Finding:
    return Finding(verdict, said, Remedy(PREFLIGHT, text, commands or ("npu-smi info -t board -i 0",)))
