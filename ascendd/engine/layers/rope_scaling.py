"""Rotary frequencies, and the scalings that stretch them beyond the length a model was trained on."""

from __future__ import annotations

import math
from typing import Any

import torch

from ascendd.config.model_facts import ModelFacts


def rotary_frequencies(facts: ModelFacts, *, is_long: bool = False) -> tuple[torch.Tensor, float]:
    """
    Return the angle by which each pair of dimensions turns a position, [rotary_dim / 2] fp32, and the factor of both
    cosine and sine.

    `is_long` asks for the set of sequences longer than `facts.rope_switch_length`.
    """
    exponents = torch.arange(0, facts.rotary_dim, 2, dtype=torch.float32) / facts.rotary_dim
    plain = torch.reciprocal(facts.rope_theta**exponents)
    scaling = facts.rope_scaling
    if scaling is None:
        return plain, 1.0
    match scaling.get("rope_type", scaling.get("type")):
        case "linear":
            return plain / float(scaling["factor"]), 1.0
        case "dynamic":
            return (_dynamic(exponents, facts, scaling) if is_long else plain), 1.0
        case "llama3":
            return _llama3(plain, scaling), 1.0
        case "yarn":
            return _yarn(plain, facts, scaling), scaling["attention_factor"]
        case _:  # longrope, the last of config.rope_facts.ROPE_SCALINGS
            factors = torch.tensor(scaling["long_factor" if is_long else "short_factor"], dtype=torch.float32)
            return torch.reciprocal(factors * facts.rope_theta**exponents), scaling["attention_factor"]


def _dynamic(exponents: torch.Tensor, facts: ModelFacts, scaling: dict[str, Any]) -> torch.Tensor:
    """Raise the base so far that the slowest pair turns as far over the whole reach as it did in training (NTK)."""
    factor, trained, dim = scaling["factor"], scaling["trained_length"], facts.rotary_dim
    stretch = factor * facts.max_position_embeddings / trained - (factor - 1)
    base = float(facts.rope_theta * stretch ** (dim / (dim - 2)))
    return torch.reciprocal(base**exponents)


def _llama3(plain: torch.Tensor, scaling: dict[str, Any]) -> torch.Tensor:
    """Long waves are stretched by `factor`, short ones kept, those between interpolated."""
    factor = float(scaling["factor"])
    low, high = float(scaling["low_freq_factor"]), float(scaling["high_freq_factor"])
    original = float(scaling["original_max_position_embeddings"])
    wavelength = 2 * math.pi / plain
    smooth = ((original / wavelength - low) / (high - low)).clamp(0.0, 1.0)
    return (1 - smooth) * plain / factor + smooth * plain


def _yarn(plain: torch.Tensor, facts: ModelFacts, scaling: dict[str, Any]) -> torch.Tensor:
    """
    Keep pairs that turn more than `beta_fast` times in training, stretch those below `beta_slow`, ramp between.

    Peng et al., 2023. The ramp runs over the index of the pair.
    """
    dim, original = facts.rotary_dim, scaling["original_max_position_embeddings"]

    def pair_of(num_turns: float) -> float:
        return dim * math.log(original / (num_turns * 2 * math.pi)) / (2 * math.log(facts.rope_theta))

    low, high = pair_of(scaling["beta_fast"]), pair_of(scaling["beta_slow"])
    if scaling["truncate"]:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001
    stretched = ((torch.arange(dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    return plain / float(scaling["factor"]) * stretched + plain * (1 - stretched)
