"""The rule that nothing skips silently in CI, tried in a pytest of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent.parent

SAMPLE = '''
import pytest


def test_runs():
    """A test that runs."""
    assert 1 + 1 == 2


@pytest.mark.parametrize("case", ["a", "b"])
def test_skips(case):
    """A test that skips."""
    pytest.skip("the moon is full")


@pytest.mark.xfail(reason="known", strict=True)
def test_fails_as_known():
    """A known failure is no skip."""
    assert 1 + 1 == 3
'''


def run_sample(folder: Path, allowed: str, ci: str, *more: str) -> subprocess.CompletedProcess[str]:
    """Run SAMPLE under a copy of the root conftest with `allowed` as the list of skips."""
    shutil.copy(TESTS / "conftest.py", folder / "conftest.py")
    (folder / "allowed_skips.txt").write_text(allowed, encoding="utf-8")
    (folder / "test_sample.py").write_text(SAMPLE, encoding="utf-8")
    (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *more, str(folder)],
        cwd=folder,
        env={**os.environ, "CI": ci},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_unlisted_skip_fails_ci_and_is_named(tmp_path: Path) -> None:
    """In CI a skip that no line names fails the run, which says which test and why it skipped."""
    result = run_sample(tmp_path, allowed="test_sample.py::test_skips[a] # full moon\n", ci="true")

    assert result.returncode == 1, result.stdout
    assert "test_sample.py::test_skips[b]: Skipped: the moon is full" in result.stdout


@pytest.mark.parametrize(
    ("allowed", "ci"),
    [("test_sample.py::test_skips* # needs a new moon\n", "true"), ("# nothing\n", "false")],
    ids=["listed", "outside CI"],
)
def test_listed_skip_passes(tmp_path: Path, allowed: str, ci: str) -> None:
    """A skip passes in CI when a line names it, and anywhere else without one."""
    result = run_sample(tmp_path, allowed, ci)

    assert result.returncode == 0, result.stdout
    assert "does not name" not in result.stdout


def test_skips_in_worker_processes_count(tmp_path: Path) -> None:
    """With pytest-xdist a module skipped as a whole is known to the worker alone, and still fails the run."""
    (tmp_path / "test_module.py").write_text("import pytest\npytest.importorskip('no_such_thing')\n", encoding="utf-8")
    result = run_sample(tmp_path, "test_sample.py::test_skips* # full moon\n", "true", "-n", "2", "--dist", "loadfile")

    assert result.returncode == 1, result.stdout
    assert result.stdout.count("test_module.py: Skipped: could not import 'no_such_thing'") == 1, result.stdout


def test_line_without_reason_is_refused(tmp_path: Path) -> None:
    """A line of allowed_skips.txt that gives no reason stops the run."""
    result = run_sample(tmp_path, allowed="test_sample.py::test_skips*\n", ci="true")

    assert result.returncode == 4, result.stdout
    assert "gives no reason" in result.stderr + result.stdout


def test_connection_to_another_machine_fails_the_test(tmp_path: Path) -> None:
    """A test that connects beyond this machine fails before a packet leaves."""
    (tmp_path / "test_network.py").write_text(
        "import socket\ndef test_dials():\n    socket.create_connection(('192.0.2.1', 80), timeout=1)\n",
        encoding="utf-8",
    )
    result = run_sample(tmp_path, allowed="", ci="false")

    assert "tests talk to this machine only" in result.stdout
