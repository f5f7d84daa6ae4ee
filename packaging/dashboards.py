#!/usr/bin/env python3
"""
Write the Grafana dashboards from the panels below: `packaging/dashboards.py [FOLDER]` (default: packaging/grafana).

The JSON that Grafana imports is generated, so that a panel is three lines here and all look alike; a test compares the
committed files with what this writes, and each expression with the metrics that the daemon has.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HOST = 'job=~"$job",instance=~"$instance"'
WIDTH, HEIGHT = 12, 8
CHIP = "{{instance}} NPU {{npu}} chip {{chip}}"
# The metric that every target of a dashboard has, from which its choices come; the exporter has no instance.
CHOSEN_BY = {"chips": "ascendd_chips_readable"}


@dataclass(frozen=True)
class Panel:
    """One graph: Grafana's name of the unit, and (legend, PromQL) for each line; `%s` stands for the chosen hosts."""

    title: str
    unit: str
    lines: tuple[tuple[str, str], ...]
    note: str
    threshold: float | None = None


def quantiles(metric: str) -> tuple[tuple[str, str], ...]:
    """Return the median, p95 and p99 of a histogram over all chosen instances."""
    return tuple(
        (
            f"p{percent}",
            f"histogram_quantile({percent / 100}, sum by (le) (rate({metric}_bucket{{%s}}[$__rate_interval])))",
        )
        for percent in (50, 95, 99)
    )


def rate(metric: str, *by: str) -> str:
    """Return the rate of a counter, summed by labels."""
    return (
        f"sum by ({', '.join(by)}) (rate({metric}{{%s}}[$__rate_interval]))"
        if by
        else f"sum(rate({metric}{{%s}}[$__rate_interval]))"
    )


def increase(metric: str, by: str) -> str:
    """Return how much a counter grew, summed by a label."""
    return f"sum by ({by}) (increase({metric}{{%s}}[$__rate_interval]))"


