"""
The long_prefill rule: how the prompt tokens of a step are divided, so that a long prompt never starves short ones.

The oldest prompt of the best priority comes first, so that every prompt ends. While prompts of its priority that lack
fewer tokens wait or are under way, it has half of the step; the other half is theirs, shortest first, and what they
leave is its own again. So a prompt gets its first token after at most

    (twice its tokens + those of the earlier prompts that lack no more when it comes) / half a step, and one step more,

however long the prompts are that came earlier (twice, because the first does not let anybody pass once it lacks fewer
itself); and the first is slowed down by a factor of two at most. Prompts that
are as long or longer do not pass: two of equal length one after the other end no later than side by side.
"""

from __future__ import annotations

from collections.abc import Iterable

from ascendd.engine.sequence import Sequence


def first_share(budget: int, step_seq: int) -> int:
    """Return the first prompt's tokens out of `budget` while shorter ones lack some; an odd token goes in turns."""
    return (budget + step_seq % 2) // 2


def passing(first: Sequence, candidates: Iterable[Sequence]) -> list[Sequence]:
    """Return the `candidates` that may use the other half of the step, in the order of service."""
    limit, priority = first.num_uncomputed_tokens, first.priority
    shorter = [seq for seq in candidates if seq.num_uncomputed_tokens < limit and seq.priority == priority]
    shorter.sort(key=lambda seq: (seq.num_uncomputed_tokens, seq.order))
    return shorter
