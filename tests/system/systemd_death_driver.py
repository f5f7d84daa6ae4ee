"""
Runs as root inside a throw-away machine with a real systemd: every death of the supervisor, in every phase of its life.

    systemd_death_driver.py ROWS REPOSITORY BIN_FOLDER RESULT_FILE

ROWS is a JSON list of [way, phase]. RESULT_FILE gets the facts of each as JSON; nothing is judged here. The unit is the
shipped one but for shorter times. First a start whose engine alone takes longer than a start may.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

import systemd_driver
from systemd_machine import DEADLINE_S, UNIT, Answer, Stream, children, exists, post, run, show, state, wait

TIMEOUT_START_S, SLOW_S = 20.0, 25.0
_SLOW = Path("/run/engines-are-slow")
_DROP_IN = Path("/etc/systemd/system/ascendd@.service.d/short.conf")
_WAYS = {"SIGKILL": signal.SIGKILL, "SIGSTOP": signal.SIGSTOP, "SIGSEGV": signal.SIGSEGV, "exception": signal.SIGUSR2}
_RAISING = """
import signal, sys
def fail(*_): raise RuntimeError("raised by the test")
signal.signal(signal.SIGUSR2, fail)
from ascendd.__main__ import main
sys.argv = ["ascendd", *sys.argv[1:]]
sys.exit(main())
"""


# Read by every Python of the unit; the engine is a second late for each that it is told to be.
_LATE = f"""
import pathlib, time
if b"_engine" in pathlib.Path("/proc/self/cmdline").read_bytes() and pathlib.Path("{_SLOW}").exists():
    time.sleep({SLOW_S})
