"""Lines for people, seconds for clients."""

from __future__ import annotations

import pytest

from ascendd.supervisor import status


@pytest.mark.parametrize(
    ("phase", "fraction", "text"),
    [("loading", 0.42, "loading 42 %"), ("warming up", -1.0, "warming up"), ("loading", 1.2, "loading 100 %")],
)
def test_progress_is_a_share_where_it_is_known(phase, fraction, text):
    """An unknown share leaves the phase alone; no share exceeds 100 %."""
    assert status.progress_text(phase, fraction) == text


def test_a_restart_names_reason_and_time():
    """A delay below a second is `now`; others are rounded up, never down."""
    assert status.restart_text("engine died", 0.2) == "engine died; restarting now"
    assert status.restart_text("engine died", 7.1) == "engine died; restarting in 8 s"


@pytest.mark.parametrize(
    ("delay_s", "load_s", "expected"), [(0.0, 0.0, 1), (2.0, None, 7), (2.2, 10.0, 13), (300.0, 900.0, 300)]
)
def test_retry_after_covers_backoff_and_load(delay_s, load_s, expected):
    """A client comes back when the engine should be up: 1 s at least, 5 minutes at most."""
    assert status.retry_after_s(delay_s, load_s) == expected


@pytest.mark.parametrize(
    ("elapsed_s", "fraction", "load_s", "expected"),
    [(10.0, 0.5, None, 10), (10.0, 0.0, None, 5), (10.0, 0.0, 60.0, 50), (70.0, 0.0, 60.0, 1), (1.0, 1.0, None, 1)],
)
def test_remaining_time_follows_the_pace(elapsed_s, fraction, load_s, expected):
    """The share loaded so far tells how long the rest takes; without one the last load does."""
    assert status.remaining_s(elapsed_s, fraction, load_s) == expected
