"""The unit under a real systemd, with the real engine and API: one boot, a table of facts."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from booted_machine import LAB, NOT_BOOTED, boot, environment_folders

pytestmark = [pytest.mark.system, pytest.mark.systemd, pytest.mark.timeout(1800)]

ROOT = Path(__file__).resolve().parents[2]
# How much longer than a plain start it may take until there is service again; most of both is the engine's load.
BACK_STARTS = 4.0


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Boot a machine, live through the unit's life in it, and return what was seen."""
    driver = [sys.executable, ROOT / "tests/system/systemd_driver.py", ROOT, Path(sys.prefix) / "bin"]
    return boot(tmp_path_factory.mktemp("lab"), driver, environment_folders())


def test_the_files_of_the_unit_install(facts: dict[str, Any]) -> None:
    """The sysusers and tmpfiles entries make user and folders, and systemd-analyze verify has no complaint."""
    assert "Creating user 'ascendd'" in facts["install"]["sysusers"]
    assert (facts["install"]["tmpfiles"], facts["install"]["verify"]) == ("", [])
    assert facts["install"]["instances_mode"] == "0o750"


def test_active_means_that_it_answers(facts: dict[str, Any]) -> None:
    """While activating nobody gets an answer; the first request after `active` gets its token."""
    start = facts["start"]
    print(f"active {start['took_s']:.1f} s after systemctl start")

    assert start["seen"][0][0] == "activating"
    assert start["seen"][-1][0] == "active"
    assert {status for state, status in start["seen"] if state == "activating"} <= {0, 503}
    assert 503 in {status for _, status in start["seen"]}
    assert start["first_after"] == 200
    # A model this small passes through most of these between two looks.
    assert any(text.split()[0] in ("preflight", "starting", "loading", "warming") for text in start["texts"] if text)
    assert sorted(start["pids"]) == ["api", "engine", "metrics", "supervisor"]


def test_the_status_tells_what_is_served(facts: dict[str, Any]) -> None:
    """`systemctl status` ends at the name of the model and its address."""
    assert facts["start"]["texts"][-1] in ("self-test", "serving qwen2 on 127.0.0.1:8000")


def test_the_service_is_confined(facts: dict[str, Any]) -> None:
    """It runs as its own user, without capabilities, below an exposure of 3."""
    security = facts["security"]
    print(security["exposure"])

    assert (security["user"], security["slice"], security["nice"]) == ("ascendd", "ascendd.slice", "5")
    assert (security["no_new_privs"], int(security["capabilities"], 16)) == ("1", 0)
    assert float(security["exposure"].split(": ")[1].split()[0]) < 3.0
    assert float(security["report_exposure"].split(": ")[1].split()[0]) < 3.0


def test_the_control_socket_answers_root_and_refuses_a_stranger(facts: dict[str, Any]) -> None:
    """`ascendd status` of the unit's instance; the socket is the service's, and user nobody is turned away."""
    control = facts["control"]

    assert (control["phase"], control["mode"], control["owner"]) == ("serving", "0o660", "ascendd")
    assert control["roles"] == ["api", "engine", "metrics", "supervisor"]
    assert "serving" not in control["refused"]
    assert "ASD-H0" in control["refused"]


def test_systemd_hears_of_a_reload_with_its_time(facts: dict[str, Any]) -> None:
    """`systemctl reload`: RELOADING=1 and MONOTONIC_USEC in one message, and the unit is active afterwards."""
    control = facts["control"]

    assert control["reload"] == ""
    assert control["heard"]
    assert all("MONOTONIC_USEC=" in line for line in control["heard"])
    assert control["state"] == "active"


def test_a_request_during_the_start_waits_where_systemd_holds_the_listener(facts: dict[str, Any]) -> None:
    """The first request starts the unit and gets its token; while the unit is restarted none is refused or reset."""
    activation = facts["activation"]
    print(f"the first request was answered {activation['first_s']:.1f} s after it, the start included")

    assert (activation["socket"], activation["before"], activation["slice"]) == ("", "inactive", "ascendd.slice")
    assert (activation["first"], activation["passed"]) == (200, True)
    assert activation["lost_in_restart"] == []
    assert set(activation["during_restart"]) <= {200, 503}
    assert 200 in activation["during_restart"]
    assert activation["left"] == []


def test_keys_come_by_load_credential(facts: dict[str, Any]) -> None:
    """A key file of mode 0600 that is root's, which the instance file does not name: in force, and in no environment."""
    activation = facts["activation"]

    assert (activation["first"], activation["without_key"]) == (200, 401)
    assert not activation["in_environment"]


