"""Observation: what a tuning policy sees of the last interval, made from two readings of the running totals."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ascendd.ipc.messages import Sample
from ascendd.telemetry.metrics import SPECS

_FIRST = "ascendd_request_time_to_first_token_seconds"
_BETWEEN = "ascendd_request_inter_token_seconds"
_PERCENTILE = 0.95


@dataclass(frozen=True)
class Observation:
    """
    The load at `now_s` (monotonic) and the latencies of the interval that ends there.

    `first_token_s` is p95 to the first token and `inter_token_s` the mean between tokens, in seconds, None where
    nothing was measured; `kv_usage` is 0 to 1.
    """

    now_s: float
    num_waiting: int
    num_running: int
    kv_usage: float
    num_preemptions: int
    first_token_s: float | None
    inter_token_s: float | None


class Observer:
    """Turns running totals into Observations; counts are those since the observation before."""

    def __init__(self) -> None:
        self._counts: dict[str, tuple[int, ...]] = {}
        self._sums: dict[str, tuple[float, int]] = {}
        self._preemptions: float | None = None

    def observe(self, samples: Iterable[Sample], now_s: float) -> Observation:
        """Return what the interval since the last call shows; the first call has no latencies."""
        totals = {sample.name: sample for sample in samples if not sample.labels}
        preemptions = _value(totals, "ascendd_engine_preemptions_total")
        before, self._preemptions = self._preemptions, preemptions
        return Observation(
            now_s=now_s,
            num_waiting=int(_value(totals, "ascendd_engine_sequences_waiting")),
            num_running=int(_value(totals, "ascendd_engine_sequences_running")),
            kv_usage=_value(totals, "ascendd_engine_kv_usage_ratio"),
            num_preemptions=0 if before is None else max(0, int(preemptions - before)),
            first_token_s=self._percentile(totals, _FIRST),
            inter_token_s=self._mean(totals, _BETWEEN),
        )

    def _mean(self, totals: dict[str, Sample], name: str) -> float | None:
        sample = totals.get(name)
        if sample is None:
            return None
        now = (sample.value, sum(sample.buckets))
        before, self._sums[name] = self._sums.get(name), now
        if before is None or now[1] <= before[1]:
            return None
        return (now[0] - before[0]) / (now[1] - before[1])

    def _percentile(self, totals: dict[str, Sample], name: str) -> float | None:
        sample = totals.get(name)
        if sample is None:
            return None
        before = self._counts.get(name)
        self._counts[name] = sample.buckets
        if before is None or len(before) != len(sample.buckets):
            return None
        grown = tuple(max(0, now - then) for now, then in zip(sample.buckets, before, strict=True))
        return percentile(grown, SPECS[name].buckets, _PERCENTILE)


def percentile(counts: tuple[int, ...], bounds: tuple[float, ...], share: float) -> float | None:
    """
    Return the value below which `share` of the `counts` lie, linear within a bucket, as histogram_quantile does.

    None where nothing was counted; the last bound where it lies above all of them.
    """
    wanted = share * sum(counts)
    if not sum(counts):
        return None
    seen, low = 0, 0.0
    for count, bound in zip(counts, bounds, strict=False):
        if count and seen + count >= wanted:
            return low + (bound - low) * (wanted - seen) / count
        seen, low = seen + count, bound
    return bounds[-1]


def _value(totals: dict[str, Sample], name: str) -> float:
    sample = totals.get(name)
    return 0.0 if sample is None else sample.value
