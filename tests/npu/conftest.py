"""Machines of stand-in NPUs, and programs that run on them with the real torch_npu."""

from __future__ import annotations

import contextlib
import json
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
STANDIN = HERE.parent / "standin"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.system)


@pytest.fixture
def make_machine(tmp_path: Path) -> Callable[..., Any]:
    """Make a machine of stand-in NPUs; arguments are those of tests/standin/machine.py. Skips where it cannot be built."""
    if str(STANDIN) not in sys.path:
        sys.path.insert(0, str(STANDIN))
    import build
    import machine

    reason = build.missing()
    if reason is not None:
        pytest.skip(reason)
    build.build()
    made = 0

    def make(**options: Any) -> Any:
        nonlocal made
        made += 1
        return machine.Machine(tmp_path / f"machine-{made}", **options)

    return make


class Program:
    """A program of this folder on a machine: one JSON object a line in, one a line out, among what libraries print."""

    def __init__(self, machine: Any, name: str, log: Path) -> None:
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

    def close(self) -> None:
        """End it, whatever it does."""
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Program]]:
    """Start a program of this folder on a machine."""
    running: list[Program] = []

    def begin(machine: Any, name: str) -> Program:
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