DASHBOARDS: dict[str, tuple[str, tuple[Panel, ...]]] = {
    "service": (
        "ascendd: service",
        (
            Panel(
                "Ready",
                "none",
                (("{{instance}}", "ascendd_instance_ready{%s}"),),
                "1 while the instance answers requests.",
            ),
            Panel(
                "Requests a second",
                "reqps",
                (("{{finish_reason}}", rate("ascendd_requests_total", "finish_reason")),),
                "Requests that ended, by how.",
            ),
            Panel(
                "Time to first token",
                "s",
                quantiles("ascendd_request_time_to_first_token_seconds"),
                "From the receipt of a request.",
                2.5,
            ),
            Panel(
                "Time between tokens",
                "s",
                quantiles("ascendd_request_inter_token_seconds"),
                "The alert is at 0.05 s on average.",
                0.05,
            ),
            Panel("Whole requests", "s", quantiles("ascendd_request_duration_seconds"), "From receipt to last token."),
            Panel(
                "Tokens a second",
                "short",
                (
                    ("generated", rate("ascendd_engine_generation_tokens_total")),
                    ("prompt", rate("ascendd_engine_prompt_tokens_total")),
                ),
                "Over all chosen instances.",
            ),
            Panel(
                "Responses by status",
                "reqps",
                (("{{status}}", rate("ascendd_http_responses_total", "status")),),
                "429 and 503 are requests refused in time.",
            ),
            Panel(
                "Clients that left",
                "reqps",
                (("aborts", rate("ascendd_request_aborts_total")),),
                "Requests given up because their client went away.",
            ),
        ),
    ),
    "capacity": (
        "ascendd: capacity",
        (
            Panel(
                "KV cache",
                "percentunit",
                (("{{instance}}", "ascendd_engine_kv_usage_ratio{%s}"),),
                "The alert is at 85 %.",
                0.85,
            ),
            Panel(
                "Waiting",
                "short",
                (("{{instance}}", "ascendd_engine_sequences_waiting{%s}"),),
                "The alert is at 32 sequences.",
                32,
            ),
            Panel(
                "Running",
                "short",
                (("{{instance}}", "ascendd_engine_sequences_running{%s}"),),
                "Sequences in the batch.",
            ),
            Panel(
                "Time in queue",
                "s",
                quantiles("ascendd_engine_queue_seconds"),
                "From arrival in the engine to the first step.",
            ),
            Panel(
                "Prefill", "s", quantiles("ascendd_engine_prefill_seconds"), "From the first step to the first token."
            ),
            Panel("Step", "s", quantiles("ascendd_engine_step_duration_seconds"), "Schedule, execute and update."),
            Panel(
                "Prefix cache",
                "percentunit",
                (
                    (
                        "found",
                        rate("ascendd_engine_prefix_cache_hits_total")
                        + " / "
                        + rate("ascendd_engine_prefix_cache_queries_total"),
                    ),
                ),
                "Share of looked-up prompt tokens that were not computed again.",
            ),
            Panel(
                "Preemptions",
                "ops",
                (("{{instance}}", rate("ascendd_engine_preemptions_total", "instance")),),
                "Sequences put back because no block was free.",
            ),
            Panel("Prompt length", "short", quantiles("ascendd_request_prompt_tokens"), "Tokens."),
            Panel("Answer length", "short", quantiles("ascendd_request_generation_tokens"), "Tokens."),
            Panel(
                "Unused slots in used blocks",
                "percentunit",
                (("{{instance}}", "ascendd_engine_kv_fragmentation_ratio{%s}"),),
                "Fragmentation of the KV cache.",
            ),
            Panel(
                "Cost of a million generated tokens",
                "none",
                (("{{model}} {{currency}}", "ascendd_cost_per_million_tokens{%s}"),),
                "Over the last hour; needs cost.price_per_kwh in the instance file.",
            ),
            Panel(
                "Power",
                "watt",
                (("{{instance}} {{source}}", "ascendd_power_watts{%s}"),),
                "What costs are reckoned with.",
            ),
            Panel(
                "Memory of processes",
                "bytes",
                (("{{role}}", "sum by (role) (ascendd_process_resident_memory_bytes{%s})"),),
                "Resident.",
            ),
        ),
    ),
    "chips": (
        "ascendd: chips",
        (
            Panel(
                "Healthy",
                "none",
                ((CHIP, "ascendd_chip_healthy{%s}"),),
                "1 where npu-smi calls the chip OK. The alert is at 0.",
            ),
            Panel("Cores in use", "percentunit", ((CHIP, "ascendd_chip_utilization_ratio{%s}"),), "Share of the time."),
            Panel(
                "Memory",
                "percentunit",
                ((CHIP, "ascendd_chip_memory_used_bytes{%s} / ascendd_chip_memory_bytes{%s}"),),
                "HBM in use. The daemon takes its share at the start and keeps it.",
            ),
            Panel("Temperature", "celsius", ((CHIP, "ascendd_chip_temperature_celsius{%s}"),), "As npu-smi prints it."),
            Panel(
                "Power",
                "watt",
                ((CHIP, "ascendd_chip_power_watts{%s}"), ("all", "sum(ascendd_chip_power_watts{%s})")),
                "Of each chip, and of all together.",
            ),
            Panel(
                "Chips that are there",
                "none",
                (("{{instance}}", "ascendd_chips{%s}"), ("{{instance}} readable", "ascendd_chips_readable{%s}")),
                "A chip that falls off the bus is missing here.",
            ),
            Panel(
                "Reading npu-smi",
                "s",
                (
                    ("{{instance}} took", "ascendd_chip_read_seconds{%s}"),
                    ("{{instance}} age", "ascendd_snapshot_age_seconds{%s}"),
                ),
                "Both grow when a chip hangs.",
            ),
            Panel(
                "Instances",
                "none",
                (("{{name}}", "ascendd_instance_listening{%s}"),),
                "1 while an instance of the host answers its control socket.",
            ),
        ),
    ),
    "incidents": (
        "ascendd: incidents",
        (
            Panel(
                "Restarts",
                "short",
                (("{{role}}", increase("ascendd_child_restarts_total", "role")),),
                "Of processes that ended unasked.",
            ),
            Panel(
                "Restarts for want of memory",
                "short",
                (("{{instance}}", increase("ascendd_memory_restarts_total", "instance")),),
                "Each with a KV cache of 0.9 of the last.",
            ),
            Panel(
                "Steps without memory",
                "short",
                (("{{outcome}}", increase("ascendd_engine_out_of_memory_total", "outcome")),),
                "What was done: shrunk, or one request failed.",
            ),
            Panel(
                "Degraded",
                "none",
                (("{{instance}} {{what}}", "ascendd_degraded{%s}"),),
                "1 while it serves without this.",
            ),
            Panel(
                "State",
                "none",
                (("{{instance}} {{state}}", "ascendd_instance_state{%s} == 1"),),
                "The state each instance is in.",
            ),
            Panel(
                "Age of figures",
                "s",
                (
                    ("{{instance}} page", "ascendd_snapshot_age_seconds{%s}"),
                    ("{{instance}} {{role}}", "ascendd_stats_age_seconds{%s}"),
                ),
                "Grows when a process hangs.",
            ),
            Panel(
                "Kernels replaced",
                "none",
                (("{{instance}} {{kernel}}", "ascendd_engine_kernel_replaced{%s} == 1"),),
                "Fused kernels that did not prove themselves at start.",
            ),
            Panel(
                "Log lines lost",
                "short",
                (("{{instance}}", increase("ascendd_log_lines_dropped_total", "instance")),),
                "A full disk.",
            ),
        ),
    ),
}


def dashboard(name: str) -> dict[str, Any]:
    """Return the dashboard `name` as Grafana imports it."""
    title, panels = DASHBOARDS[name]
    told_by = CHOSEN_BY.get(name, "ascendd_build_info")
    return {
        "uid": f"ascendd-{name}",
        "title": title,
        "tags": ["ascendd"],
        "timezone": "browser",
        "schemaVersion": 39,
        "refresh": "15s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [
                {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source"},
                _choice("job", f"label_values({told_by}, job)"),
                _choice("instance", f'label_values({told_by}{{job=~"$job"}}, instance)'),
            ]
        },
        "panels": [_panel(number, panel) for number, panel in enumerate(panels)],
    }


def _choice(name: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "type": "query",
        "query": query,
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".+",
        "current": {"text": "All", "value": "$__all"},
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
    }


def _panel(number: int, panel: Panel) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
    if panel.threshold is not None:
        steps.append({"color": "red", "value": panel.threshold})
    source = {"type": "prometheus", "uid": "${datasource}"}
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.note,
        "datasource": source,
        "gridPos": {"x": WIDTH * (number % 2), "y": HEIGHT * (number // 2), "w": WIDTH, "h": HEIGHT},
        "fieldConfig": {
            "defaults": {
                "unit": panel.unit,
                "min": 0,
                "custom": {"thresholdsStyle": {"mode": "off" if panel.threshold is None else "line"}},
                "thresholds": {"mode": "absolute", "steps": steps},
            },
            "overrides": [],
        },
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": source,
                "legendFormat": legend,
                "expr": expr.replace("%s", HOST),
            }
            for index, (legend, expr) in enumerate(panel.lines)
        ],
    }


def main(folder: Path) -> None:
    """Write every dashboard to `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in DASHBOARDS:
        (folder / f"{name}.json").write_text(json.dumps(dashboard(name), indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent / "grafana")
