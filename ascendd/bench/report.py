"""Figures of a measurement: percentiles, throughput, goodput under a service level objective. Pure."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ascendd.bench.outcome import Outcome
from ascendd.errors import UsageError

PERCENTILES = (50, 90, 95, 99)
_LIMIT = re.compile(r"(?P<name>ttft|tpot|e2e)=(?P<value>[0-9]{1,9}(?:\.[0-9]{1,6})?)(?P<unit>ms|s)")
_RULE = "ttft, tpot or e2e with a time in ms or s, such as ttft=2s,tpot=50ms"


@dataclass(frozen=True)
class Objective:
    """What a good answer keeps, in seconds: time to the first token, time per output token, time of the whole."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None

    @classmethod
    def parse(cls, text: str) -> Objective:
        """Return the objective in `text`. Raises UsageError with the rule."""
        limits: dict[str, float] = {}
        for item in text.split(","):
            match = _LIMIT.fullmatch(item.strip())
            if match is None:
                raise UsageError(f"--slo {text!r}: {item.strip()!r} is not {_RULE}")
            limits[f"{match['name']}_s"] = float(match["value"]) * (0.001 if match["unit"] == "ms" else 1.0)
        return cls(**limits)

    def is_met(self, outcome: Outcome) -> bool:
        """Whether `outcome` is a whole answer within every limit; one token has no time per output token."""
        if outcome.error is not None:
            return False
        measured = (
            (self.ttft_s, outcome.first_token_s),
            (self.tpot_s, outcome.per_token_s),
            (self.e2e_s, outcome.whole_s),
        )
        return all(limit is None or value is None or value <= limit for limit, value in measured)


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the least of `values` that `percent` per cent of them do not exceed (nearest rank); nan for none."""
    if not values:
        return math.nan
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def distribution(values: Sequence[float]) -> dict[str, float | int | None]:
    """Return count, mean, percentiles and extremes of `values` in seconds; None where there are none."""
    row: dict[str, float | int | None] = {"count": len(values)}
    row["mean_s"] = _rounded(sum(values) / len(values)) if values else None
    for percent in PERCENTILES:
        row[f"p{percent}_s"] = _rounded(percentile(values, percent)) if values else None
    row["min_s"] = _rounded(min(values)) if values else None
    row["max_s"] = _rounded(max(values)) if values else None
    return row


def summarize(outcomes: Sequence[Outcome], objective: Objective | None) -> dict[str, Any]:
    """Return every figure as plain data; times are in seconds, rates per second of the whole measured span."""
    good = [outcome for outcome in outcomes if outcome.error is None]
    span_s = max((outcome.end_s for outcome in outcomes), default=0.0) - min(
        (outcome.sent_s for outcome in outcomes), default=0.0
    )
    rate = 1 / span_s if span_s > 0 else 0.0
    num_output = sum(outcome.num_tokens for outcome in good)
    num_prompt = sum(outcome.num_prompt_tokens or 0 for outcome in good)
    lag = [outcome.sent_s - outcome.due_s for outcome in outcomes]
    report: dict[str, Any] = {
        "requests": {
            "sent": len(outcomes),
            "succeeded": len(good),
            "failed": len(outcomes) - len(good),
            "errors": dict(Counter(outcome.error for outcome in outcomes if outcome.error).most_common(10)),
        },
        "span_s": _rounded(span_s),
        "tokens": {
            "prompt": num_prompt,
            "output": num_output,
            "counted_by": "server" if good and all(o.num_output_tokens is not None for o in good) else "pieces of text",
        },
        "throughput": {
            "requests_per_s": _rounded(len(good) * rate),
            "output_tokens_per_s": _rounded(num_output * rate),
            "total_tokens_per_s": _rounded((num_prompt + num_output) * rate),
        },
        "time_to_first_token": distribution([o.first_token_s for o in good if o.first_token_s is not None]),
        "inter_token": distribution([gap for outcome in good for gap in outcome.gaps_s]),
        "time_per_output_token": distribution([o.per_token_s for o in good if o.per_token_s is not None]),
        "whole_request": distribution([outcome.whole_s for outcome in good]),
        "sender_lag": {"p99_s": _rounded(percentile(lag, 99)) if lag else None},
    }
    if objective is not None:
        num_met = sum(map(objective.is_met, outcomes))
        report["goodput"] = {
            "objective": {
                name: value for name in ("ttft_s", "tpot_s", "e2e_s") if (value := getattr(objective, name)) is not None
            },
            "met": num_met,
            "share": _rounded(num_met / len(outcomes)) if outcomes else 0.0,
            "requests_per_s": _rounded(num_met * rate),
        }
    return report


def _rounded(value: float) -> float:
    """Return `value` with six significant figures."""
    return float(f"{value:.6g}")
