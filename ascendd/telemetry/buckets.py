"""
Bounds of the histograms, in seconds or tokens.

A histogram that is also exported under a name of vLLM counts with both sets of bounds, so that either page is exact: a
cumulative count at a bound needs that bound, and nothing else.
"""

from __future__ import annotations

# From one decode step of a small model to a request of a minute; 0.05 is the alert of tokens.
LATENCY_BUCKETS = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0)

# vLLM's V1 engine, vllm/v1/metrics/loggers.py: https://docs.vllm.ai/en/stable/design/metrics/
VLLM_FIRST_TOKEN_BUCKETS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
    160.0, 640.0, 2560.0,
)  # fmt: skip
VLLM_TOKEN_BUCKETS = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
VLLM_REQUEST_BUCKETS = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
)  # fmt: skip
VLLM_STEP_TOKEN_BUCKETS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
VLLM_CHOICE_BUCKETS = (1, 2, 5, 10, 20)

# 1, 2, 5, 10 ... as vLLM has them up to the context length; here up to the longest context of any model served.
TOKEN_COUNT_BUCKETS = tuple(digit * 10**power for power in range(6) for digit in (1, 2, 5))


def union(*bounds: tuple[float, ...]) -> tuple[float, ...]:
    """Return every bound once, in ascending order."""
    return tuple(sorted(set().union(*bounds)))


def narrowed(counts: tuple[int, ...], bounds: tuple[float, ...], fewer: tuple[float, ...]) -> tuple[int, ...]:
    """
    Return `counts` of the buckets between `bounds` (one more than bounds: the last is above all) for `fewer` bounds.

    Each of `fewer` must be among `bounds`; else ValueError, as the count at such a bound is not known.
    """
    if unknown := set(fewer) - set(bounds):
        raise ValueError(f"no count was kept at {sorted(unknown)}; the bounds are {bounds}")
    out: list[int] = []
    since = 0
    for count, bound in zip(counts, bounds, strict=False):
        since += count
        if bound in fewer:
            out.append(since)
            since = 0
    return (*out, since + counts[-1])
