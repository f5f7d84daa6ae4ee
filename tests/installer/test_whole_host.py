"""A real installation: a bundle of real wheels, in a machine with a real systemd, to an instance that answers."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.system, pytest.mark.systemd, pytest.mark.slow, pytest.mark.timeout(900)]

ROOT = Path(__file__).resolve().parents[2]
NOT_BOOTED = 125


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Make a bundle for this Python, boot a machine, live through an installation in it, and return what was seen."""
    if os.getuid() != 0 or shutil.which("systemd-nspawn") is None:
        pytest.skip("booting a machine needs root and systemd-nspawn (Debian: systemd-container)")
    out = tmp_path_factory.mktemp("whole")
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    bundled = subprocess.run(
        [ROOT / "packaging/bundle.sh", "--python", version, out / "bundle"],
        env={**os.environ, "PYTHON": sys.executable}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert bundled.returncode == 0, bundled.stderr
    print(bundled.stdout)
    subprocess.run(
        [sys.executable, ROOT / "tests/system/tiny_qwen2.py", out / "model"], check=True, capture_output=True
    )
    # The machine has a /tmp of its own, and its Python is the one that this environment was made from.
    driver = shutil.copy(ROOT / "tests/installer/install_driver.py", out)
    interpreters = Path(sys.base_prefix, "bin")
    command = [ROOT / "tests/systemd-lab", "--bind", out, "--", interpreters / f"python{version}", driver]
    done = subprocess.run(
        [str(part) for part in (*command, out / "bundle", out / "model", out / "facts.json")],
        env={**os.environ, "PATH": f"{interpreters}:/usr/sbin:/usr/bin:/sbin:/bin"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode == NOT_BOOTED:
        pytest.skip(f"no machine could be booted here: {done.stderr[-500:]}")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads((out / "facts.json").read_text())
    assert "broken" not in found, found["broken"]
    assert found["apply"][0] == 0, f"{found['apply'][1]}\n{found.get('log')}"
    return found


def test_the_doctor_agrees(facts: dict[str, Any]) -> None:
    """After apply, verify proves every step, the doctor among them, and a second apply has nothing to do."""
    print(f"apply took {facts['apply_s']:.0f} s")

    assert facts["verify"][0] == 0, facts["verify"][1]
    assert "ok  doctor: the doctor found no failure" in facts["verify"][1]
    assert facts["again"][1].endswith("nothing to do\n")


def test_an_instance_starts_and_answers(facts: dict[str, Any]) -> None:
    """README's way: doctor, convert, inspect, create, enable --now, ask, scrape; each says that it is well."""
    print(facts["create"][1])

    assert facts["doctor"][0] in (0, 1), facts["doctor"][1]
    assert [facts[verb][0] for verb in ("convert", "inspect", "create")] == [0, 0, 0], facts
    assert facts["start"] == [0, ""]
    assert facts["active"] == "active", facts["journal"]
    assert facts["answer"]["usage"]["completion_tokens"] == 4
    assert "vllm:request_success_total{" in facts["metrics"]
    assert facts["status"][0] == 0, facts["status"][1]


def test_uninstall_leaves_the_host_as_it_was(facts: dict[str, Any]) -> None:
    """The instance is stopped and no file of the system differs; the operator's instance stays, file and drop-in."""
    assert facts["uninstall"][0] == 0, facts["uninstall"][1]
    assert facts["active_after"] == "inactive"
    assert facts["changed"] == ["/etc/systemd/system/ascendd@qwen2.service.d/50-devices.conf"]
    assert facts["instance_stays"]
