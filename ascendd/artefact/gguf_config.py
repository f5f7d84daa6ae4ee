"""config.json and generation_config.json, built from the metadata of a GGUF file."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ascendd.errors import ModelUnsupported, WeightsCorrupt

ARCHITECTURES = {
    "llama": ("LlamaForCausalLM", "llama"),
    "qwen2": ("Qwen2ForCausalLM", "qwen2"),
}
# The published rope_scaling of Llama 3.1, 3.2 and 3.3; only `factor` differs between them.
LLAMA3_LOW_FREQ_FACTOR, LLAMA3_HIGH_FREQ_FACTOR, LLAMA3_ORIGINAL_CONTEXT = 1.0, 4.0, 8192


def build_config(
    path: Path,
    metadata: Mapping[str, Any],
    shapes: Mapping[str, tuple[int, ...]],
    rope_factors: npt.NDArray[np.float32] | None,
) -> dict[str, Any]:
    """
    Return what config.json of the same model says.

    `shapes` are the tensors by GGUF name. Raises ModelUnsupported for an architecture or feature the engine lacks,
    WeightsCorrupt for a key that is missing.
    """
    architecture = str(metadata.get("general.architecture", "(none named)"))
    if architecture not in ARCHITECTURES:
        raise ModelUnsupported(
            f"{path}: GGUF architecture {architecture} is not supported; supported: {', '.join(ARCHITECTURES)}",
            architecture=architecture,
        )
    try:
        config = _sizes(architecture, metadata, shapes)
    except KeyError as error:
        raise WeightsCorrupt(f"{path} has no {error.args[0]}", path=str(path)) from error
    _refuse_unknown_features(path, architecture, metadata, config)
    scaling = _rope_scaling(path, architecture, metadata, config, rope_factors)
    if scaling is not None:
        config["rope_scaling"] = scaling
    return config


def build_generation_config(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ids that begin, pad and end a text; a chat model's end of turn ends it too."""
    ends = [metadata.get(f"tokenizer.ggml.{kind}_token_id") for kind in ("eos", "eot")]
    eos = list(dict.fromkeys(token for token in ends if token is not None))
    ids = {
        "bos_token_id": metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": eos[0] if len(eos) == 1 else eos or None,
        "pad_token_id": metadata.get("tokenizer.ggml.padding_token_id"),
    }
    return {name: value for name, value in ids.items() if value is not None}


def _sizes(architecture: str, metadata: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    def value(key: str) -> Any:
        return metadata[f"{architecture}.{key}"]

    class_name, model_type = ARCHITECTURES[architecture]
    num_heads, hidden_size = value("attention.head_count"), value("embedding_length")
    config = {
        "architectures": [class_name],
        "model_type": model_type,
        "hidden_act": "silu",
        "hidden_size": hidden_size,
        "intermediate_size": value("feed_forward_length"),
        "num_hidden_layers": value("block_count"),
        "num_attention_heads": num_heads,
        "num_key_value_heads": metadata.get(f"{architecture}.attention.head_count_kv", num_heads),
        "head_dim": metadata.get(f"{architecture}.attention.key_length", hidden_size // num_heads),
        "max_position_embeddings": value("context_length"),
        "rms_norm_eps": _shortest(value("attention.layer_norm_rms_epsilon")),
        "rope_theta": _shortest(metadata.get(f"{architecture}.rope.freq_base", 10000.0)),
        # The embedding counts: its rows may be padded beyond the tokens that have a text.
        "vocab_size": shapes["token_embd.weight"][0],
        "tie_word_embeddings": "output.weight" not in shapes,
        **build_generation_config(metadata),
    }
    if architecture == "llama":
        config["attention_bias"] = "blk.0.attn_q.bias" in shapes
        config["mlp_bias"] = "blk.0.ffn_gate.bias" in shapes
    return config


def _refuse_unknown_features(
    path: Path, architecture: str, metadata: Mapping[str, Any], config: Mapping[str, Any]
) -> None:
    if metadata.get(f"{architecture}.expert_count", 0):
        raise ModelUnsupported(f"{path}: mixtures of experts (expert_count) are not supported for {architecture}")
    window = metadata.get(f"{architecture}.attention.sliding_window", 0)
    if window and window < config["max_position_embeddings"]:
        raise ModelUnsupported(f"{path}: sliding-window attention (a window of {window} tokens) is not supported")
    rotated = metadata.get(f"{architecture}.rope.dimension_count", config["head_dim"])
    if rotated != config["head_dim"]:
        raise ModelUnsupported(
            f"{path}: rotary embedding on {rotated} of {config['head_dim']} dimensions is not supported"
        )
    per_layer = [
        key for key in ("num_attention_heads", "num_key_value_heads", "intermediate_size") if _is_list(config, key)
    ]
    if per_layer:
        raise ModelUnsupported(f"{path}: {per_layer[0]} differs from layer to layer, which is not supported")


def _is_list(config: Mapping[str, Any], key: str) -> bool:
    return isinstance(config[key], list)


def _rope_scaling(
    path: Path,
    architecture: str,
    metadata: Mapping[str, Any],
    config: Mapping[str, Any],
    rope_factors: npt.NDArray[np.float32] | None,
) -> dict[str, Any] | None:
    kind = metadata.get(f"{architecture}.rope.scaling.type", "none")
    factor = metadata.get(f"{architecture}.rope.scaling.factor") or metadata.get(f"{architecture}.rope.scale_linear")
    if rope_factors is not None:
        scaling = {
            "rope_type": "llama3",
            "factor": _shortest(float(rope_factors.max())),
            "low_freq_factor": LLAMA3_LOW_FREQ_FACTOR,
            "high_freq_factor": LLAMA3_HIGH_FREQ_FACTOR,
            "original_max_position_embeddings": LLAMA3_ORIGINAL_CONTEXT,
        }
        expected = llama3_rope_factors(config["rope_theta"], config["head_dim"], float(rope_factors.max()))
        if rope_factors.shape != expected.shape or not np.allclose(rope_factors, expected, rtol=1e-3):
            raise ModelUnsupported(f"{path}: rope_freqs.weight is not that of Llama 3, so its scaling is not known")
        return scaling
    if kind == "linear" and factor:
        return {"rope_type": "linear", "factor": _shortest(factor)}
    if kind not in ("none", "linear"):
        raise ModelUnsupported(f"{path}: rope scaling {kind} is not supported; supported: linear, Llama 3's")
    return None


def llama3_rope_factors(theta: float, head_dim: int, factor: float) -> npt.NDArray[np.float32]:
    """Return by how much Llama 3 slows each rotary frequency down, [head_dim / 2]."""
    factors = []
    for pair in range(head_dim // 2):
        wavelength = 2 * math.pi * theta ** (2 * pair / head_dim)
        # 1 or more where the original context holds many turns, 0 or less where it holds few
        smooth = (LLAMA3_ORIGINAL_CONTEXT / wavelength - LLAMA3_LOW_FREQ_FACTOR) / (
            LLAMA3_HIGH_FREQ_FACTOR - LLAMA3_LOW_FREQ_FACTOR
        )
        share = min(max(smooth, 0.0), 1.0)
        factors.append(1 / ((1 - share) / factor + share))
    return np.array(factors, dtype=np.float32)


def _shortest(value: float) -> float:
    """Return the shortest decimal that is the same float32: GGUF's 9.999999747378752e-06 was written as 1e-05."""
    return float(str(np.float32(value)))
