"""
Print what wheels require on another machine than this one, one requirement a line; refuse a torch that needs CUDA.

    wheel_needs.py x86_64|aarch64 PYTHON WHEEL...

pip chooses wheels for another platform, but evaluates conditions such as `platform_machine == "x86_64"` for the machine
that it runs on; so the conditions are evaluated here. Requirements on one of the wheels named are left out.
"""

from __future__ import annotations

import sys
import zipfile
from email.parser import Parser
from pathlib import Path

from pip._vendor.packaging.requirements import Requirement
from pip._vendor.packaging.utils import canonicalize_name

CUDA = ("nvidia-", "cuda-", "triton")


def needs(wheel: Path, environment: dict[str, str]) -> list[Requirement]:
    """Return the requirements of a wheel that hold on the target."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA") and name.count("/") == 1]
        metadata = Parser().parsestr(archive.read(name).decode())
    found = [Requirement(line) for line in metadata.get_all("Requires-Dist", [])]
    return [item for item in found if item.marker is None or item.marker.evaluate({**environment, "extra": ""})]


def main(architecture: str, python: str, *paths: str) -> int:
    """Print the requirements and return the exit status."""
    environment = {
        "platform_machine": architecture, "platform_system": "Linux", "sys_platform": "linux", "os_name": "posix",
        "python_version": python, "python_full_version": f"{python}.0", "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
    }  # fmt: skip
    wheels = [Path(path) for path in paths]
    ours = {canonicalize_name(wheel.name.split("-")[0]) for wheel in wheels}
    for wheel in wheels:
        wanted = needs(wheel, environment)
        cuda = sorted(item.name for item in wanted if canonicalize_name(item.name).startswith(CUDA))
        if cuda:
            sys.stderr.write(
                f"bundle.sh: {wheel.name} is a CUDA build: it does not start without {', '.join(cuda)}, "
                f"which no bundle holds. Name an index of CPU builds for {architecture} with --torch-index, or a "
                "--torch VERSION whose wheel is one.\n"
            )
            return 64
        for item in wanted:
            if canonicalize_name(item.name) not in ours:
                item.marker = None
                sys.stdout.write(f"{item}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
