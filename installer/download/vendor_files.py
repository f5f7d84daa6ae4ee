"""Vendor files: the exact names of what the vendor gives only on its own pages, and where these are. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import List, Optional, Tuple

from ascendd.errors import PreflightFailed, UsageError
from ascendd.host.vendor_facts import load_facts

HDK_PAGE = "https://www.hiascend.com/hardware/firmware-drivers/community"
CANN_PAGE = "https://www.hiascend.com/cann/download"


@dataclass(frozen=True)
class VendorRequest:
    """What the host is to get; a version that is None is not wanted, since the host has it."""

    architecture: str
    chip: str
    cann: str
    driver: Optional[str] = None
    firmware: Optional[str] = None
    has_nnal: bool = False


@dataclass(frozen=True)
class VendorFile:
    """One package: its name, the page that has it, and the archive that the page may wrap it in."""

    name: str
    page: str
    archive: str


def vendor_files(request: VendorRequest) -> List[VendorFile]:
    """Return the files; the vendor asks for a login and an agreement before it gives them."""
    chip = request.chip.upper() if request.chip == "a3" else request.chip
    hdk_arch = request.architecture.replace("_", "-")
    files = []
    for kind, version, ending in (
        ("driver", request.driver, f"_linux-{hdk_arch}"),
        ("firmware", request.firmware, ""),
    ):
        if version is not None:
            archive = f"Ascend-hdk-{chip}-npu_{request.driver or '<release>'}_linux-{hdk_arch}.zip"
            files.append(VendorFile(f"Ascend-hdk-{chip}-npu-{kind}_{version}{ending}.run", HDK_PAGE, archive))
    names = ["toolkit", f"{chip}-ops" if _has_ops(request.cann) else f"kernels-{chip}"]
    for name in (*names, *(["nnal"] if request.has_nnal else [])):
        stem = f"Ascend-cann-{name}_{request.cann}_linux-{request.architecture}"
        files.append(VendorFile(f"{stem}.run", CANN_PAGE, f"{stem}.zip"))
    return files


def check_request(request: VendorRequest, *, brings_driver: bool) -> List[str]:
    """Return notes. Raises UsageError for an unknown chip, PreflightFailed for versions that do not go together."""
    chips = sorted({chip for row in load_facts("pci_devices")["devices"].values() for chip in row["packages"]})
    if request.chip not in chips:
        raise UsageError(f"--chip is `{request.chip}`", remedy=f"Write one of {', '.join(chips)}.")
    rows = [row for row in load_facts("cann_driver")["pairs"] if _covers(row["cann"], request.cann)]
    listed = ", ".join(dict.fromkeys(row["driver"] for row in rows if row["compatible"] == "yes")) or "nothing"
    if brings_driver and (request.driver is None or request.firmware is None):
        raise UsageError(
            "the versions of driver and firmware are not named",
            remedy=f"Add --driver and --firmware, or --has-driver where the host has both; the vendor lists for CANN "
            f"{request.cann} the drivers {listed}.",
        )
    if request.driver is None:
        return []
    verdicts = {row["compatible"] for row in rows if _covers(row["driver"], request.driver)}
    if "no" in verdicts:
        raise PreflightFailed(
            f"driver {request.driver} is not made for CANN {request.cann}, by the vendor's table",
            remedy=f"It lists for that CANN: {listed}.",
        )
    if "yes" in verdicts:
        return []
    return [f"the vendor's table says nothing of driver {request.driver} with CANN {request.cann}; it lists {listed}"]


def _has_ops(cann: str) -> bool:
    """Tell whether the release has `ops` packages; up to 8.3 they were called kernels."""
    return _numbers(cann) >= (8, 5)


def _numbers(version: str) -> Tuple[int, ...]:
    match = re.match(r"(\d+)\.(\d+)", version)
    if match is None:
        raise UsageError(f"--cann is `{version}`", remedy="Write a release such as 8.5.0 or 8.3.RC1.")
    return int(match[1]), int(match[2])


def _covers(listed: str, version: str) -> bool:
    """Tell whether a row is for this version; `25.5.X` is for all of 25.5."""
    listed, version = listed.lower(), version.lower()
    return version.startswith(listed[:-1]) if listed.endswith(".x") else listed == version
