"""HostWait: holds vLLM's start until every host of the cluster has joined."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable

from ascendd.config.schema import InstanceConfig
from ascendd.errors import EngineFault
from ascendd.host.ray_nodes import Nodes
from ascendd.telemetry import log
from ascendd.vllm.ray_node import ask_nodes, missing_text

_LOOK_EVERY_S = 5.0
_TELL_EVERY_S = 1.0


class HostWait:
    """
    Tells through `tell(phase, fraction)` which hosts are there, once a second.

    A host that is away is nobody's hang: the text has the seconds, so that each is a sign of progress, and the instance
    waits for it as long as an operator lets it. A vLLM that lost a host ends, and its next one waits here.
    """

    def __init__(
        self,
        config: InstanceConfig,
        tell: Callable[[str, float], None],
        ask: Callable[[], Awaitable[Nodes]] | None = None,
        look_every_s: float = _LOOK_EVERY_S,
    ) -> None:
        self._config = config
        self._tell = tell
        self._ask = ask or (lambda: ask_nodes(config, os.environ))
        self._look_every_s = look_every_s
        self._log = log.get_logger("engine")

    async def until_joined(self) -> None:
        """Return once `cluster.nodes` hosts are in the cluster."""
        cluster = self._config.cluster
        assert cluster is not None
        begun_s = time.monotonic()
        logged = ""
        while True:
            text = await self._look()
            if not text:
                return
            if text != logged:
                self._log.warning("engine.hosts_missing", text=text)
                logged = text
            await self._pause(text, begun_s)

    async def _look(self) -> str:
        cluster = self._config.cluster
        assert cluster is not None
        asking = asyncio.ensure_future(self._ask())
        begun_s = time.monotonic()
        try:
            while not asking.done():
                await asyncio.wait({asking}, timeout=_TELL_EVERY_S)
                if not asking.done():
                    self._tell(f"asks Ray for its hosts ({time.monotonic() - begun_s:.0f} s)", 0.0)
            return missing_text(cluster, asking.result())
        except EngineFault as error:
            return f"waits for Ray: {error.message}"
        finally:
            asking.cancel()

    async def _pause(self, text: str, begun_s: float) -> None:
        until_s = time.monotonic() + self._look_every_s
        while (rest_s := until_s - time.monotonic()) > 0:
            self._tell(f"{text}, for {time.monotonic() - begun_s:.0f} s", 0.0)
            await asyncio.sleep(min(_TELL_EVERY_S, rest_s))
