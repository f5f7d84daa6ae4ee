"""A real daemon with a tiny random model, for tests that ask it over HTTP."""

from __future__ import annotations

import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from loopback_ports import free_ports

TINY_MODEL = Path(__file__).resolve().parent / "tiny_qwen2.py"


@pytest.fixture(scope="module")
def tiny_daemon(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., AbstractContextManager[int]]:
    """
    Return what serves the model with a max_model_len and keys of `engine`; it yields the port of the API.

    `sections` are further lines of the instance file, such as another `metrics` than on a port that nobody is told.
    """

    @contextmanager
    def serve(max_model_len: int, engine: str, sections: str = "") -> Iterator[int]:
        folder = tmp_path_factory.mktemp("daemon")
        tiny = folder / "tiny"
        subprocess.run([sys.executable, str(TINY_MODEL), str(tiny)], check=True, capture_output=True, timeout=120)
        api_port, metrics_port = free_ports(2)
        (folder / "instance.yaml").write_text(
            f"model: {{path: {tiny}, max_model_len: {max_model_len}}}\n"
            f"listen: {{port: {api_port}}}\n"
            f"engine: {{device: cpu, num_threads: 1, {engine}}}\n"
            + ("" if "metrics:" in sections else f"metrics: {{port: {metrics_port}}}\n")
            + sections
        )
        command = [sys.executable, "-m", "ascendd", "run", "--instance", "tiny", "--config"]
        log_path = folder / "daemon.log"
        with log_path.open("wb") as log, subprocess.Popen(
            [*command, str(folder / "instance.yaml")], stdout=log, stderr=log
        ) as process:  # fmt: skip
            try:
                deadline = time.monotonic() + 90
                while not _is_ready(api_port):
                    assert process.poll() is None, log_path.read_text()
                    assert time.monotonic() < deadline, log_path.read_text()
                    time.sleep(0.1)
                yield api_port
                assert process.poll() is None, log_path.read_text()
                assert "Traceback" not in log_path.read_text()
            finally:
                process.terminate()
                process.wait(30)

    return serve


def _is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5) as response:
            return bool(response.status == 200)
    except OSError:
        return False
