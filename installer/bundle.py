"""Bundle: what was unpacked; the release, the Pythons that its wheels are for, and which of them this host has."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, List, Optional, Sequence, Tuple

from ascendd.errors import HostError

from .host import Host
from .media import verify_checksums

_PROBE = "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])"
_WHEEL = re.compile(
    r"(?P<name>[^-]+)-(?P<version>[^-]+)(?:-\d[^-]*)?-(?P<python>[^-]+)-(?P<abi>[^-]+)-(?P<platform>[^-]+)\.whl"
)
_UNIT = re.compile(r".+\.(service|socket|slice|target|timer|path)(\.d)?$")


@dataclass(frozen=True)
class Wheel:
    """A wheel by its name."""

    path: str
    name: str
    version: str
    python: str
    platform: str

    def fits(self, python: str, architecture: str) -> bool:
        """Tell whether pip of Python `python` (`3.11`) would take it on this architecture."""
        tag = "cp" + python.replace(".", "")
        tags = self.python.split(".")
        abi3 = [t for t in tags if re.fullmatch(r"cp3\d+", t) and "-abi3-" in Path(self.path).name]
        good_python = tag in tags or "py3" in tags or any(int(t[3:]) <= int(tag[3:]) for t in abi3)
        return good_python and (self.platform == "any" or self.platform.endswith(architecture))


def parse_wheel(path: str) -> Optional[Wheel]:
    """Return what the name of a wheel says, None when it is not named as one."""
    match = _WHEEL.fullmatch(Path(path).name)
    if match is None:
        return None
    name = re.sub(r"[-_.]+", "-", match["name"]).lower()
    return Wheel(path, name, match["version"], match["python"], match["platform"])


@dataclass(frozen=True)
class Bundle:
    """The unpacked bundle."""

    folder: str
    version: str
    pythons: Tuple[str, ...]
    architecture: Optional[str] = None

    @property
    def release_folder(self) -> str:
        """Where this release is installed."""
        return f"/opt/ascendd/{self.version}"

    def path(self, name: str) -> str:
        """Return the path of a file of the bundle."""
        return f"{self.folder}/{name}"

    def read(self, name: str) -> str:
        """Return the text of a file of the bundle. Raises HostError."""
        try:
            return Path(self.folder, name).read_text(encoding="utf-8")
        except OSError as error:
            raise HostError(
                f"{self.path(name)} cannot be read: {error.strerror}", remedy="Unpack the bundle again."
            ) from error

    def units(self) -> List[str]:
        """Return the unit files below systemd/, and the drop-ins beside them as `ascendd@.service.d/NAME.conf`."""
        folder = Path(self.folder, "systemd")
        paths = [path for path in folder.iterdir() if path.is_file() and _UNIT.match(path.name)]
        drop_ins = [path for path in folder.glob("*.d/*.conf") if _UNIT.match(path.parent.name)]
        return sorted(str(path.relative_to(folder)) for path in (*paths, *drop_ins))

    def wheels(self, more: Sequence[str] = ()) -> List[Wheel]:
        """Return the wheels of the bundle and those at the paths `more`."""
        paths = [*sorted(str(path) for path in Path(self.folder).glob("wheels/*.whl")), *more]
        return [wheel for wheel in map(parse_wheel, paths) if wheel]

    def problems(self) -> List[str]:
        """Return what is corrupt in it."""
        return verify_checksums(self.folder, (".whl", ".py", ".sh"))


def read_bundle(folder: str) -> Bundle:
    """Read bundle.json. Raises HostError where this is not an unpacked bundle."""
    path = Path(folder, "bundle.json")
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        return Bundle(folder, str(data["version"]), tuple(map(str, data["pythons"])), data.get("architecture"))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise HostError(
            f"{path} cannot be read ({error}), so this is no unpacked bundle",
            remedy="Make one with `packaging/bundle.sh`, unpack it here, and run its ./install.sh.",
        ) from error


def find_python(host: Host, pythons: Sequence[str]) -> Optional[str]:
    """Return the path of the first Python of the bundle that can make a virtual environment, or None."""
    for version in pythons:
        path = host.find(f"python{version}")
        if path is None:
            continue
        # A version manager leaves names on PATH that start nothing, so each is started to be sure.
        done = subprocess.run(
            [path, "-I", "-c", _PROBE], capture_output=True, text=True, env=host.environ, timeout=60, check=False
        )
        if done.returncode == 0 and done.stdout.strip() == version:
            return path
    return None


def pins(wheels: Sequence[Wheel], python: str, architecture: str) -> Tuple[Dict[str, str], List[str]]:
    """Return `name -> version` of what is to be installed, and why it cannot be."""
    chosen: Dict[str, str] = {}
    problems = []
    for name in sorted({wheel.name for wheel in wheels}):
        of_name = [wheel for wheel in wheels if wheel.name == name]
        fitting = sorted({wheel.version for wheel in of_name if wheel.fits(python, architecture)})
        if len(fitting) == 1:
            chosen[name] = fitting[0]
        elif fitting:
            problems.append(f"the wheels hold {name} in the versions {', '.join(fitting)}; leave one of them")
        else:
            problems.append(f"{Path(of_name[0].path).name} does not fit Python {python} on {architecture}")
    return chosen, problems
