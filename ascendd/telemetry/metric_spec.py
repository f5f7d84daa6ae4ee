"""MetricSpec: what one metric is. Declarations are in telemetry.metrics and telemetry.chip_metrics."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class MetricKind(enum.Enum):
    """How a metric behaves over time and over restarts."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True)
class MetricSpec:
    """One metric: its full name with the unit in it, what it tells, its label names, and bounds for a histogram."""

    name: str
    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


def counter(name: str, help_text: str, *labels: str) -> MetricSpec:
    """Declare what only grows."""
    return MetricSpec(name, MetricKind.COUNTER, help_text, labels)


def gauge(name: str, help_text: str, *labels: str) -> MetricSpec:
    """Declare what goes up and down."""
    return MetricSpec(name, MetricKind.GAUGE, help_text, labels)
