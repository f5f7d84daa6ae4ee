"""What ends one rank of a group on NPUs ends the group with that rank's cause, and the next group serves."""

from __future__ import annotations

import os
import signal
import time
import urllib.error
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

# A group starts twice in most of them: minutes, where other tests run beside it.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SYNCHRONISE = "aclrtSynchronizeStreamWithTimeout"
ALLOCATE = "aclrtMallocAlign32"
PROMPT = "hello there"
FOR_EVER = 0xFFFFFFFF


def end_of_group(daemon: Any, prompt: str = "again") -> dict[str, Any]:
    """Ask for text that the group does not live to give; return what the engine told of its end."""
    with pytest.raises((urllib.error.HTTPError, OSError)):
        daemon.text(prompt)
    daemon.wait(lambda: daemon.events("supervisor.child_ended"), "the end of the engine")
    told: list[dict[str, Any]] = daemon.events("engine.group_failed") + daemon.events("engine.rank_hung")
    return told[0]


def pid_of(daemon: Any, rank: int) -> int:
    """Return the process of `rank` in the latest group."""
    return int([event for event in daemon.events("engine.rank_memory") if event["of_rank"] == rank][-1]["pid"])


@pytest.mark.parametrize(
    ("code", "expected"),
    [(507033, "ASD-D04"), (107001, "ASD-D02")],
)
def test_a_runtime_error_of_one_rank(group, code, expected) -> None:
    """At its fourth synchronisation; the error names the rank and the vendor.s code."""
    machine, daemon = group
    daemon.wait_ready()
    machine.fault(SYNCHRONISE, code, call=4, device=1)
    told = end_of_group(daemon)

    assert (told["failed_rank"], told["code"]) == (1, expected)
    assert str(code) in told["reason"]


def test_a_device_that_dies(group) -> None:
    """Rank 0's device is lost; that rank 1 then finds its peer gone is an echo. Once it is back the group serves."""
    machine, daemon = group
    daemon.wait_ready()
    expected = daemon.text(PROMPT)
    machine.kill_device(0)
    told = end_of_group(daemon)
    machine.revive_device(0)
    daemon.wait_another_engine()

    assert (told["failed_rank"], told["code"]) == (0, "ASD-D04")
    assert daemon.text(PROMPT) == expected


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
@pytest.mark.parametrize("function", ["HcclAllReduce", "HcclSend"])
def test_a_peer_that_dies_inside_a_collective(make_machine, serve, qwen2_folder, packed, function, number) -> None:
    """
    One rank is in the call when a signal ends it; the other waits on its device for what does not come.

    Of tensor ranks rank 1 in an all-reduce, of stages rank 0 in a send. The end names it with the signal, long before the
    deadline of a step (120 s), and the next group serves.
    """
    stages, victim = function == "HcclSend", 0 if function == "HcclSend" else 1
    machine = make_machine(num_devices=2)
    daemon = serve(
        machine,
        qwen2_folder if stages else packed,
        "npu",
        parallel={"pipeline_parallel_size": 2} if stages else {"tensor_parallel_size": 2},
    )
    daemon.wait_ready()
    expected = daemon.text(PROMPT)
    rule = machine.hang(function, call=2, device=victim)
    with ThreadPoolExecutor(1) as pool:
        told = pool.submit(end_of_group, daemon)
        daemon.wait(lambda: rule.calls >= 2, "the call")
        began = time.monotonic()
        os.kill(pid_of(daemon, victim), number)
        end = told.result()
        took_s = time.monotonic() - began
    rule.times = 0
    daemon.wait_another_engine()

    assert (end["failed_rank"], end["code"]) == (victim, "ASD-E04")
    assert signal.Signals(number).name in end["reason"]
    assert took_s < 60.0
    assert daemon.text(PROMPT) == expected


def test_memory_that_runs_out_on_one_rank(group) -> None:
    """torch_npu's own allocator finds nothing more on device 1 in a step: ASD-D03 of rank 1."""
    machine, daemon = group
    daemon.wait_ready()
    expected = daemon.text(PROMPT)
    rule = machine.fault(ALLOCATE, 207001, times=FOR_EVER, device=1)
    told = end_of_group(daemon, "a " * 230)
    rule.times = 0
    daemon.wait_another_engine()

    assert (told["failed_rank"], told["code"]) == (1, "ASD-D03")
    assert daemon.text(PROMPT) == expected


@pytest.mark.parametrize("function", [SYNCHRONISE, "HcclAllReduce"])
def test_a_rank_that_hangs(make_machine, serve, packed, function) -> None:
    """
    Rank 1 hangs in a synchronisation, or a collective never returns to it: it is named, not the one that waits for it.

    The step's deadline of 3 s and the supervisor's grace of 5 s bound it. The stacks of both ranks are told before the end.
    """
    machine = make_machine(num_devices=2)
    daemon = serve(machine, packed, "npu", parallel={"tensor_parallel_size": 2}, health={"step_deadline_s": 3.0})
    daemon.wait_ready()
    expected = daemon.text(PROMPT)
    rule = machine.hang(function, device=1)
    told = end_of_group(daemon)
    rule.times = 0
    (ended,) = daemon.events("supervisor.child_ended")
    stacks = {event["of_rank"]: event["stacks"] for event in daemon.events("engine.rank_stacks")}
    daemon.wait_another_engine()

    assert (told["failed_rank"], told["code"]) == (1, "ASD-E03"), told
    assert "rank 1 (tensor 1 of 2) makes no progress" in ended["reason"]
    assert ended["cause"] == "hung"
    assert not daemon.events("supervisor.child_hung"), "the engine was to find it before the supervisor did"
    assert set(stacks) == {0, 1}
    assert all("model_runner.py" in text for text in stacks.values())
    assert daemon.text(PROMPT) == expected
