"""QueuePolicy: more sequences in a batch while many wait, fewer when few do. Pure."""

from __future__ import annotations

from ascendd.tuning.observation import Observation
from ascendd.tuning.policy import Bounds, Decision, Limits


class QueuePolicy:
    """
    Raises max_num_seqs by `step` while more than `raise_above` wait, lowers it while fewer than `lower_below` do.

    Both only after `patience` observations in a row that say so, so that a queue that swings around one of the marks
    moves nothing; between the marks nothing moves at all. It is not raised while the KV cache is nearly full: the
    sequences would only preempt each other.
    """

    KV_NEARLY_FULL = 0.9

    def __init__(
        self, bounds: Bounds, *, raise_above: int = 24, lower_below: int = 8, step: int = 8, patience: int = 2
    ) -> None:
        self._bounds = bounds
        self._raise_above = raise_above
        self._lower_below = lower_below
        self._step = step
        self._patience = patience
        self._streak = 0

    def decide(self, limits: Limits, seen: Observation) -> Decision | None:
        """Return other limits once the queue has said the same often enough."""
        wish = (seen.num_waiting > self._raise_above) - (seen.num_waiting < self._lower_below)
        if wish > 0 and seen.kv_usage > self.KV_NEARLY_FULL:
            wish = 0
        self._streak = self._streak + wish if wish and (self._streak > 0) == (wish > 0) else wish
        if abs(self._streak) < self._patience:
            return None
        self._streak = 0
        chosen = self._bounds.clamp(Limits(limits.max_num_seqs + wish * self._step, limits.prefill_tokens))
        if chosen == limits:
            return None
        mark = f"more than {self._raise_above}" if wish > 0 else f"fewer than {self._lower_below}"
        return Decision(
            chosen,
            f"{seen.num_waiting} sequences wait, {mark}: max_num_seqs {limits.max_num_seqs} -> {chosen.max_num_seqs}",
        )
