"""
Which rank is at fault, and why: the earliest specific cause. Pure.

When one rank of a group ends, the others fail in their next collective: such failures are echoes and name no cause as
long as there is any other. When nobody moves, the rank that the others wait for is the one that is not in a collective,
or has entered the fewest.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass

from ascendd.config.rank_place import RankPlace
from ascendd.errors import AscenddError, CollectiveTimeout, EngineHung, ProtocolMismatch, WorkerLost
from ascendd.ipc.messages import Fault
from ascendd.ipc.rank_messages import RankHeartbeat

# Heartbeats come once a second; a rank that misses several is stopped or starved.
SILENT_S = 3.0


@dataclass(frozen=True)
class RankEnd:
    """
    How one rank ended: the fault that it told, or its exit status (negative for a signal), None while not known.

    `at_s` is when, by CLOCK_MONOTONIC; `garbled` is what was wrong with a frame that it sent.
    """

    place: RankPlace
    at_s: float
    fault: Fault | None = None
    status: int | None = None
    garbled: str = ""

    @property
    def is_echo(self) -> bool:
        """Whether it only tells that somebody else ended."""
        return self.fault is not None and self.fault.code == CollectiveTimeout.code

    @property
    def error(self) -> AscenddError:
        """The error to end with, which names the rank."""
        if self.garbled:
            return _with_rank(ProtocolMismatch(f"{self.place} sent what cannot be read: {self.garbled}"), self.place)
        if self.fault is None:
            return _with_rank(WorkerLost(f"{self.place} {_how(self.status)}"), self.place)
        if self.fault.code == AscenddError.code:
            # Not one of our errors: what is known by name is that the rank ended.
            return _with_rank(WorkerLost(f"{self.place} failed: {self.fault.message}"), self.place)
        told = self.fault.to_error()
        error = type(told)(f"{self.place}: {told.message}", remedy=told.remedy)
        error.facts.update(told.facts)
        return _with_rank(error, self.place)


def earliest_cause(ends: Sequence[RankEnd]) -> RankEnd:
    """Return the end that explains the others: the earliest that is no echo, else the earliest."""
    specific = [end for end in ends if not end.is_echo]
    return min(specific or ends, key=lambda end: end.at_s)


@dataclass(frozen=True)
class RankState:
    """What is known of a rank that lives: its last heartbeat, and for how long nothing came from it."""

    place: RankPlace
    heartbeat: RankHeartbeat
    silent_s: float


def hung_error(states: Sequence[RankState], what: str, waited_s: float, deadline_s: float) -> EngineHung:
    """Return the error that names the rank for which the others wait."""
    stuck = min(states, key=_lateness)
    heartbeat = stuck.heartbeat
    if stuck.silent_s >= SILENT_S:
        why = f"it has given no sign of life for {stuck.silent_s:.0f} s"
    elif heartbeat.collective:
        why = f"it waits in {heartbeat.collective} after {heartbeat.num_collectives} collectives"
    elif heartbeat.inflight_s > 0:
        why = f"it computes and has entered {heartbeat.num_collectives} collectives"
    else:
        why = "it has nothing to do"
    waiting = [str(state.place.rank) for state in states if state is not stuck and state.heartbeat.collective]
    others = f"; ranks {', '.join(waiting)} wait for it in a collective" if waiting else ""
    error = EngineHung(
        f"{what} has run for {waited_s:.0f} s, the deadline is {deadline_s:g} s: {stuck.place} makes no progress, "
        f"{why}{others}"
    )
    error.facts["rank"] = stuck.place.rank
    return error


def _lateness(state: RankState) -> tuple[bool, bool, int]:
    """Order ranks by how likely they keep the others waiting, the most likely first."""
    is_silent = state.silent_s >= SILENT_S
    return (not is_silent, bool(state.heartbeat.collective), state.heartbeat.num_collectives)


def _with_rank(error: AscenddError, place: RankPlace) -> AscenddError:
    error.facts["rank"] = place.rank
    return error


def _how(status: int | None) -> str:
    if status is None:
        return "closed its link"
    if status >= 0:
        return f"exited with status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    hint = "; perhaps the host ran out of memory" if -status == signal.SIGKILL else ""
    return f"was killed by {name}{hint}"
