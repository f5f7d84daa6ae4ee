"""What a tuning policy is: limits in force, bounds they stay within, and a decision with its reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ascendd.tuning.observation import Observation


@dataclass(frozen=True)
class Limits:
    """Sequences in a batch, and prompt tokens that may join a step in which others decode."""

    max_num_seqs: int
    prefill_tokens: int


@dataclass(frozen=True)
class Bounds:
    """Both ends, inclusive, of what a policy may choose. Raises ValueError where an end is above the other."""

    min_num_seqs: int
    max_num_seqs: int
    min_prefill_tokens: int
    max_prefill_tokens: int

    def __post_init__(self) -> None:
        if self.min_num_seqs > self.max_num_seqs or self.min_prefill_tokens > self.max_prefill_tokens:
            raise ValueError(f"the lower end of {self} is above the upper one")

    def clamp(self, limits: Limits) -> Limits:
        """Return the nearest limits within the bounds."""
        return Limits(
            min(max(limits.max_num_seqs, self.min_num_seqs), self.max_num_seqs),
            min(max(limits.prefill_tokens, self.min_prefill_tokens), self.max_prefill_tokens),
        )


@dataclass(frozen=True)
class Decision:
    """New limits and why, in words that have the figures in them."""

    limits: Limits
    reason: str


class Policy(Protocol):
    """One way to choose limits; keeps what it needs to remember between observations."""

    def decide(self, limits: Limits, seen: Observation) -> Decision | None:
        """Return other limits than those in force, or None to leave them."""
