"""What can happen to a supervisor. Everything that acts on it puts one of these on its queue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ascendd.host.chip_reset import ResetOutcome
from ascendd.ipc.messages import Role
from ascendd.preflight.check import CheckResult
from ascendd.supervisor.release import DeviceReading


@dataclass(frozen=True)
class MessageReceived:
    """A child spoke; `run` tells which of its processes."""

    role: Role
    run: int
    message: Any


@dataclass(frozen=True)
class ChildEnded:
    """A process was reaped and all that it had sent was read; `status` is negative for a signal."""

    role: Role
    run: int
    status: int


@dataclass(frozen=True)
class StartDue:
    """The backoff of a child is over."""

    role: Role
    num_starts: int


@dataclass(frozen=True)
class DevicesRead:
    """The devices were looked at for start number `num_starts` + 1 of the engine."""

    num_starts: int
    reading: DeviceReading


@dataclass(frozen=True)
class ChipsReset:
    """Before start number `num_starts` of the engine its chips were to be reset."""

    num_starts: int
    outcome: ResetOutcome


@dataclass(frozen=True)
class SelfTestOverdue:
    """The API did not report the self-test of this data link in time."""

    episode: int


@dataclass(frozen=True)
class SelfTestFailure:
    """The self-test failed and the engine has had a moment to show a death of its own as the cause."""

    run: int
    text: str


@dataclass(frozen=True)
class KillDue:
    """A process that was told to end has had its time."""

    role: Role
    run: int


@dataclass(frozen=True)
class DrainOver:
    """The drain took longer than the API may take."""


@dataclass(frozen=True)
class SignalReceived:
    """The supervisor itself got a signal."""

    number: int


@dataclass(frozen=True)
class ChecksDone:
    """A round of live checks is over; `problem` where it broke."""

    results: tuple[CheckResult, ...]
    problem: str | None


@dataclass(frozen=True)
class StacksDue:
    """It is time to look at the stacks that processes were asked for."""


@dataclass(frozen=True)
class Tick:
    """A second passed."""


Event = (
    MessageReceived
    | ChildEnded
    | StartDue
    | DevicesRead
    | ChipsReset
    | SelfTestOverdue
    | SelfTestFailure
    | KillDue
    | DrainOver
    | SignalReceived
    | ChecksDone
    | StacksDue
    | Tick
)
