"""What a package holds and what its scripts do, without building one that takes minutes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = [
    *sorted((ROOT / "packaging").glob("*.sh")),
    *sorted((ROOT / "packaging/debian").glob("ascendd.p*")),
]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle whose only wheel is an empty file with the right name."""
    folder = tmp_path_factory.mktemp("bundle")
    (folder / "wheels").mkdir()
    version = re.search(r'__version__ = "(.*)"', (ROOT / "ascendd/__init__.py").read_text())
    assert version is not None
    wheel = folder / f"wheels/ascendd-{version[1]}-py3-none-any.whl"
    wheel.write_bytes(b"")
    command = [ROOT / "packaging/bundle.sh", "--wheels", wheel.parent, folder / "out"]
    subprocess.run([str(part) for part in command], check=True, capture_output=True)
    return folder / "out"


def test_the_tree_of_a_package(bundle: Path, tmp_path: Path) -> None:
    """Bundle, units, account, folders, command, man pages and completion are where systems look for them."""
    subprocess.run(
        [str(ROOT / "packaging/stage.sh"), str(bundle), str(tmp_path)],
        env={**os.environ, "PYTHON": sys.executable}, check=True, capture_output=True,
    )  # fmt: skip
    found = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if not path.is_dir()}
    units = {f"usr/lib/systemd/system/{path.name}" for path in (ROOT / "systemd").iterdir() if path.is_file()}

    assert units
    assert found >= units | {
        "usr/bin/ascendd", "usr/lib/ascendd/bundle/install.sh", "usr/lib/ascendd/bundle/bundle.json",
        "usr/lib/sysusers.d/ascendd.conf", "usr/lib/tmpfiles.d/ascendd.conf",
        "usr/share/man/man8/ascendd.8", "usr/share/man/man5/ascendd.yaml.5",
        "usr/share/bash-completion/completions/ascendd", "usr/share/zsh/vendor-completions/_ascendd",
        "usr/share/fish/vendor_completions.d/ascendd.fish",
    }  # fmt: skip
    assert (tmp_path / "usr/bin/ascendd").readlink() == Path("/opt/ascendd/current/bin/ascendd")


def test_what_the_documents_have_copied_is_there(bundle: Path) -> None:
    """Every file below docs/examples that a document names is in the bundle, whose docs are installed."""
    texts = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs").rglob("*.md"))
    named = set(re.findall(r"/opt/ascendd/current/docs/(examples/[\w.-]+)", texts))

    assert {"examples/gateway.yaml", "examples/50-ascendd-gateway.rules"} <= named
    assert {name for name in named if not (bundle / "docs" / name).is_file()} == set()
    assert re.findall(r"/opt/ascendd/current/(?!bin/|docs/)\S+", texts) == []


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_parse(script: Path) -> None:
    """Every script is whole for the shell that its first line names."""
    shell = script.read_text().splitlines()[0].removeprefix("#!")
    done = subprocess.run([shell, "-n", str(script)], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_the_rpm_holds_the_tree_and_its_scripts(bundle: Path, tmp_path: Path) -> None:
    """The .rpm has the same files, asks for a fitting Python, and configures after the transaction."""
    if shutil.which("rpmbuild") is None:
        pytest.skip("rpmbuild is not installed (Debian: rpm)")
    environ = {**os.environ, "PYTHON": sys.executable}
    done = subprocess.run(
        [str(ROOT / "packaging/rpm.sh"), str(bundle), str(tmp_path)],
        env=environ, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (package,) = tmp_path.glob("ascendd-*.rpm")

    def query(*what: str) -> str:
        return subprocess.run(["rpm", "-qp", *what, str(package)], capture_output=True, text=True, check=True).stdout

    files = query("-l").split()
    assert "/usr/lib/ascendd/bundle/install.sh" in files
    assert "/usr/share/man/man8/ascendd.8.gz" in files
    assert "/usr/share/zsh/site-functions/_ascendd" in files
    assert "(python(abi) = 3.11)" in query("--requires")
    assert "install.sh package configure" in query("--scripts").partition("posttrans scriptlet")[2]
    assert 'if [ "$1" = 0 ]; then /usr/lib/ascendd/bundle/install.sh package remove; fi' in query("--scripts")
