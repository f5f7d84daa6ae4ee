"""
AdapterClient: the adapters as the API knows them, and orders to the engine to change them.

What was loaded or unloaded over HTTP outlives an engine, not the daemon: a fresh engine has what its configuration
lists, so it is told of the differences before any request reaches it.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable, Mapping

from ascendd.errors import AdapterInvalid, AscenddError, DeadlineExceeded, EngineRestarting
from ascendd.ipc.messages import AdapterResult, LoadAdapter, UnloadAdapter
from ascendd.telemetry.log import get_logger

_log = get_logger("api")

Order = LoadAdapter | UnloadAdapter


class AdapterClient:
    """`send` gives an order to the engine and raises EngineRestarting where none is there."""

    def __init__(self, send: Callable[[Order], None], configured: Iterable[str], timeout_s: float) -> None:
        self._send = send
        self.timeout_s = timeout_s
        self.names: tuple[str, ...] = tuple(configured)
        self._tickets = itertools.count(1)
        # Orders without an answer; those without a future repeat to a fresh engine what was ordered before.
        self._open: dict[int, tuple[Order, asyncio.Future[None] | None]] = {}
        # Name -> folder, or None for one that was unloaded: what the next engine has to be told.
        self._changes: dict[str, str | None] = {}
        self._following = asyncio.Lock()

    async def follow(self, before: Mapping[str, str], after: Mapping[str, str]) -> None:
        """
        Have the engine go from the configured adapters `before` to those of `after`, both name -> folder.

        What was loaded over HTTP stays. An adapter that cannot be changed is logged and harms no other.
        """
        async with self._following:
            for name in [name for name in before if after.get(name) != before[name]]:
                if name in self.names:
                    await self._follow_one(UnloadAdapter(next(self._tickets), name))
            for name in [name for name in after if before.get(name) != after[name]]:
                if name not in self.names:
                    await self._follow_one(LoadAdapter(next(self._tickets), name, after[name]))
            _log.info("api.adapters_reloaded", adapters=list(self.names))

    async def _follow_one(self, order: Order) -> None:
        try:
            await self._ask(order)
        except EngineRestarting:
            pass  # the next engine starts with the new configuration
        except AscenddError as error:
            _log.error("api.adapter_not_reloaded", adapter=order.name, code=error.code, reason=error.message)

    async def load(self, name: str, path: str) -> None:
        """Have the engine load the folder `path` as `name`. Raises what the engine says of it, or DeadlineExceeded."""
        if name in self.names:
            raise AdapterInvalid(f"an adapter named `{name}` is loaded already", remedy="Unload it first.", name=name)
        await self._ask(LoadAdapter(next(self._tickets), name, path))

    async def unload(self, name: str) -> None:
        """Have the engine take `name` out. Raises ModelUnknown or DeadlineExceeded."""
        await self._ask(UnloadAdapter(next(self._tickets), name))

    def attached(self, names: tuple[str, ...]) -> None:
        """Take the names that a fresh engine has, and tell it what was changed since the start."""
        wanted = dict.fromkeys(names)
        for name, path in self._changes.items():
            if path is None and name in wanted:
                self._repeat(UnloadAdapter(next(self._tickets), name))
                del wanted[name]
            elif path is not None and name not in wanted:
                self._repeat(LoadAdapter(next(self._tickets), name, path))
                wanted[name] = None
        # Known before they are confirmed: the engine obeys the orders before any sequence that is sent after them.
        self.names = tuple(wanted)

    def lost(self, reason: str) -> None:
        """End the orders that a lost engine did not answer."""
        orders, self._open = self._open, {}
        for _, future in orders.values():
            if future is not None and not future.done():
                future.set_exception(EngineRestarting(f"{reason} before the adapter was changed"))

    def take(self, result: AdapterResult) -> None:
        """Take the engine's answer to an order, also to one whose client has left."""
        order, future = self._open.pop(result.ticket, (None, None))
        if order is None:
            return
        error = None if result.fault is None else result.fault.to_error()
        if error is not None and future is None:
            self.names = tuple(name for name in self.names if name != order.name)
            _log.error("api.adapter_lost", adapter=order.name, code=error.code, reason=error.message)
        elif future is not None:
            self.names = result.adapters
            if error is None:
                self._changes[order.name] = order.path if isinstance(order, LoadAdapter) else None
        if future is not None and not future.done():
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)

    def _repeat(self, order: Order) -> None:
        self._open[order.ticket] = (order, None)
        self._send(order)

    async def _ask(self, order: Order) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._send(order)
        self._open[order.ticket] = (order, future)
        # Not asyncio.wait_for, which may lose the cancellation of a client that leaves (see engine_client).
        try:
            done, _ = await asyncio.wait({future}, timeout=self.timeout_s)
        finally:
            # A client that leaves takes its future along: what is set on one that nobody awaits is told as a defect.
            if not future.cancel() and not future.cancelled():
                future.exception()
        if not done:
            raise DeadlineExceeded("the engine did not change the adapter within admission.request_timeout_s")
        error = future.exception()
        if error is not None:
            raise error if isinstance(error, AscenddError) else EngineRestarting(str(error))
