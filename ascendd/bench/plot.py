"""The report for people: a table, the spread of first-token times and tokens over time as bars of characters. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ascendd.bench.outcome import Outcome
from ascendd.bench.report import PERCENTILES

_WIDTH = 48
_NUM_BARS = 12
_ROWS = (
    ("time to first token", "time_to_first_token"),
    ("between pieces (ITL)", "inter_token"),
    ("per output token", "time_per_output_token"),
    ("whole request", "whole_request"),
)


def table(report: dict[str, Any]) -> list[str]:
    """Return the figures as lines of text with units."""
    requests, tokens, rates = report["requests"], report["tokens"], report["throughput"]
    lines = [
        f"requests   {requests['succeeded']} of {requests['sent']} succeeded in {report['span_s']:.2f} s, "
        f"{rates['requests_per_s']:.2f} a second",
        f"tokens     {tokens['prompt']} prompt, {tokens['output']} output (counted by {tokens['counted_by']}); "
        f"{rates['output_tokens_per_s']:.1f} output a second, {rates['total_tokens_per_s']:.1f} in all",
    ]
    lines += [f"failed     {count} x {error}" for error, count in requests["errors"].items()]
    if "goodput" in report:
        good = report["goodput"]
        limits = ", ".join(
            f"{name.removesuffix('_s')} <= {seconds(value)}" for name, value in good["objective"].items()
        )
        lines.append(
            f"goodput    {good['requests_per_s']:.2f} requests a second; {good['share']:.1%} of all kept {limits}"
        )
    heads = ["mean", *(f"p{percent}" for percent in PERCENTILES), "max"]
    lines += ["", f"{'':22}" + "".join(f"{head:>10}" for head in heads)]
    for title, key in _ROWS:
        row = report[key]
        cells = [row["mean_s"], *(row[f"p{percent}_s"] for percent in PERCENTILES), row["max_s"]]
        lines.append(f"{title:22}" + "".join(f"{'-' if cell is None else seconds(cell):>10}" for cell in cells))
    lag = report["sender_lag"]["p99_s"]
    if lag is not None and lag > 0.1:
        lines.append(
            f"note: the sender itself was late by up to {seconds(lag)} (p99); use a faster machine to send from"
        )
    return lines


def charts(outcomes: Sequence[Outcome], block: str = "█") -> list[str]:
    """Return two bar charts; `block` is the character that bars are made of. Nothing for no answers."""
    good = [outcome for outcome in outcomes if outcome.error is None]
    firsts = [outcome.first_token_s for outcome in good if outcome.first_token_s is not None]
    lines: list[str] = []
    if firsts:
        lines += ["", "time to first token, requests", *histogram(firsts, block)]
    texts = [at_s for outcome in good for at_s in outcome.text_at_s]
    if texts:
        lines += ["", "pieces of text per second, over the run", *timeline(texts, block)]
    return lines


def histogram(values: Sequence[float], block: str) -> list[str]:
    """Return one bar for each of twelve equal ranges of `values`."""
    low, high = min(values), max(values)
    step = (high - low) / _NUM_BARS or 1.0
    counts = [0] * _NUM_BARS
    for value in values:
        counts[min(_NUM_BARS - 1, int((value - low) / step))] += 1
    if high == low:
        counts = counts[:1]
    most = max(counts)
    return [f"  <= {seconds(low + (n + 1) * step if high > low else high):>8} {_bar(count, most, block)} {count}"
            for n, count in enumerate(counts)]  # fmt: skip


def timeline(times_s: Sequence[float], block: str) -> list[str]:
    """Return one bar for each of twelve equal parts of the run."""
    step = max(times_s) / _NUM_BARS or 1.0
    counts = [0] * _NUM_BARS
    for at_s in times_s:
        counts[max(0, min(_NUM_BARS - 1, int(at_s / step)))] += 1
    most = max(counts)
    return [f"  to {seconds((n + 1) * step):>9} {_bar(count, most, block)} {count / step:.1f}"
            for n, count in enumerate(counts)]  # fmt: skip


def seconds(value: float) -> str:
    """Return a time with the unit that reads best."""
    if value < 0.0995:
        return f"{value * 1000:.2f} ms" if value < 0.00995 else f"{value * 1000:.1f} ms"
    return f"{value:.3f} s" if value < 9.995 else f"{value:.1f} s"


def _bar(count: int, most: int, block: str) -> str:
    length = -(-count * _WIDTH // most) if most else 0
    return (block * length).ljust(_WIDTH)
