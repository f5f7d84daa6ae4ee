"""StatusFeed: what the status page shows, sent to the API once a second while somebody has the page open."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from ascendd.ipc.control_path import instances
from ascendd.ipc.messages import Role, StatusReport
from ascendd.supervisor.load_history import LoadHistory
from ascendd.supervisor.neighbours import ask_neighbours
from ascendd.supervisor.runtime import Runtime

_NEIGHBOURS_S = 5.0

Ask = Callable[[Mapping[str, Path]], Any]


class StatusFeed:
    """
    Keeps the history of the load, and reports while the API wants that. Called from the event loop only.

    `status` returns the document of `ascendd status`; other instances of the host are asked over their sockets.
    """

    def __init__(self, runtime: Runtime, instance: str, status: Callable[[], Mapping[str, Any]]) -> None:
        self._run = runtime
        self._instance = instance
        self._status = status
        self._history = LoadHistory()
        self._wanted = False
        self._neighbours: list[dict[str, Any]] = []
        self._asked_at_s = -_NEIGHBOURS_S
        self._asking: asyncio.Task[None] | None = None

    def watch(self, *, wanted: bool) -> None:
        """Report from now on, at once for the first time; or no more. A new API process wants nothing yet."""
        self._wanted = wanted
        if wanted:
            self._send()

    def on_tick(self, now_s: float) -> None:
        """Take a point of the history where one is due, and report where that is wanted; `now_s` is monotonic."""
        self._history.on_tick(self._run.board.totals(), now_s, time.time())
        if not self._wanted:
            return
        if now_s - self._asked_at_s >= _NEIGHBOURS_S and (self._asking is None or self._asking.done()):
            self._asked_at_s = now_s
            self._asking = asyncio.get_running_loop().create_task(self._ask_neighbours())
        self._send()

    def close(self) -> None:
        """Ask nobody any more."""
        if self._asking is not None:
            self._asking.cancel()

    async def _ask_neighbours(self) -> None:
        others = {name: path for name, path in instances(os.environ).items() if name != self._instance}
        self._neighbours = await ask_neighbours(others)

    def _send(self) -> None:
        run = self._run
        process = run.table.get(Role.API)
        # An API that does not read gets no second report on top of the first.
        if process is None or not run.children[Role.API].configured or process.channel.num_pending_bytes:
            return
        status = {**self._status(), "unix_s": round(time.time(), 1), "neighbours": self._neighbours}
        process.send(StatusReport(msgspec.json.encode(status), msgspec.json.encode(self._history.columns())))
