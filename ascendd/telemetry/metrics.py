"""
Every metric of the product, declared once as data, and the store in which a process counts its own.

Nothing here imports prometheus_client: processes count in a MetricStore, ship Samples over the control link, and only
the metrics process (telemetry.exposition) turns them into the exposition format. Names that users of vLLM scrape are in
telemetry.compatibility. docs/METRICS.md is the contract for readers; a test holds the two together.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ascendd.ipc.messages import Sample
from ascendd.telemetry.buckets import (
    LATENCY_BUCKETS,
    TOKEN_COUNT_BUCKETS,
    VLLM_CHOICE_BUCKETS,
    VLLM_FIRST_TOKEN_BUCKETS,
    VLLM_REQUEST_BUCKETS,
    VLLM_STEP_TOKEN_BUCKETS,
    VLLM_TOKEN_BUCKETS,
    union,
)
from ascendd.telemetry.chip_metrics import CHIP_METRICS, NPU_EXPORTER_METRICS
from ascendd.telemetry.metric_spec import MetricKind, MetricSpec, counter, gauge


def _latency(name: str, help_text: str, also: tuple[float, ...] = ()) -> MetricSpec:
    return MetricSpec(name, MetricKind.HISTOGRAM, help_text, (), union(LATENCY_BUCKETS, also))


def _sizes(name: str, help_text: str, bounds: tuple[float, ...]) -> MetricSpec:
    return MetricSpec(name, MetricKind.HISTOGRAM, help_text, (), bounds)


ENGINE_METRICS = (
    gauge("ascendd_engine_sequences_running", "Sequences in the batch of the current step."),
    gauge("ascendd_engine_sequences_waiting", "Sequences that wait for a place in the batch."),
    gauge("ascendd_engine_kv_blocks", "KV cache blocks that exist."),
    gauge("ascendd_engine_kv_blocks_used", "KV cache blocks that belong to a sequence."),
    gauge("ascendd_engine_kv_usage_ratio", "Share of the KV cache blocks that belong to a sequence, 0 to 1."),
    gauge(
        "ascendd_engine_kv_fragmentation_ratio",
        "Share of the slots in KV cache blocks that belong to a sequence which hold no token, 0 to 1.",
    ),
    counter("ascendd_engine_prompt_tokens_total", "Prompt tokens of the sequences taken in."),
    counter("ascendd_engine_generation_tokens_total", "Tokens generated."),
    counter("ascendd_engine_preemptions_total", "Sequences put back to waiting because no KV block was free."),
    counter("ascendd_engine_prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache."),
    counter(
        "ascendd_engine_prefix_cache_hits_total", "Prompt tokens found in the prefix cache and not computed again."
    ),
    counter("ascendd_engine_steps_total", "Steps run."),
    gauge("ascendd_engine_kernel_replaced", "1 where the reference stands in for a fused kernel, else 0.", "kernel"),
    gauge("ascendd_engine_graph_buckets", "Batch sizes for which a decode graph is captured; 0 means eager."),
    counter("ascendd_engine_graph_replays_total", "Decode steps that were the replay of a graph."),
    counter(
        "ascendd_engine_out_of_memory_total",
        "Steps for which the device had no memory, by what was done: shrunk (tried again with half the tokens) or "
        "request_failed (one request that can never fit).",
        "outcome",
    ),
    gauge("ascendd_engine_sequence_limit", "Sequences that a batch may have now; self-tuning moves it."),
    gauge(
        "ascendd_engine_prefill_token_limit",
        "Prompt tokens that may join a step in which others decode; self-tuning moves it.",
    ),
    gauge("ascendd_engine_step_token_limit", "Tokens that a step may have now; below its maximum after a shortage."),
    _latency("ascendd_engine_step_duration_seconds", "Time of one step: schedule, execute and update."),
    _sizes("ascendd_engine_step_tokens", "Tokens computed in one step.", VLLM_STEP_TOKEN_BUCKETS),
    _latency(
        "ascendd_engine_queue_seconds", "Time a sequence waited in the engine for its first step.", VLLM_REQUEST_BUCKETS
    ),
    _latency(
        "ascendd_engine_prefill_seconds",
        "Time of a sequence from its first step to its first token.",
        VLLM_REQUEST_BUCKETS,
    ),
    _latency(
        "ascendd_engine_decode_seconds", "Time of a sequence from its first token to its last.", VLLM_REQUEST_BUCKETS
    ),
)

API_METRICS = (
    _latency(
        "ascendd_request_duration_seconds",
        "Time from the receipt of a request to its last token.",
        VLLM_REQUEST_BUCKETS,
    ),
    _latency(
        "ascendd_request_time_to_first_token_seconds",
        "Time from the receipt of a request to its first token.",
        VLLM_FIRST_TOKEN_BUCKETS,
    ),
    _latency("ascendd_request_inter_token_seconds", "Time between two tokens of one request.", VLLM_TOKEN_BUCKETS),
    _latency("ascendd_request_queue_seconds", "Time a request waited before it was given to the engine."),
    _sizes("ascendd_request_prompt_tokens", "Prompt tokens of a request that ended.", TOKEN_COUNT_BUCKETS),
    _sizes("ascendd_request_generation_tokens", "Tokens generated for a request that ended.", TOKEN_COUNT_BUCKETS),
    _sizes("ascendd_request_choices", "Answers asked for with one request (`n`).", VLLM_CHOICE_BUCKETS),
    counter("ascendd_requests_total", "Requests that ended, by the reason they ended for.", "finish_reason"),
    counter("ascendd_http_responses_total", "HTTP responses sent.", "route", "status"),
    counter("ascendd_preprocess_removed_tokens_total", "Prompt tokens that preprocessing removed, by step.", "step"),
    counter(
        "ascendd_model_tokens_total",
        "Tokens of requests that ended, by model or adapter: prompt (computed), cached or generated.",
        "model",
        "kind",
    ),
    counter("ascendd_request_aborts_total", "Requests given up because their client went away."),
    counter("ascendd_trace_spans_total", "Spans of traces, by outcome: sent or dropped.", "outcome"),
    gauge(
        "ascendd_tls_certificate_expiry_timestamp_seconds",
        "Unix time at which the served certificate expires; 0 without TLS.",
    ),
)

SUPERVISOR_METRICS = (
    counter("ascendd_child_restarts_total", "Restarts of a child process after it ended unasked.", "role"),
    counter("ascendd_child_failures_total", "Unasked ends of a child process, by their class.", "role", "failure"),
    counter("ascendd_memory_restarts_total", "Restarts of the engine for want of device memory, KV cache x 0.9 each."),
    counter(
        "ascendd_chip_resets_total",
        "Resets of chips (recovery.reset_chips), by outcome: done, held, failed.",
        "outcome",
    ),
    counter(
        "ascendd_incidents_total", "Unasked ends of a process that was acted on, each with a bundle.", "role", "cause"
    ),
    gauge(
        "ascendd_incident_bundle_bytes", "Bytes of the incident bundles that are kept, as `ascendd report` has them."
    ),
    counter("ascendd_incident_bundles_lost_total", "Incident bundles that could not be written, as on a full disk."),
    gauge("ascendd_log_bytes", "Disk space of log.file, rotated ones and the vendor's logs, looked at once a minute."),
    gauge("ascendd_log_budget_bytes", "Disk space that these may take together: log.budget."),
    counter("ascendd_log_files_removed_total", "Log files that were removed to stay within log.budget, oldest first."),
    counter("ascendd_tuning_changes_total", "Changes that self-tuning made, by direction: up or down.", "direction"),
    gauge("ascendd_power_watts", "Power that costs are reckoned with, by where it comes from.", "source"),
    counter("ascendd_cost_total", "What the instance has cost since its start, with cost.price_per_kwh.", "currency"),
    gauge(
        "ascendd_cost_per_million_tokens",
        "Cost of a million generated tokens of the last hour, by model or adapter.",
        "model",
        "currency",
    ),
    gauge("ascendd_child_up", "1 while the child process is ready, else 0.", "role"),
    gauge("ascendd_build_info", "Always 1; the labels tell what runs.", "version", "instance", "model"),
    gauge("ascendd_instance_ready", "1 while the instance answers requests, else 0."),
    gauge("ascendd_instance_state", "1 for the state the instance is in, 0 for all others.", "state"),
    gauge("ascendd_degraded", "1 while the instance serves without this, else 0.", "what"),
    gauge("ascendd_stats_age_seconds", "Age of what a process last told of itself; grows when it hangs.", "role"),
    gauge(
        "ascendd_reading_age_seconds",
        "Age of what the supervisor reads now and then: processes, private_memory, log, checks or power.",
        "what",
    ),
    gauge("ascendd_check_verdict", "A live check: 0 pass, 1 warning, 2 failure, 3 could not be checked.", "check"),
    gauge("ascendd_checks_timestamp_seconds", "Unix time of the last round of live checks."),
    gauge("ascendd_process_resident_memory_bytes", "Resident memory of a process.", "role"),
    gauge(
        "ascendd_process_private_memory_bytes",
        "Anonymous memory of a process, read once a minute, without the KV cache of a CPU, which comes with first use.",
        "role",
    ),
    gauge(
        "ascendd_process_memory_growth_bytes_per_hour",
        "Slope of the private memory of a process over the last hours; there after the first.",
        "role",
    ),
    counter("ascendd_process_cpu_seconds_total", "CPU time used by the processes of a role.", "role"),
)

GATEWAY_METRICS = (
    counter("ascendd_gateway_requests_total", "Requests answered, by rule, instance and status.",
             "rule", "target", "status"),
    counter("ascendd_gateway_rule_matches_total", "Requests that a rule chose for (live), or would have (dry_run).",
             "rule", "mode"),
    counter("ascendd_gateway_fallbacks_total", "Attempts given up for the next instance, by why: down or full.",
             "target", "reason"),
    counter("ascendd_gateway_loads_total", "Starts and stops of instances on demand: load or unload.",
             "target", "action"),
    gauge("ascendd_gateway_instance_up", "1 while the instance answers its readiness path, else 0.", "target"),
    gauge("ascendd_gateway_open_requests", "Requests passed to the instance that have not ended.", "target"),
    gauge("ascendd_gateway_outstanding_tokens", "Prompt tokens and max_tokens of those, by estimate.", "target"),
    _latency("ascendd_gateway_request_duration_seconds", "Time from the receipt of a request to its answer's end."),
)  # fmt: skip

LOG_METRICS = (counter("ascendd_log_lines_dropped_total", "Lines that log.file did not take, as on a full disk."),)

EXPORTER_METRICS = (
    gauge("ascendd_snapshot_age_seconds", "Age of the figures on this page; grows when the supervisor hangs."),
    counter("ascendd_scrapes_refused_total", "Requests to this page answered 429, beyond metrics.max_scrapes_per_s."),
)

METRICS: tuple[MetricSpec, ...] = (
    ENGINE_METRICS
    + API_METRICS
    + SUPERVISOR_METRICS
    + GATEWAY_METRICS
    + CHIP_METRICS
    + NPU_EXPORTER_METRICS
    + LOG_METRICS
    + EXPORTER_METRICS
)
SPECS: dict[str, MetricSpec] = {spec.name: spec for spec in METRICS}


@dataclass
class _Histogram:
    counts: list[int]
    total: float = 0.0


@dataclass
class _Series:
    spec: MetricSpec
    values: dict[tuple[str, ...], float] = field(default_factory=dict)
    histograms: dict[tuple[str, ...], _Histogram] = field(default_factory=dict)


class MetricStore:
    """
    Running totals of one process.

    One thread writes, any may call `samples()`: no locks, so a value read during a step may be one event behind.
    A metric without labels exists from the start with 0, so that rates are right from the first scrape.
    Names that are not in `specs`, and labels of the wrong number, raise KeyError and ValueError at once.
    """

    def __init__(self, specs: Iterable[MetricSpec]) -> None:
        self._series = {spec.name: _Series(spec) for spec in specs}
        for series in self._series.values():
            if not series.spec.labels:
                self._zero(series)

    def inc(self, name: str, amount: float = 1.0, labels: Sequence[str] = ()) -> None:
        """Add `amount` (0 or more) to a counter."""
        if amount < 0:
            raise ValueError(f"{name} is a counter and cannot go back by {amount}")
        series = self._find(name, MetricKind.COUNTER, labels)
        key = tuple(labels)
        series.values[key] = series.values.get(key, 0.0) + amount

    def set(self, name: str, value: float, labels: Sequence[str] = ()) -> None:
        """Set a gauge to `value`."""
        self._find(name, MetricKind.GAUGE, labels).values[tuple(labels)] = value

    def observe(self, name: str, value: float, labels: Sequence[str] = ()) -> None:
        """Count `value` in a histogram."""
        series = self._find(name, MetricKind.HISTOGRAM, labels)
        key = tuple(labels)
        histogram = series.histograms.get(key)
        if histogram is None:
            histogram = series.histograms[key] = _Histogram([0] * (len(series.spec.buckets) + 1))
        histogram.counts[bisect.bisect_left(series.spec.buckets, value)] += 1
        histogram.total += value

    def remove(self, name: str, labels: Sequence[str]) -> None:
        """Forget one label set of a gauge, because nobody can tell its value any more."""
        self._find(name, MetricKind.GAUGE, labels).values.pop(tuple(labels), None)

    def samples(self) -> list[Sample]:
        """Return all totals since the process started, in the order of declaration."""
        out: list[Sample] = []
        for name, series in self._series.items():
            # list() copies under the interpreter lock; the writer may add a label set meanwhile.
            out += [Sample(name, value, labels) for labels, value in list(series.values.items())]
            out += [Sample(name, h.total, labels, tuple(h.counts)) for labels, h in list(series.histograms.items())]
        return out

    def _find(self, name: str, kind: MetricKind, labels: Sequence[str]) -> _Series:
        series = self._series[name]
        if series.spec.kind is not kind or len(labels) != len(series.spec.labels):
            spec = series.spec
            raise ValueError(
                f"{name} is a {spec.kind.value} with labels {spec.labels}, not a {kind.value} with {tuple(labels)}"
            )
        return series

    @staticmethod
    def _zero(series: _Series) -> None:
        if series.spec.kind is MetricKind.HISTOGRAM:
            series.histograms[()] = _Histogram([0] * (len(series.spec.buckets) + 1))
        else:
            series.values[()] = 0.0
