"""
The Python packages that the service will import, from their metadata: nothing is imported.

Looked at in the order of sys.path: PYTHONPATH of the service first (set_env.sh puts CANN's own there), then the
site-packages of the environment that ascendd is installed in.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from typing import Dict, List, Mapping, Optional, Tuple

from ascendd.host.files import HostFiles

# The link to the release in use, which is a virtual environment.
RELEASE = "/opt/ascendd/current"
_SITE = re.compile(r"/(?:site|dist)-packages$")
_INFO = re.compile(r"(?P<name>[^-]+)-(?P<version>[^-]+)\.(?:dist|egg)-info")
_HEADER = re.compile(r"^Version:\s*(\S+)", re.MULTILINE)


@dataclass(frozen=True)
class InstalledPackage:
    """One package: its name as pip writes it, its version, and the folder that it lies in."""

    name: str
    version: str
    folder: str

    @property
    def release(self) -> str:
        """The version without a local part: `2.7.1` of `2.7.1+cpu`."""
        return self.version.partition("+")[0]


@dataclass(frozen=True)
class PythonStack:
    """Version of the interpreter, `3.11`; the folders looked at; every package found, the first of a name wins."""

    python: str
    folders: Tuple[str, ...]
    found: Tuple[InstalledPackage, ...]

    def package(self, name: str) -> Optional[InstalledPackage]:
        """Return the package that an import would take, or None."""
        return next(iter(self.all_of(name)), None)

    def all_of(self, name: str) -> Tuple[InstalledPackage, ...]:
        """Return every package of that name; two mean that an installation did not clean up after another."""
        return tuple(package for package in self.found if package.name == canonical_name(name))


def canonical_name(name: str) -> str:
    """Return the name as package indexes compare it: `torch-npu` for `torch_npu`."""
    return re.sub(r"[-_.]+", "-", name).lower()


def read_python_stack(
    files: HostFiles, variables: Mapping[str, str], *, prefer_release: bool = False
) -> Optional[PythonStack]:
    """
    Return the stack of the installed service, or None where ascendd is not installed yet (an unpacked bundle).

    `prefer_release` takes the release in use rather than the environment of this process, which is asked first
    otherwise; a fake host has only the release.
    """
    own = None if files.root else _own_site_folders(files)
    release = _release_folders(files)
    places = [release, own] if prefer_release else [own, release]
    chosen = next((place for place in places if place is not None), None)
    if chosen is None:
        return None
    python, site = chosen
    named = [path for path in variables.get("PYTHONPATH", "").split(":") if path.startswith("/")]
    folders = tuple(dict.fromkeys([*named, *site]))
    found: List[InstalledPackage] = []
    for folder in folders:
        found += _packages(files, folder)
    return PythonStack(python, folders, tuple(found))


def _own_site_folders(files: HostFiles) -> Optional[Tuple[str, List[str]]]:
    folders = [path for path in sys.path if _SITE.search(path)]
    if not any(files.list_dir(folder, "ascendd-*.dist-info") for folder in folders):
        return None  # somebody's Python that the unpacked bundle is run with
    return f"{sys.version_info[0]}.{sys.version_info[1]}", folders


def _release_folders(files: HostFiles) -> Optional[Tuple[str, List[str]]]:
    names = files.list_dir(f"{RELEASE}/lib", "python3.*")
    if not names:
        return None
    return names[-1][len("python") :], [f"{RELEASE}/lib/{names[-1]}/site-packages"]


def _packages(files: HostFiles, folder: str) -> List[InstalledPackage]:
    packages: Dict[Tuple[str, str], InstalledPackage] = {}
    for entry in files.list_dir(folder, "*-info"):
        match = _INFO.fullmatch(entry)
        if match is None:
            continue
        metadata = files.read_optional(f"{folder}/{entry}/METADATA") or ""
        told = _HEADER.search(metadata)
        version = told[1] if told else match["version"]
        package = InstalledPackage(canonical_name(match["name"]), version, folder)
        packages[package.name, package.version] = package
    return list(packages.values())
