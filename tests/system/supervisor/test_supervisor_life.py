"""Start, readiness and end of an instance: a real supervisor over fake engine and API."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time

import psutil
import pytest

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]

FAST = "recovery: {backoff_min_s: 0.1, backoff_max_s: 0.5}"


def test_a_host_without_memory_takes_no_new_work(start, eventually, tmp_path):
    """While tasks stand still for memory the API is told to refuse, and everybody why; what runs goes on."""
    (tmp_path / "proc" / "pressure").mkdir(parents=True)
    stall = tmp_path / "proc" / "pressure" / "memory"
    stall.write_text("some avg10=0.00 avg60=0.00 avg300=0.00 total=0\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n")
    daemon = start(timing={"tick_s": 0.1, "pressure_s": 0.1}, host=str(tmp_path)).wait_ready()

    before = daemon.ask()
    stall.write_text(
        "some avg10=61.00 avg60=0.00 avg300=0.00 total=0\nfull avg10=34.50 avg60=0.00 avg300=0.00 total=0\n"
    )
    during = eventually(lambda: (answer := daemon.ask())["pressure"] and answer, detail=daemon.log_text)

    assert before["pressure"] == ""
    assert during["pressure"] == "all tasks stood still for memory for 34 % of the last 10 s"
    assert during["ready"] is True
    eventually(lambda: daemon.statuses[-1].endswith(f"; no new requests: {during['pressure']}"))
    (line,) = daemon.events("supervisor.memory_pressure")
    assert line["level"] == "error"


def test_ready_comes_after_the_self_test(start, eventually, tmp_path):
    """While the engine loads, the status and the API tell how far; READY=1 comes only after a token came back."""
    gate = tmp_path / "gate"
    daemon = start(engine=[{"load_gate": str(gate)}])

    eventually(lambda: any(status.startswith("loading ") for status in daemon.statuses), detail=daemon.log_text)
    early = eventually(lambda: (answer := daemon.ask())["text"].startswith("loading ") and answer)
    assert "READY=1" not in daemon.states
    gate.touch()
    daemon.wait_ready()
    # Without the degradation that the metrics process is not up yet.
    eventually(lambda: daemon.statuses[-1] == f"serving tiny on 127.0.0.1:{daemon.api_port}", detail=daemon.log_text)
    states = daemon.states

    assert early["ready"] is False
    assert 1 <= early["retry"] <= 10
    assert states.count("READY=1") == 1
    # Checks on a busy host may take longer than the unit's limit for a start.
    assert states[states.index("STATUS=preflight") + 1].startswith("EXTEND_TIMEOUT_USEC=")
    assert states.index("STATUS=self-test") < states.index("READY=1")
    assert any(state.startswith("EXTEND_TIMEOUT_USEC=") for state in states[: states.index("READY=1")])
    eventually(lambda: daemon.ask()["ready"])


def test_a_failed_self_test_is_no_readiness(start, eventually):
    """An engine that loads and returns no token is restarted; the instance becomes ready with the next one."""
    daemon = start(api=[{"self_test_fault": True}, {}], engine=[{}], extra=FAST)
    # The API of the first start fails every test; it is replaced by a kill, the engine by the supervisor.
    daemon_events = daemon.events

    eventually(lambda: daemon_events("supervisor.self_test_failed"), detail=daemon.log_text)
    assert "READY=1" not in daemon.states
    daemon.kill("api")
    daemon.wait_ready()

    ended = [line for line in daemon_events("supervisor.child_ended") if line["child"] == "engine"]
    assert "ASD-E06" in ended[0]["reason"]


def test_the_end_is_a_drain(start, eventually, tmp_path):
    """SIGTERM: STOPPING=1, no new work, open work finishes, then engine, API and the rest leave, exit status 0."""
    gate = tmp_path / "gate"
    daemon = start(api=[{"drain_gate": str(gate)}], extra="recovery: {drain_timeout_s: 3600}").wait_ready()

    daemon.process.send_signal(signal.SIGTERM)
    eventually(lambda: daemon.ask()["draining"])
    eventually(lambda: not daemon.ask()["ready"])
    before_gate = daemon.process.poll()
    gate.touch()
    status = daemon.wait_exit()

    assert (before_gate, status) == (None, 0)
    assert daemon.states.index("STOPPING=1") > daemon.states.index("READY=1")
    assert "draining" in daemon.statuses


def test_a_second_signal_cuts_the_drain_short(start, eventually):
    """Whoever asks twice does not wait for the drain's deadline."""
    daemon = start(api=[{"drain_s": 3600.0}], extra="recovery: {drain_timeout_s: 3600}").wait_ready()

    daemon.process.send_signal(signal.SIGINT)
    eventually(lambda: daemon.ask()["draining"])
    daemon.process.send_signal(signal.SIGINT)

    assert daemon.wait_exit() == 0


