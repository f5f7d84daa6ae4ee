"""
ascendd-ray@ under a real systemd, on two hosts that are network namespaces: one boot, a table of facts.

The stand-in for Ray by default; ASCENDD_RAY_VENV names an environment with a real one (`make test-ray`).
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from booted_machine import ROOT, boot, environment_folders

pytestmark = [pytest.mark.system, pytest.mark.systemd, pytest.mark.slow, pytest.mark.timeout(1800)]
RAY = os.environ.get("ASCENDD_RAY_VENV", "standin")
BOTH = ["10.9.0.1", "10.9.0.2"]


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Boot a machine, live through the cluster's life in it, and return what was seen."""
    script = ROOT / "tests/system/vllm/ray_driver.py"
    driver = [sys.executable, script, ROOT, Path(sys.prefix) / "bin", RAY]
    shown = environment_folders() if RAY == "standin" else (*environment_folders(), Path(RAY).resolve())
    return boot(tmp_path_factory.mktemp("lab"), driver, shown, "--filters")


def test_without_a_token_there_is_no_cluster(facts: dict[str, Any]) -> None:
    """The verb says what to make and ends with 78; so does the unit, which is not started again."""
    found = facts["without_token"]

    assert facts["install"]["verify"] == []
    assert found["verb"]["status"] == 78
    assert "openssl rand -hex 32 > /etc/ascendd/keys/head.ray" in found["verb"]["err"]
    assert (found["unit_status"], found["restarts"]) == ("78", "0")


def test_hosts_join_by_their_units(facts: dict[str, Any]) -> None:
    """The head alone is told to wait; with the worker all have joined, and both units come back at a boot."""
    found = facts["joined"]

    assert (found["head"]["status"], found["worker"]["status"]) == (0, 0), found
    assert (found["alone"]["alive"], found["alone"]["status"]) == (BOTH[:1], 1)
    assert (sorted(found["both"]["alive"]), found["both"]["complete"], found["both"]["status"]) == (BOTH, True, 0)
    assert "all 2 hosts have joined" in found["worker"]["out"]
    assert found["enabled"] == {"head": "enabled", "worker": "enabled"}
    assert found["users"] == ["ascendd"]


def test_joining_again_disturbs_nobody(facts: dict[str, Any]) -> None:
    """The node that runs goes on."""
    assert facts["joined"]["again"]["status"] == 0
    assert facts["joined"]["pid_before"] == facts["joined"]["pid_after"]


def test_the_token_is_a_credential(facts: dict[str, Any]) -> None:
    """A file of root's alone is enough; its text is in no process's arguments or environment, and not in the journal."""
    found = facts["joined"]

    assert (found["token_shown"], found["token_logged"]) == ({"head": False, "worker": False}, False)
    assert found["token_mode"] == "0o100600"
    assert facts["stranger"]["status"] == 70  # another token
    assert "cannot be asked" in facts["stranger"]["err"]


def test_only_the_interface_of_the_cluster_reaches_a_node(facts: dict[str, Any]) -> None:
    """Ray listens on all; a packet of another interface does not come in where the machine can keep it away."""
    found = facts["other_interface"]

    assert sorted(facts["joined"]["interfaces"].split()) == ["lo", "ray0"]
    assert found["ray0"] == "connected"
    assert found["other0"] == ("TimeoutError" if found["filters"] else "connected")


@pytest.mark.parametrize("what", ["killed_raylet", "killed_main"])
def test_a_killed_worker_comes_back_and_leaves_nothing(facts: dict[str, Any], what: str) -> None:
    """After SIGKILL of the raylet or of the node's first process none of its old ones is left, and it joins anew."""
    found = facts[what]
    print(f"{what}: restarted after {found['restarted_s']:.1f} s, back after {found['back_s']:.1f} s")

    assert found["left"] == []
    assert sorted(found["nodes"]["alive"]) == BOTH


def test_the_head_names_who_is_away(facts: dict[str, Any]) -> None:
    """While a host is stopped `cluster status` ends with 1 and its address; afterwards with 0."""
    found = facts["paused"]

    assert (found["lost"]["alive"], found["lost"]["lost"]) == (BOTH[:1], BOTH[1:])
    assert "away: 10.9.0.2" in found["text"]["out"]
    assert found["back"]["status"] == 0


def test_leaving_leaves_nothing(facts: dict[str, Any]) -> None:
    """`cluster leave` ends once the head knows; no process, listener, drop-in or start at boot is left."""
    found = facts["left"]
    print(f"the worker left within {found['worker']['took_s']:.1f} s")

    assert (found["worker"]["status"], found["head"]["status"]) == (0, 0), found
    assert "10.9.0.2 has left: 1 of 2 hosts are there (10.9.0.1)" in found["worker"]["out"]
    assert (found["left_over"], found["head_left_over"], found["listeners"]) == ([], [], [])
    assert (found["enabled"], found["drop_in"]) == ("disabled", False)
