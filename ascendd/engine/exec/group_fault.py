"""
Which rank is at fault, and why: the earliest specific cause. Pure.

When one rank of a group ends, the others fail in their next collective: such failures are echoes and name no cause as
long as there is any other. When nobody moves, or an echo comes and nobody else has ended, the rank that the others wait
for is the one that is least far: in orders of the engine, in the stages of the pipeline, then in collectives. Whether a
rank waits in a collective says little: on a CPU a collective returns when it is done, on an accelerator at once.
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
        """Whether it only tells that somebody else ended, or does not come."""
        return self.fault is not None and self.fault.code == CollectiveTimeout.code

    @property
    def is_abort(self) -> bool:
        """Whether it ended itself without a word, as the watchdogs of HCCL and NCCL do when a collective fails."""
        return self.fault is None and self.status == -signal.SIGABRT

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
    """Return the end that explains the others: the earliest that says why, else that is no echo, else of all."""
    return min(ends, key=lambda end: (end.is_echo, end.is_abort, end.at_s))


@dataclass(frozen=True)
class RankState:
    """What is known of a rank that lives: its last heartbeat, how long it is silent, whether it has answered."""

    place: RankPlace
    heartbeat: RankHeartbeat
    silent_s: float
    has_answered: bool = False


def hung_error(states: Sequence[RankState], what: str) -> EngineHung:
    """Return the error that names the rank for which the others wait; `what` says how that was noticed."""
    stuck = min(states, key=_farness)
    heartbeat = stuck.heartbeat
    if stuck.silent_s >= SILENT_S:
        why = f"it has given no sign of life for {stuck.silent_s:.0f} s"
    elif heartbeat.collective:
        why = f"it is in {heartbeat.collective}, the collective number {heartbeat.num_collectives}"
    elif heartbeat.inflight_s > 0:
        why = f"it is at work and has entered {heartbeat.num_collectives} collectives"
    else:
        why = "it has not begun what it was told to do"
    others = [state for state in states if state is not stuck]
    waiting = [str(state.place.rank) for state in others if state.heartbeat.collective]
    level = [str(state.place.rank) for state in others if _farness(state) == _farness(stuck)]
    if level:
        why += f"; just as far: rank {', '.join(level)}, so it may be the device of any of these"
    elif waiting:
        why += f"; waiting for it in a collective: rank {', '.join(waiting)}"
    error = EngineHung(f"{what}: {stuck.place} makes no progress, {why}")
    error.facts["rank"] = stuck.place.rank
    return error


def _farness(state: RankState) -> tuple[bool, int, bool, int, int, bool]:
    """
    Order ranks by how far they are, the one that the others wait for first.

    A stage waits for none after it within one order, and collectives of two stages cannot be compared. Of two that have
    entered the same one, who has left it has done its part.
    """
    heartbeat = state.heartbeat
    return (
        state.silent_s < SILENT_S,
        heartbeat.num_done,
        state.has_answered,
        state.place.pp_rank,
        heartbeat.num_collectives,
        not heartbeat.collective,
    )


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
