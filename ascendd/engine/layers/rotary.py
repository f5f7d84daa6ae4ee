"""Rotary position embedding (Su et al., 2021): a table of cosines and sines, one row a position."""

from __future__ import annotations

import torch

from ascendd.config.model_facts import ModelFacts
from ascendd.engine.layers.rope_scaling import rotary_frequencies


class RotaryTable:
    """
    cos and sin of every position up to the context length, fp32 inside, rounded once.

    A model with a second set of frequencies for long sequences has its rows `long_offset` further down.
    """

    def __init__(self, facts: ModelFacts, max_len: int, dtype: torch.dtype, device: str) -> None:
        switch = facts.rope_switch_length
        has_long = switch is not None and switch < max_len
        self.long_offset = max_len if has_long else 0
        positions = torch.arange(max_len, dtype=torch.float32)
        cosines, sines = [], []
        for is_long in (False, True) if has_long else (False,):
            frequencies, factor = rotary_frequencies(facts, is_long=is_long)
            angles = torch.outer(positions, frequencies)  # [max_len, rotary_dim / 2]
            both = torch.cat((angles, angles), dim=-1)
            cosines.append(both.cos() * factor)
            sines.append(both.sin() * factor)
        self._cos = torch.cat(cosines).to(dtype).to(device)
        self._sin = torch.cat(sines).to(dtype).to(device)

    def rows(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """
        Return cos and sin, each [num_tokens, 1, rotary_dim].

        `rows` [num_tokens] holds positions, `long_offset` added for tokens of long sequences.
        """
        return self._cos.index_select(0, rows)[:, None], self._sin.index_select(0, rows)[:, None]
