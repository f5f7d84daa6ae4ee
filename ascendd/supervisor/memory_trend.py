"""MemoryTrend: how fast the private memory of a process grows, by a straight line through hours of readings. Pure."""

from __future__ import annotations

import collections
import math
from dataclasses import dataclass

# A process fills its caches at first; what it does then says nothing of a leak.
WARM_UP_S = 600.0
# One reading of each minute is kept, for six hours; an hour of them is the least that tells anything.
EVERY_S = 60.0
WINDOW_S = 6 * 3600.0
MIN_SPAN_S = 3600.0
# Growth that is told: more than this an hour, and more than three times the error of the line.
MIN_BYTES_PER_HOUR = 16_000_000.0
NUM_ERRORS = 3.0


@dataclass(frozen=True)
class Growth:
    """The slope of the line and its standard error, in bytes an hour."""

    bytes_per_hour: float
    error: float

    @property
    def is_leak(self) -> bool:
        """Whether it is large and certain enough to be told."""
        return self.bytes_per_hour >= MIN_BYTES_PER_HOUR and self.bytes_per_hour >= NUM_ERRORS * self.error


class MemoryTrend:
    """The readings of one process; a new process begins a new one. The times are seconds."""

    def __init__(
        self, *, warm_up_s: float = WARM_UP_S, every_s: float = EVERY_S, min_span_s: float = MIN_SPAN_S
    ) -> None:
        self._warm_up_s, self._every_s, self._min_span_s = warm_up_s, every_s, min_span_s
        self._started_s: float | None = None
        self._read_at_s = -math.inf
        self._points: collections.deque[tuple[float, float]] = collections.deque()

    def is_due(self, now_s: float) -> bool:
        """Whether the next reading is wanted at `now_s` (monotonic seconds)."""
        return now_s - self._read_at_s >= self._every_s

    def add(self, now_s: float, num_bytes: float) -> None:
        """Take a reading at `now_s` (monotonic seconds); one that is not due is left out."""
        if not self.is_due(now_s):
            return
        self._read_at_s = now_s
        if self._started_s is None:
            self._started_s = now_s
        if now_s - self._started_s < self._warm_up_s:
            return
        self._points.append((now_s, num_bytes))
        while now_s - self._points[0][0] > WINDOW_S:
            self._points.popleft()

    def growth(self) -> Growth | None:
        """Return the growth over the window, None while there is too little to tell."""
        if len(self._points) < 3 or self._points[-1][0] - self._points[0][0] < self._min_span_s:
            return None
        return fit([at_s / 3600.0 for at_s, _ in self._points], [value for _, value in self._points])


def fit(times: list[float], values: list[float]) -> Growth:
    """Return the slope of the least squares line through at least three points, with its standard error."""
    count = len(times)
    mean_time, mean_value = math.fsum(times) / count, math.fsum(values) / count
    spread = math.fsum((time - mean_time) ** 2 for time in times)
    slope = math.fsum((t - mean_time) * (v - mean_value) for t, v in zip(times, values, strict=True)) / spread
    residues = [value - mean_value - slope * (time - mean_time) for time, value in zip(times, values, strict=True)]
    variance = math.fsum(residue**2 for residue in residues) / max(1, count - 2)
    return Growth(slope, math.sqrt(variance / spread))
