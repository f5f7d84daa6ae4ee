"""The whole daemon over several stand-in NPUs and the real `hccl` backend: the CPU's text, and a rank's fault named."""

from __future__ import annotations

import subprocess
import sys
import urllib.error
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

SYNCHRONISE = "aclrtSynchronizeStreamWithTimeout"
PROMPT = "hello there"


def pack(source: Path, target: Path, size: int) -> Path:
    """Convert for `size` tensor ranks."""
    command = [
        sys.executable, "-m", "ascendd", "convert", str(source), str(target), "--dtype", "float32",
        "--tensor-parallel-size", str(size),
    ]  # fmt: skip
    subprocess.run(command, check=True, timeout=300, capture_output=True)
    return target


def text_on_cpu(serve: Callable[..., Any], machine: Any, model: Path, prompt: str = PROMPT) -> str:
    """Return the text of one rank on the CPU."""
    cpu = serve(machine, model, "cpu")
    cpu.wait_ready()
    text: str = cpu.text(prompt)
    cpu.stop()
    return text


@pytest.fixture(scope="module")
def packed(qwen2_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small Qwen2 for two tensor ranks."""
    return pack(qwen2_folder, tmp_path_factory.mktemp("packed") / "qwen2", 2)


@pytest.fixture
def group(make_machine, serve, packed) -> Iterator[tuple[Any, Any]]:
    """A machine of two devices, and a daemon on it whose two ranks hold slices of each layer."""
    machine = make_machine(num_devices=2, heartbeat_s=1.0)
    yield machine, serve(machine, packed, "npu", parallel={"tensor_parallel_size": 2})


def test_a_fault_of_one_rank_is_named_and_the_group_comes_again(group, serve, qwen2_folder) -> None:
    """Two tensor ranks say the CPU's text; 507035 on device 1 ends both with ASD-D01 of rank 1, and the next two serve."""
    machine, daemon = group
    expected = text_on_cpu(serve, machine, qwen2_folder)
    daemon.wait_ready()
    text = daemon.text(PROMPT)
    machine.fault(SYNCHRONISE, 507035, call=3, device=1)
    with pytest.raises(urllib.error.HTTPError):
        daemon.text("again")
    daemon.wait(lambda: daemon.events("supervisor.child_ended"), "the end of the engine")
    failed = daemon.events("engine.group_failed")[0]
    daemon.wait_another_engine()

    assert text == expected
    assert (failed["failed_rank"], failed["code"]) == (1, "ASD-D01")
    assert "507035" in failed["reason"]
    assert "ASD-D01" in daemon.events("supervisor.child_ended")[0]["reason"]
    assert daemon.text(PROMPT) == expected
