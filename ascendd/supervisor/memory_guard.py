"""MemoryGuard: whether new work must be refused for want of host memory. Pure: readings and the time go in."""

from __future__ import annotations

from ascendd.host.memory_pressure import MemoryPressure

# All tasks stood still for this share of ten seconds: a host that pages. Below the second the guard lets go again.
STALLED_PERCENT, STALLED_CLEAR_PERCENT = 20.0, 5.0
# Memory of the host that must stay available: a share of it, and on a large host no more than so many bytes.
LEFT_SHARE, LEFT_BYTES = 0.01, 512_000_000
LEFT_CLEAR_SHARE, LEFT_CLEAR_BYTES = 0.02, 1_024_000_000
# How long all must be well before new work is taken again: pressure comes and goes in waves.
CLEAR_S = 10.0


class MemoryGuard:
    """Takes one reading after another and remembers since when all has been well."""

    def __init__(self) -> None:
        self._num_oom: int | None = None
        self._reason: str | None = None
        self._well_since_s: float | None = None

    @property
    def reason(self) -> str | None:
        """Why new work is refused, None while it is not."""
        return self._reason

    def judge(self, reading: MemoryPressure, now_s: float) -> str | None:
        """Take `reading` at `now_s` (monotonic seconds) and return why new work is refused from now on, or None."""
        bad = self._badness(reading)
        if bad is not None:
            self._reason, self._well_since_s = bad, None
        elif self._reason is not None and self._is_well(reading):
            if self._well_since_s is None:
                self._well_since_s = now_s
            if now_s - self._well_since_s >= CLEAR_S:
                self._reason = None
        else:
            self._well_since_s = None
        return self._reason

    def _badness(self, reading: MemoryPressure) -> str | None:
        before, self._num_oom = self._num_oom, reading.num_oom
        if before is not None and reading.num_oom is not None and reading.num_oom > before:
            return "the control group is at its memory limit (memory.events: oom)"
        if reading.stalled_percent is not None and reading.stalled_percent >= STALLED_PERCENT:
            return f"all tasks stood still for memory for {reading.stalled_percent:.0f} % of the last 10 s"
        if _is_full(reading, LEFT_SHARE, LEFT_BYTES):
            left_mb, total_mb = ((value or 0) // 1_000_000 for value in (reading.available_bytes, reading.total_bytes))
            return f"{left_mb} MB of {total_mb} MB host memory are left"
        return None

    @staticmethod
    def _is_well(reading: MemoryPressure) -> bool:
        stalls = reading.stalled_percent is not None and reading.stalled_percent >= STALLED_CLEAR_PERCENT
        return not stalls and not _is_full(reading, LEFT_CLEAR_SHARE, LEFT_CLEAR_BYTES)


def _is_full(reading: MemoryPressure, share: float, num_bytes: int) -> bool:
    if reading.available_bytes is None or reading.total_bytes is None:
        return False
    return reading.available_bytes < min(share * reading.total_bytes, num_bytes)
