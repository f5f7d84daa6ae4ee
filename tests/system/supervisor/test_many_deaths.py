"""A hundred deaths of one process: what a scrape costs and says, and what is left on the disk."""

from __future__ import annotations

import time
import urllib.error
from http import HTTPStatus
from typing import Any

import pytest

pytestmark = [pytest.mark.system, pytest.mark.slow]
NUM_KILLS = 100
STEPS = "ascendd_engine_steps_total"
RESTARTS = 'ascendd_child_restarts_total{role="engine"}'
OFTEN = "recovery: {backoff_min_s: 0.05, backoff_max_s: 0.05, max_restarts: 1000, window_s: 10}"


def scrape(daemon: Any) -> tuple[dict[str, float], float]:
    """Return the page and how long it took, in seconds; wait where it was asked too often."""
    while True:
        started = time.monotonic()
        try:
            return daemon.metrics(), time.monotonic() - started
        except urllib.error.HTTPError as refusal:
            with refusal:
                if refusal.code != HTTPStatus.TOO_MANY_REQUESTS:
                    raise
            time.sleep(0.2)


@pytest.mark.timeout(1200)
def test_b61_a_hundred_kills_leave_nothing_behind(start: Any, eventually: Any) -> None:
    """
    B61: after each kill -9 of the engine counters go on where they were and no gauge of it stays.

    The page does not grow and takes no longer, and no file is left for a dead
    process: figures are in the supervisor, by role, and not in files by pid.
    """
    daemon = start(extra=OFTEN).wait_ready()
    files, sizes, took_s, values = [], [], [], [0.0]
    for number in range(1, NUM_KILLS + 1):
        before = values[-1]
        daemon.wait_restarted("engine", daemon.kill("engine"))
        # The supervisor's figures come once a second.
        eventually(lambda: scrape(daemon)[0].get(STEPS, 0.0) > before)  # noqa: B023
        page, seconds = scrape(daemon)
        took_s.append(seconds)
        values.append(page[STEPS])
        sizes.append(len(page))
        files.append(sum(1 for path in daemon.folder.rglob("*") if path.is_file() and "incidents" not in path.parts))
        assert page[RESTARTS] == number

    assert values == sorted(values)
    # Gauges of a process that was not measured yet are absent, so pages differ by a few lines; leftovers would add up.
    assert max(sizes) - min(sizes) < 10 < NUM_KILLS, sizes
    assert len(set(files)) == 1, files
    assert sorted(took_s[-20:])[10] < 3 * sorted(took_s[:20])[10] + 0.05
    assert daemon.process.poll() is None
