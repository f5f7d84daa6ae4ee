"""The curves of the status page: one point each five seconds, of the interval before it."""

from __future__ import annotations

from ascendd.ipc.messages import Sample
from ascendd.supervisor.load_history import COLUMNS, INTERVAL_S, LoadHistory
from ascendd.telemetry.metrics import SPECS

FIRST = "ascendd_request_time_to_first_token_seconds"


def totals(tokens: float, waiting: float, first: dict[float, int]) -> list[Sample]:
    """Return running totals with `first` requests by the bound below which their first token came."""
    bounds = SPECS[FIRST].buckets
    counts = tuple(first.get(bound, 0) for bound in (*bounds, float("inf")))
    return [
        Sample("ascendd_engine_generation_tokens_total", tokens),
        Sample("ascendd_engine_sequences_waiting", waiting),
        Sample(FIRST, 1.0, (), counts),
    ]


def test_a_point_is_of_the_interval_before_it() -> None:
    """Rates and percentiles count what came since the last point; the first point has none."""
    history = LoadHistory()

    assert history.on_tick(totals(100, 3, {0.1: 4}), 10.0, 1000.0)
    assert not history.on_tick(totals(200, 9, {0.1: 5}), 10.0 + INTERVAL_S / 2, 1002.5)
    assert history.on_tick(totals(600, 0, {0.1: 4, 1.0: 8}), 10.0 + INTERVAL_S, 1005.0)

    columns = history.columns()
    assert columns["unix_s"] == [1000.0, 1005.0]
    assert columns["generation_tokens_per_s"] == [None, 100.0]
    assert columns["waiting"] == [3, 0]
    assert columns["running"] == [None, None]
    assert columns["first_token_p50_s"] == [None, 0.875]
    assert columns["inter_token_p95_s"] == [None, None]


def test_the_history_is_bounded() -> None:
    """A quarter of an hour is kept, in every column."""
    history = LoadHistory()

    for number in range(400):
        history.on_tick(totals(number, 0, {}), number * INTERVAL_S, number * INTERVAL_S)

    assert {len(history.columns()[name]) for name in COLUMNS} == {180}
    assert history.columns()["unix_s"][0] == 220 * INTERVAL_S
