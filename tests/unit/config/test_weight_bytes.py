"""What weights take in memory, by the format of projections and the device."""

from __future__ import annotations

import pytest

from ascendd.config.model_facts import ModelFacts, facts_from_config
from ascendd.config.weight_bytes import weight_bytes

SIZES = {
    "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 112, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 320, "max_position_embeddings": 4096,
}  # fmt: skip
TABLE = 320 * 64


def model(*, tied: bool) -> ModelFacts:
    return facts_from_config({**SIZES, "tie_word_embeddings": tied})


@pytest.mark.parametrize(("weight_dtype", "size"), [("float16", 2), ("int8", 1)])
def test_projections_count_in_their_own_format(weight_dtype: str, size: int) -> None:
    """Only the embedding stays in float32; a head of its own is a projection."""
    found = weight_bytes(model(tied=False), elements=100_000, dtype="float32", weight_dtype=weight_dtype, is_cpu=True)

    assert found.num_bytes == (100_000 - TABLE) * size + TABLE * 4
    assert found.sum_of == f"79,520 in projections x {size} + 20,480 of the embedding x 4 bytes"


def test_a_tied_head_is_packed_beside_the_embedding() -> None:
    """On a CPU it is one more copy, in the format of projections; elsewhere there is none."""
    tied = model(tied=True)
    on_cpu = weight_bytes(tied, elements=100_000, dtype="float32", is_cpu=True)
    as_int8 = weight_bytes(tied, elements=100_000, dtype="float32", weight_dtype="int8", is_cpu=True)
    elsewhere = weight_bytes(tied, elements=100_000, dtype="float16")

    assert on_cpu.num_bytes == (100_000 + TABLE) * 4
    assert as_int8.num_bytes == 100_000 - TABLE + TABLE * 4 + TABLE
    assert (elsewhere.num_bytes, elsewhere.sum_of) == (200_000, "")


def test_ranks_cut_the_embedding() -> None:
    """Half the vocabulary lies on each of two ranks."""
    found = weight_bytes(
        model(tied=False), elements=50_000, dtype="float32", weight_dtype="int8", tp_size=2, is_cpu=True
    )

    assert found.num_bytes == 50_000 - TABLE // 2 + TABLE // 2 * 4
