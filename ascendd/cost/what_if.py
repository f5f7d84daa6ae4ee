"""What the same load would cost with another batch, dtype, prefix cache or preprocessing. Pure estimates."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Seen:
    """
    What was seen of a load: its cost for a million generated tokens, and what that came from.

    `batch` is the mean number of sequences in a step. `weight_bytes` are read once a step, and `context_bytes` are
    those of the KV cache of one sequence, read in each of its steps; 0 where they are not known. Tokens are totals.
    """

    cost_per_million: float
    batch: float
    weight_bytes: float
    context_bytes: float
    prompt_tokens: float
    generated_tokens: float
    cached_tokens: float
    removed_tokens: float


@dataclass(frozen=True)
class Row:
    """One line of the table: what is changed, and the cost for a million generated tokens."""

    what: str
    cost_per_million: float
    basis: str


def table(seen: Seen) -> list[Row]:
    """
    Return the load as it is, then with one thing changed at a time.

    Batch and dtype are estimated by bytes: a decode step takes the time of reading the weights once and the KV cache
    of each sequence, which holds for a device bound by its memory. Prefix cache and preprocessing are counted: tokens
    that were not computed would have been, at the price of the others.
    """
    rows = [Row("as it is", seen.cost_per_million, "measured")]
    if seen.weight_bytes and seen.batch > 0:
        rows += [
            Row(
                f"mean batch {batch:g} in place of {seen.batch:.1f}",
                seen.cost_per_million * _per_token(seen, batch) / _per_token(seen, seen.batch),
                "estimate by bytes read",
            )
            for batch in (1, 8, 32, 128)
        ]
        rows += [
            Row(
                what,
                seen.cost_per_million * _per_token(seen, seen.batch, scale) / _per_token(seen, seen.batch),
                "estimate by bytes read",
            )
            for what, scale in (("weights of half the size (int8 for fp16)", 0.5), ("weights of twice the size", 2.0))
        ]
    rows += _counted(seen)
    return rows


def _per_token(seen: Seen, batch: float, weight_scale: float = 1.0) -> float:
    """Return bytes read for each token of a decode step."""
    return seen.weight_bytes * weight_scale / batch + seen.context_bytes


def _counted(seen: Seen) -> Iterator[Row]:
    computed = seen.prompt_tokens - seen.cached_tokens + seen.generated_tokens
    if computed <= 0:
        return
    for what, saved in (
        ("without the prefix cache", seen.cached_tokens),
        ("without preprocessing", seen.removed_tokens),
    ):
        if saved > 0:
            yield Row(what, seen.cost_per_million * (computed + saved) / computed, f"{saved:.0f} tokens more, counted")
