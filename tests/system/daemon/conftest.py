"""A whole daemon as a user starts it: `ascendd serve` over a small random Qwen2 on free loopback ports."""

from __future__ import annotations

import contextlib
import json
import re
import runpy
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

HERE = Path(__file__).parent
# A busy machine takes its time; a test that fails waits for it, one that passes does not.
PATIENCE_S = 240.0


@dataclass
class Daemon:
    """A running `ascendd serve`, its ports taken from its own log."""

    process: subprocess.Popen[bytes]
    log_path: Path
    port: int = 0
    metrics_port: int = 0
    exit_status: int | None = field(default=None)
    ready_s: float = 0.0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def status(self, path: str) -> int:
        """Return the status of a GET, 0 where nobody answers."""
        try:
            with urllib.request.urlopen(f"{self.url}{path}", timeout=120) as response:
                return int(response.status)
        except urllib.error.HTTPError as error:
            with error:
                return error.code
        except OSError:
            return 0

    def metrics(self) -> dict[str, float]:
        """Return name{labels} -> value of the scrape page; wait where it was asked too often."""
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=120) as response:
                    page = response.read().decode()
                break
            except urllib.error.HTTPError as refusal:
                with refusal:
                    if refusal.code != 429:
                        raise
                time.sleep(0.2)
        lines = (line.rsplit(" ", 1) for line in page.splitlines() if line and not line.startswith("#"))
        return {name: float(value) for name, value in lines}

    def children(self) -> dict[str, psutil.Process]:
        """Return role -> process, `supervisor` included."""
        root = psutil.Process(self.process.pid)
        found = {"supervisor": root}
        for child in root.children():
            with contextlib.suppress(psutil.Error):
                role = next((word[1:] for word in child.cmdline() if re.fullmatch("_[a-z]+", word)), None)
                if role is not None:
                    found[role] = child
        return found

    def stop(self) -> int:
        """End with SIGTERM and return the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        self.exit_status = self.process.wait(timeout=PATIENCE_S)
        return self.exit_status


def wait_for(ask: Callable[[], object], what: str, timeout_s: float = PATIENCE_S) -> float:
    """Poll until `ask` is true and return the seconds it took."""
    started = time.monotonic()
    while time.monotonic() - started < timeout_s:
        with contextlib.suppress(OSError, KeyError, StopIteration, psutil.Error):
            if ask():
                return time.monotonic() - started
        time.sleep(0.02)
    raise AssertionError(f"{what} did not happen within {timeout_s:g} s")


@pytest.fixture(scope="session")
def eventually() -> Callable[..., float]:
    return wait_for


@pytest.fixture(scope="session")
def qwen2_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    write: Callable[..., Path] = runpy.run_path(str(HERE.parent / "tiny_qwen2.py"))["write"]
    return write(tmp_path_factory.mktemp("model") / "qwen2")


@pytest.fixture(scope="module")
def start_daemon(qwen2_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Daemon]]:
    """Start daemons with any flags; each is ready when returned and stopped at the end of the module."""
    running: list[Daemon] = []

    def start(*flags: str) -> Daemon:
        log_path = tmp_path_factory.mktemp("daemon") / "log"
        command = [
            sys.executable,
            "-m",
            "ascendd",
            "serve",
            str(qwen2_folder),
            "--port",
            "0",
            "--metrics-port",
            "0",
            *flags,
        ]
        started = time.monotonic()
        with log_path.open("wb") as log:
            daemon = Daemon(subprocess.Popen(command, stdout=log, stderr=log), log_path)
        running.append(daemon)
        wait_for(lambda: _find_ports(daemon), f"the ports of {' '.join(command)} in {log_path}", PATIENCE_S)
        wait_for(lambda: daemon.status("/readyz") == 200, f"ready of {log_path}:\n{daemon.log()}", PATIENCE_S)
        daemon.ready_s = time.monotonic() - started
        return daemon

    yield start
    for daemon in running:
        daemon.stop()


def _find_ports(daemon: Daemon) -> bool:
    assert daemon.process.poll() is None, daemon.log()
    for line in daemon.log().splitlines():
        with contextlib.suppress(ValueError):
            event = json.loads(line)
            if event.get("event") == "supervisor.listening":
                port = int(event["address"].rsplit(":", 1)[1])
                if event["listener"] == "api":
                    daemon.port = port
                else:
                    daemon.metrics_port = port
    return bool(daemon.port and daemon.metrics_port)
