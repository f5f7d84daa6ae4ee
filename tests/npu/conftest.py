"""Machines of stand-in NPUs, and programs that run on them with the real torch_npu."""

from __future__ import annotations

import contextlib
import json
import runpy
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

if TYPE_CHECKING:
    from standin.machine import Machine

HERE = Path(__file__).resolve().parent
START_TIMEOUT_S = 300.0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.system)


@pytest.fixture
def make_machine(make_npu_machine: Callable[..., Machine], tmp_path: Path) -> Callable[..., Machine]:
    """Make machines below this test's folder; arguments are those of tests/standin/machine.py."""
    made = 0

    def make(**options: Any) -> Machine:
        nonlocal made
        made += 1
        return make_npu_machine(tmp_path / f"machine-{made}", **options)

    return make


def events_in(log: Path, name: str) -> list[dict[str, Any]]:
    """Return the lines of a JSON log with this event, among what libraries print."""
    found = []
    for line in log.read_text(errors="replace").splitlines():
        with contextlib.suppress(ValueError):
            event = json.loads(line)
            if isinstance(event, dict) and event.get("event") == name:
                found.append(event)
    return found


class Program:
    """A program of this folder on a machine: one JSON object a line in, one a line out, among what libraries print."""

    def __init__(self, machine: Machine, name: str, log: Path) -> None:
        self._log = log
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, str(HERE / name)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=machine.environment(OMP_NUM_THREADS="1"),
            )

    def ask(self, **request: Any) -> dict[str, Any]:
        """Send a request and wait for its answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # then the read below finds the end
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("{"):
                answer: dict[str, Any] = json.loads(line)
                return answer
        raise AssertionError(f"the program ended:\n{self._log.read_text(errors='replace')[-3000:]}")

    def events(self, name: str) -> list[dict[str, Any]]:
        """Return the lines of the log with this event, of the program and of the ranks that it started."""
        return events_in(self._log, name)

    def close(self) -> None:
        """End it, whatever it does."""
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Program]]:
    """Start a program of this folder on a machine."""
    running: list[Program] = []

    def begin(machine: Machine, name: str) -> Program:
        running.append(Program(machine, name, tmp_path / f"{name}-{len(running)}.log"))
        return running[-1]

    yield begin
    for program in running:
        program.close()


@pytest.fixture(scope="session")
def qwen2_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random Qwen2 with a tokenizer."""
    write: Callable[..., Path] = runpy.run_path(str(HERE.parent / "system" / "tiny_qwen2.py"))["write"]
    return write(tmp_path_factory.mktemp("model") / "qwen2")


class Daemon:
    """serve.py in a process of its own, on a machine."""

    def __init__(self, machine: Any, config: dict[str, Any], folder: Path) -> None:
        folder.mkdir()
        (folder / "instance.yaml").write_text(yaml.safe_dump(config))
        self._log = folder / "log"
        with self._log.open("wb") as log:
            command = [sys.executable, str(HERE / "serve.py"), str(folder / "instance.yaml")]
            # The stand-in has no virtual memory for segments that grow.
            env = machine.environment(OMP_NUM_THREADS="1", PYTORCH_NPU_ALLOC_CONF="expandable_segments:False")
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=env)

    def events(self, name: str) -> list[dict[str, Any]]:
        """Return the lines of the log with this event."""
        return events_in(self._log, name)

    def wait(self, ask: Callable[[], object], what: str) -> None:
        """Poll until `ask` is true."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self._log.read_text(errors="replace")[-4000:]
            if ask():
                return
            time.sleep(0.05)
        raise AssertionError(f"{what} did not happen:\n{self._log.read_text(errors='replace')[-4000:]}")

    def wait_ready(self) -> None:
        """Wait until the instance answers requests."""
        self.wait(lambda: self._status("/readyz") == 200, "ready")

    def wait_another_engine(self) -> None:
        """Wait until an engine that was started after the first one answers requests."""
        self.wait(
            lambda: len([e for e in self.events("supervisor.child_ready") if e["child"] == "engine"]) > 1,
            "another engine",
        )
        self.wait_ready()

    def text(self, prompt: str) -> str:
        """Return twelve greedy tokens as text. Raises HTTPError."""
        body = json.dumps({"model": "m", "prompt": prompt, "max_tokens": 12, "temperature": 0}).encode()
        request = urllib.request.Request(f"{self._url()}/v1/completions", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=120) as response:
            answer: str = json.load(response)["choices"][0]["text"]
        return answer

    def stop(self) -> None:
        """End it."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(timeout=120)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _url(self) -> str:
        return "http://" + next(e["address"] for e in self.events("supervisor.listening") if e["listener"] == "api")

    def _status(self, path: str) -> int:
        try:
            with urllib.request.urlopen(f"{self._url()}{path}", timeout=5) as response:
                return int(response.status)
        except urllib.error.HTTPError as error:
            with error:
                return error.code
        except (OSError, StopIteration):
            return 0


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Daemon]]:
    """Start daemons; `sections` are merged into the file of the instance."""
    running: list[Daemon] = []

    def begin(machine: Any, model: Path, device: str, /, **sections: dict[str, Any]) -> Daemon:
        config: dict[str, Any] = {
            "model": {"path": str(model), "name": "m", "dtype": "float32", "max_model_len": 512},
            "listen": {"port": 0},
            "metrics": {"enabled": False},
            "engine": {"device": device, "max_num_seqs": 4, "kv_cache_memory": "128MiB"},
            "recovery": {"backoff_min_s": 0.1, "backoff_max_s": 0.5},
            # A request that is held until the device is back would not come back with the error that is waited for.
            "admission": {"restart_wait_s": 0},
            "log": {"format": "json"},
        }
        for name, section in sections.items():
            config[name] = {**config.get(name, {}), **section}
        running.append(Daemon(machine, config, tmp_path / f"daemon-{len(running)}"))
        return running[-1]

    yield begin
    for daemon in running:
        daemon.stop()


@pytest.fixture(scope="session")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Convert a model for a number of tensor ranks."""

    def convert(source: Path, size: int, dtype: str = "float32") -> Path:
        target = tmp_path_factory.mktemp("packed") / "model"
        command = [
            sys.executable, "-m", "ascendd", "convert", str(source), str(target), "--dtype", dtype,
            "--tensor-parallel-size", str(size),
        ]  # fmt: skip
        subprocess.run(command, check=True, timeout=300, capture_output=True)
        return target

    return convert


@pytest.fixture(scope="session")
def packed(qwen2_folder: Path, pack: Callable[..., Path]) -> Path:
    """The small Qwen2 for two tensor ranks."""
    return pack(qwen2_folder, 2)


@pytest.fixture
def group(make_machine: Any, serve: Callable[..., Daemon], packed: Path) -> tuple[Machine, Daemon]:
    """A machine of two devices, and a daemon on it whose two ranks hold slices of each layer."""
    machine = make_machine(num_devices=2)
    return machine, serve(machine, packed, "npu", parallel={"tensor_parallel_size": 2})


@pytest.fixture
def text_on_cpu(serve: Callable[..., Daemon]) -> Callable[..., str]:
    """Ask a daemon with one rank on the CPU."""

    def ask(machine: Machine, model: Path, prompt: str) -> str:
        cpu = serve(machine, model, "cpu")
        cpu.wait_ready()
        text = cpu.text(prompt)
        cpu.stop()
        return text

    return ask
