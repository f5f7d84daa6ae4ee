"""Tests of the stand-in NPU itself; what uses it takes the fixture `make_npu_machine` of tests/conftest.py."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from standin.machine import Machine
    from standin.shell import Shell

HERE = Path(__file__).parent
# The meanings of npu operators are functions on CPU tensors: their vectors need no process of their own.
sys.path.insert(0, str(HERE / "child"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.torch)


@pytest.fixture(scope="module")
def machine(make_npu_machine: Callable[..., Machine], tmp_path_factory: pytest.TempPathFactory) -> Machine:
    """Two devices of 256 MiB."""
    return make_npu_machine(tmp_path_factory.mktemp("npu"), num_devices=2, hbm_bytes=256 << 20)


@pytest.fixture(scope="module")
def shell(machine: Machine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """A process with torch_npu imported and device 0 set."""
    from standin.shell import Shell

    with Shell(machine, tmp_path_factory.mktemp("shell") / "stderr") as process:
        process.run("import torch, torch_npu, json\ntorch.npu.set_device(0)")
        yield process
