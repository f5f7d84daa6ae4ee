"""Watch: what the supervisor looks at once a second: hangs, memory, figures, and systemd's watchdog."""

from __future__ import annotations

import asyncio
import math
import os
import time

from ascendd.host.files import HostFiles
from ascendd.host.memory_pressure import read_pressure
from ascendd.ipc.messages import Role
from ascendd.supervisor import event as ev
from ascendd.supervisor.child import ChildState
from ascendd.supervisor.degradation import Degradation
from ascendd.supervisor.health import HealthMonitor
from ascendd.supervisor.memory_guard import MemoryGuard
from ascendd.supervisor.phase import Phase
from ascendd.supervisor.readiness import Readiness
from ascendd.supervisor.runtime import PEERS, Runtime
from ascendd.supervisor.stacks import Stacks
from ascendd.supervisor.tuning import Tuning
from ascendd.telemetry.log_budget import LogBudget, Sweep

_ABSENCE = {ChildState.STARTING: "starting", ChildState.LOADING: "starting"}
# How often it is looked whether the logs are too many.
_SWEEP_S = 60.0


class Watch:
    """Judges children, reads their memory, sends snapshots and feeds the watchdog while its own verdict is fresh."""

    def __init__(
        self,
        runtime: Runtime,
        monitor: HealthMonitor,
        readiness: Readiness,
        watchdog_s: float | None,
        budget: LogBudget | None = None,
        *,
        files: HostFiles | None = None,
    ) -> None:
        self._run = runtime
        self._monitor = monitor
        self._readiness = readiness
        self._watchdog_s = watchdog_s
        self._files = files or HostFiles()
        self._guard = MemoryGuard()
        self._pressure_at_s = -runtime.timing.pressure_s
        self.stacks = Stacks(runtime)
        self._tuning = Tuning(runtime)
        self._stats_at_s = time.monotonic()
        self._budget = budget
        self._swept_at_s = -math.inf
        self._is_over_budget = False
        self._measured_at_s = -runtime.timing.measure_s

    def on_tick(self) -> None:
        """Do everything that is due and come back after a second."""
        run = self._run
        now_s = time.monotonic()
        self._end_hung(now_s)
        run.notifier.settle()
        if now_s - self._measured_at_s >= run.timing.measure_s:
            self._measured_at_s = now_s
            run.board.measure(os.getpid(), {process.spec.role: process.pid for process in run.table})
        self._log_stats(now_s)
        self._keep_budget(now_s)
        self._judge_memory(now_s)
        self._judge_degradation()
        self._tuning.on_tick(now_s)
        self._readiness.refresh()
        run.board.set_states(run.children, run.phase, run.degradations)
        metrics = run.table.get(Role.METRICS)
        # A metrics process that does not read gets no second snapshot on top of the first.
        if metrics is not None and run.children[Role.METRICS].configured and not metrics.channel.num_pending_bytes:
            metrics.send(run.board.snapshot())
        run.later(run.timing.tick_s, ev.Tick())

    def beat(self) -> None:
        """Feed the watchdog, unless the health monitor has not judged lately; again and again from then on."""
        if self._watchdog_s is None:
            return
        if self._monitor.is_fresh(time.monotonic(), 5 * self._run.timing.tick_s):
            self._run.notifier.watchdog()
        asyncio.get_running_loop().call_later(self._watchdog_s / 2, self.beat)

    def _end_hung(self, now_s: float) -> None:
        run = self._run
        watched = [run.children[process.spec.role] for process in run.table if not process.hung]
        for child, reason in self._monitor.judge(watched, now_s):
            process = run.table.get(child.role)
            assert process is not None
            process.hung = True
            run.log.error("supervisor.child_hung", child=child.role.value, pid=process.pid, reason=reason)
            self._readiness.withdraw(child, reason)
            self.stacks.ask(process)

    def _judge_memory(self, now_s: float) -> None:
        run = self._run
        if now_s - self._pressure_at_s >= run.timing.pressure_s:
            self._pressure_at_s = now_s
            before = run.pressure
            run.pressure = self._guard.judge(read_pressure(self._files), now_s) or ""
            if run.pressure and not before:
                run.log.error("supervisor.memory_pressure", reason=run.pressure)
            elif before and not run.pressure:
                run.log.info("supervisor.memory_pressure_over")
        leaks = run.board.leaks()
        texts = [f"{role} grows by {growth.bytes_per_hour / 1e6:.0f} MB an hour" for role, growth in leaks.items()]
        if run.degradations.set(Degradation.MEMORY_GROWTH, " and ".join(texts) or None) and texts:
            for role, growth in leaks.items():
                run.log.warning(
                    "supervisor.memory_grows",
                    child=role,
                    mb_per_hour=round(growth.bytes_per_hour / 1e6, 1),
                    error_mb_per_hour=round(growth.error / 1e6, 1),
                )

    def _judge_degradation(self) -> None:
        run = self._run
        missing = [role for role, child in run.children.items() if child.state is not ChildState.READY]
        helpers = [
            f"{role.value} {_ABSENCE.get(run.children[role].state, 'down')}" for role in missing if role not in PEERS
        ]
        run.degradations.set(Degradation.CHILD, " and ".join(helpers) or None)
        num_lost = run.children[Role.LOGWRITER].heartbeat.num_waiting if Role.LOGWRITER in run.children else 0
        text = f"log.file took none of the last {num_lost} lines; is its disk full?" if num_lost else None
        if run.degradations.set(Degradation.LOG, text) and text is None:
            run.log.info("supervisor.log_file_written_again")
        if run.episode and not missing and run.phase is Phase.SERVING:
            run.log.info("supervisor.episode_over")
            run.close_episode()

    def _keep_budget(self, now_s: float) -> None:
        """Have the oldest logs removed beside the loop where they are too many."""
        if self._budget is None or now_s - self._swept_at_s < _SWEEP_S:
            return
        self._swept_at_s = now_s
        asyncio.get_running_loop().run_in_executor(None, self._budget.sweep).add_done_callback(self._swept)

    def _swept(self, sweeping: asyncio.Future[Sweep]) -> None:
        if sweeping.cancelled() or sweeping.exception() is not None:
            return
        assert self._budget is not None
        sweep = sweeping.result()
        self._run.board.take_sweep(sweep, self._budget.max_bytes)
        facts = {"total_bytes": sweep.total_bytes, "budget_bytes": self._budget.max_bytes}
        if sweep.num_removed:
            facts |= {"num_removed": sweep.num_removed, "freed_bytes": sweep.freed_bytes}
            self._run.log.info("supervisor.logs_removed", **facts)
        if sweep.over != self._is_over_budget:
            self._is_over_budget = sweep.over
            self._run.log.warning("supervisor.logs_over_budget" if sweep.over else "supervisor.logs_in_budget", **facts)

    def _log_stats(self, now_s: float) -> None:
        interval_s = self._run.config.log.stats_interval_s
        if interval_s and now_s - self._stats_at_s >= interval_s:
            self._stats_at_s = now_s
            if (line := self._run.board.stats_line(now_s)) is not None:
                self._run.log.info("supervisor.stats", **line)
