"""What the end of a child means."""

from __future__ import annotations

import pytest

from ascendd.errors import DeviceLost, ExitCode, ModelNotFound, RestartsExhausted
from ascendd.ipc.messages import Fault, Role
from ascendd.supervisor.recovery import Action, Cause, ChildExit, exit_code_of, react
from ascendd.supervisor.restart import RestartPolicy

LOST = Fault.from_error(DeviceLost("device 0 stopped answering", remedy="Reset the chip."))
MISSING = Fault.from_error(ModelNotFound("/m does not exist"))


def policy(max_restarts=5):
    """Return a policy that waits 1 s first."""
    return RestartPolicy(backoff_min_s=1.0, backoff_max_s=60.0, window_s=600.0, max_restarts=max_restarts)


@pytest.mark.parametrize(
    ("end", "cause", "text"),
    [
        (ChildExit(Role.ENGINE, 0, asked=True), Cause.ASKED, "engine exited with status 0"),
        (ChildExit(Role.ENGINE, 0), Cause.LEFT, "engine exited with status 0"),
        (ChildExit(Role.ENGINE, -9, hung=True), Cause.HUNG, "engine made no progress and was killed"),
        (ChildExit(Role.ENGINE, 70, LOST), Cause.FAULT, "engine failed with ASD-D04: device 0 stopped answering"),
        (ChildExit(Role.API, -9), Cause.KILLED, "api was killed by SIGKILL; perhaps the host ran out of memory"),
        (
            ChildExit(Role.ENGINE, -9, out_of_memory=False),
            Cause.KILLED,
            "engine was killed by SIGKILL, not by the kernel for want of memory",
        ),
        (
            ChildExit(Role.ENGINE, -9, out_of_memory=True),
            Cause.HOST_MEMORY,
            "engine was killed by SIGKILL of the kernel: its control group or the host ran out of memory",
        ),
        (ChildExit(Role.API, -15), Cause.KILLED, "api was killed by SIGTERM"),
        (ChildExit(Role.ENGINE, -11), Cause.CRASHED, "engine was killed by SIGSEGV"),
        (ChildExit(Role.ENGINE, -99), Cause.CRASHED, "engine was killed by signal 99"),
        (ChildExit(Role.METRICS, 1), Cause.STATUS, "metrics exited with status 1"),
    ],
)
def test_each_end_has_a_cause_and_a_sentence(end, cause, text):
    """A table of ends: why, and how a person reads it."""
    assert (end.cause, end.describe()) == (cause, text)


def test_an_asked_end_leads_to_nothing():
    """A child that left because it was told to is not restarted and not counted."""
    subject = policy(max_restarts=0)

    assert react(ChildExit(Role.ENGINE, 0, asked=True), subject, 0.0, lambda: 0.0).action is Action.NOTHING


def test_an_unasked_end_leads_to_a_restart():
    """The reaction carries the policy's delay and count."""
    reaction = react(ChildExit(Role.ENGINE, -9), policy(), 0.0, lambda: 0.0)

    assert (reaction.action, reaction.delay_s, reaction.num_failures) == (Action.RESTART, 1.0, 1)


def test_a_permanent_fault_ends_the_instance_with_its_own_error():
    """The daemon ends with the code and the words of the child that could not start."""
    reaction = react(ChildExit(Role.ENGINE, 66, MISSING), policy(), 0.0, lambda: 0.0)

    assert reaction.action is Action.FAIL_INSTANCE
    assert isinstance(reaction.error, ModelNotFound)
    assert exit_code_of(reaction.error) == ExitCode.MODEL


def test_a_permanent_status_without_words_keeps_its_code():
    """Exit status 78 of a child that said nothing is the daemon's exit status."""
    reaction = react(ChildExit(Role.ENGINE, 78), policy(), 0.0, lambda: 0.0)

    assert reaction.error is not None
    assert exit_code_of(reaction.error) == ExitCode.CONFIG


def test_exhausted_restarts_end_the_instance_with_70():
    """Giving up names the last failure, the count and the remedy of the fault."""
    reaction = react(ChildExit(Role.ENGINE, 70, LOST), policy(max_restarts=0), 0.0, lambda: 0.0)

    assert isinstance(reaction.error, RestartsExhausted)
    assert exit_code_of(reaction.error) == ExitCode.ENGINE
    assert "device 0 stopped answering; 1 failures within 600 s, 0 restarts are allowed" in reaction.error.message
    assert reaction.error.remedy == "Reset the chip."


def test_an_instance_that_the_kernel_keeps_killing_says_what_to_raise():
    """The remedy of the last failure is about memory, not about the process."""
    reaction = react(ChildExit(Role.ENGINE, -9, out_of_memory=True), policy(max_restarts=0), 0.0, lambda: 0.0)

    assert reaction.error is not None
    assert "ran out of memory" in reaction.error.message
    assert "MemoryMax=" in (reaction.error.remedy or "")
