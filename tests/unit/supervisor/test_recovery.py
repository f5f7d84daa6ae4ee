"""RecoveryPolicy on a simulated clock: every class of failure, and what is never done twice."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascendd.errors import (
    CollectiveTimeout,
    DeviceEccError,
    DeviceLost,
    DeviceOutOfMemory,
    DeviceUnavailable,
    EngineHung,
    ExitCode,
    InstallationBroken,
    ModelNotFound,
    ProtocolMismatch,
    RestartsExhausted,
    WorkerLost,
)
from ascendd.ipc.messages import Fault, Role
from ascendd.supervisor.child_exit import ChildExit, exit_code_of
from ascendd.supervisor.failure import FailureClass, classify
from ascendd.supervisor.memory_ladder import Rung
from ascendd.supervisor.recovery import MAX_HARDWARE_RESTARTS, Action, RecoveryPolicy
from ascendd.supervisor.restart import JITTER, RestartPolicy

LOST = Fault.from_error(DeviceLost("device 0 stopped answering", remedy="Reset the chip."))
MISSING = Fault.from_error(ModelNotFound("/m does not exist"))
NO_MEMORY = Fault.from_error(DeviceOutOfMemory("a step found no memory"))
KILLED = ChildExit(Role.ENGINE, -9)


def policy(max_restarts=5, dice=0.0):
    """Return a policy whose engine waits 1 s first, and whose metrics process is tried for ever."""

    def one(limit):
        return RestartPolicy(backoff_min_s=1.0, backoff_max_s=60.0, window_s=600.0, max_restarts=limit)

    policies = {Role.ENGINE: one(max_restarts), Role.API: one(max_restarts), Role.METRICS: one(None)}
    return RecoveryPolicy(policies, 600.0, random=lambda: dice)


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        (ChildExit(Role.ENGINE, 78), FailureClass.CONFIGURATION),
        (ChildExit(Role.ENGINE, 64), FailureClass.CONFIGURATION),
        (ChildExit(Role.ENGINE, 66, MISSING), FailureClass.MODEL),
        (ChildExit(Role.ENGINE, 69), FailureClass.HOST),
        (ChildExit(Role.API, 71), FailureClass.HOST),
        (ChildExit(Role.ENGINE, 71, Fault.from_error(InstallationBroken("no torch"))), FailureClass.INSTALLATION),
        (ChildExit(Role.ENGINE, 70, Fault.from_error(ProtocolMismatch("2 is not 1"))), FailureClass.CONFIGURATION),
        (ChildExit(Role.ENGINE, -11), FailureClass.CRASH),
        (ChildExit(Role.ENGINE, 70, Fault.from_error(WorkerLost("rank 1 ended"))), FailureClass.CRASH),
        (ChildExit(Role.ENGINE, 70, Fault.from_error(ValueError("a defect"))), FailureClass.CRASH),
        (ChildExit(Role.ENGINE, 0), FailureClass.CRASH),
        (ChildExit(Role.ENGINE, -9, hung=True), FailureClass.HANG),
        (ChildExit(Role.ENGINE, 70, Fault.from_error(EngineHung("rank 1"))), FailureClass.HANG),
        (ChildExit(Role.ENGINE, 70, Fault.from_error(CollectiveTimeout("all_reduce"))), FailureClass.HANG),
        (ChildExit(Role.ENGINE, 70, NO_MEMORY), FailureClass.DEVICE_MEMORY),
        (ChildExit(Role.ENGINE, -9, out_of_memory=True), FailureClass.HOST_MEMORY),
        (ChildExit(Role.ENGINE, 70, LOST), FailureClass.HARDWARE),
        (ChildExit(Role.ENGINE, 70, Fault.from_error(DeviceEccError("2 bits"))), FailureClass.HARDWARE),
        (ChildExit(Role.ENGINE, 70, Fault.from_error(DeviceUnavailable("held"))), FailureClass.HARDWARE),
    ],
)
def test_each_end_has_a_class(end, expected):
    """The status speaks first, then the words of the child, then the way it ended."""
    assert classify(end) is expected


def test_an_asked_end_leads_to_nothing():
    """A child that left because it was told to is not restarted and not counted."""
    assert policy(max_restarts=0).on_end(ChildExit(Role.ENGINE, 0, asked=True), 1, 0.0).action is Action.NOTHING


def test_a_stale_end_never_acts_twice():
    """What is told again of a process that was acted on, or late of one before it, leads to nothing and counts nowhere."""
    subject = policy()
    first = subject.on_end(KILLED, 3, 0.0)

    again, older = subject.on_end(KILLED, 3, 1.0), subject.on_end(ChildExit(Role.ENGINE, 70, LOST), 2, 1.0)
    other, later = subject.on_end(ChildExit(Role.API, -9), 3, 1.0), subject.on_end(KILLED, 4, 2.0)

    assert [reaction.action for reaction in (again, older)] == [Action.NOTHING, Action.NOTHING]
    assert [reaction.episode for reaction in (first, other, later)] == [1, 2, 3]
    assert later.num_failures == 2


@pytest.mark.parametrize("status", [64, 66, 69, 71, 78])
def test_what_would_fail_again_is_never_retried(status):
    """Configuration, model and host: the first end is the last, with the child's own exit status."""
    reaction = policy().on_end(ChildExit(Role.ENGINE, status), 1, 0.0)

    assert reaction.action is Action.FAIL_INSTANCE
    assert exit_code_of(reaction.error) == status


