"""
Totals of an instance from totals of its processes. Pure.

A child counts from 0 when it is restarted; the accumulator adds what its dead predecessors had counted, so that
counters and histograms never go back. Gauges of a dead child vanish: nobody can tell their value.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ascendd.ipc.messages import Sample
from ascendd.telemetry.metric_spec import MetricKind, MetricSpec
from ascendd.telemetry.metrics import SPECS

_Key = tuple[str, tuple[str, ...]]


class Accumulator:
    """Merges the Stats of all roles; `source` is any name that is unique among processes alive at one time."""

    def __init__(self, specs: Mapping[str, MetricSpec] = SPECS) -> None:
        self._specs = specs
        self._retired: dict[_Key, Sample] = {}
        self._live: dict[str, list[Sample]] = {}

    def update(self, source: str, samples: Iterable[Sample]) -> None:
        """Take the running totals of `source`; samples of metrics that are not declared are dropped."""
        self._live[source] = [sample for sample in samples if sample.name in self._specs]

    def retire(self, source: str) -> None:
        """Keep the counts of `source`, which ended; forget its gauges. Unknown sources are ignored."""
        for sample in self._live.pop(source, ()):
            if self._specs[sample.name].kind is not MetricKind.GAUGE:
                _add(self._retired, sample)

    def merged(self) -> list[Sample]:
        """Return the totals over the living and the dead, sorted by metric and labels."""
        totals = dict(self._retired)
        for samples in self._live.values():
            for sample in samples:
                _add(totals, sample)
        return [totals[key] for key in sorted(totals)]


def _add(totals: dict[_Key, Sample], sample: Sample) -> None:
    key = (sample.name, sample.labels)
    known = totals.get(key)
    if known is None:
        totals[key] = sample
        return
    buckets = tuple(a + b for a, b in zip(known.buckets, sample.buckets, strict=True))
    totals[key] = Sample(sample.name, known.value + sample.value, sample.labels, buckets)
