"""When a child counts as hung, on a simulated clock."""

from __future__ import annotations

import pytest

from ascendd.ipc.messages import Heartbeat, Role
from ascendd.supervisor.child import Child, ChildState
from ascendd.supervisor.health import Deadlines, HealthMonitor, hang_reason

LIMITS = Deadlines(hello_s=10.0, loading_s=100.0, heartbeat_s=30.0, step_s=120.0)


def child(state, heard_at_s=0.0, role=Role.ENGINE, progressed_at_s=0.0, **heartbeat):
    """Return a child in `state` that spoke last at `heard_at_s`."""
    subject = Child(role)
    subject.state = state
    subject.heard_at_s = heard_at_s
    subject.progressed_at_s = progressed_at_s
    subject.heartbeat = Heartbeat(**heartbeat)
    return subject


@pytest.mark.parametrize(
    ("subject", "now_s", "reason"),
    [
        (child(ChildState.STARTING), 10.0, None),
        (child(ChildState.STARTING), 11.0, "no Hello for 11 s"),
        (child(ChildState.LOADING), 100.0, None),
        (child(ChildState.LOADING), 101.0, "no sign of progress for 101 s while loading"),
        (child(ChildState.LOADING, 100.9), 101.0, "no sign of progress for 101 s while loading"),
        (child(ChildState.LOADING, 60.0, progressed_at_s=60.0), 101.0, None),
        (child(ChildState.READY), 30.0, None),
        (child(ChildState.READY), 31.0, "no heartbeat for 31 s"),
        (child(ChildState.DRAINING, role=Role.API), 31.0, "no heartbeat for 31 s"),
        (child(ChildState.READY, step_seq=7, inflight_s=119.0), 1.0, None),
        (
            child(ChildState.READY, step_seq=7, inflight_s=119.5),
            1.0,
            "step 7 of 0 tokens has run for 120 s, its deadline is 120 s",
        ),
        (child(ChildState.READY, inflight_s=390.0, step_tokens=512, token_s=0.1), 1.0, None),
        (
            child(ChildState.READY, step_seq=8, inflight_s=512.0, step_tokens=512, token_s=0.1),
            1.0,
            "step 8 of 512 tokens has run for 513 s, its deadline is 512 s",
        ),
        (
            child(ChildState.READY, inflight_s=130.0, step_tokens=1, token_s=0.1),
            0.0,
            "step 0 of 1 tokens has run for 130 s, its deadline is 120 s",
        ),
        (
            child(ChildState.READY, inflight_s=1201.0, step_tokens=512, token_s=9.0),
            0.0,
            "step 0 of 512 tokens has run for 1201 s, its deadline is 1200 s",
        ),
        (child(ChildState.READY, inflight_s=500.0, role=Role.API), 1.0, None),
        (child(ChildState.STOPPING), 1000.0, None),
        (child(ChildState.BACKOFF), 1000.0, None),
        (child(ChildState.FAILED), 1000.0, None),
    ],
)
def test_a_hang_is_a_deadline_that_passed(subject, now_s, reason):
    """Each state has its own deadline; states without a working process have none."""
    assert hang_reason(subject, LIMITS, now_s) == reason


def test_the_monitor_names_the_hung_children():
    """Only those that hang are returned, each with its reason."""
    fine, hung = child(ChildState.READY, 50.0), child(ChildState.READY, 0.0, role=Role.API)

    assert HealthMonitor(LIMITS).judge([fine, hung], 60.0) == [(hung, "no heartbeat for 60 s")]


def test_a_verdict_grows_stale():
    """A monitor that has never judged, or not lately, gives the watchdog no reason to be fed."""
    monitor = HealthMonitor(LIMITS)

    before = monitor.is_fresh(0.0, 5.0)
    monitor.judge([], 10.0)

    assert (before, monitor.is_fresh(15.0, 5.0), monitor.is_fresh(15.1, 5.0)) == (False, True, False)
