"""The servers that front_end.py measures: each a process on a loopback port, with an engine that computes nothing."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ascendd.config.load import convert
from ascendd.errors import PeerClosed
from ascendd.ipc.channel import BlockingChannel, socket_pair
from ascendd.ipc.frames import encode_frame
from ascendd.ipc.messages import AttachPeer, Configure, ControlMessage, EngineState, Hello, Role

HERE = Path(__file__).resolve().parent
CONTEXT = 2048
READY_TIMEOUT_S = 180.0


@dataclass(frozen=True)
class Server:
    """One that listens; `pid` is the process whose time counts."""

    name: str
    port: int
    pid: int


def free_port() -> int:
    """Return a port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def ascendd(name: str, model: Path, step_ms: float, tree: Path | None = None) -> Iterator[Server]:
    """Serve with the API process of this checkout, or of another one at `tree`."""
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    if tree is not None:
        environ["PYTHONPATH"] = str(tree)
    config = convert({
        "model": {"path": str(model), "name": "bench"}, "log": {"level": "warning"}, "admission": {"max_queue": 100_000},
    })  # fmt: skip
    vocabulary = json.loads((model / "config.json").read_text())["vocab_size"]
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    control_end, api_control = socket.socketpair()
    api_data, engine_data = socket_pair()
    fds = (api_control.fileno(), listener.fileno())
    command = [sys.executable, "-m", "ascendd", "_api", "--control-fd", str(fds[0]), "--listen-fd", str(fds[1])]
    api = subprocess.Popen(command, pass_fds=fds, env=environ, stdout=subprocess.DEVNULL)
    engine = subprocess.Popen(
        [sys.executable, str(HERE / "null_engine.py"), str(engine_data.fileno()), str(step_ms), str(vocabulary),
         str(CONTEXT)],
        pass_fds=(engine_data.fileno(),),
    )  # fmt: skip
    port = int(listener.getsockname()[1])
    for sock in (listener, api_control, engine_data):
        sock.close()
    control: BlockingChannel[ControlMessage] = BlockingChannel(control_end, ControlMessage)
    while not isinstance(control.recv(60.0), Hello):
        pass
    control.send(Configure(msgspec.json.encode(config)))
    socket.send_fds(control_end, [encode_frame(AttachPeer(Role.ENGINE, 1))], [api_data.fileno()])
    api_data.close()
    control.send(EngineState(ready=True, text="serving"))
    threading.Thread(target=_read_all, args=(control,), daemon=True).start()
    try:
        wait_ready(port, api)
        yield Server(name, port, api.pid)
    finally:
        for process in (api, engine):
            process.kill()
            process.wait()


def _read_all(control: BlockingChannel[ControlMessage]) -> None:
    with contextlib.suppress(PeerClosed):
        while True:
            control.recv(None)


@contextlib.contextmanager
def script(name: str, python: str, file: str, *args: str) -> Iterator[Server]:
    """Serve with the script `file` of this folder, whose last two arguments are port and STEP_MS."""
    *head, step_ms = args
    port = free_port()
    process = subprocess.Popen(
        [python, str(HERE / file), *head, str(port), step_ms],
        env={**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_ready(port, process)
        yield Server(name, port, process.pid)
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_ready(port: int, process: subprocess.Popen[bytes]) -> None:
    """Return once a request is answered. Raises RuntimeError where the process ends or does not come up."""
    deadline = time.monotonic() + READY_TIMEOUT_S
    body = json.dumps({"model": "bench", "prompt": "hello", "max_tokens": 1}).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/completions", data=body, headers={"Content-Type": "application/json"}
    )
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with status {process.returncode} before it was ready")
        try:
            with urllib.request.urlopen(request, timeout=30):
                return
        except (OSError, urllib.error.HTTPError):
            time.sleep(0.2)
    raise RuntimeError(f"the server was not ready within {READY_TIMEOUT_S:g} s")
