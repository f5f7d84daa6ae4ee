"""The Debian package in a fresh Debian 12: installed offline, serving, upgraded under load, rolled back, purged."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.system, pytest.mark.systemd, pytest.mark.slow, pytest.mark.timeout(1800)]

ROOT = Path(__file__).resolve().parents[2]
NOT_BOOTED = 125
NEXT = "99.0.1"
TOOLS = ("systemd-nspawn", "debootstrap", "dpkg-buildpackage", "dh", "lintian")
# What a server has; python3-venv is the one package that ours depends on beyond them.
PACKAGES = "systemd,systemd-sysv,dbus,python3-venv,python3-distutils,procps,iproute2"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where packages and results lie; skips where the tools are missing."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if os.getuid() != 0 or missing:
        pytest.skip(f"needs root and {', '.join(missing) or 'nothing else'} (Debian: debhelper debootstrap lintian)")
    if sys.version_info[:2] != (3, 11):
        pytest.skip("the wheels are fetched for this Python, and Debian 12 has 3.11")
    return tmp_path_factory.mktemp("deb")


@pytest.fixture(scope="module")
def packages(folder: Path) -> tuple[Path, Path]:
    """Make two packages of the same wheels: this release, and a next one."""
    environ = {**os.environ, "PYTHON": sys.executable}
    run([ROOT / "packaging/bundle.sh", "--python", "3.11", folder / "bundle"], environ)
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
    print(run([ROOT / "packaging/deb.sh", folder / "bundle", folder], environ))
    print(run([tree / "packaging/deb.sh", folder / "next", folder], environ))
    (old,) = [path for path in folder.glob("ascendd_*.deb") if NEXT not in path.name]
    (new,) = folder.glob(f"ascendd_{NEXT}_*.deb")
    return old, new


@pytest.fixture(scope="module")
def facts(folder: Path, packages: tuple[Path, Path]) -> dict[str, Any]:
    """Make a fresh Debian, boot it without a network, and live through the package's life in it."""
    tree = folder / "debian"
    mirror = os.environ.get("DEBIAN_MIRROR", "http://deb.debian.org/debian")
    run(["debootstrap", "--variant=minbase", f"--include={PACKAGES}", "bookworm", tree, mirror], dict(os.environ))
    out = folder / "out"
    out.mkdir()
    for package in packages:
        os.link(package, out / package.name)
    run([sys.executable, ROOT / "tests/system/tiny_qwen2.py", out / "model"], dict(os.environ))
    shutil.copy(ROOT / "tests/packages/deb_driver.py", out)
    command = [ROOT / "tests/systemd-lab", "--rootfs", tree, "--bind", out, "--", "python3", out / "deb_driver.py"]
    arguments = [*(out / package.name for package in packages), out / "model", out / "facts.json"]
    done = subprocess.run(
        [str(part) for part in (*command, *arguments)],
        env={**os.environ, "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == NOT_BOOTED:
        pytest.skip(f"no machine could be booted here: {done.stderr[-500:]}")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads((out / "facts.json").read_text())
    assert "broken" not in found, found["broken"]
    assert found["install"][0] == 0, found["install"][1]
    return found


def run(argv: list[str | Path], environ: dict[str, str]) -> str:
    """Run a command that must succeed, and return what it prints."""
    done = subprocess.run([str(part) for part in argv], env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_lintian_has_no_errors(packages: tuple[Path, Path]) -> None:
    """The package keeps Debian's rules, but for the overrides in packaging/debian with their reasons."""
    done = subprocess.run(
        ["lintian", "--fail-on", "error", str(packages[0])], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stdout
    assert not re.findall(r"^[EW]: .*", done.stdout, re.MULTILINE)


def test_it_installs_offline_and_the_doctor_runs(facts: dict[str, Any]) -> None:
    """It is installed by dpkg alone, without a network; the command, its man pages and completion are there."""
    print(f"installed in {facts['install_s']:.0f} s")

    assert facts["version"].startswith("ascendd ")
    assert facts["doctor"][0] in (0, 1), facts["doctor"][1]
    assert facts["man"] == [True, True, True]


def test_an_instance_serves(facts: dict[str, Any]) -> None:
    """`systemctl start ascendd@qwen2` serves a model."""
    assert facts["start"] == [0, ""], facts.get("journal")
    assert "[DONE]" in facts["answer"]["body"]


def test_an_upgrade_loses_no_request(facts: dict[str, Any]) -> None:
    """A stream in flight is finished, and the instance is back with the new release when dpkg returns."""
    print(f"upgraded in {facts['upgrade_s']:.0f} s, the running stream included")

    assert facts["was_flowing"]
    assert facts["upgrade"][0] == 0, facts["upgrade"][1]
    assert "[DONE]" in facts["stream_end"]
    assert '"finish_reason":"length"' in facts["stream_end"]
    assert facts["after_upgrade"][:2] == [f"ascendd {NEXT}", "active"]
    assert "[DONE]" in facts["after_upgrade"][2]
    assert facts["configuration_stays"]
    assert re.search(rf"^{re.escape(NEXT)} +current", facts["list"], re.MULTILINE)


def test_one_command_goes_back(facts: dict[str, Any]) -> None:
    """`ascendd release rollback` makes the earlier release serve again."""
    print(f"rolled back in {facts['rollback_s']:.1f} s")

    assert facts["rollback"][0] == 0, facts["rollback"][1]
    assert facts["after_rollback"][:2] == [facts["version"], "active"]
    assert "[DONE]" in facts["after_rollback"][2]


def test_purge_leaves_nothing(facts: dict[str, Any]) -> None:
    """After purge no file, account or process of ascendd is left, and nothing of the system is missing."""
    assert facts["purge"][0] == 0, facts["purge"][1]
    assert facts["active_after"] == "inactive"
    assert (facts["left"], facts["lost"]) == ([], [])
    assert facts["account_left"] == [2, 2]
