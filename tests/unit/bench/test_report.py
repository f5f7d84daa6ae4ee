"""Figures of known outcomes are what a person would compute by hand."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascendd.bench.outcome import Outcome
from ascendd.bench.plot import charts, histogram, seconds, table
from ascendd.bench.report import Objective, percentile, summarize
from ascendd.errors import UsageError


def outcome(
    index: int, *, due: float, sent: float, texts: list[float], end: float, error: str | None = None
) -> Outcome:
    """An outcome with as many tokens as pieces, and ten tokens of prompt."""
    return Outcome(index, due, sent, end, texts, 10, len(texts), error)


OUTCOMES = [
    outcome(0, due=0.0, sent=0.0, texts=[0.5, 0.6, 0.7], end=0.7),
    outcome(1, due=1.0, sent=1.5, texts=[2.0, 2.4, 2.8], end=3.0),
    outcome(2, due=2.0, sent=2.0, texts=[], end=4.0, error="HTTP 500: no"),
]


def test_times_count_from_when_a_request_was_due() -> None:
    """A request that went out half a second late waited that half second."""
    assert OUTCOMES[1].first_token_s == pytest.approx(1.0)
    assert OUTCOMES[1].whole_s == pytest.approx(2.0)
    assert OUTCOMES[1].per_token_s == pytest.approx(0.4)


def test_summary_of_three_requests() -> None:
    """Rates are over the whole span; failed requests have no times and are counted by their error."""
    report = summarize(OUTCOMES, Objective(ttft_s=0.6))

    assert report["requests"] == {"sent": 3, "succeeded": 2, "failed": 1, "errors": {"HTTP 500: no": 1}}
    assert report["span_s"] == 4.0
    assert report["tokens"] == {"prompt": 20, "output": 6, "counted_by": "server"}
    assert report["throughput"] == {"requests_per_s": 0.5, "output_tokens_per_s": 1.5, "total_tokens_per_s": 6.5}
    assert report["time_to_first_token"]["p50_s"] == 0.5
    assert report["time_to_first_token"]["max_s"] == 1.0
    assert report["inter_token"]["count"] == 4
    assert report["sender_lag"]["p99_s"] == 0.5
    assert report["goodput"] == {
        "objective": {"ttft_s": 0.6}, "met": 1, "share": pytest.approx(1 / 3, rel=1e-4), "requests_per_s": 0.25,
    }  # fmt: skip


def test_nothing_sent_is_a_report_too() -> None:
    """Without requests there are no times and nothing divides by zero."""
    report = summarize([], Objective(e2e_s=1.0))

    assert report["requests"]["sent"] == 0
    assert report["whole_request"]["p99_s"] is None
    assert report["goodput"]["share"] == 0.0
    assert charts([]) == []
    assert "0 of 0 succeeded" in table(report)[0]


@given(st.lists(st.floats(0, 1e6), min_size=1), st.sampled_from([1, 50, 90, 95, 99, 100]))
def test_percentile_is_a_value_that_enough_do_not_exceed(values: list[float], percent: int) -> None:
    """It is one of the values, at least `percent` per cent are not above it, and no smaller value has that."""
    found = percentile(values, percent)

    assert found in values
    need = len(values) * percent / 100
    assert sum(value <= found for value in values) >= need - 1e-9
    smaller = [value for value in values if value < found]
    assert not smaller or sum(value <= max(smaller) for value in values) < need


def test_percentile_of_nothing_is_no_number() -> None:
    """There is no percentile without values."""
    assert math.isnan(percentile([], 50))


def test_objective_reads_units() -> None:
    """Milliseconds and seconds are both taken."""
    assert Objective.parse("ttft=2s, tpot=50ms,e2e=1.5s") == Objective(2.0, 0.05, 1.5)


@pytest.mark.parametrize("text", ["", "ttft", "ttft=2", "ttft=-1s", "p99=1s", "ttft=1s;tpot=1s"])
def test_an_objective_that_is_none_is_refused_with_the_rule(text: str) -> None:
    """The message says how limits are written."""
    with pytest.raises(UsageError, match="ttft=2s,tpot=50ms"):
        Objective.parse(text)


def test_objective_holds_every_limit() -> None:
    """One limit that is broken is enough; an answer that failed is never good."""
    assert Objective(ttft_s=0.5, tpot_s=0.1, e2e_s=0.7).is_met(OUTCOMES[0])
    assert not Objective(ttft_s=0.5, tpot_s=0.05).is_met(OUTCOMES[0])
    assert not Objective(e2e_s=0.6).is_met(OUTCOMES[0])
    assert not Objective(ttft_s=9.0).is_met(OUTCOMES[2])


def test_charts_have_a_bar_for_every_range() -> None:
    """The longest bar has the full width, and counts add up."""
    lines = histogram([0.1, 0.1, 0.1, 0.9], "#")

    assert len(lines) == 12
    assert lines[0].endswith("#" * 48 + " 3")
    assert lines[-1].endswith(" 1")
    assert histogram([2.0, 2.0], "#") == [f"  <= {'2.000 s':>8} {'#' * 48} 2"]


@pytest.mark.parametrize(
    ("value", "text"), [(0.001234, "1.23 ms"), (0.0456, "45.6 ms"), (0.5, "0.500 s"), (75.0, "75.0 s")]
)
def test_seconds_have_the_unit_that_reads_best(value: float, text: str) -> None:
    """Three figures, in milliseconds below a tenth of a second."""
    assert seconds(value) == text
