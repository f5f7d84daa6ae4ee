"""Decode graphs through the real torch.npu.NPUGraph: captured, updated with each step's lengths, replayed."""

from __future__ import annotations

from typing import Any

import pytest

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
