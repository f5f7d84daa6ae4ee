"""ChildExit: how a process ended and how a person reads it. Pure."""

from __future__ import annotations

import enum
import signal
from dataclasses import dataclass

from ascendd.errors import AscenddError, EngineHung
from ascendd.ipc.messages import Fault, Role
from ascendd.supervisor.restart import PERMANENT_EXIT_CODES


class Cause(enum.Enum):
    """Why a child ended."""

    ASKED = "asked"  # it was told to leave
    LEFT = "left"  # exit status 0 though nobody asked
    HUNG = "hung"  # it made no progress: the supervisor killed it, or an engine says so of one of its ranks
    FAULT = "fault"  # it named an error before it ended
    HOST_MEMORY = "host_memory"  # the kernel killed it because the control group had no memory left
    KILLED = "killed"  # a signal from outside
    CRASHED = "crashed"  # a signal of its own making, such as a segmentation fault
    STATUS = "status"  # an exit status without a word


@dataclass(frozen=True)
class ChildExit:
    """
    The end of one process; `status` is its exit status, negative for a signal.

    `out_of_memory` is whether the kernel's count of out-of-memory kills explains a SIGKILL, None where it has none.
    """

    role: Role
    status: int
    fault: Fault | None = None
    asked: bool = False
    hung: bool = False
    out_of_memory: bool | None = None

    @property
    def cause(self) -> Cause:
        """Why it ended."""
        if self.asked:
            return Cause.ASKED
        if self.hung or (self.fault is not None and self.fault.code == EngineHung.code):
            return Cause.HUNG
        if self.fault is not None:
            return Cause.FAULT
        if self.status == -signal.SIGKILL and self.out_of_memory:
            return Cause.HOST_MEMORY
        if self.status < 0:
            outside = -self.status in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
            return Cause.KILLED if outside else Cause.CRASHED
        return Cause.LEFT if self.status == 0 else Cause.STATUS

    def describe(self) -> str:
        """Return one clause for people, such as `engine was killed by SIGKILL; perhaps the host ran out of memory`."""
        who = self.role.value
        if self.hung:
            return f"{who} made no progress and was killed"
        if self.fault is not None:
            return f"{who} failed with {self.fault.code}: {self.fault.message}"
        if self.status < 0:
            name = _signal_name(-self.status)
            return f"{who} was killed by {name}{self._kill_hint()}"
        return f"{who} exited with status {self.status}"

    def _kill_hint(self) -> str:
        if self.status != -signal.SIGKILL:
            return ""
        if self.out_of_memory is None:
            return "; perhaps the host ran out of memory"
        if self.out_of_memory:
            return " of the kernel: its control group or the host ran out of memory"
        return ", not by the kernel for want of memory"


def exit_code_of(error: AscenddError) -> int:
    """Return the exit status of a daemon that ends because of `error`."""
    code = error.facts.get("exit_status")
    return int(code) if code in PERMANENT_EXIT_CODES else int(error.exit_code)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
