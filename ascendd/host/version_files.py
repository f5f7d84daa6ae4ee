"""
Version files that the vendor's packages leave on disk: driver, firmware and CANN (both layouts).

    /etc/ascend_install.info                                              where the driver and firmware are
    <root>/driver/version.info, <root>/firmware/version.info              with the ranges that each declares
    <root>/ascend-toolkit/latest/<arch>-linux/ascend_toolkit_install.info CANN up to 8.3
    <root>/cann/<arch>-linux/ascend_toolkit_install.info                  CANN 8.5 and later
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Dict, List, Mapping, Optional, Tuple

from ascendd.host.files import HostFiles

DEFAULT_ROOT = "/usr/local/Ascend"
INSTALL_INFO = "/etc/ascend_install.info"
INSTALL_LOGS = ("/var/log/ascend_seclog/operation.log", "/var/log/ascend_seclog/ascend_install.log")
ARCHITECTURES = ("aarch64", "x86_64")
_FIRMWARE_PACKAGE = re.compile(r"ascend-hdk-([a-z0-9_]+?)-npu-firmware(?:-soc)?_", re.IGNORECASE)
_CHIP_OF_OPS_PACKAGE = re.compile(r"Ascend-cann-(?:kernels-)?(.+?)(?:-ops)?$", re.IGNORECASE)


@dataclass(frozen=True)
class DriverFiles:
    """What the driver's files say. `compatible_*` are as written; `is_complete` is False after a broken install."""

    version: Optional[str]
    inner_version: Optional[str]
    compatible_versions: Tuple[str, ...]
    compatible_firmware: str
    path: str
    user_group: Optional[str]
    is_complete: bool


@dataclass(frozen=True)
class FirmwareFiles:
    """What the firmware package left on disk; the running firmware can be another until the next reboot."""

    version: Optional[str]
    package_version: Optional[str]
    compatible_drivers: str
    path: str
    # Chip generation of the package installed last (`910b`), as the installer logged it; None when no log says so.
    generation: Optional[str]
    # Day of that installation by the same log, `2024-11-02`.
    installed_on: Optional[str] = None


@dataclass(frozen=True)
class CannFiles:
    """One CANN toolkit on disk."""

    root: str
    version: str
    inner_version: Optional[str]
    compatible_versions: Tuple[str, ...]
    architecture: str
    # Chips that kernels or ops are installed for, as the packages name them.
    ops_chips: Tuple[str, ...]


@dataclass(frozen=True)
class NnalFiles:
    """The nnal package (ATB) on disk; a version of None means that it is not there."""

    root: str
    version: Optional[str]


def parse_pairs(text: str) -> Dict[str, str]:
    """Parse `key=value` lines; quotes are stripped, lines of another form are ignored."""
    pairs = {}
    for line in text.splitlines():
        key, separator, value = line.partition("=")
        if separator and key.strip():
            pairs[key.strip()] = value.strip().strip('"')
    return pairs


def driver_tool(files: HostFiles, name: str) -> Optional[str]:
    """Return the path to execute of a tool that the driver's package brings, None where it is not there."""
    install = parse_pairs(files.read_optional(INSTALL_INFO) or "")
    path = f"{install.get('Driver_Install_Path_Param') or DEFAULT_ROOT}/driver/tools/{name}"
    return files.real(path) if files.is_executable(path) else None


def read_driver(files: HostFiles) -> DriverFiles:
    """Read the driver's files; a version of None means that no driver is installed."""
    install = parse_pairs(files.read_optional(INSTALL_INFO) or "")
    path = f"{install.get('Driver_Install_Path_Param') or DEFAULT_ROOT}/driver/version.info"
    pairs = parse_pairs(files.read_optional(path) or "")
    return DriverFiles(
        version=pairs.get("Version"),
        inner_version=pairs.get("Innerversion"),
        compatible_versions=_bracketed(pairs.get("compatible_version", "")),
        compatible_firmware=pairs.get("compatible_version_fw", ""),
        path=path,
        user_group=install.get("UserGroup"),
        is_complete=install.get("Driver_Install_Status", "complete") == "complete",
    )


def read_firmware(files: HostFiles) -> FirmwareFiles:
    """Read the firmware's files; a version of None means that no package is installed here (as in a container)."""
    install = parse_pairs(files.read_optional(INSTALL_INFO) or "")
    path = f"{install.get('Firmware_Install_Path_Param') or DEFAULT_ROOT}/firmware/version.info"
    pairs = parse_pairs(files.read_optional(path) or "")
    generation, installed_on = None, None
    for log in INSTALL_LOGS:
        lines = [line for line in (files.read_optional(log) or "").splitlines() if _FIRMWARE_PACKAGE.search(line)]
        if lines:
            generation = _FIRMWARE_PACKAGE.findall(lines[-1])[-1].lower()
            day = re.search(r"\[(\d{4}-\d\d-\d\d)\b", lines[-1])
            installed_on = day[1] if day else None
            break
    return FirmwareFiles(
        version=pairs.get("Version"),
        package_version=pairs.get("package_version"),
        compatible_drivers=pairs.get("compatible_version_drv", ""),
        path=path,
        generation=generation,
        installed_on=installed_on,
    )


