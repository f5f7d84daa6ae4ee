"""
ModelFacts: what a model folder says of itself, read from config.json and generation_config.json without torch.

A folder written by `ascendd convert` carries the same two files, so one reader serves both.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import msgspec

from ascendd.errors import ModelNotFound, ModelUnsupported, WeightsCorrupt

# Architectures that the engine runs, by their name in config.json; engine.models.registry has a class for each.
SUPPORTED_ARCHITECTURES = ("LlamaForCausalLM", "Qwen2ForCausalLM")


Size = Annotated[int, msgspec.Meta(ge=1)]


class ModelFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes and constants of one decoder-only model. All sizes are of the whole model, not of a rank."""

    architecture: str
    model_type: str
    num_layers: Size
    hidden_size: Size
    intermediate_size: Size
    num_heads: Size
    num_kv_heads: Size
    head_dim: Size
    vocab_size: Size
    max_position_embeddings: Size
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: dict[str, Any] | None
    tie_word_embeddings: bool
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    dtype: str
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]

    @property
    def num_parameters(self) -> int:
        """Number of weights, tied embeddings counted once."""
        q_size, kv_size = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        attention = self.hidden_size * (q_size + 2 * kv_size) + q_size * self.hidden_size
        biases = self.qkv_bias * (q_size + 2 * kv_size) + self.o_bias * self.hidden_size
        mlp = 3 * self.hidden_size * self.intermediate_size + self.mlp_bias * (
            2 * self.intermediate_size + self.hidden_size
        )
        per_layer = attention + biases + mlp + 2 * self.hidden_size
        embeddings = self.vocab_size * self.hidden_size * (1 if self.tie_word_embeddings else 2)
        return self.num_layers * per_layer + embeddings + self.hidden_size

    def kv_bytes_per_token(self, bytes_per_element: int) -> int:
        """Bytes of K and V of one token over all layers: 2 x layers x KV heads x head size x bytes."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * bytes_per_element

    def check_tensor_parallel(self, tp_size: int) -> None:
        """
        Raise ModelUnsupported unless the model can be cut into `tp_size` ranks.

        Query heads and the MLP are cut evenly; KV heads are cut, or replicated where tp_size is a multiple of them.
        """
        fits = [size for size in range(1, self.num_heads + 1) if self._can_cut(size)]
        if not self._can_cut(tp_size):
            raise ModelUnsupported(
                f"tensor_parallel_size {tp_size} does not fit {self.num_heads} heads, {self.num_kv_heads} KV heads "
                f"and an MLP of {self.intermediate_size}; sizes that do: {', '.join(map(str, fits))}",
                remedy=f"Use --tensor-parallel-size {max(size for size in fits if size <= max(tp_size, 1))}.",
                tp_size=tp_size,
            )

    def _can_cut(self, size: int) -> bool:
        if size < 1 or self.num_heads % size or self.intermediate_size % size:
            return False
        return self.num_kv_heads % size == 0 or size % self.num_kv_heads == 0


def read_model_facts(folder: Path) -> ModelFacts:
    """Read the facts of the model in `folder`. Raises ModelNotFound, ModelUnsupported, WeightsCorrupt (bad JSON)."""
    if folder.suffix == ".gguf" and folder.is_file():
        raise ModelUnsupported(
            f"{folder} is a GGUF file, which is served after conversion",
            remedy=f"Run `ascendd convert {folder} DST` and serve DST.",
        )
    if not folder.is_dir():
        raise ModelNotFound(f"{folder} {'is not a folder' if folder.exists() else 'does not exist'}", path=str(folder))
    config_path = folder / "config.json"
    if not config_path.is_file():
        raise ModelNotFound(f"{folder} holds no config.json, so it is not a model folder", path=str(folder))
    config = _read_json(config_path)
    generation_path = folder / "generation_config.json"
    generation = _read_json(generation_path) if generation_path.is_file() else {}
    return facts_from_config(config, generation, origin=str(config_path))


def facts_from_config(
    config: dict[str, Any], generation: dict[str, Any] | None = None, origin: str = "config.json"
) -> ModelFacts:
    """Build ModelFacts from the two parsed files; `origin` names the first in messages."""
    architecture = (config.get("architectures") or ["(none named)"])[0]
    if architecture not in SUPPORTED_ARCHITECTURES:
        raise ModelUnsupported(
            f"{origin}: architecture {architecture} is not supported; supported: {', '.join(SUPPORTED_ARCHITECTURES)}",
            architecture=architecture,
        )
    if config.get("use_sliding_window"):
        raise ModelUnsupported(f"{origin}: sliding-window attention (use_sliding_window: true) is not supported")
    activation = config.get("hidden_act", "silu")
    if activation != "silu":
        raise ModelUnsupported(f"{origin}: activation {activation} is not supported; supported: silu")
    try:
        return _facts(architecture, config, generation or {})
    except (KeyError, TypeError, ValueError, ZeroDivisionError, msgspec.ValidationError) as error:
        reason = f"key {error} is missing" if isinstance(error, KeyError) else str(error)
        raise WeightsCorrupt(f"{origin}: {reason}") from error


def _facts(architecture: str, config: dict[str, Any], generation: dict[str, Any]) -> ModelFacts:
    num_heads, hidden_size = config["num_attention_heads"], config["hidden_size"]
    is_qwen2 = architecture == "Qwen2ForCausalLM"
    attention_bias = bool(config.get("attention_bias", False))
    # transformers 5 writes rope_parameters; earlier versions write rope_theta and rope_scaling.
    rope = dict(config.get("rope_scaling") or config.get("rope_parameters") or {})
    theta = rope.pop("rope_theta", None) or config.get("rope_theta") or 10000.0
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in ("default", "linear", "llama3"):
        raise ModelUnsupported(
            f"rope scaling {kind} is not supported for {architecture}; supported: default, linear, llama3"
        )
    eos = generation.get("eos_token_id", config.get("eos_token_id"))
    facts = {
        "architecture": architecture,
        "model_type": config.get("model_type", ""),
        "num_layers": config["num_hidden_layers"],
        "hidden_size": hidden_size,
        "intermediate_size": config["intermediate_size"],
        "num_heads": num_heads,
        "num_kv_heads": config.get("num_key_value_heads") or num_heads,
        "head_dim": config.get("head_dim") or hidden_size // num_heads,
        "vocab_size": config["vocab_size"],
        "max_position_embeddings": config["max_position_embeddings"],
        "rms_norm_eps": config.get("rms_norm_eps", 1e-6),
        "rope_theta": float(theta),
        "rope_scaling": None if kind == "default" else rope,
        "tie_word_embeddings": bool(config.get("tie_word_embeddings", False)),
        "qkv_bias": True if is_qwen2 else attention_bias,
        "o_bias": False if is_qwen2 else attention_bias,
        "mlp_bias": bool(config.get("mlp_bias", False)) and not is_qwen2,
        "dtype": config.get("dtype") or config.get("torch_dtype") or "float32",
        "bos_token_id": config.get("bos_token_id"),
        "eos_token_ids": tuple(eos) if isinstance(eos, list) else (() if eos is None else (eos,)),
    }
    return msgspec.convert(facts, ModelFacts)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise WeightsCorrupt(f"{path} cannot be read: {error}", path=str(path)) from error
    if not isinstance(data, dict):
        raise WeightsCorrupt(f"{path} holds no JSON object", path=str(path))
    return data