def test_a_drain_has_an_end(start):
    """Work that does not finish is cut off at recovery.drain_timeout_s."""
    daemon = start(api=[{"drain_s": 3600.0}], extra="recovery: {drain_timeout_s: 0.5}").wait_ready()

    started = time.monotonic()
    daemon.process.send_signal(signal.SIGTERM)

    assert daemon.wait_exit() == 0
    assert time.monotonic() - started >= 0.5


def test_a_stop_while_loading_is_quick(start, eventually):
    """An instance that is not ready has nothing to drain, and does not wait for its load."""
    daemon = start(engine=[{"load_s": 3600.0}])
    eventually(lambda: daemon.statuses and daemon.statuses[-1].startswith("loading"), detail=daemon.log_text)

    daemon.process.send_signal(signal.SIGTERM)

    assert daemon.wait_exit() == 0


def test_a_child_that_ignores_shutdown_is_killed(start):
    """The grace of a child is bounded, so systemd never has to."""
    daemon = start(engine=[{"ignore_shutdown": True}], timing={"stop_grace_s": 1.0}).wait_ready()

    daemon.process.send_signal(signal.SIGTERM)

    assert daemon.wait_exit() == 0
    # On a busy machine the time may be too short for one that obeys, too.
    assert "engine" in [line["child"] for line in daemon.events("supervisor.child_killed")]


def test_a_taken_port_ends_the_start(start):
    """Exit status 71 with the address and its holder, before any process was started."""
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        daemon = start()
        daemon.process.kill()
        daemon.process.wait()
        config = daemon.folder / "instance.yaml"
        config.write_text(config.read_text().replace(str(daemon.api_port), str(port)))

        code, text = rerun(daemon)

    assert code == 71
    assert f"ASD-H02 api cannot listen on 127.0.0.1:{port}" in text
    assert f"pid {os.getpid()}" in text
    assert "child_started" not in text


def rerun(daemon):
    """Run the command of `daemon` again to its end and return status and output."""
    done = subprocess.run(daemon.process.args, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stderr


def test_a_missing_model_ends_the_start(start):
    """Exit status 66 with the folder's name, before any process was started."""
    daemon = start()
    daemon.process.kill()
    daemon.process.wait()
    (daemon.folder / "model" / "config.json").unlink()

    code, text = rerun(daemon)

    assert code == 66
    assert "ASD-M02" in text
    assert "child_started" not in text


def test_the_watchdog_is_fed_while_all_is_well(start, eventually):
    """WATCHDOG=1 comes at half the interval."""
    daemon = start(environ={"WATCHDOG_USEC": "1000000"}).wait_ready()
    count = daemon.states.count("WATCHDOG=1")

    started = time.monotonic()
    eventually(lambda: daemon.states.count("WATCHDOG=1") >= count + 4)

    assert time.monotonic() - started >= 1.0


def test_children_have_no_way_to_speak_for_the_unit(start):
    """Neither NOTIFY_SOCKET nor a secret of the environment reaches a child; standard input is empty."""
    daemon = start(environ={"HF_TOKEN": "hidden"}).wait_ready()

    for role in ("engine", "api", "metrics"):
        process = psutil.Process(daemon.pid(role))
        assert {"NOTIFY_SOCKET", "HF_TOKEN"} & set(process.environ()) == set()
        assert os.readlink(f"/proc/{process.pid}/fd/0") == "/dev/null"
    assert psutil.Process(daemon.pid("engine")).nice() == 5
    assert json.dumps(daemon.log_text()).count("hidden") == 0


def test_an_idle_supervisor_is_small(start):
    """Resident memory stays below 60 MB and an idle second costs less than a hundredth of a core."""
    daemon = start().wait_ready()
    process = psutil.Process(daemon.process.pid)
    share = 1.0
    for _ in range(12):  # what belongs to the start may take a while on a busy machine
        before, started = process.cpu_times(), time.monotonic()
        time.sleep(5.0)  # measured over a time, so a time has to pass
        after, took_s = process.cpu_times(), time.monotonic() - started
        share = min(share, (after.user + after.system - before.user - before.system) / took_s)
        if share < 0.02:
            break
    rss_mb = process.memory_info().rss / 1e6
    print(f"supervisor: {rss_mb:.1f} MB resident, {share * 100:.2f} % of a core idle")

    assert rss_mb < 60
    assert share < 0.02  # 1 % measured over 20 s; a clock tick of 10 ms is coarse over 5 s
