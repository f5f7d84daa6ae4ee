"""SelfTest: which engine process has shown a token over the whole path, which has failed to, which is asked now."""

from __future__ import annotations


class SelfTest:
    """Pure bookkeeping. `run` numbers engine processes, `episode` numbers data links between engine and API."""

    def __init__(self) -> None:
        self._episode: int | None = None
        self._proven_run: int | None = None
        self._failed_run: int | None = None

    def is_proven(self, run: int) -> bool:
        """Whether this engine process passed a test; it may serve while another is under way."""
        return run == self._proven_run

    def may_start(self, run: int) -> bool:
        """Whether this engine process may be asked. One that failed is about to be ended: no later success counts."""
        return run != self._failed_run

    def started(self, episode: int) -> None:
        """Note that the answer of `episode` is awaited."""
        self._episode = episode

    def cancel(self) -> None:
        """Await nothing: engine or API ended."""
        self._episode = None

    def take(self, episode: int) -> bool:
        """Whether this answer is the one awaited; it counts once."""
        awaited = self._episode is not None and episode == self._episode
        if awaited:
            self._episode = None
        return awaited

    def passed(self, run: int) -> None:
        """Note that a token came back."""
        self._proven_run = run

    def failed(self, run: int) -> None:
        """Note that none did."""
        self._failed_run = run
