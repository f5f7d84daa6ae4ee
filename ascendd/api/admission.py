"""What is taken in: nothing while the engine is away or the instance drains, and no more than the queue holds."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from ascendd.api.engine_client import EngineClient
from ascendd.errors import Draining, EngineRestarting, HostMemoryPressure, InvalidRequest, QueueFull
from ascendd.ipc.messages import EngineState
from ascendd.telemetry import log


class Admission:
    """Counts the sequences of all requests that are in work; the engine's batch and max_queue bound them."""

    def __init__(self, engine: EngineClient, max_queue: int, restart_wait_s: float = 0.0) -> None:
        self._engine = engine
        engine.on_attached = self._wake
        self._max_queue = max_queue
        self._restart_wait_s = restart_wait_s
        self._was_ready = False
        # Whether requests wait for an engine; they do, too, until the supervisor has spoken, for it may say so.
        self._may_wait = True
        self._waiters: set[asyncio.Future[None]] = set()
        self._num_requests = 0
        self._num_sequences = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self.is_draining = False
        self.is_held = False
        self.engine_state = EngineState(ready=False, text="starting")

    def set_state(self, state: EngineState) -> None:
        """Answer with `state` from now on, and wake who waits for it."""
        self.engine_state = state
        log.set_episode(state.episode)
        self._was_ready = self._was_ready or state.ready
        self._may_wait = self._was_ready or state.may_wait
        if state.ready:
            self._engine.resume()
        elif state.is_final:
            self._engine.give_up(state.text)
        if state.ready or state.is_final or not self._may_wait:
            self._wake()

    def drain(self) -> None:
        """Take nothing new from now on."""
        self.is_draining = True
        self._wake()

    def hold(self, *, held: bool) -> None:
        """Take nothing new while `held`, as the operator asked; what runs goes on."""
        self.is_held = held
        self._wake()

    def set_limits(self, max_queue: int, restart_wait_s: float) -> None:
        """Count with these from now on."""
        self._max_queue = max_queue
        self._restart_wait_s = restart_wait_s

    @property
    def num_requests(self) -> int:
        """Requests in work."""
        return self._num_requests

    @property
    def num_sequences(self) -> int:
        """Sequences of the requests in work."""
        return self._num_sequences

    def check_ready(self) -> None:
        """Raise Draining, EngineRestarting or HostMemoryPressure unless requests are served now."""
        if self.is_draining:
            raise Draining("draining: the instance is stopping and takes no new requests")
        if self.is_held:
            raise Draining("draining: the operator holds the instance, which takes no new requests until it is resumed")
        if not self.engine_state.ready:
            raise EngineRestarting(self.engine_state.text, retry_after_s=self.engine_state.retry_after_s)
        if self.engine_state.pressure:
            raise HostMemoryPressure(f"no new requests are taken: {self.engine_state.pressure}")
        if self._engine.hello is None:
            raise EngineRestarting("the engine is not connected", retry_after_s=self.engine_state.retry_after_s)

    async def wait_ready(self, deadline: float) -> None:
        """
        Return once requests are served; across a restart of the engine wait for that up to admission.restart_wait_s.

        Across the first start, too, where systemd holds the listener (EngineState.may_wait). `deadline` is loop time.
        Raises Draining or EngineRestarting, and QueueFull where max_queue others wait.
        """
        loop = asyncio.get_running_loop()
        until = min(deadline, loop.time() + self._restart_wait_s)
        while True:
            try:
                return self.check_ready()
            except EngineRestarting:
                if not self._may_wait or self.engine_state.is_final or loop.time() >= until:
                    raise
            if len(self._waiters) >= self._max_queue:
                raise QueueFull(
                    f"{len(self._waiters)} requests wait for the engine's restart already, "
                    f"admission.max_queue is {self._max_queue}; try again later",
                    openai_code="queue_full",
                )
            waiter = loop.create_future()
            self._waiters.add(waiter)
            timer = loop.call_at(until, self._release, waiter)
            try:
                await waiter
            finally:
                timer.cancel()
                self._waiters.discard(waiter)

    def _wake(self) -> None:
        for waiter in self._waiters:
            self._release(waiter)

    @staticmethod
    def _release(waiter: asyncio.Future[None]) -> None:
        if not waiter.done():
            waiter.set_result(None)

    @contextmanager
    def place(self, num_sequences: int) -> Iterator[None]:
        """
        Hold a place for `num_sequences` while the block runs.

        Raises QueueFull when they would wait behind more than max_queue others, InvalidRequest when they never fit.
        """
        if self.is_draining:
            raise Draining("the instance is stopping and takes no new requests")
        batch = self._engine.bounds().max_num_seqs
        limit = batch + self._max_queue
        if num_sequences > limit:
            raise InvalidRequest(
                f"the request asks for {num_sequences} sequences (prompts x n), at most {limit} are taken", param="n"
            )
        if self._num_sequences + num_sequences > limit:
            waiting = max(0, self._num_sequences - batch)
            raise QueueFull(
                f"{waiting} sequences wait already, admission.max_queue is {self._max_queue}; try again later",
                openai_code="queue_full",
            )
        self._num_requests += 1
        self._num_sequences += num_sequences
        self._idle.clear()
        try:
            yield
        finally:
            self._num_requests -= 1
            self._num_sequences -= num_sequences
            if self._num_requests == 0:
                self._idle.set()

    async def wait_idle(self) -> None:
        """Return once no request is in work."""
        await self._idle.wait()
