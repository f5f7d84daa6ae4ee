"""
Runs as root inside a throw-away machine with a real systemd: installs the units, lives through their life, tells facts.

    systemd_driver.py REPOSITORY BIN_FOLDER RESULT_FILE

BIN_FOLDER has the `ascendd` and `python` to use. RESULT_FILE gets the facts as JSON; nothing is judged here.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from systemd_features import activation, control, reported
from systemd_machine import (
    DEADLINE_S,
    METRICS_PORT,
    MISSING_UNIT,
    PORT,
    REPORT,
    SOCKET,
    UNIT,
    Stream,
    children,
    exists,
    post,
    run,
    show,
    state,
    wait,
)


def install(repository: Path, bin_folder: Path) -> dict[str, Any]:
    """Put units, user, folders, a model and two instances in place."""
    os.chmod("/root", 0o711)  # where an interpreter of a developer's machine lives; the overlay forgets it
    opt = Path("/opt/ascendd/current/bin")
    opt.mkdir(parents=True)
    (opt / "ascendd").symlink_to(bin_folder / "ascendd")
    units = Path("/etc/systemd/system")
    for file in (repository / "systemd").glob("ascendd*"):
        shutil.copy(file, units / file.name)
    shutil.copy(repository / "systemd/sysusers.d/ascendd.conf", "/usr/lib/sysusers.d/ascendd.conf")
    shutil.copy(repository / "systemd/tmpfiles.d/ascendd.conf", "/usr/lib/tmpfiles.d/ascendd.conf")
    # The interpreter is below /root here, and a watchdog of 30 s would make the test wait that long.
    drop_in = units / "ascendd@.service.d"
    drop_in.mkdir()
    # What is below /tmp and /var/tmp is hidden by PrivateTmp as an interpreter in a home is by ProtectHome.
    private = ("/tmp", "/var/tmp")
    below_tmp = [folder for folder in (repository, bin_folder.parent) if any(map(folder.is_relative_to, private))]
    bind = "".join(f"BindReadOnlyPaths={folder}\n" for folder in below_tmp)
    (units / "ascendd-report@.service.d").mkdir()
    (units / "ascendd-report@.service.d" / "lab.conf").write_text(f"[Service]\nProtectHome=read-only\n{bind}")
    (drop_in / "lab.conf").write_text(f"[Service]\nProtectHome=read-only\nWatchdogSec=10\nRestartSec=1\n{bind}")
    sysusers = run("systemd-sysusers", "ascendd.conf")
    tmpfiles = run("systemd-tmpfiles", "--create", "ascendd.conf")
    model = Path("/var/lib/ascendd/models/qwen2")
    subprocess.run([bin_folder / "python", repository / "tests/system/tiny_qwen2.py", model], check=True)
    run("chown", "-R", "ascendd:ascendd", str(model))
    instances = Path("/etc/ascendd/instances")
    text = (
        f"listen: {{port: {PORT}}}\nmetrics: {{port: {METRICS_PORT}}}\nengine: {{max_num_blocks: 2048, device: cpu}}\n"
    )
    (instances / "qwen2.yaml").write_text(
        f"model: {{path: {model}}}\n{text}recovery: {{backoff_min_s: 1, drain_timeout_s: 600}}\n"
    )
    (instances / "missing.yaml").write_text(f"model: {{path: /var/lib/ascendd/models/none}}\n{text}")
    for file in instances.iterdir():
        shutil.chown(file, "root", "ascendd")
    run("systemctl", "daemon-reload")
    verify = run("systemd-analyze", "verify", UNIT, SOCKET, REPORT, "ascendd.slice")
    return {
        "sysusers": sysusers,
        "tmpfiles": tmpfiles,
        "verify": [line for line in verify.splitlines() if "ascendd" in line],
        "instances_mode": oct(instances.stat().st_mode & 0o7777),
    }


def start() -> dict[str, Any]:
    """Start the instance and watch state and API until it is active."""
    started = time.monotonic()
    run("systemctl", "start", "--no-block", UNIT)
    # --no-block returns once the job is queued; a busy machine takes it up later.
    wait(lambda: state() != "inactive", "the begin of the start")
    seen: list[tuple[str, int]] = []
    texts: list[str] = []
    while time.monotonic() - started < DEADLINE_S:
        status = post().status  # asked first: what is answered after `active` was seen proves nothing
        now = show(UNIT, "ActiveState", "StatusText")
        if not seen or seen[-1] != (now["ActiveState"], status):
            seen.append((now["ActiveState"], status))
        if not texts or texts[-1] != now.get("StatusText", ""):
            texts.append(now.get("StatusText", ""))
        if now["ActiveState"] in ("active", "failed"):
            break
        time.sleep(0.05)
    took_s = time.monotonic() - started
    return {"seen": seen, "texts": texts, "took_s": took_s, "first_after": post().status, "pids": children()}


def security(pids: dict[str, int]) -> dict[str, Any]:
    """Read what the hardening amounts to, as systemd and the kernel see it."""
    # The engine reports once a second.
    wait(_shows_a_ready_engine, "a ready engine's figures on /metrics")
    status = Path(f"/proc/{pids['engine']}/status").read_text()
    fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    return {
        "exposure": run("systemd-analyze", "security", UNIT, "--no-pager").splitlines()[-1],
        "report_exposure": run("systemd-analyze", "security", REPORT, "--no-pager").splitlines()[-1],
        "user": run("ps", "-o", "user=", "-p", str(pids["engine"])).strip(),
        "nice": run("ps", "-o", "ni=", "-p", str(pids["engine"])).strip(),
        "no_new_privs": fields["NoNewPrivs"].strip(),
        "capabilities": fields["CapBnd"].strip(),
        "slice": show(UNIT, "Slice")["Slice"],
    }


def _shows_a_ready_engine() -> bool:
    time.sleep(0.5)  # /metrics refuses who asks too often
    text = get_metrics()
    return "vllm:num_requests_running" in text and "ascendd_instance_ready 1.0" in text


def get_metrics() -> str:
    """Return the page of the instance's metrics."""
    with socket.create_connection(("127.0.0.1", METRICS_PORT), DEADLINE_S) as sock:
        sock.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        data = b""
        while chunk := sock.recv(65536):
            data += chunk
    return data.decode()


