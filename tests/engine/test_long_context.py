"""Rope scalings: the frequencies of transformers, and models on both sides of the length where they change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from ascendd.config.model_facts import facts_from_config
from ascendd.engine.layers.rope_scaling import rotary_frequencies
from ascendd.engine.layers.rotary import RotaryTable

SIZES = {
    "hidden_size": 64, "intermediate_size": 112, "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": 320,
    "max_position_embeddings": 256,
}  # fmt: skip
LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
FACTORS = {"short_factor": [1.0 + 0.1 * pair for pair in range(8)], "long_factor": [2.0 + pair for pair in range(8)]}
SCALINGS: list[tuple[str, dict[str, Any], int | None]] = [
    ("linear", {"factor": 2.0}, None),
    ("dynamic", {"factor": 2.0}, None),
    ("dynamic", {"factor": 3.0}, 768),  # transformers at the longest sequence is what long ones get here
    ("llama3", {"factor": 8.0, **LLAMA3}, None),
    ("yarn", {"factor": 4.0, "original_max_position_embeddings": 64}, None),
    ("yarn", {"factor": 4.0, "original_max_position_embeddings": 64, "truncate": False, "beta_fast": 16}, None),
    ("yarn", {"factor": 4.0, "original_max_position_embeddings": 64, "mscale": 0.7, "mscale_all_dim": 0.9}, None),
    ("yarn", {"factor": 4.0, "original_max_position_embeddings": 64, "attention_factor": 0.8}, None),
    ("longrope", {"original_max_position_embeddings": 64, **FACTORS}, None),
    ("longrope", {"original_max_position_embeddings": 64, **FACTORS}, 65),
    ("longrope", {"original_max_position_embeddings": 64, "factor": 8.0, **FACTORS}, 65),
]


@pytest.mark.parametrize(("kind", "numbers", "long_length"), SCALINGS)
def test_frequencies_are_those_of_transformers(kind: str, numbers: dict[str, Any], long_length: int | None) -> None:
    """Every kind, with its defaults and options, short and long."""
    rope = {"rope_type": kind, "rope_theta": 50000.0, **numbers}
    config = transformers.LlamaConfig(**SIZES, rope_parameters=dict(rope))
    expected, expected_factor = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"), seq_len=long_length)
    facts = facts_from_config({"architectures": ["LlamaForCausalLM"], **SIZES, "rope_parameters": rope})

    frequencies, factor = rotary_frequencies(facts, is_long=long_length is not None)

    assert torch.allclose(frequencies, expected, rtol=1e-6, atol=0)
    assert factor == pytest.approx(expected_factor)


def test_a_context_within_the_first_set_has_no_second_table() -> None:
    """Rows of long sequences exist only where a sequence can become long."""
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 64, **FACTORS}
    facts = facts_from_config({"architectures": ["LlamaForCausalLM"], **SIZES, "rope_parameters": rope})
    offsets = [RotaryTable(facts, length, torch.float32, "cpu").long_offset for length in (64, 65, 256)]

    assert offsets == [0, 65, 256]


@pytest.mark.parametrize("num_tokens", [44, 45, 120])
@pytest.mark.parametrize("sizes", [[1.0], [0.3, 0.5, 0.2]], ids=["whole", "chunks"])
def test_phi3_on_both_sides_of_its_original_length(
    make_core, logits_of, tiny_model, num_tokens: int, sizes: list[float]
) -> None:
    """At 44 tokens the short factors, from 45 on the long ones for every token, as transformers rotates a prompt."""
    folder, reference = tiny_model("phi3")
    token_ids = torch.randint(0, 320, (num_tokens,), generator=torch.Generator().manual_seed(6)).tolist()
    with torch.inference_mode():
        expected = reference(torch.tensor([token_ids])).logits[0]
    cuts = [int(size * num_tokens) for size in sizes[:-1]]
    cuts.append(num_tokens - sum(cuts))

    logits = logits_of(make_core(folder, max_num_blocks=32), token_ids, cuts)

    assert logits.sub(expected[torch.tensor(cuts).cumsum(0) - 1]).abs().max() < 1e-4


@pytest.mark.parametrize("num_prompt", [30, 43, 44, 45])
def test_phi3_grows_across_its_original_length(make_core, generate, tiny_model, num_prompt: int) -> None:
    """Greedy tokens over the border equal those of transformers, which computes all again there, too."""
    folder, reference = tiny_model("phi3")
    prompt = torch.randint(0, 320, (num_prompt,), generator=torch.Generator().manual_seed(7)).tolist()
    expected = reference.generate(
        torch.tensor([prompt]), max_new_tokens=24, do_sample=False, eos_token_id=None, pad_token_id=0
    )[0, num_prompt:].tolist()
    core = make_core(folder, max_num_blocks=32)

    assert generate(core, [prompt], 24) == [expected]
    assert core.num_preemptions == 0


def test_blocks_of_short_and_long_sequences_are_never_shared(make_core, generate, tiny_model) -> None:
    """A long prompt that begins with a cached short one computes it anew; a second long one hits the first's blocks."""
    folder, _ = tiny_model("phi3")
    core = make_core(folder, max_num_blocks=64)
    prompt = torch.randint(0, 320, (80,), generator=torch.Generator().manual_seed(8)).tolist()
    generate(core, [prompt[:40]], 2)
    hits: list[int] = []
    for length in (80, 80, 40):
        before = core._kv.num_prefix_hits
        generate(core, [prompt[:length]], 2)
        hits.append(core._kv.num_prefix_hits - before)

    assert hits == [0, 64, 32]


@pytest.mark.parametrize("num_tokens", [60, 128])
def test_dynamic_scaling_within_and_at_the_end_of_its_reach(
    make_core: Callable[..., Any], logits_of: Callable[..., torch.Tensor], tiny_model, num_tokens: int
) -> None:
    """Up to the trained 64 positions nothing is scaled; a sequence of the full reach has transformers' frequencies."""
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    folder, reference = tiny_model("llama", max_position_embeddings=64, rope_parameters=rope)
    token_ids = torch.randint(0, 320, (num_tokens,), generator=torch.Generator().manual_seed(9)).tolist()
    with torch.inference_mode():
        expected = reference(torch.tensor([token_ids])).logits[0]
    core = make_core(folder, max_num_blocks=32)

    logits = logits_of(core, token_ids, [50, num_tokens - 50])

    assert core.config.max_model_len == 128
    assert logits.sub(expected[[49, num_tokens - 1]]).abs().max() < 1e-4
