"""The memory plan: what fits, and what a start makes of it once it has measured."""

from __future__ import annotations

import pytest

from ascendd.config.model_facts import facts_from_config
from ascendd.config.plan import DeviceFacts, MemoryPlan, fit_measured, plan_memory
from ascendd.errors import PlanDoesNotFit

TINY = facts_from_config({
    "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 112, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 320, "max_position_embeddings": 4096,
})  # fmt: skip
MIB = 2**20
# 2 x 2 layers x 2 heads x 16 x 4 bytes x 16 tokens
BLOCK = 8192


def plan(**changes: object) -> MemoryPlan:
    device = DeviceFacts(
        kind="npu", name="a device", total_bytes=100 * MIB, free_bytes=100 * MIB, fast_dtypes=("float32",)
    )
    values: dict[str, object] = {
        "facts": TINY, "device": device, "dtype": "float32", "kv_dtype": "float32", "block_size": 16, "tp_size": 1,
        "max_num_seqs": 64, "max_model_len": 4096, "reserve_bytes": 10 * MIB, "weight_elements": 5 * MIB,
    }  # fmt: skip
    return plan_memory(**{**values, **changes})  # type: ignore[arg-type]


def test_a_given_reserve_leaves_all_the_rest() -> None:
    """100 MiB - 20 MiB of weights - 10 MiB of reserve hold 8,960 blocks of 8 KiB."""
    made = plan()

    assert (made.bytes_per_block, made.room_bytes, made.num_fitting) == (BLOCK, 70 * MIB, 70 * MIB // BLOCK)
    assert made.num_blocks == made.num_fitting
    assert (made.weights_origin, made.reserve_origin, made.is_asked) == ("its files", "given", False)


def test_without_a_reserve_a_tenth_is_left_alone() -> None:
    """The assumed reserve does not fit a device of 100 MiB, and the message has the whole sum."""
    with pytest.raises(
        PlanDoesNotFit, match=r"90\.00 MiB usable - 20\.00 MiB weights - 768\.0 MiB reserve \(assumed\)"
    ):
        plan(reserve_bytes=None)


def test_a_start_keeps_the_plan_that_fits() -> None:
    """The reserve becomes the measured one; more room than planned gives no more blocks."""
    measured = fit_measured(plan(), free_bytes=80 * MIB, activation_bytes=1 * MIB, max_model_len=4096)

    assert (measured.num_blocks, measured.reserve_bytes) == (plan().num_blocks, 1 * MIB)
    assert measured.reserve_origin == "measured at start"
    assert measured.room_bytes == 79 * MIB


def test_a_start_shrinks_a_default_to_what_is_free() -> None:
    """Nobody asked for that many blocks, so a start with 40 MiB free goes on with fewer."""
    measured = fit_measured(plan(), free_bytes=40 * MIB, activation_bytes=4 * MIB, max_model_len=4096)

    assert measured.num_blocks == 36 * MIB // BLOCK
    assert measured.origin == "what was free with the weights loaded"


@pytest.mark.parametrize(
    ("asked", "max_model_len", "remedy"),
    [(8000, 64, "--max-num-blocks 4608"), (None, 100_000, f"--max-model-len {4608 * 16}")],
)
def test_a_start_refuses_what_does_not_fit(asked: int | None, max_model_len: int, remedy: str) -> None:
    """A number that was asked for, or a pool too small for one sequence, ends the start with the number that fits."""
    with pytest.raises(PlanDoesNotFit, match=r"reserve \(measured at start\) leave room for 4608 blocks") as caught:
        fit_measured(
            plan(max_num_blocks=asked), free_bytes=40 * MIB, activation_bytes=4 * MIB, max_model_len=max_model_len
        )

    assert caught.value.facts["fitting"] == 4608
    assert remedy in caught.value.remedy
