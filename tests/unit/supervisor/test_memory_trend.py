"""The growth of a process over hours, on a simulated clock."""

from __future__ import annotations

import random

import pytest

from ascendd.supervisor.memory_trend import EVERY_S, MIN_SPAN_S, WARM_UP_S, MemoryTrend, fit

MB = 1_000_000.0


def trend(growth_mb_per_hour, hours, noise_mb=0.0, step_s=5.0):
    """Return the trend of a process that grew so for so long, read every `step_s` seconds."""
    dice, subject, now_s = random.Random(1), MemoryTrend(), 0.0
    while now_s <= hours * 3600:
        subject.add(now_s, 500 * MB + growth_mb_per_hour * MB * now_s / 3600 + dice.gauss(0, noise_mb * MB))
        now_s += step_s
    return subject


def test_a_line_is_found_exactly():
    """The slope of points on a line is the line's, its error 0; scattered points have one."""
    exact = fit([0.0, 1.0, 2.0, 4.0], [3.0, 5.0, 7.0, 11.0])
    rough = fit([0.0, 1.0, 2.0, 3.0], [0.0, 2.0, 0.0, 2.0])

    assert (exact.bytes_per_hour, exact.error) == (2.0, 0.0)
    assert rough.bytes_per_hour == pytest.approx(0.4)
    assert rough.error == pytest.approx((3.2 / 2 / 5) ** 0.5)


@pytest.mark.parametrize(("growth", "noise", "leaks"), [(40.0, 5.0, True), (15.0, 0.0, False), (0.0, 50.0, False)])
def test_a_slow_leak_is_told_from_noise(growth, noise, leaks):
    """Three hours of 40 MB an hour are a leak; little growth, and much noise without any, are none."""
    found = trend(growth, 3.0, noise).growth()

    assert found.is_leak is leaks
    assert abs(found.bytes_per_hour / MB - growth) < 5 * found.error / MB + 0.1


def test_a_large_growth_that_is_not_certain_is_not_told():
    """Within one hour a jump between noisy readings is no line."""
    found = trend(20.0, (WARM_UP_S + MIN_SPAN_S + EVERY_S) / 3600, noise_mb=200.0).growth()

    assert found.is_leak is False


def test_too_little_tells_nothing():
    """The first minutes fill caches, and less than an hour behind them is no trend."""
    assert trend(1000.0, (WARM_UP_S + MIN_SPAN_S - EVERY_S) / 3600).growth() is None
    assert MemoryTrend().growth() is None
    subject = MemoryTrend()
    for minute in range(200):
        # It grows for ten minutes only.
        subject.add(minute * 60.0, min(minute, 10) * 100 * MB)
    assert subject.growth().bytes_per_hour == 0.0


def test_a_drill_is_judged_by_seconds():
    """With a short span the same line tells within seconds, and still needs three readings of it."""
    subject = MemoryTrend(warm_up_s=0.0, every_s=0.0, min_span_s=10.0)
    subject.add(0.0, 0.0)
    subject.add(11.0, 80 * MB)

    assert subject.growth() is None
    subject.add(15.0, 120 * MB)
    assert subject.growth().is_leak
