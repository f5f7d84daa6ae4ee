"""The arrows of the child state machine."""

from __future__ import annotations

import pytest

from ascendd.ipc.messages import Fault, Role
from ascendd.supervisor.child import Child, ChildState

# Every arrow that exists: method, source, target.
ARROWS = {
    ("start", ChildState.STOPPED): ChildState.STARTING,
    ("start", ChildState.BACKOFF): ChildState.STARTING,
    ("hello", ChildState.STARTING): ChildState.LOADING,
    ("ready", ChildState.LOADING): ChildState.READY,
    ("drain", ChildState.READY): ChildState.DRAINING,
    ("exited", ChildState.STOPPING): ChildState.STOPPED,
    ("cancel", ChildState.BACKOFF): ChildState.STOPPED,
    ("give_up", ChildState.BACKOFF): ChildState.FAILED,
}
for _source in (ChildState.STARTING, ChildState.LOADING, ChildState.READY, ChildState.DRAINING):
    ARROWS["stop", _source] = ChildState.STOPPING
    ARROWS["back_off", _source] = ChildState.BACKOFF
    ARROWS["fail", _source] = ChildState.FAILED
METHODS = ("start", "hello", "ready", "drain", "stop", "exited", "back_off", "fail", "cancel", "give_up")


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("source", ChildState)
def test_only_named_arrows_exist(method, source):
    """A transition from a state without that arrow is a defect of ours and stops at once."""
    child = Child(Role.ENGINE)
    child.state = source
    target = ARROWS.get((method, source))

    if target is None:
        with pytest.raises(AssertionError, match="no arrow"):
            getattr(child, method)(1.0)
        return
    getattr(child, method)(1.0)

    assert (child.state, child.since_s) == (target, 1.0)


def test_a_start_forgets_the_last_life():
    """The fault and the heartbeat of a dead process do not speak for its successor; the load time stays known."""
    child = Child(Role.ENGINE)
    child.start(0.0)
    child.hello(1.0)
    child.ready(5.0)
    child.fault = Fault("ASD-E01", "x")
    child.back_off(6.0)

    child.start(7.0)

    assert (child.fault, child.heartbeat.step_seq, child.heard_at_s) == (None, 0, 7.0)
    assert (child.num_starts, child.load_s) == (2, 5.0)


def test_saying_the_same_again_is_no_progress():
    """Only another phase or another fraction is; a new start begins anew."""
    child = Child(Role.ENGINE)
    child.start(0.0)
    child.hello(1.0)

    told = [
        child.progressed(phase, fraction, now_s)
        for now_s, (phase, fraction) in enumerate(
            [("loading", 0.1), ("loading", 0.1), ("loading", 0.2), ("warming", 0.2)], 2
        )
    ]

    assert told == [True, False, True, True]
    assert child.progressed_at_s == 5.0
    child.back_off(6.0)
    child.start(7.0)
    assert child.progressed_at_s == 7.0
    assert child.progressed("warming", 0.2, 8.0)


@pytest.mark.parametrize("state", ChildState)
def test_configured_implies_alive(state):
    """Messages make sense only to a process that exists."""
    child = Child(Role.API)
    child.state = state

    assert child.alive or not child.configured
