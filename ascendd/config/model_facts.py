"""
ModelFacts: what a model folder says of itself, read from config.json and generation_config.json without torch.

A folder written by `ascendd convert` carries the same two files, so one reader serves both.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Annotated, Any

import msgspec

from ascendd.config.expert_facts import ExpertFacts, expert_facts
from ascendd.config.latent_facts import LatentFacts, latent_facts
from ascendd.config.model_keys import check_numbers
from ascendd.config.rope_facts import rope_facts, yarn_mscale
from ascendd.errors import ModelNotFound, ModelUnsupported, WeightsCorrupt

# Architectures that the engine runs, by their name in config.json; engine.models.registry has a class for each.
SUPPORTED_ARCHITECTURES = (
    "LlamaForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
    "Phi3ForCausalLM",
    "DeepseekV2ForCausalLM",
)

Size = Annotated[int, msgspec.Meta(ge=1)]


class ModelFacts(msgspec.Struct, frozen=True, kw_only=True):
    """
    Sizes and constants of one decoder-only model. All sizes are of the whole model, not of a rank.

    `head_dim` is that of queries and keys, of which the first `rotary_dim` are rotated (the last, under `latent`).
    `max_position_embeddings` is the longest sequence that the model computes rightly, scaling included;
    `rope_switch_length` is explained in config.rope_facts. `latent` is None for a model that caches K and V of each
    head, `experts` for one whose MLP is the same for all tokens.
    """

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
    rotary_dim: Size
    rope_switch_length: Size | None = None
    tie_word_embeddings: bool
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    qk_norm: bool = False
    dtype: str
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    latent: LatentFacts | None = None
    experts: ExpertFacts | None = None

    @property
    def num_expert_layers(self) -> int:
        """Number of layers whose MLP is a mixture of experts; the others come first."""
        return 0 if self.experts is None else max(0, self.num_layers - self.experts.first_layer)

    @property
    def attention_scale(self) -> float:
        """Factor of query times key before the softmax."""
        scale: float = self.head_dim**-0.5
        if self.latent is not None and self.rope_scaling is not None and self.rope_scaling.get("mscale_all_dim"):
            scale *= yarn_mscale(self.rope_scaling["factor"], self.rope_scaling["mscale_all_dim"]) ** 2
        return scale

    @property
    def num_parameters(self) -> int:
        """Number of weights, tied embeddings counted once."""
        dense_mlp = 3 * self.hidden_size * self.intermediate_size + self.mlp_bias * (
            2 * self.intermediate_size + self.hidden_size
        )
        mlps = (self.num_layers - self.num_expert_layers) * dense_mlp
        if self.experts is not None:
            mlps += self.num_expert_layers * self.experts.num_parameters(self.hidden_size)
        embeddings = self.vocab_size * self.hidden_size * (1 if self.tie_word_embeddings else 2)
        norms = (2 * self.num_layers + 1) * self.hidden_size
        return self.num_layers * self._attention_parameters() + mlps + norms + embeddings

    @property
    def num_replicated_parameters(self) -> int:
        """Number of weights that every rank holds whole, norms over the hidden size left out (below 0.1 %)."""
        replicated = 0
        if self.latent is not None:
            replicated += self.num_layers * self.latent.num_replicated(self.hidden_size, bias=self.qkv_bias)
        if self.experts is not None:
            replicated += self.num_expert_layers * self.experts.num_router(self.hidden_size)
        return replicated

    def kv_bytes_per_token(self, bytes_per_element: int, tp_size: int = 1, pp_size: int = 1) -> int:
        """
        Bytes that one token takes in the cache of one rank, over all layers of the longest stage.

        2 x layers x KV heads x head size x bytes, at least one head a rank; with latents layers x latent size x bytes,
        on every rank of a stage.
        """
        num_layers = math.ceil(self.num_layers / pp_size)
        if self.latent is not None:
            return num_layers * self.latent.cached_dim * bytes_per_element
        return 2 * num_layers * max(1, self.num_kv_heads // tp_size) * self.head_dim * bytes_per_element

    def check_pipeline_parallel(self, pp_size: int) -> None:
        """Raise ModelUnsupported unless each of `pp_size` stages gets a layer."""
        if pp_size > self.num_layers:
            raise ModelUnsupported(
                f"pipeline_parallel_size {pp_size} does not fit {self.num_layers} layers; a stage has at least one",
                remedy=f"Use --pipeline-parallel-size {self.num_layers} or less.",
                pp_size=pp_size,
            )

    def check_tensor_parallel(self, tp_size: int) -> None:
        """
        Raise ModelUnsupported unless the model can be cut into `tp_size` ranks.

        Query heads and every MLP are cut evenly; KV heads are cut, or replicated where tp_size is a multiple of them,
        and latents are replicated.
        """
        fits = [size for size in range(1, self.num_heads + 1) if self._can_cut(size)]
        if not self._can_cut(tp_size):
            raise ModelUnsupported(
                f"tensor_parallel_size {tp_size} does not fit {self._cut_sizes()}; "
                f"sizes that do: {', '.join(map(str, fits))}",
                remedy=f"Use --tensor-parallel-size {max(size for size in fits if size <= max(tp_size, 1))}.",
                tp_size=tp_size,
            )

    def _can_cut(self, size: int) -> bool:
        if size < 1 or self.num_heads % size or self.intermediate_size % size:
            return False
        if self.experts is not None and self.experts.intermediate_size % size:
            return False
        return self.latent is not None or self.num_kv_heads % size == 0 or size % self.num_kv_heads == 0

    def _cut_sizes(self) -> str:
        kv_heads = "" if self.latent is not None else f", {self.num_kv_heads} KV heads"
        experts = "" if self.experts is None else f" and experts of {self.experts.intermediate_size}"
        return f"{self.num_heads} heads{kv_heads} and an MLP of {self.intermediate_size}{experts}"

    def _attention_parameters(self) -> int:
        if self.latent is not None:
            return self.latent.num_parameters(self.hidden_size, self.num_heads, bias=self.qkv_bias)
        q_size, kv_size = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        weights = self.hidden_size * (q_size + 2 * kv_size) + q_size * self.hidden_size
        biases = self.qkv_bias * (q_size + 2 * kv_size) + self.o_bias * self.hidden_size
        return weights + biases + self.qk_norm * 2 * self.head_dim


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
    named = config.get("architectures") or ["(none named)"]
    architecture = named[0] if isinstance(named, list) else named
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
        check_numbers(config)
        return _facts(architecture, config, generation or {}, origin)
    except (KeyError, TypeError, ValueError, ZeroDivisionError, msgspec.ValidationError) as error:
        reason = f"key {error} is missing" if isinstance(error, KeyError) else str(error)
        raise WeightsCorrupt(f"{origin}: {reason}") from error


def _facts(architecture: str, config: dict[str, Any], generation: dict[str, Any], origin: str) -> ModelFacts:
    num_heads, hidden_size = config["num_attention_heads"], config["hidden_size"]
    is_qwen2, is_phi3 = architecture == "Qwen2ForCausalLM", architecture == "Phi3ForCausalLM"
    attention_bias = bool(config.get("attention_bias", False)) and not is_phi3
    rope = rope_facts(architecture, config)
    latent = latent_facts(config) if architecture == "DeepseekV2ForCausalLM" else None
    experts = expert_facts(config, origin) if architecture == "DeepseekV2ForCausalLM" else None
    head_dim = config.get("head_dim") or hidden_size // num_heads
    rotary_dim = int(head_dim * rope.rotated_share)
    if latent is not None:
        head_dim, rotary_dim = latent.query_dim, latent.rope_dim
    _check_rotary(rotary_dim, head_dim, rope.scaling)
    context = rope.context_length
    if is_phi3 and config.get("sliding_window"):
        # Up to the window's length every token sees all before it, so that far the window changes nothing.
        context = min(context, config["sliding_window"])
    switch = rope.switch_length
    eos = generation.get("eos_token_id", config.get("eos_token_id"))
    facts = {
        "architecture": architecture,
        "model_type": config.get("model_type", ""),
        "num_layers": config["num_hidden_layers"],
        "hidden_size": hidden_size,
        "intermediate_size": config["intermediate_size"],
        "num_heads": num_heads,
        "num_kv_heads": config.get("num_key_value_heads") or num_heads,
        "head_dim": head_dim,
        "vocab_size": config["vocab_size"],
        "max_position_embeddings": context,
        "rms_norm_eps": config.get("rms_norm_eps", 1e-6),
        "rope_theta": rope.theta,
        "rope_scaling": rope.scaling,
        "rotary_dim": rotary_dim,
        "rope_switch_length": switch if switch is not None and switch < context else None,
        "tie_word_embeddings": bool(config.get("tie_word_embeddings", False)),
        "qkv_bias": True if is_qwen2 else attention_bias,
        "o_bias": False if is_qwen2 else attention_bias,
        "mlp_bias": bool(config.get("mlp_bias", False)) and not is_qwen2 and not is_phi3,
        "qk_norm": architecture == "Qwen3ForCausalLM",
        "dtype": config.get("dtype") or config.get("torch_dtype") or "float32",
        "bos_token_id": config.get("bos_token_id"),
        "eos_token_ids": tuple(eos) if isinstance(eos, list) else (() if eos is None else (eos,)),
        "latent": latent,
        "experts": experts,
    }
    if experts is not None and facts["mlp_bias"]:
        raise ModelUnsupported(f"{origin}: mlp_bias is not supported with experts")
    return msgspec.convert(facts, ModelFacts)


def _check_rotary(rotary_dim: int, head_dim: int, scaling: dict[str, Any] | None) -> None:
    """Raise ValueError unless the rotated dimensions are pairs within the head, with a factor for each pair."""
    if rotary_dim % 2 or not 0 < rotary_dim <= head_dim:
        raise ValueError(f"{rotary_dim} rotated dimensions of a head of {head_dim} are not pairs")
    for name in ("short_factor", "long_factor"):
        if scaling is not None and name in scaling and len(scaling[name]) != rotary_dim // 2:
            raise ValueError(f"{name} has {len(scaling[name])} numbers for {rotary_dim // 2} pairs of dimensions")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise WeightsCorrupt(f"{path} cannot be read: {error}", path=str(path)) from error
    if not isinstance(data, dict):
        raise WeightsCorrupt(f"{path} holds no JSON object", path=str(path))
    return data
