"""The API process as the supervisor sees it: orders in, heartbeats and figures out."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Any

import msgspec

from ascendd.api.selftest import run_self_test
from ascendd.api.server import Server
from ascendd.api.service import FrontService
from ascendd.config.schema import InstanceConfig
from ascendd.errors import Draining, PeerClosed
from ascendd.ipc.channel import AsyncChannel
from ascendd.ipc.messages import (
    AttachPeer,
    ControlMessage,
    Drain,
    Drained,
    EngineState,
    Heartbeat,
    Hold,
    Ready,
    Reconfigure,
    Role,
    RunSelfTest,
    Shutdown,
    Stats,
    StatusReport,
    WatchStatus,
)
from ascendd.telemetry.log import get_logger

_PERIOD_S = 1.0
# Time for the error events of requests that the drain's deadline cut off.
_FAREWELL_S = 2.0

_log = get_logger("api")


class ApiProcess:
    """Follows the control link until Shutdown or its end."""

    def __init__(self, service: FrontService, listener: socket.socket, control: AsyncChannel[ControlMessage]) -> None:
        self._service = service
        self._listener = listener
        self._control = control
        self._server = Server(service, listener)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._failure: BaseException | None = None
        service.status.on_wanted = self._want_status

    async def run(self) -> None:
        """Serve until the supervisor says Shutdown. Raises PeerClosed when it is gone, or what ended an own task."""
        await self._server.start()
        host, port = self._listener.getsockname()[:2]
        _log.info("api.listening", host=host, port=port)
        self._control.send(Ready({"host": host, "port": port}))
        self._spawn(self._report(), "report")
        if self._service.tracer.is_on:
            self._spawn(self._service.tracer.run(), "traces")
        try:
            while not isinstance(message := await self._control.recv(), Shutdown):
                self._obey(message)
        except PeerClosed:
            if self._failure is not None:
                raise self._failure from None
            raise
        for task in self._tasks:
            task.cancel()
        # Who comes in the last moment is told, whatever ended this process.
        self._service.admission.drain()
        self._service.status.close()
        self._service.engine.fail_all(Draining("the instance is stopping"))
        await self._server.stop()
        self._service.engine.detach("the instance is stopping")
        await self._service.close()

    def _want_status(self, wanted: bool) -> None:
        with contextlib.suppress(PeerClosed):
            self._control.send(WatchStatus(wanted))

    def _obey(self, message: ControlMessage) -> None:
        if isinstance(message, EngineState):
            self._service.admission.set_state(message)
        elif isinstance(message, AttachPeer):
            sock = socket.socket(fileno=self._control.take_fd())
            if message.peer is Role.ENGINE:
                self._service.engine.attach(sock)
            else:
                _log.error("api.unexpected_peer", peer=message.peer.value)
                sock.close()
        elif isinstance(message, RunSelfTest):
            self._spawn(self._self_test(message.episode), "self-test")
        elif isinstance(message, Hold):
            self._service.admission.hold(held=message.held)
        elif isinstance(message, StatusReport):
            self._service.status.take(message)
        elif isinstance(message, Reconfigure):
            before, config = self._service.config, msgspec.json.decode(message.config_json, type=InstanceConfig)
            self._service.reconfigure(config)
            if config.model.adapters != before.model.adapters:
                self._spawn(self._service.adapters.follow(_folders(before), _folders(config)), "adapters")
        elif isinstance(message, Drain):
            self._service.admission.drain()
            self._spawn(self._drain(message.deadline_s), "drain")
        else:
            _log.error("api.unexpected_message", kind=type(message).__name__)

    async def _self_test(self, episode: int) -> None:
        done = await run_self_test(self._service, self._listener, episode)
        fault = done.fault
        if fault is None:
            _log.info("api.self_test_passed", latency_s=round(done.latency_s, 4))
        else:
            _log.error("api.self_test_failed", reason=fault.message, code=fault.code)
        self._control.send(done)

    async def _drain(self, deadline_s: float) -> None:
        admission = self._service.admission
        _log.info("api.draining", open_requests=admission.num_requests, deadline_s=deadline_s)
        num_aborted = 0
        try:
            await asyncio.wait_for(admission.wait_idle(), max(0.0, deadline_s))
        except (asyncio.TimeoutError, TimeoutError):
            num_aborted = admission.num_requests
            self._service.engine.fail_all(Draining("the instance is stopping; this request was not finished in time"))
            with contextlib.suppress(asyncio.TimeoutError, TimeoutError):
                await asyncio.wait_for(admission.wait_idle(), _FAREWELL_S)
        _log.info("api.drained", aborted=num_aborted)
        self._control.send(Stats(self._service.metrics.samples()))
        self._control.send(Drained(num_aborted))

    async def _report(self) -> None:
        while True:
            admission, hello = self._service.admission, self._service.engine.hello
            num_open = self._service.engine.num_open
            num_waiting = max(0, num_open - hello.max_num_seqs) if hello is not None else 0
            self._control.send(Heartbeat(num_running=num_open - num_waiting, num_waiting=num_waiting))
            self._control.send(Stats(self._service.metrics.samples()))
            _log.debug("api.alive", open_requests=admission.num_requests, open_sequences=num_open)
            await asyncio.sleep(_PERIOD_S)

    def _spawn(self, work: Any, name: str) -> None:
        task: asyncio.Task[Any] = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and not isinstance(error, PeerClosed):
            # A process that no longer reports or drains is worse than one that is started again.
            _log.error("api.task_failed", task=task.get_name(), error=str(error))
            self._failure = error
            self._control.close()


def _folders(config: InstanceConfig) -> dict[str, str]:
    return {adapter.name: adapter.path for adapter in config.model.adapters}
