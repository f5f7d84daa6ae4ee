"""A daemon whose processes are there to be killed, and clients that say how their request ended."""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from loopback_ports import free_ports

HERE = Path(__file__).resolve().parent
STEP_S = 0.02
# A busy machine takes its time; a test that fails waits for it, one that passes does not.
PATIENCE_S = 240.0
# What is called a rank here is a worker on the command line.
ROLES = {"rank": "worker"}


def eventually(
    ask: Callable[[], Any], what: str, timeout_s: float = PATIENCE_S, detail: Callable[[], str] = str
) -> Any:
    """Poll until `ask` is true and return what it said."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError, psutil.Error, KeyError):
            if answer := ask():
                return answer
        time.sleep(0.1)
    raise AssertionError(f"{what} did not happen within {timeout_s:g} s\n{detail()}")


class Client(threading.Thread):
    """One request; `end` says how it ended: finished, error_event, broken, or the HTTP status."""

    def __init__(self, url: str, *, prompt_tokens: int, max_tokens: int, stream: bool) -> None:
        super().__init__(daemon=True)
        self._url = url
        self._body = {
            "model": "m", "prompt": [1 + n % 200 for n in range(prompt_tokens)], "max_tokens": max_tokens,
            "ignore_eos": True, "stream": stream,
        }  # fmt: skip
        self.has_token = threading.Event()
        self.end: str | None = None

    def run(self) -> None:
        """Send, read to the end, judge."""
        request = urllib.request.Request(
            f"{self._url}/v1/completions", json.dumps(self._body).encode(), {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
                lines = []
                for line in response:
                    if line.strip():
                        lines.append(line.decode().strip())
                        self.has_token.set()
            if not self._body["stream"]:
                answer = json.loads("".join(lines))
                self.end = "finished" if answer["choices"][0]["finish_reason"] == "length" else "broken"
            elif lines[-1] == "data: [DONE]":
                self.end = "finished"
            else:
                self.end = "error_event" if '"error"' in lines[-1] else "broken"
        except urllib.error.HTTPError as error:
            with error:
                self.end = str(error.code)
        except Exception:  # reset, refused, cut in the middle of a chunk or of the JSON
            self.end = "broken"


class Daemon:
    """A running instance; everything it ever started is remembered."""

    def __init__(self, folder: Path, model: Path, extra: str = "", step_s: float = STEP_S, ranks: int = 1) -> None:
        self.folder = folder
        self.port, self.metrics_port = free_ports(2)
        self._config = folder / "instance.yaml"
        self.hold = folder / "hold"
        self._config.write_text(
            f"model: {{path: {model}, name: m}}\nlisten: {{port: {self.port}}}\nmetrics: {{port: {self.metrics_port}}}\n"
            f"engine: {{device: cpu, max_num_seqs: 32, max_num_batched_tokens: 32, max_num_blocks: 2048}}\n"
            f"parallel: {{tensor_parallel_size: {ranks}}}\n"
            f"health: {{probe_timeout_s: 2{', step_deadline_s: 6' if ranks > 1 else ''}}}\nlog: {{file: {folder}/ascendd.log}}\n"
            + (extra or "recovery: {backoff_min_s: 0.1, backoff_max_s: 1, drain_timeout_s: 90}\n")
        )
        self._environ = {
            **os.environ, "DYING_HOLD": str(self.hold), "DYING_STEP_S": str(step_s), "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        self.seen: dict[int, psutil.Process] = {}
        self.process: subprocess.Popen[bytes]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> Daemon:
        """Start the supervisor."""
        with (self.folder / "stderr").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(HERE / "dying_daemon.py"), str(self._config)],
                stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=self._environ,
            )  # fmt: skip
        return self

    def pid(self, name: str) -> int:
        """Return the process id of `supervisor`, of a role, or of the first rank; 0 where it has no process."""
        if name == "supervisor":
            return self.process.pid
        for child in psutil.Process(self.process.pid).children(recursive=True):
            self.seen[child.pid] = child
            with contextlib.suppress(psutil.Error):
                if f"_{ROLES.get(name, name)}" in child.cmdline() and child.status() != psutil.STATUS_ZOMBIE:
                    return child.pid
        return 0

    def get(self, path: str, port: int | None = None) -> tuple[int, str]:
        """Return status and body of a GET; status 0 where nobody answers."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port or self.port}{path}", timeout=60) as response:
                return int(response.status), response.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def metrics(self) -> dict[str, float]:
        """Return the scrape page, empty where nobody answers, or where it was asked for too often."""
        status, page = self.get("/metrics", self.metrics_port)
        lines = (line.rsplit(" ", 1) for line in page.splitlines() if status == 200)
        return {line[0]: float(line[1]) for line in lines if len(line) == 2 and not line[0].startswith("#")}

    def is_whole(self) -> bool:
        """Whether it answers requests, and every process is up and says so."""
        assert self.process.poll() is None, self.text()
        page = self.metrics()
        ups = [value for name, value in page.items() if name.startswith("ascendd_child_up")]
        return self.get("/readyz")[0] == 200 and len(ups) == 4 and all(ups) and all(map(self.pid, ("engine", "api")))

    def wait_whole(self) -> float:
        """Wait for that; return the seconds it took."""
        started = time.monotonic()
        eventually(self.is_whole, "ready", detail=self.text)
        return time.monotonic() - started

    def ask(self, *, prompt_tokens: int = 3, max_tokens: int = 2, stream: bool = False) -> Client:
        """Send a request."""
        client = Client(self.url, prompt_tokens=prompt_tokens, max_tokens=max_tokens, stream=stream)
        client.start()
        return client

    def text(self) -> str:
        """Everything that was written."""
        logs = [self.folder / "ascendd.log", self.folder / "stderr"]
        return "\n".join(log.read_text(errors="replace")[-12000:] for log in logs if log.exists())

    def left(self) -> list[int]:
        """Processes of this instance that still exist, of those that were seen."""
        return [
            pid for pid, process in self.seen.items()
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE
        ]  # fmt: skip

    def stop(self) -> int:
        """End with SIGTERM, return the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE_S)


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    write: Callable[..., Path] = runpy.run_path(str(HERE.parent / "tiny_qwen2.py"))["write"]
    return write(tmp_path_factory.mktemp("model") / "m")


@pytest.fixture
def make_daemon(model_folder: Path, tmp_path: Path) -> Iterator[Callable[..., Daemon]]:
    """Make daemons that are not started yet; whatever still runs at the end is killed."""
    made: list[Daemon] = []

    def make(**options: Any) -> Daemon:
        folder = tmp_path / f"daemon{len(made)}"
        folder.mkdir()
        made.append(Daemon(folder, model_folder, **options))
        return made[-1]

    yield make
    for daemon in made:
        for pid in (daemon.process.pid, *daemon.left()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        daemon.process.wait(PATIENCE_S)


@pytest.fixture(name="eventually")
def eventually_fixture() -> Callable[..., Any]:
    return eventually
