"""
Instances that run only while they are asked for: started by systemd at a request, stopped again when idle.

What is started must fit the memory that on_demand_memory gives to all of them together; the one that was not asked for
the longest makes room, and never one with open requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any

from ascendd.config.quantity import parse_bytes
from ascendd.config.schema import Bytes
from ascendd.errors import InstanceUnavailable
from ascendd.gateway.pool import Instance, InstancePool
from ascendd.gateway.request_facts import RequestFacts
from ascendd.gateway.schema import GatewayConfig
from ascendd.telemetry.log import get_logger
from ascendd.telemetry.metrics import MetricStore

_log = get_logger("gateway")
_SYSTEMCTL_TIMEOUT_S = 120.0
# For how long a start that failed is not tried again.
_PAUSE_S = 30.0
# What systemctl says where polkit does not let the gateway's user.
_NOT_ALLOWED = ("authentication required", "Access denied", "Permission denied", "not authorized")
_POLKIT_RULES = "/etc/polkit-1/rules.d/"


def make_room(instances: Iterable[Instance], wanted: Instance, budget: Bytes | None) -> tuple[Instance, ...] | None:
    """Return which instances must stop so that `wanted` fits `budget`; None where open requests leave no room. Pure."""
    if budget is None:
        return ()
    running = [i for i in instances if i is not wanted and i.entry.on_demand is not None and (i.is_up or i.is_loading)]
    free = parse_bytes(budget) - _memory(wanted) - sum(map(_memory, running))
    idle = sorted((i for i in running if i.is_up and not i.num_open), key=lambda i: i.used_at_s)
    leaving: list[Instance] = []
    while free < 0 and idle:
        leaving.append(idle.pop(0))
        free += _memory(leaving[-1])
    return tuple(leaving) if free >= 0 else None


class OnDemand:
    """Starts and stops the units of one gateway; what is known of each is in its Instance, over reloads too."""

    def __init__(self, config: GatewayConfig, metrics: MetricStore) -> None:
        self._budget = config.on_demand_memory
        self._metrics = metrics
        self._tasks: set[asyncio.Task[None]] = set()

    def wake(self, models: Sequence[str], facts: RequestFacts, pool: InstancePool) -> InstanceUnavailable | None:
        """
        Start the first instance that may serve `facts` and is down, and return what the client is told meanwhile.

        None where none of them is started on demand.
        """
        now_s = asyncio.get_running_loop().time()
        able = [
            instance
            for model in models
            for instance in pool.instances
            if model in instance.models and facts.modalities <= instance.modalities
        ]
        for instance in able:
            section = instance.entry.on_demand
            if section is None or instance.is_up:
                continue
            if not instance.is_loading:
                if now_s < instance.failed_at_s + _PAUSE_S:
                    return InstanceUnavailable(
                        f"the instance `{instance.name}` could not be started; the operator looks at"
                        f" `journalctl -u ascendd-gateway -u {section.unit}`",
                        retry_after_s=_PAUSE_S,
                    )
                leaving = make_room(pool.instances, instance, self._budget)
                if leaving is None:
                    return InstanceUnavailable(
                        f"`{instance.name}` is not loaded, and those that are leave no memory for it while they work",
                        retry_after_s=section.load_s,
                        openai_code="no_memory",
                    )
                self._begin(instance, leaving, now_s)
            left_s = instance.loading_since_s + section.load_s - now_s
            return InstanceUnavailable(
                f"`{instance.name}` is loading; it was not in memory, and this request has it started",
                retry_after_s=max(1.0, left_s),
                openai_code="loading",
            )
        return None

    async def tick(self, pool: InstancePool) -> None:
        """Take up starts that have ended, well or not, and stop what nobody asks for."""
        now_s = asyncio.get_running_loop().time()
        for instance in pool.instances:
            section = instance.entry.on_demand
            if section is None or instance.is_stopping:
                continue
            if instance.is_loading and instance.is_up:
                _log.info("gateway.loaded", target=instance.name, seconds=round(now_s - instance.loading_since_s, 1))
                instance.is_loading, instance.used_at_s = False, now_s
            elif instance.is_loading:
                if (await _systemctl("is-failed", "--quiet", section.unit))[0] == 0:
                    self._fail(instance, "the unit has failed")
            elif _is_idle(instance, now_s):
                _log.info("gateway.idle", target=instance.name, idle_s=section.idle_s)
                instance.is_stopping = True
                self._spawn(self._stop(instance))

    def _begin(self, instance: Instance, leaving: Sequence[Instance], now_s: float) -> None:
        instance.is_loading, instance.loading_since_s = True, now_s
        for other in leaving:
            # At once, so that no request is sent there any more.
            other.is_stopping = True
        self._spawn(self._start(instance, leaving))

    async def _start(self, instance: Instance, leaving: Sequence[Instance]) -> None:
        for other in leaving:
            await self._stop(other)
        section = instance.entry.on_demand
        assert section is not None
        _log.info("gateway.loading", target=instance.name, unit=section.unit, unloaded=[o.name for o in leaving])
        self._metrics.inc("ascendd_gateway_loads_total", labels=(instance.name, "load"))
        # What failed a while ago may be tried again, whatever systemd's limit of starts says.
        await _systemctl("reset-failed", section.unit)
        status, said = await _systemctl("start", "--no-block", section.unit)
        if status:
            self._fail(instance, f"systemctl start ends with {status}: {said}")

    async def _stop(self, instance: Instance) -> None:
        section = instance.entry.on_demand
        assert section is not None
        instance.is_up, instance.reason = False, "not loaded"
        self._metrics.inc("ascendd_gateway_loads_total", labels=(instance.name, "unload"))
        status, said = await _systemctl("stop", section.unit)
        instance.is_stopping = False
        if status:
            _log.error(
                "gateway.unload_failed", target=instance.name, unit=section.unit, status=status, reason=said,
                remedy=_remedy(said),
            )  # fmt: skip

    def _fail(self, instance: Instance, reason: str) -> None:
        instance.is_loading, instance.failed_at_s = False, asyncio.get_running_loop().time()
        unit = None if instance.entry.on_demand is None else instance.entry.on_demand.unit
        _log.error("gateway.load_failed", target=instance.name, unit=unit, reason=reason, remedy=_remedy(reason, unit))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _is_idle(instance: Instance, now_s: float) -> bool:
    section = instance.entry.on_demand
    if section is None or section.idle_s is None or not instance.is_up or instance.num_open:
        return False
    return now_s - instance.used_at_s > section.idle_s


def _remedy(said: str, unit: str | None = None) -> str:
    """Return what the operator does about what systemctl said."""
    if any(words in said for words in _NOT_ALLOWED):
        return f"allow the gateway's user to: copy 50-ascendd-gateway.rules of docs/GATEWAY.md to {_POLKIT_RULES}"
    return f"look at journalctl -u {unit}" if unit else "look at journalctl -u ascendd-gateway"


async def _systemctl(*args: str) -> tuple[int, str]:
    """
    Run systemctl and return its exit status and the first line that it complained with.

    One that hangs is killed and counts as 124, one that is not there as 127.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            "systemctl", "--no-ask-password", *args,
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
    except OSError as error:
        return 127, f"systemctl cannot be run: {error.strerror}"
    try:
        _, complaint = await asyncio.wait_for(process.communicate(), _SYSTEMCTL_TIMEOUT_S)
    except (asyncio.TimeoutError, TimeoutError):
        process.kill()
        await process.wait()
        return 124, f"no answer within {_SYSTEMCTL_TIMEOUT_S:g} s"
    lines = complaint.decode(errors="replace").strip().splitlines()
    return process.returncode or 0, lines[0][:300] if lines else ""


def _memory(instance: Instance) -> int:
    section = instance.entry.on_demand
    return 0 if section is None or section.memory is None else parse_bytes(section.memory)