def cann_roots(files: HostFiles, environ: Mapping[str, str]) -> List[str]:
    """Return the folders where a CANN toolkit may be, best first: what the environment names, then the usual places."""
    install = parse_pairs(files.read_optional(INSTALL_INFO) or "")
    bases = [install.get("Driver_Install_Path_Param") or DEFAULT_ROOT, DEFAULT_ROOT]
    home = environ.get("HOME")
    if home:
        bases.append(f"{home}/Ascend")
    bases += ["/home/HwHiAiUser/Ascend", "/opt/conda/Ascend"]
    named = [environ[key] for key in ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME") if environ.get(key)]
    usual = [f"{base}/{layout}" for base in bases for layout in ("cann", "ascend-toolkit/latest")]
    return list(dict.fromkeys(root.rstrip("/") for root in [*named, *usual]))


def read_cann(files: HostFiles, environ: Mapping[str, str]) -> Tuple[CannFiles, ...]:
    """Return every CANN toolkit found, the one that the environment names first; two names of one folder count once."""
    found: Dict[str, CannFiles] = {}
    for root in cann_roots(files, environ):
        toolkit = _read_toolkit(files, root)
        if toolkit is not None:
            found.setdefault(files.resolve(root), toolkit)
    return tuple(found.values())


def _read_toolkit(files: HostFiles, root: str) -> Optional[CannFiles]:
    for architecture in ARCHITECTURES:
        folder = f"{root}/{architecture}-linux"
        pairs = parse_pairs(files.read_optional(f"{folder}/ascend_toolkit_install.info") or "")
        if pairs.get("version"):
            return CannFiles(
                root=root,
                version=pairs["version"],
                inner_version=pairs.get("innerversion"),
                compatible_versions=_bracketed(pairs.get("compatible_version", "")),
                architecture=pairs.get("arch", architecture),
                ops_chips=_ops_chips(files, root, folder),
            )
    # Images that keep only the components still say which release they came from.
    release = read_component_release(files, root)
    return CannFiles(root, release, None, (), "", _ops_chips(files, root, root)) if release else None


def read_component_release(files: HostFiles, root: str) -> Optional[str]:
    """Return the CANN release that the runtime below `root` belongs to, by version.cfg: [component:CANN]."""
    running = parse_pairs(files.read_optional(f"{root}/version.cfg") or "").get("runtime_running_version", "")
    match = re.fullmatch(r"\[[^:\]]+:([^\]]+)\]", running)
    return match[1] if match else None


def read_nnal(files: HostFiles, environ: Mapping[str, str]) -> NnalFiles:
    """Read nnal's version: where ATB_HOME_PATH leads, else below the usual root. None where it is not installed."""
    install = parse_pairs(files.read_optional(INSTALL_INFO) or "")
    usual = f"{install.get('Driver_Install_Path_Param') or DEFAULT_ROOT}/nnal/atb/latest"
    home = environ.get("ATB_HOME_PATH", "")
    # ATB_HOME_PATH is <root>/atb/cxx_abi_N.
    roots = [home.rsplit("/atb/", 1)[0]] if "/atb/cxx_abi" in home else []
    for root in [*roots, usual]:
        match = re.search(
            r"^Ascend-cann-atb\s*:\s*(\S+)", files.read_optional(f"{root}/version.info") or "", re.MULTILINE
        )
        if match is not None:
            return NnalFiles(root, match[1])
    return NnalFiles(usual, None)


def _ops_chips(files: HostFiles, root: str, folder: str) -> Tuple[str, ...]:
    names = [
        parse_pairs(files.read_optional(f"{folder}/{name}") or "").get("package_name", "")
        for name in files.list_dir(folder, "ascend_*_install.info")
        if name != "ascend_toolkit_install.info"
    ]
    chips = [match[1].lower() for match in map(_CHIP_OF_OPS_PACKAGE.fullmatch, names) if match]
    # Up to 8.3 the kernels package leaves one folder per chip instead.
    chips += [name.lower() for name in files.list_dir(f"{root}/opp/built-in/op_impl/ai_core/tbe/kernel", "ascend*")]
    return tuple(sorted(set(chips)))


def _bracketed(text: str) -> Tuple[str, ...]:
    return tuple(re.findall(r"\[([^\[\]]+)\]", text))
