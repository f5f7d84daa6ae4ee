"""The table of metrics and the store that counts them."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from ascendd.ipc.messages import Sample
from ascendd.telemetry.metrics import (
    ALIASES,
    API_METRICS,
    ENGINE_METRICS,
    LATENCY_BUCKETS,
    METRICS,
    SPECS,
    MetricKind,
    MetricStore,
)

_UNITS = ("_seconds", "_bytes", "_ratio")


@pytest.mark.parametrize("spec", METRICS, ids=lambda spec: spec.name)
def test_each_metric_keeps_the_naming_rules(spec):
    """A name is ascendd_<area>_<noun>[_unit], a counter and only a counter ends in _total, a histogram has bounds."""
    words = spec.name.split("_")

    assert words[0] == "ascendd"
    assert re.fullmatch(r"ascendd(_[a-z]+)+", spec.name)
    assert spec.name.endswith("_total") == (spec.kind is MetricKind.COUNTER)
    assert bool(spec.buckets) == (spec.kind is MetricKind.HISTOGRAM)
    assert spec.help.endswith(".")
    assert list(spec.buckets) == sorted(set(spec.buckets))
    if spec.kind is MetricKind.HISTOGRAM:
        assert spec.name.endswith(_UNITS)


def test_metric_names_are_unique():
    """No name is declared twice, aliases included."""
    names = [spec.name for spec in METRICS] + [alias.name for alias in ALIASES]

    assert len(names) == len(set(names))


def test_latency_bounds_span_the_product():
    """Bounds reach from 5 ms to 60 s and hit the alert threshold of 0.05 s per token."""
    assert (LATENCY_BUCKETS[0], LATENCY_BUCKETS[-1]) == (0.005, 60.0)
    assert 0.05 in LATENCY_BUCKETS


def test_aliases_are_the_names_that_users_scrape():
    """Each compatibility name points to one of our metrics and has as many labels."""
    expected = {
        "vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc", "vllm:prompt_tokens_total",
        "vllm:generation_tokens_total", "vllm:request_success_total", "vllm:time_to_first_token_seconds",
        "vllm:inter_token_latency_seconds", "vllm:e2e_request_latency_seconds", "vllm:request_queue_time_seconds",
        "vllm:gpu_cache_usage_ratio", "vllm:request_queue_size", "vllm:time_per_output_token_seconds",
    }  # fmt: skip

    assert {alias.name for alias in ALIASES} == expected
    for alias in ALIASES:
        assert len(alias.labels) == len(SPECS[alias.source].labels)


def test_metrics_import_no_exposition_library():
    """Processes count without prometheus_client being loaded."""
    code = "import sys, ascendd.telemetry.metrics; print('prometheus_client' in sys.modules)"

    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "False\n"


def test_store_reports_running_totals():
    """Counters add up, gauges keep the last value, observations land in the bucket whose bound they do not exceed."""
    store = MetricStore(ENGINE_METRICS)

    store.inc("ascendd_engine_steps_total")
    store.inc("ascendd_engine_steps_total", 2)
    store.set("ascendd_engine_kv_blocks", 5)
    store.set("ascendd_engine_kv_blocks", 3)
    for value in (0.005, 0.0051, 99.0):
        store.observe("ascendd_engine_step_duration_seconds", value)
    samples = {sample.name: sample for sample in store.samples()}

    assert samples["ascendd_engine_steps_total"].value == 3
    assert samples["ascendd_engine_kv_blocks"].value == 3
    histogram = samples["ascendd_engine_step_duration_seconds"]
    assert (histogram.buckets[0], histogram.buckets[1], histogram.buckets[-1]) == (1, 1, 1)
    assert sum(histogram.buckets) == 3
    assert histogram.value == pytest.approx(99.0101)


def test_store_starts_with_zeros():
    """A metric without labels exists before its first event, so that the first increase is seen as one."""
    samples = MetricStore(API_METRICS).samples()

    assert Sample("ascendd_request_aborts_total", 0.0) in samples
    assert "ascendd_requests_total" not in {sample.name for sample in samples}


def test_store_keeps_label_sets_apart():
    """Each combination of label values is a series of its own."""
    store = MetricStore(API_METRICS)

    store.inc("ascendd_requests_total", labels=("stop",))
    store.inc("ascendd_requests_total", 2, ("length",))

    assert Sample("ascendd_requests_total", 1.0, ("stop",)) in store.samples()
    assert Sample("ascendd_requests_total", 2.0, ("length",)) in store.samples()


def test_store_refuses_misuse():
    """An unknown name, a wrong kind, a wrong number of labels and a counter going back fail where they are written."""
    store = MetricStore(API_METRICS)

    with pytest.raises(KeyError):
        store.inc("ascendd_engine_steps_total")
    with pytest.raises(ValueError, match="is a counter"):
        store.set("ascendd_request_aborts_total", 1.0)
    with pytest.raises(ValueError, match="labels"):
        store.inc("ascendd_requests_total")
    with pytest.raises(ValueError, match="cannot go back"):
        store.inc("ascendd_request_aborts_total", -1.0)
