"""Errors of the vendor's libraries at a chosen moment, and what the engine makes of them."""

from __future__ import annotations

from typing import Any

import pytest

SYNCHRONISE = "aclrtSynchronizeStreamWithTimeout"
ALLOCATE = "aclrtMallocAlign32"
FOR_EVER = 0xFFFFFFFF


def ask(program: Any, folder: Any) -> dict[str, Any]:
    answer: dict[str, Any] = program.ask(
        folder=str(folder), device="npu", dtype="float32", prompts=[[1, 2, 3]], max_tokens=6,
        engine={"kv_cache_memory": "8MiB"},
    )  # fmt: skip
    return answer


def num_calls(make_machine: Any, start: Any, folder: Any, function: str) -> int:
    """Return how often a run without faults calls `function`."""
    machine = make_machine()
    calls = machine.watch(function)
    answer = ask(start(machine, "run_engine.py"), folder)
    assert "tokens" in answer
    return int(calls.calls)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "expected", "action"),
    [
        (507035, "ASD-D01", "process_restart"),
        (507033, "ASD-D04", "device_reset_or_reinstall"),
        (107001, "ASD-D02", "fix_config"),
    ],
)
def test_a_runtime_error_in_a_step_is_classified(make_machine, start, qwen2_folder, code, expected, action) -> None:
    """The last synchronisation of a run returns the code: torch_npu raises, and the fault names code and action."""
    last = num_calls(make_machine, start, qwen2_folder, SYNCHRONISE)
    machine = make_machine()
    machine.fault(SYNCHRONISE, code, call=last)
    answer = ask(start(machine, "run_engine.py"), qwen2_folder)

    assert answer["fault"]["code"] == expected
    assert answer["fault"]["facts"]["vendor_code"] == str(code)
    assert answer["fault"]["facts"]["action"] == action
    assert answer["step"] > 0


@pytest.mark.slow
@pytest.mark.parametrize(("code", "expected"), [(507033, "ASD-D04"), (107001, "ASD-D02")])
def test_a_device_that_cannot_be_opened_is_told_at_start(make_machine, start, qwen2_folder, code, expected) -> None:
    """AclrtSetDevice is the first call that touches it."""
    machine = make_machine()
    machine.fault("aclrtSetDevice", code, times=FOR_EVER)
    answer = ask(start(machine, "run_engine.py"), qwen2_folder)

    assert answer["fault"]["code"] == expected
    assert answer["step"] == -1


def test_a_device_that_dies_is_lost(make_machine, start, qwen2_folder) -> None:
    """Every call fails from then on with the heartbeat's code."""
    machine = make_machine()
    program = start(machine, "run_engine.py")
    assert "tokens" in ask(program, qwen2_folder)
    machine.kill_device(0)
    answer = ask(program, qwen2_folder)

    assert answer["fault"]["code"] == "ASD-D04"
    assert answer["fault"]["facts"]["vendor_code"] == "507010"


@pytest.mark.slow
def test_real_memory_shortage_is_told_wherever_it_comes(make_machine, start, qwen2_folder) -> None:
    """Each allocation of a run fails in turn: torch_npu's own allocator says so, and the process goes on after each."""
    machine = make_machine()
    program = start(machine, "run_engine.py")
    assert "tokens" in ask(program, qwen2_folder)
    calls = machine.watch(ALLOCATE)
    assert "tokens" in ask(program, qwen2_folder)
    steps = set()
    for nth in range(1, int(calls.calls) + 1):
        rule = machine.fault(ALLOCATE, 207001, call=nth, times=FOR_EVER)
        answer = ask(program, qwen2_folder)
        rule.times = 0

        assert answer["fault"]["code"] == "ASD-D03", f"allocation {nth}: {answer}"
        assert "NPU out of memory" in answer["fault"]["message"]
        steps.add(answer["step"])
    assert len(steps) > 1, "memory ran out at the same moment each time"
    assert "tokens" in ask(program, qwen2_folder)
