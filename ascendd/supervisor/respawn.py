"""Respawn: starts an engine only once its devices are proven free, and says meanwhile who holds them."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from ascendd.errors import AscenddError, DeviceLost, DeviceUnavailable
from ascendd.host.chip_reset import ResetOutcome, ResetResult
from ascendd.ipc.messages import Fault, Role
from ascendd.supervisor import event as ev
from ascendd.supervisor.child import ChildState
from ascendd.supervisor.chip_repair import asks_for_reset
from ascendd.supervisor.departure import Departure
from ascendd.supervisor.devices import npu_devices
from ascendd.supervisor.phase import RUNNING
from ascendd.supervisor.readiness import Readiness
from ascendd.supervisor.release import DeviceReading, ReleaseProof, Verdict
from ascendd.supervisor.runtime import Runtime

_AGAIN_S = 1.0


class Probe(Protocol):
    """What reads the devices (device_probe.DeviceProbe)."""

    def read(self, old_leader: int | None, unused: frozenset[int]) -> DeviceReading:
        """Return what is seen now."""


class Repair(Protocol):
    """What resets the devices (chip_repair.ChipRepair)."""

    def repair(self, named: int | None, unused: frozenset[int]) -> ResetOutcome:
        """Reset what is faulty."""


@dataclass(frozen=True)
class Devices:
    """How the devices of an instance are read, how the readings are judged, and what resets them, where it may."""

    proof: ReleaseProof
    probe: Probe
    repair: Repair | None = None


class Respawn:
    """Takes the due starts of the engine and lets one through when the proof is there."""

    def __init__(
        self,
        runtime: Runtime,
        devices: Devices,
        readiness: Readiness,
        departure: Departure,
        start: Callable[[Role], None],
        *,
        leave_out: Callable[[Mapping[int, str]], bool],
    ) -> None:
        self._run = runtime
        self._proof, self._probe, self._repair = devices.proof, devices.probe, devices.repair
        self._readiness = readiness
        self._departure = departure
        self._start = start
        self._leave_out = leave_out
        self._old_leader: int | None = None
        self._ended_at_s: float | None = None
        self._checks_device = False
        self._said = ""
        # A reset is owed before the next start; one was done for this end.
        self._is_reset_owed = False
        self._is_reset_done = False
        self._named: int | None = None
        # What a reset is for: logical numbers of chips, and what each does.
        self._reset_for: Mapping[int, str] = {}

    def ended(self, pid: int, *, checks_device: bool, fault: Fault | None = None) -> None:
        """
        Note that the engine `pid` is gone, and whether its device is to be looked at before the next one.

        `fault` is one of the device itself.
        """
        self._old_leader, self._ended_at_s, self._checks_device = pid, time.monotonic(), checks_device
        self._said = ""
        self._is_reset_owed, self._is_reset_done = asks_for_reset(fault), False
        self._named = self._device_of(fault)

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

        loop.run_in_executor(None, self._probe.read, self._old_leader, self._unused()).add_done_callback(done)

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
        verdict = self._proof.judge(reading, since_s, checks_device=self._checks_device, unused=self._unused())
        limit_s = run.config.recovery.release_timeout_s
        if self._wants_reset(verdict, is_late=since_s > limit_s):
            self._reset(num_starts, verdict)
        elif verdict.is_free:
            run.log.info("supervisor.devices_released", after_s=round(since_s, 3))
            self._start(Role.ENGINE)
        elif since_s > limit_s:
            text = (
                f"{verdict.text}, {since_s:.0f} s after the engine ended (recovery.release_timeout_s is {limit_s:g} s)"
            )
            kind = DeviceLost if verdict.is_faulty else DeviceUnavailable
            remedy = "End that process, or find with `ascendd doctor` what the chip has."
            self._go_on_without(num_starts, verdict.bad, kind(text, remedy=remedy))
        else:
            if verdict.text != self._said:
                self._said = verdict.text
                run.log.warning("supervisor.devices_held", reason=verdict.text)
            self._readiness.waits(verdict.text)
            run.later(_AGAIN_S, ev.StartDue(Role.ENGINE, num_starts))

    def on_reset(self, num_starts: int, outcome: ResetOutcome) -> None:
        """Look at the devices anew after a reset, come back where somebody holds the ring, give up where it failed."""
        run = self._run
        child = run.children[Role.ENGINE]
        result = outcome.result
        if result is not ResetResult.HELD or outcome.text != self._said:
            run.board.count_reset(result.name.lower())
            say = run.log.info if result is ResetResult.DONE else run.log.error
            facts = {"ring": list(outcome.ring), "num_tries": outcome.num_tries, "logs": outcome.logs}
            say(f"supervisor.chips_reset_{result.name.lower()}", reason=outcome.text, **facts)
        self._said = outcome.text
        if child.state is not ChildState.BACKOFF or child.num_starts != num_starts or run.phase not in RUNNING:
            return
        assert self._ended_at_s is not None
        is_late = time.monotonic() - self._ended_at_s > run.config.recovery.release_timeout_s
        if result is ResetResult.DONE:
            self._is_reset_done, self._ended_at_s = True, time.monotonic()
            run.later(0.0, ev.StartDue(Role.ENGINE, num_starts))
        elif result is ResetResult.HELD and not is_late:
            self._readiness.waits(outcome.text)
            run.later(_AGAIN_S, ev.StartDue(Role.ENGINE, num_starts))
        else:
            remedy = "Stop what is on the ring and reset the chip by hand; replace it where three resets do not help."
            why = "was reset in vain" if result is ResetResult.FAILED else "needs a reset, and its ring is not free"
            bad = dict.fromkeys(self._reset_for, why)
            self._go_on_without(num_starts, bad, DeviceLost(outcome.text, remedy=remedy))

    def _go_on_without(self, num_starts: int, bad: Mapping[int, str], error: AscenddError) -> None:
        """Leave the chips of `bad` out and look at the others; fail with `error` where that may or can not be."""
        run = self._run
        if bad and self._leave_out(bad):
            self._is_reset_owed, self._named, self._said = False, None, ""
            run.later(0.0, ev.StartDue(Role.ENGINE, num_starts))
            return
        if bad and run.config.recovery.allow_smaller_parallel:
            text = f"{error.message}; there is no smaller tensor parallel size to go on with"
            error = type(error)(text, remedy=error.remedy)
        elif bad and run.config.parallel.tensor_parallel_size > 1:
            leave = "recovery.allow_smaller_parallel lets the instance go on without it, on fewer chips."
            error = type(error)(error.message, remedy=f"{error.remedy} {leave}")
        run.children[Role.ENGINE].give_up(time.monotonic())
        self._departure.fail(error)

    def _wants_reset(self, verdict: Verdict, *, is_late: bool) -> bool:
        """Whether a reset comes before anything else: once for each end, and never while a process has the device."""
        # A chip that is not listed cannot be named to the tool.
        if self._repair is None or self._is_reset_done or verdict.is_missing:
            return False
        return verdict.is_faulty or (verdict.is_free and self._is_reset_owed) or (verdict.is_leaked and is_late)

    def _reset(self, num_starts: int, verdict: Verdict) -> None:
        loop, run = asyncio.get_running_loop(), self._run
        assert self._repair is not None
        why = verdict.text or "the fault of the engine asks for one"
        owed = {} if self._named is None else {self._named: why}
        self._reset_for = verdict.bad or owed
        if not self._said:
            run.log.warning("supervisor.chips_reset", reason=why)
        self._readiness.waits(f"a reset of chips: {why}")

        def done(future: asyncio.Future[ResetOutcome]) -> None:
            if not future.cancelled() and not loop.is_closed():
                error = future.exception()
                text = f"not reset: {type(error).__name__}: {error}"
                outcome = future.result() if error is None else ResetOutcome(ResetResult.FAILED, text)
                run.events.put_nowait(ev.ChipsReset(num_starts, outcome))

        loop.run_in_executor(None, self._repair.repair, self._named, self._unused()).add_done_callback(done)

    def _unused(self) -> frozenset[int]:
        """Return the chips of the instance that its next engine does not use."""
        return frozenset(npu_devices(self._run.config, os.environ)).difference(self._run.devices())

    def _device_of(self, fault: Fault | None) -> int | None:
        """Return the logical number of the chip that `fault` names by its rank."""
        rank = None if fault is None else fault.facts.get("rank")
        devices = self._run.devices()
        return devices[rank] if isinstance(rank, int) and 0 <= rank < len(devices) else None
