"""The engine through device/npu.py and kernels/npu.py: the tokens of the CPU, on the real torch_npu."""

from __future__ import annotations

from typing import Any

import pytest

PROMPTS = [[1, 2, 3], list(range(5, 150)), [7] * 40]


def ask(program: Any, folder: Any, **request: Any) -> dict[str, Any]:
    answer: dict[str, Any] = program.ask(
        folder=str(folder), **{"device": "npu", "dtype": "float32", "prompts": PROMPTS, "max_tokens": 6, **request}
    )
    return answer


def test_greedy_tokens_are_those_of_the_cpu(make_machine, start, qwen2_folder) -> None:
    """In float32 token for token, with the fused norm, rotation, activation and cache writes; blocks of 128."""
    program = start(make_machine(), "run_engine.py")
    npu, cpu = ask(program, qwen2_folder), ask(program, qwen2_folder, device="cpu")

    assert npu["tokens"] == cpu["tokens"]
    assert npu["fused"] == ["add_rms_norm", "rms_norm", "rope", "silu_and_mul", "store_kv"]
    assert npu["block_size"] == 128
    assert all(npu["kernels"].values())


def test_half_precision_goes_through_the_fused_attention(make_machine, start, qwen2_folder) -> None:
    """In float16 the same tokens still: this model's best logits lie further apart than the rounding."""
    program = start(make_machine(), "run_engine.py")
    npu, cpu = ask(program, qwen2_folder, dtype="float16"), ask(program, qwen2_folder, device="cpu")

    assert npu["tokens"] == cpu["tokens"]
    assert "paged_attention" in npu["fused"]


def test_a_wrong_operator_costs_speed_and_no_token(make_machine, start, qwen2_folder) -> None:
    """With rms_norm 1 % off the reference stands in for it, and the tokens are right."""
    machine = make_machine()
    program = start(machine, "run_engine.py")
    machine.perturb("npu::npu_rms_norm", 1.01)
    npu, cpu = ask(program, qwen2_folder), ask(program, qwen2_folder, device="cpu")

    assert npu["kernels"]["rms_norm"] is False
    assert "rms_norm" not in npu["fused"]
    assert npu["tokens"] == cpu["tokens"]


@pytest.mark.demo
@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_the_demo_model_says_the_same(make_machine, start, demo_model, dtype) -> None:
    """Sixteen greedy tokens of the demo model, beside the CPU in float32."""
    program = start(make_machine(hbm_bytes=4 << 30), "run_engine.py")
    prompts, engine = [[504, 3575, 282, 4649, 314]], {"kv_cache_memory": "512MiB"}
    npu = ask(program, demo_model, dtype=dtype, prompts=prompts, max_tokens=16, engine=engine)
    cpu = ask(program, demo_model, device="cpu", prompts=prompts, max_tokens=16, engine=engine)

    assert npu["tokens"] == cpu["tokens"]
