"""
TokenBudget: how many tokens a step may have. Halved when a step ran out of device memory, climbing back afterwards.

    out of memory: limit = half of the failed step            clean steps: limit + 1/16 of the whole, every 8th step

Multiplicative decrease and additive increase find the size that fits and stay near it, and a spike costs little.
"""

from __future__ import annotations

# Steps without a failure between two rises, and before anybody new is taken in after a failure.
CLEAN_STEPS = 8
# A rise is this share of the whole budget.
RISE_PARTS = 16


class TokenBudget:
    """The limit of a step's tokens, 1 to `max_tokens`."""

    def __init__(self, max_tokens: int) -> None:
        self.max_tokens = max_tokens
        self.limit = max_tokens
        self._num_clean = CLEAN_STEPS

    @property
    def is_cut(self) -> bool:
        """Whether a failed step still shows."""
        return self.limit < self.max_tokens

    @property
    def is_exhausted(self) -> bool:
        """Whether a step of one token was the last thing that failed."""
        return self.limit == 1 and self._num_clean == 0

    @property
    def may_admit(self) -> bool:
        """Whether enough steps went well since the last failure to take in a sequence beside those that run."""
        return self._num_clean >= CLEAN_STEPS

    def cut(self, num_tokens: int) -> None:
        """Note that a step of `num_tokens` did not fit."""
        self.limit = max(1, min(self.limit, num_tokens) // 2)
        self._num_clean = 0

    def step_done(self) -> None:
        """Note that a step went well."""
        self._num_clean += 1
        if self.is_cut and self._num_clean % CLEAN_STEPS == 0:
            self.limit = min(self.max_tokens, self.limit + max(1, self.max_tokens // RISE_PARTS))
