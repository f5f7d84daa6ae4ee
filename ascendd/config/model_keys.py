"""
What the numbers of a model's config.json may be, checked by name before anything is computed from them.

The highest values are far beyond any published model; they keep a damaged file from asking for endless work.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec


class NumberRule(msgspec.Struct, frozen=True):
    """One key: its least and greatest value, both allowed; `whole` numbers only, or any finite number."""

    low: float
    high: float
    whole: bool = True
    required: bool = False

    def __str__(self) -> str:
        if self.whole:
            return f"must be a whole number from {int(self.low)} to {int(self.high)}"
        return f"must be a number from {self.low:g} to {self.high:g}"


_WIDTH = NumberRule(1, 1 << 20)
_COUNT = NumberRule(1, 1 << 16)
_OPTIONAL_COUNT = NumberRule(0, 1 << 16)

NUMBER_RULES = {
    "num_hidden_layers": NumberRule(1, 10_000, required=True),
    "hidden_size": NumberRule(1, 1 << 20, required=True),
    "intermediate_size": NumberRule(1, 1 << 24, required=True),
    "num_attention_heads": NumberRule(1, 1 << 16, required=True),
    "vocab_size": NumberRule(1, 1 << 26, required=True),
    "max_position_embeddings": NumberRule(1, 1 << 30, required=True),
    "num_key_value_heads": _COUNT,
    "head_dim": _WIDTH,
    "rms_norm_eps": NumberRule(0.0, 1.0, whole=False),
    "rope_theta": NumberRule(1e-6, 1e30, whole=False),
    "partial_rotary_factor": NumberRule(1e-6, 16.0, whole=False),
    "original_max_position_embeddings": NumberRule(1, 1 << 30),
    "sliding_window": NumberRule(1, 1 << 30),
    "kv_lora_rank": _WIDTH,
    "q_lora_rank": _WIDTH,
    "qk_nope_head_dim": _WIDTH,
    "qk_rope_head_dim": _WIDTH,
    "v_head_dim": _WIDTH,
    "n_routed_experts": _OPTIONAL_COUNT,
    "num_experts_per_tok": _OPTIONAL_COUNT,
    "n_shared_experts": _OPTIONAL_COUNT,
    "moe_intermediate_size": NumberRule(1, 1 << 24),
    "first_k_dense_replace": _OPTIONAL_COUNT,
    "n_group": _OPTIONAL_COUNT,
    "topk_group": _OPTIONAL_COUNT,
    "routed_scaling_factor": NumberRule(0.0, 1e6, whole=False),
    "bos_token_id": NumberRule(0, 1 << 26),
}


def check_numbers(config: dict[str, Any]) -> None:
    """Raise ValueError that names every key of a parsed config.json whose number breaks its rule, with the rule."""
    problems = [
        f"{key} = {_short(config.get(key))}: {rule}" if key in config else f"{key} is missing: it {rule}"
        for key, rule in NUMBER_RULES.items()
        if not _keeps(config.get(key), rule)
    ]
    if problems:
        raise ValueError("; ".join(problems))


def _keeps(value: Any, rule: NumberRule) -> bool:
    if value is None:
        return not rule.required
    if isinstance(value, bool) or not isinstance(value, int if rule.whole else (int, float)):
        return False
    return rule.low <= value <= rule.high and (rule.whole or math.isfinite(value))


def _short(value: Any) -> str:
    text = "null" if value is None else repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
