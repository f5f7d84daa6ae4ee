"""Media: the folder of vendor packages, known by name and proven by checksum before anything is touched."""

from __future__ import annotations

import enum
import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, List, Optional, Sequence, Tuple

from ascendd.host.vendor_facts import load_facts

from .os_packages import ENDINGS, OsPackage, PackageManager, parse_os_package, unfit_os_packages

CHECKSUMS = "SHA256SUMS"
_LINE = re.compile(r"([0-9a-fA-F]{64})[ \t]+\*?(.+)")
_CHUNK = 1 << 20


class PackageKind(enum.Enum):
    """What a vendor package brings; the value is the id of its step."""

    DRIVER = "driver"
    FIRMWARE = "firmware"
    TOOLKIT = "toolkit"
    OPS = "ops"  # `kernels` up to CANN 8.3.
    NNAL = "nnal"


_ARCH = r"(?:_linux)?(?:[-_](?P<arch>aarch64|x86[-_]64))?"
_NAMES: Tuple[Tuple[PackageKind, re.Pattern[str]], ...] = tuple(
    (kind, re.compile(pattern + _ARCH + r"\.run", re.IGNORECASE))
    for kind, pattern in (
        (PackageKind.DRIVER, r"Ascend-hdk-(?P<chip>[a-z0-9_]+?)-npu-driver(?:-soc)?_(?P<version>[^_]+)"),
        (PackageKind.FIRMWARE, r"Ascend-hdk-(?P<chip>[a-z0-9_]+?)-npu-firmware(?:-soc)?_(?P<version>[^_]+)"),
        (PackageKind.TOOLKIT, r"Ascend-cann-toolkit_(?P<chip>)(?P<version>[^_]+)"),
        (PackageKind.OPS, r"Ascend-cann-kernels-(?P<chip>[a-z0-9_]+?)_(?P<version>[^_]+)"),
        (PackageKind.OPS, r"Ascend-cann-(?P<chip>[a-z0-9]+(?:_[a-z0-9]+)?)-ops_(?P<version>[^_]+)"),
        (PackageKind.NNAL, r"Ascend-cann-nnal_(?P<chip>)(?P<version>[^_]+)"),
    )
)


@dataclass(frozen=True)
class Package:
    """One vendor package by its name; `chip` is empty and `architecture` None where the name is silent."""

    kind: PackageKind
    path: str
    chip: str
    version: str
    architecture: Optional[str]

    @property
    def name(self) -> str:
        """The name of the file."""
        return Path(self.path).name


@dataclass(frozen=True)
class Media:
    """What a folder holds. `problems` are the reasons, each by the name of a file, why it must not be used."""

    folder: str
    packages: Tuple[Package, ...] = ()
    wheels: Tuple[str, ...] = ()
    os_packages: Tuple[OsPackage, ...] = ()
    problems: Tuple[str, ...] = ()

    def package(self, kind: PackageKind) -> Optional[Package]:
        """Return the package of a kind."""
        return next((package for package in self.packages if package.kind is kind), None)


def parse_package(path: str) -> Optional[Package]:
    """Return what the name of a `.run` file says, None when it is none of the packages known here."""
    for kind, pattern in _NAMES:
        match = pattern.fullmatch(Path(path).name)
        if match:
            return Package(
                kind,
                path,
                match["chip"].lower(),
                match["version"],
                (match["arch"] or "").lower().replace("x86-64", "x86_64") or None,
            )
    return None


