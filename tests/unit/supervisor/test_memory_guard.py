"""When new work is refused for want of host memory, on a simulated clock."""

from __future__ import annotations

import pytest

from ascendd.host.memory_pressure import MemoryPressure
from ascendd.supervisor.memory_guard import CLEAR_S, MemoryGuard

GB = 10**9


def reading(stalled=0.0, num_oom=0, left=8 * GB, total=16 * GB):
    """Return a reading of a host on which all is well but for what is given."""
    return MemoryPressure(stalled, num_oom, left, total)


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (reading(stalled=20.0), "all tasks stood still for memory for 20 % of the last 10 s"),
        (reading(num_oom=1), "the control group is at its memory limit"),
        (reading(left=159_000_000), "159 MB of 16000 MB host memory are left"),
        (reading(left=511_000_000, total=1000 * GB), "511 MB of 1000000 MB host memory are left"),
        (reading(left=513_000_000, total=1000 * GB), None),
        (reading(stalled=19.9), None),
        (reading(left=161_000_000), None),
        (MemoryPressure(None, None, None, None), None),
    ],
)
def test_each_sign_of_pressure_is_named(bad, words):
    """A stall, a group at its limit and a host that is full refuse new work; what is not told refuses nothing."""
    guard = MemoryGuard()
    guard.judge(reading(), 0.0)

    reason = guard.judge(bad, 2.0)

    assert (reason is None) if words is None else reason.startswith(words)


def test_work_is_taken_again_once_all_was_well_for_a_while():
    """A wave in between begins the wait anew; half well is not well."""
    guard = MemoryGuard()
    guard.judge(reading(stalled=50.0), 0.0)

    course = [
        guard.judge(reading(stalled=6.0), 5.0),
        guard.judge(reading(), 6.0),
        guard.judge(reading(), 6.0 + CLEAR_S - 1),
        guard.judge(reading(stalled=30.0), 6.0 + CLEAR_S - 0.5),
        guard.judge(reading(), 20.0),
        guard.judge(reading(), 20.0 + CLEAR_S - 0.1),
    ]

    assert all(course)
    assert guard.judge(reading(), 20.0 + CLEAR_S) is None
    assert guard.judge(reading(), 21.0 + CLEAR_S) is None


def test_an_out_of_memory_event_of_before_the_start_is_none():
    """Only what is counted from now on says something of now."""
    assert MemoryGuard().judge(reading(num_oom=7), 0.0) is None
