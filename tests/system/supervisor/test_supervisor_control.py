"""The control socket and SIGHUP, as operators use them on a real supervisor with fake children."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]


@pytest.fixture
def served(start, tmp_path):
    """A daemon with a runtime folder, as systemd gives one, and what asks it."""
    runtime = tmp_path / "runtime"
    runtime.mkdir()
    made = start(environ={"RUNTIME_DIRECTORY": str(runtime)}).wait_ready()

    def ask(**request):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(180)
            sock.connect(str(runtime / "control.sock"))
            sock.sendall(json.dumps(request).encode() + b"\n")
            return json.loads(sock.makefile().readline())

    return made, ask


def run_cli(runtime: Path, *args: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run `ascendd` against the daemon."""
    env = {**os.environ, "RUNTIME_DIRECTORY": str(runtime), **environ}
    return subprocess.run(
        [sys.executable, "-m", "ascendd", *args], capture_output=True, text=True, env=env, check=False, timeout=120
    )


def test_an_instance_is_asked_held_restarted_and_changed(served, tmp_path, eventually) -> None:
    """One life: status, drain and resume, a restart that counts as no failure, a log level for all processes."""
    made, ask = served
    path = tmp_path / "runtime/control.sock"

    assert stat.S_IMODE(path.stat().st_mode) == 0o660
    status = ask(verb="status")
    assert (status["ok"], status["phase"], status["held"], status["last_incident"]) == (True, "serving", False, None)
    assert {row["role"] for row in status["processes"]} == {"supervisor", "engine", "api", "metrics"}
    assert all(row["pid"] and row["rss_bytes"] > 0 for row in status["processes"])

    assert ask(verb="drain")["held"]
    eventually(lambda: made.ask()["held"])
    api = made.pid("api")
    assert ask(verb="restart", role="api")["pid"] == api
    made.wait_restarted("api", api)
    eventually(lambda: made.ask()["held"], detail=made.log_text)  # the new process holds, too
    assert not ask(verb="resume")["held"]
    eventually(lambda: not made.ask()["held"])

    engine = made.pid("engine")
    ask(verb="restart")
    made.wait_restarted("engine", engine)
    eventually(lambda: made.ask()["ready"], detail=made.log_text)
    assert made.events("supervisor.child_ended") == []
    assert "ascendd_child_restarts_total" not in "".join(
        key for key, value in made.metrics().items() if value and 'child="engine"' in key
    )

    assert ask(verb="log-level", level="debug") == {"ok": True, "level": "debug"}
    eventually(lambda: made.ask()["config"].get("log", {}).get("level") == "debug")

    for request, text in (({"verb": "fly"}, "not known"), ({"verb": "log-level", "level": "loud"}, "not a log level"),
                          ({"verb": "restart", "role": "cook"}, "no process 'cook'")):  # fmt: skip
        reply = ask(**request)
        assert not reply["ok"]
        assert text in reply["error"]
        assert reply["remedy"]

    shown = run_cli(tmp_path / "runtime", "status", "fake")
    assert shown.returncode == 0, shown.stderr
    assert "fake: serving" in shown.stdout
    assert "incident none since the start" in shown.stdout
    assert json.loads(run_cli(tmp_path / "runtime", "status", "fake", "--json").stdout)[0]["instance"] == "fake"

    made.process.send_signal(signal.SIGTERM)
    assert made.wait_exit() == 0
    assert not path.exists()


def test_a_crash_is_told_and_pinned(start, tmp_path, eventually) -> None:
    """Status names the process, its end and its episode; a bundle has the last lines of all, and `report` shows it."""
    runtime, folder = tmp_path / "runtime", tmp_path / "daemon0"
    runtime.mkdir()
    made = start(
        engine=[{"out_of_memory_after_s": 0.5}, {}],
        extra=f"log: {{file: {folder / 'logs' / 'log'}}}",
        environ={"RUNTIME_DIRECTORY": str(runtime)},
    )
    made.wait_ready()
    pinned = folder / "run/ascendd/fake/incidents"
    found = eventually(lambda: list(pinned.glob("*.json")), detail=made.log_text)
    assert len(found) == 1, made.log_text()
    path = found[0]
    env = {"XDG_RUNTIME_DIR": str(folder / "run")}
    listed = json.loads(run_cli(runtime, "report", "fake", "--json", **env).stdout)
    shown = run_cli(runtime, "report", "fake", "--last", **env)
    status = json.loads(run_cli(runtime, "status", "fake", "--json", **env).stdout)[0]["last_incident"]

    assert [entry["path"] for entry in listed] == [str(path)]
    assert (status["episode"], status["child"], status["unix_s"]) == (path.stem, "engine", listed[0]["unix_s"])
    bundle = json.loads(path.read_text())
    assert bundle["fault"]["code"] == "ASD-D03"
    assert "DeviceOutOfMemory" in bundle["fault"]["traceback_text"]
    assert any("supervisor.child_ready" in line for line in bundle["lines"]["supervisor"])
    assert bundle["memory_curve"][0]["supervisor"] > 0
    assert shown.returncode == 0, shown.stderr
    assert "engine failed with ASD-D03" in shown.stdout
    assert "last lines of supervisor:" in shown.stdout
    bundle_bytes = float(path.stat().st_size)
    page = eventually(
        lambda: page if (page := made.metrics()).get("ascendd_incident_bundle_bytes") == bundle_bytes else None,
        detail=made.log_text,
    )
    assert page['ascendd_incidents_total{cause="fault",role="engine"}'] == 1
    assert page["ascendd_incident_bundles_lost_total"] == 0


