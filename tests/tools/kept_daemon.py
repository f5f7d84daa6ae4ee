"""A real daemon with `engine.backend: vllm`, over the stand-in for vLLM."""

from __future__ import annotations

import contextlib
import http.client
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
from loopback_ports import free_ports

STANDIN = Path(__file__).resolve().parent.parent / "system" / "vllm" / "standin_vllm.py"
# A busy machine takes its time; a test that fails waits for it, one that passes does not.
TIMEOUT_S = 180.0
_RUN = """
import sys
from pathlib import Path
from ascendd.config.load import load_file
from ascendd.supervisor.instance import run_instance
sys.exit(run_instance(load_file(Path(sys.argv[1])), "kept", gate=lambda _config: None).exit_code)
"""


def eventually(condition, timeout_s=TIMEOUT_S, detail=lambda: ""):
    """Return the first true value of `condition`; an AssertionError with `detail` after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.05)
    raise AssertionError(f"{condition} did not become true within {timeout_s} s\n{detail()}")


def gone(pid: int) -> bool:
    """Whether nothing of `pid` is left but perhaps a zombie that nobody reaps."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


class KeptDaemon:
    """A running instance as its operator, its clients and systemd see it."""

    def __init__(
        self, folder: Path, starts: list[dict] | None = None, extra: str = "", *, engine: str = "", listen: str = "unix"
    ) -> None:
        self.folder = folder
        self.api_port, self.metrics_port = free_ports(2)
        self.log_path = folder / "stderr.log"
        self.model = folder / "model"
        self.model.mkdir()
        (self.model / "config.json").write_text(json.dumps({"architectures": ["NoneOfOurs"], "num_attention_heads": 4}))
        (self.model / "standin.json").write_text(json.dumps({"starts": starts or [{}]}))
        venv = folder / "venv"
        (venv / "bin").mkdir(parents=True)
        executable = venv / "bin" / "vllm"
        executable.write_text(f'#!/bin/sh\nexec {sys.executable} {STANDIN} "$@"\n')
        executable.chmod(0o755)
        # What is asked for the hosts of a cluster: the test writes the answer.
        self.nodes = folder / "nodes"
        python = venv / "bin" / "python"
        python.write_text(f"#!/bin/sh\nexec cat {self.nodes}\n")
        python.chmod(0o755)
        config = folder / "instance.yaml"
        config.write_text(
            f"model: {{path: {self.model}, name: tiny}}\nlisten: {{port: {self.api_port}}}\n"
            f"metrics: {{port: {self.metrics_port}}}\n"
            f"engine: {{backend: vllm, vllm: {{venv: {venv}, listen: {listen}}}, {engine}}}\n"
            f"recovery: {{backoff_min_s: 0.1, backoff_max_s: 0.2}}\n{extra}\n"
        )
        self._manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._manager.bind(str(folder / "notify"))
        self.states: list[str] = []
        threading.Thread(target=self._listen, daemon=True).start()
        own = {
            "XDG_RUNTIME_DIR": str(folder / "run"),
            "RUNTIME_DIRECTORY": str(folder / "run"),
            "STATE_DIRECTORY": str(folder / "state"),
        }
        (folder / "run").mkdir(mode=0o700)
        env = {**os.environ, **own, "NOTIFY_SOCKET": str(folder / "notify")}
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _RUN, str(config)], stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=env
            )

    def _listen(self) -> None:
        while True:
            try:
                self.states += self._manager.recv(65536).decode().splitlines()
            except OSError:
                return

    @property
    def log(self) -> str:
        """Everything that was logged."""
        return self.log_path.read_text(errors="replace")

    def starts(self) -> list[dict]:
        """Return each start of the stand-in: its argv, pid and environment."""
        path = self.model / "starts"
        text = path.read_text() if path.exists() else ""
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def wait_ready(self) -> None:
        """Wait for READY=1."""
        eventually(lambda: "READY=1" in self.states or self.process.poll() is not None, detail=lambda: self.log)
        assert self.process.poll() is None, self.log

    def get(self, path: str, port: int = 0) -> tuple[int, bytes]:
        """Return status and body; 0 where nobody answers."""
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{port or self.api_port}{path}", timeout=TIMEOUT_S
            ) as response:
                return response.status, response.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()
        except (urllib.error.URLError, OSError):
            return 0, b""

    def post(self, body: dict, path: str = "/v1/completions", headers: dict | None = None) -> tuple[int, dict]:
        """Return status and decoded body of a request for the model."""
        data = json.dumps({"model": "tiny", **body}).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.api_port}{path}", data, headers or {})
        request.add_header("Content-Type", "application/json")
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
                return response.status, json.loads(response.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())

    @contextlib.contextmanager
    def stream(self, body: dict, path: str = "/v1/completions"):
        """Give a stream of events that has begun, and leave it at the end of the block."""
        connection = http.client.HTTPConnection("127.0.0.1", self.api_port, timeout=TIMEOUT_S)
        data = json.dumps({"model": "tiny", "stream": True, **body})
        try:
            connection.request("POST", path, data, {"Content-Type": "application/json"})
            with connection.getresponse() as response:
                yield response
        finally:
            connection.close()

    def figure(self, name: str) -> float | None:
        """Return the value of the first line of /metrics that begins with `name`."""
        page = self.get("/metrics", self.metrics_port)[1].decode()
        return next((float(line.rpartition(" ")[2]) for line in page.splitlines() if line.startswith(name)), None)

    def family(self) -> list[psutil.Process]:
        """Return every process below the daemon."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def end(self) -> int:
        """Ask it to leave and return its exit status; SIGKILL, and so -9, where it does not."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self._manager.close()
        return self.process.wait()
