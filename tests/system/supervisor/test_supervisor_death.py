"""Each process of an instance dies or hangs; the table of docs/ARCHITECTURE.md, on a real supervisor with fakes."""

from __future__ import annotations

import json
import os
import signal
import time

import psutil
import pytest

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]

FAST = "recovery: {backoff_min_s: 0.1, backoff_max_s: 0.5}"


def test_a_killed_engine_comes_back(start, eventually, tmp_path):
    """SIGKILL: the API says that it restarts and when to retry; the new engine passes a self-test of its own first."""
    gate = tmp_path / "gate"
    daemon = start(engine=[{}, {"load_gate": str(gate)}], extra=FAST).wait_ready()
    api = daemon.pid("api")

    old = daemon.kill("engine")
    down = eventually(lambda: (answer := daemon.ask())["ready"] is False and answer)
    gate.touch()
    daemon.wait_restarted("engine", old)
    eventually(lambda: daemon.ask()["ready"])

    assert "SIGKILL" in down["text"] or "loading" in down["text"]
    assert down["retry"] >= 1
    assert daemon.pid("api") == api
    assert len(daemon.events("supervisor.self_test_passed")) == 2
    eventually(lambda: daemon.statuses[-1].startswith("serving "))
    assert any(status.startswith("degraded: engine was killed by SIGKILL") for status in daemon.statuses)
    assert daemon.states.count("READY=1") == 1


def test_every_failure_has_an_id_until_it_is_over(start, eventually, tmp_path):
    """From the end of a child until all is well its lines have one id, those of the next start too; the next has another."""
    gates = [tmp_path / "first", tmp_path / "second"]
    daemon = start(engine=[{}, *({"load_gate": str(gate)} for gate in gates)], extra=FAST).wait_ready()

    seen = []
    for gate in gates:
        daemon.kill("engine")
        seen.append(eventually(lambda: daemon.ask()["episode"]))
        gate.touch()
        eventually(lambda: (answer := daemon.ask())["ready"] and not answer["episode"], detail=daemon.log_text)
    lines = [line for line in daemon.all_events() if line["event"].startswith("supervisor.")]
    ends = [line for line in lines if line["event"] == "supervisor.child_ended"]
    overs = [line for line in lines if line["event"] == "supervisor.episode_over"]

    assert len(set(seen)) == 2
    assert [line["episode"] for line in ends] == [line["episode"] for line in overs] == seen
    for end, over, episode in zip(ends, overs, seen, strict=True):
        during = lines[lines.index(end) : lines.index(over) + 1]
        assert {line.get("episode") for line in during} == {episode}
        assert {"supervisor.restart", "supervisor.child_started", "supervisor.self_test_passed"} <= {
            line["event"] for line in during
        }
    assert "episode" not in lines[0]


def test_counters_go_on_over_a_restart(start, eventually):
    """The engine's counters on /metrics never go back, and the restart is counted."""
    daemon = start(extra=FAST).wait_ready()
    before = eventually(lambda: daemon.metrics().get("ascendd_engine_steps_total"))

    old = daemon.kill("engine")
    daemon.wait_restarted("engine", old)
    page = eventually(lambda: (page := daemon.metrics()).get("ascendd_engine_steps_total", 0) > before and page)

    assert page['ascendd_child_restarts_total{role="engine"}'] == 1
    assert eventually(lambda: daemon.metrics()["ascendd_instance_ready"] == 1)
    assert daemon.metrics()["ascendd_snapshot_age_seconds"] < 5


def test_a_killed_api_keeps_its_port(start, eventually):
    """Connections made while the API is down wait in the backlog and are answered by the next one; the engine stays."""
    daemon = start(api=[{}, {"load_s": 0.5}]).wait_ready()
    engine = daemon.pid("engine")

    old = daemon.kill("api")
    eventually(lambda: not psutil.pid_exists(old))  # a process that is still dying may take a connection with it
    answer = daemon.ask()
    daemon.wait_restarted("api", old)
    eventually(lambda: daemon.ask()["ready"])

    assert answer["pid"] != old
    assert daemon.pid("engine") == engine
    # The new API is told that the proven engine serves, and proves the path again.
    eventually(lambda: len(daemon.events("supervisor.self_test_passed")) == 2, detail=daemon.log_text)


@pytest.mark.parametrize("role", ["metrics"])
def test_a_killed_helper_disturbs_nobody(start, eventually, role):
    """The metrics process is restarted at once while engine and API go on."""
    daemon = start().wait_ready()
    others = {daemon.pid("engine"), daemon.pid("api")}

    old = daemon.kill(role)
    daemon.wait_restarted(role, old)

    assert {daemon.pid("engine"), daemon.pid("api")} == others
    assert daemon.ask()["ready"] is True
    assert eventually(lambda: daemon.metrics().get('ascendd_child_restarts_total{role="metrics"}')) == 1


