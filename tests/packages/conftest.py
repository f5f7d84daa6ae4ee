"""What the packages are made of and tried in: two bundles of the same wheels, and a fresh Debian 12 tree."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NEXT = "99.0.1"
TOOLS = ("systemd-nspawn", "debootstrap", "dpkg-buildpackage", "dh", "lintian", "rpmbuild")
# What a server has; python3-venv is the one package that ours depends on beyond them.
PACKAGES = "systemd,systemd-sysv,dbus,python3-venv,python3-distutils,procps,iproute2"


def run(argv: list[str | Path], environ: dict[str, str]) -> str:
    """Run a command that must succeed, and return what it prints."""
    done = subprocess.run([str(part) for part in argv], env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where packages and results lie; skips where the tools are missing."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if os.getuid() != 0 or missing:
        pytest.skip(
            f"needs root and {', '.join(missing) or 'nothing else'} (Debian: debhelper debootstrap lintian rpm)"
        )
    if sys.version_info[:2] != (3, 11):
        pytest.skip("the wheels are fetched for this Python, and Debian 12 has 3.11")
    return tmp_path_factory.mktemp("packages")


@pytest.fixture(scope="session")
def bundles(folder: Path) -> tuple[Path, Path]:
    """Make a bundle of this release, and one of a next release with the same wheels."""
    environ = {**os.environ, "PYTHON": sys.executable}
    print(run([ROOT / "packaging/bundle.sh", "--python", "3.11", folder / "bundle"], environ))
    tree = folder / "tree"
    shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(".git", ".venv", ".demo", "__pycache__", ".*_cache"))
    source = tree / "ascendd/__init__.py"
    source.write_text(re.sub(r'__version__ = ".*"', f'__version__ = "{NEXT}"', source.read_text()))
    wheels = folder / "wheels"
    wheels.mkdir()
    for wheel in (folder / "bundle/wheels").glob("*.whl"):
        if not wheel.name.startswith("ascendd-"):
            os.link(wheel, wheels / wheel.name)
    run([sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", wheels, tree], environ)
    run([tree / "packaging/bundle.sh", "--python", "3.11", "--wheels", wheels, folder / "next"], environ)
    return folder / "bundle", folder / "next"


@pytest.fixture(scope="session")
def debian(folder: Path) -> Path:
    """Make a fresh Debian 12 with what a server has."""
    mirror = os.environ.get("DEBIAN_MIRROR", "http://deb.debian.org/debian")
    tree = folder / "debian"
    run(["debootstrap", "--variant=minbase", f"--include={PACKAGES}", "bookworm", tree, mirror], dict(os.environ))
    return tree
