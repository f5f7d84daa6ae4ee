"""
Who dies how, and when: every process x every way x every phase, with real processes and real signals.

Each row says what a client got, whether the instance came back by itself, and prints after how long. Nothing may be left
behind by any. The supervisor's rows have the test for a service manager, which starts a daemon that died again and kills
one that stopped; tests/system/test_systemd.py has rows of it under a real one.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import time
from dataclasses import dataclass

import psutil
import pytest

from ascendd.ipc.messages import Role

pytestmark = [pytest.mark.system, pytest.mark.timeout(1800)]

PROCESSES = ("supervisor", *(role.value for role in Role), "rank")
WAYS = ("SIGKILL", "SIGSTOP", "SIGSEGV", "exception")
PATIENCE_S = 240.0
PHASES = ("idle", "load", "prefill", "decode", "drain")
# Quick and different from each other; the others take minutes together.
DEFAULT = {("engine", "SIGSEGV", "prefill"), ("logwriter", "SIGKILL", "decode"), ("api", "exception", "drain")}


@dataclass(frozen=True)
class Row:
    """What the request of the phase got, and what became of the instance: back by itself, or gone."""

    client: str
    after: str


# A request during the load is answered 503 whoever dies; while idle there is none.
TABLE = {
    ("supervisor", "idle"): Row("none", "gone"),
    ("supervisor", "load"): Row("503", "gone"),
    ("supervisor", "prefill"): Row("broken", "gone"),
    ("supervisor", "decode"): Row("broken", "gone"),
    ("supervisor", "drain"): Row("broken", "gone"),
    ("engine", "idle"): Row("none", "back"),
    ("engine", "load"): Row("503", "back"),
    ("engine", "prefill"): Row("finished", "back"),  # it has no token yet: the next engine answers it
    ("engine", "decode"): Row("error_event", "back"),
    ("engine", "drain"): Row("error_event", "ends"),
    ("rank", "idle"): Row("none", "back"),
    ("rank", "load"): Row("503", "back"),
    ("rank", "prefill"): Row("finished", "back"),
    ("rank", "decode"): Row("error_event", "back"),
    ("rank", "drain"): Row("error_event", "ends"),
    ("api", "idle"): Row("none", "back"),
    ("api", "load"): Row("503", "back"),
    ("api", "prefill"): Row("broken", "back"),
    ("api", "decode"): Row("broken", "back"),
    ("api", "drain"): Row("broken", "ends"),
    ("metrics", "idle"): Row("none", "back"),
    ("metrics", "load"): Row("503", "back"),
    ("metrics", "prefill"): Row("finished", "back"),
    ("metrics", "decode"): Row("finished", "back"),
    ("metrics", "drain"): Row("finished", "ends"),
    ("logwriter", "idle"): Row("none", "back"),
    ("logwriter", "load"): Row("503", "back"),
    ("logwriter", "prefill"): Row("finished", "back"),
    ("logwriter", "decode"): Row("finished", "back"),
    ("logwriter", "drain"): Row("finished", "ends"),
}


def cases():
    """Every combination; all but a few are for the long run."""
    return [
        pytest.param(*case, id="-".join(case), marks=() if case in DEFAULT else pytest.mark.slow)
        for case in itertools.product(PROCESSES, WAYS, PHASES)
    ]


def test_no_combination_is_missing():
    """Each process that exists has a row for each phase, and no row is of something else."""
    assert set(TABLE) == set(itertools.product(PROCESSES, PHASES))
    assert len(cases()) == len(PROCESSES) * len(WAYS) * len(PHASES)
    assert set(itertools.product(PROCESSES, WAYS, PHASES)) >= DEFAULT


def enter(daemon, phase, eventually):
    """Bring a daemon into `phase`; return the request that is under way."""
    if phase == "load":
        daemon.hold.touch()
        daemon.start()
        eventually((daemon.folder / "hold.reached").exists, "the load", detail=daemon.text)
        eventually(lambda: daemon.get("/livez")[0] == 200 and daemon.metrics(), "all others", detail=daemon.text)
        client = daemon.ask()
        client.join(PATIENCE_S)
        return client
    daemon.start().wait_whole()
    if phase == "idle":
        return None
    if phase == "prefill":
        marker = daemon.folder / "hold.prefill"
        marker.unlink(missing_ok=True)  # the self-test had one, too
        client = daemon.ask(prompt_tokens=2000, max_tokens=2)
        eventually(marker.exists, "the prefill", detail=daemon.text)
        return client
    client = daemon.ask(prompt_tokens=3, max_tokens=120, stream=True)
    assert client.has_token.wait(PATIENCE_S), daemon.text()
    if phase == "drain":
        daemon.process.send_signal(signal.SIGTERM)
        eventually(lambda: "draining" in daemon.get("/readyz")[1], "the drain", detail=daemon.text)
    return client


def die(daemon, process, way, eventually):
    """Have `process` die, and return once it has; one that is stopped dies when it is found."""
    pid = daemon.pid(process)
    assert pid, f"no {process} in {daemon.text()}"
    subject = psutil.Process(pid)
    number = {"SIGKILL": signal.SIGKILL, "SIGSTOP": signal.SIGSTOP, "SIGSEGV": signal.SIGSEGV}.get(way, signal.SIGUSR2)
    os.kill(pid, number)
    if process == "supervisor" and way == "SIGSTOP":
        # As systemd does once WATCHDOG=1 stays out: SIGABRT, which a stopped process cannot take, then SIGKILL.
        os.kill(pid, signal.SIGABRT)
        time.sleep(0.5)
        os.kill(pid, signal.SIGKILL)

    def is_gone():
        if process == "supervisor" and daemon.process.poll() is not None:
            return True
        if not subject.is_running() or subject.status() == psutil.STATUS_ZOMBIE:
            return True
        if way == "exception":  # raised inside a callback of an event loop it is only logged
            os.kill(pid, signal.SIGUSR2)
        return False

    with contextlib.suppress(ProcessLookupError):
        eventually(is_gone, f"the end of the {process}", detail=daemon.text)
    return pid


@pytest.mark.parametrize(("process", "way", "phase"), cases())
def test_death(make_daemon, eventually, process, way, phase):
    """The client got what the table says, the instance came back or is gone, and no process is left."""
    row = TABLE[process, phase]
    daemon = make_daemon(ranks=2) if process == "rank" else make_daemon()
    client = enter(daemon, phase, eventually)
    for name in PROCESSES:
        daemon.pid(name)  # remembers it
    # Ranks end with their engine, and of several another one may live on for a moment.
    renewed = "engine" if process == "rank" else process
    before = daemon.pid(renewed)
    began = time.monotonic()

    die(daemon, process, way, eventually)
    daemon.hold.unlink(missing_ok=True)
    if row.after == "back":
        eventually(lambda: daemon.pid(renewed) not in (0, before), f"the next {renewed}", detail=daemon.text)
        daemon.wait_whole()
        took_s = time.monotonic() - began
    if client is not None:
        client.join(PATIENCE_S)
    if row.after == "back":
        again = daemon.ask()
        again.join(PATIENCE_S)
        assert again.end == "finished", daemon.text()
        assert daemon.stop() == 0, daemon.text()
    elif row.after == "ends":
        assert daemon.process.wait(PATIENCE_S) == 0, daemon.text()
        took_s = time.monotonic() - began
    else:
        assert daemon.process.wait(PATIENCE_S) != 0
        eventually(lambda: not daemon.left(), "the end of every process", detail=daemon.text)
        daemon.start().wait_whole()
        took_s = time.monotonic() - began
        assert daemon.stop() == 0, daemon.text()
    eventually(lambda: not daemon.left(), "the end of every process", detail=daemon.text)

    got = "none" if client is None else client.end
    print(f"| {process} | {way} | {phase} | {got} | {row.after} | {took_s:.1f} s |")
    if (process, way) == ("engine", "exception") and phase in ("prefill", "decode"):
        assert '"engine.step_failed"' in daemon.text()
        assert '"request_ids": ["' in daemon.text()
    assert got == row.client, daemon.text()
