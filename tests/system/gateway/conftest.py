"""The gateway as a process, instances that follow a script, and real ones with small random models."""

from __future__ import annotations

import http.client
import json
import os
import runpy
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

HERE = Path(__file__).parent
PATIENCE_S = 90.0


def wait_for(ask: Callable[[], object], what: str, timeout_s: float = PATIENCE_S) -> None:
    """Return once `ask` is true; a test that waits in vain fails with `what`."""
    end_s = time.monotonic() + timeout_s
    while time.monotonic() < end_s:
        if ask():
            return
        time.sleep(0.03)
    raise AssertionError(f"{what} did not happen within {timeout_s:g} s")


@dataclass
class Reply:
    """What came back: status, headers in lower case, and the body."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body as data."""
        return json.loads(self.body)


@dataclass
class Process:
    """A process whose log is JSON lines in a file."""

    popen: subprocess.Popen[bytes]
    log_path: Path
    port: int = 0
    metrics_port: int = 0

    def events(self, name: str) -> list[dict[str, Any]]:
        """Return the log lines of one event."""
        lines = self.log_path.read_text(errors="replace").splitlines()
        return [data for line in lines if f'"{name}"' in line and (data := json.loads(line)).get("event") == name]

    def ask(self, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Reply:
        """Send one request, POST where there is a body."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        try:
            data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
            connection.request("GET" if data is None else "POST", path, data, headers or {})
            response = connection.getresponse()
            return Reply(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
        finally:
            connection.close()

    def metrics(self) -> dict[str, float]:
        """Return name{labels} -> value of the scrape page."""
        connection = http.client.HTTPConnection("127.0.0.1", self.metrics_port, timeout=PATIENCE_S)
        try:
            connection.request("GET", "/metrics")
            page = connection.getresponse().read().decode()
        finally:
            connection.close()
        lines = (line.rsplit(" ", 1) for line in page.splitlines() if line and not line.startswith("#"))
        return {name: float(value) for name, value in lines}

    def stop(self) -> int:
        """End with SIGTERM and return the exit status."""
        if self.popen.poll() is None:
            self.popen.send_signal(signal.SIGTERM)
        return self.popen.wait(timeout=PATIENCE_S)


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Process]]:
    """Start `ascendd ARGS`; what is left at the end of the module is stopped."""
    running: list[Process] = []

    def begin(*args: str) -> Process:
        log_path = tmp_path_factory.mktemp("process") / "log"
        with log_path.open("wb") as out:
            popen = subprocess.Popen(
                [sys.executable, "-m", "ascendd", *args],
                stdout=out,
                stderr=out,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
        running.append(Process(popen, log_path))
        return running[-1]

    yield begin
    for process in running:
        if process.popen.poll() is None:
            process.popen.send_signal(signal.SIGTERM)
    for process in running:
        try:
            process.popen.wait(timeout=120)
        except subprocess.TimeoutExpired:
            process.popen.kill()
            process.popen.wait(timeout=120)


@pytest.fixture(scope="module")
def start_gateway(start: Callable[..., Process], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Process]:
    """Start a gateway with the given configuration on free ports; it listens when returned."""

    def begin(config: dict[str, Any], path: Path | None = None) -> Process:
        path = path or tmp_path_factory.mktemp("gateway") / "gateway.yaml"
        config = {
            "listen": {"port": 0},
            "metrics": {"port": 0, "max_scrapes_per_s": 1000.0},
            # What is silent on purpose says so itself; a busy machine is not to look like it.
            "probe": {"interval_s": 0.2, "timeout_s": 30.0},
            **config,
        }
        path.write_text(yaml.safe_dump(config))
        process = start("gateway", "--config", str(path))
        wait_for(lambda: process.events("gateway.listening") or process.popen.poll() is not None, "listening")
        (event,) = process.events("gateway.listening")
        process.port, process.metrics_port = event["port"], event["metrics_port"]
        return process

    return begin


@pytest.fixture(scope="module")
def start_instance(start: Callable[..., Process], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Process]:
    """Start `ascendd serve` over a small random model called `name`; returns at once."""
    write: Callable[..., Path] = runpy.run_path(str(HERE.parent / "tiny_qwen2.py"))["write"]

    def begin(name: str, seed: int, *flags: str) -> Process:
        folder = write(tmp_path_factory.mktemp("model") / name, seed)
        return start(
            "serve", str(folder), "--port", "0", "--metrics-port", "0", "--device", "cpu", "--max-num-seqs", "8",
            *flags,
        )  # fmt: skip

    return begin


@dataclass
class Script:
    """How an instance answers: a status, or `pieces` (or `texts`) of a stream with an end unless it is `cut`."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    pieces: int = 3
    texts: list[str] | None = None
    # Sent as reasoning before the rest.
    reasoning: tuple[str, ...] = ()
    cut: bool = False
    # Tokens that answers tell in their usage; 0: they tell none.
    total_tokens: int = 0
    # Set by the test to let the next piece go.
    gate: threading.Semaphore | None = None


class ScriptedInstance(ThreadingHTTPServer):
    """An OpenAI-compatible server that answers as `script` says and keeps what it saw."""

    daemon_threads = True

    def __init__(self, name: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.name = name
        self.script = Script()
        self.ready_status = 200
        # Cleared by the test to keep those who ask whether it is ready waiting.
        self.ready_gate = threading.Event()
        self.ready_gate.set()
        self.num_asked = 0
        self.bodies: list[dict[str, Any]] = []
        self.seen_headers: list[dict[str, str]] = []
        self.num_broken = 0

    def play(self, **how: Any) -> None:
        """Answer by a new script from now on; answers under way keep theirs."""
        self.script = Script(**how)

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: ScriptedInstance

    def log_message(self, *_args: object) -> None:
        """Stay silent."""

    def do_GET(self) -> None:
        self.server.num_asked += 1
        self.server.ready_gate.wait(PATIENCE_S)
        self._whole(self.server.ready_status, {"status": "ready"}, {})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server, script = self.server, self.server.script
        server.bodies.append(body)
        server.seen_headers.append({name.lower(): value for name, value in self.headers.items()})
        if script.status != 200:
            self._whole(script.status, {"error": {"message": f"{server.name} says {script.status}"}}, script.headers)
        elif not body.get("stream"):
            usage = {"usage": {"total_tokens": script.total_tokens}} if script.total_tokens else {}
            self._whole(200, {"model": body["model"], "by": server.name, **usage}, {})
        else:
            self._stream(script, asked=bool((body.get("stream_options") or {}).get("include_usage")))

    def _stream(self, script: Script, *, asked: bool) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.end_headers()
        try:
            for text in script.reasoning:
                self._send(json.dumps({"choices": [{"delta": {"reasoning_content": text}}]}))
            for text in script.texts or [f"piece {number}" for number in range(script.pieces)]:
                if script.gate is not None and not script.gate.acquire(timeout=PATIENCE_S):
                    return
                self._send(json.dumps({"choices": [{"delta": {"content": text}}]}))
            if asked and script.total_tokens:
                self._send(json.dumps({"choices": [], "usage": {"total_tokens": script.total_tokens}}))
            if not script.cut:
                self._send("[DONE]")
        except OSError:
            self.server.num_broken += 1

    def _send(self, data: str) -> None:
        self.wfile.write(f"data: {data}\n\n".encode())
        self.wfile.flush()

    def _whole(self, status: int, value: dict[str, Any], headers: dict[str, str]) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        for name, text in {"Content-Type": "application/json", "Content-Length": str(len(data)), **headers}.items():
            self.send_header(name, text)
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture(scope="module")
def scripted() -> Iterator[Callable[[str], ScriptedInstance]]:
    """Make scripted instances by name."""
    servers: list[ScriptedInstance] = []

    def make(name: str) -> ScriptedInstance:
        server = ScriptedInstance(name)
        servers.append(server)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return server

    yield make
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture(scope="session")
def eventually() -> Callable[..., None]:
    """Return wait_for."""
    return wait_for
