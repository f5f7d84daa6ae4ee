"""TokenWatch: since when vLLM has work and makes no token of it. Pure: figures and times go in, seconds come out."""

from __future__ import annotations

from ascendd.ipc.messages import Heartbeat


class TokenWatch:
    """Times are monotonic seconds. What vLLM does not answer counts as a step that runs."""

    def __init__(self, now_s: float) -> None:
        self._num_tokens = -1.0
        self._num_moves = 0
        self._num_running = self._num_waiting = 0
        self._moved_at_s = now_s
        self._asked_at_s: float | None = None

    @property
    def moved_at_s(self) -> float:
        """When vLLM was last seen to make progress, or to have nothing to do."""
        return self._moved_at_s

    @property
    def num_tokens(self) -> float:
        """The sum of prompt and answer tokens last seen."""
        return self._num_tokens

    @property
    def num_running(self) -> int:
        """Requests in its batch, as last seen."""
        return self._num_running

    def saw(self, num_running: int, num_waiting: int, num_tokens: float, now_s: float) -> None:
        """Take the figures of a page that vLLM answered."""
        if num_tokens != self._num_tokens:
            self._num_moves += 1
        if num_tokens != self._num_tokens or not num_running + num_waiting:
            self._moved_at_s = now_s
        self._num_tokens = num_tokens
        self._num_running, self._num_waiting = num_running, num_waiting
        self._asked_at_s = None

    def asked(self, now_s: float) -> None:
        """Note that vLLM was asked for something, a page or a token, and has not answered yet."""
        if self._asked_at_s is None:
            self._asked_at_s = now_s

    def heartbeat(self, now_s: float) -> Heartbeat:
        """Return what the supervisor is told; `inflight_s` runs while work or an answer is due and none comes."""
        since_s = []
        if self._num_running + self._num_waiting:
            since_s.append(self._moved_at_s)
        if self._asked_at_s is not None:
            since_s.append(self._asked_at_s)
        inflight_s = max(0.0, now_s - min(since_s)) if since_s else 0.0
        return Heartbeat(self._num_moves, inflight_s, self._num_running, self._num_waiting)
