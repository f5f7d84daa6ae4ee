"""The release itself: a private virtual environment under /opt/ascendd/<version>, and the link to the current one."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Dict, List, Optional, Sequence, Tuple

from ascendd.errors import HostError
from ascendd.host.version_files import read_cann

from ..action import Action, Command, Link, RemoveTree, RestoreFiles, WriteFile
from ..bundle import Bundle, find_python, pins
from ..host import Host
from ..media import Media, PackageKind
from ..releases import FOLDER, RECORD
from ..settings import Settings
from ..state import InstallState
from ..step import Detection, Found, Step, StepStatus
from ..torch_stack import torch_problems
from .os_packages import OsPackages

CURRENT = f"{FOLDER}/current"
PREVIOUS = f"{FOLDER}/previous"
COMMAND = "/usr/local/bin/ascendd"
_PIP_LIMIT_S = 1800.0


class Venv(Step):
    """The virtual environment with everything that ascendd needs, from wheels and without a network."""

    id = "venv"
    title = "virtual environment"
    requires: Tuple[str, ...] = ("service-account",)
    estimate_s = 120.0

    def __init__(self, bundle: Bundle, media: Media, settings: Settings, os_packages: OsPackages) -> None:
        self._bundle, self._media, self._settings = bundle, media, settings
        self._os_packages = os_packages
        self._folder = bundle.release_folder
        self._python: Optional[str] = None

    def _find_python(self, host: Host) -> Optional[str]:
        """Look until it is there, since every candidate has to be started; then name the one that the media bring."""
        if self._python is None:
            self._python = find_python(host, self._bundle.pythons)
        coming = (f"/usr/bin/python{v}" for v in self._bundle.pythons if self._os_packages.offers_python(v))
        return self._python or next(coming, None)

    def detect(self, host: Host) -> Detection:
        """Compare the pins that the folder was made with."""
        if not host.files.exists(self._folder):
            return Detection(Found.ABSENT, None, f"{self._folder} is not there")
        wanted, problems = self._requirements(host)
        has_python = host.files.is_executable(f"{self._folder}/bin/python")
        if has_python and (problems or host.files.read_optional(self._pins_path) == wanted):
            return Detection(Found.PRESENT, self._bundle.version, f"{self._folder} is there")
        return Detection(Found.BROKEN, None, f"{self._folder} is there and is not what this bundle makes")

    def check(self, host: Host, state: InstallState) -> List[str]:
        """Refuse a host without a fitting Python, wheels that do not fit, and a folder of somebody else."""
        found = self.detect(host).found
        if found is Found.PRESENT:
            return []
        problems = []
        # Without one the packages of the operating system are what is refused.
        if self._find_python(host) is not None:
            problems += self._requirements(host)[1]
            if self._settings.is_npu:
                problems += torch_problems(
                    self._pins(host)[0], self._cann(host), allow_unverified=self._settings.allows_unverified
                )
        if found is Found.BROKEN and state.status(self.id) is StepStatus.PENDING:
            problems.append(f"{self._folder} is there and was not finished by this installer; move it away")
        return problems

    def act(self, host: Host, found: Found) -> Sequence[Action]:
        """Make the environment anew and fill it."""
        folder = host.real(self._folder)
        python = self._find_python(host) or f"python{self._bundle.pythons[0]}"
        return (
            Command((python, "-m", "venv", "--clear", folder), makes=(self._folder,)),
            WriteFile(self._pins_path, self._requirements(host)[0]),
            Command((*pip(host, self._bundle, self._media), "-r", host.real(self._pins_path)), limit_s=_PIP_LIMIT_S),
        )

    def prove(self, host: Host) -> str:
        """Ask pip whether everything belongs together, once ascendd's own wheel is no part of the question."""
        if self.detect(host).found is not Found.PRESENT:
            raise HostError(self.detect(host).sentence)
        python = host.real(f"{self._folder}/bin/python")
        done = subprocess.run([python, "-m", "pip", "check"], capture_output=True, text=True, timeout=300, check=False)
        if done.returncode != 0:
            raise HostError(f"{self._folder}: {(done.stdout + done.stderr).strip()[-500:]}")
        return f"{self._folder} is whole, pip check finds nothing missing"

    def undo(self, host: Host, state: InstallState) -> Sequence[Action]:
        """Remove the folders that were made, those of earlier releases as well."""
        made = [path for path in state.files_of(self.id) if Path(path).parent == Path(self._folder).parent]
        return (*(RemoveTree(path) for path in made if state.files[path]["kind"] == "absent"), RestoreFiles())

    @property
    def _pins_path(self) -> str:
        return f"{self._folder}/requirements.txt"

    def _cann(self, host: Host) -> Optional[str]:
        """Return the version of the toolkit that there will be."""
        package = self._media.package(PackageKind.TOOLKIT)
        if package is not None:
            return package.version
        return next((cann.version for cann in read_cann(host.files, {})), None)

    def _pins(self, host: Host) -> Tuple[Dict[str, str], List[str]]:
        python = self._find_python(host)
        if python is None:
            return {}, ["no Python"]
        version = Path(python).name[len("python") :]
        return pins(self._bundle.wheels(self._media.wheels), version, host.architecture)

    def _requirements(self, host: Host) -> Tuple[str, List[str]]:
        chosen, problems = self._pins(host)
        if not chosen:
            return "", problems
        others: Dict[str, str] = {name: pin for name, pin in chosen.items() if name != "ascendd"}
        if chosen.get("ascendd") != self._bundle.version:
            problems.append(f"the bundle is {self._bundle.version} and its wheel of ascendd is {chosen.get('ascendd')}")
        return "".join(f"{name}=={pin}\n" for name, pin in others.items()), problems


