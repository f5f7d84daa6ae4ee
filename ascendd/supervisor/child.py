"""
The state machine of one child process. Pure: it holds states and times, other modules act.

    STOPPED --start--> STARTING --hello--> LOADING --ready--> READY --drain--> DRAINING
       ^                   |                  |                 |                 |
       |                   +------- stop -----+---- stop -------+----- stop ------+--> STOPPING --exited--> STOPPED
       |                   |                  |                 |                 |
       |                   +------------------+--- died --------+-----------------+--> BACKOFF --start--> STARTING
       +---- cancel ---- BACKOFF --give_up--> FAILED                                   or FAILED
"""

from __future__ import annotations

import enum

from ascendd.ipc.messages import Fault, Heartbeat, Role


class ChildState(enum.Enum):
    """Where a child is in its life."""

    STOPPED = "stopped"  # no process, none wanted
    STARTING = "starting"  # the process exists and has not said Hello
    LOADING = "loading"  # it has its configuration and is not ready
    READY = "ready"  # it said Ready
    DRAINING = "draining"  # it finishes what it has
    STOPPING = "stopping"  # it was told to leave
    BACKOFF = "backoff"  # it died and will be started again
    FAILED = "failed"  # it died and will not be started again


ALIVE = frozenset({ChildState.STARTING, ChildState.LOADING, ChildState.READY, ChildState.DRAINING, ChildState.STOPPING})
# States in which the child has its configuration and reads its control link.
CONFIGURED = frozenset({ChildState.LOADING, ChildState.READY, ChildState.DRAINING})
_UNASKED_END = frozenset({ChildState.STARTING, ChildState.LOADING, ChildState.READY, ChildState.DRAINING})


class Child:
    """One child: its state, since when, and what it last told. Times are monotonic seconds."""

    def __init__(self, role: Role) -> None:
        self.role = role
        self.state = ChildState.STOPPED
        self.since_s = 0.0
        self.started_at_s = 0.0
        self.heard_at_s = 0.0
        self.progressed_at_s = 0.0
        self._progress: tuple[str, float] | None = None
        self.heartbeat = Heartbeat()
        self.fault: Fault | None = None
        self.num_starts = 0
        self.load_s: float | None = None

    @property
    def alive(self) -> bool:
        """Whether a process exists."""
        return self.state in ALIVE

    @property
    def configured(self) -> bool:
        """Whether messages make sense to it."""
        return self.state in CONFIGURED

    def start(self, now_s: float) -> None:
        """Move from STOPPED or BACKOFF to STARTING: a process was made."""
        self._move(ChildState.STARTING, {ChildState.STOPPED, ChildState.BACKOFF}, now_s)
        self.num_starts += 1
        self.started_at_s = self.heard_at_s = self.progressed_at_s = now_s
        self._progress = None
        self.heartbeat = Heartbeat()
        self.fault = None

    def hello(self, now_s: float) -> None:
        """Move from STARTING to LOADING: it spoke and was configured."""
        self._move(ChildState.LOADING, {ChildState.STARTING}, now_s)
        self.progressed_at_s = now_s

    def progressed(self, phase: str, fraction: float, now_s: float) -> bool:
        """Take what it tells of its load; return whether that is further than it was. Saying the same again is not."""
        if (phase, fraction) == self._progress:
            return False
        self._progress = (phase, fraction)
        self.progressed_at_s = now_s
        return True

    def ready(self, now_s: float) -> None:
        """Move from LOADING to READY: it can work; remembers how long that took."""
        self._move(ChildState.READY, {ChildState.LOADING}, now_s)
        self.load_s = now_s - self.started_at_s

    def drain(self, now_s: float) -> None:
        """Move from READY to DRAINING: it takes nothing new."""
        self._move(ChildState.DRAINING, {ChildState.READY}, now_s)

    def stop(self, now_s: float) -> None:
        """Move from any living state to STOPPING: it was told to leave."""
        self._move(ChildState.STOPPING, _UNASKED_END, now_s)

    def exited(self, now_s: float) -> None:
        """Move from STOPPING to STOPPED: it left as asked."""
        self._move(ChildState.STOPPED, {ChildState.STOPPING}, now_s)

    def back_off(self, now_s: float) -> None:
        """Move to BACKOFF, since it died unasked: a start is due later."""
        self._move(ChildState.BACKOFF, _UNASKED_END, now_s)

    def fail(self, now_s: float) -> None:
        """Move to FAILED, since it died unasked: no further start."""
        self._move(ChildState.FAILED, _UNASKED_END, now_s)

    def cancel(self, now_s: float) -> None:
        """Move from BACKOFF to STOPPED: the start that was due is not wanted any more."""
        self._move(ChildState.STOPPED, {ChildState.BACKOFF}, now_s)

    def give_up(self, now_s: float) -> None:
        """Move from BACKOFF to FAILED: what the start that was due waited for did not come."""
        self._move(ChildState.FAILED, {ChildState.BACKOFF}, now_s)

    def _move(self, target: ChildState, sources: set[ChildState] | frozenset[ChildState], now_s: float) -> None:
        assert self.state in sources, f"{self.role.value}: no arrow from {self.state.value} to {target.value}"
        self.state = target
        self.since_s = now_s
