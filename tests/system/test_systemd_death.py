"""
The supervisor's rows of the death table under a real systemd: every way x every phase, in one boot.

Clients got what tests/system/death/test_death_table.py says, nobody is left, and systemd starts the unit again, except
where its stop was under way. A stopped supervisor is found by the watchdog.
"""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from booted_machine import boot, environment_folders

pytestmark = [pytest.mark.system, pytest.mark.systemd, pytest.mark.slow, pytest.mark.timeout(3600)]

ROOT = Path(__file__).resolve().parents[2]
WAYS = ("SIGKILL", "SIGSTOP", "SIGSEGV", "exception")
# What the requests of a phase get when the supervisor dies, as in the death table.
PHASES = {"idle": "none", "load": "503", "prefill": "broken", "decode": "broken", "drain": "broken"}
ROWS = tuple(itertools.product(WAYS, PHASES))


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> dict[str, Any]:
    """Boot a machine, live through the rows that are asked for, and return what was seen."""
    asked = [
        item.callspec.params["row"] for item in request.session.items if "row" in getattr(item, "fixturenames", ())
    ]
    driver = [sys.executable, ROOT / "tests/system/systemd_death_driver.py", json.dumps(asked)]
    place = [ROOT, Path(sys.prefix) / "bin"]
    found: dict[str, Any] = boot(tmp_path_factory.mktemp("lab"), [*driver, *place], environment_folders())
    return found


def test_a_start_that_takes_longer_than_its_time_is_waited_for(facts: dict[str, Any]) -> None:
    """An engine that is silent for 25 s under TimeoutStartSec=20: the daemon extends the time, and the start is the first."""
    seen = facts["extension"]
    print(f"active {seen['took_s']:.1f} s after systemctl start, with TimeoutStartSec=20")

    assert (seen["state"], seen["NRestarts"], seen["Result"]) == ("active", "0", "success")
    assert seen["took_s"] > 25.0


@pytest.mark.parametrize("row", ROWS, ids="-".join)
def test_the_supervisor_dies_under_systemd(facts: dict[str, Any], row: tuple[str, str]) -> None:
    """Clients got what the table says, no process is left, and the unit is active again, or down where it was stopped."""
    way, phase = row
    seen = facts["rows"][f"{way}-{phase}"]
    back = "stopped" if seen["back_s"] is None else f"{seen['back_s']:.1f} s"
    print(f"| {way} | {phase} | {', '.join(seen['clients'])} | gone {seen['gone_s']:.1f} s | back {back} |")

    assert seen["clients"] == [PHASES[phase]]
    assert seen["left"] == []
    if phase == "drain":
        assert seen["state"] in ("failed", "inactive")
    else:
        assert seen["state"] == "active"
        assert seen["watchdog"] or way != "SIGSTOP"
