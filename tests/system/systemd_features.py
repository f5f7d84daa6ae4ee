"""What an operator sets up beside the unit itself: the control socket, a listener of systemd's, keys by LoadCredential."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any

from systemd_machine import KEY, REPORT, SOCKET, UNIT, children, exists, post, run, show, state, wait

ASCENDD = "/opt/ascendd/current/bin/ascendd"


def reported() -> str:
    """Return what the report unit wrote."""
    return run("journalctl", "-u", REPORT, "-o", "cat", "--no-pager")


def control() -> dict[str, Any]:
    """Ask over the control socket as root and as nobody, and reload while systemd logs what it hears."""
    listed = json.loads(run(ASCENDD, "status", "qwen2", "--json"))[0]
    path = Path("/run/ascendd/qwen2/control.sock")
    run("systemd-analyze", "log-level", "debug")
    reload = run("systemctl", "reload", UNIT)
    wait(lambda: "supervisor.reloaded" in run("journalctl", "-u", UNIT, "-o", "cat", "--no-pager"), "the reload")
    wait(lambda: "RELOADING=1" in _heard(), "RELOADING=1 in the manager's log")
    run("systemd-analyze", "log-level", "info")
    return {
        "phase": listed["phase"],
        "roles": sorted(row["role"] for row in listed["processes"]),
        "mode": oct(path.stat().st_mode & 0o777),
        "owner": path.owner(),
        "reload": reload,
        "heard": [line for line in _heard().splitlines() if "RELOADING=1" in line],
        "refused": run("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", ASCENDD, "status", "qwen2"),
        "state": state(),
    }


def _heard() -> str:
    return run("journalctl", "_PID=1", "-o", "cat", "--no-pager", "-g", "notification message")


def activation() -> dict[str, Any]:
    """
    Let systemd hold the listener, and give the instance keys that root alone can read.

    The first request starts the instance and is answered by it; a restart refuses nobody.
    """
    file = Path("/etc/ascendd/keys/qwen2")
    file.write_text(f"{KEY}\n")
    file.chmod(0o600)
    run("systemctl", "reset-failed", UNIT)
    socket_started = run("systemctl", "start", SOCKET)
    before = state()
    began = time.monotonic()
    first = post(key=KEY).status
    first_s = time.monotonic() - began
    wait(lambda: state() == "active", "active by its socket")
    without = post().status
    passed = '"listener": "api", "address": "127.0.0.1:8000", "by_systemd": true' in run(
        "journalctl", "-u", UNIT, "-o", "cat", "--no-pager"
    )
    pids = children()
    in_environment = KEY in Path(f"/proc/{pids['supervisor']}/environ").read_text()
    restart = subprocess.Popen(["systemctl", "restart", UNIT])
    answers = []
    began = time.monotonic()
    while restart.poll() is None:
        answers.append((round(time.monotonic() - began, 2), post(key=KEY)))
    answers.append((round(time.monotonic() - began, 2), post(key=KEY)))
    pids |= children()
    # The socket first: a request in between would start the instance again.
    run("systemctl", "stop", SOCKET)
    run("systemctl", "stop", UNIT)
    return {
        "socket": socket_started,
        "before": before,
        "first": first,
        "first_s": first_s,
        "without_key": without,
        "in_environment": in_environment,
        "passed": passed,
        "during_restart": sorted({answer.status for _at_s, answer in answers}),
        "lost_in_restart": [(at_s, answer.head) for at_s, answer in answers if answer.status <= 0],
        "left": [pid for pid in pids.values() if exists(pid)],
        "slice": show(SOCKET, "Slice")["Slice"],
    }