def read_media(folder: str, architecture: str, families: Sequence[str], manager: Optional[PackageManager]) -> Media:
    """
    Read and prove a folder for a host of this architecture; `families` are those of ascendd.host.pci.

    Packages of the operating system are judged for its package manager, None where the host is not known yet.
    """
    problems = verify_checksums(folder, (".run", ".whl", *ENDINGS))
    packages = []
    for path in sorted(Path(folder).glob("*.run")):
        package = parse_package(str(path))
        if package is None:
            problems.append(f"{path.name} is no vendor package known here; move it out of the media folder")
        else:
            packages.append(package)
    problems += _unfit(packages, architecture, families)
    wheels = tuple(str(path) for path in sorted(Path(folder).glob("wheels/*.whl")))
    os_packages = []
    for path in sorted(path for ending in ENDINGS for path in Path(folder).rglob(f"*{ending}")):
        os_package = parse_os_package(str(path))
        if os_package is None:
            problems.append(f"{path.name} is not named as a package of a distribution is; give it its own name back")
        else:
            os_packages.append(os_package)
    if manager is not None:
        problems += unfit_os_packages(os_packages, manager, architecture)
    return Media(folder, tuple(packages), wheels, tuple(os_packages), tuple(problems))


def verify_checksums(folder: str, endings: Tuple[str, ...]) -> List[str]:
    """Compare every file of `folder` with its SHA256SUMS; files with these endings have to be in it."""
    list_path = Path(folder, CHECKSUMS)
    try:
        lines = list_path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        return [
            f"{list_path} cannot be read ({error.strerror}); make it from the vendor's checksums, "
            f"or by `cd {folder} && find . -type f ! -name {CHECKSUMS} -exec sha256sum {{}} + > {CHECKSUMS}`"
        ]
    problems = [
        f"line {number} of {list_path} is not `<sha256>  <file>`"
        for number, line in enumerate(lines, 1)
        if line.strip() and not line.startswith("#") and not _LINE.fullmatch(line.rstrip())
    ]
    listed = {Path(folder, name): digest for name, digest in parse_checksums(lines).items()}
    for path, wanted in listed.items():
        try:
            seen = sha256_of(str(path))
        except OSError as error:
            problems.append(f"{path.name} is listed in {CHECKSUMS} and cannot be read: {error.strerror}")
            continue
        if seen != wanted:
            problems.append(f"{path.name} is corrupt: its sha256 is {seen}, {CHECKSUMS} says {wanted}")
    for path in sorted(Path(folder).rglob("*")):
        if path.name.endswith(endings) and path.is_file() and path not in listed:
            problems.append(f"{path.name} is not listed in {list_path}")
    return problems


def parse_checksums(lines: Sequence[str]) -> Dict[str, str]:
    """Return name -> sha256 of the lines of a SHA256SUMS, names as paths below its folder; other lines are left out."""
    matches = (_LINE.fullmatch(line.rstrip()) for line in lines)
    return {str(Path(match[2])): match[1].lower() for match in matches if match}


def sha256_of(path: str) -> str:
    """Return the checksum of a file in hexadecimal digits."""
    digest = hashlib.sha256()
    with Path(path).open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _unfit(packages: Sequence[Package], architecture: str, families: Sequence[str]) -> List[str]:
    devices = load_facts("pci_devices")["devices"].values()
    fitting = {chip for device in devices if device["family"] in families for chip in device["packages"]}
    problems = []
    for package in packages:
        if package.architecture not in (None, architecture):
            problems.append(f"{package.name} is for {package.architecture}, this host is {architecture}")
        if package.chip and package.chip not in fitting:
            has = ", ".join(sorted(families)) or "no NPU that is known"
            problems.append(
                f"{package.name} is for chip {package.chip}, this host has {has} (its packages are named "
                f"{' or '.join(sorted(fitting)) or 'nothing'}); firmware of another generation can cost the card"
            )
    for kind in PackageKind:
        same = [package.name for package in packages if package.kind is kind]
        if len(same) > 1:
            problems.append(
                f"{' and '.join(same)} are both {kind.value} packages; leave one of them in the media folder"
            )
    versions = {package.kind: package.version for package in packages}
    toolkit, ops = versions.get(PackageKind.TOOLKIT), versions.get(PackageKind.OPS)
    if toolkit and ops and toolkit.lower() != ops.lower():
        problems.append(f"toolkit {toolkit} and kernels or ops {ops} are of different releases")
    return problems
