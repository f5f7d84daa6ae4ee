"""StatusHub: the last status report of the supervisor, and those who watch it on the status page."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable

from ascendd.errors import QueueFull
from ascendd.ipc.messages import StatusReport

MAX_VIEWERS = 16
KEEP_ALIVE_S = 15.0


class StatusHub:
    """`on_wanted` is told when the first viewer comes (True) and when the last one has left (False)."""

    def __init__(self) -> None:
        self.on_wanted: Callable[[bool], None] = lambda _wanted: None
        self._report: StatusReport | None = None
        self._wakers: set[asyncio.Event] = set()
        self._is_closed = False

    def take(self, report: StatusReport) -> None:
        """Show `report` to all who watch."""
        self._report = report
        self._wake()

    def close(self) -> None:
        """Have everybody leave."""
        self._is_closed = True
        self._wake()

    async def reports(self) -> AsyncGenerator[StatusReport | None, None]:
        """
        Yield each new report, and None after KEEP_ALIVE_S without one; ends with `close`. A slow viewer misses some.

        Raises QueueFull where MAX_VIEWERS watch already.
        """
        if len(self._wakers) >= MAX_VIEWERS:
            raise QueueFull(f"{MAX_VIEWERS} viewers have the status page open; close one", openai_code="queue_full")
        news = asyncio.Event()
        self._wakers.add(news)
        if len(self._wakers) == 1:
            # What the last viewer saw may be hours old.
            self._report = None
            self.on_wanted(True)
        elif self._report is not None:
            news.set()
        try:
            while not self._is_closed:
                try:
                    await asyncio.wait_for(news.wait(), KEEP_ALIVE_S)
                except (asyncio.TimeoutError, TimeoutError):
                    yield None
                    continue
                news.clear()
                if self._report is not None and not self._is_closed:
                    yield self._report
        finally:
            self._wakers.discard(news)
            if not self._wakers:
                self.on_wanted(False)

    def _wake(self) -> None:
        for news in self._wakers:
            news.set()
