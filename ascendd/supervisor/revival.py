"""Revival: starts children, and starts again what died, as restart policy and recovery say."""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping
from typing import Any

from ascendd.host.chip_reset import ResetOutcome
from ascendd.host.oom_kills import OomKills
from ascendd.ipc.messages import Role
from ascendd.supervisor import event as ev
from ascendd.supervisor.child import Child, ChildState
from ascendd.supervisor.child_exit import ChildExit
from ascendd.supervisor.degradation import Degradation
from ascendd.supervisor.departure import Departure
from ascendd.supervisor.failure import FailureClass
from ascendd.supervisor.phase import RUNNING
from ascendd.supervisor.process import ChildProcess
from ascendd.supervisor.quarantine import Placement
from ascendd.supervisor.readiness import Readiness
from ascendd.supervisor.recovery import Action, Reaction, RecoveryPolicy
from ascendd.supervisor.release import DeviceReading
from ascendd.supervisor.respawn import Devices, Respawn
from ascendd.supervisor.runtime import PEERS, Runtime


class Revival:
    """Acts on the end of a child."""

    def __init__(
        self,
        runtime: Runtime,
        policy: RecoveryPolicy,
        readiness: Readiness,
        departure: Departure,
        devices: Devices,
    ) -> None:
        self._run = runtime
        self._policy = policy
        self._readiness = readiness
        self._departure = departure
        self._respawn = Respawn(runtime, devices, readiness, departure, self._make, leave_out=self._leave_out)
        self._oom_kills = OomKills()

    def start(self, role: Role) -> None:
        """Start `role`, the engine once its devices were looked at. Raises EngineFault where the system refuses."""
        if role is Role.ENGINE:
            self._respawn.due(self._run.children[role].num_starts)
        else:
            self._make(role)

    def on_devices_read(self, num_starts: int, reading: DeviceReading) -> None:
        """Start the engine where its devices are free."""
        self._respawn.on_read(num_starts, reading)

    def on_chips_reset(self, num_starts: int, outcome: ResetOutcome) -> None:
        """Go on after a reset of the engine's chips."""
        self._respawn.on_reset(num_starts, outcome)

    def _make(self, role: Role) -> None:
        run = self._run
        child = run.children[role]
        child.start(time.monotonic())
        process = run.table.start(role, child.num_starts)
        run.log.info("supervisor.child_started", child=role.value, pid=process.pid, start=child.num_starts)

    def on_engine_ready(self, facts: Mapping[str, Any]) -> None:
        """Take the size of the cache that the engine got, from which a smaller one is reckoned."""
        if {"num_blocks", "block_size", "max_model_len"} <= facts.keys():
            self._policy.measured(
                num_blocks=int(facts["num_blocks"]),
                block_size=int(facts["block_size"]),
                max_model_len=int(facts["max_model_len"]),
            )

    def on_start_due(self, role: Role, num_starts: int) -> None:
        """Start again what waited for it; a start that was cancelled or done meanwhile is not due any more."""
        child = self._run.children[role]
        if child.state is ChildState.BACKOFF and child.num_starts == num_starts:
            self.start(role)

    def on_end(self, child: Child, process: ChildProcess, end_status: int) -> None:
        """Decide what follows from the end of `process`."""
        run = self._run
        now_s = time.monotonic()
        role = child.role
        asked = child.state is ChildState.STOPPING
        run.table.remove(role)
        run.board.child_ended(role)
        # A SIGKILL that the supervisor sent is none of the kernel's.
        killed = end_status == -signal.SIGKILL and not (asked or process.hung or child.fault is not None)
        out_of_memory = self._oom_kills.explain() if killed else None
        end = ChildExit(role, end_status, child.fault, asked=asked, hung=process.hung, out_of_memory=out_of_memory)
        if asked:
            child.exited(now_s)
            self._departure.stop_next()
            return
        if process.restart_asked and run.phase in RUNNING:
            self._replace(child, process.pid)
            return
        reaction = self._policy.on_end(end, process.run, now_s) if run.phase in RUNNING else None
        if reaction is not None:
            run.open_episode(reaction.episode)
        facts = {"child": role.value, "pid": process.pid, "status": end_status, "cause": end.cause.value}
        run.log.error("supervisor.child_ended", **facts, reason=end.describe())
        told = {**facts, "reason": end.describe(), "episode": run.episode, "unix_s": round(time.time(), 3)}
        if reaction is not None:
            run.pin_incident(told, end.fault)
        if reaction is None:
            child.back_off(now_s)
            child.cancel(now_s)
            if role is Role.API:  # an engine that dies while draining leaves the API its streams to end
                self._departure.stop_all()
            self._departure.stop_next()
            return
        if reaction.action is Action.FAIL_INSTANCE:
            assert reaction.error is not None
            child.fail(now_s)
            self._departure.fail(reaction.error)
            return
        self._plan_restart(child, process.pid, end, reaction)

    def _leave_out(self, reasons: Mapping[int, str]) -> bool:
        """Go on without the chips of `reasons`, which stay at fault; False where the instance may or can not."""
        placement = self._policy.leave_out(reasons)
        if placement is not None:
            self._place(placement)
        return placement is not None

    def _place(self, placement: Placement) -> None:
        self._run.log.error("supervisor.device_left_out", reason=placement.text)
        self._run.degradations.set(Degradation.DEVICE, placement.text)
        self._run.place(placement)

    def _replace(self, child: Child, pid: int) -> None:
        """Start again at once what people asked to restart: no failure, so no backoff and no count."""
        run = self._run
        child.back_off(time.monotonic())
        if child.role is Role.ENGINE:
            self._respawn.ended(pid, checks_device=False)
        run.log.info("supervisor.restart", child=child.role.value, failure="", delay_s=0.0, num_failures=0)
        run.later(0.0, ev.StartDue(child.role, child.num_starts))
        if child.role in PEERS:
            self._readiness.degrade(child, f"{child.role.value} ended as the operator asked", 0.0)

    def _plan_restart(self, child: Child, pid: int, end: ChildExit, reaction: Reaction) -> None:
        run, role = self._run, child.role
        if (rung := reaction.rung) is not None:
            run.log.warning("supervisor.cache_limited", num_blocks=rung.num_blocks, rung=rung.number)
            run.board.count_memory_restart()
            if rung.num_blocks is not None:
                run.limit_cache(rung.num_blocks)
                text = f"KV cache of {rung.num_blocks} blocks since the device ran out of memory"
                run.degradations.set(Degradation.KV_CACHE, text)
        if (placement := reaction.placement) is not None:
            self._place(placement)
        child.back_off(time.monotonic())
        if role is Role.ENGINE:
            fault = end.fault if reaction.failure is FailureClass.HARDWARE and reaction.placement is None else None
            self._respawn.ended(pid, checks_device=reaction.checks_device, fault=fault)
        assert reaction.failure is not None
        run.board.count_restart(role, reaction.failure)
        run.log.info(
            "supervisor.restart",
            child=role.value,
            failure=reaction.failure.value,
            delay_s=round(reaction.delay_s, 3),
            num_failures=reaction.num_failures,
        )
        run.extend_start(reaction.delay_s + run.config.health.load_deadline_s)
        run.later(reaction.delay_s, ev.StartDue(role, child.num_starts))
        if role in PEERS:
            self._readiness.degrade(child, end.describe(), reaction.delay_s)
