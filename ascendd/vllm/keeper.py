"""
The `_vllm` role: keeps one `vllm serve` and is the engine of the instance for the supervisor and the API.

    supervisor <- control link -> keeper <- log, HTTP -> vllm serve (its group, its death)
    API        <- data link ----> keeper     bounds, readiness probes
    API        <- HTTP ---------------------> vllm serve
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from ascendd.config.schema import InstanceConfig
from ascendd.errors import EngineDead, EngineFault, PeerClosed
from ascendd.ipc import messages as msg
from ascendd.ipc.channel import AsyncChannel, BlockingChannel
from ascendd.ipc.child import ChildArguments, die_with_parent, receive_config, run_role
from ascendd.ipc.messages import ControlMessage, DataMessage, Role
from ascendd.telemetry import log
from ascendd.vllm.address import Address, new_address
from ascendd.vllm.command import build
from ascendd.vllm.figures import Figures, read_figures
from ascendd.vllm.host_wait import HostWait
from ascendd.vllm.host_watch import HostWatch
from ascendd.vllm.log_faults import find_broken_installation, find_fault, last_error
from ascendd.vllm.log_progress import LoadProgress
from ascendd.vllm.probe import TokenProbe
from ascendd.vllm.ray_node import with_token
from ascendd.vllm.server import VllmServer
from ascendd.vllm.token_watch import TokenWatch
from ascendd.vllm.upstream import Upstream

_BEAT_S = 1.0
_HEALTH_EVERY_S = 0.5
_ASK_TIMEOUT_S = 10.0
# Below the grace that the supervisor gives a child (phase.Timing.stop_grace_s).
_STOP_S = 7.0
# Ray takes a host for lost after 5 health checks without an answer, 3 s apart; a vLLM that ended knows no host's name.
_NAME_HOST_S = 20.0
# An idle vLLM is asked for a token this often, so that one that hangs is found before a client finds it.
_IDLE_PROBE_S = 30.0


def main(argv: Sequence[str]) -> int:
    """Run the keeper and return its exit status."""
    return run_role(Role.ENGINE, argv, _body)


def _body(_arguments: ChildArguments, channel: BlockingChannel[ControlMessage]) -> int:
    config, run = receive_config(channel, Role.ENGINE)
    name = config.model.name or Path(config.model.path).name
    log.configure(config.log, instance=name, role=Role.ENGINE.value)
    # Not at once, as other children: first the group goes. The end of the control link says the same.
    die_with_parent(signal.SIGTERM)
    instance = os.environ.get(log.INSTANCE_VARIABLE) or name
    config = with_token(config, instance, os.environ)
    assert config.engine.vllm is not None
    address = new_address(config.engine.vllm.listen, instance, os.environ)
    try:
        return asyncio.run(Keeper(config, name, run, address).run(channel))
    finally:
        address.remove()


class Keeper:
    """Starts vLLM, tells how it is, and ends with it or on order."""

    def __init__(self, config: InstanceConfig, name: str, run: int, address: Address) -> None:
        self._config = config
        self._name = name
        self._run = run
        self._address = address
        self._upstream = Upstream(address)
        self._progress = LoadProgress()
        self._server = VllmServer(build(config, address, os.environ), self._on_line)
        self._watch = TokenWatch(time.monotonic())
        self._probe = TokenProbe(self._upstream, name, self._watch, config.health.step_deadline_s)
        self._figures: Figures | None = None
        self._max_model_len = 0
        self._ready = False
        self._data: AsyncChannel[DataMessage] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._log = log.get_logger("engine")

    async def run(self, blocking: BlockingChannel[ControlMessage]) -> int:
        """Live until vLLM ends, which raises why, or the supervisor says to leave or is gone, which returns 0."""
        self._control: AsyncChannel[ControlMessage] = blocking.into_async()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, _end_group)
        loop.add_signal_handler(signal.SIGABRT, self._on_abort)
        orders = self._spawn(self._follow(), "orders")
        if self._config.cluster is not None:
            waiting = self._spawn(HostWait(self._config, self._tell).until_joined(), "hosts")
            await asyncio.wait({waiting, orders}, return_when=asyncio.FIRST_COMPLETED)
            if orders.done():
                waiting.cancel()
                return 0
            waiting.result()
        await self._server.start()
        self._log.info("engine.vllm_started", pid=self._server.pid, episode=self._run)
        dying = self._spawn(self._server.wait(), "vllm")
        watching = self._spawn(self._watch_load_then_beat(), "watch")
        # Of one host, nothing to watch: it stands still.
        losing = self._spawn(HostWatch(self._config).until_lost(), "host-watch") if self._config.cluster else watching
        done, _ = await asyncio.wait({dying, orders, watching, losing}, return_when=asyncio.FIRST_COMPLETED)
        # An order to leave that comes with the end of vLLM is that end's reason.
        if orders in done:
            is_alone = orders.exception() is not None
            await self._stop(dying, 0.0 if is_alone else _STOP_S)
            return 0
        if dying in done:
            self._server.kill_rest()
            if losing is not watching and isinstance(find_fault(self._server.tail), EngineFault | None):
                # Ray and vLLM see a lost host at about the same time; only Ray can name it.
                await asyncio.wait({losing}, timeout=_NAME_HOST_S)
            if losing is watching or not losing.done():
                self._raise_end(dying.result())
        error = (losing if losing.done() else watching).exception()
        await self._stop(dying, 0.0)
        raise error or EngineDead("the watch over vLLM ended")

    def _tell(self, phase: str, fraction: float) -> None:
        self._control.send(msg.Heartbeat())
        self._control.send(msg.Progress(phase, fraction))

    async def _follow(self) -> None:
        """Take orders until Shutdown. Raises PeerClosed where the supervisor is gone."""
        while not isinstance(message := await self._control.recv(), msg.Shutdown):
            if isinstance(message, msg.AttachPeer):
                self._attach(socket.socket(fileno=self._control.take_fd()))
            elif isinstance(message, msg.Reconfigure):
                log.set_level(msgspec.json.decode(message.config_json, type=InstanceConfig).log.level)

    async def _watch_load_then_beat(self) -> None:
        while (answer := await self._health()) is None or answer != 200:
            self._control.send(msg.Heartbeat())
            await asyncio.sleep(_HEALTH_EVERY_S)
        models = (await self._upstream.get("/v1/models", _ASK_TIMEOUT_S)).json()
        self._max_model_len = int(models["data"][0].get("max_model_len") or 0)
        await self._read_figures()
        facts = self._facts()
        self._log.info("engine.loaded", **facts)
        self._control.send(msg.Ready(facts))
        self._ready = True
        if self._data is not None:
            self._data.send(self._hello())
        while True:
            started_s = time.monotonic()
            with contextlib.suppress(EngineDead):  # what is not answered shows in the heartbeat
                await self._read_figures()
            if time.monotonic() - self._watch.moved_at_s > _IDLE_PROBE_S or self._is_idle_for(_IDLE_PROBE_S):
                self._spawn(self._probe.check(), "idle-probe")
            await asyncio.sleep(max(0.0, _BEAT_S - (time.monotonic() - started_s)))

    def _is_idle_for(self, seconds: float) -> bool:
        return not self._probe.is_asking and time.monotonic() - self._probe.answered_at_s > seconds

    async def _health(self) -> int | None:
        try:
            return (await self._upstream.get("/health", 5.0)).status
        except EngineDead:
            return None

    async def _read_figures(self) -> None:
        asking = asyncio.ensure_future(self._upstream.get("/metrics", _ASK_TIMEOUT_S))
        self._watch.asked(time.monotonic())
        while not asking.done():
            await asyncio.wait({asking}, timeout=_BEAT_S)
            if not asking.done() and self._ready:
                self._control.send(self._watch.heartbeat(time.monotonic()))
        figures = read_figures(asking.result().body)
        now_s = time.monotonic()
        self._watch.saw(figures.num_running, figures.num_waiting, figures.num_tokens, now_s)
        self._figures = figures
        self._control.send(self._watch.heartbeat(now_s))
        self._control.send(msg.Stats(list(figures.samples)))
        self._control.send(msg.ForeignMetrics(figures.text))

    def _facts(self) -> dict[str, Any]:
        figures, engine = self._figures, self._config.engine
        block_size = (figures.block_size if figures else None) or engine.block_size or 0
        num_blocks = figures.num_blocks if figures else None
        if num_blocks is None and block_size and self._progress.cache_tokens is not None:
            num_blocks = self._progress.cache_tokens // block_size
        facts: dict[str, Any] = {"backend": "vllm", "vllm_version": self._progress.version or "unknown"}
        if num_blocks is not None and block_size:
            facts |= {"num_blocks": num_blocks, "block_size": block_size}
        parallel = self._config.parallel
        return facts | {
            "max_model_len": self._max_model_len,
            "tensor_parallel_size": parallel.tensor_parallel_size,
            "pipeline_parallel_size": parallel.pipeline_parallel_size,
        }

    def _hello(self) -> msg.EngineHello:
        facts = self._facts()
        return msg.EngineHello(
            model_name=self._name,
            max_model_len=self._max_model_len,
            vocab_size=0,
            eos_token_ids=(),
            num_blocks=int(facts.get("num_blocks", 0)),
            block_size=int(facts.get("block_size", 0)),
            max_num_seqs=self._config.engine.max_num_seqs,
            adapters=tuple(adapter.name for adapter in self._config.model.adapters),
            upstream=self._address.url,
            upstream_key=self._address.key,
        )

    def _attach(self, sock: socket.socket) -> None:
        if self._data is not None:
            self._data.close()
        self._data = AsyncChannel(sock, DataMessage)
        if self._ready:
            self._data.send(self._hello())
        self._spawn(self._answer(self._data), "data-link")

    async def _answer(self, channel: AsyncChannel[DataMessage]) -> None:
        """Answer probes; requests themselves go from the API to vLLM, which sees their clients leave."""
        with contextlib.suppress(PeerClosed):
            while True:
                message = await channel.recv()
                if isinstance(message, msg.Probe):
                    self._spawn(self._prove(channel, message.ticket), "probe")

    async def _prove(self, channel: AsyncChannel[DataMessage], ticket: int) -> None:
        fault = None
        try:
            await self._probe.check()
        except EngineDead as error:
            fault = msg.Fault.from_error(error)
        with contextlib.suppress(PeerClosed):
            channel.send(msg.ProbeDone(ticket, fault))

    def _on_line(self, line: str) -> None:
        if not self._ready and self._progress.read(line):
            with contextlib.suppress(PeerClosed):
                self._control.send(msg.Progress(self._progress.phase, self._progress.fraction))

    def _on_abort(self) -> None:
        """Have vLLM write its stacks: the supervisor found it to hang, and kills the group in a moment."""
        self._log.error("engine.vllm_stacks", pid=self._server.pid)
        self._server.dump_stacks()

    async def _stop(self, dying: asyncio.Task[int], grace_s: float) -> None:
        if not dying.done() and grace_s:
            self._server.ask_to_end()
            await asyncio.wait({dying}, timeout=grace_s)
        num_killed = self._server.kill_rest()
        self._log.info("engine.vllm_ended", killed=num_killed)

    def _raise_end(self, status: int) -> None:
        self._server.kill_rest()
        fault = find_fault(self._server.tail)
        if (fault is None or isinstance(fault, EngineDead)) and status > 0 and not self._max_model_len:
            fault = find_broken_installation(self._server.tail) or fault
        how = f"signal {-status}" if status < 0 else f"exit status {status}"
        self._log.error("engine.vllm_died", status=status, last_line=last_error(self._server.tail))
        if fault is not None:
            fault.facts["vllm_status"] = status
            raise fault
        if status < 0:
            # The same signal ends this process: who sent it, and whether the kernel did, is for the supervisor to find.
            self._address.remove()
            if -status not in (signal.SIGKILL, signal.SIGSTOP):
                signal.signal(-status, signal.SIG_DFL)
            os.kill(os.getpid(), -status)
        raise EngineDead(f"vLLM ended with {how}; its last error: {last_error(self._server.tail) or 'none'}")

    def _spawn(self, work: Any, name: str) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._log.debug("engine.task_ended", task=task.get_name(), error=str(error))


def _end_group() -> None:
    """End everything at once: whoever started this is gone."""
    os.killpg(os.getpgrp(), signal.SIGKILL)