"""


def shorten(bin_folder: Path) -> None:
    """Have a missed watchdog and a stop be noticed soon, an exception be made on order, and engines be slow on order."""
    script = Path("/var/lib/ascendd/raising.py")
    script.write_text(_RAISING)
    late = Path("/var/lib/ascendd/late/sitecustomize.py")
    late.parent.mkdir()
    late.write_text(_LATE)
    _DROP_IN.write_text(
        f"[Unit]\nStartLimitIntervalSec=0\n[Service]\nEnvironment=PYTHONPATH={late.parent}\n"
        f"TimeoutStartSec={TIMEOUT_START_S}\nTimeoutStopSec=30\nTimeoutAbortSec=5\nWatchdogSec=10\nRestartSec=1\n"
        f"ExecStart=\nExecStart={bin_folder}/python {script} run --instance %i\n"
    )
    run("systemctl", "daemon-reload")


def extension() -> dict[str, Any]:
    """Start with an engine that is silent for longer than TimeoutStartSec=; put that back to what is shipped."""
    _SLOW.touch()
    began = time.monotonic()
    run("systemctl", "start", "--no-block", UNIT)
    wait(lambda: state() != "inactive", "the begin of the start")
    wait(lambda: state() in ("active", "failed"), "the end of the start")
    facts = {"took_s": time.monotonic() - began, "state": state(), **show(UNIT, "NRestarts", "Result")}
    _SLOW.unlink()
    run("systemctl", "stop", UNIT)
    _DROP_IN.write_text(_DROP_IN.read_text().replace(f"TimeoutStartSec={TIMEOUT_START_S}\n", ""))
    run("systemctl", "daemon-reload")
    return facts


class Clients:
    """What the requests of a row got: `none` where there was none."""

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []
        self.answers: list[Answer] = []
        self.sent = threading.Event()

    def ask_long(self) -> None:
        """Send eight prompts of thousands of tokens: seconds of prefill."""

        def one() -> None:
            self.answers.append(post(2, prompt="hello " * 2000))

        self._threads += [threading.Thread(target=one, daemon=True) for _ in range(8)]
        for thread in self._threads:
            thread.start()

    def stream(self) -> None:
        """Open a stream that outlasts the row, and wait for its first tokens."""
        stream = Stream(14000)
        stream.start()
        assert stream.flowing.wait(DEADLINE_S), stream.answer.body[-500:]
        self._threads.append(stream)

    def refused(self) -> None:
        """Ask while nothing is loaded."""
        self.answers.append(post())

    def ends(self) -> list[str]:
        """Return how each ended: its status, or `broken` for an answer that is cut off."""
        for thread in self._threads:
            thread.join(DEADLINE_S)
        answers = [*self.answers, *(one.answer for one in self._threads if isinstance(one, Stream))]
        return sorted({_end(answer) for answer in answers}) or ["none"]


def _end(answer: Answer) -> str:
    if answer.status != 200:
        return "broken" if answer.status <= 0 else str(answer.status)
    whole = "[DONE]" in answer.body or '"finish_reason":"length"' in answer.body
    return "finished" if whole else ("error_event" if '"error":{' in answer.body else "broken")


def enter(phase: str, clients: Clients) -> dict[str, int]:
    """Bring the stopped unit into `phase`; return its processes."""
    run("systemctl", "reset-failed", UNIT)
    run("systemctl", "start", "--no-block", UNIT)
    wait(lambda: state() in ("activating", "active"), "the begin of the start")
    if phase == "load":
        wait(lambda: {"engine", "api"} <= children().keys(), "an engine that loads")
        os.kill(children()["engine"], signal.SIGSTOP)  # so that the load is not over before the row is
        wait(lambda: post().status == 503, "an API that refuses")
        clients.refused()
        return children()
    wait(lambda: state() == "active" and post().status == 200, "service")
    pids = children()
    if phase == "prefill":
        clients.ask_long()
        time.sleep(0.5)
    elif phase in ("decode", "drain"):
        clients.stream()
    if phase == "drain":
        run("systemctl", "stop", "--no-block", UNIT)
        wait(lambda: state() == "deactivating" and post().status == 503, "the drain")
    return pids


def row(way: str, phase: str) -> dict[str, Any]:
    """Have the supervisor die so in that phase; say what clients got, who was left, and what systemd made of it."""
    clients = Clients()
    pids = enter(phase, clients)
    restarts = int(show(UNIT, "NRestarts")["NRestarts"])
    struck, struck_unix_s = time.monotonic(), int(time.time())
    os.kill(pids["supervisor"], _WAYS[way])

    def is_gone() -> bool:
        if way == "exception" and exists(pids["supervisor"]):
            os.kill(pids["supervisor"], signal.SIGUSR2)  # raised inside a callback of the loop it is only logged
        return not any(map(exists, pids.values()))

    gone_s = wait(is_gone, "the end of all processes")
    if phase == "drain":
        wait(lambda: state() in ("inactive", "failed"), "the end of the stop")
        time.sleep(3.0)  # three times RestartSec: a restart would have happened
        back_s = None
    else:
        wait(lambda: int(show(UNIT, "NRestarts")["NRestarts"]) > restarts, "the restart by systemd")
        wait(lambda: state() == "active" and post().status == 200, "service after the restart")
        back_s = time.monotonic() - struck
    facts = {
        "clients": clients.ends(), "gone_s": gone_s, "back_s": back_s, "state": state(),
        "left": [pid for pid in pids.values() if exists(pid)],
        "result": show(UNIT, "Result")["Result"],
        "watchdog": "Watchdog timeout" in run("journalctl", "-u", UNIT, "--since", f"@{struck_unix_s}", "--no-pager"),
    }  # fmt: skip
    run("systemctl", "stop", UNIT)
    return facts


def main(rows: str, repository: str, bin_folder: str, result: str) -> int:
    """Collect the facts of all rows; what breaks is a fact, too."""
    facts: dict[str, Any] = {"rows": {}}
    try:
        systemd_driver.install(Path(repository), Path(bin_folder))
        shutil.chown("/var/lib/ascendd", "ascendd", "ascendd")
        shorten(Path(bin_folder))
        facts["extension"] = extension()
        for way, phase in json.loads(rows):
            facts["rows"][f"{way}-{phase}"] = row(way, phase)
    except Exception:
        journal = run("journalctl", "-u", "ascendd@*", "-n", "80", "-o", "cat", "--no-pager")
        facts["broken"] = f"{facts}\n{traceback.format_exc()}{journal}"
    Path(result).write_text(json.dumps(facts, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
