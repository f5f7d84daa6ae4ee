"""ScrapeLimit: how many scrapes a second are let in. Pure."""

from __future__ import annotations


class ScrapeLimit:
    """A token bucket that holds two seconds' worth, so that several Prometheus servers may come at the same moment."""

    def __init__(self, per_s: float) -> None:
        self._per_s = per_s
        self._capacity = 2.0 * per_s
        self._tokens = self._capacity
        self._filled_at_s: float | None = None
        self.num_refused = 0

    def admit(self, now_s: float) -> bool:
        """Whether a connection at `now_s` (monotonic seconds) is let in; one that is not is counted."""
        if self._filled_at_s is not None:
            self._tokens = min(self._capacity, self._tokens + (now_s - self._filled_at_s) * self._per_s)
        self._filled_at_s = now_s
        if self._tokens < 1.0:
            self.num_refused += 1
            return False
        self._tokens -= 1.0
        return True
