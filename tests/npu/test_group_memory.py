"""Device memory that runs out on one rank of a group, at every stage of its life: one cause, told with its rank."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.slow

ALLOCATE = "aclrtMallocAlign32"
FOR_EVER = 0xFFFFFFFF
MOMENTS = ["load", "measure", "warm-up", "prefill", "decode"]
GRIDS = {
    "tensor": {"tensor_parallel_size": 2},
    "stages": {"pipeline_parallel_size": 2},
}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("grid", GRIDS)
def test_memory_that_runs_out_at_each_moment_is_one_cause_of_one_rank(
    make_machine, start, qwen2_folder, packed, grid
) -> None:
    """
    From the first, and from the last, allocation of each moment on a device has nothing more to give.

    torch_npu's own allocator says so, and the group ends with ASD-D03 and exit status 70, which the supervisor's ladder
    takes; the peer that waits for it is an echo. A run that needed no more memory after all gives the same tokens.
    """
    machine = make_machine(num_devices=2)
    watches = [machine.watch(ALLOCATE, device=device) for device in range(2)]
    program = start(machine, "run_group.py")
    request = {
        "folder": str(qwen2_folder if grid == "stages" else packed),
        "parallel": GRIDS[grid],
        "prompt": [1 + index % 200 for index in range(1500)],
        "max_tokens": 24,
        "watched": 2,
    }
    whole = program.ask(**request)
    expected, seen = whole["tokens"], []
    assert [name for name, _ in whole["moments"]] == MOMENTS
    for device in range(2):
        before = 0
        for name, calls in whole["moments"]:
            last = calls[device]
            for nth in sorted({before + 1, last} if last > before else set()):
                seen.append((device, name, nth, fail_from(machine, program, request, device, nth, expected)))
            before = last
    print(*seen, sep="\n")

    assert len(expected) == 24
    assert all(watch.calls for watch in watches)
    for device in range(2):
        met = {told["moment"] for at, _, _, told in seen if at == device and told is not None}
        assert {"load", "measure"} <= met
        assert met & {"prefill", "decode"}, "memory never ran out in a step"
    assert program.ask(**request)["tokens"] == expected


def fail_from(
    machine: Any, program: Any, request: dict[str, Any], device: int, nth: int, expected: list[int]
) -> dict[str, Any] | None:
    """Run with nothing left on `device` from allocation `nth` on; check what is told, and return it."""
    rule = machine.fault(ALLOCATE, 207001, call=nth, times=FOR_EVER, device=device)
    answer: dict[str, Any] = program.ask(**request)
    rule.times = 0
    if "fault" not in answer:
        assert answer["tokens"] == expected
        return None
    fault = answer["fault"]
    assert (fault["code"], fault["facts"]["rank"], fault["exit_code"]) == ("ASD-D03", device, 70), (nth, answer)
    assert "out of memory" in fault["message"]
    return answer
