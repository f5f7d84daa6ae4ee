"""Respawn: starts an engine only once its devices are proven free, and says meanwhile who holds them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from ascendd.errors import DeviceLost, DeviceUnavailable
from ascendd.ipc.messages import Role
from ascendd.supervisor import event as ev
from ascendd.supervisor.child import ChildState
from ascendd.supervisor.departure import Departure
from ascendd.supervisor.phase import RUNNING
from ascendd.supervisor.readiness import Readiness
from ascendd.supervisor.release import DeviceReading, ReleaseProof
from ascendd.supervisor.runtime import Runtime

_AGAIN_S = 1.0


class Probe(Protocol):
    """What reads the devices (device_probe.DeviceProbe)."""

    def read(self, old_leader: int | None) -> DeviceReading:
        """Return what is seen now."""


@dataclass(frozen=True)
class Devices:
    """How the devices of an instance are read, and how the readings are judged."""

    proof: ReleaseProof
    probe: Probe


class Respawn:
    """Takes the due starts of the engine and lets one through when the proof is there."""

    def __init__(
        self,
        runtime: Runtime,
        devices: Devices,
        readiness: Readiness,
        departure: Departure,
        start: Callable[[Role], None],
    ) -> None:
        self._run = runtime
        self._proof, self._probe = devices.proof, devices.probe
        self._readiness = readiness
        self._departure = departure
        self._start = start
        self._old_leader: int | None = None
        self._ended_at_s: float | None = None
        self._checks_device = False
        self._said = ""

    def ended(self, pid: int, *, checks_device: bool) -> None:
        """Note that the engine `pid` is gone, and whether its device is to be looked at before the next one."""
        self._old_leader, self._ended_at_s, self._checks_device = pid, time.monotonic(), checks_device
        self._said = ""

    def due(self, num_starts: int) -> None:
        """Read the devices for start number `num_starts` of the engine; the reading comes as an event."""
        loop, run = asyncio.get_running_loop(), self._run

        def done(future: asyncio.Future[DeviceReading]) -> None:
            if not future.cancelled() and not loop.is_closed():
                error = future.exception()
                # A probe that fails says nothing of the device; the start itself will.
                reading = (
                    future.result() if error is None else DeviceReading(problem=f"{type(error).__name__}: {error}")
                )
                run.events.put_nowait(ev.DevicesRead(num_starts, reading))

        loop.run_in_executor(None, self._probe.read, self._old_leader).add_done_callback(done)

    def on_read(self, num_starts: int, reading: DeviceReading) -> None:
        """Start the engine, or come back after a second, or give up after recovery.release_timeout_s."""
        run = self._run
        child = run.children[Role.ENGINE]
        is_due = child.state is ChildState.BACKOFF or (child.state is ChildState.STOPPED and num_starts == 0)
        if child.num_starts != num_starts or not is_due or run.phase not in RUNNING:
            return
        if reading.problem is not None:
            run.log.warning("supervisor.devices_not_read", reason=reading.problem)
        if self._ended_at_s is None:
            self._proof.baseline = reading
            self._start(Role.ENGINE)
            return
        since_s = time.monotonic() - self._ended_at_s
        verdict = self._proof.judge(reading, since_s, checks_device=self._checks_device)
        limit_s = run.config.recovery.release_timeout_s
        if verdict.is_free:
            run.log.info("supervisor.devices_released", after_s=round(since_s, 3))
            self._start(Role.ENGINE)
        elif since_s > limit_s:
            child.give_up(time.monotonic())
            text = (
                f"{verdict.text}, {since_s:.0f} s after the engine ended (recovery.release_timeout_s is {limit_s:g} s)"
            )
            kind = DeviceLost if verdict.is_faulty else DeviceUnavailable
            self._departure.fail(
                kind(text, remedy="End that process, or find with `ascendd doctor` what the chip has.")
            )
        else:
            if verdict.text != self._said:
                self._said = verdict.text
                run.log.warning("supervisor.devices_held", reason=verdict.text)
            self._readiness.waits(verdict.text)
            run.later(_AGAIN_S, ev.StartDue(Role.ENGINE, num_starts))
