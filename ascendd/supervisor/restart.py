"""RestartPolicy: when a child that died is started again, and when not. Pure: the clock and the dice are given."""

from __future__ import annotations

import collections
from collections.abc import Callable
from dataclasses import dataclass

from ascendd.config.schema import RecoverySection
from ascendd.errors import ExitCode

# Exit codes that would come again at once: wrong usage, model, preflight, host, configuration.
PERMANENT_EXIT_CODES = frozenset({ExitCode.USAGE, ExitCode.MODEL, ExitCode.PREFLIGHT, ExitCode.HOST, ExitCode.CONFIG})
# Share by which a delay is lengthened at random, so that instances that died together do not load together.
JITTER = 0.1
_CPU_BACKOFF_S = (1.0, 60.0)
_DEVICE_BACKOFF_S = (10.0, 300.0)


@dataclass(frozen=True)
class RestartIn:
    """Start the child again after `delay_s`; it is failure number `num_failures` of the window."""

    delay_s: float
    num_failures: int


@dataclass(frozen=True)
class GiveUp:
    """Do not start it again; `reason` is for people."""

    reason: str


Decision = RestartIn | GiveUp


class FailureWindow:
    """Counts what happened within the last `window_s` seconds."""

    def __init__(self, window_s: float) -> None:
        self.window_s = window_s
        self._times: collections.deque[float] = collections.deque()

    def add(self, now_s: float) -> int:
        """Count one more at `now_s` (monotonic seconds) and return how many there are with it."""
        while self._times and now_s - self._times[0] > self.window_s:
            self._times.popleft()
        self._times.append(now_s)
        return len(self._times)


class RestartPolicy:
    """
    Exponential backoff with jitter over the failures of the last `window_s` seconds.

    More than `max_restarts` of them (None: without end) gives up. `first_delay_s` replaces the first delay, for
    children that cost nothing to start.
    """

    def __init__(
        self,
        *,
        backoff_min_s: float,
        backoff_max_s: float,
        window_s: float,
        max_restarts: int | None,
        first_delay_s: float | None = None,
    ) -> None:
        self._min_s = backoff_min_s
        self._max_s = max(backoff_min_s, backoff_max_s)
        self._max_restarts = max_restarts
        self._first_delay_s = first_delay_s
        self._failures = FailureWindow(window_s)

    @classmethod
    def from_config(
        cls, recovery: RecoverySection, *, device_kind: str, loads_device: bool, essential: bool
    ) -> RestartPolicy:
        """
        Return the policy of one child.

        Only a child that loads the device waits as long as a device needs; the rest is started again at once the first
        time. A child that is not essential is tried for ever.
        """
        low, high = _DEVICE_BACKOFF_S if loads_device and device_kind != "cpu" else _CPU_BACKOFF_S
        if loads_device:
            low = low if recovery.backoff_min_s is None else recovery.backoff_min_s
            high = high if recovery.backoff_max_s is None else recovery.backoff_max_s
        return cls(
            backoff_min_s=low,
            backoff_max_s=high,
            window_s=recovery.window_s,
            max_restarts=recovery.max_restarts if essential else None,
            first_delay_s=None if loads_device else 0.0,
        )

    @property
    def is_endless(self) -> bool:
        """Whether nothing ever gives up."""
        return self._max_restarts is None

    def on_failure(self, now_s: float, random: Callable[[], float]) -> Decision:
        """Decide after a failure at `now_s` (monotonic seconds); `random` gives a number in 0..1."""
        num_failures = count = self._failures.add(now_s)
        if self._max_restarts is not None and count > self._max_restarts:
            window_s = self._failures.window_s
            return GiveUp(f"{count} failures within {window_s:g} s, {self._max_restarts} restarts are allowed")
        if self._first_delay_s is not None:
            if count == 1:
                return RestartIn(self._first_delay_s, count)
            count -= 1
        # The exponent is bounded so that a child tried for ever does not overflow a float.
        delay_s = min(self._max_s, self._min_s * 2.0 ** min(count - 1, 30))
        return RestartIn(delay_s * (1.0 + JITTER * random()), num_failures)
