"""RestartPolicy on a simulated clock."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascendd.config.schema import RecoverySection
from ascendd.supervisor.restart import JITTER, GiveUp, RestartIn, RestartPolicy


def policy(**changes):
    """Return a policy of 1 to 60 s, 5 restarts in 600 s."""
    return RestartPolicy(
        **{"backoff_min_s": 1.0, "backoff_max_s": 60.0, "window_s": 600.0, "max_restarts": 5} | changes
    )


def no_jitter():
    """Return the low end of the dice."""
    return 0.0


def test_delays_double_up_to_the_bound():
    """Each failure within the window doubles the delay until backoff_max_s."""
    subject = policy(max_restarts=None)

    delays = [subject.on_failure(float(n), no_jitter).delay_s for n in range(8)]

    assert delays == [1, 2, 4, 8, 16, 32, 60, 60]


def test_jitter_only_lengthens():
    """The dice add at most a tenth to a delay and never shorten it."""
    assert policy().on_failure(0.0, lambda: 1.0) == RestartIn(1.0 * (1 + JITTER), 1)
    assert policy().on_failure(0.0, lambda: 0.0) == RestartIn(1.0, 1)


def test_one_failure_too_many_gives_up():
    """The failure after max_restarts within the window is the last, and the reason has both numbers."""
    subject = policy(max_restarts=2)

    first, second, third = (subject.on_failure(float(n), no_jitter) for n in range(3))

    assert isinstance(first, RestartIn)
    assert isinstance(second, RestartIn)
    assert third == GiveUp("3 failures within 600 s, 2 restarts are allowed")


def test_old_failures_are_forgotten():
    """A failure after a quiet window counts as the first again."""
    subject = policy(max_restarts=1)
    subject.on_failure(0.0, no_jitter)

    assert subject.on_failure(601.0, no_jitter) == RestartIn(1.0, 1)


def test_a_child_that_is_not_essential_is_tried_for_ever():
    """Without max_restarts a thousand failures do not give up."""
    subject = policy(max_restarts=None, first_delay_s=0.0)

    decisions = [subject.on_failure(float(n) / 10, no_jitter) for n in range(1000)]

    assert all(isinstance(decision, RestartIn) for decision in decisions)
    assert [decision.delay_s for decision in decisions[:3]] == [0.0, 1.0, 2.0]


@pytest.mark.parametrize(
    ("kind", "loads_device", "section", "expected"),
    [
        ("cpu", True, RecoverySection(), [1.0, 2.0]),
        ("npu", True, RecoverySection(), [10.0, 20.0]),
        ("cuda", True, RecoverySection(), [10.0, 20.0]),
        ("npu", True, RecoverySection(backoff_min_s=3.0, backoff_max_s=4.0), [3.0, 4.0]),
        ("npu", False, RecoverySection(backoff_min_s=3.0), [0.0, 1.0]),
    ],
)
def test_delays_fit_what_is_restarted(kind, loads_device, section, expected):
    """An engine waits as long as its device needs or the file says; the API is back at once the first time."""
    subject = RestartPolicy.from_config(section, device_kind=kind, loads_device=loads_device, essential=True)

    assert [subject.on_failure(float(n), no_jitter).delay_s for n in range(2)] == expected


@given(st.lists(st.floats(0, 100), max_size=50), st.floats(0, 1))
def test_no_delay_exceeds_the_bound(gaps, dice):
    """Whenever failures come, the delay stays between the first one and the bound plus jitter."""
    subject, now_s = policy(max_restarts=None), 0.0

    for gap in gaps:
        now_s += gap
        delay_s = subject.on_failure(now_s, lambda: dice).delay_s
        assert 1.0 <= delay_s <= 60.0 * (1 + JITTER)
