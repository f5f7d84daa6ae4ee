"""LoadHistory: queue, cache, throughput and latencies of the last quarter of an hour, from running totals. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from ascendd.ipc.messages import Sample
from ascendd.telemetry.metrics import SPECS
from ascendd.tuning.observation import percentile

INTERVAL_S = 5.0
_NUM_POINTS = 180
_FIRST = "ascendd_request_time_to_first_token_seconds"
_BETWEEN = "ascendd_request_inter_token_seconds"
_RATES = {
    "prompt_tokens_per_s": "ascendd_engine_prompt_tokens_total",
    "generation_tokens_per_s": "ascendd_engine_generation_tokens_total",
}
_GAUGES = {
    "running": "ascendd_engine_sequences_running",
    "waiting": "ascendd_engine_sequences_waiting",
    "kv_usage": "ascendd_engine_kv_usage_ratio",
}
_LATENCIES = {
    "first_token_p50_s": (_FIRST, 0.5),
    "first_token_p95_s": (_FIRST, 0.95),
    "inter_token_p50_s": (_BETWEEN, 0.5),
    "inter_token_p95_s": (_BETWEEN, 0.95),
}
COLUMNS = ("unix_s", *_GAUGES, *_RATES, *_LATENCIES)


class LoadHistory:
    """
    One point each INTERVAL_S, 15 minutes of them.

    Rates are per second and latencies are percentiles in seconds, both of the interval that ends at the point; None
    where nothing was measured in it. Gauges of an engine that is down are None, too.
    """

    def __init__(self) -> None:
        self._points: deque[tuple[float | None, ...]] = deque(maxlen=_NUM_POINTS)
        self._before: dict[str, Sample] = {}
        self._before_s: float | None = None
        self._due_s = 0.0

    def on_tick(self, samples: Iterable[Sample], now_s: float, unix_s: float) -> bool:
        """Add a point where one is due at `now_s` (monotonic), from totals merged over restarts; return whether so."""
        if now_s < self._due_s:
            return False
        self._due_s = now_s + INTERVAL_S
        totals = {sample.name: sample for sample in samples if not sample.labels}
        took_s = None if self._before_s is None else now_s - self._before_s
        gauges = [_rounded(totals[name].value if name in totals else None) for name in _GAUGES.values()]
        rates = [self._rate(totals, name, took_s) for name in _RATES.values()]
        latencies = [self._percentile(totals, name, share) for name, share in _LATENCIES.values()]
        self._points.append((round(unix_s, 1), *gauges, *rates, *latencies))
        self._before, self._before_s = totals, now_s
        return True

    def columns(self) -> dict[str, list[float | None]]:
        """Return the points, oldest first, one list a column."""
        return {name: [point[index] for point in self._points] for index, name in enumerate(COLUMNS)}

    def _rate(self, totals: dict[str, Sample], name: str, took_s: float | None) -> float | None:
        if not took_s or name not in totals or name not in self._before:
            return None
        return _rounded(max(0.0, totals[name].value - self._before[name].value) / took_s)

    def _percentile(self, totals: dict[str, Sample], name: str, share: float) -> float | None:
        if name not in totals or name not in self._before:
            return None
        pairs = zip(totals[name].buckets, self._before[name].buckets, strict=True)
        grown = tuple(max(0, now - then) for now, then in pairs)
        return _rounded(percentile(grown, SPECS[name].buckets, share))


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
