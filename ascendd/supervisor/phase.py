"""
Phases of an instance, the supervisor's intervals, and how it all ended.

    STARTING --> SERVING <--> DEGRADED     first self-test passed; later an essential child is down or not yet proven
        |           |            |
        +-----------+------------+--> DRAINING --> STOPPING --> STOPPED
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from ascendd.errors import AscenddError


@dataclass(frozen=True)
class Timing:
    """Intervals and graces of the supervisor itself, in seconds."""

    tick_s: float = 1.0
    measure_s: float = 5.0
    checks_s: float = 300.0  # from the end of one round of live checks to the next
    pressure_s: float = 2.0
    stop_grace_s: float = 10.0
    loading_stop_grace_s: float = 1.0  # a child that still loads has nothing to lose
    abort_grace_s: float = 3.0  # from SIGABRT, which dumps the stacks, to SIGKILL
    extend_s: float = 60.0
    drain_margin_s: float = 3.0
    self_test_margin_s: float = 5.0
    self_test_grace_s: float = 0.5


class Phase(enum.Enum):
    """Where the instance is in its life."""

    STARTING = "starting"
    SERVING = "serving"
    DEGRADED = "degraded"
    DRAINING = "draining"
    STOPPING = "stopping"
    STOPPED = "stopped"


RUNNING = (Phase.STARTING, Phase.SERVING, Phase.DEGRADED)


@dataclass(frozen=True)
class Outcome:
    """How an instance ended: its exit status, and the error where it failed."""

    exit_code: int
    error: AscenddError | None = None
