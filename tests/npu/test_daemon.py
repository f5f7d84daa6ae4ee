"""The whole daemon with `device: npu`: it answers as on a CPU, and a device that dies or hangs is found and named."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

HERE = Path(__file__).resolve().parent
START_TIMEOUT_S = 90.0
SYNCHRONISE = "aclrtSynchronizeStreamWithTimeout"


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
        found = []
        for line in self._log.read_text(errors="replace").splitlines():
            with contextlib.suppress(ValueError):
                event = json.loads(line)
                if isinstance(event, dict) and event.get("event") == name:
                    found.append(event)
        return found

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

    def text(self, prompt: str) -> str:
        """Return twelve greedy tokens as text. Raises HTTPError."""
        body = json.dumps({"model": "m", "prompt": prompt, "max_tokens": 12, "temperature": 0}).encode()
        request = urllib.request.Request(f"{self._url()}/v1/completions", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as response:
            answer: str = json.load(response)["choices"][0]["text"]
        return answer

    def stop(self) -> None:
        """End it."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(timeout=30)
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

    def begin(machine: Any, model: Path, device: str, **sections: dict[str, Any]) -> Daemon:
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


def test_a_device_that_dies_is_named_and_waited_for(make_machine, serve, qwen2_folder) -> None:
    """The text is the CPU's; the device's death ends the engine with ASD-D04; once it is back the text comes again."""
    machine = make_machine()
    npu, cpu = serve(machine, qwen2_folder, "npu"), serve(machine, qwen2_folder, "cpu")
    cpu.wait_ready()
    expected = cpu.text("hello there")
    cpu.stop()
    npu.wait_ready()
    text = npu.text("hello there")
    machine.kill_device(0)
    with pytest.raises(urllib.error.HTTPError):
        npu.text("again")
    npu.wait(lambda: npu.events("supervisor.child_ended"), "the end of the engine")
    ended = npu.events("supervisor.child_ended")[0]
    machine.revive_device(0)
    npu.wait(
        lambda: len([e for e in npu.events("supervisor.child_ready") if e["child"] == "engine"]) > 1, "a new engine"
    )
    npu.wait_ready()

    assert text == expected
    assert "ASD-D04" in ended["reason"]
    assert "507010" in ended["reason"]
    assert npu.text("hello there") == expected


@pytest.mark.slow
def test_a_synchronisation_that_never_returns_is_a_hang(make_machine, serve, qwen2_folder) -> None:
    """The step's deadline passes, the engine is killed as hung, and the next one serves."""
    machine = make_machine()
    daemon = serve(machine, qwen2_folder, "npu", health={"step_deadline_s": 3.0})
    daemon.wait_ready()
    expected = daemon.text("hello there")
    rule = machine.hang(SYNCHRONISE)
    with pytest.raises((urllib.error.HTTPError, OSError)):
        daemon.text("again")
    daemon.wait(lambda: daemon.events("supervisor.child_ended"), "the end of the engine")
    rule.times = 0

    assert daemon.events("supervisor.child_ended")[0]["cause"] == "hung"
    daemon.wait(
        lambda: len([e for e in daemon.events("supervisor.child_ready") if e["child"] == "engine"]) > 1, "another"
    )
    daemon.wait_ready()
    assert daemon.text("hello there") == expected


@pytest.mark.slow
@pytest.mark.demo
def test_the_demo_model_is_served_with_the_same_text(make_machine, serve, demo_model) -> None:
    """Over HTTP, in float32, beside a daemon on the CPU."""
    machine = make_machine(hbm_bytes=4 << 30)
    npu, cpu = (serve(machine, demo_model, device) for device in ("npu", "cpu"))
    npu.wait_ready()
    cpu.wait_ready()

    assert npu.text("The capital of France is") == cpu.text("The capital of France is")
