"""Facts of a model folder: sizes of real models to the byte, and what is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ascendd.config.model_facts import SUPPORTED_ARCHITECTURES, facts_from_config, read_model_facts
from ascendd.errors import ModelNotFound, ModelUnsupported, WeightsCorrupt

# From the public config.json of Qwen/Qwen2-7B-Instruct.
QWEN2_7B: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944,
    "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 152064, "hidden_act": "silu",
    "max_position_embeddings": 32768, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "tie_word_embeddings": False,
    "torch_dtype": "bfloat16", "bos_token_id": 151643, "eos_token_id": 151645, "use_sliding_window": False,
    "sliding_window": 131072, "max_window_layers": 28,
}  # fmt: skip
# From the public config.json of HuggingFaceTB/SmolLM2-135M-Instruct.
SMOLLM2_135M: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 576, "intermediate_size": 1536,
    "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3, "vocab_size": 49152, "hidden_act": "silu",
    "max_position_embeddings": 8192, "rms_norm_eps": 1e-05, "rope_theta": 100000, "tie_word_embeddings": True,
    "torch_dtype": "bfloat16", "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip


def test_qwen2_7b_has_its_published_size() -> None:
    """Qwen2-7B has 7,615,616,512 parameters, and 57,344 bytes of K and V a token in two-byte numbers."""
    facts = facts_from_config(QWEN2_7B)

    assert facts.num_parameters == 7_615_616_512
    assert facts.kv_bytes_per_token(2) == 57_344
    assert facts.kv_bytes_per_token(2) * 32 == 1_835_008
    assert (facts.head_dim, facts.qkv_bias, facts.o_bias) == (128, True, False)


def test_smollm2_counts_tied_embeddings_once() -> None:
    """SmolLM2-135M has 134,515,008 parameters."""
    facts = facts_from_config(SMOLLM2_135M)

    assert facts.num_parameters == 134_515_008
    assert (facts.qkv_bias, facts.mlp_bias, facts.eos_token_ids) == (False, False, (2,))


def test_biases_of_a_llama_are_counted() -> None:
    """attention_bias and mlp_bias add their vectors."""
    with_bias = facts_from_config({**SMOLLM2_135M, "attention_bias": True, "mlp_bias": True})
    per_layer = (576 + 2 * 192) + 576 + (2 * 1536 + 576)

    assert with_bias.num_parameters - facts_from_config(SMOLLM2_135M).num_parameters == 30 * per_layer


def test_head_dim_of_the_file_wins() -> None:
    """A head size written in the file is used instead of hidden size over heads."""
    assert facts_from_config({**QWEN2_7B, "head_dim": 64}).head_dim == 64


def test_missing_kv_heads_mean_one_for_each_head() -> None:
    """A model without grouped heads has as many KV heads as heads."""
    config = {key: value for key, value in SMOLLM2_135M.items() if key != "num_key_value_heads"}

    assert facts_from_config(config).num_kv_heads == 9


LLAMA3_ROPE = {
    "rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip


@pytest.mark.parametrize(
    ("written", "theta", "scaling"),
    [
        ({"rope_scaling": None}, 1e6, None),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, 1e6, {"type": "linear", "factor": 2.0}),
        ({"rope_scaling": LLAMA3_ROPE}, 1e6, LLAMA3_ROPE),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}, "rope_theta": None}, 5e5, None),
        ({"rope_parameters": {**LLAMA3_ROPE, "rope_theta": 5e5}, "rope_theta": None}, 5e5, LLAMA3_ROPE),
    ],
    ids=["none", "linear, old key", "llama3", "transformers 5 default", "transformers 5 llama3"],
)
def test_rope_is_read_in_every_known_form(
    written: dict[str, Any], theta: float, scaling: dict[str, Any] | None
) -> None:
    """Base and scaling of the rotary embedding are found where each version of the file keeps them."""
    facts = facts_from_config({**QWEN2_7B, **written})

    assert (facts.rope_theta, facts.rope_scaling) == (theta, scaling)


def test_rope_base_defaults_to_ten_thousand() -> None:
    """A file that names no base means 10,000."""
    config = {key: value for key, value in SMOLLM2_135M.items() if key != "rope_theta"}

    assert facts_from_config(config).rope_theta == 10000.0


def test_unknown_rope_scaling_is_refused_by_name() -> None:
    """A scaling that the engine does not compute is refused, with those that it does."""
    with pytest.raises(
        ModelUnsupported, match=r"rope scaling ntk is not supported .* default, linear, dynamic, llama3, yarn, longrope"
    ):
        facts_from_config({**QWEN2_7B, "rope_scaling": {"rope_type": "ntk", "factor": 4.0}})


def test_unsupported_architecture_is_named_with_the_supported_ones() -> None:
    """The message says which architecture the file has and which ones are served."""
    with pytest.raises(ModelUnsupported) as caught:
        facts_from_config({**QWEN2_7B, "architectures": ["GPT2LMHeadModel"]}, origin="/m/config.json")

    assert "/m/config.json: architecture GPT2LMHeadModel is not supported" in str(caught.value)
    for architecture in SUPPORTED_ARCHITECTURES:
        assert architecture in str(caught.value)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"architectures": None}, r"architecture \(none named\)"),
        ({"use_sliding_window": True}, "sliding-window attention"),
        ({"hidden_act": "gelu"}, "activation gelu"),
    ],
)
def test_unsupported_features_are_named(change: dict[str, Any], expected: str) -> None:
    """A model that would be computed wrongly is refused rather than served."""
    with pytest.raises(ModelUnsupported, match=expected):
        facts_from_config({**QWEN2_7B, **change})


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"hidden_size": None}, "config.json: hidden_size = null: must be a whole number from 1 to 1048576"),
        ({"num_attention_heads": 0}, "config.json: num_attention_heads = 0: must be a whole number from 1"),
        ({"num_hidden_layers": -1}, "config.json: num_hidden_layers = -1: must be"),
        ({"num_hidden_layers": 10**12}, "config.json: num_hidden_layers = 1000000000000: must be .* to 10000"),
        ({"vocab_size": "many"}, "config.json: vocab_size = 'many': must be"),
        ({"rms_norm_eps": float("nan")}, "config.json: rms_norm_eps = nan: must be a number from 0 to 1"),
        ({"rope_theta": "big"}, "config.json: rope_theta = 'big': must be a number"),
        ({"head_dim": True}, "config.json: head_dim = True: must be a whole number"),
    ],
)
def test_nonsense_in_the_file_is_a_named_error(change: dict[str, Any], expected: str) -> None:
    """A value of the wrong type names the file, not a traceback."""
    with pytest.raises(WeightsCorrupt, match=expected):
        facts_from_config({**QWEN2_7B, **change})


def test_missing_key_is_named() -> None:
    """A file without a size says which."""
    config = {key: value for key, value in QWEN2_7B.items() if key != "num_hidden_layers"}

    with pytest.raises(WeightsCorrupt, match="num_hidden_layers is missing: it must be a whole number from 1 to 10000"):
        facts_from_config(config)


def test_generation_config_adds_end_tokens() -> None:
    """The end tokens of generation_config.json win over the single one of config.json."""
    facts = facts_from_config(QWEN2_7B, {"eos_token_id": [151645, 151643]})

    assert facts.eos_token_ids == (151645, 151643)


def write_model(folder: Path, config: object) -> Path:
    """Write a folder with only a config.json."""
    folder.mkdir(exist_ok=True)
    text = config if isinstance(config, str) else json.dumps(config)
    (folder / "config.json").write_text(text, encoding="utf-8")
    return folder


def test_folder_is_read(tmp_path: Path) -> None:
    """A folder gives the facts of its two files."""
    folder = write_model(tmp_path / "m", SMOLLM2_135M)
    (folder / "generation_config.json").write_text('{"eos_token_id": [2, 0]}', encoding="utf-8")

    facts = read_model_facts(folder)

    assert (facts.num_layers, facts.eos_token_ids) == (30, (2, 0))


def test_what_is_no_model_folder_is_said(tmp_path: Path) -> None:
    """A path that is missing, a file, or an empty folder is each named for what it is."""
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").mkdir()

    with pytest.raises(ModelNotFound, match="missing does not exist"):
        read_model_facts(tmp_path / "missing")
    with pytest.raises(ModelNotFound, match="file is not a folder"):
        read_model_facts(tmp_path / "file")
    with pytest.raises(ModelNotFound, match="empty holds no config"):
        read_model_facts(tmp_path / "empty")


def test_gguf_file_is_sent_to_convert(tmp_path: Path) -> None:
    """Serving a GGUF file is answered with the command that makes it servable."""
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF")

    with pytest.raises(ModelUnsupported) as caught:
        read_model_facts(path)
    assert f"ascendd convert {path} DST" in caught.value.remedy


@pytest.mark.parametrize("text", ["{", "[1]", '"x"'], ids=["broken", "a list", "a string"])
def test_config_that_is_no_object_is_corrupt(tmp_path: Path, text: str) -> None:
    """A config.json that is not a JSON object is named as corrupt."""
    with pytest.raises(WeightsCorrupt, match="config"):
        read_model_facts(write_model(tmp_path / "m", text))


@pytest.mark.parametrize("tp_size", [1, 2, 4, 28])
def test_sizes_that_cut_the_heads_evenly_fit(tp_size: int) -> None:
    """28 heads and 4 KV heads can be cut in 1, 2 and 4, and in 28 with replicated KV heads where the MLP allows it."""
    facts = facts_from_config({**QWEN2_7B, "intermediate_size": 28 * 64})

    facts.check_tensor_parallel(tp_size)

    assert facts.num_heads % tp_size == 0


@pytest.mark.parametrize("tp_size", [0, 3, 5, 7, 8, 56])
def test_other_sizes_are_refused_with_those_that_fit(tp_size: int) -> None:
    """A size that cannot be is answered with the list of sizes that can, and with one of them as the remedy."""
    with pytest.raises(
        ModelUnsupported, match=f"tensor_parallel_size {tp_size} does not fit 28 heads, 4 KV heads"
    ) as caught:
        facts_from_config(QWEN2_7B).check_tensor_parallel(tp_size)

    assert "sizes that do: 1, 2, 4" in str(caught.value)
    assert f"--tensor-parallel-size {4 if tp_size > 3 else max(1, min(2, tp_size))}" in caught.value.remedy
