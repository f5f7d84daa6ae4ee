"""The kernels' proof at start, on a device whose numbers are wrong on demand."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from ascendd.device.base import KernelShapes

# The two forms of the fused attention: heads of 64, and of 128.
DENSE = KernelShapes("float16", 256, 512, 4, 2, 64, 64, 1e-6, 128)
WIDE = dataclasses.replace(DENSE, head_dim=128, rotary_dim=128)
# As many heads as the fused attention takes over latents, and a few experts.
LATENT = KernelShapes("float16", 256, 512, 32, 32, 192, 64, 1e-6, 128, 512, 128, 128, 8, 2, 64)
# Operator and number of its floating-point result -> the kernels that go by it, as the proof names them.
KERNELS = {
    ("npu_rms_norm", 0): {"rms_norm"},
    ("npu_add_rms_norm", 0): {"add_rms_norm"},
    ("npu_add_rms_norm", 2): {"add_rms_norm"},  # the sum; 1 is what training would want
    ("npu_rotary_mul", 0): {"rope", "rope_interleaved"},
    ("npu_swiglu", 0): {"silu_and_mul"},  # given up before the experts are proven, which then go without it
    ("npu_fused_infer_attention_score", 0): {"paged_attention", "latent_attention"},
    ("npu_moe_init_routing_v2", 0): {"experts"},
    ("npu_grouped_matmul", 0): {"experts"},
    ("npu_moe_token_unpermute", 0): {"experts"},
    # Keys and values; of latents, which go into their cache by the same operator, contents and rotated parts.
    ("npu_scatter_pa_kv_cache", 0): {"store_kv", "latent_attention"},
    ("npu_scatter_pa_kv_cache", 1): {"store_kv", "latent_attention"},
    ("npu_format_cast", 0): {"weight_format"},
}
ALL = {name for names in KERNELS.values() for name in names}
HALF_ONLY = {"paged_attention", "latent_attention", "experts"}
# What each generation fuses of both models in float16, as device/soc.py has it, and the dtypes that it is fast in.
GENERATIONS = {
    "Ascend910A": ({"rms_norm"}, ["float16"]),
    "Ascend310P3": ({"rms_norm", "add_rms_norm", "rope", "silu_and_mul", "weight_format"}, ["float16"]),
    "Ascend910B3": (ALL, ["float16", "bfloat16"]),
    "Ascend910_9391": (ALL, ["float16", "bfloat16"]),
}


def prove(program: Any, dtype: str) -> dict[str, list[tuple[bool, str]]]:
    """Return kernel -> (passed, detail) in each model that goes by it: two dense ones, and one with latents and experts."""
    found: dict[str, list[tuple[bool, str]]] = {}
    for shapes in (DENSE, WIDE, LATENT):
        answer = program.ask(**dataclasses.asdict(dataclasses.replace(shapes, dtype=dtype)))
        for kernel, (passed, detail) in answer.items():
            found.setdefault(kernel, []).append((passed, detail))
    return found


def failed(verdicts: dict[str, list[tuple[bool, str]]]) -> dict[str, list[str]]:
    """Return kernel -> what was wrong in each model where it did not pass."""
    wrong = {kernel: [detail for passed, detail in found if not passed] for kernel, found in verdicts.items()}
    return {kernel: details for kernel, details in wrong.items() if details}


@pytest.mark.parametrize("soc", GENERATIONS)
def test_each_generation_proves_its_own_set_of_kernels(make_machine, start, soc) -> None:
    """
    The chip's name, as its runtime gives it, chooses the set before anything is run, and all of it passes in each dtype.

    Attention and experts have no fused form for float32.
    """
    fused, dtypes = GENERATIONS[soc]
    program = start(make_machine(soc=soc), "prove.py")
    for dtype in (*dtypes, "float32"):
        verdicts = prove(program, dtype)

        assert failed(verdicts) == {}, dtype
        assert set(verdicts) == (fused - HALF_ONLY if dtype == "float32" else fused)


@pytest.mark.parametrize("soc", GENERATIONS)
def test_an_operator_that_is_one_percent_off_is_found_and_named(make_machine, start, soc) -> None:
    """
    Each result of each operator in turn, in every model and every dtype that the chip is fast in.

    No other kernel is blamed for it, every kernel of the chip is caught, and all pass again once the device is right.
    """
    fused, dtypes = GENERATIONS[soc]
    machine = make_machine(soc=soc)
    program = start(machine, "prove.py")
    for dtype in dtypes:
        caught = set()
        for (operator, output), kernels in KERNELS.items():
            machine.perturb(f"npu::{operator}", 1.01, output=output)
            verdicts = prove(program, dtype)
            wrong = failed(verdicts)
            caught |= wrong.keys()

            assert wrong.keys() == kernels & fused, (operator, output, dtype)
            for kernel, details in wrong.items():
                assert len(details) == len(verdicts[kernel]), f"{operator} passes in a model: {verdicts[kernel]}"
                assert all("deviation" in detail for detail in details)
        machine.perturb(None)

        assert caught == fused
        assert failed(prove(program, dtype)) == {}
