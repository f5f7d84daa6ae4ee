"""How long a step may run before it counts as hung: asked of the engine, and by the engine of its ranks. Pure."""

from __future__ import annotations

from ascendd.ipc.messages import Heartbeat

# A step may take this many times as long as its tokens took lately at the worst, and as long as step_s at the most.
PATIENCE = 10.0


def step_deadline_of(heartbeat: Heartbeat, step_s: float) -> float:
    """
    Return how long the step that `heartbeat` tells of may run, in seconds.

    `step_s`, and more where its tokens took that long lately: the widest prefill of a large model on a slow host is no
    hang. Never more than PATIENCE times `step_s`, so that one slow step does not hide a hang for hours.
    """
    expected_s = heartbeat.step_tokens * heartbeat.token_s
    return min(max(step_s, PATIENCE * expected_s), PATIENCE * step_s)
