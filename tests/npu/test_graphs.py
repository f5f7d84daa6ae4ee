"""Decode graphs through the real torch.npu.NPUGraph: captured, updated with each step's lengths, replayed."""

from __future__ import annotations

from typing import Any

import pytest

# Several engines, or groups of ranks, start in each: minutes, where other tests run beside it.
pytestmark = pytest.mark.timeout(600)

ALLOCATE_IN_CAPTURE = "aclrtMallocAlign32@capture"
FOR_EVER = 0xFFFFFFFF
PROMPTS = [[1, 2, 3], list(range(5, 150)), [7] * 40]
ENGINE = {"max_num_seqs": 4}


def ask(program: Any, folder: Any, **request: Any) -> dict[str, Any]:
    wanted = {"device": "npu", "dtype": "float16", "prompts": PROMPTS, "max_tokens": 8, "engine": ENGINE, **request}
    answer: dict[str, Any] = program.ask(folder=str(folder), **wanted)
    return answer


def test_replays_say_the_cpus_tokens(make_machine, start, qwen2_folder) -> None:
    """Three sequences in the graph of four, whose lengths grow by one at each replay; eager the same."""
    program = start(make_machine(), "run_engine.py")
    graphs = ask(program, qwen2_folder)
    eager = ask(program, qwen2_folder, engine={**ENGINE, "enforce_eager": True})
    cpu = ask(program, qwen2_folder, device="cpu", dtype="float32")

    assert graphs["graph_buckets"] == 3
    assert graphs["replays"] >= 7
    assert (eager["graph_buckets"], eager["replays"]) == (0, 0)
    assert graphs["tokens"] == eager["tokens"] == cpu["tokens"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "code", "call", "left"),
    [
        ("aclmdlRICaptureEnd", 207008, 1, 1),
        ("aclmdlRICaptureBegin", 207005, 2, 1),
        ("aclmdlRICaptureBegin", 207000, 1, 0),
        ("aclmdlRICaptureTaskGrpBegin", 207008, 1, 1),
        ("aclmdlRICaptureTaskGrpEnd", 207001, 3, 1),
    ],
)
def test_a_failed_capture_leaves_fewer_graphs_and_right_tokens(
    make_machine, start, qwen2_folder, function, code, call, left
) -> None:
    """Where the capture begins, ends, or in the middle of it: streams and memory leave fewer, an old CANN none."""
    machine = make_machine()
    program = start(machine, "run_engine.py")
    expected = ask(program, qwen2_folder, engine={**ENGINE, "enforce_eager": True})["tokens"]
    machine.fault(function, code, call=call)
    answer = ask(program, qwen2_folder)

    assert answer["tokens"] == expected
    assert answer["graph_buckets"] == left
    assert (answer["replays"] > 0) == (left > 0)


@pytest.mark.slow
def test_memory_that_runs_out_inside_a_capture_leaves_fewer_graphs_and_right_tokens(
    make_machine, start, qwen2_folder
) -> None:
    """torch_npu's own allocator finds nothing more for a graph's pool: fewer graphs; where it never does, none."""
    machine = make_machine()
    program = start(machine, "run_engine.py")
    calls = machine.watch(ALLOCATE_IN_CAPTURE)
    whole = ask(program, qwen2_folder)
    assert calls.calls, "a capture asks for no memory"
    machine.fault(ALLOCATE_IN_CAPTURE, 207001)
    once = ask(program, qwen2_folder)
    never = machine.fault(ALLOCATE_IN_CAPTURE, 207001, times=FOR_EVER)
    none = ask(program, qwen2_folder)
    never.times = 0

    assert once["tokens"] == none["tokens"] == whole["tokens"]
    assert (whole["graph_buckets"], once["graph_buckets"], none["graph_buckets"]) == (3, 1, 0)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_tensor_ranks_capture_together_or_not_at_all(make_machine, start, qwen2_folder, pack) -> None:
    """
    Graphs of two ranks, their all-reduces on HCCL's streams included, say the tokens of eager steps.

    Then one rank alone cannot capture: another call and another code each time, and memory. Both ranks end with the same
    buckets, each warns with ASD-D06, and the tokens stay right. A rank that gave up its attention takes the other's graphs.
    """
    machine = make_machine(num_devices=2)
    program = start(machine, "run_group.py")
    request = {
        "folder": str(pack(qwen2_folder, 2, "float16")), "dtype": "float16", "parallel": {"tensor_parallel_size": 2},
        "prompt": list(range(5, 40)), "max_tokens": 8, "watched": 0,
    }  # fmt: skip
    graphs = program.ask(**request)
    expected = program.ask(**request, engine={"enforce_eager": True})["tokens"]
    failures = [
        ("aclmdlRICaptureBegin", 207005, 2, 1),
        ("aclmdlRICaptureEnd", 207008, 3, 0),
        (ALLOCATE_IN_CAPTURE, 207001, 1, 1),
        ("aclmdlRICaptureBegin", 207000, 1, 0),
    ]
    answers = []
    for function, code, call, device in failures:
        machine.fault(function, code, call=call, device=device)
        answers.append(program.ask(**request))
    told = program.events("graphs.capture_failed")
    captured = program.events("graphs.captured")
    machine.fault("npu::npu_fused_infer_attention_score", 161002, device=1)
    without = program.ask(**request)

    assert (graphs["tokens"], graphs["graph_buckets"]) == (expected, 3)
    assert graphs["replays"] >= 7
    assert [answer.get("tokens") for answer in answers] == [expected] * 4, answers
    assert [answer["graph_buckets"] for answer in answers] == [1, 1, 1, 0]
    assert [answer["replays"] > 0 for answer in answers] == [True, True, True, False]
    for rank in (0, 1):
        assert [event["buckets"] for event in captured if event["rank"] == rank] == [[1, 2, 4], [2], [2], [1]]
        mine = [event for event in told if event["rank"] == rank]
        assert {event["code"] for event in mine} == {"ASD-D06"}
        assert [event["reason"].startswith("tensor rank ") for event in mine] == [
            device != rank for _, _, _, device in failures
        ]
    assert (without["tokens"], without["graph_buckets"]) == (expected, 0)
