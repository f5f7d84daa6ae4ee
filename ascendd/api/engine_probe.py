"""EngineProbe: whether the engine computes a token now, asked beside all requests and answered from a fresh answer."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable

from ascendd.errors import EngineRestarting
from ascendd.ipc.messages import Probe, ProbeDone

# An answer this old is as good as a new one; from half of it on the next one is asked for, while the old one answers.
FRESH_S = 5.0


class EngineProbe:
    """
    Has the engine compute one token, once for all who ask at the same time.

    The engine computes it between two steps, beside its batch and without a KV block of its own, so that it waits for
    no request. `send` gives a message to the engine and raises EngineRestarting where there is none.
    """

    def __init__(self, send: Callable[[Probe], None], timeout_s: float) -> None:
        self._send = send
        self._timeout_s = timeout_s
        self._tickets = itertools.count(1)
        self._ticket = 0
        self._asked_at_s = 0.0
        self._pending: asyncio.Future[None] | None = None
        self._answered_at_s: float | None = None

    async def check(self) -> None:
        """Return when a token was computed within the last FRESH_S. Raises EngineRestarting where none came in time."""
        loop = asyncio.get_running_loop()
        age_s = None if self._answered_at_s is None else loop.time() - self._answered_at_s
        if age_s is not None and age_s <= FRESH_S / 2:
            return
        pending = self._ask(loop)
        if age_s is not None and age_s <= FRESH_S:
            return
        left_s = self._asked_at_s + self._timeout_s - loop.time()
        # Shielded by wait(): others wait for the same answer.
        await asyncio.wait({pending}, timeout=max(0.0, left_s))
        if not pending.done():
            waited_s = loop.time() - self._asked_at_s
            raise EngineRestarting(
                f"the engine has computed no token for {waited_s:.0f} s, though it was asked for one"
            )
        pending.result()

    def take(self, done: ProbeDone) -> None:
        """Take the engine's answer; one to an earlier question is late and tells nothing of now."""
        if done.ticket != self._ticket or self._pending is None or self._pending.done():
            return
        if done.fault is None:
            self._answered_at_s = self._pending.get_loop().time()
            self._pending.set_result(None)
        else:
            self._fail(f"the engine computed no token: {done.fault.code} {done.fault.message}")

    def lost(self, reason: str) -> None:
        """Forget the engine, which is gone."""
        self._answered_at_s = None
        self._fail(reason)
        self._pending = None

    def _ask(self, loop: asyncio.AbstractEventLoop) -> asyncio.Future[None]:
        if self._pending is None or self._pending.done():
            self._ticket = next(self._tickets)
            self._send(Probe(self._ticket))
            self._asked_at_s = loop.time()
            self._pending = loop.create_future()
        return self._pending

    def _fail(self, reason: str) -> None:
        if self._pending is not None and not self._pending.done():
            self._answered_at_s = None
            self._pending.set_exception(EngineRestarting(reason))
            self._pending.exception()  # told to whoever waits; nobody need
