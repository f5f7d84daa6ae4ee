"""HealthMonitor: whether a child makes progress. Pure: fed with messages and the time, asked for a verdict."""

from __future__ import annotations

from dataclasses import dataclass

from ascendd.config.schema import InstanceConfig
from ascendd.ipc.messages import Role
from ascendd.ipc.step_deadline import step_deadline_of
from ascendd.supervisor.child import Child, ChildState

# For naming the rank that keeps the others waiting, and for the stacks of all.
GROUP_GRACE_S = 5.0


@dataclass(frozen=True)
class Deadlines:
    """How long a child may be silent, in seconds."""

    hello_s: float = 60.0  # from the start of the process to Hello: an interpreter on a busy disk
    loading_s: float = 600.0  # without progress while it loads: one huge weight file on a slow disk
    heartbeat_s: float = 30.0  # without a heartbeat once it is ready
    step_s: float = 120.0  # one engine step; health.step_deadline_s


def deadlines_of(config: InstanceConfig) -> Deadlines:
    """Return the deadlines of an instance; an engine of several ranks judges them itself, and does so first."""
    parallel, health = config.parallel, config.health
    num_ranks = parallel.tensor_parallel_size * parallel.pipeline_parallel_size
    grace_s = GROUP_GRACE_S if num_ranks > 1 else 0.0
    return Deadlines(step_s=health.step_deadline_s + grace_s, loading_s=health.load_deadline_s + grace_s)


def hang_reason(child: Child, deadlines: Deadlines, now_s: float) -> str | None:
    """Return why `child` counts as hung, or None while it does not."""
    silent_s = now_s - child.heard_at_s
    if child.state is ChildState.STARTING and silent_s > deadlines.hello_s:
        return f"no Hello for {silent_s:.0f} s"
    # Heartbeats of another thread do not count here: a disk that does not answer leaves them running.
    stuck_s = now_s - child.progressed_at_s
    if child.state is ChildState.LOADING and stuck_s > deadlines.loading_s:
        return f"no sign of progress for {stuck_s:.0f} s while loading"
    if child.state in (ChildState.READY, ChildState.DRAINING):
        if silent_s > deadlines.heartbeat_s:
            return f"no heartbeat for {silent_s:.0f} s"
        # The child measured the step when it sent the heartbeat; the silence since then belongs to it, too.
        step_s = child.heartbeat.inflight_s + silent_s if child.heartbeat.inflight_s > 0 else 0.0
        deadline_s = step_deadline_of(child.heartbeat, deadlines.step_s)
        if child.role is Role.ENGINE and step_s > deadline_s:
            what = f"step {child.heartbeat.step_seq} of {child.heartbeat.step_tokens} tokens"
            return f"{what} has run for {step_s:.0f} s, its deadline is {deadline_s:.0f} s"
    return None


class HealthMonitor:
    """Judges all children and remembers when it last did, so that the watchdog tells of a monitor that stopped."""

    def __init__(self, deadlines: Deadlines) -> None:
        self.deadlines = deadlines
        self._judged_at_s: float | None = None

    def judge(self, children: list[Child], now_s: float) -> list[tuple[Child, str]]:
        """Return the hung children with the reason of each."""
        hung = [
            (child, reason) for child in children if (reason := hang_reason(child, self.deadlines, now_s)) is not None
        ]
        self._judged_at_s = now_s
        return hung

    def is_fresh(self, now_s: float, max_age_s: float) -> bool:
        """Whether the last verdict is at most `max_age_s` old."""
        return self._judged_at_s is not None and now_s - self._judged_at_s <= max_age_s
