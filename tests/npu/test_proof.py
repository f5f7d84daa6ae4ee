"""The kernels' proof at start, on a device whose numbers are wrong on demand."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from ascendd.device.base import KernelShapes

DENSE = KernelShapes("float16", 256, 512, 4, 2, 64, 64, 1e-6, 128)
# As many heads as the fused attention takes over latents, and a few experts.
LATENT = KernelShapes("float16", 256, 512, 32, 32, 192, 64, 1e-6, 128, 512, 128, 128, 8, 2, 64)
# Operator -> the kernels that go by it, as the proof names them.
KERNELS = {
    "npu_rms_norm": {"rms_norm"},
    "npu_add_rms_norm": {"add_rms_norm"},
    "npu_rotary_mul": {"rope", "rope_interleaved"},
    "npu_swiglu": {"silu_and_mul"},  # given up before the experts are proven, which then go without it
    "npu_fused_infer_attention_score": {"paged_attention", "latent_attention"},
    "npu_moe_init_routing_v2": {"experts"},
    "npu_grouped_matmul": {"experts"},
    "npu_moe_token_unpermute": {"experts"},
    # The latents go into their cache by the same operator.
    "npu_scatter_pa_kv_cache": {"store_kv", "latent_attention"},
    "npu_format_cast": {"weight_format"},
}
ALL = {name for names in KERNELS.values() for name in names}
# What each generation fuses of a dense model in float16, as device/soc.py has it.
GENERATIONS = {
    "Ascend910A": {"rms_norm"},
    "Ascend310P3": {"rms_norm", "add_rms_norm", "rope", "silu_and_mul", "weight_format"},
    "Ascend910_9391": {
        "rms_norm",
        "add_rms_norm",
        "rope",
        "silu_and_mul",
        "store_kv",
        "paged_attention",
        "weight_format",
    },
}


def prove(program: Any, dtype: str = "float16") -> dict[str, tuple[bool, str]]:
    """Return kernel -> (passed in every model, the worst detail) over a dense model and one with latents and experts."""
    found: dict[str, tuple[bool, str]] = {}
    for shapes in (DENSE, LATENT):
        for kernel, (passed, detail) in program.ask(
            **dataclasses.asdict(dataclasses.replace(shapes, dtype=dtype))
        ).items():
            if passed is False or kernel not in found:
                found[kernel] = (passed, detail)
    return found


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_every_kernel_proves_itself_on_a_device_that_is_right(make_machine, start, dtype) -> None:
    """All of them pass; attention and experts have no fused form for float32."""
    verdicts = prove(start(make_machine(), "prove.py"), dtype)
    without = {"paged_attention", "latent_attention", "experts"} if dtype == "float32" else set()

    assert {kernel: detail for kernel, (passed, detail) in verdicts.items() if not passed} == {}
    assert set(verdicts) == ALL - without


def test_an_operator_that_is_one_percent_off_is_found_and_named(make_machine, start) -> None:
    """Each in turn; no other kernel is blamed for it, and all pass again once the device is right."""
    machine = make_machine()
    program = start(machine, "prove.py")
    for operator, kernels in KERNELS.items():
        machine.perturb(f"npu::{operator}", 1.01)
        verdicts = prove(program)

        assert {kernel for kernel, (passed, _) in verdicts.items() if not passed} == kernels, operator
        assert all("deviation" in verdicts[kernel][1] for kernel in kernels)
    machine.perturb(None)

    assert all(passed for passed, _ in prove(program).values())


@pytest.mark.slow
@pytest.mark.parametrize("soc", GENERATIONS)
def test_each_generation_proves_its_own_set_of_kernels(make_machine, start, soc) -> None:
    """The chip's name, as its runtime gives it, chooses the set before anything is run, and all of it passes."""
    verdicts = start(make_machine(soc=soc), "prove.py").ask(**dataclasses.asdict(DENSE))

    assert {kernel for kernel, (passed, _) in verdicts.items() if passed} == GENERATIONS[soc]
    assert all(passed for passed, _ in verdicts.values())
