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

from ascendd.errors import ProbeParseError
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


def read_pairs(files: HostFiles, path: str, key: str) -> Dict[str, str]:
    """
    Return the pairs of a version file that has `key`; none where there is no such file.

    Raises ProbeUnavailable, and ProbeParseError where it was cut short or is none: another version must not be guessed.
    """
    text = files.read_optional(path)
    if text is None:
        return {}
    pairs = parse_pairs(text)
    last = "" if text.endswith("\n") else text.rpartition("\n")[2]
    remedy = "Install the package that it belongs to again."
    if not pairs.get(key):
        raise ProbeParseError(f"{path} holds no {key}", remedy=remedy, path=path)
    if last.count("[") != last.count("]") or (last.strip() and "=" not in last):
        raise ProbeParseError(f"{path} was cut short", remedy=remedy, path=path)
    return pairs


def _install_root(files: HostFiles, key: str = "Driver_Install_Path_Param") -> str:
    """Return where the vendor's packages are; the usual place where nothing can be read (driver-version says why)."""
    return parse_pairs(files.read_if_possible(INSTALL_INFO) or "").get(key) or DEFAULT_ROOT


def driver_tool(files: HostFiles, name: str) -> Optional[str]:
    """Return the path to execute of a tool that the driver's package brings, None where it is not there."""
    path = f"{_install_root(files)}/driver/tools/{name}"
    return files.real(path) if files.is_executable(path) else None


def read_driver(files: HostFiles) -> DriverFiles:
    """
    Read the driver's files; a version of None means that no driver is installed.

    Raises ProbeUnavailable or ProbeParseError for a file that is there and tells nothing.
    """
    install = read_pairs(files, INSTALL_INFO, "Driver_Install_Path_Param")
    path = f"{install.get('Driver_Install_Path_Param') or DEFAULT_ROOT}/driver/version.info"
    pairs = read_pairs(files, path, "Version")
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
    """
    Read the firmware's files; a version of None means that no package is installed here (as in a container).

    Raises ProbeUnavailable or ProbeParseError for a file that is there and tells nothing.
    """
    path = f"{_install_root(files, 'Firmware_Install_Path_Param')}/firmware/version.info"
    pairs = read_pairs(files, path, "Version")
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
    bases = [_install_root(files), DEFAULT_ROOT]
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
        pairs = read_pairs(files, f"{folder}/ascend_toolkit_install.info", "version")
        if pairs:
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
    """
    Return the CANN release that the runtime below `root` belongs to, by version.cfg: [component:CANN].

    None where there is no such file. Raises ProbeUnavailable, and ProbeParseError where it names no release.
    """
    path = f"{root}/version.cfg"
    running = read_pairs(files, path, "runtime_running_version")
    match = re.fullmatch(r"\[[^:\]]+:([^\]]+)\]", running.get("runtime_running_version", ""))
    if running and match is None:
        raise ProbeParseError(f"{path} names no release of CANN", path=path)
    return match[1] if match else None


def read_nnal(files: HostFiles, environ: Mapping[str, str]) -> NnalFiles:
    """
    Read nnal's version: where ATB_HOME_PATH leads, else below the usual root. None where it is not installed.

    Raises ProbeUnavailable, and ProbeParseError where its version file names no version.
    """
    usual = f"{_install_root(files)}/nnal/atb/latest"
    home = environ.get("ATB_HOME_PATH", "")
    # ATB_HOME_PATH is <root>/atb/cxx_abi_N.
    roots = [home.rsplit("/atb/", 1)[0]] if "/atb/cxx_abi" in home else []
    for root in [*roots, usual]:
        path = f"{root}/version.info"
        text = files.read_optional(path)
        if text is None:
            continue
        match = re.search(r"^Ascend-cann-atb\s*:\s*(\S+)", text, re.MULTILINE)
        if match is None:
            raise ProbeParseError(f"{path} names no version", remedy="Install the nnal package again.", path=path)
        return NnalFiles(root, match[1])
    return NnalFiles(usual, None)


def _ops_chips(files: HostFiles, root: str, folder: str) -> Tuple[str, ...]:
    names = [
        read_pairs(files, f"{folder}/{name}", "package_name").get("package_name", "")
        for name in files.list_dir(folder, "ascend_*_install.info")
        if name != "ascend_toolkit_install.info"
    ]
    chips = [match[1].lower() for match in map(_CHIP_OF_OPS_PACKAGE.fullmatch, names) if match]
    # Up to 8.3 the kernels package leaves one folder per chip instead.
    chips += [name.lower() for name in files.list_dir(f"{root}/opp/built-in/op_impl/ai_core/tbe/kernel", "ascend*")]
    return tuple(sorted(set(chips)))


def _bracketed(text: str) -> Tuple[str, ...]:
    return tuple(re.findall(r"\[([^\[\]]+)\]", text))
