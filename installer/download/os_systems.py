"""OS systems: where the distributions that are known here keep their packages, and how theirs are read."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Dict, List, Mapping, Optional, Sequence, Tuple, Union

from ascendd.errors import PreflightFailed, UsageError

from .deb_repository import DebRepository
from .fetch import Fetcher, check_url
from .os_closure import OsClosure, RepositoryPackage
from .rpm_repository import RpmRepository
from .signatures import Signatures
from .version_order import compare_deb, compare_rpm

Repository = Union[DebRepository, RpmRepository]
_DEBIAN = "http://deb.debian.org/debian"
_UBUNTU = {"x86_64": "http://archive.ubuntu.com/ubuntu", "aarch64": "http://ports.ubuntu.com/ubuntu-ports"}
_OPENEULER = "https://repo.openeuler.org/openEuler"
KEYRINGS = {
    "debian": "/usr/share/keyrings/debian-archive-keyring.gpg",
    "ubuntu": "/usr/share/keyrings/ubuntu-archive-keyring.gpg",
}
SYSTEMS = ("debian-12", "ubuntu-22.04", "ubuntu-24.04", "openeuler-22.03", "openeuler-24.03")


@dataclass(frozen=True)
class OsRequest:
    """What the target needs of its operating system; `kernel` is what `uname -r` says there."""

    pythons: Tuple[str, ...]
    architecture: str
    is_npu: bool
    kernel: Optional[str]


def known_repositories(system: str, architecture: str) -> Tuple[Repository, ...]:
    """Return the repositories of a distribution's release."""
    if system == "debian-12":
        updates = DebRepository("http://security.debian.org/debian-security", "bookworm-security", ("main",))
        return (*(DebRepository(_DEBIAN, suite, ("main",)) for suite in ("bookworm", "bookworm-updates")), updates)
    if system.startswith("ubuntu-"):
        suite = {"ubuntu-22.04": "jammy", "ubuntu-24.04": "noble"}[system]
        suites = (suite, f"{suite}-updates", f"{suite}-security")
        return tuple(DebRepository(_UBUNTU[architecture], name, ("main", "universe")) for name in suites)
    release = {"openeuler-22.03": "22.03-LTS-SP4", "openeuler-24.03": "24.03-LTS"}[system]
    parts = ("OS", "everything", "update")
    return tuple(RpmRepository(f"{_OPENEULER}-{release}/{part}/{architecture}") for part in parts)


def parse_repository(text: str, architecture: str) -> Repository:
    """Return the repository of `deb URL SUITE COMPONENT...` or `rpm URL`. Raises UsageError."""
    kind, *rest = shlex.split(text) or [""]
    if kind == "deb" and len(rest) >= 3:
        return DebRepository(check_url(rest[0], "--os-repository"), rest[1], tuple(rest[2:]))
    if kind == "rpm" and len(rest) == 1:
        return RpmRepository(check_url(rest[0].replace("$basearch", architecture), "--os-repository"))
    raise UsageError(
        f"--os-repository is `{text}`",
        remedy="Write `deb URL SUITE COMPONENT...` or `rpm URL`: `deb http://deb.debian.org/debian bookworm main`.",
    )


def parse_installed(text: str) -> Dict[str, str]:
    """Return name -> version of lines `NAME VERSION`. Raises UsageError that names the line."""
    found = {}
    for number, line in enumerate(text.splitlines(), 1):
        fields = line.split()
        if len(fields) not in (0, 2):
            raise UsageError(
                f"line {number} of --installed is `{line}`, not `NAME VERSION`",
                remedy="Make the file on the target by the command that `--help` shows.",
            )
        if fields:
            found[fields[0].partition(":")[0]] = fields[1].replace("(none):", "")
    return found


def os_packages(
    repositories: Sequence[Repository],
    request: OsRequest,
    installed: Optional[Mapping[str, str]],
    fetcher: Fetcher,
    signatures: Signatures,
) -> Tuple[List[RepositoryPackage], List[str]]:
    """Return the packages to take, and notes. Raises PreflightFailed for what the repositories lack."""
    is_deb = all(isinstance(repository, DebRepository) for repository in repositories)
    if not is_deb and any(isinstance(repository, DebRepository) for repository in repositories):
        raise UsageError("--os-repository names deb and rpm repositories", remedy="A host has one kind of packages.")
    if not is_deb and installed is None:
        raise UsageError(
            "an rpm repository does not say what every host has already",
            remedy="On the target `rpm -qa --queryformat '%{NAME} %{EVR}\\n' >installed`, and add --installed FILE.",
        )
    found: List[RepositoryPackage] = []
    for repository in repositories:
        found += repository.packages(fetcher, signatures, request.architecture)
    closure = OsClosure(found, compare_deb if is_deb else compare_rpm, installed)
    names, notes, problems = _wanted(closure, request, is_deb=is_deb)
    chosen, lacking = closure.resolve(names)
    if problems or lacking:
        lines = "".join(f"\n  - {problem}" for problem in (*problems, *lacking))
        raise PreflightFailed(
            f"packages of the operating system cannot be chosen:{lines}", remedy="See --os-repository."
        )
    return chosen, notes


def _wanted(closure: OsClosure, request: OsRequest, *, is_deb: bool) -> Tuple[List[str], List[str], List[str]]:
    """Return names, notes and problems: the needs of the step `os-packages`, which looks on the host itself."""
    names, notes, problems = [], [], []
    pythons = [f"python{version}{'-venv' if is_deb else ''}" for version in request.pythons]
    offered = [name for name in pythons if closure.has(name)]
    if (
        not is_deb
        and not offered
        and closure.newest_version("python3")
        .rpartition(":")[2]
        .startswith(tuple(f"{version}." for version in request.pythons))
    ):
        offered = ["python3"]
    if offered:
        names.append(next((name for name in offered if closure.is_installed(name)), offered[0]))
    else:
        problems.append(f"no repository has {' or '.join(pythons)}, and ascendd runs on nothing else")
    if request.is_npu:
        names += ["pciutils", "net-tools"]
        if request.kernel is None:
            notes.append(
                "the driver compiles its module where its package has none for the kernel of the host; for that case "
                "name the kernel with --kernel, as `uname -r` says it there"
            )
        else:
            headers = f"linux-headers-{request.kernel}" if is_deb else "kernel-devel"
            names += ["dkms", "gcc", "make", headers]
    return names, notes, problems
