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


@pytest.fixture(scope="module")
def packages(folder: Path, bundles: tuple[Path, Path]) -> tuple[Path, Path]:
    """Make two packages: of this release, and of a next one."""
    environ = {**os.environ, "PYTHON": sys.executable}
    for bundle in bundles:
        print(run([ROOT / "packaging/deb.sh", bundle, folder], environ))
    (old,) = [path for path in folder.glob("ascendd_*.deb") if NEXT not in path.name]
    (new,) = folder.glob(f"ascendd_{NEXT}_*.deb")
    return old, new


@pytest.fixture(scope="module")
def facts(folder: Path, packages: tuple[Path, Path], debian: Path) -> dict[str, Any]:
    """Boot a fresh Debian without a network, and live through the package's life in it."""
    out = folder / "out"
    out.mkdir()
    for package in packages:
        os.link(package, out / package.name)
    run([sys.executable, ROOT / "tests/system/tiny_qwen2.py", out / "model"], dict(os.environ))
    shutil.copy(ROOT / "tests/packages/deb_driver.py", out)
    command = [ROOT / "tests/systemd-lab", "--rootfs", debian, "--bind", out, "--", "python3", out / "deb_driver.py"]
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


def test_instances_are_made_changed_and_taken_back(facts: dict[str, Any]) -> None:
    """Create, edit and delete do what they say; what is wrong is refused by name and takes nothing's place."""
    verbs = facts["verbs"]

    assert [verbs[verb][0] for verb in ("topology", "create", "edit", "second", "delete")] == [0] * 5, verbs
    assert [verbs[verb][0] for verb in ("again", "no_model", "wrong_edit")] == [64, 71, 78], verbs
    assert "$.engine.max_blocks = 2048: is not a known key; did you mean `max_num_blocks`?" in verbs["wrong_edit"][1]
    assert (verbs["kept"], verbs["mode"]) == (True, "100640 root:ascendd")
    assert (verbs["key"], verbs["left"]) == (["second"], [])


def test_a_running_instance_takes_orders(facts: dict[str, Any]) -> None:
    """List and status know it, drain, resume and reload are obeyed, and who is not of its group is sent away."""
    (listed,) = json.loads(facts["list_instances"][1])
    (seen,) = json.loads(facts["status"][1])

    assert (listed["name"], listed["state"], seen["phase"]) == ("qwen2", "active", "serving")
    assert {verb: told[0] for verb, told in facts["orders"].items()} == {"drain": 0, "resume": 0, "reload": 0}
    assert "[DONE]" in facts["after_orders"]
    assert facts["order_of_another"][0] == 71
    assert "this user may not ask" in facts["order_of_another"][1]


def test_an_instance_serves(facts: dict[str, Any]) -> None:
    """`systemctl enable --now ascendd@qwen2` serves a model."""
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
    """After purge no file, account, process or enabled link of ascendd is left; nothing of the system is missing."""
    assert facts["purge"][0] == 0, facts["purge"][1]
    assert facts["active_after"] == "inactive"
    assert (facts["left"], facts["lost"]) == ([], [])
    assert facts["account_left"] == [2, 2]
