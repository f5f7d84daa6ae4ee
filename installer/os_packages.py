"""Packages of the operating system that the media hold, and the package manager that knows what is installed."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, List, Optional, Sequence, Set, Tuple

from ascendd.errors import HostError

from .host import Host

ENDINGS = (".deb", ".rpm")
_QUERY_LIMIT_S = 60
_DEB = re.compile(r"(?P<name>[^_]+)_(?P<version>[^_]+)_(?P<arch>[^_]+)\.deb")
_RPM = re.compile(r"(?P<name>.+)-(?P<version>[^-]+-[^-]+)\.(?P<arch>[^.]+)\.rpm")
_ARCHITECTURES = {"amd64": "x86_64", "arm64": "aarch64", "all": "any", "noarch": "any"}


@dataclass(frozen=True)
class OsPackage:
    """One .deb or .rpm by its name; `architecture` is as the kernel says it, or `any`."""

    path: str
    name: str
    version: str
    architecture: str

    @property
    def file(self) -> str:
        """The name of the file."""
        return Path(self.path).name

    @property
    def ending(self) -> str:
        """`.deb` or `.rpm`."""
        return Path(self.path).suffix


def parse_os_package(path: str) -> Optional[OsPackage]:
    """Return what the name of a package says, None when it is not named as its distribution names them."""
    match = _DEB.fullmatch(Path(path).name) or _RPM.fullmatch(Path(path).name)
    if match is None:
        return None
    architecture = _ARCHITECTURES.get(match["arch"], match["arch"])
    # apt writes the colon of an epoch as %3a into the names of files.
    return OsPackage(path, match["name"], match["version"].replace("%3a", ":"), architecture)


@dataclass(frozen=True)
class PackageManager:
    """How one family of distributions installs, lists and removes packages; nothing here asks a network."""

    ending: str

    def install(self, host: Host, paths: Sequence[str]) -> Tuple[str, ...]:
        """Return the command that installs these files, and refuses where what they need is neither there nor here."""
        if self.ending == ".deb":
            keep = ("--no-remove", "--no-install-recommends", "--option=Dpkg::Options::=--force-confold")
            return (
                "env",
                "DEBIAN_FRONTEND=noninteractive",
                "apt-get",
                "install",
                "--yes",
                "--no-download",
                *keep,
                *paths,
            )
        tool = "dnf" if host.find("dnf") or not host.find("yum") else "yum"
        return (tool, "install", "--assumeyes", "--disablerepo=*", "--setopt=install_weak_deps=False", *paths)

    def repair(self) -> Optional[Tuple[str, ...]]:
        """Return the command that ends what an interrupted run of the package manager has left, None where none is."""
        return ("dpkg", "--configure", "-a") if self.ending == ".deb" else None

    def remove(self, names: Sequence[str]) -> Tuple[str, ...]:
        """Return the command that removes these packages and refuses where another one needs them."""
        return ("dpkg", "--purge", *names) if self.ending == ".deb" else ("rpm", "--erase", *names)

    def advise(self, names: Sequence[str]) -> str:
        """Return what an operator with a network types."""
        return f"{'apt-get' if self.ending == '.deb' else 'dnf'} install {' '.join(names)}"

    def installed(self, host: Host, names: Sequence[str]) -> Set[str]:
        """Return which of these packages are installed. Raises HostError when the package manager cannot be asked."""
        if not names:
            return set()
        if self.ending == ".deb":
            form = "--showformat=${Package} ${db:Status-Status}\\n"
            lines = _lines(host, ("dpkg-query", "--show", form, *names))
            return {line.split()[0] for line in lines if line.endswith(" installed")}
        found = set(_lines(host, ("rpm", "--query", "--queryformat=%{NAME}\\n", *names)))
        return found & set(names)


def choose_manager(host: Host) -> PackageManager:
    """Return the package manager of the host by its os-release."""
    system: Dict[str, str] = host.system
    likes = {system.get("ID", "").lower(), *system.get("ID_LIKE", "").lower().split()}
    if likes & {"debian", "ubuntu"}:
        return PackageManager(".deb")
    return PackageManager(".rpm")


def unfit_os_packages(packages: Sequence[OsPackage], manager: PackageManager, architecture: str) -> List[str]:
    """Return why packages must not be installed on this host, each by its name."""
    problems = []
    for package in packages:
        if package.name.lower().startswith("ascend"):
            problems.append(
                f"{package.file} is no package of the operating system; the vendor's are taken as .run files, and "
                "ascendd comes with this installer"
            )
        elif package.ending != manager.ending:
            problems.append(f"{package.file} is not for this host, whose system takes {manager.ending} packages")
        elif package.architecture not in ("any", architecture):
            problems.append(f"{package.file} is for {package.architecture}, this host is {architecture}")
    for name in sorted({package.name for package in packages}):
        same = sorted(package.file for package in packages if package.name == name)
        if len(same) > 1 and len({package.version for package in packages if package.name == name}) > 1:
            problems.append(f"{' and '.join(same)} are versions of one package; leave one of them in the media folder")
    return problems


def _lines(host: Host, argv: Tuple[str, ...]) -> List[str]:
    """Return what a query prints; both managers end with 1 when one of the names is not installed."""
    try:
        done = subprocess.run(
            argv,
            capture_output=True,
            text=True,
            env={**host.environ, "LC_ALL": "C"},
            timeout=_QUERY_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise HostError(f"{argv[0]} cannot tell which packages are installed: {error}") from error
    if done.returncode not in range(len(argv)):
        raise HostError(f"{argv[0]} ended with status {done.returncode}: {done.stderr.strip()[-300:]}")
    return done.stdout.splitlines()
