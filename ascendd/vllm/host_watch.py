"""HostWatch: sees that every host of the cluster stays while vLLM runs over them, and names the one that does not."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable

from ascendd.config.schema import InstanceConfig
from ascendd.errors import WorkerLost
from ascendd.host.ray_nodes import Nodes, read_line
from ascendd.ipc.child import die_with_parent
from ascendd.telemetry import log
from ascendd.vllm.ray_node import ask_command

_EVERY_S = 2.0
# Until the next process is started where one ended: its start costs a second of a core.
_PAUSE_S = 10.0


class HostWatch:
    """
    Reads `looks`, what the head says of its nodes every 2 s; by default of a process that stays and asks it.

    A head that cannot be asked proves nothing of its hosts: it is asked again. vLLM ends by itself if its head is gone.
    """

    def __init__(self, config: InstanceConfig, looks: Callable[[], AsyncIterator[Nodes]] | None = None) -> None:
        self._config = config
        self._looks = looks or self._ask
        self._seen: dict[str, None] = {}

    async def until_lost(self) -> None:
        """Return never. Raises WorkerLost with the addresses that are gone, once fewer hosts than wanted are there."""
        cluster = self._config.cluster
        assert cluster is not None
        async for nodes in self._looks():
            self._seen |= dict.fromkeys(nodes.alive)
            if len(nodes.alive) < cluster.nodes:
                gone = [node for node in self._seen if node not in nodes.alive]
                names = ", ".join(gone or nodes.lost) or "unknown"
                raise WorkerLost(
                    f"host {names} left the cluster: {len(nodes.alive)} of {cluster.nodes} are there",
                    remedy="Look at `systemctl status ascendd-ray@INSTANCE` and the network on that host; the instance "
                    "waits for it and starts again by itself.",
                )

    async def _ask(self) -> AsyncIterator[Nodes]:
        logger = log.get_logger("engine")
        argv, env = ask_command(self._config, os.environ, _EVERY_S)
        while True:
            process = await asyncio.create_subprocess_exec(
                *argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                env=env,
                # Of no group that is killed with vLLM: it still has to name the host that vLLM ended over.
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
            assert process.stdout is not None
            try:
                async for line in process.stdout:
                    with contextlib.suppress(ValueError):  # a line of a library
                        yield read_line(line.decode("utf-8", "replace"))
            finally:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
            logger.debug("engine.host_watch_ended", status=await process.wait())
            await asyncio.sleep(_PAUSE_S)
