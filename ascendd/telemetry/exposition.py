"""The page of /metrics: the supervisor's last snapshot in Prometheus' text format, rendered once per snapshot."""

from __future__ import annotations

import itertools
import re
import threading
import time
from collections.abc import Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from ascendd.ipc.messages import Sample
from ascendd.telemetry.buckets import narrowed
from ascendd.telemetry.compatibility import ALIASES, COMMON_LABELS, ENGINE_INDEX, Alias
from ascendd.telemetry.metric_spec import MetricKind, MetricSpec
from ascendd.telemetry.metrics import SPECS

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SNAPSHOT_AGE = "ascendd_snapshot_age_seconds"
# Ages that go on growing while the page stands.
_AGES = ("ascendd_stats_age_seconds", "ascendd_reading_age_seconds")
_REFUSED = "ascendd_scrapes_refused_total"
_FAMILY = re.compile(rb"^# TYPE (\S+)", re.MULTILINE)


class Exposition:
    """
    The last snapshot as text. What stays between snapshots is rendered once; ages are computed at each scrape.

    One thread calls `replace`, any `render`.
    """

    def __init__(self, model_name: str) -> None:
        self._model_name = model_name
        self._samples: Sequence[Sample] = ()
        self._received_at_s: float | None = None
        self._foreign = b""
        self._rendered: bytes | None = None
        self._lock = threading.Lock()

    def replace(self, samples: Sequence[Sample], age_s: float = 0.0, foreign: bytes = b"") -> None:
        """Show `samples` and the text of `foreign` from now on; they were `age_s` seconds old when they came."""
        with self._lock:
            self._samples, self._foreign, self._rendered = samples, foreign, None
            self._received_at_s = time.monotonic() - age_s

    def render(self, num_refused: int = 0) -> bytes:
        """Return the page, with `num_refused` scrapes answered 429 so far; before the first snapshot nothing else."""
        own = [Sample(_REFUSED, float(num_refused), ())]
        with self._lock:
            if self._received_at_s is None:
                return _text(families(own, self._model_name))
            age_s = time.monotonic() - self._received_at_s
            if self._rendered is None:
                fixed = [sample for sample in self._samples if sample.name not in _AGES]
                # What an engine tells under a name of its own is shown, not what we would tell under it.
                told = frozenset(_FAMILY.findall(self._foreign))
                self._rendered = _text(families(fixed, self._model_name, told)) + self._foreign
            page, samples = self._rendered, self._samples
        own.append(Sample(_SNAPSHOT_AGE, age_s, ()))
        own += [Sample(sample.name, sample.value + age_s, sample.labels) for sample in samples if sample.name in _AGES]
        return page + _text(families(own, self._model_name))


class _Families(Collector):
    def __init__(self, families_: Iterable[Metric]) -> None:
        self._families = families_

    def collect(self) -> Iterable[Metric]:
        return self._families


def _text(families_: Iterable[Metric]) -> bytes:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Families(families_))
    # Classic text on purpose: in OpenMetrics the library writes `_` for the `:` of vLLM's names.
    return generate_latest(registry)


def families(samples: Iterable[Sample], model_name: str, told: frozenset[bytes] = frozenset()) -> Iterator[Metric]:
    """Yield a family per metric among `samples`, then the aliases not `told` elsewhere, which carry vLLM's labels."""
    by_name = {
        name: list(group) for name, group in itertools.groupby(sorted(samples, key=_name), key=_name) if name in SPECS
    }
    for name, group in by_name.items():
        yield _family(SPECS[name], group)
    for alias in ALIASES:
        if alias.source in by_name and alias.name.encode() not in told:
            yield _family(alias_spec(alias), _narrow(alias, by_name[alias.source]), (model_name, ENGINE_INDEX))


def _name(sample: Sample) -> str:
    return sample.name


def alias_spec(alias: Alias) -> MetricSpec:
    """Return what `alias` is on the page: the kind of its source, with vLLM's labels before its own."""
    source = SPECS[alias.source]
    assert len(alias.labels) == len(source.labels)
    return MetricSpec(alias.name, source.kind, alias.help, (*COMMON_LABELS, *alias.labels), alias.buckets)


def _narrow(alias: Alias, samples: list[Sample]) -> list[Sample]:
    source = SPECS[alias.source]
    if source.kind is not MetricKind.HISTOGRAM:
        return samples
    return [
        Sample(alias.name, sample.value, sample.labels, narrowed(sample.buckets, source.buckets, alias.buckets))
        for sample in samples
    ]


def _family(spec: MetricSpec, samples: Iterable[Sample], prefix: tuple[str, ...] = ()) -> Metric:
    if spec.kind is MetricKind.HISTOGRAM:
        bounds = [*map(str, map(float, spec.buckets)), "+Inf"]
        histogram = HistogramMetricFamily(spec.name, spec.help, labels=spec.labels)
        for sample in samples:
            cumulative = list(zip(bounds, itertools.accumulate(map(float, sample.buckets)), strict=True))
            histogram.add_metric([*prefix, *sample.labels], cumulative, sum_value=sample.value)
        return histogram
    scalar: CounterMetricFamily | GaugeMetricFamily
    if spec.kind is MetricKind.COUNTER:
        scalar = CounterMetricFamily(spec.name, spec.help, labels=spec.labels)
    else:
        scalar = GaugeMetricFamily(spec.name, spec.help, labels=spec.labels)
    for sample in samples:
        scalar.add_metric([*prefix, *sample.labels], sample.value)
    return scalar