def test_a_hung_step_is_ended_with_the_stacks_of_all(start):
    """A step beyond its deadline: ready is withdrawn, every process writes its stacks, and a new engine is started."""
    daemon = start(engine=[{"hang_after_s": 0.5}, {}], extra=FAST, deadlines={"step_s": 1.0}, timing={"tick_s": 0.2})
    daemon.wait_ready()
    old = daemon.pid("engine")

    daemon.wait_restarted("engine", old)

    assert any(status.startswith("degraded: engine hangs (step ") for status in daemon.statuses)
    stacks = {line["child"]: line["stacks"] for line in daemon.events("supervisor.stacks")}
    # One whole dump of all threads a process: the supervisor's loop, the exporter, the fake API, the hung engine.
    places = {"supervisor": "watch.py", "metrics": "exporter.py", "api": "fake_role.py", "engine": "fake_role.py"}
    assert stacks.keys() == places.keys()
    for role, place in places.items():
        assert place in stacks[role], role
        assert "(most recent call first)" in stacks[role], role
    (hung,) = daemon.events("supervisor.child_hung")
    assert "its deadline is 1 s" in hung["reason"]
    (ended,) = daemon.events("supervisor.child_ended")
    assert (ended["cause"], ended["status"]) == ("hung", -signal.SIGABRT)


def test_a_load_that_does_not_go_forward_is_a_hang(start):
    """Heartbeats and the same fraction again and again are no progress: the engine is ended and started again."""
    # The deadline is every child's, and a real one takes a moment for its imports.
    daemon = start(
        engine=[{"load_s": 600.0, "stuck_at": 0.001}, {}],
        extra=FAST,
        deadlines={"loading_s": 6.0},
        timing={"tick_s": 0.2},
    )
    daemon.wait_ready()

    (hung,) = [line for line in daemon.events("supervisor.child_hung") if line["child"] == "engine"]
    assert "no sign of progress for 6 s while loading" in hung["reason"]
    assert daemon.events("supervisor.restart")[0]["failure"] == "hang"
    extensions = [state for state in daemon.states if state.startswith("EXTEND_TIMEOUT_USEC=")]
    assert len(extensions) < 40  # not ten times a second, as it speaks, for as long as nothing moves


@pytest.mark.parametrize("how", ["mute", "stopped"])
def test_a_silent_child_is_ended(start, how):
    """No heartbeat within its deadline: killed even where it was stopped by SIGSTOP and cannot handle SIGABRT."""
    plan = [{"mute_after_s": 0.5}, {}] if how == "mute" else [{}]
    # The deadline is every child's; a real one speaks once a second, where it gets the processor.
    daemon = start(
        engine=plan, extra=FAST, deadlines={"heartbeat_s": 6.0}, timing={"tick_s": 0.2, "abort_grace_s": 0.3}
    )
    daemon.wait_ready()
    old = daemon.pid("engine")
    if how == "stopped":
        os.kill(old, signal.SIGSTOP)

    daemon.wait_restarted("engine", old)

    (hung,) = [line for line in daemon.events("supervisor.child_hung") if line["pid"] == old]
    assert "no heartbeat for" in hung["reason"]
    (stacks,) = [line["stacks"] for line in daemon.events("supervisor.stacks") if line["child"] == "engine"]
    assert ("it does not answer" in stacks) == (how == "stopped")


@pytest.mark.parametrize(
    ("fault", "code"), [("ModelUnsupported", 66), ("ConfigInvalid", 78), ("PermissionMissing", 71)]
)
def test_a_permanent_fault_is_never_retried(start, fault, code):
    """The instance ends with the exit status of the error, its words in the status, and no second start."""
    daemon = start(engine=[{"fault": fault}])

    assert daemon.wait_exit() == code
    assert len([line for line in daemon.events("supervisor.child_started") if line["child"] == "engine"]) == 1
    (failed,) = daemon.events("supervisor.failed")
    assert (failed["error"], failed["remedy"]) == ("engine was told to fail", "Tell it otherwise.")
    assert daemon.statuses[-1] == f"failed: {failed['code']} engine was told to fail"
    assert "READY=1" not in daemon.states


def test_an_engine_without_memory_gets_a_smaller_cache_twice(start, eventually, tmp_path):
    """The cache is x 0.9 at each start; the third end in the window fails the instance with what to lower."""
    gate = tmp_path / "gate"
    daemon = start(engine=[{"out_of_memory_gate": str(gate)}], extra=FAST)
    for num_starts in (1, 2, 3):
        eventually(lambda n=num_starts: len(daemon.events("supervisor.self_test_passed")) == n, detail=daemon.log_text)
        eventually(lambda: daemon.ask()["ready"], detail=daemon.log_text)
        gate.touch()

    assert daemon.wait_exit() == 70
    ready = [event["num_blocks"] for event in daemon.events("supervisor.child_ready") if event["child"] == "engine"]
    assert ready == [100, 90, 81]
    assert any("; degraded: KV cache of 81 blocks since the device ran out" in status for status in daemon.statuses)
    failed = daemon.events("supervisor.failed")[-1]
    assert failed["code"] == "ASD-D03"
    assert "out of device memory 3 times within" in failed["error"]
    assert "gpu_memory_utilization" in failed["remedy"]


