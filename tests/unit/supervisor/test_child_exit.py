"""What the end of a child means."""

from __future__ import annotations

import pytest

from ascendd.errors import DeviceLost, EngineHung
from ascendd.ipc.messages import Fault, Role
from ascendd.supervisor.child_exit import Cause, ChildExit

LOST = Fault.from_error(DeviceLost("device 0 stopped answering", remedy="Reset the chip."))
HUNG = Fault.from_error(EngineHung("rank 1 makes no progress"))


@pytest.mark.parametrize(
    ("end", "cause", "text"),
    [
        (ChildExit(Role.ENGINE, 0, asked=True), Cause.ASKED, "engine exited with status 0"),
        (ChildExit(Role.ENGINE, 0), Cause.LEFT, "engine exited with status 0"),
        (ChildExit(Role.ENGINE, -9, hung=True), Cause.HUNG, "engine made no progress and was killed"),
        (ChildExit(Role.ENGINE, 70, HUNG), Cause.HUNG, "engine failed with ASD-E03: rank 1 makes no progress"),
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