class Release(Step):
    """ascendd in the environment, its documents, and the links `current` and /usr/local/bin/ascendd."""

    id = "ascendd"
    title = "ascendd"
    requires = ("venv",)
    estimate_s = 10.0

    def __init__(self, bundle: Bundle, media: Media) -> None:
        self._bundle, self._media = bundle, media
        self._folder = bundle.release_folder

    def detect(self, host: Host) -> Detection:
        """Follow the link."""
        if not Path(host.real(CURRENT)).is_symlink():
            return Detection(Found.ABSENT, None, "ascendd is not installed")
        version = host.files.resolve(CURRENT).rsplit("/", 1)[-1]
        if version != self._bundle.version:
            return Detection(
                Found.OLDER, version, f"ascendd {version} is installed, {self._bundle.version} replaces it"
            )
        if not host.files.is_executable(f"{self._folder}/bin/ascendd") or not Path(host.real(COMMAND)).is_symlink():
            return Detection(Found.OLDER, version, f"ascendd {version} is not whole")
        return Detection(Found.PRESENT, version, f"ascendd {version} is installed")

    def act(self, host: Host, found: Found) -> Sequence[Action]:
        """Install the wheel, copy the documents, and move the links last."""
        version = self.detect(host).version
        record = json.dumps({"version": self._bundle.version, "python": f"{self._folder}/bin/python"}) + "\n"
        previous = (Link(PREVIOUS, version),) if version not in (None, self._bundle.version) else ()
        return (
            Command((*pip(host, self._bundle, self._media), f"ascendd=={self._bundle.version}")),
            Command(("cp", "-R", "-T", self._bundle.path("docs"), host.real(f"{self._folder}/docs"))),
            WriteFile(f"{self._folder}/{RECORD}", record),
            *previous,
            Link(CURRENT, self._bundle.version),
            Link(COMMAND, f"{CURRENT}/bin/ascendd"),
        )

    def prove(self, host: Host) -> str:
        """Start it."""
        done = subprocess.run(
            [host.real(f"{CURRENT}/bin/ascendd"), "--version"], capture_output=True, text=True, timeout=120, check=False
        )
        if done.returncode != 0 or self._bundle.version not in done.stdout:
            raise HostError(
                f"`ascendd --version` ended with status {done.returncode}: {(done.stdout + done.stderr)[-500:]}"
            )
        return f"`ascendd --version` says {done.stdout.strip()}"

    def undo(self, host: Host, state: InstallState) -> Sequence[Action]:
        """Put the links back; the folder goes with the environment."""
        return (RestoreFiles(),)


def pip(host: Host, bundle: Bundle, media: Media) -> Tuple[str, ...]:
    """Return the start of a pip command that sees the wheels of bundle and media, no index, and no one's pip.conf."""
    folders = [bundle.path("wheels"), *sorted({str(Path(wheel).parent) for wheel in media.wheels})]
    links = [part for folder in folders for part in ("--find-links", folder)]
    python = host.real(f"{bundle.release_folder}/bin/python")
    install = (python, "-I", "-m", "pip", "install", "--disable-pip-version-check", "--no-index", *links)
    return ("env", "PIP_CONFIG_FILE=/dev/null", *install)