def test_a_failed_unit_leaves_a_line_with_its_cause(facts: dict[str, Any]) -> None:
    """OnFailure= writes to the journal which unit ended how, and where to read on."""
    assert "ascendd@missing.service failed: exit-code, status 66" in facts["missing"]["report"]
    assert "journalctl -u ascendd@missing.service" in facts["missing"]["report"]


def test_a_killed_engine_ends_its_stream_and_holds_new_requests(facts: dict[str, Any]) -> None:
    """The open stream ends with an error event; a new request waits for the restart, or is refused with Retry-After."""
    killed = facts["kill_engine"]
    print(f"served again {killed['back_s']:.1f} s after the engine was killed")

    assert killed["stream_status"] == 200
    assert '"error":{' in killed["stream_end"]
    assert "[DONE]" not in killed["stream_end"]
    assert killed["statuses"] in ([200], [200, 503])
    assert killed["first"][0] == 200 or killed["first"][1] >= 1
    assert killed["back_s"] < BACK_STARTS * facts["start"]["took_s"]


def test_a_killed_engine_is_no_matter_for_systemd(facts: dict[str, Any]) -> None:
    """Supervisor and API stay the same processes and the unit stays active."""
    killed = facts["kill_engine"]

    assert killed["same_supervisor"]
    assert killed["same_api"]
    assert (killed["state"], killed["restarts_by_systemd"]) == ("active", "0")


@pytest.mark.parametrize("how", ["kill_supervisor", "watchdog"])
def test_systemd_brings_a_dead_supervisor_back(facts: dict[str, Any], how: str) -> None:
    """Killed, or stopped so that the watchdog strikes: no process is left, and systemd starts the unit again."""
    print(f"{how}: all gone after {facts[how]['gone_s']:.1f} s, served again after {facts[how]['back_s']:.1f} s")

    assert facts[how]["left"] == []
    assert facts[how]["state"] == "active"
    # Far less than the minutes that systemd gives a stop, on a machine that is busy with other things, too.
    assert facts[how]["gone_s"] < 60.0


def test_the_watchdog_waits_its_time(facts: dict[str, Any]) -> None:
    """With WatchdogSec=10 a stopped supervisor lives at least half of that, since it fed the dog shortly before."""
    assert facts["watchdog"]["gone_s"] > 4.0


def test_stop_drains_the_running_stream(facts: dict[str, Any]) -> None:
    """A stream that runs at systemctl stop is finished, new requests are 503, and the unit ends clean."""
    stopped = facts["stop"]
    print(f"stopped {stopped['took_s']:.1f} s after systemctl stop, the stream included")

    assert stopped["was_open_then"]
    assert stopped["refused_while_draining"] == 503
    assert "[DONE]" in stopped["stream_end"]
    assert '"finish_reason":"length"' in stopped["stream_end"]
    assert (stopped["state"], stopped["Result"], stopped["ExecMainStatus"]) == ("inactive", "success", "0")
    assert stopped["left"] == []


def test_a_missing_model_is_not_retried(facts: dict[str, Any]) -> None:
    """The unit fails with 66, says why in status and journal, and systemd does not start it again."""
    missing = facts["missing"]

    assert (missing["ActiveState"], missing["ExecMainStatus"], missing["NRestarts"]) == ("failed", "66", "0")
    assert missing["StatusText"] == "failed: ASD-M02 /var/lib/ascendd/models/none does not exist"
    assert "remedy: Give the folder written by `ascendd convert`" in missing["journal"]


def test_the_journal_knows_the_priorities(facts: dict[str, Any]) -> None:
    """Lines of every process carry their level into the journal, so that `journalctl -p err` shows what went wrong."""
    priorities = facts["journal"]

    assert priorities["supervisor.serving"] == "6"
    assert priorities["supervisor.child_ended"] == "3"
    assert priorities["api.engine_gone"] == "4"


@pytest.mark.parametrize("folder", ["/", "/tmp/", "/var/../tmp", "/var"])
def test_the_lab_binds_nothing_that_a_boot_empties(folder: str, tmp_path: Path) -> None:
    """A booted machine deletes what is in its /tmp; through a bind that would be this machine's."""
    command = [shutil.which("bash") or "bash", str(LAB), "--bind", folder, "--", "true"]
    for tool in ("realpath", "id"):  # without systemd-nspawn, so that nothing boots, whatever the answer
        (tmp_path / tool).symlink_to(shutil.which(tool) or tool)
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={"PATH": str(tmp_path)})

    assert done.returncode == NOT_BOOTED
    assert done.stderr == f"systemd-lab: {folder} is emptied at boot: bind a folder in it instead\n"
