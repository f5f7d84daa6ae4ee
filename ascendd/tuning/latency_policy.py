"""
LatencyPolicy: as many sequences as the goals on latency allow, found by additive increase and multiplicative decrease.

The idea is that of congestion control (Chiu and Jain, Analysis of the increase and decrease algorithms, 1989): grow in
small steps while the goal is met with room to spare and somebody waits, shrink by a factor as soon as it is missed.
"""

from __future__ import annotations

import math

from ascendd.tuning.observation import Observation
from ascendd.tuning.policy import Bounds, Decision, Limits


class LatencyPolicy:
    """
    Holds the mean time between tokens below `inter_token_goal_s` and p95 to the first one below `first_token_goal_s`.

    Tokens slower than `edge` of the goal: fewer sequences, x `decrease` of those that run; where that is the least
    already, half the prompt tokens beside decodes. Faster than `room` of it while others wait: `increase` more
    sequences; half as many again, and twice the prompt tokens, if first tokens are late. Between `room` and `edge`
    nothing moves: the hysteresis. After a decrease one observation is passed over, as its tokens were made under both
    limits.
    """

    def __init__(
        self,
        bounds: Bounds,
        *,
        first_token_goal_s: float,
        inter_token_goal_s: float,
        increase: int = 8,
        decrease: float = 0.9,
        room: float = 0.9,
        edge: float = 0.99,
    ) -> None:
        self._bounds = bounds
        self._first_token_goal_s = first_token_goal_s
        self._inter_token_goal_s = inter_token_goal_s
        self._increase = increase
        self._decrease = decrease
        self._room = room
        self._edge = edge
        self._settling = False

    def decide(self, limits: Limits, seen: Observation) -> Decision | None:
        """Return other limits where a goal is missed, or met with room while others wait."""
        if self._settling:
            self._settling = False
            return None
        gap_s, goal_s = seen.inter_token_s, self._inter_token_goal_s
        if gap_s is not None and gap_s > goal_s * self._edge:
            self._settling = True
            # What runs now, not what might: a limit far above the batch would have to be lowered many times first.
            running = min(limits.max_num_seqs, max(1, seen.num_running))
            fewer = max(self._bounds.min_num_seqs, math.floor(running * self._decrease))
            at_least = fewer == limits.max_num_seqs
            wish = Limits(fewer, limits.prefill_tokens // 2 if at_least else limits.prefill_tokens)
            return self._move(
                limits, wish, f"{gap_s * 1e3:.0f} ms between tokens, above {goal_s * self._edge * 1e3:g} ms"
            )
        if gap_s is not None and gap_s > goal_s * self._room:
            return None
        if not seen.num_waiting or seen.num_preemptions:
            return None
        is_late = seen.first_token_s is not None and seen.first_token_s > self._first_token_goal_s
        added = max(self._increase, limits.max_num_seqs // 2) if is_late else self._increase
        more = Limits(limits.max_num_seqs + added, limits.prefill_tokens * (2 if is_late else 1))
        why = f"{seen.num_waiting} sequences wait and tokens come in time"
        if is_late:
            why += f", first tokens after {seen.first_token_s:.1f} s"
        return self._move(limits, more, why)

    def _move(self, limits: Limits, wish: Limits, why: str) -> Decision | None:
        chosen = self._bounds.clamp(wish)
        if chosen == limits:
            return None
        parts = [
            f"{name} {old} -> {new}"
            for name, old, new in (
                ("max_num_seqs", limits.max_num_seqs, chosen.max_num_seqs),
                ("prefill tokens", limits.prefill_tokens, chosen.prefill_tokens),
            )
            if old != new
        ]
        return Decision(chosen, f"{why}: {', '.join(parts)}")
