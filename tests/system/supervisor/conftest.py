"""A real supervisor over fake children, a fake service manager, and ways to look at both."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import psutil
import pytest
from kept_daemon import eventually
from loopback_ports import free_ports

HERE = Path(__file__).resolve().parent
# A busy machine takes its time; a test that fails waits for it, one that passes does not.
TIMEOUT_S = 180.0


class Daemon:
    """A running instance as its operator, its clients and systemd see it."""

    def __init__(self, folder: Path, options: dict, extra: str = "", environ: dict | None = None) -> None:
        self.folder = folder
        self.api_port, self.metrics_port = free_ports(2)
        self.log_path = folder / "stderr.log"
        config = folder / "instance.yaml"
        model = folder / "model"
        model.mkdir(exist_ok=True)
        (model / "config.json").write_text(json.dumps(TINY_CONFIG))
        config.write_text(
            f"model: {{path: {model}, name: tiny}}\nlisten: {{port: {self.api_port}}}\n"
            f"metrics: {{port: {self.metrics_port}}}\n{extra}\n"
        )
        self._manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._manager.bind(str(folder / "notify"))
        self.states: list[str] = []
        threading.Thread(target=self._listen, daemon=True).start()
        own = {"XDG_RUNTIME_DIR": str(folder / "run")}
        env = {**os.environ, **own, "NOTIFY_SOCKET": str(folder / "notify"), **(environ or {})}
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(HERE / "daemon_main.py"), str(config), json.dumps(options)],
                stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=env,
            )  # fmt: skip

    # --- what systemd sees ---

    def _listen(self) -> None:
        while state := self._manager.recv(4096):
            self.states.append(state.decode())

    @property
    def statuses(self) -> list[str]:
        """The STATUS lines, in order."""
        return [state.removeprefix("STATUS=") for state in self.states if state.startswith("STATUS=")]

    def wait_ready(self) -> Daemon:
        """Wait for READY=1."""
        eventually(lambda: "READY=1" in self.states or self.process.poll() is not None, detail=self.log_text)
        assert "READY=1" in self.states, self.log_text()
        return self

    def wait_exit(self, timeout_s: float = TIMEOUT_S) -> int:
        """Wait for the supervisor to end and return its status."""
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {timeout_s} s\n{self.log_text()}") from None

    # --- what the operator sees ---

    def log_text(self) -> str:
        """Everything on standard error."""
        return self.log_path.read_text()

    def events(self, name: str) -> list[dict]:
        """Log lines of one event."""
        return [line for line in self.all_events() if line.get("event") == name]

    def all_events(self) -> list[dict]:
        """Every log line that is JSON."""
        return [
            json.loads(line) for line in self.log_text().splitlines() if line.startswith("{") and line.endswith("}")
        ]

    def pid(self, role: str) -> int:
        """The process of a role."""
        deadline = time.monotonic() + 90  # a log writer may still have the line before it
        while True:
            pids = [int(line["pid"]) for line in self.events("supervisor.child_started") if line["child"] == role]
            if pids:
                return pids[-1]
            assert time.monotonic() < deadline, f"no start of {role} in the log:\n{self.log_text()}"
            time.sleep(0.02)

    def pids(self) -> list[int]:
        """Every process that was ever started, the supervisor first."""
        return [self.process.pid, *(line["pid"] for line in self.events("supervisor.child_started"))]

    def kill(self, role: str, number: int = signal.SIGKILL) -> int:
        """Send a signal to a child and return its pid."""
        pid = self.pid(role)
        os.kill(pid, number)
        return pid

    def wait_restarted(self, role: str, old_pid: int) -> int:
        """Wait until the role has another process that is ready."""

        def ready_again():
            lines = [line for line in self.all_events() if line.get("child") == role]
            starts = [index for index, line in enumerate(lines) if line["event"] == "supervisor.child_started"]
            last = lines[starts[-1] :]
            return last[0]["pid"] != old_pid and any(line["event"] == "supervisor.child_ready" for line in last)

        eventually(ready_again, detail=self.log_text)
        return self.pid(role)

    # --- what clients see ---

    def ask(self, timeout_s: float = 90.0) -> dict:
        """Connect to the API and read its one line."""
        with socket.create_connection(("127.0.0.1", self.api_port), timeout_s) as connection:
            return json.loads(connection.makefile().readline())

    def metrics(self) -> dict[str, float]:
        """Scrape /metrics: sample line without value -> value; waits where it was asked too often."""
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=120) as response:
                    lines = response.read().decode().splitlines()
                break
            except urllib.error.HTTPError as refusal:
                with refusal:
                    if refusal.code != 429:
                        raise
                time.sleep(0.2)
        return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}

    def close(self) -> None:
        """Stop the instance if it still runs; nothing of it may be left."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self._manager.shutdown(socket.SHUT_RDWR)
        self._manager.close()
        eventually(lambda: not self.leftovers(), detail=self.log_text)

    def leftovers(self) -> list[int]:
        """Processes of this instance that still exist."""
        return [pid for pid in self.pids() if _lives(pid)]


def _lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


TINY_CONFIG = {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 8, "intermediate_size": 8,
    "num_hidden_layers": 1, "num_attention_heads": 1, "vocab_size": 8, "max_position_embeddings": 64,
}  # fmt: skip


@pytest.fixture
def start(tmp_path):
    """Give a function that starts an instance with plans for engine and API, more YAML, and options of daemon_main."""
    daemons = []

    def start_daemon(engine=(), api=(), extra="", environ=None, **options):
        options["plan"] = {"engine": list(engine), "api": list(api)}
        folder = tmp_path / f"daemon{len(daemons)}"
        folder.mkdir()
        (folder / "logs").mkdir()
        daemons.append(Daemon(folder, options, extra, environ))
        return daemons[-1]

    yield start_daemon
    for daemon in daemons:
        daemon.close()


@pytest.fixture(name="eventually")
def eventually_fixture():
    """Return the function that waits for a condition."""
    return eventually
