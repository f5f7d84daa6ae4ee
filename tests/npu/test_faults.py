"""Errors of the vendor's libraries at a chosen moment, and what the engine makes of them."""

from __future__ import annotations

from typing import Any

import pytest

SYNCHRONISE = "aclrtSynchronizeStreamWithTimeout"
ALLOCATE = "aclrtMallocAlign32"
FOR_EVER = 0xFFFFFFFF


def ask(program: Any, folder: Any, **request: Any) -> dict[str, Any]:
    wanted = {"device": "npu", "dtype": "float32", "prompts": [[1, 2, 3]], "max_tokens": 6, **request}
    answer: dict[str, Any] = program.ask(folder=str(folder), **wanted)
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
def test_real_memory_shortage_is_told_or_survived_wherever_it_comes(make_machine, start, qwen2_folder) -> None:
    """
    From each allocation of a run on nothing more is to be had: torch_npu's own allocator says so.

    A start ends with ASD-D03. In a step the request alone is refused, or the engine gets by with what it has and the
    tokens are the same. A process goes on after each. The prompt takes four steps, each with more to attend to than the one before.
    """
    machine = make_machine()
    program = start(machine, "run_engine.py")
    long = {"prompts": [[1 + index % 200 for index in range(2000)]], "engine": {"max_num_batched_tokens": 512}}
    expected = ask(program, qwen2_folder, **long)["tokens"]
    calls = machine.watch(ALLOCATE)
    assert ask(program, qwen2_folder, **long)["tokens"] == expected
    moments = set()
    for nth in range(1, int(calls.calls) + 1):
        rule = machine.fault(ALLOCATE, 207001, call=nth, times=FOR_EVER)
        answer = ask(program, qwen2_folder, **long)
        rule.times = 0
        if "fault" not in answer:
            assert answer["tokens"] == expected
            continue
        moments.add(answer["step"])

        # In a step: the request is refused for being too large, by a code of its own.
        assert answer["fault"]["code"] == ("ASD-D03" if answer["step"] < 0 else "ASD-R16"), (
            f"allocation {nth}: {answer}"
        )
        assert "NPU out of memory" in answer["fault"]["message"]
    assert -1 in moments
    assert len(moments) > 1, "memory never ran out in a step"
    assert ask(program, qwen2_folder, **long)["tokens"] == expected
