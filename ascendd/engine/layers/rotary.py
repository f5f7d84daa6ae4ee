"""Rotary position embedding (Su et al., 2021): a table of cosines and sines, one row a position."""

from __future__ import annotations

import math

import torch

from ascendd.config.model_facts import ModelFacts


class RotaryTable:
    """cos and sin of every position up to the context length, fp32 inside, rounded once."""

    def __init__(self, facts: ModelFacts, max_len: int, dtype: torch.dtype, device: str) -> None:
        inv_freq = 1.0 / facts.rope_theta ** (torch.arange(0, facts.head_dim, 2, dtype=torch.float32) / facts.head_dim)
        inv_freq = _scale(inv_freq, facts)
        angles = torch.outer(torch.arange(max_len, dtype=torch.float32), inv_freq)  # [max_len, head_dim / 2]
        both = torch.cat((angles, angles), dim=-1)
        self._cos = both.cos().to(dtype).to(device)
        self._sin = both.sin().to(dtype).to(device)

    def rows(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return cos and sin for `positions` [num_tokens], each [num_tokens, 1, head_dim]."""
        return self._cos.index_select(0, positions)[:, None], self._sin.index_select(0, positions)[:, None]


def _scale(inv_freq: torch.Tensor, facts: ModelFacts) -> torch.Tensor:
    """Apply the model's rope scaling; ModelFacts has refused the kinds that are not here."""
    scaling = facts.rope_scaling
    if scaling is None:
        return inv_freq
    factor = float(scaling["factor"])
    if scaling.get("rope_type", scaling.get("type")) == "linear":
        return inv_freq / factor
    # llama3: long waves are stretched by `factor`, short ones kept, those between interpolated.
    low, high = float(scaling["low_freq_factor"]), float(scaling["high_freq_factor"])
    original = float(scaling["original_max_position_embeddings"])
    wavelength = 2 * math.pi / inv_freq
    smooth = ((original / wavelength - low) / (high - low)).clamp(0.0, 1.0)
    return (1 - smooth) * inv_freq / factor + smooth * inv_freq
