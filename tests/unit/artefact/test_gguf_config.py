"""config.json out of GGUF metadata."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ascendd.artefact.gguf_config import build_config, build_generation_config, llama3_rope_factors
from ascendd.config.model_facts import facts_from_config
from ascendd.errors import ModelUnsupported, WeightsCorrupt

PATH = Path("tiny.gguf")
SHAPES = {"token_embd.weight": (101, 36), "output.weight": (101, 36)}


def make_metadata(architecture: str = "llama", **changes: object) -> dict[str, object]:
    """Metadata of a small model; keys of the architecture are given with `_` for `.` where unambiguous."""
    values: dict[str, object] = {
        "block_count": 2,
        "context_length": 64,
        "embedding_length": 36,
        "feed_forward_length": 72,
        "attention.head_count": 9,
        "attention.head_count_kv": 3,
        "attention.layer_norm_rms_epsilon": float(np.float32(1e-5)),
        "rope.freq_base": 100000.0,
    }
    metadata: dict[str, object] = {"general.architecture": architecture}
    metadata.update({f"{architecture}.{key}": value for key, value in values.items()})
    metadata.update(changes)
    return metadata


def test_config_describes_the_model() -> None:
    """The facts that the engine takes from config.json are those of the metadata, decimals as once written."""
    config = build_config(PATH, make_metadata(), SHAPES, None)

    facts = facts_from_config(config)

    assert (facts.architecture, facts.num_layers, facts.hidden_size) == ("LlamaForCausalLM", 2, 36)
    assert (facts.num_heads, facts.num_kv_heads, facts.head_dim, facts.intermediate_size) == (9, 3, 4, 72)
    assert (facts.vocab_size, facts.max_position_embeddings) == (101, 64)
    assert (facts.rms_norm_eps, facts.rope_theta) == (1e-5, 100000.0)
    assert facts.rope_scaling is None
    assert not facts.tie_word_embeddings


def test_missing_output_means_tied() -> None:
    """A file without output.weight shares the embedding with the head."""
    config = build_config(PATH, make_metadata(), {"token_embd.weight": (101, 36)}, None)

    assert config["tie_word_embeddings"] is True


def test_qwen2_is_known() -> None:
    """qwen2 becomes Qwen2ForCausalLM, whose qkv projection has a bias."""
    facts = facts_from_config(build_config(PATH, make_metadata("qwen2"), SHAPES, None))

    assert facts.architecture == "Qwen2ForCausalLM"
    assert facts.qkv_bias


def test_llama3_scaling_is_recognised_by_its_factors() -> None:
    """rope_freqs.weight of Llama 3.1 gives back the published rope_scaling."""
    metadata = make_metadata(**{"llama.attention.key_length": 128, "llama.rope.freq_base": 500000.0})

    config = build_config(PATH, metadata, SHAPES, llama3_rope_factors(500000.0, 128, 8.0))

    assert config["rope_scaling"] == {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }


def test_llama3_factors_have_three_ranges() -> None:
    """Fast frequencies stay, slow ones are divided by the factor, those between are blended."""
    factors = llama3_rope_factors(500000.0, 128, 8.0)

    assert factors[0] == 1.0
    assert factors[-1] == 8.0
    assert np.all(np.diff(factors) >= 0)
    assert np.any((factors > 1) & (factors < 8))


def test_unknown_rope_factors_are_refused() -> None:
    """Factors that no published scaling explains would make wrong text, so they are an error."""
    with pytest.raises(ModelUnsupported, match=r"rope_freqs\.weight"):
        build_config(PATH, make_metadata(), SHAPES, np.array([1.0, 5.0], dtype=np.float32))


def test_linear_scaling_is_kept() -> None:
    """A linear factor becomes rope_scaling of that type."""
    metadata = make_metadata(**{"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0})

    assert build_config(PATH, metadata, SHAPES, None)["rope_scaling"] == {"rope_type": "linear", "factor": 4.0}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"general.architecture": "gemma2"}, "GGUF architecture gemma2 is not supported; supported: llama, qwen2"),
        ({"llama.expert_count": 8}, "mixtures of experts"),
        ({"llama.attention.sliding_window": 16}, "a window of 16 tokens"),
        ({"llama.rope.dimension_count": 2}, "2 of 4 dimensions"),
        ({"llama.rope.scaling.type": "yarn"}, "rope scaling yarn"),
        ({"llama.attention.head_count_kv": [3, 1]}, "num_key_value_heads differs from layer to layer"),
    ],
)
def test_feature_the_engine_lacks_is_refused(changes: dict[str, object], message: str) -> None:
    """What would be computed wrongly is refused by name."""
    with pytest.raises(ModelUnsupported, match=message):
        build_config(PATH, make_metadata(**changes), SHAPES, None)


@pytest.mark.parametrize("key", ["llama.block_count", "llama.attention.head_count", "llama.context_length"])
def test_missing_key_is_named(key: str) -> None:
    """A file without a needed key is damaged, and the key is in the message."""
    metadata = make_metadata()
    del metadata[key]

    with pytest.raises(WeightsCorrupt, match=f"has no {key}"):
        build_config(PATH, metadata, SHAPES, None)


def test_end_of_turn_ends_a_text() -> None:
    """A chat model's end-of-turn token is a second end, and an absent id is left out."""
    metadata = {"tokenizer.ggml.eos_token_id": 7, "tokenizer.ggml.eot_token_id": 9}

    assert build_generation_config(metadata) == {"eos_token_id": [7, 9]}


def test_ids_of_zero_are_kept() -> None:
    """Token 0 is an id like any other."""
    metadata = {"tokenizer.ggml.eos_token_id": 0, "tokenizer.ggml.bos_token_id": 0, "tokenizer.ggml.eot_token_id": 0}

    assert build_generation_config(metadata) == {"bos_token_id": 0, "eos_token_id": 0}