def kill_engine() -> dict[str, Any]:
    """SIGKILL the engine under a running stream."""
    stream = Stream(4000)
    stream.start()
    assert stream.flowing.wait(DEADLINE_S), stream.answer.body[-500:]
    before = children()
    os.kill(before["engine"], signal.SIGKILL)
    killed = time.monotonic()
    wait(lambda: not exists(before["engine"]), "end of the engine")
    first = post()
    statuses = {first.status}

    def served() -> bool:
        statuses.add(post().status)
        return 200 in statuses

    wait(served, "service after the engine's death")
    back_s = time.monotonic() - killed
    stream.join(DEADLINE_S)
    after = children()
    return {
        "stream_end": stream.answer.body[-400:],
        "stream_status": stream.answer.status,
        "first": [first.status, first.retry_after],
        "statuses": sorted(statuses),
        "back_s": back_s,
        "same_supervisor": before["supervisor"] == after["supervisor"],
        "same_api": before["api"] == after["api"],
        "state": state(),
        "restarts_by_systemd": show(UNIT, "NRestarts")["NRestarts"],
    }


def kill_supervisor(number: signal.Signals) -> dict[str, Any]:
    """SIGKILL or SIGSTOP the supervisor: who is left, and does systemd bring it back."""
    before = children()
    restarts = int(show(UNIT, "NRestarts")["NRestarts"])
    os.kill(before["supervisor"], number)
    struck = time.monotonic()
    gone_s = wait(lambda: not any(map(exists, before.values())), "end of all processes")
    wait(lambda: int(show(UNIT, "NRestarts")["NRestarts"]) > restarts, "restart by systemd")
    wait(lambda: post().status == 200, "service after the restart")
    back_s = time.monotonic() - struck
    wait(lambda: state() == "active", "active after the restart")
    return {
        "gone_s": gone_s,
        "back_s": back_s,
        "state": state(),
        "left": [pid for pid in before.values() if exists(pid)],
    }


def stop() -> dict[str, Any]:
    """Stop the instance under a running stream."""
    stream = Stream(2000)
    stream.start()
    assert stream.flowing.wait(DEADLINE_S), stream.answer.body[-500:]
    pids = children()
    started = time.monotonic()
    run("systemctl", "stop", "--no-block", UNIT)
    wait(lambda: state() != "active", "deactivation")
    during = post().status
    is_open = stream.is_alive()
    stream.join(700)
    wait(lambda: state() in ("inactive", "failed"), "the stop", 700)
    return {
        "stream_end": stream.answer.body[-400:],
        "refused_while_draining": during,
        "was_open_then": is_open,
        "took_s": time.monotonic() - started,
        "state": state(),
        **show(UNIT, "Result", "ExecMainStatus"),
        "left": [pid for pid in pids.values() if exists(pid)],
    }


def missing_model() -> dict[str, Any]:
    """Start an instance whose model does not exist."""
    text = run("systemctl", "start", MISSING_UNIT)
    wait(lambda: state(MISSING_UNIT) == "failed", "the failure of the start")
    time.sleep(3.0)  # three times RestartSec: a restart would have happened
    shown = show(MISSING_UNIT, "ActiveState", "ExecMainStatus", "NRestarts", "StatusText", "Result")
    journal = run("journalctl", "-u", MISSING_UNIT, "-o", "cat", "--no-pager")
    wait(lambda: "incident" in reported() or "own last lines" in reported(), "the report of the failure")
    return {"start": text, "journal": journal[-1500:], "report": reported(), **shown}


def journal() -> dict[str, Any]:
    """Return how the journal understood the daemon's lines."""
    priorities: dict[str, str] = {}
    for line in run("journalctl", "-u", UNIT, "-o", "json", "--no-pager").splitlines():
        record = json.loads(line)
        message = record.get("MESSAGE")
        if isinstance(message, str) and message.startswith('{"timestamp"'):
            priorities.setdefault(json.loads(message)["event"], record["PRIORITY"])
    return priorities


def main(repository: str, bin_folder: str, result: str) -> int:
    """Collect all facts; what breaks is a fact, too."""
    facts: dict[str, Any] = {}
    try:
        facts["install"] = install(Path(repository), Path(bin_folder))
        facts["missing"] = missing_model()
        facts["start"] = start()
        facts["security"] = security(facts["start"]["pids"])
        facts["control"] = control()
        facts["kill_engine"] = kill_engine()
        facts["kill_supervisor"] = kill_supervisor(signal.SIGKILL)
        facts["watchdog"] = kill_supervisor(signal.SIGSTOP)
        facts["stop"] = stop()
        facts["activation"] = activation()
        facts["journal"] = journal()
    except Exception:
        facts["broken"] = traceback.format_exc() + run(
            "journalctl", "-u", "ascendd@*", "-n", "80", "-o", "cat", "--no-pager"
        )
    Path(result).write_text(json.dumps(facts, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
