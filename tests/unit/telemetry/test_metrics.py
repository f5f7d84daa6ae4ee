"""The table of metrics and the store that counts them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from ascendd.ipc.messages import Sample
from ascendd.telemetry.buckets import LATENCY_BUCKETS, TOKEN_COUNT_BUCKETS, narrowed
from ascendd.telemetry.chip_metrics import NPU_EXPORTER_METRICS
from ascendd.telemetry.compatibility import ALIASES, COMMON_LABELS
from ascendd.telemetry.metric_spec import MetricKind
from ascendd.telemetry.metrics import (
    API_METRICS,
    ENGINE_METRICS,
    METRICS,
    SPECS,
    MetricStore,
)

_UNITS = ("_seconds", "_bytes", "_ratio", "_tokens", "_choices")
CONTRACT = Path(__file__).resolve().parents[3] / "docs" / "METRICS.md"


OURS = [spec for spec in METRICS if spec not in NPU_EXPORTER_METRICS]


@pytest.mark.parametrize("spec", OURS, ids=lambda spec: spec.name)
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


# vLLM 0.32's "Production Metrics" with its V1 engine: kind, labels after model_name and engine, and the first and last bound.
# Where the page shows a counter, prometheus_client has put _total behind the name.
VLLM_DOCUMENTED = {
    "vllm:num_requests_running": (MetricKind.GAUGE, (), None),
    "vllm:num_requests_waiting": (MetricKind.GAUGE, (), None),
    "vllm:kv_cache_usage_perc": (MetricKind.GAUGE, (), None),
    "vllm:prefix_cache_queries_total": (MetricKind.COUNTER, (), None),
    "vllm:prefix_cache_hits_total": (MetricKind.COUNTER, (), None),
    "vllm:num_preemptions_total": (MetricKind.COUNTER, (), None),
    "vllm:prompt_tokens_total": (MetricKind.COUNTER, (), None),
    "vllm:generation_tokens_total": (MetricKind.COUNTER, (), None),
    "vllm:request_success_total": (MetricKind.COUNTER, ("finished_reason",), None),
    "vllm:time_to_first_token_seconds": (MetricKind.HISTOGRAM, (), (0.001, 2560)),
    "vllm:inter_token_latency_seconds": (MetricKind.HISTOGRAM, (), (0.01, 80)),
    "vllm:e2e_request_latency_seconds": (MetricKind.HISTOGRAM, (), (0.3, 7680)),
    "vllm:request_queue_time_seconds": (MetricKind.HISTOGRAM, (), (0.3, 7680)),
    "vllm:request_prefill_time_seconds": (MetricKind.HISTOGRAM, (), (0.3, 7680)),
    "vllm:request_decode_time_seconds": (MetricKind.HISTOGRAM, (), (0.3, 7680)),
    "vllm:iteration_tokens_total": (MetricKind.HISTOGRAM, (), (1, 16384)),
    "vllm:request_prompt_tokens": (MetricKind.HISTOGRAM, (), (1, None)),
    "vllm:request_generation_tokens": (MetricKind.HISTOGRAM, (), (1, None)),
    "vllm:request_params_n": (MetricKind.HISTOGRAM, (), (1, 20)),
}
# Those of the account's dashboards, which vLLM itself never had or has no more.
ACCOUNTS = {"vllm:gpu_cache_usage_ratio", "vllm:request_queue_size", "vllm:time_per_output_token_seconds"}


def test_aliases_are_the_names_that_users_scrape():
    """Each compatibility name points to one of our metrics and has as many labels."""
    assert {alias.name for alias in ALIASES} == VLLM_DOCUMENTED.keys() | ACCOUNTS
    for alias in ALIASES:
        source = SPECS[alias.source]
        assert len(alias.labels) == len(source.labels)
        assert bool(alias.buckets) == (source.kind is MetricKind.HISTOGRAM)
        assert set(alias.buckets) <= set(source.buckets)


@pytest.mark.parametrize("name", VLLM_DOCUMENTED)
def test_each_name_of_vllm_is_as_it_documents_it(name):
    """Kind, labels and the ends of the bounds; those of token counts end where the context does, which ours leave open."""
    alias = next(alias for alias in ALIASES if alias.name == name)
    kind, labels, ends = VLLM_DOCUMENTED[name]

    assert (SPECS[alias.source].kind, alias.labels, COMMON_LABELS) == (kind, labels, ("model_name", "engine"))
    if ends is not None:
        assert (alias.buckets[0], ends[1] and alias.buckets[-1]) == ends


def test_the_contract_lists_every_metric_as_it_is():
    """docs/METRICS.md has one row for each metric and alias, with its type, labels and meaning, and no other row."""
    rows = [line for line in CONTRACT.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    expected = [contract_row(spec.name, spec.kind, spec.labels, spec.help) for spec in METRICS]
    expected += [
        contract_row(alias.name, SPECS[alias.source].kind, alias.labels, f"`{alias.source}`") for alias in ALIASES
    ]

    assert rows == expected


def contract_row(name, kind, labels, meaning):
    """Return the row of docs/METRICS.md for a metric."""
    return f"| `{name}` | {kind.value} | {', '.join(f'`{label}`' for label in labels)} | {meaning} |"


def test_narrowed_counts_are_exact_where_a_bound_is_kept():
    """Counts between dropped bounds are added to the next kept one; a bound that was never counted is refused."""
    assert narrowed((1, 2, 3, 4), (1.0, 2.0, 3.0), (2.0,)) == (3, 7)
    assert narrowed((1, 2, 3, 4), (1.0, 2.0, 3.0), (1.0, 3.0)) == (1, 5, 4)
    assert narrowed((1, 2), (5.0,), ()) == (3,)
    with pytest.raises(ValueError, match="no count was kept at"):
        narrowed((1, 2), (5.0,), (4.0,))
    assert TOKEN_COUNT_BUCKETS[:5] == (1, 2, 5, 10, 20)


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