def test_a_permanent_fault_ends_the_instance_with_its_own_error():
    """The daemon ends with the code and the words of the child that could not start."""
    reaction = policy().on_end(ChildExit(Role.ENGINE, 66, MISSING), 1, 0.0)

    assert isinstance(reaction.error, ModelNotFound)
    assert exit_code_of(reaction.error) == ExitCode.MODEL


def test_two_versions_that_meet_are_not_retried():
    """A permanent error counts as one even where its exit status is that of an engine, or a kill came first."""
    mixed = Fault.from_error(ProtocolMismatch("engine speaks protocol 1, the supervisor 2"))

    for status in (70, -9):
        reaction = policy().on_end(ChildExit(Role.ENGINE, status, mixed), 1, 0.0)
        assert (reaction.action, type(reaction.error)) == (Action.FAIL_INSTANCE, ProtocolMismatch)


def test_five_crashes_in_ten_minutes_are_restarted_and_the_sixth_is_the_end():
    """The pauses double; the last error names the failure, the count and the remedy."""
    subject = policy()

    reactions = [subject.on_end(KILLED, run, 10.0 * run) for run in range(1, 7)]

    assert [reaction.delay_s for reaction in reactions[:5]] == [1.0, 2.0, 4.0, 8.0, 16.0]
    assert isinstance(reactions[5].error, RestartsExhausted)
    assert exit_code_of(reactions[5].error) == ExitCode.ENGINE
    assert "6 failures within 600 s, 5 restarts are allowed" in reactions[5].error.message


def test_crashes_that_are_far_apart_go_on_for_ever():
    """One crash every eleven minutes is restarted after the first pause each time."""
    subject = policy()

    reactions = [subject.on_end(KILLED, run, 660.0 * run) for run in range(1, 30)]

    assert {(reaction.action, reaction.delay_s) for reaction in reactions} == {(Action.RESTART, 1.0)}


def test_only_hangs_and_device_faults_have_the_device_looked_at():
    """A process that crashed says nothing of its device."""
    hung = policy().on_end(ChildExit(Role.ENGINE, -9, hung=True), 1, 0.0)
    lost = policy().on_end(ChildExit(Role.ENGINE, 70, LOST), 1, 0.0)
    crashed = policy().on_end(ChildExit(Role.ENGINE, -11), 1, 0.0)

    assert [reaction.checks_device for reaction in (hung, lost, crashed)] == [True, True, False]


def test_a_device_that_fails_again_and_again_is_given_up_sooner():
    """Two restarts, then the end with the remedy of the fault; crashes between them do not count as such."""
    subject = policy(max_restarts=50)
    lost = ChildExit(Role.ENGINE, 70, LOST)
    ends = [KILLED, lost, KILLED, KILLED, lost, KILLED, lost]

    reactions = [subject.on_end(end, run, float(run)) for run, end in enumerate(ends, 1)]

    assert [reaction.action for reaction in reactions[:-1]] == [Action.RESTART] * 6
    assert MAX_HARDWARE_RESTARTS == 2
    assert "device 0 stopped answering; 3 device faults within 600 s" in reactions[-1].error.message
    assert reactions[-1].error.remedy == "Reset the chip."


def test_the_ladder_of_device_memory():
    """Two restarts with a cache of nine tenths each; the third end says what to lower."""
    subject = policy()
    subject.measured(num_blocks=100, block_size=16, max_model_len=128)
    end = ChildExit(Role.ENGINE, 70, NO_MEMORY)

    reactions = [subject.on_end(end, run, float(run)) for run in (1, 2, 3)]

    assert [reaction.rung for reaction in reactions[:2]] == [Rung(90, 1), Rung(81, 2)]
    assert isinstance(reactions[2].error, DeviceOutOfMemory)
    assert "gpu_memory_utilization" in reactions[2].error.remedy


def test_an_instance_that_the_kernel_keeps_killing_says_what_to_raise():
    """The remedy of the last failure is about memory, not about the process."""
    reaction = policy(max_restarts=0).on_end(ChildExit(Role.ENGINE, -9, out_of_memory=True), 1, 0.0)

    assert reaction.failure is FailureClass.HOST_MEMORY
    assert "ran out of memory" in reaction.error.message
    assert "MemoryMax=" in reaction.error.remedy


def test_a_child_that_is_not_essential_is_always_restarted():
    """Not even a status that would come again ends an instance for the sake of its metrics."""
    subject = policy()

    reactions = [subject.on_end(ChildExit(Role.METRICS, 78), run, float(run)) for run in range(1, 100)]

    assert {reaction.action for reaction in reactions} == {Action.RESTART}


ENDS = st.sampled_from(
    [
        KILLED,
        ChildExit(Role.ENGINE, -11),
        ChildExit(Role.ENGINE, 70, LOST),
        ChildExit(Role.ENGINE, 70, NO_MEMORY),
        ChildExit(Role.API, 1),
    ]
)


@given(st.lists(st.tuples(ENDS, st.floats(0, 700)), max_size=40), st.floats(0, 1))
def test_whatever_happens_the_policy_ends_or_waits_within_bounds(events, dice):
    """For any history: no pause beyond the bound, never more than five restarts of a role in any ten minutes."""
    subject, now_s, restarts = policy(dice=dice), 0.0, []

    for run, (end, gap_s) in enumerate(events, 1):
        now_s += gap_s
        reaction = subject.on_end(end, run, now_s)
        if reaction.action is Action.FAIL_INSTANCE:
            break
        restarts.append((end.role, now_s))
        assert 1.0 <= reaction.delay_s <= 60.0 * (1 + JITTER)
        assert sum(role is end.role and now_s - at_s <= 600.0 for role, at_s in restarts) <= 5