def test_an_engine_waits_until_nobody_holds_its_device(start, eventually, tmp_path):
    """B70: no start while a process of the old engine is left: everybody is told who it is, and a free device starts it."""
    reading = tmp_path / "reading.json"
    daemon = start(extra=FAST, timing={}, reading=str(reading)).wait_ready()
    reading.write_text(json.dumps({"holders": ["python3 (pid 4711) on /dev/davinci0"]}))

    old = daemon.kill("engine")
    held = eventually(lambda: "4711" in (answer := daemon.ask())["text"] and answer, detail=daemon.log_text)
    starts = len(daemon.events("supervisor.child_started"))
    reading.unlink()
    daemon.wait_restarted("engine", old)
    eventually(lambda: daemon.ask()["ready"])

    assert held["ready"] is False
    assert held["text"].endswith("not restarted yet: the device is still held by python3 (pid 4711) on /dev/davinci0")
    assert any("4711" in status for status in daemon.statuses)
    assert starts == len(daemon.events("supervisor.child_started")) - 1
    assert daemon.events("supervisor.devices_released")


def test_a_device_that_is_never_released_ends_the_instance(start, tmp_path):
    """After recovery.release_timeout_s the instance fails with 70 and names the process that holds the chip."""
    reading = tmp_path / "reading.json"
    extra = FAST.replace("}", ", release_timeout_s: 0.5}")
    daemon = start(extra=extra, timing={}, reading=str(reading)).wait_ready()
    reading.write_text(json.dumps({"holders": ["vllm (pid 4711) on NPU 0 chip 0"]}))

    daemon.kill("engine")

    assert daemon.wait_exit() == 70
    (failed,) = daemon.events("supervisor.failed")
    assert failed["code"] == "ASD-D02"
    assert "held by vllm (pid 4711) on NPU 0 chip 0" in failed["error"]


def test_a_killed_engine_leaves_no_worker_behind(start, eventually):
    """What the old engine had started in its group is gone before the next one starts."""
    daemon = start(engine=[{"worker": True}, {}], extra=FAST).wait_ready()
    old = daemon.pid("engine")
    (worker,) = psutil.Process(old).children()

    daemon.kill("engine")
    daemon.wait_restarted("engine", old)

    assert not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE
    (released,) = daemon.events("supervisor.devices_released")
    assert released["after_s"] >= 0


def test_too_many_deaths_end_the_instance(start):
    """After max_restarts in the window the daemon gives up with 70 and names the last failure."""
    daemon = start(engine=[{"exit": 1}], extra="recovery: {backoff_min_s: 0.05, backoff_max_s: 0.1, max_restarts: 2}")

    assert daemon.wait_exit() == 70
    assert len([line for line in daemon.events("supervisor.child_started") if line["child"] == "engine"]) == 3
    (failed,) = daemon.events("supervisor.failed")
    assert failed["code"] == "ASD-E07"
    assert "engine exited with status 1; 3 failures within 600 s, 2 restarts are allowed" in failed["error"]


def test_restarts_wait_longer_each_time(start):
    """The delays of a crashing engine double."""
    daemon = start(
        engine=[{"crash_after_s": 0.0}], extra="recovery: {backoff_min_s: 0.2, backoff_max_s: 10, max_restarts: 3}"
    )

    assert daemon.wait_exit() == 70
    delays = [line["delay_s"] for line in daemon.events("supervisor.restart") if line["child"] == "engine"]
    assert [round(delay / 0.2, 1) for delay in delays] == pytest.approx([1, 2, 4], rel=0.11)
    assert "SIGSEGV" in daemon.events("supervisor.child_ended")[0]["reason"]


def test_a_killed_supervisor_leaves_nobody(start, eventually):
    """SIGKILL of the supervisor ends every child within moments, also one that is stuck in its load."""
    daemon = start().wait_ready()
    loading = start(engine=[{"load_s": 600.0}])
    eventually(lambda: loading.statuses and loading.statuses[-1].startswith("loading"), detail=loading.log_text)

    for one in (daemon, loading):
        one.process.kill()
        one.process.wait()
    started = time.monotonic()
    eventually(lambda: not daemon.leftovers() and not loading.leftovers())

    print(f"all children gone {time.monotonic() - started:.2f} s after kill -9 of their supervisors")
