"""Machines of stand-in NPUs, and programs that run on them with the real torch_npu."""

from __future__ import annotations

import contextlib
import json
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from standin.machine import Machine

HERE = Path(__file__).resolve().parent


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