def test_logs_beyond_the_budget_are_removed_oldest_first(start, tmp_path, eventually) -> None:
    """Rotated files and the vendor's own logs share one budget; the files of another instance stay."""
    logs = tmp_path / "daemon0/logs"
    vendor, foreign = tmp_path / "all/fake/ascend/debug/plog-1.log", tmp_path / "all/other/ascend/plog-2.log"
    for path in (vendor, foreign):
        path.parent.mkdir(parents=True)
        path.write_bytes(b"x" * 400_000)
        os.utime(path, (1_000_000, 1_000_000))
    extra = f"log: {{file: {logs}/log, budget: 300KB}}"
    made = start(extra=extra, environ={"LOGS_DIRECTORY": str(tmp_path / "all")})
    (event,) = eventually(
        lambda: [
            json.loads(line)
            for line in ((logs / "log").read_text() if (logs / "log").exists() else "").splitlines()
            if '"supervisor.logs_removed"' in line
        ],
        detail=made.log_text,
    )

    assert (event["num_removed"], event["budget_bytes"]) == (1, 300_000)
    page = eventually(
        lambda: page if (page := made.metrics()).get("ascendd_log_files_removed_total") == 1 else None,
        detail=made.log_text,
    )
    assert page["ascendd_log_bytes"] <= page["ascendd_log_budget_bytes"] == 300_000
    assert (vendor.exists(), foreign.exists()) == (False, True)


def test_a_stranger_is_refused_by_the_kernels_word(served, tmp_path) -> None:
    """Another user gets an error even where the socket's mode would let it through."""
    if os.geteuid() != 0:
        pytest.skip("becoming another user needs root")
    path = tmp_path / "runtime/control.sock"
    path.chmod(0o666)
    for folder in (path.parent, *path.parent.parents):
        if folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o011)
    code = (
        "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); "
        's.sendall(b\'{"verb": "drain"}\\n\'); print(s.makefile().readline())'
    )
    done = subprocess.run(
        ["/usr/bin/python3", "-I", "-c", code, str(path)],
        user=65534, group=65534, extra_groups=[], capture_output=True, text=True, check=True, cwd="/", timeout=120,
    )  # fmt: skip

    reply = json.loads(done.stdout)
    assert (reply["ok"], reply["code"]) == (False, "ASD-H03")
    assert "user 65534 may not control" in reply["error"]
    assert not served[1](verb="status")["held"]


def test_sighup_takes_up_what_may_change_and_names_the_rest(start, tmp_path, eventually) -> None:
    """RELOADING with the time, then READY; limits change at once, a port is named as one that needs a restart."""
    runtime = tmp_path / "runtime"
    runtime.mkdir()
    made = start(environ={"RUNTIME_DIRECTORY": str(runtime)}).wait_ready()
    config = made.folder / "instance.yaml"
    good = config.read_text()
    config.write_text(good + "admission: {max_queue: 7}\nengine: {max_num_seqs: 3}\n")
    made.process.send_signal(signal.SIGHUP)

    (event,) = eventually(lambda: made.events("supervisor.reloaded"), detail=made.log_text)
    assert (event["applied"], event["needs_restart"]) == (["admission.max_queue"], ["engine.max_num_seqs"])
    reloading = eventually(lambda: [n for n, state in enumerate(made.states) if state.startswith("RELOADING=1\n")])
    assert made.states[reloading[0]].split("\n")[1].startswith("MONOTONIC_USEC=")
    eventually(lambda: "READY=1" in made.states[reloading[0] :])
    sent = eventually(lambda: made.ask()["config"])
    assert (sent["admission"]["max_queue"], sent["engine"]["max_num_seqs"]) == (7, 64)
    shown = run_cli(runtime, "reload", "fake")
    assert "needs a restart: engine.max_num_seqs" in shown.stdout

    config.write_text("model: [")
    broken = run_cli(runtime, "reload", "fake")
    assert broken.returncode == 78
    assert made.ask()["ready"]
    assert made.events("supervisor.reload_failed")
